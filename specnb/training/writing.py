"""The target writes dialogues by itself: continuous batching over a static KV cache.

Every row of the batch is one dialogue in the making. Each forward pass feeds one token per row; a row that has
finished starts the next dialogue at once, so that no row ever waits for the longest.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

MARK = "\u0000"


@dataclass(frozen=True)
class Dialogue:
    """A question and its answer, token ids; greedy says how the answer was chosen (else at T = 0.6)."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    greedy: bool


@dataclass(frozen=True)
class Settings:
    """How dialogues are sampled. Lengths are in tokens; longer questions are thrown away, longer answers cut."""

    question_temperature: float = 1.0
    question_top_p: float = 0.95
    answer_temperature: float = 0.6
    shortest_question: int = 4
    longest_question: int = 80
    longest_answer: int = 224
    rows: int = 192


def template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Token ids before the user's words and between them and the answer (its end-of-turn token included)."""
    turn = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, after = text.split(MARK)
    return tuple(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after))


class RowsLayer(DynamicLayer):
    """One layer's keys and values in a (rows, heads, length, head_dim) buffer; each row writes at its own place."""

    def __init__(self, places: Tensor, rows: int, length: int):
        super().__init__()
        self.places, self.shape = places, (rows, length)

    def lazy_initialization(self, key_states: Tensor, *_) -> None:
        _, heads, _, width = key_states.shape
        rows, length = self.shape
        self.keys, self.values = (key_states.new_zeros(rows, heads, length, width) for _ in range(2))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states)
        every = torch.arange(len(self.places), device=key_states.device)
        self.keys[every, :, self.places] = key_states[:, :, 0]
        self.values[every, :, self.places] = value_states[:, :, 0]
        used = int(self.places.max()) + 1
        return self.keys[:, :, :used], self.values[:, :, :used]


def grouped_attention(module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_):
    """Attention for one query per row: the query heads that share a key head stand as queries of one head."""
    rows, heads, _, width = query.shape
    query = query.reshape(rows, key.shape[1], -1, width)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    return out.reshape(rows, 1, heads, width), None


AttentionInterface.register("specnb_grouped", grouped_attention)


def sample(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> Tensor:
    """One token per row from the top-p nucleus of softmax(logits / temperature); (rows,) int64.

    Draws from the whole law and draws again where the token lies outside the nucleus (more likely tokens already
    hold top_p), which gives the nucleus's law without sorting the vocabulary.
    """
    p = (logits.float() / temperature).softmax(-1)
    cumulative = p.cumsum(-1)
    chosen = torch.zeros(len(p), dtype=torch.int64, device=p.device)
    open_rows = torch.arange(len(p), device=p.device)
    while len(open_rows):
        places = torch.rand(len(open_rows), 1, generator=generator, device=p.device) * cumulative[open_rows, -1:]
        tokens = torch.searchsorted(cumulative[open_rows], places).clamp_max(p.shape[-1] - 1)  # (open, 1)
        chosen[open_rows] = tokens[:, 0]
        law = p[open_rows]
        above = torch.where(law > law.gather(1, tokens), law, 0).sum(-1)
        open_rows = open_rows[above >= top_p] if top_p < 1 else open_rows[:0]
    return chosen


@torch.no_grad()
def dialogues(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    seed: int,
    wanted: Callable[[tuple[int, ...]], bool] = lambda question: True,
) -> Iterator[Dialogue]:
    """Dialogues without end, in the order in which they are finished; every second one answers greedily.

    wanted(question) is asked before an answer is written: False throws the question away.
    """
    before, after = template(tokenizer)
    end, rows, start = after[0], settings.rows, len(before) - 1
    length = len(before) + settings.longest_question + len(after) + settings.longest_answer
    device = model.device
    places = torch.full((rows,), start, device=device)  # where each row's next token goes
    cache = Cache(layers=[RowsLayer(places, rows, length) for _ in range(model.config.num_hidden_layers)])
    generator = torch.Generator(device=device).manual_seed(seed)
    for place, token in enumerate(before[:-1]):  # all rows share the template's opening, which is never overwritten
        places.fill_(place)
        _step(model, torch.full((rows,), token, device=device), places, cache)
    places.fill_(start)
    begun = rows
    questions: list[list[int]] = [[] for _ in range(rows)]
    answers: list[list[int] | None] = [None] * rows  # None while the question is being written
    forced: list[list[int]] = [[] for _ in range(rows)]
    greedy = [row % 2 == 0 for row in range(rows)]
    tokens = torch.full((rows,), before[-1], device=device)
    while True:
        logits = _step(model, tokens, places, cache)
        asking = torch.tensor([answer is None for answer in answers], device=device)
        drawing = ~asking & ~torch.tensor(greedy, device=device)
        chosen = logits.argmax(-1)
        if asking.any():
            chosen[asking] = sample(logits[asking], settings.question_temperature, settings.question_top_p, generator)
        if drawing.any():
            chosen[drawing] = sample(logits[drawing], settings.answer_temperature, 1.0, generator)
        places += 1
        chosen = chosen.tolist()
        for row in range(rows):
            token, again = chosen[row], False
            if forced[row]:
                chosen[row] = forced[row].pop()
            elif answers[row] is None and token == end:
                question = tuple(questions[row])
                again = len(question) < settings.shortest_question or not wanted(question)
                answers[row], forced[row] = [], after[:0:-1]  # the rest of the template, last token first
            elif answers[row] is None:
                questions[row].append(token)
                again = len(questions[row]) > settings.longest_question
            else:
                answers[row].append(token)
                again = token == end or len(answers[row]) == settings.longest_answer
                if again:
                    yield Dialogue(tuple(questions[row]), tuple(answers[row]), greedy[row])
            if again:
                questions[row], answers[row], forced[row] = [], None, []
                greedy[row] = begun % 2 == 0
                begun += 1
                chosen[row] = before[-1]
                places[row] = start
        tokens = torch.tensor(chosen, device=device)


def _step(model: PreTrainedModel, tokens: Tensor, places: Tensor, cache: Cache) -> Tensor:
    """Feed one token per row at its place; (rows, V) logits."""
    seen = torch.arange(int(places.max()) + 1, device=places.device) <= places[:, None]  # (rows, used)
    mask = torch.zeros(seen.shape, dtype=model.dtype, device=seen.device)
    mask.masked_fill_(~seen, torch.finfo(model.dtype).min)
    out = model(
        input_ids=tokens[:, None],
        position_ids=places[:, None],
        attention_mask=mask[:, None, None],
        past_key_values=cache,
        use_cache=True,
    )
    return out.logits[:, -1]

"""The target writes dialogues by itself: continuous batching over a static KV cache.

Every row of the batch is one dialogue in the making. Each forward pass feeds one token per row; a row that has
finished starts the next dialogue at once, so that no row ever waits for the longest.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from specnb import masks
from specnb.cache import ARGUMENT
from specnb.decode import eos_ids
from specnb.sampling import Warp
from specnb.target import context_length

MARK = "\u0000"
SHORT, LONG, ENDED = "too short", "too long", "ended early"  # why a question is thrown away


@dataclass(frozen=True)
class Dialogue:
    """A question and its answer, token ids; greedy says how the answer was chosen (else at T = 0.6)."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    greedy: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How dialogues are sampled. Lengths are in tokens; longer questions are thrown away, longer answers cut.

    Without a chat template every question has longest_question tokens, the beginning of a text.
    """

    question_temperature: float = 1.0
    question_top_p: float = 0.95
    answer_temperature: float = 0.6
    shortest_question: int = 4
    longest_question: int = 80
    longest_answer: int = 448
    rows: int


def template(tokenizer: PreTrainedTokenizerBase) -> tuple[Sequence[int], Sequence[int]]:
    """Token ids before the user's words and between them and the answer (its end-of-turn token included).

    Without a chat template: what stands before every text (else the end of another), and nothing. ValueError if no
    token can stand there.
    """
    if not tokenizer.chat_template:
        return _begin_of_text(tokenizer), ()
    turn = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, after = text.split(MARK)
    before_ids = tokenizer(before, add_special_tokens=False)["input_ids"]
    after_ids = tokenizer(after, add_special_tokens=False)["input_ids"]
    return before_ids, after_ids


def _begin_of_text(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """The token ids that stand before every text: what the tokenizer puts there, else its begin or its end token."""
    before = tokenizer("")["input_ids"]
    if before:
        return tuple(before)
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return (token,)
    raise ValueError("the tokenizer has neither a chat template nor a token that begins or ends a text")


class RowsLayer(DynamicLayer):
    """One layer's keys and values in a (rows, heads, length, head_dim) buffer; each row writes at its own place.

    places: (rows,) where each row's next key and value go; whoever feeds the rows moves them on, in place.
    """

    def __init__(self, places: Tensor, length: int):
        super().__init__()
        self.places = places
        self.length = length

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            rows, heads, _, width = key_states.shape
            self.keys = key_states.new_zeros(rows, heads, self.length, width)
            self.values = key_states.new_zeros(rows, heads, self.length, width)
            self.is_initialized = True
        row = torch.arange(len(self.places), device=key_states.device)
        self.keys[row, :, self.places] = key_states[:, :, 0]
        self.values[row, :, self.places] = value_states[:, :, 0]
        used = int(self.places.max()) + 1
        return self.keys[:, :, :used], self.values[:, :, :used]


BLOCK = 24  # rows that attend together, to the length of the longest of them
SORT_EVERY = 32  # steps after which rows are sorted by length again


def grouped_attention(module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_):
    """Attention for one query per row: the query heads that share a key head stand as queries of one head.

    Memory traffic is what it costs, so rows of like length, which stand side by side, read no further than needed.
    query: (rows, heads, 1, width); key, value: (rows, key heads, length, width); mask: (rows, 1, 1, length), additive.
    Returns (rows, 1, heads, width), and None in place of the weights. Example: 4 query heads over 2 key heads become 2
    heads with 2 queries each.
    """
    rows, heads, _, width = query.shape
    query = query.reshape(rows, key.shape[1], -1, width)
    blocks = []
    for begin in range(0, rows, BLOCK):
        block = slice(begin, begin + BLOCK)
        visible = mask[block] == 0
        last_visible = visible.flatten(0, 2).any(0).nonzero().max()
        used = 1 + int(last_visible)
        block_out = F.scaled_dot_product_attention(
            query[block],
            key[block, :, :used],
            value[block, :, :used],
            attn_mask=mask[block, :, :, :used],
            scale=scaling,
        )
        blocks.append(block_out)
    return torch.cat(blocks).reshape(rows, 1, heads, width), None


AttentionInterface.register("specnb_grouped", grouped_attention)


def sample(logits: Tensor, temperature: float, top_p: float, generator: torch.Generator) -> Tensor:
    """One token per row from the top-p nucleus of softmax(logits / temperature); (rows,) int64."""
    p = Warp(temperature, top_p=top_p)(logits)  # (rows, V)
    return torch.multinomial(p, 1, generator=generator)[:, 0]


@dataclass
class Row:
    """A dialogue in the making. answer is None while the question is written; forced: tokens to feed, last first."""

    greedy: bool
    question: list[int] = field(default_factory=list)
    answer: list[int] | None = None
    forced: list[int] = field(default_factory=list)


@torch.no_grad()
def dialogues(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    seed: int,
    wanted: Callable[[tuple[int, ...]], bool] = lambda question: True,
    openings: Sequence[tuple[int, ...]] = (),
    thrown: Callable[[str], None] = lambda why: None,
) -> Iterator[Dialogue]:
    """Dialogues without end, in the order in which they are finished; every second one answers greedily.

    wanted(question) is asked before an answer is written: False throws the question away. thrown(why) is told of each
    question that is thrown away for its length or its end. openings: token ids that questions begin with, one of them
    drawn for each; without any the question is free.
    """
    before, after = template(tokenizer)
    ends = {*after[:1], *eos_ids(model)}  # tokens that end a turn
    length = len(before) + settings.longest_question + len(after) + settings.longest_answer
    _check_context(model, settings, length)
    rows = settings.rows
    device = model.device
    places = torch.zeros(rows, dtype=torch.int64, device=device)  # where each row's next token goes
    cache = Cache(layers=[RowsLayer(places, length) for _ in range(model.config.num_hidden_layers)])
    generator = torch.Generator(device=device).manual_seed(seed)
    for token in before[:-1]:  # all rows share the template's opening, which is never overwritten
        _step(model, torch.full((rows,), token, device=device), places, cache)
        places += 1

    batch = [_fresh(number, openings, generator) for number in range(rows)]
    begun = rows  # dialogues so far
    tokens = torch.full((rows,), before[-1], device=device)
    for step in count(1):
        logits = _step(model, tokens, places, cache)
        chosen = _choose(logits, batch, settings, generator)
        places += 1
        feed = chosen.tolist()
        for i, row in enumerate(batch):
            token = feed[i]
            over = False
            if row.forced:
                feed[i] = row.forced.pop()
            elif row.answer is None:
                feed[i], over = _ask(row, token, ends, after, settings, wanted, thrown)
            else:
                row.answer.append(token)
                over = token in ends or len(row.answer) == settings.longest_answer
                if over:
                    yield Dialogue(tuple(row.question), tuple(row.answer), row.greedy)
            if over:  # the next dialogue takes the row, behind the template's opening
                begun += 1
                batch[i] = _fresh(begun, openings, generator)
                feed[i] = before[-1]
                places[i] = len(before) - 1
        tokens = torch.tensor(feed, device=device)
        if step % SORT_EVERY == 0:
            order = places.argsort(stable=True)
            cache.reorder_cache(order)
            places.copy_(places[order])
            tokens = tokens[order]
            batch = [batch[i] for i in order.tolist()]


def _choose(logits: Tensor, batch: Sequence[Row], settings: Settings, generator: torch.Generator) -> Tensor:
    """(rows,) the token that each row goes on with, if it may choose: drawn, but for greedy answers."""
    asking = [row.answer is None for row in batch]
    drawing = [row.answer is not None and not row.greedy for row in batch]
    asking = torch.tensor(asking, device=logits.device)
    drawing = torch.tensor(drawing, device=logits.device)
    chosen = logits.argmax(-1)
    chosen[asking] = sample(logits[asking], settings.question_temperature, settings.question_top_p, generator)
    chosen[drawing] = sample(logits[drawing], settings.answer_temperature, 1.0, generator)
    return chosen


def _ask(
    row: Row,
    token: int,
    ends: set[int],
    after: Sequence[int],
    settings: Settings,
    wanted: Callable[[tuple[int, ...]], bool],
    thrown: Callable[[str], None],
) -> tuple[int, bool]:
    """A row's question goes on with the token that was drawn: what is fed next, and whether it is thrown away."""
    if token in ends and after:  # the question is whole
        row.answer = []
        row.forced = list(after[:0:-1])  # the rest of the template before the answer, last token first
        if len(row.question) < settings.shortest_question:
            thrown(SHORT)
            return after[0], True
        return after[0], not wanted(tuple(row.question))
    row.question.append(token)
    if token in ends:
        thrown(ENDED)
        return token, True
    if len(row.question) > settings.longest_question:
        thrown(LONG)
        return token, True
    if not after and len(row.question) == settings.longest_question:  # without a chat template the answer begins here
        row.answer = []
        return token, not wanted(tuple(row.question))
    return token, False


def _check_context(model: PreTrainedModel, settings: Settings, length: int) -> None:
    """ValueError unless the longest dialogue fits the model's context."""
    context = context_length(model)
    if length > context:
        raise ValueError(
            f"a dialogue of up to {length} tokens (question {settings.longest_question}, answer "
            f"{settings.longest_answer}, template) does not fit the model's context of {context}: "
            f"shorten the longest question or answer"
        )


def _fresh(number: int, openings: Sequence[tuple[int, ...]], generator: torch.Generator) -> Row:
    """The row of a new dialogue; its question begins with one of the openings, if there are any."""
    opening: tuple[int, ...] = ()
    if openings:
        drawn = torch.randint(len(openings), (), generator=generator, device=generator.device)
        opening = openings[int(drawn)]
    greedy = number % 2 == 0
    return Row(greedy, question=list(opening), forced=list(reversed(opening)))


def _step(model: PreTrainedModel, tokens: Tensor, places: Tensor, cache: Cache) -> Tensor:
    """Feed one token per row at its place; (rows, V) logits."""
    used = int(places.max()) + 1
    visible = torch.arange(used, device=places.device) <= places[:, None]  # (rows, used)
    mask = masks.additive(visible, model.dtype).transpose(0, 2)  # (rows, 1, 1, used)
    mask = masks.by_layer(mask, model, places[:, None, None], torch.arange(used))
    kept = {"use_cache": True, ARGUMENT: cache}
    out = model(tokens[:, None], position_ids=places[:, None], attention_mask=mask, **kept)
    return out.logits[:, -1]

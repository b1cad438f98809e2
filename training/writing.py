"""The target writes dialogues by itself, many at a time, with a static KV cache (continuous batching).

Every row of the batch is one dialogue in the making. Each forward pass feeds one token per row. A row whose dialogue is
finished begins the next one at once, so that no row waits for the longest.
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

MARK = "\u0000"  # takes the place of the user's words in ``template``; no chat template contains it
# Why a question is thrown away
SHORT = "too short"
LONG = "too long"
ENDED = "ended early"


@dataclass(frozen=True)
class Dialogue:
    """A question and its answer, both written by the target."""

    question: tuple[int, ...]  # token ids
    answer: tuple[int, ...]  # token ids
    greedy: bool  # whether the answer was decoded greedily; if not, it was sampled at ``answer_temperature``


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How dialogues are sampled. Longer questions are thrown away, longer answers are cut off.

    For a target without a chat template, the beginning of a text takes the place of a question. It has longest_question
    tokens.
    """

    question_temperature: float = 1.0
    question_top_p: float = 0.95
    answer_temperature: float = 0.6  # of the answers that are not greedy
    shortest_question: int = 4  # tokens
    longest_question: int = 80  # tokens
    longest_answer: int = 448  # tokens
    rows: int  # dialogues that are written at the same time


def template(tokenizer: PreTrainedTokenizerBase) -> tuple[Sequence[int], Sequence[int]]:
    """The template's token ids before the user's words, and those between the user's words and the answer.

    The latter include the token that ends the user's turn. For a target without a chat template they are empty, and the
    former are the tokens that begin every text, or else the token that ends one. Raises ValueError if there is no such
    token.
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
    """The tokens that the tokenizer puts before every text, or else one that begins or ends a text."""
    before = tokenizer("")["input_ids"]
    if before:
        return tuple(before)
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return (token,)
    raise ValueError("the tokenizer has neither a chat template nor a token that begins or ends a text")


class RowsLayer(DynamicLayer):
    """One layer's keys and values in a (rows, heads, length, head_dim) buffer; each row writes at its own position.

    positions: (rows,) the position of each row's next key and value. The tensor is shared with the code that feeds the
    rows, which increases it in place.
    """

    def __init__(self, positions: Tensor, length: int):
        super().__init__()
        self.positions = positions
        self.length = length

    def update(self, key_states: Tensor, value_states: Tensor, *_, **__) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            rows, heads, _, width = key_states.shape
            self.keys = key_states.new_zeros(rows, heads, self.length, width)
            self.values = key_states.new_zeros(rows, heads, self.length, width)
            self.is_initialized = True
        row = torch.arange(len(self.positions), device=key_states.device)
        self.keys[row, :, self.positions] = key_states[:, :, 0]
        self.values[row, :, self.positions] = value_states[:, :, 0]
        used = int(self.positions.max()) + 1
        return self.keys[:, :, :used], self.values[:, :, :used]


BLOCK = 24  # rows whose attention is computed together, over the length of the longest of them
SORT_EVERY = 32  # steps between two sortings of the rows by length


def grouped_attention(module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **_):
    """Attention with one query per row. Query heads that share a key head become several queries of one head.

    Example: 4 query heads over 2 key heads become 2 heads with 2 queries each.

    The time goes into reading keys and values. Rows of similar length are neighbours, so a block of rows reads its keys
    only up to its longest row.

    query: (rows, heads, 1, width).
    key, value: (rows, key heads, length, width).
    mask: (rows, 1, 1, length), additive.
    Returns (rows, 1, heads, width), and None in place of the attention weights.
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
    """One token per row, (rows,) int64, drawn from the top-p nucleus of softmax(logits / temperature)."""
    p = Warp(temperature, top_p=top_p)(logits)  # (rows, V)
    return torch.multinomial(p, 1, generator=generator)[:, 0]


@dataclass
class Row:
    """A dialogue in the making."""

    greedy: bool  # whether its answer is decoded greedily
    question: list[int] = field(default_factory=list)
    answer: list[int] | None = None  # None while the question is written
    forced: list[int] = field(default_factory=list)  # tokens to feed next instead of what the target predicts, reversed


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
    """Dialogues without end, in the order in which they are finished; every second one has a greedy answer.

    wanted: called with a question before its answer is written; if it returns False, the question is thrown away.
    openings: token ids that questions begin with, one opening drawn for each question; none: questions are free.
    thrown: called with the reason when a question is thrown away for its length or its end.
    """
    before, after = template(tokenizer)
    ends = {*after[:1], *eos_ids(model)}  # tokens that end a turn
    length = len(before) + settings.longest_question + len(after) + settings.longest_answer
    _check_context(model, settings, length)
    rows = settings.rows
    device = model.device
    positions = torch.zeros(rows, dtype=torch.int64, device=device)  # (rows,): the position of each row's next token
    cache = Cache(layers=[RowsLayer(positions, length) for _ in range(model.config.num_hidden_layers)])
    generator = torch.Generator(device=device).manual_seed(seed)
    for token in before[:-1]:  # every row begins with them, and they are never overwritten
        _step(model, torch.full((rows,), token, device=device), positions, cache)
        positions += 1

    batch = [_fresh(number, openings, generator) for number in range(rows)]
    begun = rows  # dialogues begun so far
    tokens = torch.full((rows,), before[-1], device=device)
    for step in count(1):
        logits = _step(model, tokens, positions, cache)
        chosen = _choose(logits, batch, settings, generator)
        positions += 1
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
            if over:  # the next dialogue takes the row, after the template's first tokens
                begun += 1
                batch[i] = _fresh(begun, openings, generator)
                feed[i] = before[-1]
                positions[i] = len(before) - 1
        tokens = torch.tensor(feed, device=device)
        if step % SORT_EVERY == 0:
            order = positions.argsort(stable=True)
            cache.reorder_cache(order)
            positions.copy_(positions[order])
            tokens = tokens[order]
            batch = [batch[i] for i in order.tolist()]


def _choose(logits: Tensor, batch: Sequence[Row], settings: Settings, generator: torch.Generator) -> Tensor:
    """(rows,) the token with which each row goes on unless one is forced: drawn, or the likeliest in greedy answers."""
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
    """Continue a row's question with the token that was drawn.

    Returns the token to feed next, and whether the question is thrown away.
    """
    if token in ends and after:  # the question is complete
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
    """Raise ValueError if the longest dialogue does not fit the model's context."""
    context = context_length(model)
    if length > context:
        raise ValueError(
            f"a dialogue of up to {length} tokens (question {settings.longest_question}, answer "
            f"{settings.longest_answer}, template) does not fit the model's context of {context}: "
            f"shorten the longest question or answer"
        )


def _fresh(number: int, openings: Sequence[tuple[int, ...]], generator: torch.Generator) -> Row:
    """The row of a new dialogue, whose question begins with one of the openings, if there are any."""
    opening: tuple[int, ...] = ()
    if openings:
        drawn = torch.randint(len(openings), (), generator=generator, device=generator.device)
        opening = openings[int(drawn)]
    greedy = number % 2 == 0
    return Row(greedy, question=list(opening), forced=list(reversed(opening)))


def _step(model: PreTrainedModel, tokens: Tensor, positions: Tensor, cache: Cache) -> Tensor:
    """Feed one token per row at its position; returns logits (rows, V)."""
    used = int(positions.max()) + 1
    visible = torch.arange(used, device=positions.device) <= positions[:, None]  # (rows, used)
    mask = masks.additive(visible, model.dtype).transpose(0, 2)  # (rows, 1, 1, used)
    mask = masks.by_layer(mask, model, positions[:, None, None], torch.arange(used))
    caching = {"use_cache": True, ARGUMENT: cache}
    out = model(tokens[:, None], position_ids=positions[:, None], attention_mask=mask, **caching)
    return out.logits[:, -1]

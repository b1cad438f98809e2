"""The target writes dialogues by itself, by transformers' generate: many questions at once, then their answers."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

MARK = "\u0000"


@dataclass(frozen=True)
class Dialogue:
    """A question and its answer, token ids; greedy says how the answer was chosen (else at T = 0.6)."""

    question: tuple[int, ...]
    answer: tuple[int, ...]
    greedy: bool


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How dialogues are sampled. Lengths are in tokens; longer questions are thrown away, longer answers cut."""

    question_temperature: float = 1.0
    question_top_p: float = 0.95
    answer_temperature: float = 0.6
    shortest_question: int = 4
    longest_question: int = 80
    longest_answer: int = 448
    rows: int


def template(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Token ids before the user's words and between them and the answer (its end-of-turn token included)."""
    turn = [{"role": "user", "content": MARK}]
    text = tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    before, after = text.split(MARK)
    return tuple(tokenizer(part, add_special_tokens=False)["input_ids"] for part in (before, after))


def written(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], end: int, length: int, **options
) -> list[tuple[int, ...]]:
    """What the model writes behind each prompt, side by side: up to its end of turn (included) or so many tokens."""
    width = max(map(len, prompts))
    rows = [[end] * (width - len(prompt)) + list(prompt) for prompt in prompts]
    told = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    ids, mask = (torch.tensor(each, device=model.device) for each in (rows, told))
    stops = {"max_new_tokens": length, "eos_token_id": end, "pad_token_id": end}
    out = model.generate(ids, attention_mask=mask, **stops, **options)[:, width:].tolist()
    return [tuple(row[: row.index(end) + 1] if end in row else row) for row in out]


def dialogues(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    settings: Settings,
    *,
    seed: int,
    wanted: Callable[[tuple[int, ...]], bool] = lambda question: True,
    openings: Sequence[tuple[int, ...]] = (),
) -> Iterator[Dialogue]:
    """Dialogues without end, as many side by side as settings has rows; half of the answers are greedy.

    wanted(question) is asked before an answer is written: False throws the question away.
    openings: token ids that questions begin with, one of them drawn for each; without any the question is free.
    """
    before, after = template(tokenizer)
    end, sampled = after[0], {"do_sample": True, "top_k": 0}
    asking = sampled | {"temperature": settings.question_temperature, "top_p": settings.question_top_p}
    drawing = sampled | {"temperature": settings.answer_temperature, "top_p": 1.0}
    for batch in count():
        torch.manual_seed(1_000_003 * seed + batch)
        drawn = torch.randint(max(1, len(openings)), (settings.rows,)).tolist()
        begun = [openings[i] if openings else () for i in drawn]
        asked = written(model, [[*before, *words] for words in begun], end, settings.longest_question + 1, **asking)
        ended = [(*words, *new[:-1]) for words, new in zip(begun, asked, strict=True) if new[-1] == end]
        fit = [q for q in ended if settings.shortest_question <= len(q) <= settings.longest_question]
        kept = [question for question in fit if wanted(question)]
        for greedy, questions in ((True, kept[::2]), (False, kept[1::2])):
            prompts = [[*before, *question, *after] for question in questions]
            how = {"do_sample": False} if greedy else drawing
            answers = written(model, prompts, end, settings.longest_answer, **how) if prompts else []
            for question, answer in zip(questions, answers, strict=True):
                yield Dialogue(question, answer, greedy)

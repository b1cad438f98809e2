"""One call for a newcomer: the model that fits this machine, the fastest drafter, and what each target call wrote.

    import specnb
    answer = specnb.generate("Name three rivers.")
    print(answer.text, answer.calls)

It loads a pair of target and draft model (``models``), chooses a drafter (``fastest_drafter``) and runs the loop
(``decode``). It may import every room, and no room imports it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import median

import torch
from transformers import PreTrainedModel

from specnb import heads, hf, models, verifiers
from specnb.decode import Drafter, Generation, Step, steps
from specnb.drafters import AutoDrafter, CausalLMDraft, Datastore, DraftModel, NgramDrafter, RetrievalDrafter, seconds
from specnb.models import Pair, files
from specnb.selfcheck import identity
from specnb.target import Target, output_rows

HEAD = "hass"  # the trained draft head
LOOKED_UP = 15  # nodes of the draft tree that are looked up in texts
MAX_NEW_TOKENS = 128


@dataclass(frozen=True)
class Answer:
    """A text, and how it came about.

    text, tokens: what was written, end tokens in tokens only. calls: forward passes of the target that wrote; the one
    that reads the prompt goes before them. writes: the piece of text that each of them added. drafter: what drafted.
    seconds: from the prompt to the last token. generation: every step with its tree, for ``specnb.show``.
    """

    text: str
    tokens: tuple[int, ...]
    calls: int
    writes: tuple[str, ...]
    drafter: str
    seconds: float
    generation: Generation = field(repr=False)


@dataclass(frozen=True)
class Choice:
    """The drafter that was chosen for a pair.

    name: what drafts, in words. what_would_be_faster: what is missing for a faster one; "" if nothing is.
    """

    drafter: Drafter
    name: str
    what_would_be_faster: str = ""


def generate(
    prompt: str,
    *,
    model: str | Pair = models.EMBEDDED,
    max_new_tokens: int = MAX_NEW_TOKENS,
    temperature: float = 0.0,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    chat: bool = True,
    dtype: str | None = None,
    on_call: Callable[[str], None] | None = None,
) -> Answer:
    """Answer a prompt by speculative decoding, with the fastest drafter that this machine and installation have.

    model: a name for ``models.load_pair``, or a pair that it has loaded; pairs are loaded once a process. temperature:
    0 is greedy, and the text is the target's own; above 0 its distribution is. chat: whether the prompt is a user's
    turn, under the model's chat template, or bare text to go on with. dtype: None takes the machine's fastest one.
    on_call: called with what each target call wrote, as soon as it has; a character that is spread over several tokens
    counts for the call that completes it.

    >>> answer = specnb.generate("Name three rivers.", max_new_tokens=32)
    >>> "".join(answer.writes) == answer.text, len(answer.writes) == answer.calls
    (True, True)

    Raises ValueError on a prompt without tokens, on one too long for the model, and on settings without sense; OSError
    if a model cannot be fetched.
    """
    pair = load(model, dtype)
    choice = fastest_drafter(pair)
    ids = pair.encode(prompt, chat=chat)
    began = time.perf_counter()
    loop = steps(
        Target(pair.target),
        choice.drafter,
        verifiers.by_draw,
        ids,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        seed=seed,
    )
    tokens: list[int] = []
    writes: list[str] = []
    taken: list[Step] = []
    shown = ""
    for step in loop:
        tokens += step.tokens
        taken.append(step.light())
        piece = _new_text(pair, tokens, shown, last=step.finish is not None)
        shown += piece
        writes.append(piece)
        if on_call is not None:
            on_call(piece)
    elapsed = time.perf_counter() - began
    generation = Generation(tuple(ids), tuple(tokens), tuple(taken), taken[-1].finish or "")
    return Answer(shown, tuple(tokens), len(taken), tuple(writes), choice.name, elapsed, generation)


@dataclass(frozen=True)
class Comparison:
    """The same prompt answered several times in turns by ``generate`` here and by transformers' own.

    seconds, their_seconds: of each run, paired; tokens, their_tokens: written by a run. parted_at: the first token that
    differs, None if none does, or if texts were sampled.
    """

    seconds: tuple[float, ...]
    their_seconds: tuple[float, ...]
    tokens: int
    their_tokens: int
    parted_at: int | None

    @property
    def speed_up(self) -> float:
        """Tokens a second over those of transformers' generate: the median of the runs' ratios."""
        ratios = []
        for our_time, their_time in zip(self.seconds, self.their_seconds, strict=True):
            rate = self.tokens / our_time
            their_rate = self.their_tokens / their_time
            ratios.append(rate / their_rate)
        return median(ratios)


def compare(prompt: str, *, runs: int = 3, chat: bool = True, **options) -> Comparison:
    """Time ``generate`` beside transformers' own ``generate`` on this machine, with the same model and prompt.

    Both have written a few tokens before, and take turns. options: those of ``generate`` but on_call. A few runs of one
    prompt say what happens on this prompt; ``python -m study race`` compares methods over many.
    """
    pair = load(options.get("model", models.EMBEDDED), options.pop("dtype", None))
    options["model"] = pair
    ids = pair.encode(prompt, chat=chat)
    length = options.get("max_new_tokens", MAX_NEW_TOKENS)
    sampling = _their_sampling(**options)
    generate(prompt, chat=chat, **options | {"max_new_tokens": 8})
    models.generate(pair, ids, 8)
    ours, theirs = [], []
    for run in range(runs):
        began = time.perf_counter()
        torch.manual_seed(run)
        their_tokens = models.generate(pair, ids, length, **sampling)
        theirs.append(time.perf_counter() - began)
        answer = generate(prompt, chat=chat, **options)
        ours.append(answer.seconds)
    parted_at = None
    if not sampling:
        parted_at = _parted_at(answer.tokens, their_tokens)
    return Comparison(tuple(ours), tuple(theirs), len(answer.tokens), len(their_tokens), parted_at)


def _their_sampling(*, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0, **_) -> dict[str, object]:
    """Options of transformers' generate that sample as ours do; none for greedy decoding."""
    if temperature == 0:
        return {}
    return {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}


def _parted_at(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """The first place at which two texts differ, or at which one of them ends; None if they are the same."""
    for place, (our_token, their_token) in enumerate(zip(ours, theirs, strict=False)):
        if our_token != their_token:
            return place
    if len(ours) != len(theirs):
        return min(len(ours), len(theirs))
    return None


def custom_generate(model: Pair | PreTrainedModel) -> Callable:
    """The same for transformers: ``model.generate(**inputs, custom_generate=specnb.custom_generate(model))``.

    A pair gets the drafter that ``generate`` gives it, any other model the n-gram tree; see ``hf.speculative`` for what
    is honoured.
    """
    drafter = fastest_drafter(model).drafter if isinstance(model, Pair) else NgramDrafter()
    return hf.speculative(drafter, verifiers.by_draw)


def load(model: str | Pair = models.EMBEDDED, dtype: str | None = None) -> Pair:
    """A pair by name, once a process; a pair as it is."""
    if isinstance(model, Pair):
        return model
    return _load(model, dtype)


@cache
def _load(name: str, dtype: str | None) -> Pair:
    return models.load_pair(name, dtype=dtype)


CHOICES: dict[Pair, Choice] = {}  # of this process


def fastest_drafter(pair: Pair, *, anew: bool = False) -> Choice:
    """The fastest drafter for a pair, once a process.

    With a draft model (the checkout's trained head, for the embedded target; a pair's own) it is ``AutoDrafter``, sized
    by what forwards take here (``drafters.seconds.kept``); without one, the n-gram tree. anew: measure that again.
    """
    if anew or pair not in CHOICES:
        CHOICES[pair] = _choose(pair, anew)
    return CHOICES[pair]


def _choose(pair: Pair, anew: bool) -> Choice:
    """``fastest_drafter``, chosen now."""
    if pair.name == models.EMBEDDED and files.CHECKED_OUT:
        draft = heads.load_draft(HEAD, pair.target)
        draft_name = f"{HEAD} {heads.hashes([HEAD])[HEAD]}"
        looked_up = RetrievalDrafter(Datastore.of_corpus(), budget=LOOKED_UP)
        return Choice(
            _auto(pair, draft, draft_name, looked_up, anew), "auto: a trained head, this text and stored texts"
        )
    if pair.draft is not None:
        draft = CausalLMDraft(pair.draft, vocabulary=output_rows(pair.target))
        return Choice(_auto(pair, draft, identity(pair.draft), None, anew), "auto: the pair's draft model")
    missing = "no draft head was trained for this model here: `python -m training` trains one (docs/own_draft.md)"
    if pair.name == models.EMBEDDED:
        missing = (
            "a trained head and stored texts, which draft better, come with a checkout of the repository (git clone)"
        )
    return Choice(NgramDrafter(), "n-gram tree: this text", missing)


def _auto(
    pair: Pair, draft: DraftModel, draft_name: str, looked_up: RetrievalDrafter | None, anew: bool
) -> AutoDrafter:
    """AutoDrafter with this machine's prices."""
    prefix = min(seconds.PREFIX, seconds.room_for_prefix(pair.target, pair.draft))
    prices = seconds.kept(Target(pair.target), draft, draft_name, prefix, anew=anew)
    return AutoDrafter(draft, prices.target, prices.draft, looked_up)


def _new_text(pair: Pair, tokens: list[int], shown: str, *, last: bool) -> str:
    """What the tokens say beyond what is shown; "" while they end within a character, unless they are the last."""
    text = pair.decode(tokens)
    if text.endswith("\N{REPLACEMENT CHARACTER}") and not last:
        return ""
    return text[len(shown) :]

"""The corpus on disk: dialogues that the target wrote, in shards, with a manifest that lists them.

A dialogue is a question and its answer. A shard is a file of about SHARD answer tokens. Shards are written one by one,
so that a killed run resumes after the last complete one.
"""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from specnb import heads, models
from specnb.models import files, prompts, provenance
from training import hints, writing

FOLDER = files.DATA / "corpus"
GUIDED = FOLDER / "guided"  # the corpus whose questions have given first words, see ``openings``
SHARD = 50_000  # answer tokens per shard: a killed run loses no more than about this many
WINDOW = 8  # a question is thrown away if it shares this many consecutive words with a held-out prompt


def save(path: Path, dialogues: Sequence[writing.Dialogue]) -> None:
    """Write n dialogues to a file, which appears only when it is complete.

    Its arrays are, with all lengths in tokens:

    tokens      question, answer, question, answer, … in one array; uint16, or uint32 for larger vocabularies
    questions   (n,) lengths of the questions, uint16
    answers     (n,) lengths of the answers, uint16
    greedy      (n,) bool: whether the answer was decoded greedily
    """
    tokens = []
    for dialogue in dialogues:
        tokens += dialogue.question
        tokens += dialogue.answer
    arrays = {
        "tokens": _unsigned(tokens),
        "questions": _unsigned([len(dialogue.question) for dialogue in dialogues]),
        "answers": _unsigned([len(dialogue.answer) for dialogue in dialogues]),
        "greedy": np.array([dialogue.greedy for dialogue in dialogues], bool),
    }
    files.write(path, partial(np.savez_compressed, **arrays))


def _unsigned(values: Sequence[int]) -> np.ndarray:
    """Numbers ≥ 0 as an array of uint16, or of uint32 if one of them does not fit."""
    fits = max(values) < 2**16
    return np.array(values, np.uint16 if fits else np.uint32)


def read(path: Path) -> list[writing.Dialogue]:
    """The dialogues in a file that ``save`` has written."""
    with np.load(path) as arrays:
        tokens = tuple(arrays["tokens"].tolist())
        questions = arrays["questions"].tolist()
        answers = arrays["answers"].tolist()
        greedy = arrays["greedy"].tolist()
    dialogues = []
    begin = 0
    for question_length, answer_length, is_greedy in zip(questions, answers, greedy, strict=True):
        middle = begin + question_length
        end = middle + answer_length
        dialogues.append(writing.Dialogue(tokens[begin:middle], tokens[middle:end], is_greedy))
        begin = end
    return dialogues


def words(text: str) -> list[str]:
    """The words of a text in lower case, without spaces and punctuation."""
    return re.findall(r"\w+", text.lower())


def windows(text: str) -> set[tuple[str, ...]]:
    """All runs of WINDOW consecutive words of a text; of a shorter text, all its words as one run."""
    in_order = words(text)
    count = max(1, len(in_order) - WINDOW + 1)
    return {tuple(in_order[i : i + WINDOW]) for i in range(count)}


def held_out() -> set[tuple[str, ...]]:
    """The word windows of every prompt that heads are measured on. They never enter training."""
    forbidden = set()
    for name in prompts.SETS:
        for text in prompts.load(name)["text"]:
            forbidden |= windows(text)
    return forbidden


def load(*folders: Path, shards: int | None = None, pair: str = models.EMBEDDED) -> list[writing.Dialogue]:
    """The dialogues of one or more corpora: the first shard of each, then the second of each, and so on.

    shards: how many shards of each corpus to load; None: all.
    pair: the name of the target whose commands the errors advise.
    Raises ValueError if a shard is missing or damaged.
    """
    corpora = [_shards(folder, shards, pair) for folder in folders]
    dialogues = []
    for turn in zip_longest(*corpora, fillvalue=()):  # (): a corpus that has no more shards
        for shard in turn:
            dialogues += shard
    return dialogues


def _shards(folder: Path, count: int | None, pair: str) -> Iterator[list[writing.Dialogue]]:
    """The dialogues of a corpus's first ``count`` shards, shard by shard; None: of all shards."""
    entries = read_manifest(folder, pair)["shards"]
    for entry in entries[:count]:
        path = folder / entry["file"]
        if not path.exists() or files.sha256(path) != entry["sha256"]:
            raise ValueError(
                f"{path} is missing or damaged: restore it, or delete it and its entry in manifest.json, "
                f"and run its command again, with --tokens above what is left: {entry['command']}"
            )
        yield read(path)


def read_manifest(folder: Path = FOLDER, pair: str = models.EMBEDDED) -> dict:
    """A corpus's manifest; ValueError if there is none or it is damaged. pair: as in ``load``."""
    path = files.in_checkout(folder / "manifest.json")
    if not path.exists():
        options = ["--guided"] if folder.name == GUIDED.name else []
        write_it = hints.command("corpus", *options, pair=pair)
        raise ValueError(f"{folder} holds no corpus (no manifest.json): run {write_it} first")
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged ({error}): restore it, the shards beside it are untouched") from error


def write(
    pair: models.Pair,
    target_answer_tokens: int,
    *,
    command: str,
    folder: Path,
    settings: writing.Settings,
    seed: int = 0,
    openings: Sequence[str] = (),
) -> dict:
    """Let the target write dialogues until the corpus has this many answer tokens; returns the manifest.

    command: the command line that the manifest records.
    settings: how dialogues are sampled. The manifest records them shard by shard, so later shards may have others.
    openings: first words of questions, see ``writing.dialogues``.

    Each shard, and then the manifest, appears only when it is complete. A killed run goes on after the last complete
    shard, with a new stream of random numbers from the same seed. Questions that were asked before are thrown away,
    and so are questions that share WINDOW consecutive words with a held-out prompt.

    Raises ValueError if the folder's corpus was written by another model, or with another seed or other openings.
    """
    manifest = _open_manifest(pair, folder, seed, openings)
    progress = _Progress()
    earlier_questions = folder if manifest["shards"] else None
    wanted = _make_filter(pair, earlier_questions, progress.thrown)
    number = _next_number(folder)
    stream = writing.dialogues(
        pair.target,
        pair.tokenizer,
        settings,
        seed=_seed_of_run(seed, number),
        wanted=wanted,
        openings=_tokenized(pair, openings, settings),
        thrown=progress.thrown,
    )
    written = _answer_tokens(manifest)

    def kept() -> str:
        in_shards = _answer_tokens(read_manifest(folder)) if (folder / "manifest.json").exists() else 0
        return f"{in_shards:,} of {target_answer_tokens:,} answer tokens written in {folder}"

    bar = tqdm(total=target_answer_tokens, initial=written, unit="token", unit_scale=True, disable=files.QUIET)
    with hints.interruptible(kept), bar:
        progress.bar = bar
        while written < target_answer_tokens:
            entry = _write_shard(folder / f"shard-{number:03d}.npz", stream, progress)
            entry |= {"settings": asdict(settings), **provenance.facts(command)}
            manifest["shards"].append(entry)
            files.write(folder / "manifest.json", files.to_json(manifest))
            number += 1
            written += entry["answer_tokens"]
    return manifest


def _next_number(folder: Path) -> int:
    """The number after the last shard in the folder, in the manifest or not; 0 if there is no shard."""
    numbers = [int(path.stem.removeprefix("shard-")) for path in folder.glob("shard-*.npz")]
    return max(numbers, default=-1) + 1


def _seed_of_run(seed: int, number: int) -> int:
    """The seed of a run that begins with shard ``number``, so that each run draws other random numbers."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _tokenized(pair: models.Pair, openings: Sequence[str], settings: writing.Settings) -> list[tuple[int, ...]]:
    """The token ids of openings. Left out are those that would fill the longest question completely."""
    tokenized = [tuple(pair.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in openings]
    return [opening for opening in tokenized if len(opening) < settings.longest_question]


def _answer_tokens(manifest: dict) -> int:
    """The number of answer tokens in a corpus."""
    return sum(entry["answer_tokens"] for entry in manifest["shards"])


def _open_manifest(pair: models.Pair, folder: Path, seed: int, openings: Sequence[str]) -> dict:
    """The manifest of the corpus in a folder, or a new one; ValueError if the corpus was written on other terms."""
    if pair.name == models.EMBEDDED:
        weights = files.SMOLLM2_GGUF.sha256
    else:
        weights = heads.fingerprint(pair.target)
    terms = {"model": {"name": pair.name, "sha256": weights}, "seed": seed}
    if openings:
        listed = json.dumps(list(openings))
        terms["openings"] = hashlib.sha256(listed.encode()).hexdigest()[:16]
    if not (folder / "manifest.json").exists():
        return {**terms, "shards": []}
    manifest = read_manifest(folder)
    for name, value in terms.items():
        if manifest.get(name) != value:
            raise ValueError(f"the corpus in {folder} was written with {name} {manifest.get(name)}, not with {value}")
    return manifest


def _make_filter(
    pair: models.Pair, folder: Path | None, thrown: Callable[[str], None]
) -> Callable[[tuple[int, ...]], bool]:
    """A function that says whether a question is new and shares no word window with a held-out prompt.

    folder: the corpus with the questions that were asked before; None: there are none.
    thrown: called with the reason when a question is thrown away.
    """
    asked = set()  # questions as tuples of words
    before = [] if folder is None else load(folder)
    for dialogue in before:
        text = pair.decode(dialogue.question)
        asked.add(tuple(words(text)))
    forbidden = held_out()

    def wanted(question: tuple[int, ...]) -> bool:
        text = pair.decode(question)
        in_words = tuple(words(text))
        if in_words in asked:
            thrown("asked before")
            return False
        if windows(text) & forbidden:
            thrown("like a held-out prompt")
            return False
        asked.add(in_words)
        return True

    return wanted


def _write_shard(path: Path, stream: Iterator[writing.Dialogue], progress: "_Progress") -> dict:
    """Write the next SHARD answer tokens of a stream of dialogues; returns the shard's entry for the manifest."""
    began = time.monotonic()
    dialogues = []
    answer_tokens = 0
    while answer_tokens < SHARD:
        dialogue = next(stream)
        dialogues.append(dialogue)
        answer_tokens += len(dialogue.answer)
        progress.answered(dialogue)
    save(path, dialogues)
    seconds = round(time.monotonic() - began, 1)
    return {
        "file": path.name,
        "sha256": files.sha256(path),
        "dialogues": len(dialogues),
        "answer_tokens": answer_tokens,
        "seconds": seconds,
    }


class _Progress:
    """A progress bar of answer tokens, with the numbers of questions answered and thrown away beside it."""

    def __init__(self):
        self.bar: tqdm | None = None
        self.questions = 0  # answered
        self.reasons = Counter()  # of questions that were thrown away
        self.shown = 0.0  # seconds on the monotonic clock: when the words beside the bar were last updated

    def answered(self, dialogue: writing.Dialogue) -> None:
        self.questions += 1
        self._show()
        self.bar.update(len(dialogue.answer))

    def thrown(self, why: str) -> None:
        self.reasons[why] += 1
        self._show()

    def _show(self) -> None:
        """Update the words beside the bar, at most once per second: questions are thrown away by the thousand."""
        due = time.monotonic() - self.shown >= 1
        if self.bar is not None and due:
            self.shown = time.monotonic()
            self.bar.set_postfix_str(self.in_words())

    def in_words(self) -> str:
        """The numbers as a text: "12 questions answered; thrown away: 30 too long, 2 asked before"."""
        answered = f"{self.questions} questions answered"
        if not self.reasons:
            return answered
        reasons = ", ".join(f"{count} {why}" for why, count in self.reasons.most_common())
        return f"{answered}; thrown away: {reasons}"

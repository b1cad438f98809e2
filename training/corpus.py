"""The corpus on disk: shards of dialogues as uint16 tokens, with a manifest; written shard by shard, resumable."""

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
GUIDED = FOLDER / "guided"  # questions with given first words
SHARD = 50_000  # answer tokens in a shard: what a killed run loses at most
WINDOW = 8  # words in a row shared with a held-out prompt throw a question away


def save(path: Path, dialogues: Sequence[writing.Dialogue]) -> None:
    """Write dialogues in one move, as one run of tokens: question, answer, question, answer, …

    tokens: (sum of lengths,) uint16, or uint32 of larger vocabularies; questions, answers: (n,) uint16 lengths;
    greedy: (n,) bool.
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
    """Numbers from 0 as uint16, or as uint32 if one of them does not fit."""
    fits = max(values) < 2**16
    return np.array(values, np.uint16 if fits else np.uint32)


def read(path: Path) -> list[writing.Dialogue]:
    """Dialogues that ``save`` has written."""
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
    """The words of a text in small letters, without what stands between them."""
    return re.findall(r"\w+", text.lower())


def windows(text: str) -> set[tuple[str, ...]]:
    """All runs of WINDOW words of a text; the whole text, if it is shorter."""
    in_order = words(text)
    count = max(1, len(in_order) - WINDOW + 1)
    return {tuple(in_order[i : i + WINDOW]) for i in range(count)}


def held_out() -> set[tuple[str, ...]]:
    """The word windows of every prompt that drafts are measured on: they never enter training."""
    forbidden = set()
    for name in prompts.SETS:
        for text in prompts.load(name)["text"]:
            forbidden |= windows(text)
    return forbidden


def load(*folders: Path, shards: int | None = None, pair: str = models.EMBEDDED) -> list[writing.Dialogue]:
    """The dialogues of corpora (of the first shards of each), in order, a shard of each in turn.

    ValueError if a shard is missing or damaged; pair: the target that its advice is for.
    """
    corpora = [_shards(folder, shards, pair) for folder in folders]
    dialogues = []
    for turn in zip_longest(*corpora, fillvalue=()):  # the next shard of each corpus, as long as it has one
        for shard in turn:
            dialogues += shard
    return dialogues


def _shards(folder: Path, count: int | None, pair: str) -> Iterator[list[writing.Dialogue]]:
    """The dialogues of a corpus's first shards, shard by shard; None: of all."""
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
    """What a corpus's manifest says; ValueError if there is none, or it is damaged. pair: see ``load``."""
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
    """Let the target write dialogues until the corpus holds so many answer tokens; returns the manifest.

    openings: first words of questions, see ``writing.dialogues``.

    Each shard and then the manifest is written in one move; a killed run goes on from the last whole shard with a
    new stream of the same seed. Questions already asked, or that share WINDOW words in a row with a held-out
    prompt, are thrown away. Each shard keeps its own settings in the manifest, so that later shards may have others.
    Raises ValueError if the folder's corpus was written by another model, or with another seed or other openings.
    """
    manifest = _begun(pair, folder, seed, openings)
    progress = _Progress()
    wanted = _wanted(pair, folder if manifest["shards"] else None, progress.thrown)
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
        whole = _answer_tokens(read_manifest(folder)) if (folder / "manifest.json").exists() else 0
        return f"{whole:,} of {target_answer_tokens:,} answer tokens written in {folder}"

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
    """The number behind the last shard that lies in the folder, whether or not the manifest knows it; else 0."""
    numbers = [int(path.stem.removeprefix("shard-")) for path in folder.glob("shard-*.npz")]
    return max(numbers, default=-1) + 1


def _seed_of_run(seed: int, number: int) -> int:
    """The seed of a run that begins with shard ``number``: runs of one corpus draw from different streams."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0])


def _tokenized(pair: models.Pair, openings: Sequence[str], settings: writing.Settings) -> list[tuple[int, ...]]:
    """The openings' token ids, without those that leave no room in the longest question."""
    tokenized = [tuple(pair.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in openings]
    return [opening for opening in tokenized if len(opening) < settings.longest_question]


def _answer_tokens(manifest: dict) -> int:
    """How many answer tokens a corpus holds."""
    return sum(entry["answer_tokens"] for entry in manifest["shards"])


def _begun(pair: models.Pair, folder: Path, seed: int, openings: Sequence[str]) -> dict:
    """The manifest of a folder's corpus, or a new one; ValueError if it was written on other terms than these."""
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


def _wanted(pair: models.Pair, folder: Path | None, thrown: Callable[[str], None]) -> Callable[[tuple[int, ...]], bool]:
    """Whether a question may be asked: not for the second time, nor if it shares words with a held-out prompt.

    folder: of the questions that were asked before; thrown: told why a question is thrown away.
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
    """Write the next SHARD answer tokens of a stream; what the manifest says of them."""
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
    """A bar of answer tokens that says how many questions were answered and thrown away, and why."""

    def __init__(self):
        self.bar: tqdm | None = None
        self.questions = 0  # answered
        self.reasons = Counter()  # of questions that were thrown away
        self.shown = 0.0  # when the words beside the bar were written last

    def answered(self, dialogue: writing.Dialogue) -> None:
        self.questions += 1
        self._show()
        self.bar.update(len(dialogue.answer))

    def thrown(self, why: str) -> None:
        self.reasons[why] += 1
        self._show()

    def _show(self) -> None:
        """Once in a second at most: questions are thrown away by the thousand, and the bar may stand still then."""
        due = time.monotonic() - self.shown >= 1
        if self.bar is not None and due:
            self.shown = time.monotonic()
            self.bar.set_postfix_str(self.in_words())

    def in_words(self) -> str:
        """In words: "12 questions answered; thrown away: 30 too long, 2 asked before"."""
        answered = f"{self.questions} questions answered"
        if not self.reasons:
            return answered
        reasons = ", ".join(f"{count} {why}" for why, count in self.reasons.most_common())
        return f"{answered}; thrown away: {reasons}"

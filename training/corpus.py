"""The corpus on disk: shards of dialogues as uint16 tokens, with a manifest; written shard by shard, resumable."""

import hashlib
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, islice, zip_longest
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
    parts = {"questions": [len(d.question) for d in dialogues], "answers": [len(d.answer) for d in dialogues]}
    parts = {"tokens": [t for d in dialogues for t in (*d.question, *d.answer)], **parts}
    arrays = {name: np.array(values, np.uint16 if max(values) < 2**16 else np.uint32) for name, values in parts.items()}
    arrays["greedy"] = np.array([d.greedy for d in dialogues], bool)
    files.write(path, partial(np.savez_compressed, **arrays))


def read(path: Path) -> list[writing.Dialogue]:
    """Dialogues that ``save`` has written."""
    with np.load(path) as arrays:
        tokens, *columns = (arrays[name].tolist() for name in ("tokens", "questions", "answers", "greedy"))
    left = iter(tokens)
    parts = ((tuple(islice(left, q)), tuple(islice(left, a)), greedy) for q, a, greedy in zip(*columns, strict=True))
    return [writing.Dialogue(*part) for part in parts]


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def windows(text: str) -> set[tuple[str, ...]]:
    """All runs of WINDOW words of a text; the whole text, if it is shorter."""
    found = words(text)
    return {tuple(found[i : i + WINDOW]) for i in range(max(1, len(found) - WINDOW + 1))}


def held_out() -> set[tuple[str, ...]]:
    """The word windows of every prompt that drafts are measured on: they never enter training."""
    return {window for name in prompts.SETS for text in prompts.load(name)["text"] for window in windows(text)}


def load(*folders: Path, shards: int | None = None, pair: str = models.EMBEDDED) -> list[writing.Dialogue]:
    """The dialogues of corpora (of the first shards of each), in order, a shard of each in turn.

    ValueError if a shard is missing or damaged; pair: the target that its advice is for.
    """
    turns = chain.from_iterable(zip_longest(*(_shards(folder, shards, pair) for folder in folders)))
    return [dialogue for shard in turns if shard for dialogue in shard]


def _shards(folder: Path, count: int | None, pair: str) -> Iterator[list[writing.Dialogue]]:
    for entry in read_manifest(folder, pair)["shards"][:count]:
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
        more = ["--guided"] if folder.name == GUIDED.name else []
        write_it = hints.command("corpus", *more, pair=pair)
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

    Each shard and then the manifest is written in one move; a killed run goes on from the last whole shard with a
    new stream of the same seed. Questions already asked, or that share WINDOW words in a row with a held-out
    prompt, are thrown away. Each shard keeps its own settings in the manifest, so that later shards may have others.
    Raises ValueError if the folder's corpus was written by another model, or with another seed or other openings.
    openings: first words of questions, see ``writing.dialogues``.
    """
    manifest = _begun(pair, folder, seed, openings)
    progress = _Progress()
    wanted = _wanted(pair, folder if manifest["shards"] else None, progress.thrown)
    number = 1 + max((int(path.stem.removeprefix("shard-")) for path in folder.glob("shard-*.npz")), default=-1)
    begun = [tuple(pair.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in openings]
    begun = [opening for opening in begun if len(opening) < settings.longest_question]
    own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])  # this run's stream
    terms = {"seed": own, "wanted": wanted, "openings": begun, "thrown": progress.thrown}
    stream = writing.dialogues(pair.target, pair.tokenizer, settings, **terms)
    have = _answer_tokens(manifest)

    def kept() -> str:
        whole = _answer_tokens(read_manifest(folder)) if (folder / "manifest.json").exists() else 0
        return f"{whole:,} of {target_answer_tokens:,} answer tokens written in {folder}"

    bar = tqdm(total=target_answer_tokens, initial=have, unit="token", unit_scale=True, disable=files.QUIET)
    with hints.interruptible(kept), bar:
        progress.bar = bar
        while have < target_answer_tokens:
            entry = _write_shard(folder / f"shard-{number:03d}.npz", stream, progress)
            entry |= {"settings": asdict(settings), **provenance.facts(command)}
            manifest["shards"].append(entry)
            number += 1
            files.write(folder / "manifest.json", files.to_json(manifest))
            have += entry["answer_tokens"]
    return manifest


def _answer_tokens(manifest: dict) -> int:
    return sum(entry["answer_tokens"] for entry in manifest["shards"])


def _begun(pair: models.Pair, folder: Path, seed: int, openings: Sequence[str]) -> dict:
    """The manifest of a folder's corpus, or a new one; ValueError if it was written on other terms than these."""
    weights = files.SMOLLM2_GGUF.sha256 if pair.name == models.EMBEDDED else heads.fingerprint(pair.target)
    terms = {"model": {"name": pair.name, "sha256": weights}, "seed": seed}
    if openings:
        terms["openings"] = hashlib.sha256(json.dumps(list(openings)).encode()).hexdigest()[:16]
    manifest = read_manifest(folder) if (folder / "manifest.json").exists() else {**terms, "shards": []}
    for name, value in terms.items():
        if manifest.get(name) != value:
            raise ValueError(f"the corpus in {folder} was written with {name} {manifest.get(name)}, not with {value}")
    return manifest


def _wanted(pair: models.Pair, folder: Path | None, thrown: Callable[[str], None]) -> Callable[[tuple[int, ...]], bool]:
    """Whether a question may be asked: not for the second time, nor if it shares words with a held-out prompt.

    folder: of the questions that were asked before; thrown: told why a question is thrown away.
    """
    before = load(folder) if folder else []
    asked = {tuple(words(pair.decode(dialogue.question))) for dialogue in before}
    forbidden = held_out()

    def wanted(question: tuple[int, ...]) -> bool:
        text = pair.decode(question)
        key = tuple(words(text))
        if key in asked:
            thrown("asked before")
            return False
        if windows(text) & forbidden:
            thrown("like a held-out prompt")
            return False
        asked.add(key)
        return True

    return wanted


def _write_shard(path: Path, stream: Iterator[writing.Dialogue], progress: "_Progress") -> dict:
    """Write the next SHARD answer tokens of a stream; what the manifest says of them."""
    began, dialogues, count = time.monotonic(), [], 0
    while count < SHARD:
        dialogue = next(stream)
        dialogues.append(dialogue)
        count += len(dialogue.answer)
        progress.answered(dialogue)
    save(path, dialogues)
    seconds = round(time.monotonic() - began, 1)
    entry = {"file": path.name, "sha256": files.sha256(path), "dialogues": len(dialogues)}
    return {**entry, "answer_tokens": count, "seconds": seconds}


class _Progress:
    """A bar of answer tokens that says how many questions were answered and thrown away, and why."""

    def __init__(self):
        self.bar, self.questions, self.reasons, self.shown = None, 0, Counter(), 0.0

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
            self.bar.set_postfix_str(self.said())

    def said(self) -> str:
        """In words: "12 questions answered; thrown away: 30 too long, 2 asked before"."""
        away = ", ".join(f"{count} {why}" for why, count in self.reasons.most_common())
        answered = f"{self.questions} questions answered"
        return f"{answered}; thrown away: {away}" if away else answered

"""From names to files: features of the corpus, trained heads with their cards, the report on held-out text.

A head's card is the JSON file beside its weights, which says how it was trained and how good it is.
"""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from specnb import heads, models
from specnb.models import files, provenance
from training import branches, corpus, evaluation, features, hints, loop, recipes, starts, writing
from training.writing import Dialogue

VOCABULARY_SHARDS = 6  # of each corpus, on which the draft vocabulary is counted
HELD_OUT = corpus.FOLDER / "held_out.npz"


def sequences(pair: models.Pair, dialogues: Sequence[Dialogue], *, questions: bool = False) -> list[features.Text]:
    """The (prompt, answer) token ids of dialogues, with the chat template put back around the question.

    questions: whether all that the target wrote counts as answer, its questions included. The answer then begins after
    the template's first tokens. (It also contains the template's tokens between question and answer, and the first
    words of guided questions, which the target did not write.)
    """
    before, after = writing.template(pair.tokenizer)
    texts = []
    for dialogue in dialogues:
        if questions:
            texts.append((list(before), [*dialogue.question, *after, *dialogue.answer]))
        else:
            texts.append(([*before, *dialogue.question, *after], list(dialogue.answer)))
    return texts


def vocabulary(folders: Sequence[Path], size: int, pair: str = models.EMBEDDED) -> Tensor:
    """The draft vocabulary of these corpora: their ``size`` commonest tokens, as ids.

    They are counted on the first shards of each corpus, so that a corpus can grow without changing the vocabulary of
    heads that are trained already. pair: the name of the target whose commands the errors advise.
    """
    dialogues = corpus.load(*folders, shards=VOCABULARY_SHARDS, pair=pair)
    return features.vocabulary(dialogues, size)


def corpus_features(
    pair: models.Pair, dialogues: Sequence[Dialogue], ids: Tensor, layers: Sequence[int], *, questions: bool = False
) -> features.Features:
    """Features of dialogues, from the cache as far as it has them. questions: as in ``sequences``."""
    texts = sequences(pair, dialogues, questions=questions)
    frozen = heads.Frozen.of(pair.target, ids)
    return features.compute(pair, frozen, texts, layers)


def train(
    pair: models.Pair,
    name: str,
    command: str,
    *,
    dialogues: Sequence[Dialogue],
    ids: Tensor,
    out: Path = heads.FOLDER,
    layers: Iterable[int] = (),
) -> None:
    """Train one head by its name in ``recipes``; its weights, card and learning curve are written to OUT/NAME.*.

    command: the command line that the card records.
    dialogues: the complete corpus, of which the recipe takes the first part.
    ids: the tokens that the head can draft, see ``vocabulary``.
    layers: more states of the target to compute, for heads that are trained later.

    A killed run resumes from its checkpoint in the cache. A head whose card says that it was trained on the same terms
    before is left alone. A recipe with a parent begins with that head's weights: those in OUT, or else the committed
    ones (ValueError if there are neither). Other recipes begin as ``starts`` says.
    """
    began = time.monotonic()
    recipe = recipes.named(name)
    schedule = recipe.schedule
    spec = recipe.spec(pair.target)
    dialogues = recipe.text(dialogues)
    head = None
    parent_hash = None
    if recipe.parent is not None:
        folder = _parents_folder(recipe.parent, out)
        head = _parent(recipe.parent, folder, pair, out)
        parent_hash = files.sha256(folder / f"{recipe.parent}.safetensors")[:16]
    terms = _terms(pair, name, recipe, dialogues, ids, parent_hash)
    card = out / f"{name}.json"
    if card.exists() and _facts(card).get("terms") == terms:
        print(f"{name} is trained already on these terms: {card}")
        return

    read = recipe.layers(pair.target)
    data = corpus_features(pair, dialogues, ids, sorted({*read, *layers}), questions=True)
    data = _with_states(data, read)
    torch.manual_seed(schedule.seed)
    frozen = heads.Frozen.of(pair.target, ids)
    has_no_parent = head is None
    if has_no_parent:
        head = heads.MODULES[recipe.kind](spec)
    head = head.to(pair.target.device, torch.float32).train()
    if has_no_parent:
        starts.begin(head, pair.target, frozen, data)
    data = _with_states(data, spec.layers)
    if recipe.roots:
        all_dialogues = range(len(data))
        trees = branches.compute(pair.target, frozen, data, all_dialogues, k=recipe.trees, m=recipe.roots)
        data = replace(data, trees=trees)
    checkpoint = _checkpoint(name, terms, pair.target.dtype)
    head, curve = loop.train(head, frozen, data, recipe.loss, schedule, checkpoint)

    facts = {
        "head": name,
        "target": terms["target"],
        "target_name": pair.name,
        "parameters": sum(p.numel() for p in head.parameters()),
        "vocabulary": len(ids),
        "data": {
            "dialogues": len(dialogues),
            "answer_tokens": sum(len(d.answer) for d in dialogues),
            "question_tokens": sum(len(d.question) for d in dialogues),
            "with_roots": 0 if data.trees is None else len(data.trees.dialogues),
        },
        "steps": curve[-1]["step"],
        "best": min(curve, key=lambda row: row["validation_loss"]),
        "seconds_of_last_run": round(time.monotonic() - began),
        "terms": terms,
        **provenance.facts(command),
    }
    curve_table = pd.DataFrame(curve).to_csv(index=False, float_format="%.5g")
    files.write(out / f"{name}.csv", curve_table)
    heads.save(
        head, spec, ids, facts, out / name
    )  # writes the card last: where there is a card, all files are complete
    checkpoint.unlink()


def _terms(
    pair: models.Pair,
    name: str,
    recipe: recipes.Recipe,
    dialogues: Sequence[Dialogue],
    ids: Tensor,
    parent_hash: str | None,
) -> dict:
    """All that a trained head depends on. If anything in it changes, training is another run.

    The result has passed through JSON, so that it equals the terms that are read from a card (tuples become lists).
    """
    text = np.concatenate([[*d.question, *d.answer] for d in dialogues]).astype(np.int32)
    text_hash = hashlib.sha256(text.tobytes()).hexdigest()
    ids_hash = hashlib.sha256(ids.numpy().tobytes()).hexdigest()
    terms = {
        "head": name,
        "recipe": recipe.terms(),
        "schedule": asdict(recipe.schedule),
        "target": heads.fingerprint(pair.target),
        "text": text_hash[:16],
        "ids": ids_hash[:16],
        "parent": parent_hash,
    }
    return json.loads(json.dumps(terms))


def _checkpoint(name: str, terms: dict, dtype: torch.dtype) -> Path:
    """The path of a run's checkpoint in the cache: another file for other terms, or another dtype of the target."""
    run = json.dumps([terms, str(dtype)])
    digest = hashlib.sha256(run.encode()).hexdigest()
    return files.cache_dir() / "training" / f"{name}-{digest[:8]}.pt"


def _with_states(data: features.Features, layers: Iterable[int]) -> features.Features:
    """The features with only these layers' states."""
    return replace(data, hidden={layer: data.hidden[layer] for layer in layers})


def _facts(card: Path) -> dict:
    """The content of a card."""
    return json.loads(card.read_text(encoding="utf-8"))


def _parents_folder(name: str, out: Path) -> Path:
    """The folder of the head to start from: that of the run if it has the head, else that of the committed heads."""
    if (out / f"{name}.json").exists():
        return out
    return heads.FOLDER


def _parent(name: str, folder: Path, pair: models.Pair, out: Path) -> nn.Module:
    """The trained head to start from, with any vocabulary. ValueError if it is missing.

    The error names the command that trains it into the folder of the run, ``out``.
    """
    try:
        head, _, _ = heads.load(folder / name, pair.target)
        return head
    except ValueError as error:
        make_it = _train_into(out, name, pair.name)
        raise ValueError(f"train {name} first, the head to start from: {make_it} ({error})") from error


def _train_into(folder: Path, name: str, pair: str) -> str:
    """The command that trains a head into a folder, in backquotes."""
    words = [name]
    if folder != heads.FOLDER:
        words += ["--out", folder]
    return hints.command("train", *words, pair=pair)


def write_held_out(pair: models.Pair, command: str, file: Path = HELD_OUT, only: Sequence[str] = ()) -> None:
    """Write the target's greedy answers to the held-out prompts beside the corpus. Resumes a killed run.

    command: the command line that the card records.
    only: the prompts to answer, see ``evaluation.among``; empty: all.
    """
    began = time.monotonic()
    table = evaluation.held_out_prompts()
    if only:
        table = evaluation.among(table, only)
    unfinished = file.with_suffix(".begun.jsonl")
    dialogues = _answers(pair, list(table["text"]), unfinished)
    corpus.save(file, dialogues)
    facts = {
        "sha256": files.sha256(file),
        "prompts": len(table),
        "answer_tokens": sum(len(d.answer) for d in dialogues),
    }
    if only:
        facts["ids"] = list(table["id"])
    facts["seconds_of_last_run"] = round(time.monotonic() - began)
    facts["model"] = heads.fingerprint(pair.target)
    facts |= provenance.facts(command)
    files.write(file.with_suffix(".json"), files.to_json(facts))
    unfinished.unlink()


def _answers(pair: models.Pair, texts: Sequence[str], unfinished: Path) -> list[Dialogue]:
    """The target's answers to texts. Each is appended to the file ``unfinished``, from which a killed run resumes.

    The file's first line says which model answers which texts. If that differs, the run begins anew.
    """
    asked = json.dumps([*texts, evaluation.NEW_TOKENS])
    terms = {
        "model": heads.fingerprint(pair.target),
        "dtype": str(pair.target.dtype),
        "texts": hashlib.sha256(asked.encode()).hexdigest(),
    }
    dialogues = _read_unfinished(unfinished, terms)
    lines = [terms, *map(asdict, dialogues)]
    files.write(unfinished, "".join(json.dumps(line) + "\n" for line in lines))
    with (
        hints.interruptible(lambda: f"{len(dialogues)} of {len(texts)} answers kept in {unfinished}"),
        open(unfinished, "a", encoding="utf-8") as file,
    ):
        for dialogue in evaluation.answer_greedily(pair, texts, done=len(dialogues)):
            file.write(json.dumps(asdict(dialogue)) + "\n")
            file.flush()
            dialogues.append(dialogue)
    return dialogues


def _read_unfinished(unfinished: Path, terms: dict[str, str]) -> list[Dialogue]:
    """The answers that a killed run on the same terms has written. A line cut off by the kill is left out."""
    if not unfinished.exists():
        return []
    *lines, _ = unfinished.read_text(encoding="utf-8").split("\n")  # _: empty, or a line that was cut off
    if not lines or json.loads(lines[0]) != terms:
        return []
    dialogues = []
    for line in lines[1:]:
        parts = json.loads(line)
        dialogues.append(Dialogue(tuple(parts["question"]), tuple(parts["answer"]), parts["greedy"]))
    return dialogues


def held_out(file: Path = HELD_OUT, pair: str = models.EMBEDDED) -> list[Dialogue]:
    """The held-out text; ValueError if it is missing or damaged. pair: the target whose commands the error advises."""
    complete = file.exists() and files.sha256(file) == _facts(file.with_suffix(".json"))["sha256"]
    if not complete:
        raise ValueError(f"{file} is missing or damaged: run {hints.command('held-out', pair=pair)}")
    return corpus.read(file)


def answered(file: Path = HELD_OUT) -> pd.DataFrame:
    """The prompts of a held-out text, one row per dialogue, with the columns of ``evaluation.held_out_prompts``."""
    table = evaluation.held_out_prompts()
    card = file.with_suffix(".json")
    facts = _facts(card) if card.exists() else {}
    if "ids" not in facts:  # it has the answers to all prompts
        return table
    return table[table["id"].isin(facts["ids"])].reset_index(drop=True)


class Measured(NamedTuple):
    """A trained head and the features of the text that it is measured on."""

    path: Path  # of the head's files, without suffix
    head: nn.Module
    spec: heads.Spec  # what the head is made of
    frozen: heads.Frozen  # what it borrows from the target
    features: features.Features


def _load_heads(pair: models.Pair, folder: Path, text: Path) -> Iterator[Measured]:
    """A folder's heads, each with the features of the held-out text. ValueError if the folder has no heads."""
    paths = [path.with_suffix("") for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        make_one = _train_into(folder, "NAME", pair.name)
        raise ValueError(f"{folder} holds no trained heads: run {make_one} first")
    heads_in_folder = [heads.load(path, pair.target) for path in paths]
    dialogues = held_out(text, pair.name)
    layers = set()  # states that any of the heads reads, so that the target runs once for all of them
    for _, spec, _ in heads_in_folder:
        layers.update(spec.layers)
    for path, (head, spec, frozen) in zip(paths, heads_in_folder, strict=True):
        data = corpus_features(pair, dialogues, frozen.ids.cpu(), sorted(layers))
        yield Measured(path, head, spec, frozen, data)


def report(pair: models.Pair, command: str, *, folder: Path, out: Path, text: Path = HELD_OUT) -> None:
    """Measure the heads of a folder on the held-out text. Writes three tables to the folder OUT, and into each card.

    heads_held_out    agreement and τ by head and prompt set, see ``evaluation.summed``
    heads_by_prompt   the counts that these are computed from, prompt by prompt, with the columns of ``_rank_sums``
    heads_by_rank     SALF & TALF's figure 2b, for EAGLE-type heads: accuracy and calibration errors by rank

    There are three calibration errors. ece is the usual one, of the largest probability. ece_calibrated is the value
    that it stays below, 95 times in 100, for a draft whose confidences are true. ece_paper is the paper's: of the
    probability of the target's token. A card also gets the temperature that calibrates the head on the prompts of the
    set "tuning".

    Tables are written after each head, and keep their rows of heads in other folders. A head is not measured again if
    the tables have it with the same weights and the same held-out text.
    """
    prompts = answered(text)
    tuning = prompts.index[prompts["set"] == evaluation.TUNING]
    known, tables, about = _reported(out, text)
    for path, head, spec, frozen, data in _load_heads(pair, folder, text):
        weights_hash = files.sha256(path.with_suffix(".safetensors"))
        card = Path(f"{path}.json")
        if known.get(path.name) == weights_hash and "held_out" in _facts(card):
            continue
        counts = evaluation.counts(path.name, head, spec, frozen, data, prompts)
        summed = evaluation.summed(counts)
        print(summed.round(3).to_string(index=False), flush=True)
        over_all_sets = summed.set_index("set").loc["all"]
        figures = over_all_sets.filter(regex="tau|depth").to_dict()
        figures["temperature"] = evaluation.temperature(head, spec, frozen, data, tuning)
        figures = {name: float(f"{value:.5g}") for name, value in figures.items()}
        ranks = pd.DataFrame()
        if spec.kind == "eagle":
            reported = prompts.index.difference(tuning)
            by_rank = evaluation.by_rank(head, spec, frozen, pair.target, data, reported)
            counts = counts.join(_rank_sums(by_rank))
            ranks = _rank_figures(path.name, by_rank)

        known[path.name] = weights_hash
        tables["by_prompt"] = _with_head(tables["by_prompt"], path.name, counts)
        tables["by_rank"] = _with_head(tables["by_rank"], path.name, ranks)
        files.write(card, files.to_json({**_facts(card), "held_out": figures}))
        written = {
            "held_out": evaluation.summed(tables["by_prompt"]),
            "by_rank": tables["by_rank"],
            "by_prompt": tables["by_prompt"],  # last: its card lists the heads that need not be measured again
        }
        for name, table in written.items():
            provenance.write_table(out / f"heads_{name}", table, command, head_sha256=known, **about)


def _rank_sums(by_rank: pd.DataFrame) -> pd.DataFrame:
    """Sums of the table of ``evaluation.by_rank`` over the roots of each dialogue, one row per dialogue.

    rank1 … rank5    hits at each rank
    sure1 … sure5    confidences at each rank
    roots            number of roots
    """
    grouped = by_rank.groupby(["dialogue", "rank"])
    sums = grouped[["hit", "confidence"]].sum().unstack()
    prefix = {"hit": "rank", "confidence": "sure"}
    sums.columns = [f"{prefix[column]}{rank}" for column, rank in sums.columns]
    sums["roots"] = by_rank.groupby("dialogue").size() / evaluation.RANKS
    return sums


def _rank_figures(name: str, by_rank: pd.DataFrame) -> pd.DataFrame:
    """A head's accuracy and calibration errors, one row per rank, from the table of ``evaluation.by_rank``."""
    rows = []
    for rank, group in by_rank.groupby("rank"):
        hit = group["hit"].to_numpy(float)
        confidence = group["confidence"].to_numpy(float)
        p_target = group["p_target"].to_numpy(float)
        rows.append(
            {
                "head": name,
                "rank": rank,
                "accuracy": hit.mean(),
                "ece": heads.ece(confidence, hit),
                "ece_paper": heads.ece(p_target, hit),
                "ece_calibrated": heads.calibrated_ece(confidence),
                "roots": len(group),
            }
        )
    return pd.DataFrame(rows)


def _with_head(table: pd.DataFrame, name: str, rows: pd.DataFrame) -> pd.DataFrame:
    """A table of several heads in which these rows, which may be none, replace those of the head of this name."""
    others = table[table["head"] != name]
    filled = [part for part in (others, rows) if len(part)]  # pandas warns when it joins empty tables
    return pd.concat(filled or [others], ignore_index=True)


def _reported(out: Path, text: Path) -> tuple[dict[str, str], dict[str, pd.DataFrame], dict[str, str]]:
    """What was reported into a folder before: hashes of the heads' weights, tables, and facts for the tables' cards.

    The facts are the hash of the held-out text. If it was another text then, hashes and tables are empty.
    """
    known = {}
    tables = {"by_prompt": pd.DataFrame({"head": []}), "by_rank": pd.DataFrame({"head": []})}
    about = {"held_out_sha256": files.sha256(text)} if text.exists() else {}
    card = out / "heads_by_prompt.json"
    facts = _facts(card) if card.exists() else {}
    if facts:
        text_hash = about.get("held_out_sha256")
        measured_on = facts.get("held_out_sha256", text_hash)  # older tables do not name their text: taken to be this
        if measured_on == text_hash:
            known = facts["head_sha256"]
            tables = {name: pd.read_csv(out / f"heads_{name}.csv") for name in tables}
    return known, tables, about

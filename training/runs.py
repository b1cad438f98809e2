"""From names to files: features of the corpus, trained heads with their cards, the report on held-out text."""

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

VOCABULARY_SHARDS = 6
HELD_OUT = corpus.FOLDER / "held_out.npz"


def sequences(pair: models.Pair, dialogues: Sequence[Dialogue], *, questions: bool = False) -> list[features.Text]:
    """(prompt, answer) token ids of dialogues, the chat template put back around the question.

    questions: what follows the template's opening counts as answer, for the target has written that too (all but the
    template between question and answer, and the first words of guided questions).
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
    """The draft vocabulary: counted on the first shards of each corpus, so that they can grow under trained heads.

    pair: the target that advice in errors is for.
    """
    dialogues = corpus.load(*folders, shards=VOCABULARY_SHARDS, pair=pair)
    return features.vocabulary(dialogues, size)


def corpus_features(
    pair: models.Pair, dialogues: Sequence[Dialogue], ids: Tensor, layers: Sequence[int], *, questions: bool = False
) -> features.Features:
    """Features of dialogues, from the cache if they are there; questions: see ``sequences``."""
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
    """Train one head by its name in ``recipes`` and write weights, card and learning curve to OUT/NAME.*.

    dialogues: all there are, of which the recipe takes the first; ids: the tokens it can draft, see ``vocabulary``.
    layers: other states to compute on the way, for heads to come.

    Resumes a killed run from its checkpoint in the cache; leaves a head alone whose card says that it was trained on
    the same terms before. A recipe with a parent starts from that head's weights in OUT, or the committed ones if OUT
    has none (ValueError if neither has); others from the target's own layers.
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
    begins_anew = head is None
    if begins_anew:
        head = heads.MODULES[recipe.kind](spec)
    head = head.to(pair.target.device, torch.float32).train()
    if begins_anew:
        starts.begin(head, pair.target, frozen, data)
    data = _with_states(data, spec.layers)
    if recipe.roots:
        every = range(len(data))
        trees = branches.compute(pair.target, frozen, data, every, k=recipe.trees, m=recipe.roots)
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
    heads.save(head, spec, ids, facts, out / name)  # the card comes last: it says that all is there
    checkpoint.unlink()


def _terms(
    pair: models.Pair,
    name: str,
    recipe: recipes.Recipe,
    dialogues: Sequence[Dialogue],
    ids: Tensor,
    parent_hash: str | None,
) -> dict:
    """All that a trained head depends on, as JSON holds it (tuples are lists); a change is another run."""
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
    """Where a run's checkpoint lies in the cache: another file for other terms, or another dtype of the target."""
    run = json.dumps([terms, str(dtype)])
    digest = hashlib.sha256(run.encode()).hexdigest()
    return files.cache_dir() / "training" / f"{name}-{digest[:8]}.pt"


def _with_states(data: features.Features, layers: Iterable[int]) -> features.Features:
    """The features with the states of these layers alone."""
    return replace(data, hidden={layer: data.hidden[layer] for layer in layers})


def _facts(card: Path) -> dict:
    return json.loads(card.read_text(encoding="utf-8"))


def _parents_folder(name: str, out: Path) -> Path:
    """Where the head to start from lies: in the folder of the run, or else among the committed heads."""
    if (out / f"{name}.json").exists():
        return out
    return heads.FOLDER


def _parent(name: str, folder: Path, pair: models.Pair, out: Path) -> nn.Module:
    """The trained head to start from, whatever its vocabulary; ValueError if it is missing.

    The error names the command that trains it into the folder of the run, ``out``.
    """
    try:
        head, _, _ = heads.load(folder / name, pair.target)
        return head
    except ValueError as error:
        make_it = _train_into(out, name, pair.name)
        raise ValueError(f"train {name} first, the head to start from: {make_it} ({error})") from error


def _train_into(folder: Path, name: str, pair: str) -> str:
    """The command that trains a head into a folder."""
    words = [name]
    if folder != heads.FOLDER:
        words += ["--out", folder]
    return hints.command("train", *words, pair=pair)


def write_held_out(pair: models.Pair, command: str, file: Path = HELD_OUT, only: Sequence[str] = ()) -> None:
    """The target's greedy answers to every held-out prompt, next to the corpus. Resumes a killed run.

    only: some of the prompts, see ``evaluation.among``.
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
    """The answers to texts; each is kept in the file as it is written, from which a killed run goes on.

    Its first line says which model answers which texts: what was begun on other terms is begun anew.
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
    """The whole answers of a killed run on the same terms, without a torn last line."""
    if not unfinished.exists():
        return []
    *lines, _ = unfinished.read_text(encoding="utf-8").split("\n")  # behind the last newline: nothing, or a torn line
    if not lines or json.loads(lines[0]) != terms:
        return []
    dialogues = []
    for line in lines[1:]:
        parts = json.loads(line)
        dialogues.append(Dialogue(tuple(parts["question"]), tuple(parts["answer"]), parts["greedy"]))
    return dialogues


def held_out(file: Path = HELD_OUT, pair: str = models.EMBEDDED) -> list[Dialogue]:
    """The held-out text; ValueError if it is missing or damaged. pair: the target that its advice is for."""
    whole = file.exists() and files.sha256(file) == _facts(file.with_suffix(".json"))["sha256"]
    if not whole:
        raise ValueError(f"{file} is missing or damaged: run {hints.command('held-out', pair=pair)}")
    return corpus.read(file)


def answered(file: Path = HELD_OUT) -> pd.DataFrame:
    """The prompts that a held-out text answers, one row a dialogue, see ``evaluation.held_out_prompts``."""
    table = evaluation.held_out_prompts()
    card = file.with_suffix(".json")
    facts = _facts(card) if card.exists() else {}
    if "ids" not in facts:  # all of them
        return table
    return table[table["id"].isin(facts["ids"])].reset_index(drop=True)


class Measured(NamedTuple):
    """A trained head beside the features of the text that it is measured on. path: its file's, without suffix."""

    path: Path
    head: nn.Module
    spec: heads.Spec
    frozen: heads.Frozen
    features: features.Features


def _loaded(pair: models.Pair, folder: Path, text: Path) -> Iterator[Measured]:
    """A folder's heads, each with the features of the held-out text."""
    paths = [path.with_suffix("") for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        make_one = _train_into(folder, "NAME", pair.name)
        raise ValueError(f"{folder} holds no trained heads: run {make_one} first")
    loaded = [heads.load(path, pair.target) for path in paths]
    dialogues = held_out(text, pair.name)
    layers = set()  # of all heads, so that one pass of the target does for them
    for _, spec, _ in loaded:
        layers.update(spec.layers)
    for path, (head, spec, frozen) in zip(paths, loaded, strict=True):
        data = corpus_features(pair, dialogues, frozen.ids.cpu(), sorted(layers))
        yield Measured(path, head, spec, frozen, data)


def report(pair: models.Pair, command: str, *, folder: Path, out: Path, text: Path = HELD_OUT) -> None:
    """Measure every head of a folder on the held-out text; three tables go to the folder OUT, figures to each card.

    heads_held_out has agreement and τ, see ``evaluation.summed``. heads_by_prompt has the counts behind them, prompt
    by prompt, with the columns of ``_rank_sums``. heads_by_rank is SALF & TALF's figure 2b, for EAGLE-type heads. Its
    ece is the standard one, of the largest probability; ece_calibrated is what that stays below, 95 times in 100, for
    a draft whose confidences are true; ece_paper is the paper's, of the probability of the target's token. A card's
    temperature is what calibrates the head on "tuning" prompts.

    Tables are written after each head. What they hold of heads in other folders stays. A head whose weights they know
    is not measured again, unless the held-out text is another one now.
    """
    prompts = answered(text)
    tuning = prompts.index[prompts["set"] == evaluation.TUNING]
    known, tables, about = _reported(out, text)
    for path, head, spec, frozen, data in _loaded(pair, folder, text):
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
            "by_prompt": tables["by_prompt"],  # the last, for it says what is known: a killed run measures again
        }
        for name, table in written.items():
            provenance.write_table(out / f"heads_{name}", table, command, head_sha256=known, **about)


def _rank_sums(by_rank: pd.DataFrame) -> pd.DataFrame:
    """One row a dialogue of ``evaluation.by_rank``'s table: rank1 …, sure1 … and roots.

    Over the roots of the dialogue, rankN sums the hits at rank N and sureN the confidences.
    """
    grouped = by_rank.groupby(["dialogue", "rank"])
    sums = grouped[["hit", "confidence"]].sum().unstack()
    prefix = {"hit": "rank", "confidence": "sure"}
    sums.columns = [f"{prefix[what]}{rank}" for what, rank in sums.columns]
    sums["roots"] = by_rank.groupby("dialogue").size() / evaluation.RANKS
    return sums


def _rank_figures(name: str, by_rank: pd.DataFrame) -> pd.DataFrame:
    """A head's accuracy and calibration errors, one row for each rank of ``evaluation.by_rank``'s table."""
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
    """A table of several heads with these rows, if there are any, in place of those it had of the head."""
    others = table[table["head"] != name]
    filled = [part for part in (others, rows) if len(part)]
    return pd.concat(filled or [others], ignore_index=True)


def _reported(out: Path, text: Path) -> tuple[dict[str, str], dict[str, pd.DataFrame], dict[str, str]]:
    """What a folder's tables know: hashes of heads, the tables, and the hash of the text they are measured on.

    What was measured on another text does not count.
    """
    known = {}
    tables = {"by_prompt": pd.DataFrame({"head": []}), "by_rank": pd.DataFrame({"head": []})}
    about = {"held_out_sha256": files.sha256(text)} if text.exists() else {}
    card = out / "heads_by_prompt.json"
    facts = _facts(card) if card.exists() else {}
    if facts:
        text_hash = about.get("held_out_sha256")
        measured_on = facts.get("held_out_sha256", text_hash)  # tables that do not name their text count
        if measured_on == text_hash:
            known = facts["head_sha256"]
            tables = {name: pd.read_csv(out / f"heads_{name}.csv") for name in tables}
    return known, tables, about

"""From names to files: features of the corpus, trained heads with their cards, the report on held-out text."""

import hashlib
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

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
    before, after = map(list, writing.template(pair.tokenizer))
    if questions:
        return [(before, [*d.question, *after, *d.answer]) for d in dialogues]
    return [([*before, *d.question, *after], list(d.answer)) for d in dialogues]


def vocabulary(folders: Sequence[Path], size: int, pair: str = models.EMBEDDED) -> Tensor:
    """The draft vocabulary: counted on the first shards of each corpus, so that they can grow under trained heads.

    pair: the target that advice in errors is for.
    """
    return features.vocabulary(corpus.load(*folders, shards=VOCABULARY_SHARDS, pair=pair), size)


def corpus_features(
    pair: models.Pair, dialogues: Sequence[Dialogue], ids: Tensor, layers: Sequence[int], *, questions: bool = False
) -> features.Features:
    """Features of dialogues, from the cache if they are there; questions: see ``sequences``."""
    texts = sequences(pair, dialogues, questions=questions)
    return features.compute(pair, heads.Frozen.of(pair.target, ids), texts, layers)


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
    recipe, began = recipes.named(name), time.monotonic()
    schedule, spec, dialogues = recipe.schedule, recipe.spec(pair.target), recipe.text(dialogues)
    origin = out if (out / f"{recipe.parent}.json").exists() else heads.FOLDER
    head = _parent(recipe.parent, origin, pair, out) if recipe.parent else None
    text = hashlib.sha256(np.concatenate([[*d.question, *d.answer] for d in dialogues]).astype(np.int32).tobytes())
    terms = {
        "head": name,
        "recipe": recipe.terms(),
        "schedule": asdict(schedule),
        "target": heads.fingerprint(pair.target),
        "text": text.hexdigest()[:16],
        "ids": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:16],
        "parent": recipe.parent and files.sha256(origin / f"{recipe.parent}.safetensors")[:16],
    }
    card, terms = out / f"{name}.json", json.loads(json.dumps(terms))
    if card.exists() and _facts(card).get("terms") == terms:
        print(f"{name} is trained already on these terms: {card}")
        return
    run = hashlib.sha256(json.dumps([terms, str(pair.target.dtype)]).encode()).hexdigest()[:8]
    checkpoint = files.cache_dir() / "training" / f"{name}-{run}.pt"
    read = recipe.layers(pair.target)
    data = corpus_features(pair, dialogues, ids, sorted({*read, *layers}), questions=True)
    data = replace(data, hidden={layer: data.hidden[layer] for layer in read})
    torch.manual_seed(schedule.seed)
    frozen, new = heads.Frozen.of(pair.target, ids), head is None
    head = (heads.MODULES[recipe.kind](spec) if new else head).to(pair.target.device, torch.float32).train()
    if new:
        starts.begin(head, pair.target, frozen, data)
    data = replace(data, hidden={layer: data.hidden[layer] for layer in spec.layers})
    if recipe.roots:
        trees = branches.compute(pair.target, frozen, data, range(len(data)), k=recipe.trees, m=recipe.roots)
        data = replace(data, trees=trees)
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
            "with_roots": len(data.trees.dialogues) if data.trees else 0,
        },
        "steps": curve[-1]["step"],
        "best": min(curve, key=lambda row: row["validation_loss"]),
        "seconds_of_last_run": round(time.monotonic() - began),
        "terms": terms,
        **provenance.facts(command),
    }
    files.write(out / f"{name}.csv", pd.DataFrame(curve).to_csv(index=False, float_format="%.5g"))
    heads.save(head, spec, ids, facts, out / name)  # the card comes last: it says that all is there
    checkpoint.unlink()


def _facts(card: Path) -> dict:
    return json.loads(card.read_text(encoding="utf-8"))


def _parent(name: str, folder: Path, pair: models.Pair, out: Path) -> torch.nn.Module:
    """The trained head to start from, whatever its vocabulary; ValueError if it is missing."""
    try:
        return heads.load(folder / name, pair.target)[0]
    except ValueError as error:
        make_it = _train_into(out, name, pair.name)
        raise ValueError(f"train {name} first, the head to start from: {make_it} ({error})") from error


def _train_into(folder: Path, name: str, pair: str) -> str:
    """The command that trains a head into a folder."""
    where = [] if folder == heads.FOLDER else ["--out", folder]
    return hints.command("train", name, *where, pair=pair)


def write_held_out(pair: models.Pair, command: str, file: Path = HELD_OUT, only: Sequence[str] = ()) -> None:
    """The target's greedy answers to every held-out prompt, next to the corpus. Resumes a killed run.

    only: some of the prompts, see ``evaluation.among``.
    """
    table, began = evaluation.held_out_prompts(), time.monotonic()
    if only:
        table = evaluation.among(table, only)
    begun = file.with_suffix(".begun.jsonl")
    dialogues = _answers(pair, list(table["text"]), begun)
    corpus.save(file, dialogues)
    answers = sum(len(d.answer) for d in dialogues)
    facts = {"sha256": files.sha256(file), "prompts": len(table), "answer_tokens": answers}
    if only:
        facts["ids"] = list(table["id"])
    facts |= {"seconds_of_last_run": round(time.monotonic() - began), "model": heads.fingerprint(pair.target)}
    files.write(file.with_suffix(".json"), files.to_json({**facts, **provenance.facts(command)}))
    begun.unlink()


def _answers(pair: models.Pair, texts: Sequence[str], begun: Path) -> list[Dialogue]:
    """The answers to texts; each is kept in the file as it is written, from which a killed run goes on.

    Its first line says which model answers which texts: what was begun on other terms is begun anew.
    """
    asked = hashlib.sha256(json.dumps([*texts, evaluation.NEW_TOKENS]).encode()).hexdigest()
    terms = {"model": heads.fingerprint(pair.target), "dtype": str(pair.target.dtype), "texts": asked}
    found = _read_begun(begun, terms)
    lines = [terms, *map(asdict, found)]
    files.write(begun, "".join(json.dumps(line) + "\n" for line in lines))
    with (
        hints.interruptible(lambda: f"{len(found)} of {len(texts)} answers kept in {begun}"),
        open(begun, "a", encoding="utf-8") as file,
    ):
        for dialogue in evaluation.answer_greedily(pair, texts, done=len(found)):
            file.write(json.dumps(asdict(dialogue)) + "\n")
            file.flush()
            found.append(dialogue)
    return found


def _read_begun(begun: Path, terms: dict[str, str]) -> list[Dialogue]:
    """The whole answers of a killed run on the same terms, without a torn last line."""
    lines = begun.read_text(encoding="utf-8").split("\n")[:-1] if begun.exists() else []
    if not lines or json.loads(lines[0]) != terms:
        return []
    found = []
    for line in map(json.loads, lines[1:]):
        found.append(Dialogue(tuple(line["question"]), tuple(line["answer"]), line["greedy"]))
    return found


def held_out(file: Path = HELD_OUT, pair: str = models.EMBEDDED) -> list[Dialogue]:
    """The held-out text; ValueError if it is missing or damaged. pair: the target that its advice is for."""
    if not file.exists() or files.sha256(file) != _facts(file.with_suffix(".json"))["sha256"]:
        raise ValueError(f"{file} is missing or damaged: run {hints.command('held-out', pair=pair)}")
    return corpus.read(file)


def answered(file: Path = HELD_OUT) -> pd.DataFrame:
    """The prompts that a held-out text answers, one row a dialogue, see ``evaluation.held_out_prompts``."""
    table, card = evaluation.held_out_prompts(), file.with_suffix(".json")
    ids = _facts(card).get("ids") if card.exists() else None
    return table if ids is None else table[table["id"].isin(ids)].reset_index(drop=True)


def _loaded(pair: models.Pair, folder: Path, text: Path) -> Iterator[tuple]:
    """A folder's heads with the features of the held-out text: (path, head, spec, frozen, features) each."""
    paths = [path.with_suffix("") for path in sorted(folder.glob("*.safetensors"))]
    if not paths:
        make_one = _train_into(folder, "NAME", pair.name)
        raise ValueError(f"{folder} holds no trained heads: run {make_one} first")
    loaded, dialogues = [(path, *heads.load(path, pair.target)) for path in paths], held_out(text, pair.name)
    layers = sorted({layer for _, _, spec, _ in loaded for layer in spec.layers})  # one pass of the target for all
    for path, head, spec, frozen in loaded:
        yield path, head, spec, frozen, corpus_features(pair, dialogues, frozen.ids.cpu(), layers)


def report(pair: models.Pair, command: str, *, folder: Path, out: Path, text: Path = HELD_OUT) -> None:
    """Measure every head of a folder on the held-out text; three tables go to the folder OUT, figures to each card.

    heads_held_out: agreement and τ, see ``evaluation.summed``; heads_by_prompt: the counts behind them, prompt by
    prompt, with hits (rank) and summed confidence (sure) by rank at some roots; heads_by_rank: SALF & TALF's figure 2b
    for EAGLE-type heads.
    ece: standard, of the largest probability; ece_calibrated: what it stays below, 95 times in 100, for a draft whose
    confidences are true; ece_paper: the paper's, of the probability of the target's token.
    temperature, on a card: what calibrates the head on "tuning" prompts.

    Tables are written after each head. What they hold of heads in other folders stays; a head whose weights they know
    is not measured again, unless the held-out text is another one now.
    """
    prompts = answered(text)
    tuning = prompts.index[prompts["set"] == evaluation.TUNING]
    known, tables, about = _reported(out, text)
    for path, *head, data in _loaded(pair, folder, text):
        sha, card, ranks = files.sha256(path.with_suffix(".safetensors")), Path(f"{path}.json"), []
        if known.get(path.name) == sha and "held_out" in _facts(card):
            continue
        table = evaluation.counts(path.name, *head, data, prompts)
        found = evaluation.summed(table)
        print(found.round(3).to_string(index=False), flush=True)
        figures = found.set_index("set").loc["all"].filter(regex="tau|depth").to_dict()
        figures["temperature"] = evaluation.temperature(*head, data, tuning)
        figures = {name: float(f"{value:.5g}") for name, value in figures.items()}
        if head[1].kind == "eagle":
            rows = evaluation.by_rank(*head, pair.target, data, prompts.index.difference(tuning))
            sums = rows.groupby(["dialogue", "rank"])[["hit", "confidence"]].sum().unstack()
            sums.columns = [f"{'rank' if what == 'hit' else 'sure'}{rank}" for what, rank in sums.columns]
            table = table.join(sums.assign(roots=rows.groupby("dialogue").size() / evaluation.RANKS))
            for rank, group in rows.groupby("rank"):
                hit, confidence, p_target = (group[x].to_numpy(float) for x in ("hit", "confidence", "p_target"))
                ece = {"ece": heads.ece(confidence, hit), "ece_paper": heads.ece(p_target, hit)}
                ece["ece_calibrated"] = heads.calibrated_ece(confidence)
                ranks.append({"head": path.name, "rank": rank, "accuracy": hit.mean(), **ece, "roots": len(group)})
        known[path.name] = sha
        for name, new in (("by_prompt", table), ("by_rank", pd.DataFrame(ranks))):
            others = tables[name][tables[name]["head"] != path.name]
            tables[name] = pd.concat([part for part in (others, new) if len(part)] or [others], ignore_index=True)
        files.write(card, files.to_json({**_facts(card), "held_out": figures}))
        for name in ("held_out", "by_rank", "by_prompt"):  # the last says what is known: a killed run measures again
            table = evaluation.summed(tables["by_prompt"]) if name == "held_out" else tables[name]
            provenance.write_table(out / f"heads_{name}", table, command, head_sha256=known, **about)


def _reported(out: Path, text: Path) -> tuple[dict[str, str], dict[str, pd.DataFrame], dict[str, str]]:
    """What a folder's tables know: hashes of heads, the tables, and the hash of the text they are measured on.

    What was measured on another text does not count.
    """
    known, record = {}, out / "heads_by_prompt.json"
    tables = {"by_prompt": pd.DataFrame({"head": []}), "by_rank": pd.DataFrame({"head": []})}
    about = {"held_out_sha256": files.sha256(text)} if text.exists() else {}
    facts = _facts(record) if record.exists() else {}
    if facts and facts.get("held_out_sha256", about.get("held_out_sha256")) == about.get("held_out_sha256"):
        known = facts["head_sha256"]
        tables = {name: pd.read_csv(out / f"heads_{name}.csv") for name in tables}
    return known, tables, about

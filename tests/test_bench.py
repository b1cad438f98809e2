"""Methods by name, and the bench command: every cell recorded, failures too, wrong names refused before any work."""

import json
import sys
from functools import wraps

import pandas as pd
import pytest

from specnb import bench, costs, measures, methods, models, side_by_side, sweep, traversal, verifiers
from specnb.adaptive import AdaptiveDrafter
from specnb.drafters import MergedDrafter, NgramDrafter, ProgressiveDrafter, TreeDrafter
from specnb.streaming import Window
from specnb.tree import Drawn


def test_a_method_is_what_its_name_says():
    assert methods.method("prompt lookup").options == {"prompt_lookup_num_tokens": 10}
    assert methods.method("ptd children=2").alone == "ptd children=2"
    drawn = methods.method("vdm:kary 2,3 swor traversal")
    assert (drawn.head, drawn.rule, drawn.drawn, drawn.verifier) == ("vdm", "kary 2,3", Drawn.SWOR, traversal.traversal)
    assert methods.method("edd:pct 0.06").verifier is verifiers.by_draw
    merged = methods.method("talf:salf 6,3,0.8,10 + ngram budget=8")
    assert (merged.head, merged.rule, merged.merged) == ("talf", "salf 6,3,0.8,10", "ngram budget=8")
    assert methods.full("n-gram tree", "edd") == "n-gram tree"
    alone = methods.method(methods.full("dynatree 4,2,0.1,128", "edd@1.3"))
    assert (alone.head, alone.rule) == ("edd@1.3", "dynatree 4,2,0.1,128")
    assert methods.method(methods.full("streaming 256", "vdm")).window == Window(4, 252)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "magic",
            "unknown method 'magic': known are generate, generate as shipped, prompt lookup, assistant, n-gram tree",
        ),
        ("ptd width=3", "'width=3' is no setting of ptd"),
        ("medusae:chain 3", "there is no trained head 'medusae': known are pair, eagle, edd"),
        ("edd:blossom 3", "unknown growth rule 'blossom 3'"),
        ("vdm:pct 3", "'pct 3': pct takes numbers with commas between, in the order of cost, k, dep"),
        ("edd:chain 3 swor nobody", "unknown verifier 'nobody': known are greedy"),
        ("edd:pct 0.06 swor", "Pct drops nodes by their value"),
        ("edd:chain 3 swor + ngram", "must be POINT, got SWOR"),
        ("edd@hot:chain 3", "a head's temperature is a number, got 'hot'"),
        ("edd:ongoing 6,3,0.8", "goes on from text to text, methods begin anew"),
        ("edd:chain 3 + ", "a method has no name"),
        ("edd:chain 3 + ptd", "only ngram and retrieval can be merged"),
        ("edd:adaptive 6,3,0.8 + ngram", "only ngram and retrieval can be merged, into a tree of fixed settings"),
    ],
)
def test_names_without_sense_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        methods.method(name)


def test_a_rule_that_learns_draws_nothing():
    with pytest.raises(ValueError, match=r"'adaptive 6,3,0\.8' stops by the values drawn"):
        methods.method("vdm:adaptive 6,3,0.8 swor")


@pytest.mark.model
def test_built_methods(smollm2):
    kinds = {
        "n-gram tree": NgramDrafter,
        "ptd children=2": ProgressiveDrafter,
        "edd:pct 0.06": TreeDrafter,
        "edd:adaptive 6,3,0.8": AdaptiveDrafter,
        "edd:chain 3 + ngram budget=8": MergedDrafter,
    }
    for name, kind in kinds.items():
        assert type(methods.build(methods.method(name), smollm2)) is kind
    with pytest.raises(ValueError, match="the pair smollm2-135m has no draft model of its own"):
        methods.build(methods.method("pair:chain 3"), smollm2)
    own = models.Pair("own", smollm2.target, smollm2.target, smollm2.tokenizer)
    assert methods.build(methods.method("pair:chain 3"), own).draft_model.model is smollm2.target


# ---- cells and the command -----------------------------------------------------------------------------------


KEPT = (side_by_side.draft_model, side_by_side.assistant, side_by_side._warm, measures.plain_text)


@pytest.fixture
def command(smollm2, monkeypatch, tmp_path):
    """bench's command line on the float32 model, writing to tmp_path/out."""
    monkeypatch.setattr(side_by_side, "loaded", lambda setting: smollm2)
    monkeypatch.setattr(measures, "pair", lambda dtype: smollm2)
    for kept in KEPT:
        kept.cache_clear()

    def run(*words: str) -> pd.DataFrame:
        monkeypatch.setattr(sys, "argv", ["bench", *words, "--out", str(tmp_path / "out")])
        bench.main()
        return sweep.load(tmp_path / "out.csv")

    yield run
    for kept in KEPT:
        kept.cache_clear()


def spelt(sizes: str) -> dict[int, int]:
    return {int(n): int(count) for n, count in (pair.split(":") for pair in sizes.split())}


@pytest.mark.model
def test_a_race_counts_what_ran(command):
    chosen = ["generate", "prompt lookup", "assistant", "undrafted", "edd:chain 3", "talf:salf 6,3,0.8,10 + ngram"]
    table = command("--methods", *chosen, "--prompts", "rag-02", "--tokens", "12", "--whole")
    table = table.set_index("method")
    assert (table["status"] == "ok").all()
    assert (table["tokens"] == 12).all()
    assert table.loc[["generate", "undrafted"], "trees"].tolist() == ["1:12"] * 2
    assert table.loc[["generate", "undrafted"], "steps"].tolist() == [12, 12]
    for name in ("edd:chain 3", "talf:salf 6,3,0.8,10 + ngram"):
        row = table.loc[name]
        trees, frontiers = spelt(row["trees"]), spelt(row["frontiers"])
        assert sum(trees.values()) == row["steps"] <= 12
        assert sum(n * count for n, count in trees.items()) == row["nodes"] + row["steps"]
        assert sum(frontiers.values()) >= row["steps"] - 1
        assert row["drafting"] > 0
        assert row["drafting"] + row["looking"] < row["draft"]
    assert [table.loc[name, "looking"] > 0 for name in chosen] == [False] * 5 + [True]
    assert max(spelt(table.loc["edd:chain 3", "trees"])) == 4
    lookup = spelt(table.loc["prompt lookup", "trees"])
    assert sum(lookup.values()) == table.loc["prompt lookup", "steps"] < 12
    assert max(lookup) == 11
    assert sum(spelt(table.loc["assistant", "frontiers"]).values()) > 0
    phases = table[["draft", "target", "verify", "commit", "prefill"]].sum(axis=1)
    assert (phases <= table["seconds"] * 1.01).all()


@pytest.mark.model
def test_greedy_texts_by_name_and_a_target_without_positions(command, monkeypatch):
    monkeypatch.setitem(methods.WINDOWS, "streaming 256", Window(4, 20))
    names = ["streaming 1024", "streaming 256", "eagle2 20,4,4", "talf:kary 2,3 + ngram", "generate"]
    table = command("--texts", "--methods", *names, "--prompts", "conversation-02", "--tokens", "12")
    windowed = table["method"] == "vdm:streaming 256"
    assert not table[windowed]["same"].any()  # something has been evicted
    assert table[~windowed].groupby("positions")["same"].all().to_dict() == {True: True, False: False}
    assert len(table) == 8  # nothing to compare for generate itself


@pytest.mark.model
def test_assistant_is_the_trained_vdm(smollm2, command):
    ids = smollm2.encode("Name three rivers and say where they end.")
    plain = bench.generate(smollm2.target, max_new_tokens=16)(ids)
    assisted = bench.generate(
        smollm2.target,
        max_new_tokens=16,
        assistant_model=side_by_side.assistant(side_by_side.Setting("any", "float32", False)),
    )
    assert assisted(ids) == plain


@pytest.mark.model
def test_a_method_that_fails_is_recorded_and_the_rest_goes_on(command, capsys, tmp_path):
    words = ("--methods", "generate", "vdm:kary 2,2 swor rrs", "n-gram tree", "--prompts", "rag-02", "rag-03")
    words += ("--tokens", "4", "--temperatures", "1")
    with pytest.raises(SystemExit, match="swor rrs failed: ValueError: rrs is lossless for siblings drawn IID only"):
        command(*words)
    table = sweep.load(tmp_path / "out.csv")
    assert table.groupby("method")["status"].agg(list).to_dict() == {
        "generate": ["ok"] * 2,
        "n-gram tree": ["ok"] * 2,
        "vdm:kary 2,2 swor rrs": ["failed"] * 2,
    }
    said = capsys.readouterr().out
    assert "temperature 1, speed-ups over generate" in said
    assert "n-gram tree" in said


@pytest.mark.model
def test_an_interrupted_race_goes_on(command, monkeypatch):
    words = ("--methods", "generate", "n-gram tree", "--prompts", "rag-02", "rag-03", "--tokens", "4")
    real, calls = side_by_side.measure, []

    @wraps(real)
    def killed_once(**cell):
        calls.append((cell["method"], cell["prompt"]))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(**cell)

    monkeypatch.setattr(side_by_side, "measure", killed_once)
    with pytest.raises(KeyboardInterrupt):
        command(*words)
    assert len(command(*words)) == 4
    assert len(calls) == 5
    assert len(set(calls)) == 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--methods", "magic"), "unknown method 'magic'"),
        (("--methods", "pair:chain 3"), "smollm2-135m has no draft model of its own"),
        (("--methods", "vdm:chain 3 iid"), "draws its tree: that needs --temperatures above 0"),
        (("--methods", "generate", "generate"), "'generate' stands twice"),
        (("--texts", "--methods", "generate"), "--texts compares drafters of ours"),
        (("--memory", "generate"), "--memory follows drafters of ours without a window, not 'generate'"),
        (("--prompts", "nowhere"), "has the prompt 'nowhere'"),
        (("--pair", "magic"), "unknown pair 'magic': known are smollm2-135m, pythia-2.8b"),
        (("--dtype", "int3"), "unknown dtype 'int3'"),
        (("--packed", "--dtype", "float32"), "--packed needs bfloat16 and a CPU with its kernels, this is float32 on"),
        (("--tokens", "0"), "--tokens and --repetitions must be at least 1"),
    ],
)
def test_wrong_names_are_refused_before_anything_is_loaded(words, message, monkeypatch, tmp_path):
    monkeypatch.setattr(side_by_side, "loaded", lambda *_: pytest.fail("a model was loaded"))
    monkeypatch.setattr(sys, "argv", ["bench", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(ValueError, match=message):
        bench.main()
    assert not list(tmp_path.iterdir())


@pytest.mark.model
def test_memory_along_a_long_text(smollm2):
    drafters = {"n-gram tree": NgramDrafter()}
    table = costs.memory(smollm2, drafters, smollm2.encode("Count."), max_new_tokens=60, every=20)
    assert len(table) == 3
    assert table["tokens"].between([20, 40, 60], [40, 60, 61]).all()
    assert (table["cache"] > 0).all()


@pytest.mark.model
@pytest.mark.parametrize(
    ("words", "rows", "columns"),
    [
        (("--curves", "edd", "vdm"), 3, {"model", "nodes", "median"}),
        (
            ("--sampled", "edd", "--prompts", "rag-02", "--tokens", "3"),
            6,
            {"draft", "shape", "rule", "prompt", "tokens"},
        ),
        (
            ("--memory", "undrafted", "--prompts", "rag-02", "--tokens", "51"),
            1,
            {"method", "tokens", "resident", "cache"},
        ),
    ],
    ids=["curves", "sampled", "memory"],
)
def test_prices_are_written_with_their_provenance(command, monkeypatch, tmp_path, words, rows, columns):
    monkeypatch.setattr(bench, "SIZES", (1,))
    monkeypatch.setattr(sweep, "load", pd.read_csv)  # these are no sweeps
    table = command(*words)
    assert len(table) == rows
    assert columns <= set(table)
    assert set(table.get("prompt", ["rag-02"])) == {"rag-02"}
    facts = json.loads((tmp_path / "out.json").read_text())
    assert facts["command"].startswith("python -m specnb.bench --")
    assert facts["packed"] is False

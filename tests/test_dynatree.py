"""DynaTree on real decoding: the text is plain decoding's for any setting, and is not without position ids."""

import json
import sys
from functools import cache

import pandas as pd
import pytest
from tiny import llama

from specnb import grids, growth, measures, prompts, racing, studies, sweep, verifiers
from specnb.broken import Unpositioned
from specnb.decode import decode
from specnb.draft_models import CausalLMDraft
from specnb.drafters import TreeDrafter
from specnb.target import Target


def greedy(target: Target, draft, rule: growth.Growth, prompt: list[int], tokens: int):
    return decode(target, TreeDrafter(draft, rule), verifiers.greedy, prompt, max_new_tokens=tokens, eos=())


def test_without_position_ids_the_text_breaks():
    """On a random model: right positions give the plain text for every setting, positions in a row do not."""
    model = llama()
    draft, prompt = CausalLMDraft(model), [5, 9, 2]
    plain = racing.generate(model, max_new_tokens=40, eos_token_id=10_000)(prompt)
    rules = [growth.DynaTree(**setting) for setting in grids.settings(5)]
    assert all(list(greedy(Target(model), draft, rule, prompt, 40).tokens) == plain for rule in rules)
    assert any(list(greedy(Unpositioned(model), draft, rule, prompt, 40).tokens) != plain for rule in rules)


@pytest.fixture
def command(smollm2, monkeypatch, tmp_path):
    """``python -m specnb.grids …`` with the model that the tests have loaded; returns what it recorded."""
    monkeypatch.setattr(measures, "pair", lambda dtype: smollm2)
    for kept in (measures.draft, measures.plain_text):
        monkeypatch.setattr(measures, kept.__name__, cache(kept.__wrapped__))

    def run(*words: str):
        out = tmp_path / f"{words[0]}_{len(list(tmp_path.iterdir()))}"  # another file for every command
        monkeypatch.setattr(sys, "argv", ["grids", *words, "--out", str(out)])
        grids.main()
        table = sweep.load(f"{out}.csv")
        assert (table["status"] == "ok").all(), table["error"].tolist()
        return table

    return run


@pytest.mark.model
def test_same_text_on_the_model(command):
    """float32, near-tie rule; 60 prompts under 20 settings: ``specnb.grids texts --prompts own``."""
    names = ["conversation-01", "translation-04", "mathematics-02"]
    table = command("texts", "--settings", "2", "--tokens", "24", "--prompts", *names)
    assert len(table) == 9
    assert table.loc[table["positions"], "same"].all(), table
    assert not table.loc[~table["positions"], "same"].all()


@pytest.mark.model
@pytest.mark.parametrize("name", ["vdm", "eagle"])
def test_replay_is_the_real_run_on_the_model(name, command):
    """Accepted lengths and tree sizes, exactly; more prompts and settings: ``specnb.grids replay``."""
    table = command("replay", "--draft", name, "--settings", "3", "--tokens", "40", "--prompts", "rag-02")
    assert table[["equal", "same"]].all(axis=None), table
    assert len(table) == 3


@pytest.mark.model
def test_trees_along_one_recording(command):
    """Every rule's counts agree with each other, and the packed chains with what the target wrote."""
    prices = ["--cost", "0.1", "--node", "0.02"]
    table = command("trees", "--prompts", "rag-02", "--tokens", "12", *prices)
    row, chains = table.iloc[0], studies.chain_table(table)
    for name in studies.edd_rules(0.1, 0.02):
        assert row[f"{name}: steps"] + row[f"{name}: forwards"] <= row[f"{name}: fed"] + 12
        assert 1 <= row[f"{name}: steps"] <= 12
    assert row["vct: nodes"] > row["pct: nodes"] > row["chain 5: nodes"] > 0
    assert row["pct w/o leaves: nodes"] >= row["pct: nodes"]
    alive = chains[chains["depth"] == 1]
    assert alive["alive"].all()
    assert len(alive) == 12
    assert ((chains["path"] <= chains["confidence"] + 1e-9) & (chains["hit"] <= chains["alive"])).all()
    without = command("trees", "--prompts", "rag-02", "--tokens", "12", "--no-vanilla", *prices).iloc[0]
    assert without["vct: steps"] != without["vct: steps"]  # nan
    assert without["pct: steps"] == row["pct: steps"]
    with pytest.raises(ValueError, match="trees needs --cost and --node"):
        command("trees", "--prompts", "rag-02")


@pytest.mark.model
def test_searches_along_one_recording(command):
    """SALF's claims as they hold step by step: fewer forwards at a higher threshold; filling costs none."""
    row = command("searches", "--prompts", "rag-02", "--tokens", "8").iloc[0]
    for what in ("salf", "filled"):
        per_step = [row[f"{what} {th:.2f}: forwards"] / row[f"{what} {th:.2f}: steps"] for th in (0.0, 0.3, 0.6, 0.95)]
        assert per_step == sorted(per_step, reverse=True)
        assert per_step[0] > per_step[-1] > 0
    assert row["filled 0.60: nodes"] / row["filled 0.60: steps"] > row["salf 0.60: nodes"] / row["salf 0.60: steps"]
    everywhere = [row[f"salf {th:.2f}: everywhere"] for th in studies.THRESHOLDS]
    assert everywhere == sorted(everywhere, reverse=True)  # here: none of these trees was full
    for gains in json.loads(row["gains"]):
        assert gains == sorted(set(gains), reverse=True)  # Theorem 1
        assert gains[:1] in ([], [1.0])  # the last token needs no draft
    for name in studies.RANKED:
        assert sum(json.loads(row[f"{name}: ranks"])) == row[f"{name}: nodes"]
    tokens = {row[f"{name}: steps"] for name in studies.ADAPTIVE}
    assert all(1 <= steps <= 8 for steps in tokens)


@pytest.mark.model
def test_a_tempered_draft_by_name(smollm2, monkeypatch):
    monkeypatch.setattr(measures, "pair", lambda dtype: smollm2)
    assert measures.draft.__wrapped__("vdm@1.3", "float32").temperature == 1.3
    with pytest.raises(ValueError, match="could not convert string to float"):
        measures.draft.__wrapped__("vdm@", "float32")


@pytest.mark.model
def test_decoded_runs(command, monkeypatch):
    """Greedy runs write plain's number of tokens in fewer steps, sampled ones too, as deep as the rule may."""
    asked, sampled = [], []
    one_hot, greedy_rule, plain = verifiers.one_hot, verifiers.greedy, racing.generate
    monkeypatch.setattr(verifiers, "one_hot", lambda *a: asked.append(1.0) or one_hot(*a))
    monkeypatch.setattr(verifiers, "greedy", lambda *a: asked.append(0.0) or greedy_rule(*a))
    seen = lambda model, **o: o["max_new_tokens"] == 12 and sampled.append("do_sample" in o)  # noqa: E731
    monkeypatch.setattr(racing, "generate", lambda model, **o: seen(model, **o) or plain(model, **o))
    runs = ["vdm:chain 3", "vdm:pct 0.1,3,4,0.02"]
    table = command("decoded", "--runs", *runs, "--prompts", "rag-02", "--tokens", "12", "--temperatures", "0", "1")
    assert table["rule"].tolist() == ["plain", "chain 3", "pct 0.1,3,4,0.02"] * 2
    assert (table["tokens"] == 12).all()
    assert sampled == [False, True]
    assert sorted(set(asked)) == [0.0, 1.0]
    ours = table[table["rule"] != "plain"]
    later = ours[["prefill", *measures.PHASES]].sum(axis=1)
    assert ((ours["steps"] < 12) & (later < ours["seconds"]) & (later > 0.8 * ours["seconds"])).all()
    assert (ours["depth"] <= ours["steps"] * ours["rule"].map({"chain 3": 3, "pct 0.1,3,4,0.02": 4})).all()
    chains = ours[ours["rule"] == "chain 3"]
    assert (chains["nodes"] == chains["depth"]).all()
    with pytest.raises(ValueError, match="unknown growth rule 'magic'"):
        command("decoded", "--runs", "vdm:magic", "--prompts", "rag-02")
    with pytest.raises(ValueError, match="--runs takes HEAD:RULE, such as 'edd:chain 5', got 'vdm'"):
        command("decoded", "--runs", "vdm", "--prompts", "rag-02")


@pytest.mark.model
def test_a_learnt_threshold_begins_anew_or_goes_on(command, smollm2):
    """An "ongoing" drafter is the process' one and remembers; an "adaptive" one is made for each run."""
    measures._kept.cache_clear()
    rules = ["vdm:adaptive 8,2,0.6,4", "vdm:ongoing 8,2,0.6,4"]
    table = command("decoded", "--runs", *rules, "--prompts", "rag-02", "rag-03", "--tokens", "8")
    assert (table["status"] == "ok").all()
    going = table[table["rule"].str.startswith("ongoing")]
    kept = measures._kept("vdm", "ongoing 8,2,0.6,4")
    assert len(kept.past) == going["steps"].sum()
    assert measures._made("vdm", "adaptive 8,2,0.6,4").past == []
    measures._kept.cache_clear()


def test_prompts_by_domain():
    assert prompts.chosen("paper") == ["paper"]
    assert prompts.chosen("own:1") == [f"{domain}-01" for domain in prompts.DOMAINS]
    assert len(prompts.chosen("own")) == 60
    assert prompts.chosen("translation:2") == ["translation-01", "translation-02"]
    assert len(prompts.chosen("rag")) == 10
    assert prompts.chosen("humaneval:2") == ["HumanEval/0", "HumanEval/1"]
    with pytest.raises(ValueError, match="has the prompt 'magic'"):
        prompts.chosen("magic")


def test_a_grid_as_cells():
    """Two recorded runs beside two of the baseline, by hand: the median of plain decoding's seconds counts."""
    setting = {"status": "ok", "prompt": "paper", "branch": 2, "threshold": 0.1}
    runs = [{**setting, "depth": depth} for depth in (3, 4)]
    for run, seconds in zip(runs, (5.0, 8.0), strict=True):
        for n in measures.LENGTHS:
            run |= {f"seconds {n}": seconds, f"tokens {n}": n + 1, f"steps {n}": n // 2, f"nodes {n}": 2 * n}
    plain = [
        {"status": "ok", "prompt": "paper", "length": n, "tokens": n, "seconds": s}
        for n in measures.LENGTHS
        for s in (9.0, 10.0, 20.0)
    ]
    failed = {**runs[0], "status": "failed"}
    cells = studies.tidy(pd.DataFrame([*runs, failed]), pd.DataFrame(plain))
    assert len(cells) == 10
    first = cells.iloc[0]
    assert (first["length"], first["depth"]) == (100, 3)
    assert first["speed-up"] == pytest.approx((101 / 5) / (100 / 10))
    assert (first["path"], first["nodes"], first["acceptance"]) == pytest.approx((101 / 50, 4, 101 / 200))

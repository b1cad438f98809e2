"""The table of samplers in the wild: its form, and the installed transformers' row, judged again."""

import sys
from pathlib import Path

import pandas as pd
import pytest
import transformers

from specnb.exact import judgement

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import judge_samplers  # noqa: E402 (tools is no package)

KNOWN = {
    judgement.LOSSLESS, judgement.ROUNDING, judgement.LOSSY, judgement.BY_DESIGN, judgement.NOT_JUDGED,
    judge_samplers.MISSING,
}  # fmt: skip


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return pd.read_csv(ROOT / "data" / "samplers.csv", keep_default_na=False)


def test_the_table_has_a_row_for_each_sampler(table):
    assert tuple(table.columns) == judge_samplers.COLUMNS
    listed = [(one.repository, one.function, one.arguments) for one in judge_samplers.SAMPLERS]
    assert list(table[["repository", "function", "arguments"]].itertuples(index=False, name=None)) == listed
    assert set(table.verdict) <= KNOWN
    assert (table.adapter != "").all()


def test_what_is_called_wrong_has_been_followed_and_what_is_not_judged_has_a_reason(table):
    wrong = table[table.verdict.isin([judgement.LOSSY, judgement.BY_DESIGN])]
    assert len(wrong) > 0
    assert (wrong.followed != "").all()
    assert wrong.why.str.contains("instead of").all()
    assert (table[~table.index.isin(wrong.index)].followed == "").all()
    left_out = table[table.verdict.isin([judgement.NOT_JUDGED, judge_samplers.MISSING])]
    assert (left_out.why != "").all()


def test_what_is_meant_to_be_lossy_is_never_called_lossless(table):
    meant = table[table.claims.str.startswith(judge_samplers.BY_DESIGN)]
    assert len(meant) > 0
    assert not meant.verdict.isin([judgement.LOSSLESS, judgement.ROUNDING]).any()


def test_the_installed_transformers_are_judged_again(table):
    for sampler in judge_samplers.SAMPLERS:
        if sampler.repository != "huggingface/transformers" or sampler.folder:
            continue
        row = judge_samplers.judged(sampler, ROOT / "no checkouts")
        assert row["version"] == transformers.__version__
        same = (table.repository == sampler.repository) & (table.arguments == sampler.arguments)
        recorded = table[same & (table.version == transformers.__version__)]
        if recorded.empty:
            pytest.skip(f"the table has no row for transformers {transformers.__version__}")
        assert row["verdict"] == recorded.verdict.item()
        assert row["distance"] == pytest.approx(float(recorded.distance.item()), rel=1e-3, abs=1e-12)


def test_a_checkout_that_is_not_there_is_missing():
    sampler = next(one for one in judge_samplers.SAMPLERS if one.repository == "SafeAILab/EAGLE")
    row = judge_samplers.judged(sampler, ROOT / "no checkouts")
    assert row["verdict"] == judge_samplers.MISSING


def test_a_counterexample_that_nobody_has_followed_accuses_nobody(tmp_path):
    """A wrong sampler in a file of its own: it counts as not judged until an entry explains it."""
    (tmp_path / "wrong-1.0").mkdir()
    (tmp_path / "wrong-1.0" / "wrong.py").write_text("def sample(p, q, drafted):\n    return [*drafted, 0]\n")
    sampler = judge_samplers.Sampler(
        "somebody/wrong",
        "wrong.sample",
        lambda checkout: checkout.module("wrong").sample,
        judge_samplers.conventions.PLAIN,
        folder="wrong-1.0",
    )
    row = judge_samplers.judged(sampler, tmp_path)
    assert row["verdict"] == judgement.NOT_JUDGED
    assert "nobody has followed" in row["why"]
    explained = judge_samplers.replace(sampler, followed="It accepts every draft.", read="1.0")
    row = judge_samplers.judged(explained, tmp_path)
    assert row["verdict"] == judgement.LOSSY
    assert row["followed"] == "It accepts every draft."
    another = judge_samplers.replace(explained, read="0.9")
    assert judge_samplers.judged(another, tmp_path)["verdict"] == judgement.NOT_JUDGED
    assert "wrong" not in sys.modules

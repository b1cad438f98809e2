"""python -m training: what it refuses in a line before anything is loaded."""

import sys
from types import SimpleNamespace

import pytest

from specnb import models
from training import __main__ as command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["trian"], "invalid choice: 'trian'"),
        (["train"], "the following arguments are required: NAME"),
        (["train", "eagle", "eagel"], "unknown head 'eagel': known are "),
        (["train", "eagle-one"], "unknown head 'eagle-one': known are "),
        (["report", "--head", "here", "--dtype", "bf16"], "argument --dtype: invalid choice: 'bf16'"),
    ],
)
def test_typos_are_told_in_a_line(words, message, monkeypatch, capsys):
    monkeypatch.setattr(models, "load_pair", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.setattr(sys, "argv", ["training", *words])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err


def test_a_folder_without_heads_is_told_in_a_line(monkeypatch, capsys):
    monkeypatch.setattr(models, "load_pair", lambda *_, **__: SimpleNamespace(target=None, name=models.EMBEDDED))
    monkeypatch.setattr(sys, "argv", ["training", "report", "--heads", "nowhere"])
    with pytest.raises(SystemExit):
        command.main()
    assert "error: nowhere holds no trained heads" in capsys.readouterr().err

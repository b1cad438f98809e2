"""README and docs: worked examples run and print what is said, results are those recorded, links lead somewhere."""

import io
import re
import shlex
import sys
import textwrap
from contextlib import redirect_stdout

import fill_readme
import links
import pandas as pd
import pytest
import torch

from specnb import __main__ as newcomer
from specnb import models, one_call
from specnb.drafters.seconds import ForwardSeconds
from specnb.models import files, pairs
from study import __main__ as laboratory
from study import commands, experiments, stats
from training import __main__ as training

ROOT = files.ROOT
PAGES = {path.stem: path for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
TEXTS = {name: path.read_text(encoding="utf-8") for name, path in PAGES.items()}
README = TEXTS["README"]
BLOCK = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?", re.DOTALL | re.MULTILINE)
BLOCKS = {name: BLOCK.findall(text) for name, text in TEXTS.items()}
EXAMPLES = [
    pytest.param(code, printed, id=f"{name} {i}")
    for name, blocks in BLOCKS.items()
    for i, (code, printed) in enumerate(blocks)
    if printed
]
HUB = "Qwen/Qwen2.5-0.5B-Instruct"


# --- examples


def run(code: str) -> str:
    """What code prints that starts with no names of its own."""
    with redirect_stdout(io.StringIO()) as said:
        exec(code, {"__name__": "__main__"})
    return said.getvalue()


def test_every_example_says_what_it_prints_or_needs_the_hub():
    assert EXAMPLES
    for name, text in TEXTS.items():
        assert text.count("```python") == len(BLOCKS[name]), name  # each is found
    silent = [code for blocks in BLOCKS.values() for code, printed in blocks if not printed]
    assert len(silent) == 1
    assert all(HUB in code for code in silent)


@pytest.mark.model
@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_prints_what_is_said(code, printed, monkeypatch):
    """But for the seconds of forwards, which are not measured: what is printed is the same on any machine."""
    prices = ForwardSeconds(tuple(1 + 0.01 * nodes for nodes in range(32)), (0.05,) * 8)
    monkeypatch.setattr(one_call.seconds, "kept", lambda *args, **options: prices)
    assert run(code) == printed


@pytest.mark.model
def test_a_model_of_the_hub_could_be_any_folder():
    """The example with the embedded model's folder in the hub name's place."""
    (example,) = [code for code, _ in BLOCKS["own_model"] if HUB in code]
    said = run(example.replace(HUB, str(pairs.embedded_copy())).replace("max_new_tokens=64", "max_new_tokens=8"))
    assert re.search(r" \d+ target calls\n$", said), said


def test_another_example_prints_something_else():
    """Negative control: the verifier's example with its threshold moved."""
    code, printed = BLOCKS["extend"][2]
    assert code.count("enough=0.3") == 1
    assert run(code.replace("enough=0.3", "enough=0.05")) != printed


# --- commands

BEGINNINGS = ("python -m study ", "python -m training ", "specnb ")
COMMANDS = [line for text in TEXTS.values() for line in text.splitlines() if line.startswith(BEGINNINGS)]
TARGET = re.compile(r"(?:^|`)make ([a-z][\w-]*)", re.MULTILINE)


class Parsed(Exception):
    """A command that was understood."""


def understood(line: str, monkeypatch) -> bool:
    """Whether a command's arguments make sense to the program that it names; nothing is measured or trained."""

    def stop(*args, **kwargs):
        raise Parsed

    def check(options):
        if options.what in ("race", "texts"):
            commands.checked_prompts(options)
        raise Parsed

    for name in ("race", "texts", "price", "record", "list_experiments", "list_methods", "gpu", "claims"):
        monkeypatch.setattr(commands, name, check)
    monkeypatch.setattr(models.packing, "possible", lambda dtype: True)
    monkeypatch.setattr(models.pairs, "best_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(models.pairs, "load_pair", stop)
    words = shlex.split(line, comments=True)
    if words[0] == "specnb":
        return bool(newcomer.options(words[1:]).prompt)
    _, _, module, *arguments = words
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    try:
        {"study": laboratory, "training": training}[module].main()
    except (Parsed, SystemExit) as end:
        return isinstance(end, Parsed)


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_is_understood(line, monkeypatch):
    assert understood(line, monkeypatch)


@pytest.mark.parametrize(
    "line",
    [
        "python -m study race generate hass-nosuch --out x",
        "python -m study race generate --prompts nowhere:2 --out x",
        "python -m study record race --tokens 3",
        "python -m training train nobody",
    ],
)
def test_a_wrong_command_is_not(line, monkeypatch, capsys):
    assert len(COMMANDS) >= 12
    assert not understood(line, monkeypatch)
    assert "error" in capsys.readouterr().err


def test_every_make_target_exists():
    known = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {target for text in TEXTS.values() for target in TARGET.findall(text)}
    assert {"lab", "test", "html", "readme"} <= named
    assert named <= known
    assert TARGET.findall("make lab  # so\nthey `make nothing` and make sense") == ["lab", "nothing"]


# --- how fast


def test_the_results_are_those_recorded():
    assert fill_readme.filled(README) == README


def raced(fastest: str, **settings) -> pd.DataFrame:
    """A race on three prompts in which all but one method are as fast as generate."""
    names = {fastest, "generate", "prompt lookup", "assistant"}
    rows = [{"method": name, "prompt": f"rag-{i}"} for name in sorted(names) for i in range(3)]
    table = pd.DataFrame(rows).assign(
        domain="rag", repetition=0, status="ok", length=8, dtype="float32", tokens=8, steps=4, text="x"
    )
    return table.assign(seconds=table["method"].map(lambda name: 1 if name == fastest else 2), **settings)


FACTS = {"device": "cpu, 2 threads", "processor": "a CPU, AVX2", "torch": "2", "date": "today"}


def test_results_follow_the_recording():
    said = fill_readme.results(raced("n-gram tree", packed=False, **FACTS))
    start = "n-gram tree writes **2.00× [2.00, 2.00]** as fast as transformers' `generate`"
    assert said.replace("\n", " ").startswith(start)
    assert "| n-gram tree | the text so far | 2.00 | 2.00× [2.00, 2.00] |" in said.splitlines()
    assert "(2 threads, a CPU; 95 % interval)" in said.replace("\n", " ")
    assert "packed" not in said
    assert "is slower: 2.00×" in said.replace("\n", " ")
    assert "on 3 of 3 prompts" in said.replace("\n", " ")
    said = fill_readme.results(raced("vdm:chain 3", packed=True, **FACTS))
    assert said.startswith("`vdm:chain 3` writes **2.00×")
    assert "packed" in said


def test_a_readme_without_marks_is_refused():
    with pytest.raises(ValueError, match="one place between"):
        fill_readme.filled(README.replace("<!-- /results -->", ""))


def test_the_fastest_method_is_the_one_to_run():
    """``specnb.generate`` drafts as ``auto`` does (test_one_call holds them equal), and auto won the recorded race."""
    assert "specnb.generate" in BLOCKS["README"][0][0]
    assert stats.speed_ups(experiments.recorded("race")).index[0] == "auto"


def test_a_wrapped_line_never_begins_like_a_list_item():
    """ "HASS + SALF + n-grams" would be a paragraph and a bullet if a line ended before a +."""
    words, before = "HASS + SALF + n-grams, 3. of - four * five # six > seven | eight, which", []
    for width in range(1, 40):  # the marks fall on every column
        text = " ".join(["x" * width, *[words] * 8])
        lines = fill_readme.wrapped(text).splitlines()
        assert " ".join(lines) == text
        assert max(map(len, lines)) <= 120
        assert [line for line in lines if LIST.match(line) or line[:2] in ("# ", "> ", "| ")] == []
        before += [line for line in textwrap.fill(text, 120).splitlines() if LIST.match(line)]
    assert before  # negative control: textwrap alone does it


LIST = re.compile(r"(?:[-+*]|\d+[.)]) ")


def stray(text: str) -> list[str]:
    """Lines that begin like list items where a paragraph goes on: behind a line that is neither blank nor of a list."""
    found, fenced, before, in_list = [], False, "", False
    for line in text.splitlines():
        if line.startswith("```"):
            fenced = not fenced
        starts = bool(LIST.match(line))
        if not before.strip() or before.startswith(("#", "<!--")):
            in_list = starts
        if starts and not in_list and not fenced:
            found.append(line)
        before = line
    return found


@pytest.mark.parametrize("name", PAGES)
def test_no_paragraph_goes_on_with_a_list_mark(name):
    assert stray(TEXTS[name]) == []


def test_a_paragraph_that_goes_on_with_a_list_mark_is_found():
    assert stray("HASS + SALF\n+ n-grams, is") == ["+ n-grams, is"]
    assert stray("as many as\n12. Then") == ["12. Then"]
    assert stray("Two:\n\n- one, which\n  goes on\n- two\n\n```\nx\n- y\n```\n# Head\n* item") == []


SPEED = re.compile(r"\d\.\d\d× \[\d\.\d\d,\s\d\.\d\d\]")


def test_the_readme_says_first_how_fast():
    """A speed-up with its interval stands in the first ten lines."""
    assert SPEED.search("\n".join(README.splitlines()[:10]))
    assert not SPEED.search("1.81× as fast [1, 2], 1.81x [1.65, 2.03]")


# --- links


@pytest.mark.parametrize("name", PAGES)
def test_every_link_leads_somewhere(name):
    assert links.dead(TEXTS[name], PAGES[name].parent) == []


def test_the_readme_leads_to_every_page_and_notebook():
    found = set(links.local(README))
    assert {f"docs/{name}.md" for name in PAGES if name != "README"} <= found
    assert {f"notebooks/{path.name}" for path in ROOT.glob("notebooks/[0-9]*.ipynb")} <= found


def test_every_room_stands_on_the_map():
    rooms = {path.name for path in (ROOT / "specnb").iterdir() if path.is_dir() and path.name[0] not in "._"}
    assert set(re.findall(r"\(\.\./specnb/(\w+)/__init__\.py\)", TEXTS["package"])) == rooms

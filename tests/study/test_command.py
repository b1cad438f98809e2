"""python -m study: what it records and shows, and what it refuses in a line before anything is loaded."""

import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pandas as pd
import pytest
from tiny import TEMPLATE, llama, tokenizer

from specnb import models, verifiers
from specnb.growth import kary
from specnb.tree import Drawn
from study import __main__ as command
from study import claims, commands, experiments, record
from study.measure import forwards, loading, race, texts
from study.methods import METHODS, Method

MEASURING = (loading, race, texts)  # files that hold the name loaded


def study(monkeypatch):
    """The command line, as a function of its words."""

    def call(*words: str) -> None:
        monkeypatch.setattr(sys, "argv", ["study", *words])
        command.main()

    return call


@pytest.mark.model
def test_a_race_is_recorded_and_shown(smollm2, monkeypatch, tmp_path, capsys):
    """On the embedded model, in float32, with one of its trained heads."""
    for module in MEASURING:
        monkeypatch.setattr(module, "loaded", lambda *_: smollm2)
    loading._draft_model.cache_clear()
    monkeypatch.setattr(race, "WARM", set())
    words = ["--prompts", "conversation-01", "conversation-02", "--tokens", "4", "--out", str(tmp_path / "out")]
    study(monkeypatch)("race", "generate", "edd-chain-5", *words)
    table = record.load(tmp_path / "out.jsonl")
    assert len(table) == 4
    assert set(table["cell"]) == {"race"}
    assert table["command"].str.startswith("python -m study race generate edd-chain-5").all()
    assert (table["heads"].str.len() > 20).all()
    said = capsys.readouterr().out
    assert "speed-up" in said
    assert "edd-chain-5" in said
    assert "only 2 of the 12 prompts that an interval needs at least: try --prompts own:4" in said
    study(monkeypatch)("race", "generate", "edd-chain-5", *words)
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2 + 4  # nothing is measured twice


@pytest.mark.usefixtures("toy")
def test_failures_end_the_command_with_their_names(monkeypatch, tmp_path):
    broken = Method(head="pair", grow=kary(2, 2), drawn=Drawn.SWOR, verifier=verifiers.rrs)  # which wants IID siblings
    monkeypatch.setitem(METHODS, "broken", broken)
    monkeypatch.setitem(models.PAIRS, models.EMBEDDED, (models.EMBEDDED, models.EMBEDDED))  # the toy has a draft
    words = ["--prompts", "conversation-01", "--tokens", "3", "--temperature", "1", "--repetitions", "2"]
    with pytest.raises(SystemExit, match="broken failed: ValueError: rrs is lossless"):
        study(monkeypatch)("race", "generate", "broken", *words, "--out", str(tmp_path / "out"))
    table = record.load(tmp_path / "out.jsonl")
    assert table.groupby("method")["status"].agg(list).to_dict() == {"generate": ["ok"] * 2, "broken": ["failed"] * 2}


@pytest.mark.usefixtures("toy")
def test_texts_and_prices(monkeypatch, tmp_path, capsys):
    words = ["--prompts", "conversation-01", "--tokens", "4", "--out", str(tmp_path / "texts")]
    study(monkeypatch)("texts", "n-gram tree", *words)
    assert record.load(tmp_path / "texts.jsonl")["same"].tolist() == [True]
    assert "n-gram tree: 1 of 1 texts are those of generate, 0 but for a near tie" in capsys.readouterr().out
    study(monkeypatch)("price", "pair", "--prefix", "10", "--repetitions", "1", "--out", str(tmp_path / "curves"))
    assert set(record.load(tmp_path / "curves.jsonl")["model"]) == {"target", "pair"}
    assert "nodes, ms" in capsys.readouterr().out


def test_the_list_names_every_experiment(monkeypatch, capsys):
    some = {name: experiments.TABLE[name] for name in ("race", "ptd", "edd_widths", "gpu_race")}
    monkeypatch.setattr(experiments, "TABLE", some)  # all of them take seconds
    monkeypatch.setattr(sys, "argv", ["study", "list"])
    command.main()
    said = capsys.readouterr().out
    assert all(name in said for name in some)


def test_a_reader_that_goes_away_ends_the_command_without_a_word():
    """python -m study methods | head: the output is longer than what a pipe holds for nobody."""
    line = [sys.executable, "-m", "study", "methods"]
    options = {"cwd": models.files.ROOT, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(line, **options) as started:
        started.stdout.close()
        complaints = started.stderr.read()
    assert complaints == b""
    assert started.returncode == 141


SECONDS = {"clear": [2.0, 1.0], "level": [2.0, 2.1], "slower": [1.0, 2.0]}  # of generate and of the other method


@pytest.mark.parametrize(("other", "prompts"), [("clear", 12), ("clear", 11), ("level", 12), ("slower", 12)])
def test_a_race_says_which_differences_its_prompts_do_not_tell(other, prompts, monkeypatch, tmp_path, capsys):
    rows = [
        {"prompt": i, "repetition": 0, "method": name, "status": "ok", "error": "", "cell": "race", "steps": 5}
        | {"tokens": 10, "seconds": seconds * (1 + (i * k % 3) / 10)}
        for i in range(prompts)
        for k, (name, seconds) in enumerate(zip(("generate", "n-gram tree"), SECONDS[other], strict=True), start=1)
    ]
    monkeypatch.setattr(loading, "loaded", lambda *_: None)
    monkeypatch.setattr(experiments, "run", lambda *_, **__: pd.DataFrame(rows))
    ids = ["own:1", "humaneval:6"] if prompts == 12 else ["own:1", "humaneval:5"]
    monkeypatch.setattr(
        sys, "argv", ["study", "race", "generate", "n-gram tree", "--prompts", *ids, "--out", str(tmp_path / "out")]
    )
    command.main()
    said = capsys.readouterr().out
    assert said.split()[:5] == ["tau", "speed-up", "low", "high", "token/s"]
    assert ("not told from generate, the interval holds 1: n-gram tree" in said) == (other == "level")
    assert ("prompts that an interval needs" in said) == (prompts < 12)


@pytest.mark.parametrize(
    "words", [["race", "generate"], ["texts", "n-gram tree"], ["price"]], ids=["race", "texts", "price"]
)
def test_a_model_that_cannot_be_loaded_ends_the_command_before_its_first_cell(words, monkeypatch, tmp_path, capsys):
    def out_of_reach(*_):
        raise OSError("no/model: the hub does not give it")

    for module in MEASURING:
        monkeypatch.setattr(module, "loaded", out_of_reach)
    monkeypatch.setattr(sys, "argv", ["study", *words, "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit):
        command.main()
    assert "error: no/model: the hub does not give it" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_record_ends_with_a_word(monkeypatch, capsys):
    table = pd.DataFrame({"block": ["a", "a", "b"], "status": ["ok", "failed", "ok"], "error": ["", "why", ""]})
    recorded = []
    plans = []

    def recording(name, *, plan, **_):
        recorded.append(name)
        plans.append(plan)
        return table.assign(cell="race")

    monkeypatch.setattr(experiments, "record", recording)
    monkeypatch.setattr(sys, "argv", ["study", "record", "race", "texts"])
    with pytest.raises(SystemExit, match="race failed: why"):
        command.main()
    assert capsys.readouterr().out == "race: 2 blocks, 1 failures\ntexts: 2 blocks, 1 failures\n"
    monkeypatch.setattr(sys, "argv", ["study", "record", "race", "tests"])
    with pytest.raises(SystemExit):
        command.main()
    assert plans == ["", ""]  # no claim hangs on either
    monkeypatch.setattr(sys, "argv", ["study", "record", "ptd"])
    with pytest.raises(SystemExit):
        command.main()
    assert plans[-1] == claims.plan_of("ptd") != ""  # each block says by which tests it will be judged
    assert recorded == ["race", "texts", "ptd"]  # a name that is none is found before the first hour is spent


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("rase", "generate"), "invalid choice: 'rase'"),
        (("texts", "n-gram tree", "--dtype", "bfloat16"), "unrecognized arguments: --dtype bfloat16"),
        (("record", "ptd", "salf_rules", "--prompts", "rag-10"), "rag-10 is no prompt of salf_rules"),
        (("race", "generate", "--promts", "own:1"), "unrecognized arguments: --promts own:1"),
        (("race", "generate", "--tokens", "0"), "argument --tokens: '0' is no whole number of at least 1"),
        (("race", "generate", "--tokens", "many"), "argument --tokens: 'many' is no whole number"),
        (("race", "generate", "--repetitions", "-1"), "argument --repetitions: '-1' is no whole number"),
        (("race", "generate", "--workers", "1.5"), "argument --workers: '1.5' is no whole number"),
        (("race", "generate", "--workers", "2", "--dtype", "float32"), "--workers 2: seconds are measured"),
        (
            ("record", "race", "--workers", "2"),
            "--workers 2: seconds are measured, for which a machine has to be alone",
        ),
        (("price", "--prefix", "0"), "argument --prefix: '0' is no whole number"),
        (
            ("race", "generate", "--temperature", "inf"),
            "temperature must be at least 0 (0 is greedy) and finite, got inf",
        ),
        (
            ("race", "generate", "--temperature", "nan"),
            "temperature must be at least 0 (0 is greedy) and finite, got nan",
        ),
        (
            ("race", "generate", "--temperature", "-1"),
            "temperature must be at least 0 (0 is greedy) and finite, got -1",
        ),
        (("race", "generate", "--prompts", "own:-4"), "'own:-4': behind the colon stands how many prompts"),
        (("race", "generate", "--prompts", "own:many"), "'own:many': behind the colon stands how many prompts"),
        (("record", "race", "--prompts", "own:-4"), "'own:-4': behind the colon stands how many prompts"),
        (("race", "generate", "--pair", "no/such/folder"), "unknown pair 'no/such/folder': known are smollm2-135m"),
        (("race", "generate", "--pair", "./folder"), "unknown pair './folder': known are smollm2-135m"),
        (("race", "magic"), "unknown method 'magic'"),
        (("race", "pair-chain-5"), "smollm2-135m has no draft model of its own"),
        (("race", "vdm-chain-5 iid"), "draws its tree: that needs a race at a --temperature above 0"),
        (("race", "generate", "generate"), "'generate' stands twice"),
        (("race", "generate", "--prompts", "nowhere"), "has the prompt 'nowhere'"),
        (("race", "generate", "--pair", "magic"), "unknown pair 'magic': known are smollm2-135m, pythia-2.8b"),
        (("race", "generate", "--dtype", "int3"), "unknown dtype 'int3'"),
        (("race", "generate", "--dtype", "float64", "--packed"), "a CPU with kernels for packed weights of float64"),
        (("price", "medusae"), "no trained head 'medusae'"),
        (("record", "rase"), "unknown experiment 'rase': known are race"),
    ],
)
def test_wrong_words_are_refused_before_anything_is_loaded(words, message, monkeypatch, tmp_path, capsys):
    for module in MEASURING:
        monkeypatch.setattr(module, "loaded", lambda *_: pytest.fail("a model was loaded"))
    out = () if words[0] == "record" else ("--out", str(tmp_path / "out"))
    monkeypatch.setattr(sys, "argv", ["study", *words, *out])
    with pytest.raises(SystemExit):
        command.main()
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


# ---- any model, in a folder -----------------------------------------------------------------------------------


@pytest.fixture
def tiny_lab(monkeypatch, tmp_path):
    """The command line in an empty folder that holds a tiny model, ./tiny, and no more."""
    monkeypatch.chdir(tmp_path)
    save_tiny()
    forget()
    return study(monkeypatch)


def save_tiny(seed: int = 0, folder: str = "tiny", **changes) -> None:
    made = tokenizer(template=TEMPLATE)
    sizes = {"vocab_size": len(made), "max_position_embeddings": 2048, **changes}
    llama(seed, **sizes).save_pretrained(folder)
    made.save_pretrained(folder)


def forget() -> None:
    """A new process has nothing loaded."""
    for cached in (loading._loaded, loading._draft_model, loading.assistant, loading.machine):
        cached.cache_clear()
    race.WARM.clear()


TINY = ("--pair", "tiny", "--tokens", "6")
QUICKLY = ("--prompts", "translation:1", "--dtype", "float32")


def blocks(file: str) -> list[dict]:
    """What each recorded block says of itself; the lines of its rows are left out."""
    lines = [json.loads(line) for line in Path(file).read_text("utf-8").splitlines()]
    return [line for line in lines if "cell" in line]


@pytest.mark.parametrize("out", ["mine", "mine.jsonl"])
def test_out_may_be_spelt_with_its_suffix(out, tiny_lab):
    tiny_lab("race", "undrafted", "n-gram tree", *TINY, *QUICKLY, "--out", out)
    assert [path.name for path in Path().glob("*.jsonl")] == ["mine.jsonl"]


def test_texts_in_a_file_that_holds_a_race_are_counted(tiny_lab, capsys):
    tiny_lab("race", "generate", "ptd", *TINY, *QUICKLY, "--out", "x")
    capsys.readouterr()
    tiny_lab("texts", "ptd", *TINY, "--prompts", "translation:1", "--out", "x")
    assert capsys.readouterr().out == "ptd: 1 of 1 texts are those of generate, 0 but for a near tie\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"tokens": 5}\n', "line 1 is no recorded block: it lacks 'block', 'cell', 'settings'"),
        ("[1, 2]\n", "line 1 is no recorded block: it is a list, no JSON object"),
        ("RECORDED\nhello\n", "line 4 is no recorded block: Expecting value"),
        ("RECORDED\nROWS\n", "line 6 is no recorded block: its columns are not those of the row above"),
        ("my notes", "line 1 is no recorded block: record into another file (--out)"),
    ],
)
def test_a_file_of_another_shape_is_named_and_left_as_it_is(content, message, tiny_lab, capsys):
    words = ["race", "undrafted", "n-gram tree", *TINY, *QUICKLY]
    tiny_lab(*words, "--out", "good")
    recorded = Path("good.jsonl").read_text("utf-8").strip()
    block, first, second = recorded.splitlines()
    odd = {name: value for name, value in json.loads(second).items() if name != "tokens"}
    content = content.replace("RECORDED", recorded).replace("ROWS", "\n".join([block, first, json.dumps(odd)]))
    Path("other.jsonl").write_text(content, "utf-8")
    with pytest.raises(SystemExit) as end:
        tiny_lab(*words, "--out", "other.jsonl")
    assert end.value.code == 2
    assert f"error: other.jsonl, {message}" in capsys.readouterr().err
    assert Path("other.jsonl").read_text("utf-8") == content


def test_a_torn_line_is_no_other_shape(tiny_lab):
    """What a kill leaves is cut off, and the command goes on."""
    words = ["race", "undrafted", "n-gram tree", *TINY, *QUICKLY, "--out", "x"]
    tiny_lab(*words)
    whole = Path("x.jsonl").read_text("utf-8")
    lines = whole.splitlines(keepends=True)
    for torn in (whole[:3], whole[:90], lines[0], lines[0] + lines[1], lines[0] + lines[1] + lines[2][:20]):
        Path("x.jsonl").write_text(whole + torn, "utf-8")
        tiny_lab(*words)
        assert Path("x.jsonl").read_text("utf-8") == whole


@pytest.mark.parametrize("words", [["race", "generate", "auto"], ["race", "assistant"], ["price", "edd"]])
def test_what_does_not_fit_the_pair_is_told_before_anything_is_measured(words, tiny_lab, monkeypatch, capsys):
    for module, name in ((race, "timed"), (loading, "measured"), (forwards, "curves")):
        monkeypatch.setattr(module, name, lambda *_, **__: pytest.fail("something was measured"))
    with pytest.raises(SystemExit):
        tiny_lab(*words, "--pair", "tiny", "--out", "x")
    assert "trained for a target with fingerprint" in capsys.readouterr().err
    assert not list(Path().glob("*.jsonl"))


def test_what_is_said_to_need_no_head_races_with_any_pair(tiny_lab, monkeypatch):
    methods = ["generate", "n-gram tree", "ptd", "prompt lookup"]
    tiny_lab("race", *methods, *TINY, *QUICKLY, "--out", "x")
    assert record.load("x.jsonl")["status"].tolist() == ["ok"] * 4
    monkeypatch.setitem(models.PAIRS, "both", ("tiny", "tiny"))
    tiny_lab("race", "generate", "pair-auto", "--pair", "both", "--tokens", "6", *QUICKLY, "--out", "y")
    assert record.load("y.jsonl")["status"].tolist() == ["ok"] * 2


@pytest.mark.parametrize("words", [["race", "undrafted", "n-gram tree"], ["texts", "n-gram tree"], ["price"]])
def test_a_changed_target_in_the_same_folder_is_measured_again(words, tiny_lab):
    words = [*words, "--pair", "tiny", "--out", "x"]
    if words[0] != "price":
        words += ["--tokens", "6", "--prompts", "translation:1"]
    for seed, count in ((0, 1), (0, 1), (1, 2), (0, 2)):  # the same model once more is the same
        save_tiny(seed)
        forget()
        tiny_lab(*words)
        assert len(blocks("x.jsonl")) == count
    assert [list(line["heads"]) for line in blocks("x.jsonl")] == [["target tiny"]] * 2
    assert len({line["heads"]["target tiny"] for line in blocks("x.jsonl")}) == 2


def test_prices_of_a_model_of_bytes_with_a_short_context(tiny_lab, capsys):
    save_tiny(max_position_embeddings=100)
    forget()
    tiny_lab("price", "--pair", "tiny", "--repetitions", "1", "--out", "x")
    assert blocks("x.jsonl")[0]["settings"]["prefix"] == 99
    assert "nodes, ms" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        tiny_lab("price", "--pair", "tiny", "--prefix", "300", "--out", "y")
    assert "tiny has a context of 100: measure behind 99 tokens at most, got 300" in capsys.readouterr().err
    assert not Path("y.jsonl").exists()


# ---- the machine's fastest setting ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "dtype", "packed"),
    [
        ([], "bfloat16", True),
        (["--no-packed"], "bfloat16", False),
        (["--packed"], "bfloat16", True),
        (["--dtype", "float32"], "float32", False),
        (["--dtype", "float32", "--packed"], "float32", True),
    ],
)
@pytest.mark.parametrize(
    "what", [["race", "undrafted", "n-gram tree", "--tokens", "6", "--prompts", "rag:1"], ["price"]]
)
def test_the_fastest_setting_is_used_unless_another_is_asked_for(what, words, dtype, packed, tiny_lab, monkeypatch):
    """It is load_pair's choice, here of a machine that packs both dtypes, and it stands in what is recorded."""
    plain, asked = loading.loaded, []
    monkeypatch.setattr(models.pairs, "fastest_dtype", lambda where: ("bfloat16", True))
    monkeypatch.setattr(models.packing, "possible", lambda dtype=None: True)
    for module in MEASURING:
        monkeypatch.setattr(module, "loaded", lambda *setting: asked.append(setting) or plain("tiny"))
    tiny_lab(*what, "--pair", "tiny", "--out", "x", *words)
    line = blocks("x.jsonl")[0]
    assert (line["settings"]["dtype"], line["settings"]["packed"]) == (dtype, packed)
    assert set(asked) == {("tiny", dtype, packed)}


@pytest.mark.parametrize("quantised", [False, True])
def test_a_quantised_model_is_not_packed(quantised, tiny_lab, monkeypatch):
    monkeypatch.setattr(models.pairs, "fastest_dtype", lambda where: ("bfloat16", True))
    if quantised:
        config = json.loads(Path("tiny/config.json").read_text("utf-8"))
        Path("tiny/config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "torchao"}}))
    chosen = commands.dtype_and_packing(Namespace(pair="tiny", dtype=None, packed=None))
    assert chosen == {"dtype": "bfloat16", "packed": not quantised}
    assert commands.dtype_and_packing(Namespace(pair=models.EMBEDDED, dtype=None, packed=None))["packed"]


def test_texts_stay_those_of_float32(tiny_lab, monkeypatch):
    monkeypatch.setattr(models.pairs, "fastest_dtype", lambda where: pytest.fail("the fastest setting was asked for"))
    tiny_lab("texts", "n-gram tree", *TINY, "--prompts", "rag:1", "--out", "x")
    assert blocks("x.jsonl")[0]["settings"]["dtype"] == "float32"


# ---- Ctrl-C ---------------------------------------------------------------------------------------------------


def test_an_interrupted_race_says_what_is_kept_and_goes_on(tiny_lab, monkeypatch, capsys):
    words = ["race", "undrafted", "n-gram tree", *TINY, "--prompts", "own:1", "--dtype", "float32", "--out", "x"]
    plain = race.timed
    prompts = []

    def stopped(name, ids, *rest, **settings):
        prompts.append(tuple(ids))
        if len(set(prompts)) == 4:  # the warm-up's, and three of the race
            raise KeyboardInterrupt
        return plain(name, ids, *rest, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(race, "timed", stopped)
        with pytest.raises(SystemExit) as end:
            tiny_lab(*words)
    assert end.value.code == 130
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1] == "interrupted: 2 of 6 blocks recorded in x.jsonl; the same command goes on"
    assert "Traceback" not in "".join(said)
    before = blocks("x.jsonl")
    tiny_lab(*words)
    assert blocks("x.jsonl")[:2] == before
    assert len(blocks("x.jsonl")) == 6


@pytest.mark.parametrize("words", [["texts", "n-gram tree", "--tokens", "6", "--prompts", "rag:1"], ["price"]])
def test_texts_and_prices_are_interrupted_alike(words, tiny_lab, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    for module, name in ((texts, "greedy_text"), (forwards, "curves")):
        monkeypatch.setattr(module, name, stop)
    with pytest.raises(SystemExit) as end:
        tiny_lab(*words, "--pair", "tiny", "--out", "x")
    assert end.value.code == 130
    assert "interrupted: 0 of 1 blocks recorded in x.jsonl; the same command goes on" in capsys.readouterr().err


def test_an_interrupt_before_the_first_block(monkeypatch, capsys):
    def stop(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "list_experiments", stop)
    monkeypatch.setattr(sys, "argv", ["study", "list"])
    with pytest.raises(SystemExit) as end:
        command.main()
    assert end.value.code == 130
    assert capsys.readouterr().err == "\ninterrupted: nothing was being measured; the same command begins again\n"


DRIVER = """
import signal
import sys
from argparse import Namespace
import record_cells
from study import commands, record

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell ignores it in what it runs in the background
    file, log = sys.argv[1:]
    try:
        with commands.executors(Namespace(scheduler=None, workers=2)) as executor:
            record.run("cell", record_cells.endless, record_cells.blocks(log), file, executor=executor)
    except KeyboardInterrupt as stop:
        print(stop)
"""


@pytest.mark.slow
def test_processes_end_with_an_interrupted_command(tmp_path):
    """Ctrl-C reaches all processes of a terminal: the workers say nothing, and none is waited for."""
    driver, log = tmp_path / "driver.py", tmp_path / "log"
    driver.write_text(DRIVER)
    tests = str(Path(__file__).parent.parent)
    line = [sys.executable, str(driver), str(tmp_path / "x.jsonl"), str(log)]
    paths = os.pathsep.join([tests, str(models.files.ROOT)])
    started = subprocess.Popen(
        line, env={**os.environ, "PYTHONPATH": paths}, start_new_session=True, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    for _ in range(1200):
        if log.exists() or started.poll() is not None:
            break
        time.sleep(0.1)
    os.killpg(started.pid, signal.SIGINT)
    said, complaints = started.communicate(timeout=600)
    assert said.strip().endswith(f"of 6 blocks recorded in {tmp_path / 'x.jsonl'}; the same command goes on")
    assert "Traceback" not in complaints

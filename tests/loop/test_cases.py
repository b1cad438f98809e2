"""Inputs that once failed and that no other test holds: what ``generate`` does not hand on, changes between two calls.

The others of their kind stand in test_silent_faults.py, test_public_reports.py and test_changed_models.py.
"""

import runpy

import pytest
import torch
from tiny import generated, llama
from transformers.generation import BaseStreamer

from specnb import verifiers
from specnb.drafters import NgramDrafter
from specnb.hf import speculative
from specnb.models import Graphs, files
from specnb.models.graphs import as_operations
from specnb.target import Target

PROMPT = [7, 8, 9, 7, 8]


# --- captured forwards in a callable that outlives a change of the model


def assigned(model) -> None:
    model.load_state_dict(llama(3).state_dict(), assign=True)


def adapted(model) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    settings = {"target_modules": ["q_proj", "v_proj", "down_proj"], "lora_alpha": 32, "init_lora_weights": False}
    peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings)).eval()


@pytest.mark.parametrize("change", [assigned, adapted], ids=lambda change: change.__name__)
def test_one_callable_for_generate_follows_a_change_of_its_model(change):
    captured = []

    def capture(call):
        captured.append(call)
        return as_operations(call)

    model = llama()
    graphs = Graphs(model, capacity=64, sizes=(8,), capture=capture)
    through = speculative(NgramDrafter(), verifiers.by_draw, forwards=graphs, check=False)
    before = generated(model, PROMPT, 12)
    assert generated(model, PROMPT, 12, custom_generate=through) == before
    assert captured  # control: what is replayed was captured before the change
    change(model)
    right = generated(model, PROMPT, 12)
    assert right != before  # control: the change moves the text
    assert generated(model, PROMPT, 12, custom_generate=through) == right
    assert not graphs.failed


# --- streamers


class Counted(BaseStreamer):
    def __init__(self):
        self.texts = 0
        self.ends = 0

    def put(self, value):
        self.texts += 1

    def end(self):
        self.ends += 1


def test_a_streamer_given_to_generate_is_never_ended_and_the_page_says_so():
    """It cannot be seen from inside: should ``generate`` hand it on one day, page and docstring have to change."""
    model, ours = llama(), Counted()
    generated(model, PROMPT, 6, custom_generate=speculative(NgramDrafter(), verifiers.by_draw, streamer=ours))
    assert ours.ends == 1  # control: the right place
    lost = Counted()
    generated(model, PROMPT, 6, streamer=lost, custom_generate=speculative(NgramDrafter(), verifiers.by_draw))
    assert lost.ends == 0
    page = " ".join((files.ROOT / "docs" / "own_model.md").read_text(encoding="utf-8").split())
    assert "one that is given to `generate` itself is not handed on to us, and whoever reads from it waits for" in page
    assert "give a streamer here" in " ".join(speculative.__doc__.split())


# --- numbers in a message


class Off(Target):
    """Logits of trees off by a share of the largest."""

    def forward(self, tree):
        scores = super().forward(tree)
        return type(scores)(scores.logits + 0.002 * scores.logits.abs().max(), scores.hidden)


def test_the_self_check_says_how_much_would_be_rounding():
    """In float32 the square root of 1.2e-7, a third of a thousandth: not 0.0%."""
    assert Target(llama()).check() < 3e-4  # control: undisturbed, it passes
    with pytest.raises(ValueError, match=r"differ by 0\.\d\d% of the largest one, 0\.03% would be rounding"):
        Off(llama()).check()
    half = llama().to(torch.bfloat16)
    assert Off(half).check() < 0.0884  # control: what is rounding depends on the dtype


# --- the second edition's names


@pytest.mark.parametrize(("old", "new"), [("lab", "study"), ("training", "training")])
def test_an_old_package_says_in_a_sentence_where_it_went(old, new):
    """Also where specnb is installed without its checkout: that one is needed."""
    path = files.ROOT / "specnb" / f"{old}.py"
    with pytest.raises(ImportError, match=f"specnb.{old} is now the package {new}, in a checkout of specnb") as raised:
        runpy.run_path(str(path), run_name=f"specnb.{old}")
    assert f"`python -m {new}`" in str(raised.value)
    assert "\n" not in str(raised.value)
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert str(ended.value) == str(raised.value)

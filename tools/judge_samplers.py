"""Samplers in the wild: python tools/judge_samplers.py CHECKOUTS --out data/samplers

Judges public samplers by their exact output law (``exact.judge``). CHECKOUTS is a folder that holds git checkouts of
the repositories in ``SAMPLERS``, each under its own name; what is not there is said to be missing. Nothing of theirs is
copied: a file is imported as it is, with empty modules in place of packages that it imports and the sampler does not
use. Writes OUT.csv, and OUT.json with commits, versions and date.
"""

import argparse
import contextlib
import importlib
import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pandas as pd
import torch
from tqdm import tqdm

from specnb.exact import CHAINS, Model, World, conventions, judge, randomness
from specnb.exact.judgement import NOT_JUDGED, Convention, Step
from specnb.growth import Static
from specnb.models import files, provenance
from specnb.sampling import Coins

Load = Callable[[Callable[[str], ModuleType]], Callable]  # module by its dotted name → the sampler


@dataclass(frozen=True)
class Sampler:
    """A public sampler: whose, where it stands, how it is called, what its authors say, and with which arguments."""

    repository: str
    function: str
    load: Load
    convention: Convention
    arguments: str = ""
    claims: str = "lossless"
    absent: tuple[str, ...] = ()  # packages that its file imports and the sampler does not need
    dtype: torch.dtype = torch.float64
    report: str = ""
    folder: str = ""  # of the checkout, if it is not called as the repository is


# --- a whole generation with two models, as a step


class ToyModel:
    """A law behind every text as a language model: logits by the whole text, the root left out.

    Token ids are one higher than the world's, and 0 never comes: some code takes it for an error.
    """

    def __init__(self, law: Model, vocabulary: int, dtype: torch.dtype):
        self.law = law
        self.dtype = dtype
        self.device = torch.device("cpu")
        self.config = SimpleNamespace(vocab_size=1 + vocabulary, max_position_embeddings=64)

    def probabilities(self, tokens) -> torch.Tensor:
        """(n, 1 + V) behind the first 1, 2, … n tokens, of which the first is the root."""
        text = tuple(int(token) - 1 for token in tokens)
        laws = torch.stack([self.law(text[1 : 1 + length]) for length in range(len(text))])
        return torch.nn.functional.pad(laws, (1, 0)).to(self.dtype)

    def __call__(self, input_ids=None, **_) -> SimpleNamespace:
        logits = self.probabilities(input_ids[0]).log()[None]
        return SimpleNamespace(logits=logits, past_key_values=None)


def whole_text(run: Callable, dtype: torch.dtype) -> Callable[[Callable], Step]:
    """A step that is a generation: run(sampler, draft, target, γ, tokens wanted) returns the new tokens."""

    def with_sampler(sampler: Callable) -> Step:
        def step(world: World, shape: Static, coins: Coins) -> tuple[int, ...]:
            length = len(shape.paths)  # of a chain
            draft = ToyModel(world.q, world.vocabulary, dtype)
            target = ToyModel(world.p, world.vocabulary, dtype)
            with randomness(coins), contextlib.redirect_stderr(io.StringIO()):
                tokens = run(sampler, draft, target, length, length + 1)
            return tuple(int(token) - 1 for token in tokens)[: length + 1]

        return step

    return with_sampler


ROOT = torch.tensor([[1]])  # a text of one token


def _feifeibear(sampler, draft, target, gamma, wanted):
    return sampler(ROOT, draft, target, wanted, gamma=gamma)[0, 1:].tolist()


def _romsto(sampler, draft, target, gamma, wanted):
    function, processor = sampler
    tokens, _ = function(
        [1], draft, target, gamma=gamma, logits_processor=processor, max_gen_len=wanted + gamma, eos_tokens_id=99,
        first_target=False,
    )  # fmt: skip
    return tokens


def _jaymody(sampler, draft, target, gamma, wanted):
    def draft_law(text):
        return draft.probabilities(text).numpy()

    def target_law(text):
        return target.probabilities(text).numpy()

    return sampler([1], draft_law, target_law, wanted, gamma)[1:].tolist()


def _gpt_fast(sampler, draft, target, gamma, wanted):
    """One step: the models see the text so far by what they were called with."""
    text = {}

    def as_model(model):
        def forward(x, input_pos):
            for place, token in zip(input_pos.tolist(), x.flatten().tolist(), strict=True):
                text[place] = token
            known = [text[place] for place in range(int(input_pos[-1]) + 1)]
            return model.probabilities(known).log()[None, -len(input_pos) :]

        return forward

    return sampler(as_model(target), as_model(draft), torch.tensor(1), 0, gamma).tolist()


def two_models(name: str, run: Callable, dtype: torch.dtype = torch.float64) -> Convention:
    return Convention(name, whole_text(run, dtype), "a whole generation, with two models", CHAINS)


def _medusa(function: Callable, **options) -> Callable:
    """Medusa's says which candidate and how much of it; the next token is drawn from the target, at temperature 1."""

    def sampler(logits, candidates, _):
        best, accepted = function(logits, candidates, temperature=1.0, **options)
        return best, accepted, logits[int(best), int(accepted)].softmax(-1)

    return sampler


GPT_FAST = Sampler(
    "pytorch-labs/gpt-fast",
    "generate.speculative_decode",
    lambda module: module("generate").speculative_decode,
    two_models("gpt-fast", _gpt_fast),
    "temperature 1",
    absent=("sentencepiece", "model", "tokenizer"),
)
SAMPLERS = (
    Sampler(
        "huggingface/transformers",
        "generation.utils._speculative_sampling",
        lambda module: module("transformers.generation.utils")._speculative_sampling,
        conventions.TRANSFORMERS,
    ),
    Sampler(
        "jaymody/speculative-sampling",
        "main.speculative_sampling",
        lambda module: module("main").speculative_sampling,
        two_models("jaymody", _jaymody),
        absent=("gpt2", "utils"),
        report="#9",
    ),
    Sampler(
        "romsto/Speculative-Decoding",
        "sampling.speculative_decoding.speculative_generate",
        lambda module: (
            module("sampling.speculative_decoding").speculative_generate,
            module("utils.logits_processor").MultinomialProcessor(1.0),
        ),
        two_models("romsto", _romsto, torch.float32),
        "temperature 1, first_target=False",
        absent=("rich", "termcolor"),
        dtype=torch.float32,
    ),
    Sampler(
        "feifeibear/LLMSpeculativeSampling",
        "sampling.speculative_sampling.speculative_sampling_v2",
        lambda module: module("sampling.speculative_sampling").speculative_sampling_v2,
        two_models("feifeibear", _feifeibear),
        "temperature 1",
        absent=("globals",),
    ),
    GPT_FAST,
    replace(GPT_FAST, arguments="temperature 1, the last commit before batches", folder="gpt-fast-before-batches"),
    Sampler(
        "SafeAILab/EAGLE",
        "eagle.model.utils.evaluate_posterior",
        lambda module: module("eagle.model.utils").evaluate_posterior,
        conventions.POSTERIOR,
        "temperature 1, the draft's two likeliest tokens",
    ),
    Sampler(
        "FasterDecoding/Medusa",
        "medusa.model.utils.evaluate_posterior",
        lambda module: _medusa(module("medusa.model.utils").evaluate_posterior, sampling="nucleus", top_p=1.0),
        conventions.POSTERIOR,
        "sampling='nucleus', top_p=1, temperature 1",
        claims="not said",
    ),
    Sampler(
        "FasterDecoding/Medusa",
        "medusa.model.utils.evaluate_posterior",
        lambda module: _medusa(module("medusa.model.utils").evaluate_posterior, sampling="typical"),
        conventions.POSTERIOR,
        "sampling='typical', temperature 1",
        claims="lossy by design",
    ),
)


# --- their files


@contextmanager
def importing(folder: Path | None, absent: tuple[str, ...]) -> Iterator[Callable[[str], ModuleType]]:
    """Imports modules of a checkout; whatever it left in sys.modules and sys.path is gone afterwards."""
    path = list(sys.path)
    before = set(sys.modules)
    if folder is not None:
        sys.path.insert(0, str(folder))
    for name in absent:
        sys.modules[name] = MagicMock()
    try:
        yield importlib.import_module
    finally:
        sys.path[:] = path
        if folder is not None:
            for name in set(sys.modules) - before:
                origin = getattr(sys.modules[name], "__file__", None) or ""
                if name in absent or str(origin).startswith(str(folder)):
                    del sys.modules[name]


def commit_of(folder: Path) -> str:
    done = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def judged(sampler: Sampler, checkouts: Path) -> dict[str, object]:
    """A row of the table."""
    name = sampler.folder or sampler.repository.partition("/")[2]
    row = {
        "repository": sampler.repository,
        "function": sampler.function,
        "arguments": sampler.arguments,
        "claims": sampler.claims,
        "report": sampler.report,
    }
    folder = None if name == "transformers" else (checkouts / name).resolve()
    if folder is not None and not folder.is_dir():
        return {**row, "commit": "", "verdict": "missing", "why": f"no checkout {name}"}
    if folder is None:
        commit = importlib.import_module("transformers").__version__
    else:
        commit = commit_of(folder)
    row["commit"] = commit
    try:
        with importing(folder, sampler.absent) as module:
            function = sampler.load(module)
            by_design = sampler.claims == "lossy by design"
            found = judge(function, sampler.convention, dtype=sampler.dtype, by_design=by_design)
    except Exception as error:  # of their code, whatever it is: it is told
        return {**row, "verdict": NOT_JUDGED, "why": f"{type(error).__name__}: {error}".partition("\n")[0]}
    shown = found.counterexample
    row |= {"verdict": found.verdict, "distance": found.distance, "coins": found.scripts, "why": found.reason}
    if shown is not None:
        row["why"] = f"in {shown.world.name!r}, {list(shown.tokens)} has {shown.given:.4f} instead of {shown.right:.4f}"
        print(f"\n{sampler.repository} {sampler.function} {sampler.arguments}\n{found}\n")
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("--out", required=True)
    given = parser.parse_args()
    rows = [judged(sampler, given.checkouts) for sampler in tqdm(SAMPLERS, unit="sampler", disable=files.QUIET)]
    table = pd.DataFrame(rows)
    print(table.drop(columns=["commit"]).to_string())
    provenance.write_table(given.out, table, "python tools/judge_samplers.py CHECKOUTS")


if __name__ == "__main__":
    main()

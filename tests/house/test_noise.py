"""The noise of other processors: it moves every kind of operation, alike each time, and nothing that is exact."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stdout

import nbformat
import noise
import pytest
import torch
import torch.nn.functional as F

from specnb.models import files

pytestmark = pytest.mark.skipif(bool(os.environ.get("SPECNB_NOISE")), reason="noise on noise")
DTYPES = [torch.float64, torch.float32, torch.bfloat16]


def some(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


OPERATIONS = {
    "mm": lambda x: x @ x.T,
    "linear": lambda x: F.linear(x, x, x[:, 0]),
    "bmm": lambda x: torch.bmm(x.view(4, 4, 64), x.view(4, 4, 64).mT),
    "mv": lambda x: x @ x[0],
    "dot": lambda x: torch.dot(x[0], x[1])[None],
    "sum": lambda x: x.sum(-1),
    "mean": lambda x: x.mean(0),
    "sum of all": lambda x: x.sum()[None],
    "logsumexp": lambda x: torch.logsumexp(x, -1),
    "norm": lambda x: x.norm(dim=-1),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, (64,)),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 8, 64)] * 3),
}


def under(seed: int, function, *args):
    with noise.Noise(seed):
        return function(*args)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATIONS)
def test_two_seeds_differ_in_bits_and_hardly_in_value(name, dtype):
    function, x = OPERATIONS[name], some(16, 64, dtype=dtype)
    plain = function(x)
    results = [under(seed, function, x) for seed in range(1, 9)]
    assert len({tuple(result.flatten().tolist()) for result in results}) > 1
    for result in results:
        # Eight units in the last place of the largest, since terms cancel in the smallest.
        assert (result - plain).abs().max() <= 8 * torch.finfo(dtype).eps * plain.abs().max()


@pytest.mark.parametrize("name", OPERATIONS)
def test_noise_is_the_same_each_time(name):
    function, x = OPERATIONS[name], some(16, 64)
    first, again = (under(1, function, x) for _ in range(2))
    assert torch.equal(first, again)


def test_one_row_and_sixteen_get_another_noise():
    a, b = some(16, 64), some(64, 64)
    assert not torch.equal(under(1, torch.mm, a, b)[:1], under(1, torch.mm, a[:1], b))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_every_processor_computes_exactly_stays_exact(dtype):
    whole = torch.randint(-1, 2, (16, 8), generator=torch.Generator().manual_seed(0)).to(dtype)
    assert torch.equal(under(1, torch.mm, whole, whole.T), whole @ whole.T)
    assert torch.equal(under(1, torch.sum, whole, -1), whole.sum(-1))
    equal = torch.zeros(5, 4, dtype=dtype)
    assert torch.equal(under(1, torch.softmax, equal, -1), torch.full_like(equal, 0.25))


def test_random_numbers_are_not_touched():
    state = torch.get_rng_state()
    under(1, OPERATIONS["mm"], some(16, 64))
    assert torch.equal(torch.get_rng_state(), state)


def test_gradients_get_noise_too():
    def gradient(seed: int) -> torch.Tensor:
        x = some(16, 64).requires_grad_()
        with noise.Noise(seed):
            (x @ x.T).square().sum().backward()
        return x.grad

    assert not torch.equal(gradient(1), gradient(2))


BITS = "import torch\nx = torch.arange(1.0, 4097.0).view(64, 64).sin()\nprint((x @ x).softmax(-1).sum(0).tolist())"


def pytest_on(path, seed: str, *options: str) -> str:
    """What pytest says of a file outside the repository, in a process of its own with the repository's settings."""
    command = [sys.executable, "-m", "pytest", "-rs", "-p", "no:cacheprovider", *options]
    command += ["-c", str(files.ROOT / "pyproject.toml"), str(files.ROOT / "conftest.py"), str(path)]
    environment = os.environ | {"SPECNB_NOISE": seed}
    run = subprocess.run(command, cwd=files.ROOT, env=environment, capture_output=True, text=True, check=False)
    return run.stdout


def checked(path, output: str, seed: str, reason: str | None = None) -> str:
    """What nbval says of a notebook with one cell that prints all digits of some sums, saved with an output."""
    cell = nbformat.v4.new_code_cell(BITS, execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    if reason:
        cell.metadata["bits"] = reason
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    return pytest_on(path, seed, "--nbval", "--nbval-current-env")


@pytest.mark.slow
def test_kernels_get_noise_and_cells_about_bits_are_not_compared(tmp_path):
    """Run as saved it passes; under noise it fails, unless the cell says that it is about bits."""
    said = io.StringIO()
    with redirect_stdout(said):
        exec(BITS, {})
    path, right = tmp_path / "bits.ipynb", said.getvalue()
    assert "1 passed" in checked(path, right, "")
    assert "1 failed" in checked(path, right, "1")
    assert "1 passed" in checked(path, right, "1", "its sums are printed to the last digit")
    assert "1 failed" in checked(path, "other", "", "a reason counts under noise only")


@pytest.mark.slow
def test_tests_about_bits_are_skipped_with_their_reason(tmp_path):
    path = tmp_path / "test_bits.py"
    path.write_text("import pytest\n\n\n@pytest.mark.bits('its subject')\ndef test_bits():\n    assert True\n")
    assert "1 passed" in pytest_on(path, "")
    said = pytest_on(path, "1")
    assert "1 skipped" in said
    assert "under noise: its subject" in said

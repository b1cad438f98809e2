"""A check of a model before its texts are trusted: does it score trees as it scores their paths?

``check`` compares three things:
- the logits of random trees with those of plain forwards over the trees' paths;
- the cache after a commit with a plain forward over the same tokens: a second tree is scored after the first one;
- our loop with the model's own ``generate``, which may add something of its own (soft prompts, a cache that rounds).
``check_once`` runs it automatically when a model is loaded or first used, and keeps the result. SPECNB_CHECK=0 in the
environment turns that off.
"""

import copy
import hashlib
import inspect
import json
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedModel
from transformers.utils import logging as hf_logging

from specnb import cache_dir
from specnb.target import Target, call_options, device_of, evaluating
from specnb.tree import TokenTree

FORKS = ([-1, 0, 0, 1, 1, 2, 3, 3], [-1, 0, 1, 0, 3, 4])  # parents of the nodes of two trees
LONGEST = 512  # check_once tests attention windows up to this number of tokens; longer ones would take too long
KNOWN = {"transformers", "torch", "peft", "specnb"}  # packages whose version number identifies their code
WRITTEN = 4  # number of tokens that generate writes
CHECKED: WeakKeyDictionary = WeakKeyDictionary()  # model of this process → its ``_look`` when it passed the check


def windows(model: PreTrainedModel) -> list[int]:
    """Return all numbers of a text configuration that may be an attention window, whether or not a layer applies it."""
    settings = model.config.get_text_config().to_dict()
    values = [value for name, value in settings.items() if "window" in name or "chunk_size" in name]
    return sorted({size for size in values if isinstance(size, int) and not isinstance(size, bool) and size > 0})


def check(target: Target, *, seed: int = 0, longest: int | None = None) -> float:
    """Return the largest error of a logit in the three comparisons, as a share of the largest logit.

    target: its cache is overwritten. It must not serve a generation meanwhile; afterwards call ``prefill`` first.
    seed: decides the random tokens.
    longest: each attention window up to this number of tokens is tested by a prefix that is longer than the window, if
        the context has room for it; None for all windows. A short prefix is always tested.
    Raises ValueError if the error is NaN or more than rounding (the square root of the dtype's epsilon), and if a
    forward over a tree fails where a plain forward does not.
    """
    model = target.model
    draws = torch.Generator("cpu").manual_seed(seed)
    most = target.context - 8  # the paths of two trees, and the tokens of generate, must fit after the prefix
    if most < 1:
        return 0.0
    lengths = {min(3, most)}
    for size in windows(model):
        if longest is None or size <= longest:
            lengths.add(min(size + 5, most))
    worst = 0.0
    for length in sorted(lengths):
        text = torch.randint(target.vocabulary, (length,), generator=draws, device="cpu").tolist()
        plain_logits(model, text, 1)  # called for the errors that it may raise: they are not caused by trees
        try:
            errors = [*_on_trees(target, text, draws), _against_generate(target, text)]
        except (RuntimeError, IndexError, AttributeError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]
            raise ValueError(
                f"{_kind(model)} cannot score a tree with the cache and masks given to it: {reason}"
            ) from error
        worst = max(worst, *errors)
    return worst


def plain_logits(model: PreTrainedModel, text: list[int], count: int) -> Tensor:
    """Return (count, V) float32 logits after each of the last count tokens of a text, by one ordinary forward."""
    ids = torch.tensor([text], device=device_of(model))
    with torch.no_grad(), evaluating(model):
        return model(ids, **call_options(model, logits_to_keep=count)).logits[0, -count:].float()


def _on_trees(target: Target, text: list[int], draws: torch.Generator) -> Iterator[float]:
    """Yield the error on each path of random trees. Each tree follows the committed path of the one before it."""
    text = list(text)
    target.prefill(text)
    for parents in FORKS:
        tokens = torch.randint(target.vocabulary, (len(parents),), generator=draws, device="cpu")
        tree = TokenTree(tokens, torch.tensor(parents, device="cpu"))
        logits = target.forward(tree).logits.float()
        for leaf in tree.leaves:
            path = [0, *tree.path(leaf)]
            plain = plain_logits(target.model, [*text, *tree.tokens[path].tolist()], len(path))
            yield _error(target.model, logits[path], plain, "scores a tree unlike the tree's paths")
        target.commit(path[1:])  # the path of the last leaf
        text += tree.tokens[path].tolist()


def _against_generate(target: Target, text: list[int]) -> float:
    """Return the error of our logits against those of the model's own ``generate``, for a few greedy tokens."""
    model = target.model
    plain = copy.copy(model)  # the same weights, with a default generation config
    plain.generation_config = GenerationConfig()
    ids = torch.tensor([text], device=device_of(model))
    options = {"attention_mask": torch.ones_like(ids), "do_sample": False, "num_beams": 1, "pad_token_id": 0}
    verbosity = hf_logging.get_verbosity()
    hf_logging.set_verbosity_error()
    try:
        with torch.no_grad(), evaluating(model):
            out = plain.generate(
                ids, **options, max_new_tokens=WRITTEN, output_logits=True, return_dict_in_generate=True
            )
    finally:
        hf_logging.set_verbosity(verbosity)
    written = out.sequences[0, len(text) :].tolist()
    theirs = torch.cat(out.logits).float()  # (written, V)
    target.prefill(text[:-1])
    ours = []
    for token in [text[-1], *written][: len(theirs)]:
        ours.append(target.forward(TokenTree([token], [-1])).logits.float())
        target.commit([])
    return _error(model, torch.cat(ours), theirs, "is scored by its own generate unlike by a plain forward")


def _error(model: PreTrainedModel, ours: Tensor, right: Tensor, what: str) -> float:
    """Return the largest error as a share of the largest logit; ValueError if it is more than rounding.

    ours, right: logits of the same shape. what: the end of the error's sentence.
    """
    error = float((ours - right).abs().max() / right.abs().max())
    allowed = torch.finfo(model.dtype).eps ** 0.5
    if not error <= allowed:
        raise ValueError(
            f"{_kind(model)} {what}: logits differ by {error:.2%} of the largest one, {allowed:.2%} would be rounding"
        )
    return error


def _kind(model: PreTrainedModel) -> str:
    return f"a {model.config.model_type} model ({type(model).__name__})"


# --- the automatic check


def check_once(model: PreTrainedModel) -> None:
    """Run ``check`` with windows up to LONGEST, unless this model has passed it before; silent if it passes.

    A check that fails in half precision is repeated in float32, and the model is refused only if it fails there, too.
    A passed check is remembered in this process for the model, and on disk under the model's ``identity``. A warning
    names longer windows, which are not checked.
    """
    if os.environ.get("SPECNB_CHECK") == "0":
        return
    look = _look(model)
    if CHECKED.get(model) == look:
        return
    record = None  # the file that says that the model has passed
    if _is_transformers(model):
        record = cache_dir() / "checked" / f"{identity(model)}.json"
    if record is None or not _exists(record):
        _check_in_any_dtype(model)
        _keep(record, model)
    CHECKED[model] = look
    longer = [size for size in windows(model) if size > LONGEST and size < Target(model).context]
    if longer:
        warnings.warn(
            f"{_kind(model)}: texts longer than its window of {max(longer)} tokens are not checked by themselves; "
            f"Target(model).check() does it",
            stacklevel=3,
        )


def _check_in_any_dtype(model: PreTrainedModel) -> None:
    """Run the check; if it fails in half precision, a second one in float32 decides."""
    try:
        check(Target(model), longest=LONGEST)
    except ValueError as error:
        if model.dtype.itemsize >= 4:
            raise
        with _in_float32(model):
            check(Target(model), longest=LONGEST)
        warnings.warn(f"{error}. In float32 it is exact, so this is rounding", stacklevel=4)


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Convert this model to float32 within a with block; afterwards its tensors are the old ones again.

    A copy would not do: it might lack what was put into this model, such as hooks or adapters.
    """
    tensors = [tensor for tensor in (*model.parameters(), *model.buffers()) if tensor.is_floating_point()]
    originals = [tensor.data for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.data = tensor.data.float()
        yield
    finally:
        for tensor, original in zip(tensors, originals, strict=True):
            tensor.data = original


def _exists(path: Path) -> bool:
    """Return whether a file exists; False if that cannot be found out."""
    try:
        return path.exists()
    except OSError:  # a folder without permission, or a name that is too long
        return False


def _keep(path: Path | None, model: PreTrainedModel) -> None:
    """Write a file that says that a model has passed. If it cannot be written, the next process checks again."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"model": type(model).__name__, "dtype": str(model.dtype)}), encoding="utf-8")
    except OSError as error:
        warnings.warn(f"the result of the self-check is not kept: {error}", stacklevel=4)


def _is_transformers(model: PreTrainedModel) -> bool:
    """Return whether a model runs code of KNOWN packages only; other code may change between two processes."""
    packages = {type(module).__module__.partition(".")[0] for module in (model, *model.modules())}
    replaced = vars(model).get("prepare_inputs_for_generation")  # set on the model itself, as for soft prompts
    return packages <= KNOWN and replaced is None and not _hooks(model)


def _hooks(model: PreTrainedModel) -> list:
    """Return the hooks and replaced forwards of all modules of a model."""
    hooks = []
    for module in model.modules():
        hooks += around(module)
    return hooks


def around(module: nn.Module) -> list:
    """Return what was put around a module's forward: its hooks, and a forward that was set on the instance."""
    hooks = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if "forward" in vars(module):
        hooks.append(vars(module)["forward"])
    return hooks


def _look(model: PreTrainedModel) -> tuple:
    """Return a value that changes when a model gets other layers, adapters, a soft prompt or another dtype; cheap."""
    layers = tuple(type(module) for module in model.modules())
    prepare = inspect.unwrap(model.prepare_inputs_for_generation)
    name = getattr(prepare, "__qualname__", repr(prepare))
    return layers, model.dtype, str(device_of(model)), name, tuple(map(id, _hooks(model)))


def identity(model: PreTrainedModel) -> str:
    """Return a hash of a model's class, configurations, device, versions and up to 16 numbers of each tensor."""
    digest = hashlib.sha256()
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    versions = [version(name) for name in ("specnb", "torch", "transformers")]
    layers = [type(module).__qualname__ for module in model.modules()]
    facts = [
        config,
        model.generation_config.to_dict(),
        versions,
        layers,
        str(device_of(model)),
        type(model).__qualname__,
        model.config.get_text_config()._attn_implementation,
    ]
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue  # packed weights of dynamic quantisation
        step = max(1, tensor.numel() // 16)
        sample = tensor.flatten()[::step][:16]  # evenly spaced
        numbers = sample.float().tolist() if tensor.device.type != "meta" else []
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {numbers}".encode())
    return digest.hexdigest()[:32]

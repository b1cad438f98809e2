"""A model checks itself once, before its texts are trusted: does it score trees as it scores their paths?

``check`` compares three things: the nodes of random trees with plain forwards over their paths; what is committed with
what would have been read; and our loop with the model's own ``generate``, which shows what only ``generate`` adds (soft
prompts, a cache that rounds). ``check_once`` does so by itself where a model is loaded or first used, and keeps the
result. SPECNB_CHECK=0 in the environment turns that off.
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
LONGEST = 512  # windows up to this many tokens are checked without being asked for
KNOWN = {"transformers", "torch", "peft", "specnb"}  # packages whose code is that of their versions
WRITTEN = 4  # tokens that generate writes
CHECKED: WeakKeyDictionary = WeakKeyDictionary()  # models of this process → how they looked when they were checked


def windows(model: PreTrainedModel) -> list[int]:
    """All numbers of a text configuration that may be a window of attention, whether or not a layer applies one."""
    settings = model.config.get_text_config().to_dict()
    found = [value for name, value in settings.items() if "window" in name or "chunk_size" in name]
    return sorted({size for size in found if isinstance(size, int) and not isinstance(size, bool) and size > 0})


def check(target: Target, *, seed: int = 0, longest: int | None = None) -> float:
    """The largest error of a logit on trees, after commits and against ``generate``, as a share of the largest logit.

    target: serves no generation meanwhile, and afterwards has to start with ``prefill``. Trees hang off a short prefix,
    and off one longer than any window up to ``longest`` tokens (None: any) where the context has room for it. Raises
    ValueError if the error is more than rounding (the square root of the dtype's epsilon) or not a number, and if a
    tree's forward fails where plain ones do not.
    """
    model = target.model
    draws = torch.Generator("cpu").manual_seed(seed)
    most = target.context - 8  # two trees, and what generate writes, have to fit behind it
    if most < 1:
        return 0.0
    lengths = {min(3, most)}
    for size in windows(model):
        if longest is None or size <= longest:
            lengths.add(min(size + 5, most))
    worst = 0.0
    for length in sorted(lengths):
        text = torch.randint(target.vocabulary, (length,), generator=draws, device="cpu").tolist()
        plain_logits(model, text, 1)  # raises what is no fault of trees
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
    """(count, V) float32 logits after the last tokens of a text, by one forward without a cache of ours."""
    ids = torch.tensor([text], device=device_of(model))
    with torch.no_grad(), evaluating(model):
        return model(ids, **call_options(model, logits_to_keep=count)).logits[0, -count:].float()


def _on_trees(target: Target, text: list[int], draws: torch.Generator) -> Iterator[float]:
    """Errors on the paths of random trees, each hung off what was committed of the one before it."""
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
        target.commit(path[1:])
        text += tree.tokens[path].tolist()


def _against_generate(target: Target, text: list[int]) -> float:
    """The error of the scores with which the model's own generate writes a few tokens greedily."""
    model = target.model
    plain = copy.copy(model)  # the same weights, without the habits of its generation config
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
    """The largest error as a share of the largest logit; ValueError if that is more than rounding."""
    error = float((ours - right).abs().max() / right.abs().max())
    allowed = torch.finfo(model.dtype).eps ** 0.5
    if not error <= allowed:
        raise ValueError(
            f"{_kind(model)} {what}: logits differ by {error:.2%} of the largest one, {allowed:.2%} would be rounding"
        )
    return error


def _kind(model: PreTrainedModel) -> str:
    return f"a {model.config.model_type} model ({type(model).__name__})"


# --- once by itself


def check_once(model: PreTrainedModel) -> None:
    """``check`` with windows up to LONGEST, unless this model has passed it before; silent if it passes.

    A failure in half precision is repeated in float32 before anything is refused. Passing is kept, in this process by
    the model and on disk by its identity, device and versions. What is not checked is said by a warning.
    """
    if os.environ.get("SPECNB_CHECK") == "0":
        return
    look = _look(model)
    if CHECKED.get(model) == look:
        return
    kept = cache_dir() / "checked" / f"{identity(model)}.json" if _is_transformers(model) else None
    if kept is None or not _exists(kept):
        _check_in_any_dtype(model)
        _keep(kept, model)
    CHECKED[model] = look
    longer = [size for size in windows(model) if size > LONGEST and size < Target(model).context]
    if longer:
        warnings.warn(
            f"{_kind(model)}: texts longer than its window of {max(longer)} tokens are not checked by themselves; "
            f"Target(model).check() does it",
            stacklevel=3,
        )


def _check_in_any_dtype(model: PreTrainedModel) -> None:
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
    """The very model in float32 for a while, with all that was put into it; its tensors come back as they were."""
    tensors = [one for one in (*model.parameters(), *model.buffers()) if one.is_floating_point()]
    kept = [one.data for one in tensors]
    try:
        for one in tensors:
            one.data = one.data.float()
        yield
    finally:
        for one, data in zip(tensors, kept, strict=True):
            one.data = data


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # a folder one may not enter, a name that is too long
        return False


def _keep(path: Path | None, model: PreTrainedModel) -> None:
    """Write down that a model has passed; a folder that cannot be written only means that it is checked again."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"model": type(model).__name__, "dtype": str(model.dtype)}), encoding="utf-8")
    except OSError as error:
        warnings.warn(f"the result of the self-check is not kept: {error}", stacklevel=4)


def _is_transformers(model: PreTrainedModel) -> bool:
    """Whether all that runs is transformers' own code: other code may change between two processes."""
    prepared = vars(model).get("prepare_inputs_for_generation")  # set from outside: soft prompts
    known = all(type(module).__module__.partition(".")[0] in KNOWN for module in (model, *model.modules()))
    return known and prepared is None and not _hooks(model)


def _hooks(model: PreTrainedModel) -> list:
    """What was put around the forwards of a model's modules from outside."""
    found = []
    for module in model.modules():
        found += around(module)
    return found


def around(module: nn.Module) -> list:
    """What was put around a module's forward from outside: hooks, and a forward of its own."""
    found = [*module._forward_hooks.values(), *module._forward_pre_hooks.values()]
    if "forward" in vars(module):
        found.append(vars(module)["forward"])
    return found


def _look(model: PreTrainedModel) -> tuple:
    """What changes where a model is given other layers, adapters, a prompt or another dtype; cheap."""
    layers = tuple(type(module) for module in model.modules())
    prepare = inspect.unwrap(model.prepare_inputs_for_generation)
    name = getattr(prepare, "__qualname__", repr(prepare))
    return layers, model.dtype, str(device_of(model)), name, tuple(map(id, _hooks(model)))


def identity(model: PreTrainedModel) -> str:
    """A hash of a model's class, configurations, device, versions and of a few numbers of each of its tensors."""
    said = hashlib.sha256()
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    names = [version(name) for name in ("specnb", "torch", "transformers")]
    layers = [type(module).__qualname__ for module in model.modules()]
    facts = [config, model.generation_config.to_dict(), names, layers, str(device_of(model)), type(model).__qualname__]
    facts.append(model.config.get_text_config()._attn_implementation)
    said.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        if not isinstance(tensor, Tensor):
            continue  # packed weights of dynamic quantisation
        some = tensor.flatten()[:: max(1, tensor.numel() // 16)][:16]
        numbers = some.float().tolist() if tensor.device.type != "meta" else []
        said.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {numbers}".encode())
    return said.hexdigest()[:32]

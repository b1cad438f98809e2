"""The same loop as ``model.generate(**inputs, custom_generate=speculative(drafter, verifier))``, for transformers."""

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StaticCache,
    StoppingCriteriaList,
)
from transformers.generation import (
    BaseStreamer,
    GenerateDecoderOnlyOutput,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specnb.cache import ARGUMENT
from specnb.decode import Drafter, Verifier, steps
from specnb.sampling import Warp
from specnb.selfcheck import check_once
from specnb.target import Forwards, Target

WARPERS = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}  # in order
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
READ = {"input_ids", "attention_mask", "position_ids", ARGUMENT}  # of the model's inputs, checked one by one
HARMLESS = {
    "use_cache",
    "logits_to_keep",
    "return_dict",
    "cache_position",
    "output_router_logits",
    *OUTPUTS,
}  # change no logit
SHOWN = 5  # of a refused processor's numbers
KINDS = {"token_type_ids", "mm_token_type_ids"}  # of tokens; all zeros: plain text


def speculative(
    drafter: Drafter,
    verifier: Verifier,
    *,
    streamer: BaseStreamer | None = None,
    forwards: Forwards | None = None,
    check: bool = True,
) -> Callable:
    """A ``custom_generate`` callable that decodes with this drafter and verifier.

    Honours the generation config's do_sample, temperature, top_k, top_p, length limits and end tokens, and stopping
    criteria. ``generate`` (transformers 5.23) hands neither its ``streamer=`` nor its ``tokenizer=`` on to a
    custom_generate callable: give a streamer here, and stop strings as a StopStringCriteria. The seed is drawn from
    torch's global generator if do_sample is set, so ``torch.manual_seed`` decides it. forwards: as in ``Target``, of
    the very model that generates. check: let a model check itself at its first use (``selfcheck.check_once``).
    With return_dict_in_generate the output holds the sequences and no cache.

    Raises ValueError for what ``generate`` would honour and this loop does not: batches, beams and other searches,
    padding, model inputs beside the plain text (also those that the model's own prepare_inputs_for_generation adds,
    such as PEFT's soft prompts), caches that are filled, quantised or offloaded, scores, logits, attentions and hidden
    states as outputs, and logits processors other than ``warp_of`` takes: their effect on a tree would not be the one
    they have on a text.
    """

    def custom_generate(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        _check(model, input_ids, generation_config, model_kwargs)
        warp = warp_of(generation_config, logits_processor)
        if check:
            check_once(model)
        ids = input_ids

        def stop(tokens) -> str | None:
            nonlocal ids
            ids = torch.cat([ids, ids.new_tensor([[tokens[-1]]])], dim=1)
            return "stopping criteria" if bool(stopping_criteria(ids, None).all()) else None

        seed = int(torch.randint(2**31, (), device="cpu")) if generation_config.do_sample else 0
        length = generation_config.max_length - input_ids.shape[1]
        options = {"max_new_tokens": length, "seed": seed, "stop": stop, "eos": ()}  # ends are stopping criteria
        target = Target(model, forwards=forwards)
        for step in steps(target, drafter, verifier, input_ids[0].tolist(), **asdict(warp), **options):
            if streamer is not None:
                streamer.put(torch.tensor(step.tokens, device="cpu"))
        return GenerateDecoderOnlyOutput(sequences=ids) if generation_config.return_dict_in_generate else ids

    def streamed(model: PreTrainedModel, input_ids: Tensor, *args, **kwargs):
        """Whoever reads from the streamer is told of the end, also of one by an exception."""
        try:
            streamer.put(input_ids.cpu())
            return custom_generate(model, input_ids, *args, **kwargs)
        finally:
            streamer.end()

    return custom_generate if streamer is None else streamed


def warp_of(config: GenerationConfig, processors: LogitsProcessorList) -> Warp:
    """The Warp that equals a generation config's sampling.

    ValueError unless the processors are temperature, top-k and top-p in this order, once each at most and otherwise as
    ``generate`` makes them (min_tokens_to_keep 1, filter_value -inf): of any other list the law would differ.
    """
    found = {WARPERS[type(p)]: getattr(p, WARPERS[type(p)]) for p in processors if type(p) in WARPERS}
    ours = [warper(found[name]) for warper, name in WARPERS.items() if name in found]
    as_made = len(ours) == len(processors) and all(map(_alike, ours, processors))
    if not as_made:
        given = ", ".join(map(_shown, processors))
        raise ValueError(
            f"speculative() applies temperature, top_k and top_p to a token tree, in this order, once each and with "
            f"default settings, got {given}: give generate's own options temperature, top_k and top_p only"
        )
    return Warp(**found) if config.do_sample else Warp(temperature=0.0)


def _alike(ours, given) -> bool:
    """Whether a processor is of the type and has the settings that ours has."""
    return type(ours) is type(given) and vars(ours) == vars(given)


def _shown(processor) -> str:
    """A processor by its type's name and those of its settings that are numbers."""
    settings = getattr(processor, "__dict__", {})
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    shown = dict(list(numbers.items())[:SHOWN])
    more = " …" if len(numbers) > SHOWN else ""
    return f"{type(processor).__name__} {shown or ''}".rstrip() + more


def _check(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, inputs: dict) -> None:
    """ValueError for more than one text and for what would be dropped; inputs: the others that the model is given."""
    rows = len(input_ids)
    if rows != 1:
        raise ValueError(f"speculative() takes one text at a time, got {rows} (batch, beams or num_return_sequences)")
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("the prompt is padded (attention_mask has zeros): pass it without padding")
    dropped = _unlike_plain_text(input_ids, inputs)
    for name in OUTPUTS:
        asked = config.return_dict_in_generate and getattr(config, name)
        if asked and not getattr(model.config, name, False):  # from the model's configuration it is a habit, no request
            dropped.append(name)
    mode = config.get_generation_mode()
    if mode not in ("greedy_search", "sample", "assisted_generation"):
        dropped.append(mode.value)
    cache = inputs.get(ARGUMENT)
    if cache is not None:
        dropped += _special_cache(cache)
    if dropped:
        raise ValueError(
            f"speculative() does not honour {', '.join(dropped)}: take it out of the call of generate, or out of the "
            f"model's generation config"
        )
    added = _unlike_plain_text(input_ids, _prepared(model, input_ids, inputs))
    if added:
        raise ValueError(
            f"speculative() does not honour what this {type(model).__name__}'s prepare_inputs_for_generation gives it: "
            f"{', '.join(added)} (a soft prompt, for example): use generate without custom_generate"
        )


def _unlike_plain_text(input_ids: Tensor, inputs: dict) -> list[str]:
    """The names of a model's inputs that say more than these ids at positions 0, 1, 2, …"""
    count = input_ids.shape[1]
    odd = []
    for name, value in inputs.items():
        if value is None or name in HARMLESS or _is_empty(value):
            continue
        if name == "input_ids" and not torch.equal(value, input_ids):
            odd.append("other input_ids")
        if name == "position_ids":
            places = torch.arange(count, device=value.device)
            if value.shape[-1] != count or not bool((value == places).all()):
                odd.append("position_ids other than 0, 1, 2, …")
        if name == "attention_mask" and (value.dim() != 2 or value.shape[1] != count or not bool(value.all())):
            odd.append("an attention_mask of its own")
        if name in KINDS and bool(value.any()):
            odd.append(name)
        if name not in READ | KINDS:
            odd.append(name)
    return odd


def _is_empty(value) -> bool:
    """Whether an input holds nothing: generate puts an empty dict for encoded pictures into the call of any model."""
    return isinstance(value, dict | list | tuple) and len(value) == 0


def _special_cache(cache) -> list[str]:
    """What a caller's cache, or one that the generation config asks for, would change; texts do not know the others."""
    found = []
    if type(cache) not in (DynamicCache, StaticCache):
        found.append(f"a {type(cache).__name__}")
    elif getattr(cache, "offloading", False):
        found.append("an offloaded cache")
    elif cache.get_seq_length():
        found.append(f"a filled {ARGUMENT}")
    return found


def _prepared(model: PreTrainedModel, input_ids: Tensor, inputs: dict) -> dict:
    """The inputs of the first forward of ``generate``, as the model prepares them."""
    given = {name: value for name, value in inputs.items() if value is not None and name != ARGUMENT}
    given |= {ARGUMENT: DynamicCache(), "use_cache": True}
    prepared = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **given)
    filled = prepared.get(ARGUMENT)
    if filled is not None and not filled.get_seq_length():
        prepared = {name: value for name, value in prepared.items() if name != ARGUMENT}
    return prepared

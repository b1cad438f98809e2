"""The decoding loop for transformers: ``model.generate(**inputs, custom_generate=speculative(drafter, verifier))``."""

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

# transformers' logits processors that a Warp can replace, in the order in which they must be applied → their setting
WARPERS = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
READ = {"input_ids", "attention_mask", "position_ids", ARGUMENT}  # model inputs that are checked one by one
HARMLESS = {  # model inputs that change no logit
    "use_cache",
    "logits_to_keep",
    "return_dict",
    "cache_position",
    "output_router_logits",
    *OUTPUTS,
}
SHOWN = 5  # settings of a refused processor that an error message lists
KINDS = {"token_type_ids", "mm_token_type_ids"}  # model inputs with a kind for each token; all zeros means plain text


def speculative(
    drafter: Drafter,
    verifier: Verifier,
    *,
    streamer: BaseStreamer | None = None,
    forwards: Forwards | None = None,
    check: bool = True,
) -> Callable:
    """Return a ``custom_generate`` callable that decodes with this drafter and verifier.

    drafter, verifier: as in ``decode.steps``.
    streamer: receives the new tokens after each step. ``generate`` (transformers 5.23) does not pass its own
        ``streamer=`` to a custom_generate callable, so give a streamer here.
    forwards: as in ``Target``, made for the same model that generates.
    check: whether the model is checked at its first use (``selfcheck.check_once``).

    It follows the generation config's do_sample, temperature, top_k, top_p, length limits and end tokens, and stopping
    criteria. Give stop strings as a StopStringCriteria, because ``generate`` does not pass its ``tokenizer=`` on. If
    do_sample is set, the seed is drawn from torch's global generator, so ``torch.manual_seed`` decides it. With
    return_dict_in_generate the output contains the sequences, but no cache.

    The callable raises ValueError if it is asked for something that ``generate`` can do and this loop cannot:
    - batches, padding, beams and other searches;
    - model inputs beside the plain text, also those that the model's own prepare_inputs_for_generation adds, such as
      PEFT's soft prompts;
    - caches that are filled, quantised or offloaded;
    - scores, logits, attentions or hidden states as outputs;
    - logits processors other than those of ``warp_of``: on a tree they would have another effect than on a text.
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
        # eos is () because generate has made the end tokens a stopping criterion
        options = {"max_new_tokens": length, "seed": seed, "stop": stop, "eos": ()}
        target = Target(model, forwards=forwards)
        for step in steps(target, drafter, verifier, input_ids[0].tolist(), **asdict(warp), **options):
            if streamer is not None:
                streamer.put(torch.tensor(step.tokens, device="cpu"))
        return GenerateDecoderOnlyOutput(sequences=ids) if generation_config.return_dict_in_generate else ids

    def streamed(model: PreTrainedModel, input_ids: Tensor, *args, **kwargs):
        """As ``custom_generate``; the streamer is always ended, also after an exception, so that no reader waits."""
        try:
            streamer.put(input_ids.cpu())
            return custom_generate(model, input_ids, *args, **kwargs)
        finally:
            streamer.end()

    return custom_generate if streamer is None else streamed


def warp_of(config: GenerationConfig, processors: LogitsProcessorList) -> Warp:
    """Return the Warp that samples as a generation config does.

    Raises ValueError unless the processors are temperature, top-k and top-p in this order, each at most once, with the
    settings that ``generate`` gives them (min_tokens_to_keep 1, filter_value -inf). Any other list has another law.
    """
    settings = {}  # of the Warp
    for processor in processors:
        name = WARPERS.get(type(processor))
        if name is not None:
            settings[name] = getattr(processor, name)
    expected = [warper(settings[name]) for warper, name in WARPERS.items() if name in settings]
    is_expected = len(expected) == len(processors) and all(map(_alike, expected, processors))
    if not is_expected:
        descriptions = ", ".join(map(_describe, processors))
        raise ValueError(
            f"speculative() applies temperature, top_k and top_p to a token tree, in this order, once each and with "
            f"default settings, got {descriptions}: give generate's own options temperature, top_k and top_p only"
        )
    return Warp(**settings) if config.do_sample else Warp(temperature=0.0)


def _alike(expected, processor) -> bool:
    """Return whether a processor has the type and the settings of the expected one."""
    return type(expected) is type(processor) and vars(expected) == vars(processor)


def _describe(processor) -> str:
    """Return a processor's type name and its first numeric settings, for an error message."""
    settings = getattr(processor, "__dict__", {})
    numbers = {name: value for name, value in settings.items() if isinstance(value, int | float)}
    shown = dict(list(numbers.items())[:SHOWN])
    more = " …" if len(numbers) > SHOWN else ""
    return f"{type(processor).__name__} {shown or ''}".rstrip() + more


def _check(model: PreTrainedModel, input_ids: Tensor, config: GenerationConfig, inputs: dict) -> None:
    """ValueError for more than one text and for every request that would be ignored.

    inputs: the model's inputs other than input_ids.
    """
    texts = len(input_ids)
    if texts != 1:
        raise ValueError(f"speculative() takes one text at a time, got {texts} (batch, beams or num_return_sequences)")
    mask = inputs.get("attention_mask")
    if mask is not None and not bool(mask.all()):
        raise ValueError("the prompt is padded (attention_mask has zeros): pass it without padding")
    dropped = _unlike_plain_text(input_ids, inputs)
    for name in OUTPUTS:
        is_set = config.return_dict_in_generate and getattr(config, name)
        is_default = getattr(model.config, name, False)  # set by the model's own configuration: nobody asked for it
        if is_set and not is_default:
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
    added = _unlike_plain_text(input_ids, _prepare_inputs(model, input_ids, inputs))
    if added:
        raise ValueError(
            f"speculative() does not honour what this {type(model).__name__}'s prepare_inputs_for_generation gives it: "
            f"{', '.join(added)} (a soft prompt, for example): use generate without custom_generate"
        )


def _unlike_plain_text(input_ids: Tensor, inputs: dict) -> list[str]:
    """Return the names of those inputs that are more than plain text: these ids at positions 0, 1, 2, …"""
    count = input_ids.shape[1]
    odd = []
    for name, value in inputs.items():
        if value is None or name in HARMLESS or _is_empty(value):
            continue
        if name == "input_ids" and not torch.equal(value, input_ids):
            odd.append("other input_ids")
        if name == "position_ids":
            positions = torch.arange(count, device=value.device)
            if value.shape[-1] != count or not bool((value == positions).all()):
                odd.append("position_ids other than 0, 1, 2, …")
        if name == "attention_mask" and (value.dim() != 2 or value.shape[1] != count or not bool(value.all())):
            odd.append("an attention_mask of its own")
        if name in KINDS and bool(value.any()):
            odd.append(name)
        if name not in READ | KINDS:
            odd.append(name)
    return odd


def _is_empty(value) -> bool:
    """Return whether an input is an empty collection: ``generate`` gives every model an empty dict for pictures."""
    return isinstance(value, dict | list | tuple) and len(value) == 0


def _special_cache(cache) -> list[str]:
    """Return what is special about a cache that was passed in or configured; [] for one that the loop may ignore.

    An empty DynamicCache or StaticCache may be ignored, because it does not change the text.
    """
    special = []
    if type(cache) not in (DynamicCache, StaticCache):
        special.append(f"a {type(cache).__name__}")
    elif getattr(cache, "offloading", False):
        special.append("an offloaded cache")
    elif cache.get_seq_length():
        special.append(f"a filled {ARGUMENT}")
    return special


def _prepare_inputs(model: PreTrainedModel, input_ids: Tensor, inputs: dict) -> dict:
    """Return the inputs of ``generate``'s first forward, as the model prepares them; an empty cache is left out."""
    arguments = {name: value for name, value in inputs.items() if value is not None and name != ARGUMENT}
    arguments |= {ARGUMENT: DynamicCache(), "use_cache": True}
    prepared = model.prepare_inputs_for_generation(input_ids, is_first_iteration=True, **arguments)
    cache = prepared.get(ARGUMENT)
    if cache is not None and not cache.get_seq_length():
        prepared = {name: value for name, value in prepared.items() if name != ARGUMENT}
    return prepared

"""The same loop as ``model.generate(**inputs, custom_generate=speculative(drafter, verifier))``, for transformers."""

from collections.abc import Callable
from dataclasses import asdict

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
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
from specnb.target import Target

WARPERS = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}  # in order
OUTPUTS = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
READ = {"attention_mask", "position_ids", ARGUMENT, "use_cache", "logits_to_keep"}  # of the model's inputs


def speculative(drafter: Drafter, verifier: Verifier, *, streamer: BaseStreamer | None = None, graphs=None) -> Callable:
    """A ``custom_generate`` callable that decodes with this drafter and verifier.

    Honours the generation config's do_sample, temperature, top_k, top_p, length limits and end tokens, and stopping
    criteria. ``generate`` (transformers 5.23) hands neither its ``streamer=`` nor its ``tokenizer=`` on to a
    custom_generate callable: give a streamer here, and stop strings as a StopStringCriteria. The seed is drawn from
    torch's global generator, so ``torch.manual_seed`` decides it. graphs: as in ``Target``, of the very model that
    generates. With return_dict_in_generate the output holds the sequences and no cache.
    Raises ValueError for what ``generate`` would honour and this loop does not: batches, beams and other searches,
    padding, model inputs beside the plain text, scores, logits, attentions and hidden states as outputs, and logits
    processors other than ``warp_of`` takes: their effect on a tree would not be the one they have on a text.
    """

    def custom_generate(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        _check(input_ids, generation_config, model_kwargs)
        warp = warp_of(generation_config, logits_processor)
        ids = input_ids
        if streamer is not None:
            streamer.put(input_ids.cpu())

        def stop(tokens) -> str | None:
            nonlocal ids
            ids = torch.cat([ids, ids.new_tensor([[tokens[-1]]])], dim=1)
            return "stopping criteria" if bool(stopping_criteria(ids, None).all()) else None

        limits = {"max_new_tokens": generation_config.max_length - input_ids.shape[1], "stop": stop}
        limits |= {"eos": (), "seed": int(torch.randint(2**31, ()))}  # end tokens are among the stopping criteria
        target = Target(model, graphs=graphs)
        for step in steps(target, drafter, verifier, input_ids[0].tolist(), **asdict(warp), **limits):
            if streamer is not None:
                streamer.put(torch.tensor(step.tokens))
        if streamer is not None:
            streamer.end()
        return GenerateDecoderOnlyOutput(sequences=ids) if generation_config.return_dict_in_generate else ids

    return custom_generate


def warp_of(config: GenerationConfig, processors: LogitsProcessorList) -> Warp:
    """The Warp that equals a generation config's sampling.

    ValueError unless the processors are temperature, top-k and top-p in this order, once each at most and otherwise as
    ``generate`` makes them (min_tokens_to_keep 1, filter_value -inf): of any other list the law would differ.
    """
    found = {WARPERS[type(p)]: getattr(p, WARPERS[type(p)]) for p in processors if type(p) in WARPERS}
    ours = [warper(found[name]) for warper, name in WARPERS.items() if name in found]
    if [(type(p), vars(p)) for p in processors] != [(type(p), vars(p)) for p in ours]:
        given = ", ".join(f"{type(p).__name__} {vars(p) or ''}".rstrip() for p in processors)
        raise ValueError(
            f"speculative() applies temperature, top_k and top_p to a token tree, in this order, once each and with "
            f"default settings, got {given}: give generate's own options temperature, top_k and top_p only"
        )
    return Warp(**found) if config.do_sample else Warp(temperature=0.0)


def _check(input_ids: Tensor, config: GenerationConfig, inputs: dict) -> None:
    """ValueError for more than one text and for what would be dropped; inputs: the others that the model is given."""
    rows, count = input_ids.shape
    mask, places, cache = map(inputs.get, ("attention_mask", "position_ids", ARGUMENT))
    mode = config.get_generation_mode()
    if rows != 1:
        raise ValueError(f"speculative() takes one text at a time, got {rows} (batch, beams or num_return_sequences)")
    if mask is not None and not bool(mask.all()):
        raise ValueError("the prompt is padded (attention_mask has zeros): pass it without padding")
    dropped = [name for name, value in inputs.items() if value is not None and name not in READ]
    dropped += [name for name in OUTPUTS if config.return_dict_in_generate and getattr(config, name)]
    if mode not in ("greedy_search", "sample", "assisted_generation"):
        dropped.append(mode.value)
    if cache is not None and cache.get_seq_length():
        dropped.append(f"a filled {ARGUMENT}")
    if places is not None and (places.shape[-1] != count or bool((places.cpu() != torch.arange(count)).any())):
        dropped.append("position_ids other than 0, 1, 2, …")
    if dropped:
        raise ValueError(f"speculative() does not honour {', '.join(dropped)}: take it out of the call of generate")

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

from specnb.decode import Drafter, Verifier, steps
from specnb.sampling import Warp
from specnb.target import Target


def speculative(drafter: Drafter, verifier: Verifier, *, streamer: BaseStreamer | None = None) -> Callable:
    """A ``custom_generate`` callable that decodes with this drafter and verifier.

    Honours the generation config's do_sample, temperature, top_k, top_p, length limits, end tokens and stop
    strings, and stopping criteria. Give a streamer here: ``generate`` (transformers 5.23) does not hand its own
    ``streamer=`` on to a custom_generate callable. The seed is drawn from torch's global generator, so
    ``torch.manual_seed`` decides it. Raises ValueError for batches, padding, beams, and logits processors
    other than temperature, top-k and top-p: their effect on a tree would not be the one they have on a text.
    """

    def custom_generate(
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs,
    ) -> Tensor | GenerateDecoderOnlyOutput:
        if input_ids.shape[0] != 1:
            raise ValueError(
                f"speculative decoding takes one text at a time, got {input_ids.shape[0]} (a batch, beams or "
                f"num_return_sequences): call generate once for each"
            )
        mask = model_kwargs.get("attention_mask")
        if mask is not None and not bool(mask.all()):
            raise ValueError("the prompt is padded (attention_mask has zeros): pass it without padding")
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
        for step in steps(Target(model), drafter, verifier, input_ids[0].tolist(), **asdict(warp), **limits):
            if streamer is not None:
                streamer.put(torch.tensor(step.tokens))
        if streamer is not None:
            streamer.end()
        return GenerateDecoderOnlyOutput(sequences=ids) if generation_config.return_dict_in_generate else ids

    return custom_generate


def warp_of(config: GenerationConfig, processors: LogitsProcessorList) -> Warp:
    """The Warp that equals a generation config's sampling; ValueError for what has no equal here."""
    known = {TemperatureLogitsWarper: "temperature", TopKLogitsWarper: "top_k", TopPLogitsWarper: "top_p"}
    other = [type(processor).__name__ for processor in processors if type(processor) not in known]
    if other:
        raise ValueError(
            f"cannot apply {', '.join(other)} to a token tree: speculative() supports temperature, top_k and "
            f"top_p only; remove the option from the generation config"
        )
    if not config.do_sample:
        return Warp(temperature=0.0)
    found = {known[type(p)]: getattr(p, known[type(p)]) for p in processors}
    return Warp(**found)

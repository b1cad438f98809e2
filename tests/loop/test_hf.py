"""transformers' own door: through ``generate`` the loop gives generate's text and law, or says why it cannot."""

from collections import Counter
from functools import partial

import pytest
import torch
from scipy.stats import chisquare
from tiny import generated, llama
from transformers import (
    DynamicCache,
    GPT2Config,
    GPT2LMHeadModel,
    StoppingCriteria,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from specnb import exact, growth, hf, verifiers
from specnb.cache import ARGUMENT
from specnb.decode import steps
from specnb.drafters import CausalLMDraft, NgramDrafter, TableDraft, TreeDrafter
from specnb.hf import speculative
from specnb.models import Graphs
from specnb.tree import Drawn

TARGET = llama(0)
NGRAM = speculative(NgramDrafter(), verifiers.by_draw)


def test_custom_generate_greedy_streams_and_stops():
    ids = torch.tensor([[7, 8, 9]])
    text = generated(TARGET, [7, 8, 9], 20)

    class Recorder:
        def __init__(self):
            self.seen, self.ended = [], False

        def put(self, value):
            self.seen += value.flatten().tolist()

        def end(self):
            self.ended = True

    streamer = Recorder()

    out = TARGET.generate(
        ids,
        custom_generate=speculative(NgramDrafter(), verifiers.by_draw, streamer=streamer),
        do_sample=False,
        max_new_tokens=20,
    )
    assert out[0, 3:].tolist() == text
    assert streamer.seen == [7, 8, 9, *text]
    assert streamer.ended
    eos, plain = text[10], {"custom_generate": speculative(NgramDrafter(), verifiers.by_draw), "max_new_tokens": 20}
    out = TARGET.generate(ids, do_sample=False, eos_token_id=eos, **plain)
    assert out[0, 3:].tolist() == text[: text.index(eos) + 1]
    out = TARGET.generate(ids, do_sample=False, return_dict_in_generate=True, **plain)
    assert out.sequences[0, 3:].tolist() == text


def test_custom_generate_samples_with_torchs_seed_and_the_configs_warp():
    ids = torch.tensor([[7, 8, 9]])

    def run(seed, **options):
        torch.manual_seed(seed)
        options = {
            "do_sample": True,
            "max_new_tokens": 15,
            "custom_generate": speculative(NgramDrafter(), verifiers.by_draw),
            **options,
        }
        return TARGET.generate(ids, **options)[0].tolist()

    assert run(1) == run(1) != run(2)
    assert run(1, top_k=1)[3:] == generated(TARGET, [7, 8, 9], 15)  # top-k 1 leaves only the argmax
    assert run(1, temperature=1e-4)[3:] == generated(TARGET, [7, 8, 9], 15)


def test_custom_generate_refuses_what_it_cannot_do_exactly():
    one = speculative(NgramDrafter(), verifiers.by_draw)
    with pytest.raises(ValueError, match="one text at a time, got 2"):
        TARGET.generate(torch.tensor([[1, 2], [3, 4]]), custom_generate=one, max_new_tokens=5)
    with pytest.raises(ValueError, match="RepetitionPenalty"):
        TARGET.generate(torch.tensor([[1, 2]]), custom_generate=one, max_new_tokens=5, repetition_penalty=1.3)
    with pytest.raises(ValueError, match="padded"):
        TARGET.generate(
            torch.tensor([[0, 1, 2]]), attention_mask=torch.tensor([[0, 1, 1]]), custom_generate=one, max_new_tokens=5
        )


# ---- the law: what the config's processors say, in every combination that is accepted -----------------------


def forgetful(law: torch.Tensor) -> torch.nn.Module:
    """A tiny model that says the same after any text: its text is as many independent draws from one law."""
    model = llama(num_hidden_layers=1, vocab_size=len(law), max_position_embeddings=4096)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.embed_tokens.weight.fill_(1.0)
        model.model.norm.weight.fill_(1.0)
        model.lm_head.weight.copy_(law.log()[:, None] / model.config.hidden_size)
    return model


LAW = torch.tensor([0.42, 0.24, 0.14, 0.1, 0.06, 0.04])
QLAW = torch.tensor([0.15, 0.3, 0.1, 0.25, 0.15, 0.05])
FORGETFUL = forgetful(LAW)
COUNT = 800
COMBINATIONS = {
    "none": {},
    "temperature": {"temperature": 1.8},
    "top_k": {"top_k": 4},
    "top_p": {"top_p": 0.75},
    "temperature, top_k": {"temperature": 0.6, "top_k": 5},
    "temperature, top_p": {"temperature": 1.8, "top_p": 0.8},
    "top_k, top_p": {"top_k": 4, "top_p": 0.7},
    "all": {"temperature": 3.0, "top_k": 4, "top_p": 0.65},
}


def law_of(*processors) -> torch.Tensor:
    """What generate draws the next token from: the processors applied to the logits, one after the other."""
    scores = LAW.log()[None]
    for processor in processors:
        scores = processor(None, scores)
    return scores.softmax(-1)[0].double()


def processors_of(temperature=1.0, top_k=0, top_p=1.0) -> list:
    """In transformers' order."""
    out = [TemperatureLogitsWarper(temperature)] if temperature != 1 else []
    out += [TopKLogitsWarper(top_k)] if top_k else []
    return out + ([TopPLogitsWarper(top_p)] if top_p < 1 else [])


def p_value(pairs: list[tuple[int, int]], law: torch.Tensor) -> float:
    """Chi-square of pairs of tokens that follow each other against two independent draws from a law."""
    counts, expected = Counter(pairs), (law[:, None] * law).flatten() * len(pairs)
    observed = torch.tensor([float(counts[divmod(i, len(law))]) for i in range(len(law) ** 2)])
    if observed[expected == 0].any():
        return 0.0
    possible = expected > 0
    return chisquare(observed[possible], expected[possible] / expected.sum() * len(pairs)).pvalue


def sampled(options: dict) -> list[tuple[int, int]]:
    """Pairs of tokens that follow each other in a text sampled through generate with a draft that is often wrong."""
    drafter = TreeDrafter(TableDraft(lambda prefix: QLAW), growth.Static(((0,), (1,), (0, 0), (0, 0, 0))), Drawn.SWOR)
    torch.manual_seed(0)
    options = {"do_sample": True, "top_k": 0, "max_new_tokens": COUNT, **options}
    ids = torch.tensor([[0]])
    text = FORGETFUL.generate(ids, custom_generate=speculative(drafter, verifiers.rrsw), **options)[0, 1:].tolist()
    assert len(text) == COUNT
    return list(zip(text[::2], text[1::2], strict=True))


@pytest.mark.parametrize("options", COMBINATIONS.values(), ids=COMBINATIONS)
def test_sampled_text_follows_generates_law(options):
    assert p_value(sampled(options), law_of(*processors_of(**options))) > 0.01


def test_the_law_is_generates_and_another_order_is_caught():
    """The expected law is that of generate itself; negative control: the laws of wrong orders and settings are not."""
    options = COMBINATIONS["all"]
    temperature, top_k, top_p = processors_of(**options)
    law = law_of(temperature, top_k, top_p)
    torch.manual_seed(0)
    ids = torch.zeros(COUNT // 2, 1, dtype=torch.int64)
    theirs = FORGETFUL.generate(ids, do_sample=True, max_new_tokens=2, **options)[:, 1:].tolist()
    ours = sampled(options)
    for pairs in (list(map(tuple, theirs)), ours):
        assert p_value(pairs, law) > 0.01
        for wrong in ((top_p, temperature, top_k), (temperature, top_p), (top_k, top_p), (temperature, top_k)):
            assert p_value(pairs, law_of(*wrong)) < 1e-6


def test_the_law_of_two_tokens_is_exact(monkeypatch):
    """Every coin enumerated, through generate, cache and a draft model, on a model that minds its text."""
    sizes = {"vocab_size": 4, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    target, draft = llama(0, **sizes), llama(1, **sizes)
    ids, options = torch.tensor([[1, 2]]), {"temperature": 1.8, "top_k": 3, "top_p": 0.8}

    @torch.no_grad()
    def model(prefix):
        scores = target(torch.tensor([[1, 2, *prefix]])).logits[:, -1]
        for processor in processors_of(**options):
            scores = processor(None, scores)
        return scores[0].softmax(-1)

    def text(coins):
        monkeypatch.setattr(hf, "steps", partial(steps, coins=lambda seed, purpose: coins))
        drafter = TreeDrafter(CausalLMDraft(draft), growth.kary(2, 1), Drawn.SWOR)
        through = speculative(drafter, verifiers.rrsw)
        out = target.generate(ids, custom_generate=through, do_sample=True, max_new_tokens=2, **options)
        return tuple(out[0, 2:].tolist())

    assert exact.total_variation(exact.law(text), exact.joint(model, 2)) < 1e-6


ORDERS = {
    "order": [TopPLogitsWarper(0.3)],
    "twice": [TemperatureLogitsWarper(0.5)],
    "min_tokens_to_keep": [TopPLogitsWarper(0.1, min_tokens_to_keep=4)],
    "filter_value": [TopKLogitsWarper(4, filter_value=-3.0)],
}


@pytest.mark.parametrize("name", ORDERS)
def test_processors_of_another_law_are_refused_by_name(name):
    options = {"order": {"top_k": 4}, "twice": {"temperature": 3.0, "top_k": 0}}.get(name, {"top_k": 0})
    options |= {"custom_generate": NGRAM, "do_sample": True, "max_new_tokens": 5, "logits_processor": ORDERS[name]}
    with pytest.raises(ValueError, match=f"in this order, once each.* got .*{type(ORDERS[name][0]).__name__}"):
        TARGET.generate(torch.tensor([[1, 2]]), **options)


def test_a_users_own_processor_is_taken_where_its_law_is_the_configs():
    own = {"logits_processor": [TemperatureLogitsWarper(1e-4)], "custom_generate": NGRAM, "do_sample": True, "top_k": 3}
    out = TARGET.generate(torch.tensor([[7, 8, 9]]), max_new_tokens=15, **own)
    assert out[0, 3:].tolist() == generated(TARGET, [7, 8, 9], 15)


# ---- the inputs and outputs ---------------------------------------------------------------------------------


def filled() -> DynamicCache:
    cache = DynamicCache(config=TARGET.config)
    TARGET(torch.tensor([[4, 5]]), **{ARGUMENT: cache})
    return cache


DROPPED = {
    "other positions": ({"position_ids": torch.tensor([[5, 6, 7]])}, "position_ids other than 0, 1, 2"),
    "fewer positions": ({"position_ids": torch.tensor([[0, 1]])}, "position_ids other than 0, 1, 2"),
    "inputs_embeds": ({"inputs_embeds": torch.zeros(1, 3, 32)}, "inputs_embeds"),
    "a filled cache": ({ARGUMENT: filled()}, f"a filled {ARGUMENT}"),
    "contrastive search": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive_search"),
    **{
        name: ({name: True, "return_dict_in_generate": True}, name)
        for name in ("output_scores", "output_logits", "output_attentions", "output_hidden_states")
    },
}


@pytest.mark.parametrize(("options", "named"), DROPPED.values(), ids=DROPPED)
def test_what_would_be_dropped_is_refused_by_name(options, named):
    with pytest.raises(ValueError, match=f"does not honour {named}"):
        TARGET.generate(torch.tensor([[7, 8, 9]]), custom_generate=NGRAM, max_new_tokens=5, **options)


def test_an_input_of_another_architecture_is_refused_by_name():
    sizes = {"vocab_size": 20, "n_embd": 8, "n_layer": 1, "n_head": 2, "bos_token_id": 0, "eos_token_id": 0}
    ids = torch.tensor([[1, 2]])
    with pytest.raises(ValueError, match="does not honour token_type_ids"):
        GPT2LMHeadModel(GPT2Config(**sizes)).generate(
            ids, token_type_ids=torch.ones_like(ids), custom_generate=NGRAM, max_new_tokens=3
        )


@pytest.mark.parametrize(
    "options",
    [
        {"attention_mask": torch.ones(1, 3, dtype=torch.int64)},
        {"position_ids": torch.tensor([[0, 1, 2]])},
        {ARGUMENT: DynamicCache(config=TARGET.config)},
        {"use_cache": False},
        {"output_scores": True},  # generate gives no scores either, without return_dict_in_generate
        {"prompt_lookup_num_tokens": 3},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_changes_nothing_is_taken(options):
    options = {"do_sample": False, "custom_generate": NGRAM, "max_new_tokens": 15, **options}
    assert TARGET.generate(torch.tensor([[7, 8, 9]]), **options)[0, 3:].tolist() == generated(TARGET, [7, 8, 9], 15)


def test_a_users_stopping_criterion_stops_where_generate_does():
    class Seen(StoppingCriteria):
        """Stops behind a token; scores are None in generate too, unless asked for."""

        def __call__(self, input_ids, scores, **kwargs):
            assert scores is None
            return input_ids[:, -1] == stop

    stop = generated(TARGET, [7, 8, 9], 15)[6]
    theirs = generated(TARGET, [7, 8, 9], 15, stopping_criteria=[Seen()])
    assert generated(TARGET, [7, 8, 9], 15, stopping_criteria=[Seen()], custom_generate=NGRAM) == theirs
    assert theirs[-1] == stop


def test_graphs_are_handed_on():
    """Recorded forwards score the trees; they serve one call of generate after the other."""
    graphs = Graphs(TARGET, capacity=64)
    through = speculative(NgramDrafter(), verifiers.by_draw, forwards=graphs)
    for prompt in ([7, 8, 9], [4, 4]):
        assert generated(TARGET, prompt, 15, custom_generate=through) == generated(TARGET, prompt, 15)
    assert graphs.forwards

"""Tiny random models of three families, a tokenizer of bytes, and random trees: what engine tests run on."""

import copy
from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers import models as vocabularies
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from specnb.decode import Step
from specnb.sampling import Coins
from specnb.tree import Draft, TokenTree, Verdict

VOCABULARY = 50
TEMPLATE = (
    "{% for turn in messages %}<user>{{ turn['content'] }}{% endfor %}{% if add_generation_prompt %}<bot>{% endif %}"
)
COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "eos_token_id": None,
    "bos_token_id": None,
    "initializer_range": 0.2,  # ten times the usual: what a node sees must move its logits
}


def llama(seed: int = 0, **changes) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**{**COMMON, "num_key_value_heads": 2, **changes})).eval()


def near_copy(model: LlamaForCausalLM) -> LlamaForCausalLM:
    """The target, a little disturbed: a draft that is right often enough."""
    copied = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter += 0.02 * torch.randn(parameter.shape, generator=generator)
    return copied


def qwen2(seed: int = 0, **changes) -> Qwen2ForCausalLM:
    torch.manual_seed(seed)
    return Qwen2ForCausalLM(Qwen2Config(**{**COMMON, "num_key_value_heads": 2, **changes})).eval()


def gpt_neox(seed: int = 0, **changes) -> GPTNeoXForCausalLM:
    torch.manual_seed(seed)
    return GPTNeoXForCausalLM(GPTNeoXConfig(**{**COMMON, **changes})).eval()


FAMILIES = {"llama": llama, "qwen2": qwen2, "gpt_neox": gpt_neox}


def tokenizer(
    shift: int = 0, template: str | None = None, more: tuple[str, ...] = (), bos: bool = False
) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer; shift moves the ids of the bytes; bos: it starts every text with <s>."""
    specials = ["<s>", "</s>", "<user>", "<bot>", *more]
    alphabet = sorted(ByteLevel.alphabet())
    tokens = specials + alphabet[shift:] + alphabet[:shift]
    raw = Tokenizer(vocabularies.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=[]))
    raw.pre_tokenizer, raw.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    raw.add_special_tokens(specials)
    if bos:
        raw.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    made = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>")
    made.chat_template = template
    return made


def randomise(module: torch.nn.Module, std: float) -> torch.nn.Module:
    """The module, its weights but not its norms drawn again: what a row sees must move what comes out."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std, generator=generator)
    return module


@st.composite
def trees(draw, *, max_nodes: int = 12, vocabulary: int = VOCABULARY) -> TokenTree:
    """A random TokenTree of up to max_nodes nodes with random tokens."""
    n = draw(st.integers(1, max_nodes))
    parents = [-1] + [draw(st.integers(0, i - 1)) for i in range(1, n)]
    tokens = draw(st.lists(st.integers(0, vocabulary - 1), min_size=n, max_size=n))
    return TokenTree(tokens, parents)


def generated(model: torch.nn.Module, prompt: Sequence[int], count: int, **options) -> list[int]:
    """What transformers' own ``generate`` writes behind a prompt, greedy unless options say otherwise."""
    ids = torch.tensor([list(prompt)])
    settings = {"do_sample": False, "max_new_tokens": count, **options}
    return model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0, len(prompt) :].tolist()


def any_path(draft: Draft, p: torch.Tensor, coins: Coins) -> Verdict:
    """A verifier that accepts any path of the draft, the empty one too, where no model would: the text is no model's.

    Untrained models agree hardly ever, so that nothing of an accepted path would be looked at.
    """
    node = coins.choose(torch.full((len(draft.tree),), 1 / len(draft.tree)))
    return Verdict(draft.tree.path(node), coins.choose(p[node]))


def tau(steps: Sequence[Step]) -> float:
    """Tokens per target call: accepted ones and the next."""
    return 1 + sum(len(step.verdict.path) for step in steps) / len(steps)

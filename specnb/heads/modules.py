"""Trained draft heads as modules: EAGLE's, EDD's, Medusa's and a small language model, beside a frozen target.

Heads reuse the target's embedding, final norm and output rows (``Frozen``), and predict a reduced vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specnb.cache import ARGUMENT


@dataclass(frozen=True)
class Spec:
    """What a head is made of. kind: vdm, medusa, eagle, eagle3 or edd; hidden_layer: the target's state it reads.

    hidden_layer counts from the end as in transformers' hidden_states: -1 is the last, after the final norm.
    count: number of decoder layers (vdm) or of heads (medusa). fused: the states that an eagle3 reads, instead of one.
    """

    kind: str
    width: int
    attention_heads: int
    key_heads: int
    head_width: int
    mlp: int
    theta: float
    epsilon: float
    hidden_layer: int | None = None
    count: int = 1
    fused: tuple[int, ...] = ()

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's states it reads."""
        return self.fused if self.hidden_layer is None else (self.hidden_layer,)

    @classmethod
    def like(cls, model: PreTrainedModel, kind: str, **reads) -> "Spec":
        """A head with the proportions of the target's own layers; reads: hidden_layer, count and fused.

        An edd has as many key heads as query heads, though the target may share them: what it learns of the target's
        states passes through its keys and values alone. A vdm's layers have half of the target's inner width, so that
        two of them are no larger than another head, and an eagle3, whose layer reads two states, two thirds of it.
        """
        config = model.config.get_text_config()
        heads, inner = config.num_attention_heads, getattr(config, "intermediate_size", 0) or 4 * config.hidden_size
        keys, width = (getattr(config, name, None) for name in ("num_key_value_heads", "head_dim"))
        keys = heads if kind == "edd" else keys
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
        return cls(
            kind,
            width=config.hidden_size,
            attention_heads=heads,
            key_heads=keys or heads,
            head_width=width or config.hidden_size // heads,
            mlp=inner * {"vdm": 3, "eagle3": 4}.get(kind, 6) // 6,
            theta=float(theta),
            epsilon=getattr(config, "rms_norm_eps", 1e-5),
            **reads,
        )


JOINED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}  # products of the same rows


class Layer(nn.Module):
    """One Llama decoder layer, opened up: keys and values come out, and go in as the caller has arranged them.

    parts: how many vectors side by side a row consists of, of which the last is what the layer adds to.
    """

    def __init__(self, spec: Spec, input_norm: nn.Module | None = None, parts: int = 1):
        super().__init__()
        self.spec = spec
        queries, keys = spec.attention_heads * spec.head_width, spec.key_heads * spec.head_width
        self.input_layernorm = input_norm or LlamaRMSNorm(spec.width, spec.epsilon)
        self.q_proj = nn.Linear(parts * spec.width, queries, bias=False)
        self.k_proj = nn.Linear(parts * spec.width, keys, bias=False)
        self.v_proj = nn.Linear(parts * spec.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, spec.width, bias=False)
        self.post_attention_layernorm = LlamaRMSNorm(spec.width, spec.epsilon)
        self.gate_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.down_proj = nn.Linear(spec.mlp, spec.width, bias=False)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, n, parts · width), positions: (n,) or (B, n) → queries (B, attention_heads, n, head_width), and keys
        and values, (B, key_heads, n, head_width) each."""
        query, key, value = self._products("qkv", self.input_layernorm(x))
        turned = self._rotate(self._split(torch.cat([query, key], -1)), positions)
        return *turned.split((self.spec.attention_heads, self.spec.key_heads), 1), self._split(value)

    def forward(self, x: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Rows x and their queries, as above, attend to (B, key_heads, m, head_width) keys; (B, n, width).

        mask: broadcastable to (B, heads, n, m), bool (True where a query may look) or additive; None is causal, n = m.
        """
        seen = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        x = x[..., -self.spec.width :] + self.o_proj(seen.transpose(1, 2).flatten(2))
        inner = self.post_attention_layernorm(x)
        gate, up = self._products("gate_up", inner)
        return x + self.down_proj(F.silu(gate) * up)

    def _products(self, name: str, x: Tensor) -> Sequence[Tensor]:
        if joint := getattr(self, name, None):
            return joint(x).split(self.widths[name], -1)
        return [getattr(self, part)(x) for part in JOINED[name]]

    def join(self) -> None:
        """Make products of the same rows one, in place, for inference: small ones take longer than a large one."""
        self.widths = {}
        for name, parts in JOINED.items():
            weights = [getattr(self, part).weight for part in parts]
            self.widths[name] = [len(weight) for weight in weights]
            setattr(self, name, product(torch.cat(weights)))
            for part in parts:
                delattr(self, part)

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.spec.head_width)).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding, the two halves of a head turned against each other as in Llama."""
        half = torch.arange(0, self.spec.head_width, 2, device=x.device) / self.spec.head_width
        angle = positions[..., None, :, None] / self.spec.theta**half  # (1, n, half) or (B, 1, n, half), float32
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Eagle(nn.Module):
    """EAGLE (Li et al. 2024): a row is a token beside the feature before it; its output is the feature after it.

    The layer has no input norm, as in the authors' code. HASS and TALF train the same module otherwise.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.fc = nn.Linear(2 * spec.width, spec.width)
        self.layer = Layer(spec, nn.Identity())

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """The feature is the target's last state."""
        return states[0]

    def rows(self, embedded: Tensor, features: Tensor) -> Tensor:
        """(..., width) embedded tokens and the features before them → (..., width) rows."""
        return self.fc(torch.cat([embedded, features], -1))


class Eagle3(nn.Module):
    """EAGLE-3 (Li et al. 2025): a row is a token beside a feature fused of several of the target's states.

    Below the root the draft's own output stands in the feature's place, before the final norm, and the layer adds to
    it; it attends by token and feature, each with a norm of its own.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.fc = nn.Linear(len(spec.fused) * spec.width, spec.width, bias=False)
        self.layer = Layer(spec, Halves(spec), parts=2)

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """(..., width) states of the layers in spec.fused → (..., width) features."""
        return self.fc(torch.cat(list(states), -1))

    def rows(self, embedded: Tensor, features: Tensor) -> Tensor:
        """(..., width) embedded tokens and the features before them → (..., 2 · width) rows."""
        return torch.cat([embedded, features], -1)


class Halves(nn.Module):
    """A norm for each half of a row."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.token, self.feature = (LlamaRMSNorm(spec.width, spec.epsilon) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        token, feature = x.chunk(2, -1)
        return torch.cat([self.token(token), self.feature(feature)], -1)


class Edd(nn.Module):
    """EDD (Zheng & Wang 2025): a decoder layer over a soft prompt of target states h, then the drafted tokens."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.layer = Layer(spec)


class Medusa(nn.Module):
    """Medusa-1 (Cai et al. 2024): head i (from 0) guesses the token i + 2 places after the state it reads."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(spec.width, spec.width) for _ in range(spec.count))
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """(..., width) last states → (..., count, width) states for the shared output rows."""
        return torch.stack([features + F.silu(block(features)) for block in self.blocks], -2)


class Vdm(nn.Module):
    """The papers' vanilla draft model: a small independent language model on the target's embedding."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.model = LlamaModel(self.config(spec, vocabulary=1, bos_token_id=None, eos_token_id=None))
        self.model.embed_tokens = None  # embedded tokens come from the target
        self.model.norm = nn.Identity()

    @staticmethod
    def config(spec: Spec, vocabulary: int, **options) -> LlamaConfig:
        return LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=spec.width,
            intermediate_size=spec.mlp,
            num_hidden_layers=spec.count,
            num_attention_heads=spec.attention_heads,
            num_key_value_heads=spec.key_heads,
            head_dim=spec.head_width,
            rms_norm_eps=spec.epsilon,
            rope_parameters={"rope_type": "default", "rope_theta": spec.theta},
            max_position_embeddings=8192,
            tie_word_embeddings=False,
            **options,
        )


MODULES = {"vdm": Vdm, "medusa": Medusa, "eagle": Eagle, "eagle3": Eagle3, "edd": Edd}


@dataclass(frozen=True, eq=False)
class Frozen:
    """What heads borrow of the target: embedding (V, width), final norm, ids (V_d,) and their output rows."""

    embedding: Tensor
    norm: nn.Module
    ids: Tensor
    rows: Tensor

    @classmethod
    def of(cls, model: PreTrainedModel, ids: Tensor) -> "Frozen":
        if getattr(last := model.get_output_embeddings(), "bias", None) is not None:
            raise ValueError(f"the output matrix of {type(model).__name__} has a bias, which heads leave out")
        output = last.weight.detach()
        if len(ids) == 0 or (ids.diff() <= 0).any() or not 0 <= int(ids[0]) <= int(ids[-1]) < len(output):
            raise ValueError(f"a reduced vocabulary is rising token ids below {len(output)}, got {ids[:3].tolist()}…")
        ids = ids.to(output.device)
        return cls(model.get_input_embeddings().weight.detach(), final_norm(model), ids, output[ids].contiguous())

    def before_rows(self, kind: str) -> nn.Module:
        """What states of a one-layer head of this kind pass before the output rows."""
        return self.norm if kind in ("eagle3", "edd") else nn.Identity()


def product(rows: Tensor) -> nn.Linear:
    """(m, width) rows, such as the target's output rows of a reduced vocabulary, as a layer that is not trained."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return layer


class HeadModel(nn.Module):
    """A head of one layer over rows that are vectors, called as transformers' models are, with a cache."""

    def __init__(self, head: Eagle | Eagle3 | Edd, frozen: Frozen):
        super().__init__()
        self.head, self.output = head, product(frozen.rows)
        self.norm = (frozen.before_rows(head.layer.spec.kind),)  # not a module of its own

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, attention_mask: Tensor | None, logits_to_keep: int = 0,
        **others: Cache | bool,
    ) -> CausalLMOutput:  # fmt: skip
        query, *own = self.head.layer.project(inputs_embeds, position_ids)
        out = self.head.layer(inputs_embeds, query, *others[ARGUMENT].update(*own, 0), attention_mask)
        return CausalLMOutput(logits=self.output(self.norm[0](out[:, -logits_to_keep:])), hidden_states=(out,))


FINAL_NORMS = "norm", "final_layer_norm", "final_layernorm", "ln_f", "layer_norm"


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The norm between a model's last layer and its output matrix, by the names transformers gives it."""
    for name in FINAL_NORMS:
        if hasattr(model.base_model, name):
            return getattr(model.base_model, name)
    raise ValueError(f"{type(model.base_model).__name__} has no final norm by a name of {', '.join(FINAL_NORMS)}")


class Scattered(nn.Module):
    """Logits of a reduced vocabulary put among those of the whole one, whose other tokens are ruled out."""

    def __init__(self, frozen: Frozen):
        super().__init__()
        self.ids, self.size = frozen.ids, len(frozen.embedding)

    def forward(self, logits: Tensor) -> Tensor:
        """(…, V_d) → (…, V)."""
        return logits.new_full((*logits.shape[:-1], self.size), -1e4).index_copy_(-1, self.ids, logits)


def as_causal_lm(head: Vdm, spec: Spec, frozen: Frozen, *, reduced: bool = False) -> LlamaForCausalLM:
    """The vdm as a plain transformers model over the whole vocabulary, for ``generate(assistant_model=…)``.

    Only the output rows of the reduced vocabulary are multiplied; reduced leaves it at that: (…, V_d) logits, one per
    id.
    """
    model = LlamaForCausalLM(Vdm.config(spec, len(frozen.embedding)))
    model.model.layers, model.model.norm = head.model.layers, frozen.norm
    model.model.embed_tokens.weight = nn.Parameter(frozen.embedding, requires_grad=False)
    rows = product(frozen.rows)
    model.lm_head = rows if reduced else nn.Sequential(rows, Scattered(frozen))
    return exact_rotation(model.to(frozen.rows)).eval()


def exact_rotation(model: nn.Module) -> nn.Module:
    """Put the rotary frequencies of transformers' modules back to float32: ``.to(bf16)`` rounds them, ruinously."""
    for module in model.modules():
        if isinstance(module, LlamaRotaryEmbedding):
            module.inv_freq = LlamaRotaryEmbedding(module.config).inv_freq.to(module.inv_freq.device)
    return model

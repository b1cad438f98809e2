"""Trained draft heads as modules: EAGLE's, EDD's, Medusa's and a small language model, beside a frozen target.

Heads reuse the target's embedding, final norm and output rows (``Frozen``), and predict a reduced vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding

from specnb.cache import ARGUMENT

# A head's inner width as a share of the target's, by kind: see Spec.like; all of it for the others
MLP_SHARE = {"vdm": Fraction(1, 2), "eagle3": Fraction(2, 3)}


@dataclass(frozen=True)
class Spec:
    """What a head is made of. kind: vdm, medusa, eagle, eagle3 or edd; hidden_layer: the target's state it reads.

    width: of the target's states; mlp: inner width of the head's MLP; theta: base of the rotary angles; epsilon: of the
    norms. hidden_layer counts from the end as in transformers' hidden_states: -1 is the last, after the final norm.
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
        if self.hidden_layer is None:
            return self.fused
        return (self.hidden_layer,)

    @classmethod
    def like(cls, model: PreTrainedModel, kind: str, **reads) -> "Spec":
        """A head with the proportions of the target's own layers; reads: hidden_layer, count and fused.

        An edd has as many key heads as query heads, though the target may share them: what it learns of the target's
        states passes through its keys and values alone. A vdm's layers have half of the target's inner width, so that
        two of them are no larger than another head, and an eagle3, whose layer reads two states, two thirds of it.
        """
        config = model.config.get_text_config()
        width = config.hidden_size
        attention_heads = config.num_attention_heads
        key_heads = attention_heads
        if kind != "edd":
            key_heads = getattr(config, "num_key_value_heads", None) or attention_heads
        head_width = getattr(config, "head_dim", None) or width // attention_heads
        inner_width = getattr(config, "intermediate_size", None) or 4 * width
        rotation = getattr(config, "rope_parameters", None) or {}
        return cls(
            kind,
            width=width,
            attention_heads=attention_heads,
            key_heads=key_heads,
            head_width=head_width,
            mlp=int(inner_width * MLP_SHARE.get(kind, 1)),
            theta=float(rotation.get("rope_theta", 10_000.0)),
            epsilon=getattr(config, "rms_norm_eps", 1e-5),
            **reads,
        )


# Products that take the same rows, and under which name ``Layer.join`` makes one of them
JOINED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}


class Layer(nn.Module):
    """One Llama decoder layer, opened up: keys and values come out, and go in as the caller has arranged them.

    So the caller decides what a row attends to: ``project`` makes queries, keys and values, the caller puts keys of
    earlier rows before the new ones, and ``forward`` attends. parts: how many vectors side by side a row consists of,
    of which the last is what the layer adds to.
    """

    def __init__(self, spec: Spec, input_norm: nn.Module | None = None, parts: int = 1):
        super().__init__()
        if input_norm is None:
            input_norm = LlamaRMSNorm(spec.width, spec.epsilon)
        self.spec = spec
        self.row_width = parts * spec.width
        query_width = spec.attention_heads * spec.head_width
        key_width = spec.key_heads * spec.head_width
        self.input_layernorm = input_norm
        self.q_proj = nn.Linear(self.row_width, query_width, bias=False)
        self.k_proj = nn.Linear(self.row_width, key_width, bias=False)
        self.v_proj = nn.Linear(self.row_width, key_width, bias=False)
        self.o_proj = nn.Linear(query_width, spec.width, bias=False)
        self.post_attention_layernorm = LlamaRMSNorm(spec.width, spec.epsilon)
        self.gate_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.down_proj = nn.Linear(spec.mlp, spec.width, bias=False)

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x: (B, n, parts · width), positions: (n,) or (B, n) → queries (B, attention_heads, n, head_width), and keys
        and values, (B, key_heads, n, head_width) each."""
        query, key, value = self._products("qkv", self.input_layernorm(x))
        query_and_key = self._split(torch.cat([query, key], -1))  # side by side: both are turned alike
        turned = self._rotate(query_and_key, positions)
        queries, keys = turned.split((self.spec.attention_heads, self.spec.key_heads), 1)
        return queries, keys, self._split(value)

    def forward(self, x: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """Rows x and their queries, as above, attend to (B, key_heads, m, head_width) keys; (B, n, width).

        mask: broadcastable to (B, heads, n, m), bool (True where a query may look) or additive; None is causal, n = m.
        """
        attended = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )  # (B, heads, n, head_width)
        attended = attended.transpose(1, 2).flatten(2)
        x = x[..., -self.spec.width :] + self.o_proj(attended)
        gate, up = self._products("gate_up", self.post_attention_layernorm(x))
        return x + self.down_proj(F.silu(gate) * up)

    def _products(self, name: str, x: Tensor) -> Sequence[Tensor]:
        """The products of x that JOINED lists under this name, by one Linear layer if they have been joined."""
        joint = getattr(self, name, None)
        if joint is not None:
            return joint(x).split(self.widths[name], -1)
        return [getattr(self, part)(x) for part in JOINED[name]]

    def join(self) -> None:
        """Make products of the same rows one, in place, for inference: small ones take longer than a large one."""
        self.widths: dict[str, list[int]] = {}
        for name, parts in JOINED.items():
            weights = [getattr(self, part).weight for part in parts]
            self.widths[name] = [len(weight) for weight in weights]
            setattr(self, name, frozen_linear(torch.cat(weights)))
            for part in parts:
                delattr(self, part)

    def _split(self, x: Tensor) -> Tensor:
        """(B, n, heads · head_width) → (B, heads, n, head_width)."""
        return x.unflatten(-1, (-1, self.spec.head_width)).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of (B, heads, n, head_width): entry i of a head's first half is turned with entry i of its
        second, by position / theta^(2 i / head_width) radians, as in Llama.

        Example: with a head_width of 2 there is one pair, turned by one radian a position, so (1, 0) at position 3
        becomes (cos 3, sin 3).
        """
        width = self.spec.head_width
        exponents = torch.arange(0, width, 2, device=x.device) / width  # (width / 2,)
        angles = positions[..., None, :, None] / self.spec.theta**exponents  # (1 or B, 1, n, width / 2), float32
        cos = angles.cos().to(x.dtype)
        sin = angles.sin().to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)


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
        self.token = LlamaRMSNorm(spec.width, spec.epsilon)
        self.feature = LlamaRMSNorm(spec.width, spec.epsilon)

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
        states = [features + F.silu(block(features)) for block in self.blocks]
        return torch.stack(states, -2)


class Vdm(nn.Module):
    """The papers' vanilla draft model: a small independent language model on the target's embedding."""

    def __init__(self, spec: Spec):
        super().__init__()
        config = self.config(spec, vocabulary=1, bos_token_id=None, eos_token_id=None)
        self.model = LlamaModel(config)
        self.model.embed_tokens = None  # embedded tokens come from the target
        self.model.norm = nn.Identity()

    @staticmethod
    def config(spec: Spec, vocabulary: int, **options) -> LlamaConfig:
        """The configuration of a Llama of these sizes; options: more of LlamaConfig's settings."""
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
        """What a head over these token ids borrows of this target.

        Raises ValueError on a target whose output matrix has a bias, and on ids that do not rise or are none of its.
        """
        output_layer = model.get_output_embeddings()
        if getattr(output_layer, "bias", None) is not None:
            raise ValueError(f"the output matrix of {type(model).__name__} has a bias, which heads leave out")
        output = output_layer.weight.detach()  # (V, width)
        if not _rises_within(ids, len(output)):
            raise ValueError(f"a reduced vocabulary is rising token ids below {len(output)}, got {ids[:3].tolist()}…")
        ids = ids.to(output.device)
        embedding = model.get_input_embeddings().weight.detach()
        return cls(embedding, final_norm(model), ids, rows=output[ids].contiguous())

    def before_rows(self, kind: str) -> nn.Module:
        """What states of a one-layer head of this kind pass before the output rows."""
        if kind in ("eagle3", "edd"):
            return self.norm
        return nn.Identity()  # an eagle predicts features behind the norm


def _rises_within(ids: Tensor, size: int) -> bool:
    """Whether token ids (n,) are rising numbers of 0..size-1, at least one."""
    if len(ids) == 0 or (ids.diff() <= 0).any():
        return False
    return int(ids[0]) >= 0 and int(ids[-1]) < size


def frozen_linear(rows: Tensor) -> nn.Linear:
    """A Linear layer that is not trained, made of its weight: (m, width), such as the target's output rows."""
    layer = nn.Linear(1, 1, bias=False)
    layer.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return layer


class HeadModel(nn.Module):
    """A head of one layer over rows that are vectors, called as transformers' models are, with a cache."""

    def __init__(self, head: Eagle | Eagle3 | Edd, frozen: Frozen):
        super().__init__()
        self.head = head
        self.output = frozen_linear(frozen.rows)
        # In a tuple, where nn.Module does not see it: it is the target's module, not one of this model's own.
        self.norm = (frozen.before_rows(head.layer.spec.kind),)

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, attention_mask: Tensor | None, logits_to_keep: int = 0,
        **others: Cache | bool,
    ) -> CausalLMOutput:  # fmt: skip
        """Logits (1, m, V_d) of the last logits_to_keep rows, 0: of all, and the states (1, n, width) of all rows."""
        layer = self.head.layer
        cache = others[ARGUMENT]
        query, new_keys, new_values = layer.project(inputs_embeds, position_ids)
        keys, values = cache.update(new_keys, new_values, 0)
        states = layer(inputs_embeds, query, keys, values, attention_mask)
        (norm,) = self.norm
        logits = self.output(norm(states[:, -logits_to_keep:]))
        return CausalLMOutput(logits=logits, hidden_states=(states,))


FINAL_NORMS = ("norm", "final_layer_norm", "final_layernorm", "ln_f", "layer_norm")


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
        self.ids = frozen.ids
        self.size = len(frozen.embedding)

    def forward(self, logits: Tensor) -> Tensor:
        """(…, V_d) → (…, V)."""
        whole = logits.new_full((*logits.shape[:-1], self.size), -1e4)
        return whole.index_copy_(-1, self.ids, logits)


def as_causal_lm(head: Vdm, spec: Spec, frozen: Frozen, *, reduced: bool = False) -> LlamaForCausalLM:
    """The vdm as a plain transformers model over the whole vocabulary, for ``generate(assistant_model=…)``.

    Only the output rows of the reduced vocabulary are multiplied; reduced leaves it at that: (…, V_d) logits, one per
    id.
    """
    model = LlamaForCausalLM(Vdm.config(spec, len(frozen.embedding)))
    model.model.layers = head.model.layers
    model.model.norm = frozen.norm
    model.model.embed_tokens.weight = nn.Parameter(frozen.embedding, requires_grad=False)
    model.lm_head = frozen_linear(frozen.rows)
    if not reduced:
        model.lm_head = nn.Sequential(model.lm_head, Scattered(frozen))
    model = model.to(frozen.rows)  # to their dtype and device
    return exact_rotation(model).eval()


def exact_rotation(model: nn.Module) -> nn.Module:
    """Put the rotary frequencies of transformers' modules back to float32: ``.to(bf16)`` rounds them, ruinously."""
    for module in model.modules():
        if isinstance(module, LlamaRotaryEmbedding):
            exact = LlamaRotaryEmbedding(module.config).inv_freq
            module.inv_freq = exact.to(module.inv_freq.device)
    return model

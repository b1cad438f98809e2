"""Trained draft heads as modules: those of EAGLE, EAGLE-3, EDD and Medusa, and a small language model (vdm).

A draft head is a small network that guesses the next tokens of one frozen target. It reads the target's embedding and
hidden states, and predicts with the target's final norm and output rows (``Frozen``). An output row is the row of the
lm_head matrix that belongs to one token; heads keep those of a reduced vocabulary. A feature is a vector that stands
for the text up to a token: the target's hidden state there, or the head's guess of it. Heads that others have published
(``heads.published``) are these same modules. They may bring an embedding, a norm and output rows of their own, and they
need the fields of ``Spec`` that have a default.

Modules only contain weights and the arithmetic of one call. ``heads.drafts`` calls them to draft, and ``training`` to
train them. A row of their input is the vector of one token.
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

# Inner width of a head's MLP as a share of the target's, see ``Spec.like``; kinds that are not listed have all of it
MLP_SHARE = {"vdm": Fraction(1, 2), "eagle3": Fraction(2, 3)}


@dataclass(frozen=True)
class Spec:
    """What a head is made of: its kind, sizes, and which of the target's hidden states it reads.

    The heads that ``training`` makes need none of the fields after ``fused``. A head that others have published may.
    """

    kind: str  # vdm, medusa, eagle (also HASS and TALF), eagle3 or edd
    width: int  # of the head's own vectors, and of the target's hidden states unless target_width says otherwise
    attention_heads: int  # number of query heads in a layer
    key_heads: int  # number of heads of keys and values; each serves attention_heads / key_heads query heads
    head_width: int  # of one query, key or value
    mlp: int  # inner width of the MLP
    theta: float  # base of the rotary angles
    epsilon: float  # of the norms
    hidden_layer: int | None = None  # the state it reads, by its index in transformers' hidden_states: -1 is the last
    count: int = 1  # number of decoder layers (vdm) or of Medusa's heads
    fused: tuple[int, ...] = ()  # the states that an eagle3 reads, in place of hidden_layer
    target_width: int | None = None  # of the target's hidden states, where an eagle3 has another width; None: the same
    first_row: bool = True  # whether the first token of a text has a row; published heads begin at the second token
    fc_bias: bool = True  # whether an eagle's fc has a bias; an eagle3's never has
    qkv_bias: bool = False  # whether q_proj, k_proj and v_proj have biases
    o_bias: bool = False  # whether o_proj has one
    qk_norm: bool = False  # whether each query and each key passes a norm before it is rotated, as in Qwen3
    frequencies: tuple[float, ...] = ()  # of the rotary angles, in radians per position; (): those of theta
    rotary_scale: float = 1.0  # queries and keys are multiplied by it as they are rotated (YaRN)
    states_norm: str = ""  # norms before an eagle3's fc: "together", "each" state, or none
    norm_before_residual: bool = False  # an eagle3's layer adds to the normed feature, not to the feature itself
    norm_output: bool = False  # an eagle3's predicted feature is its state after the final norm, not before it

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the target's hidden states that the head reads. The state -1 is the one after the final norm."""
        if self.hidden_layer is None:
            return self.fused
        return (self.hidden_layer,)

    @classmethod
    def like(cls, model: PreTrainedModel, kind: str, **reads) -> "Spec":
        """A spec with the proportions of the target's own layers; reads: hidden_layer, count and fused.

        There are three exceptions. An edd has as many key heads as query heads, though the target may share them: what
        it learns from the target's states passes only through its keys and values. A vdm's MLP has half of the target's
        inner width, so that its two layers are no larger than another head. An eagle3's MLP has two thirds of it,
        because its layer reads two vectors per token. For SmolLM2-135M (width 576, 9 query heads, 3 key heads, MLP
        1536) an edd gets 9 key heads, a vdm an MLP of 768, and an eagle3 one of 1024.

        A target with scaled rotary angles (for long contexts) gets a head with plain ones of the same theta: a head is
        trained, so it need not rotate as its target does.
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


# Linear layers that multiply the same vectors; ``Layer.join`` replaces each group by one layer of this name
JOINED = {"qkv": ("q_proj", "k_proj", "v_proj"), "gate_up": ("gate_proj", "up_proj")}


class Layer(nn.Module):
    """One Llama decoder layer in two halves: ``project`` returns keys and values, ``forward`` takes them back.

    Between the two calls the caller puts the keys and values of earlier rows before the new ones. So the caller decides
    what a row attends to.

    parts: the number of vectors, each of spec.width, that are concatenated in an input row. The last one is the
    residual stream, to which the layer adds.
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
        self.q_proj = nn.Linear(self.row_width, query_width, bias=spec.qkv_bias)
        self.k_proj = nn.Linear(self.row_width, key_width, bias=spec.qkv_bias)
        self.v_proj = nn.Linear(self.row_width, key_width, bias=spec.qkv_bias)
        self.o_proj = nn.Linear(query_width, spec.width, bias=spec.o_bias)
        if spec.qk_norm:
            self.q_norm = LlamaRMSNorm(spec.head_width, spec.epsilon)
            self.k_norm = LlamaRMSNorm(spec.head_width, spec.epsilon)
        self.post_attention_layernorm = LlamaRMSNorm(spec.width, spec.epsilon)
        self.gate_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.down_proj = nn.Linear(spec.mlp, spec.width, bias=False)
        self._frequencies: dict[torch.device, Tensor] = {}  # spec.frequencies, on each device that asked for them

    def project(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Make the queries, keys and values of n rows; queries and keys are rotated to their positions.

        x: (B, n, parts · width). positions: (n,), or (B, n). Returns queries (B, attention_heads, n, head_width), keys
        and values (B, key_heads, n, head_width).
        """
        query, key, value = self._products("qkv", self.input_layernorm(x))
        if self.spec.qk_norm:
            query = self.q_norm(query.unflatten(-1, (-1, self.spec.head_width))).flatten(-2)
            key = self.k_norm(key.unflatten(-1, (-1, self.spec.head_width))).flatten(-2)
        query_and_key = self._split(torch.cat([query, key], -1))  # concatenated, because both are rotated alike
        rotated = self._rotate(query_and_key, positions)
        queries, keys = rotated.split((self.spec.attention_heads, self.spec.key_heads), 1)
        return queries, keys, self._split(value)

    def forward(self, x: Tensor, query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """The layer's output (B, n, width) for rows x with these queries, see ``project``.

        keys, values: (B, key_heads, m, head_width), to which the queries attend.
        mask: broadcastable to (B, heads, n, m), bool (True where a query may look) or additive; None for causal
            attention with n = m.
        """
        attended = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )  # (B, heads, n, head_width)
        attended = attended.transpose(1, 2).flatten(2)
        residual = x[..., -self.spec.width :]
        if self.spec.norm_before_residual:
            residual = self.input_layernorm(x)[..., -self.spec.width :]
        x = residual + self.o_proj(attended)
        gate, up = self._products("gate_up", self.post_attention_layernorm(x))
        return x + self.down_proj(F.silu(gate) * up)

    def _products(self, name: str, x: Tensor) -> Sequence[Tensor]:
        """The outputs for x of the Linear layers that JOINED lists under this name, also after ``join``."""
        joined = getattr(self, name, None)
        if joined is not None:
            return joined(x).split(self.widths[name], -1)
        return [getattr(self, part)(x) for part in JOINED[name]]

    def join(self) -> None:
        """Fuse q, k and v into one Linear layer, and gate and up into another, in place, for inference.

        Several small matrix products are slower than one large one. The state_dict has other names afterwards.
        """
        self.widths: dict[str, list[int]] = {}
        for name, parts in JOINED.items():
            weights = [getattr(self, part).weight for part in parts]
            biases = [getattr(self, part).bias for part in parts]
            self.widths[name] = [len(weight) for weight in weights]
            fused = frozen_linear(torch.cat(weights))
            if biases[0] is not None:
                fused.bias = nn.Parameter(torch.cat(biases), requires_grad=False)
            setattr(self, name, fused)
            for part in parts:
                delattr(self, part)

    def _split(self, x: Tensor) -> Tensor:
        """(B, n, heads · head_width) → (B, heads, n, head_width)."""
        return x.unflatten(-1, (-1, self.spec.head_width)).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding of (B, heads, n, head_width), as in Llama.

        Example: with a head_width of 2 there is one pair, which is rotated by one radian per position. So (1, 0) at
        position 3 becomes (cos 3, sin 3).

        In general entry i of a head's first half forms a pair with entry i of the second half. The pair is rotated by
        position / theta^(2 i / head_width) radians, or by position · spec.frequencies[i] where these are given.
        """
        # (B, 1, n, width / 2), or (1, n, width / 2) for positions (n,); float32
        if self.spec.frequencies:
            angles = positions[..., None, :, None] * self._frequencies_on(x.device)
        else:
            width = self.spec.head_width
            exponents = torch.arange(0, width, 2, device=x.device) / width  # (width / 2,)
            angles = positions[..., None, :, None] / self.spec.theta**exponents
        cos = angles.cos()
        sin = angles.sin()
        if self.spec.rotary_scale != 1:
            cos = cos * self.spec.rotary_scale
            sin = sin * self.spec.rotary_scale
        cos = cos.to(x.dtype)
        sin = sin.to(x.dtype)
        first, second = x.chunk(2, -1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], -1)

    def _frequencies_on(self, device: torch.device) -> Tensor:
        """spec.frequencies as float32 (head_width / 2,) on a device. No buffer: a module's dtype would round it."""
        if device not in self._frequencies:
            self._frequencies[device] = torch.tensor(self.spec.frequencies, dtype=torch.float32, device=device)
        return self._frequencies[device]


class Eagle(nn.Module):
    """EAGLE (Li et al. 2024): predicts the target's next feature, which the output rows turn into the next token.

    An input row combines a token with the feature before it; the output is the feature after the token. The layer has
    no input norm, as in the authors' code. HASS and TALF are this same module, trained differently.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.fc = nn.Linear(2 * spec.width, spec.width, bias=spec.fc_bias)
        self.layer = Layer(spec, nn.Identity())

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """The features: the target's last hidden states, the only ones that it reads."""
        return states[0]

    def rows(self, embedded: Tensor, features: Tensor) -> Tensor:
        """(..., width) embedded tokens and the features before them → (..., width) rows."""
        return self.fc(torch.cat([embedded, features], -1))


class Eagle3(nn.Module):
    """EAGLE-3 (Li et al. 2025): as EAGLE, but a feature is fused from several of the target's hidden states.

    An input row is a token's embedding concatenated with the feature before the token. Attention reads both, each
    after a norm of its own. The feature is the residual stream.
    The target has no states at drafted tokens. So below the root the head's own output, before the final norm (after
    it with spec.norm_output), takes the place of the feature.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        count = len(spec.fused)
        target_width = spec.target_width or spec.width
        self.fc = nn.Linear(count * target_width, spec.width, bias=False)
        self.layer = Layer(spec, Halves(spec), parts=2)
        if spec.states_norm == "together":
            self.states_norm = LlamaRMSNorm(count * target_width, spec.epsilon)
        elif spec.states_norm == "each":
            self.states_norms = nn.ModuleList(LlamaRMSNorm(target_width, spec.epsilon) for _ in range(count))
        self.spec = spec

    def fuse(self, states: Sequence[Tensor]) -> Tensor:
        """(..., target width) states of the layers in spec.fused → (..., width) features."""
        states = list(states)
        if self.spec.states_norm == "each":
            states = [norm(state) for norm, state in zip(self.states_norms, states, strict=True)]
        joined = torch.cat(states, -1)
        if self.spec.states_norm == "together":
            joined = self.states_norm(joined)
        return self.fc(joined)

    def rows(self, embedded: Tensor, features: Tensor) -> Tensor:
        """(..., width) embedded tokens and the features before them → (..., 2 · width) rows."""
        return torch.cat([embedded, features], -1)


class Halves(nn.Module):
    """EAGLE-3's input norm: one norm for the token's half of a row, and another for the feature's half."""

    def __init__(self, spec: Spec):
        super().__init__()
        self.token = LlamaRMSNorm(spec.width, spec.epsilon)
        self.feature = LlamaRMSNorm(spec.width, spec.epsilon)

    def forward(self, x: Tensor) -> Tensor:
        token, feature = x.chunk(2, -1)
        return torch.cat([self.token(token), self.feature(feature)], -1)


class Edd(nn.Module):
    """EDD (Zheng & Wang 2025): a decoder layer that reads the target's states, and then the tokens drafted so far.

    The states h of committed tokens are its soft prompt: input rows that are hidden states and not embeddings. The rows
    of the root and of drafted tokens are embeddings.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.layer = Layer(spec)


class Medusa(nn.Module):
    """Medusa-1 (Cai et al. 2024): several small heads read the target's last state at a token.

    The target itself predicts the next token from that state. Head 0 predicts the one after it, head 1 the one after
    that, and so on.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(spec.width, spec.width) for _ in range(spec.count))
        # With weights of 0 a head returns the state unchanged: training begins at the target's own prediction.
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    def forward(self, features: Tensor) -> Tensor:
        """(..., width) last states of the target → (..., count, width), one state per head for the output rows."""
        states = [features + F.silu(block(features)) for block in self.blocks]
        return torch.stack(states, -2)


class Vdm(nn.Module):
    """The papers' vanilla draft model (vdm): a small independent Llama, which reads tokens and no state of the target.

    The target's embedding, final norm and output rows are used with it, see ``as_causal_lm``. So the LlamaModel is made
    without its own: a vocabulary of 1 keeps the embedding that is thrown away small, and Identity replaces the norm.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        config = self.config(spec, vocabulary=1, bos_token_id=None, eos_token_id=None)
        self.model = LlamaModel(config)
        self.model.embed_tokens = None
        self.model.norm = nn.Identity()

    @staticmethod
    def config(spec: Spec, vocabulary: int, **options) -> LlamaConfig:
        """The configuration of a Llama with these sizes; options: more of LlamaConfig's settings."""
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
            max_position_embeddings=8192,  # SmolLM2's; no weight depends on it
            tie_word_embeddings=False,
            **options,
        )


MODULES = {"vdm": Vdm, "medusa": Medusa, "eagle": Eagle, "eagle3": Eagle3, "edd": Edd}


@dataclass(frozen=True, eq=False)
class Frozen:
    """What heads borrow from the target. V is its vocabulary, V_d the reduced vocabulary that heads predict.

    A published head may have an embedding, a final norm or output rows of its own: then these stand here.
    """

    embedding: Tensor  # (V, width)
    norm: nn.Module  # the final norm
    ids: Tensor  # (V_d,) int64, the token ids that heads predict, rising
    rows: Tensor  # (V_d, width), the output rows of these tokens; of a published Medusa (count, V_d, width)

    @classmethod
    def of(cls, model: PreTrainedModel, ids: Tensor) -> "Frozen":
        """What a head over these token ids borrows from this target.

        The ids have to rise, so that a token has at most one logit and the order of logits is that of the target's.
        Raises ValueError if they do not rise or are not all in its vocabulary, and if its output matrix has a bias.
        """
        output_layer = model.get_output_embeddings()
        if getattr(output_layer, "bias", None) is not None:
            raise ValueError(f"the output matrix of {type(model).__name__} has a bias, which heads leave out")
        output = output_layer.weight.detach()  # (V, width)
        if not rises_within(ids, len(output)):
            raise ValueError(f"a reduced vocabulary is rising token ids below {len(output)}, got {ids[:3].tolist()}…")
        ids = ids.to(output.device)
        embedding = model.get_input_embeddings().weight.detach()
        return cls(embedding, final_norm(model), ids, rows=output[ids].contiguous())

    def before_rows(self, kind: str) -> nn.Module:
        """The norm that the output of a one-layer head of this kind passes before it is multiplied by the output rows.

        An eagle has none, because it predicts features that are already normed.
        """
        if kind in ("eagle3", "edd"):
            return self.norm
        return nn.Identity()


def rises_within(ids: Tensor, size: int) -> bool:
    """Whether token ids (n,) rise within 0..size-1, and there is at least one."""
    if len(ids) == 0 or (ids.diff() <= 0).any():
        return False
    return int(ids[0]) >= 0 and int(ids[-1]) < size


def frozen_linear(rows: Tensor) -> nn.Linear:
    """A Linear layer that is not trained, with this weight (m, width); for example the target's output rows."""
    layer = nn.Linear(1, 1, bias=False)  # the smallest, as its weight is replaced
    layer.weight = nn.Parameter(rows.detach(), requires_grad=False)
    return layer


class HeadModel(nn.Module):
    """A head of one layer, and the output rows after it, as one module that is called as transformers' models are."""

    def __init__(self, head: Eagle | Eagle3 | Edd, frozen: Frozen):
        super().__init__()
        self.head = head
        self.output = frozen_linear(frozen.rows)
        # In a tuple, where nn.Module does not see it: it stays the target's module, and is not moved or cast with this.
        self.norm = (frozen.before_rows(head.layer.spec.kind),)

    def forward(
        self, inputs_embeds: Tensor, position_ids: Tensor, attention_mask: Tensor | None, logits_to_keep: int = 0,
        **others: Cache | bool,
    ) -> CausalLMOutput:  # fmt: skip
        """Logits (1, m, V_d) of the last m rows, and the states (1, n, width) of all n rows.

        inputs_embeds: (1, n, row_width), what the head's ``rows`` returns (of an edd: embeddings).
        position_ids: (1, n).
        attention_mask: (1, 1, n, slots in use + n), or None for causal attention over the first rows of a text.
        logits_to_keep: m; 0 keeps all rows.
        others: the cache, under the name that this version of transformers has for it (ARGUMENT), and use_cache and
            output_hidden_states, which are not read.
        """
        layer = self.head.layer
        cache = others[ARGUMENT]
        query, new_keys, new_values = layer.project(inputs_embeds, position_ids)
        keys, values = cache.update(new_keys, new_values, 0)
        states = layer(inputs_embeds, query, keys, values, attention_mask)
        (norm,) = self.norm
        normed = norm(states[:, -logits_to_keep:])
        if layer.spec.norm_output:
            states = norm(states)
        return CausalLMOutput(logits=self.output(normed), hidden_states=(states,))


class OwnRows(nn.Module):
    """The output rows of a published Medusa: every head has a matrix of its own."""

    def __init__(self, rows: Tensor):
        """rows: (count, V_d, width)."""
        super().__init__()
        self.matrices = nn.ModuleList(frozen_linear(matrix) for matrix in rows)

    def forward(self, states: Tensor) -> Tensor:
        """(..., count, width), a state for each head → (..., count, V_d) logits."""
        logits = [matrix(states[..., head, :]) for head, matrix in enumerate(self.matrices)]
        return torch.stack(logits, -2)


FINAL_NORMS = ("norm", "final_layer_norm", "final_layernorm", "ln_f", "layer_norm")


def final_norm(model: PreTrainedModel) -> nn.Module:
    """The norm between a model's last layer and its output matrix; transformers has several names for it."""
    for name in FINAL_NORMS:
        if hasattr(model.base_model, name):
            return getattr(model.base_model, name)
    raise ValueError(f"{type(model.base_model).__name__} has no final norm by a name of {', '.join(FINAL_NORMS)}")


class Scattered(nn.Module):
    """Extends the logits of a reduced vocabulary to those of the full one, in which all other tokens are ruled out."""

    def __init__(self, frozen: Frozen):
        super().__init__()
        self.ids = frozen.ids
        self.size = len(frozen.embedding)

    def forward(self, logits: Tensor) -> Tensor:
        """(…, V_d) → (…, V)."""
        # A logit of -1e4 is a probability of 0. It is finite, also in float16, so that no difference of logits is NaN.
        full = logits.new_full((*logits.shape[:-1], self.size), -1e4)
        return full.index_copy_(-1, self.ids, logits)


def as_causal_lm(head: Vdm, spec: Spec, frozen: Frozen, *, reduced: bool = False) -> LlamaForCausalLM:
    """The vdm as a plain transformers model over the full vocabulary, for ``generate(assistant_model=…)``.

    Only the output rows of the reduced vocabulary are multiplied; the logits of the other tokens are filled in. With
    reduced they are not, and there are (…, V_d) logits, one per id of the reduced vocabulary.

    The model contains the head's own layers and the target's own norm, not copies. They are cast and moved to the dtype
    and device of the output rows, in place.
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
    """Put the rotary frequencies of a model, which ``.to(bfloat16)`` rounds, back to float32; returns the model.

    A frequency is multiplied by a position, and so is its rounding error. Example: bfloat16 rounds the frequency 0.1 to
    0.1001. At position 1000 the angle is then 100.1 radians and not 100, another one than in training.
    """
    for module in model.modules():
        if isinstance(module, LlamaRotaryEmbedding):
            exact = LlamaRotaryEmbedding(module.config).inv_freq
            module.inv_freq = exact.to(module.inv_freq.device)
    return model

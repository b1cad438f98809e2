"""One decoder layer, opened up, and what a head is made of: the parts trained draft heads share."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel


@dataclass(frozen=True)
class Spec:
    """What a head is made of. kind: vdm, medusa, eagle or edd; hidden_layer: the target's state it reads, if any.

    hidden_layer counts from the end as in transformers' hidden_states: -1 is the last, after the final norm.
    count: number of decoder layers (vdm) or of heads (medusa).
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

    @classmethod
    def like(cls, model: PreTrainedModel, kind: str, *, hidden_layer: int | None = None, count: int = 1) -> "Spec":
        """A head with the proportions of the target's own layers.

        An edd has as many key heads as query heads, though the target may share them: what it learns of the target's
        states passes through its keys and values alone. A vdm's layers have half of the target's inner width, so that
        two of them are no larger than another head.
        """
        config = model.config.get_text_config()
        heads = config.num_attention_heads
        keys, width = (getattr(config, name, None) for name in ("num_key_value_heads", "head_dim"))
        keys = heads if kind == "edd" else keys
        theta = (getattr(config, "rope_parameters", None) or {}).get("rope_theta", 10_000.0)
        return cls(
            kind,
            width=config.hidden_size,
            attention_heads=heads,
            key_heads=keys or heads,
            head_width=width or config.hidden_size // heads,
            mlp=config.intermediate_size // (2 if kind == "vdm" else 1),
            theta=float(theta),
            epsilon=getattr(config, "rms_norm_eps", 1e-5),
            hidden_layer=hidden_layer,
            count=count,
        )


class Norm(nn.Module):
    """RMS norm as in Llama: the mean square in float32, the rest in the dtype of the rows."""

    def __init__(self, width: int, epsilon: float):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: Tensor) -> Tensor:
        scale = torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight.to(x.dtype) * (x * scale).to(x.dtype)


class Layer(nn.Module):
    """One Llama decoder layer, opened up: keys and values come out, and go in as the caller has arranged them."""

    def __init__(self, spec: Spec, *, input_norm: bool = True):
        super().__init__()
        self.spec = spec
        queries, keys = spec.attention_heads * spec.head_width, spec.key_heads * spec.head_width
        self.input_layernorm = Norm(spec.width, spec.epsilon) if input_norm else nn.Identity()
        self.q_proj = nn.Linear(spec.width, queries, bias=False)
        self.k_proj = nn.Linear(spec.width, keys, bias=False)
        self.v_proj = nn.Linear(spec.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, spec.width, bias=False)
        self.post_attention_layernorm = Norm(spec.width, spec.epsilon)
        self.gate_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.up_proj = nn.Linear(spec.width, spec.mlp, bias=False)
        self.down_proj = nn.Linear(spec.mlp, spec.width, bias=False)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x: (B, n, width), positions: (n,) or (B, n) → keys and values, (B, key_heads, n, head_width) each."""
        x = self.input_layernorm(x)
        return self._rotate(self._split(self.k_proj(x)), positions), self._split(self.v_proj(x))

    def forward(self, x: Tensor, positions: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
        """x: (B, n, width) attends to (B, key_heads, m, head_width) keys under a bool mask; (B, n, width).

        mask: bool, broadcastable to (B, heads, n, m), True where a query may look; None is causal with n = m.
        """
        query = self._rotate(self._split(self.q_proj(self.input_layernorm(x))), positions)
        seen = F.scaled_dot_product_attention(
            query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
        )
        x = x + self.o_proj(seen.transpose(1, 2).flatten(2))
        inner = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(inner)) * self.up_proj(inner))

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.spec.head_width)).transpose(1, 2)

    def _rotate(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotary embedding, the two halves of a head turned against each other as in Llama."""
        half = torch.arange(0, self.spec.head_width, 2, device=x.device) / self.spec.head_width
        angle = positions[..., None] / self.spec.theta**half  # (n, half) or (B, n, half), float32
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        if positions.dim() == 2:
            cos, sin = cos[:, None], sin[:, None]
        a, b = x.chunk(2, -1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

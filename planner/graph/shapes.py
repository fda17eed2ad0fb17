"""What a configuration says about a transformer, in one form for all families:

sizes only, no sequence length, no training.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = [
    "AttentionShape",
    "EmbeddingShape",
    "ExpertShape",
    "FeedForwardShape",
    "LatentShape",
    "LayerShape",
    "NormKind",
    "NormPlacement",
    "TransformerShape",
    "norm_parameters",
]

NormKind = Literal["rms", "layer", "layer_without_bias"]

NormPlacement = Literal["before", "after", "both", "output", "shared", "two_shared"]
"""Where a layer's norms stand.

before: in front of attention and of the MLP (GPT-2, Llama).  after: behind each residual addition (OPT-350M).
both: in front of each and on its output (Gemma 2 and 3, Grok).  output: only on the output of each, before the
addition (OLMo 2).
shared: attention and MLP run side by side on one norm's output (Falcon-7B, Phi-2).  two_shared: side by side, each
with its own norm (GPT-NeoX, Falcon-40B).
"""


@dataclass(frozen=True)
class LatentShape:
    """Multi-head latent attention: queries (rank None:

    not compressed), and keys and values through one narrow vector.
    """

    query_rank: int | None
    key_value_rank: int
    rotary_dim: int
    bias: bool = False


@dataclass(frozen=True)
class AttentionShape:
    """One attention. head_dim: width of a query or key head; value_dim: of a value head.

    window: how many earlier tokens a token sees, itself included; None: all.  query_key_norm: RMSNorm on each head
    ("head") or over all heads ("full").
    sinks: one learned score a head that takes part in the softmax (GPT-OSS).
    relative_buckets: T5's learned table of position biases, one a head and bucket, in this layer.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    value_dim: int
    causal: bool = True
    window: int | None = None
    query_key_value_bias: bool = False
    output_bias: bool = False
    query_key_norm: Literal["none", "head", "full"] = "none"
    rotary: bool = True
    dropout: bool = False
    relative_buckets: int = 0
    sinks: bool = False
    latent: LatentShape | None = None


@dataclass(frozen=True)
class FeedForwardShape:
    """An MLP of two matrices, or of three when gated. inner_dropout: a dropout mask on the hidden units (T5)."""

    intermediate_size: int
    gated: bool
    bias: bool = False
    activation: Literal["smooth", "relu"] = "smooth"
    inner_dropout: bool = False


@dataclass(frozen=True)
class ExpertShape:
    """Routed experts, of which each token meets `top_k`, and shared ones that every token meets (as one MLP of their
    summed width).

    bias: on the router and on every expert's matrices.
    balancing_bias: one number an expert, set by the load and not by the gradient (DeepSeek-V3).  shared_gate: one gate
    weight a hidden unit (Qwen2-MoE).
    """

    num_experts: int
    top_k: int
    intermediate_size: int
    gated: bool = True
    bias: bool = False
    balancing_bias: bool = False
    shared: FeedForwardShape | None = None
    shared_gate: bool = False


@dataclass(frozen=True)
class LayerShape:
    """One transformer layer. label: what its kind is called; layers with equal shapes get one kind."""

    label: str
    attention: AttentionShape
    feed_forward: FeedForwardShape | ExpertShape
    norm: NormKind
    placement: NormPlacement = "before"
    cross_attention: AttentionShape | None = None
    dropout: bool = False


@dataclass(frozen=True)
class EmbeddingShape:
    """The token table. width: of a table row when it is narrower than the model (OPT-350M projects up and down);
    positions: rows of learned positions.
    """

    width: int | None = None
    positions: int = 0
    norm: NormKind | None = None
    dropout: bool = False


@dataclass(frozen=True)
class TransformerShape:
    """A whole model. layers: the decoder, or the only stack; encoder: empty for decoder-only models.

    mtp: layers that predict further tokens, each with its norms, projection, and copies of embedding and head.
    max_positions: the longest sequence the file promises.
    """

    family: str
    hidden_size: int
    vocabulary: int
    layers: tuple[LayerShape, ...]
    tied: bool
    final_norm: NormKind | None
    encoder: tuple[LayerShape, ...] = ()
    embedding: EmbeddingShape = field(default_factory=EmbeddingShape)
    head_bias: bool = False
    mtp: tuple[LayerShape, ...] = ()
    max_positions: int | None = None
    notes: tuple[str, ...] = ()


def norm_parameters(kind: NormKind, width: int) -> int:
    """A LayerNorm has a scale and a shift, the others a scale."""
    return 2 * width if kind == "layer" else width

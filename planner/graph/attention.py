"""Attention, operation by operation: projections, the core with its kernel, what each keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.graph.recipe import ALWAYS

if TYPE_CHECKING:
    from planner.graph.layers import Sharding
    from planner.graph.parts import Parts
    from planner.graph.recipe import Recipe
    from planner.graph.shapes import AttentionShape, LatentShape

__all__ = ["add_attention", "visible_pairs"]

_FLASH_BACKWARD = 2.5
"""Flash attention makes the scores again in its backward pass: five products there, two in the forward pass."""


def visible_pairs(tokens: float, causal: bool, window: int | None) -> float:
    """Query-key pairs that the mathematics needs: s^2, half of it when causal, a band of width w when windowed.

    causal:   s^2 / 2, with a window w < s:  s*w - w^2 / 2   (equal at w = s)
    """
    if not causal:
        return tokens * tokens
    reach = min(tokens, window) if window else tokens
    return tokens * reach - reach * reach / 2


def add_attention(
    parts: Parts, shape: AttentionShape, hidden: int, prefix: str = "attention", *, cross: bool = False
) -> None:
    """Attention from its input (a norm's output, kept by the caller) to its output projection.

    cross: keys and values come from the encoder's output, which is as long as the decoder's input here and is kept too.
    """
    tokens = parts.recipe.tokens
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    value, mixed = shape.num_kv_heads * shape.value_dim, shape.num_heads * shape.value_dim
    if shape.latent is not None:
        _project_latent(parts, shape, shape.latent, hidden, prefix)
    else:
        _project(parts, shape, hidden, prefix, cross)
    if shape.rotary:
        width = key + query
        parts.elementwise(f"{prefix}_rotary", 2.0 * tokens * width, "tensor", backward_ratio=1.0)
    parts.weight(f"{prefix}_relative_bias", shape.relative_buckets * shape.num_heads, "tensor")
    parts.weight(f"{prefix}_sinks", shape.num_heads if shape.sinks else 0, "tensor")
    for name, width in (("query", query), ("key", key), ("value", value)):
        parts.save(f"{prefix}_{name}", tokens * width, "tensor")
    _add_core(parts, shape, prefix, query, key, value, mixed)
    parts.save(f"{prefix}_output", tokens * mixed, "tensor")
    output_bias: Sharding | None = (
        "replicated" if shape.output_bias or (shape.latent is not None and shape.latent.bias) else None
    )
    parts.matmul(f"{prefix}_projection", mixed, hidden, bias=output_bias)
    parts.exchange(
        f"{prefix}_keys_values",
        "ring",
        "context",
        tokens * (key + value),
        backward=2,
        rerun=parts.recipe.core_rerun,
    )


def _project(parts: Parts, shape: AttentionShape, hidden: int, prefix: str, cross: bool) -> None:
    """Queries, keys and values from the hidden vector, in one product;
    two when the keys and values come from elsewhere.
    """
    tokens = parts.recipe.tokens
    query = shape.num_heads * shape.head_dim
    key_value = shape.num_kv_heads * (shape.head_dim + shape.value_dim)
    bias: Sharding | None = "tensor" if shape.query_key_value_bias else None
    if cross:
        parts.matmul(f"{prefix}_query", hidden, query, bias=bias)
        parts.matmul(f"{prefix}_key_value", hidden, key_value, bias=bias)
        parts.save(f"{prefix}_encoder_output", tokens * hidden, kept=ALWAYS)
    else:
        parts.matmul(f"{prefix}_query_key_value", hidden, query + key_value, bias=bias)
    if shape.query_key_norm == "none":
        return
    key = shape.num_kv_heads * shape.head_dim
    if shape.query_key_norm == "head":
        parts.weight(f"{prefix}_query_key_norm", 2 * shape.head_dim, "replicated")
    else:
        parts.weight(f"{prefix}_query_key_norm", query + key, "tensor")
    parts.elementwise(f"{prefix}_query_key_norm", 2.0 * tokens * (query + key), "tensor", backward_ratio=1.5)
    parts.save(f"{prefix}_query_key_norm_input", tokens * (query + key), "tensor")


def _project_latent(parts: Parts, shape: AttentionShape, latent: LatentShape, hidden: int, prefix: str) -> None:
    """Down to a narrow vector (whole on every chip of the group), a norm on it, up to the heads."""
    tokens = parts.recipe.tokens
    bias: Sharding | None = "replicated" if latent.bias else None
    if latent.query_rank is None:
        parts.matmul(f"{prefix}_query", hidden, shape.num_heads * shape.head_dim)
    else:
        parts.matmul(f"{prefix}_query_down", hidden, latent.query_rank, sharding="sequence", bias=bias)
        parts.save(f"{prefix}_query_norm_input", tokens * latent.query_rank)
        parts.norm(f"{prefix}_query_norm", "rms", latent.query_rank)
        parts.save(f"{prefix}_query_latent", tokens * latent.query_rank, kept=parts.recipe.cheap_kept)
        parts.matmul(f"{prefix}_query_up", latent.query_rank, shape.num_heads * shape.head_dim)
    narrow = latent.key_value_rank + latent.rotary_dim
    parts.matmul(f"{prefix}_key_value_down", hidden, narrow, sharding="sequence", bias=bias)
    parts.save(f"{prefix}_key_value_norm_input", tokens * narrow)
    parts.norm(f"{prefix}_key_value_norm", "rms", latent.key_value_rank)
    parts.save(f"{prefix}_key_value_latent", tokens * latent.key_value_rank, kept=parts.recipe.cheap_kept)
    plain = shape.head_dim - latent.rotary_dim
    parts.matmul(f"{prefix}_key_value_up", latent.key_value_rank, shape.num_heads * (plain + shape.value_dim))


def _add_core(parts: Parts, shape: AttentionShape, prefix: str, query: int, key: int, value: int, mixed: int) -> None:
    """The core by its kernel, and the working set of its backward pass: the gradients of q, k, v and the output, and,
    where scores are in memory, per score

        3 * compute width (scores, their gradient, that of the softmax) + 2 * 4 bytes (fp32 softmax, its gradient)

    With the kept softmax that is 16 bytes a score in sixteen bits; 16.3 were measured on one layer of 40 heads over 4
    chips at 4,096 to 16,384 tokens (github.com/VITA-MLLM/Long-VITA/issues/7).
    """
    recipe = parts.recipe
    tokens = recipe.tokens
    gradients = float(tokens * (query + key + value + mixed))
    if recipe.attention == "math":
        _add_math_core(parts, shape, prefix, query, key, value, mixed)
        scores = float(shape.num_heads) * tokens * tokens
        parts.need(gradients + 3 * scores, 2 * scores)
        return
    flops = _core_flops(shape, visible_pairs(tokens, shape.causal, shape.window))
    parts.attention_core(f"{prefix}_core", flops, flops, gradients, _FLASH_BACKWARD)
    parts.save(f"{prefix}_softmax_statistics", tokens * shape.num_heads, "tensor", width="fp32")
    parts.need(gradients)


def _add_math_core(
    parts: Parts, shape: AttentionShape, prefix: str, query: int, key: int, value: int, mixed: int
) -> None:
    """Scores in memory: every pair is computed, masked or not.

    Keeps the softmax and, with dropout, its mask and result.
    """
    recipe: Recipe = parts.recipe
    tokens = recipe.tokens
    scores = float(shape.num_heads) * tokens * tokens
    share = visible_pairs(tokens, shape.causal, shape.window) / (tokens * tokens)
    dropout = recipe.drops(shape.dropout)
    for name, width, bytes_moved in (
        ("scores", shape.head_dim, tokens * (query + key) + scores),
        ("values", shape.value_dim, tokens * (value + mixed) + scores),
    ):
        flops = 2.0 * scores * width
        parts.attention_core(f"{prefix}_{name}", flops, flops * share, bytes_moved, 2.0)
    parts.elementwise(f"{prefix}_softmax", 2.0 * scores, "tensor", backward_ratio=1.5, rerun=recipe.core_rerun)
    parts.save(f"{prefix}_softmax", scores, "tensor", kept=recipe.core_kept)
    if dropout:
        parts.elementwise(f"{prefix}_dropout", 2.5 * scores, "tensor", backward_ratio=1.0, rerun=recipe.core_rerun)
        parts.save(f"{prefix}_dropout_mask", scores, "tensor", width="mask", kept=recipe.core_kept)
        parts.save(f"{prefix}_dropped_softmax", scores, "tensor", kept=recipe.core_kept)


def _core_flops(shape: AttentionShape, pairs: float) -> float:
    return 2.0 * pairs * shape.num_heads * (shape.head_dim + shape.value_dim)

"""A transformer layer from its shape: norms, attention, MLP and residual additions in the order of its family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.graph.attention import add_attention
from planner.graph.feed_forward import add_mlp_part
from planner.graph.parts import Parts
from planner.graph.recipe import ALWAYS, ONLY_FULL

if TYPE_CHECKING:
    from planner.graph.layers import Layer
    from planner.graph.recipe import Recipe
    from planner.graph.shapes import AttentionShape, LayerShape

__all__ = ["add_transformer", "transformer_layer"]


def transformer_layer(name: str, shape: LayerShape, hidden: int, recipe: Recipe) -> Layer:
    """One layer; its kind is its label until equal layers are grouped."""
    parts = Parts(recipe)
    add_transformer(parts, shape, hidden)
    return parts.layer(name, shape.label)


def add_transformer(parts: Parts, shape: LayerShape, hidden: int, input_kept: frozenset[str] = ALWAYS) -> None:
    """Everything of one transformer layer. input_kept: the policies that keep its input.

    Kept by a GPT layer in sixteen bits (s tokens, width h, a heads), in bytes, arXiv 2205.05198:
        attention  11 s h + 5 a s^2,   MLP  19 s h,   two norms' inputs  4 s h;   together  s h (34 + 5 a s / h)
    """
    parts.save("input", parts.recipe.tokens * hidden, kept=input_kept)
    if shape.placement in ("shared", "two_shared"):
        _add_side_by_side(parts, shape, hidden)
    else:
        _add_attention_part(parts, shape, hidden, shape.attention, "attention", first=True)
        if shape.cross_attention is not None:
            _add_attention_part(parts, shape, hidden, shape.cross_attention, "cross_attention", first=False)
        _add_mlp(parts, shape, hidden)
    parts.transient_elements += float(
        parts.recipe.tokens * hidden
    )  # the gradient that travels along the residual stream


def _add_attention_part(
    parts: Parts, shape: LayerShape, hidden: int, attention: AttentionShape, prefix: str, *, first: bool
) -> None:
    """Norm, attention, norm on the output, addition; whichever of the norms the family has."""
    _norm_before(parts, shape, hidden, prefix, keep_input=not first)
    add_attention(parts, attention, hidden, prefix, cross=not first)
    parts.exchange(f"{prefix}_output", "all_reduce", "tensor", parts.recipe.tokens * hidden)
    _norm_after(parts, shape, hidden, prefix)
    _add_residual(parts, shape, hidden, prefix)
    _norm_behind_addition(parts, shape, hidden, prefix)


def _add_mlp(parts: Parts, shape: LayerShape, hidden: int) -> None:
    if shape.placement == "after":
        parts.save("mlp_input", parts.recipe.tokens * hidden, kept=parts.recipe.cheap_kept)
    elif shape.placement == "output":
        parts.save("mlp_input", parts.recipe.tokens * hidden)
    _norm_before(parts, shape, hidden, "mlp", keep_input=True)
    add_mlp_part(parts, shape.feed_forward, hidden)
    parts.exchange("mlp_output", "all_reduce", "tensor", parts.recipe.tokens * hidden)
    _norm_after(parts, shape, hidden, "mlp")
    _add_residual(parts, shape, hidden, "mlp")
    _norm_behind_addition(parts, shape, hidden, "mlp")


def _add_side_by_side(parts: Parts, shape: LayerShape, hidden: int) -> None:
    """Attention and MLP on the same input; one all-reduce sums both."""
    elements = parts.recipe.tokens * hidden
    parts.norm("attention_norm", shape.norm, hidden)
    parts.save("attention_input", elements, kept=parts.recipe.cheap_kept)
    if shape.placement == "two_shared":
        parts.norm("mlp_norm", shape.norm, hidden)
        parts.save("mlp_input", elements, kept=parts.recipe.cheap_kept)
    add_attention(parts, shape.attention, hidden)
    add_mlp_part(parts, shape.feed_forward, hidden)
    parts.exchange("layer_output", "all_reduce", "tensor", elements)
    _add_residual(parts, shape, hidden, "attention")
    _add_residual(parts, shape, hidden, "mlp")


def _norm_before(parts: Parts, shape: LayerShape, hidden: int, prefix: str, *, keep_input: bool) -> None:
    """The norm in front keeps its input (the layer's own input is kept already) and its output, which the matrices
    read.
    """
    if shape.placement not in ("before", "both"):
        return
    elements = parts.recipe.tokens * hidden
    if keep_input:
        parts.save(f"{prefix}_norm_input", elements)
    parts.norm(f"{prefix}_norm", shape.norm, hidden)
    parts.save(f"{prefix}_input", elements, kept=parts.recipe.cheap_kept)


def _norm_after(parts: Parts, shape: LayerShape, hidden: int, prefix: str) -> None:
    """The norm on the output keeps its input; its result goes into an addition, which keeps nothing."""
    if shape.placement not in ("both", "output"):
        return
    parts.save(f"{prefix}_output_norm_input", parts.recipe.tokens * hidden)
    parts.norm(f"{prefix}_output_norm", shape.norm, hidden, rerun=ONLY_FULL)


def _norm_behind_addition(parts: Parts, shape: LayerShape, hidden: int, prefix: str) -> None:
    """The norm behind an addition keeps the sum; its result is the next part's input, or the next layer's."""
    if shape.placement != "after":
        return
    parts.save(f"{prefix}_norm_input", parts.recipe.tokens * hidden)
    parts.norm(f"{prefix}_norm", shape.norm, hidden, rerun=ONLY_FULL if prefix == "mlp" else None)


def _add_residual(parts: Parts, shape: LayerShape, hidden: int, prefix: str) -> None:
    """Dropout, when the layer has it, and the addition to the residual stream."""
    elements = float(parts.recipe.tokens * hidden)
    if parts.recipe.drops(shape.dropout):
        parts.elementwise(f"{prefix}_residual", 3.5 * elements, "sequence", backward_ratio=1.0)
        parts.save(f"{prefix}_residual_dropout_mask", elements, width="mask")
    else:
        parts.elementwise(f"{prefix}_residual", 3.0 * elements, "sequence", backward_ratio=1.0)

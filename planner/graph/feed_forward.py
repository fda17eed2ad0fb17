"""MLPs and routed experts, operation by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.graph.recipe import ONLY_FULL, UNLESS_FULL
from planner.graph.shapes import ExpertShape

if TYPE_CHECKING:
    from planner.graph.layers import Sharding
    from planner.graph.parts import Parts
    from planner.graph.shapes import FeedForwardShape

__all__ = ["add_experts", "add_feed_forward", "add_mlp_part"]


def add_mlp_part(parts: Parts, shape: FeedForwardShape | ExpertShape, hidden: int) -> None:
    """The second half of a layer, from its input (kept by the caller) to its output."""
    if isinstance(shape, ExpertShape):
        add_experts(parts, shape, hidden)
    else:
        add_feed_forward(parts, shape, hidden, "mlp")


def add_feed_forward(parts: Parts, shape: FeedForwardShape, hidden: int, prefix: str) -> None:
    """Up (and gate), activation, down."""
    width = shape.intermediate_size
    up_bias: Sharding | None = "tensor" if shape.bias else None
    down_bias: Sharding | None = "replicated" if shape.bias else None
    name = f"{prefix}_gate_up" if shape.gated else f"{prefix}_up"
    up_width = 2 * width if shape.gated else width
    parts.matmul(name, hidden, up_width, bias=up_bias)
    _activate(parts, prefix, width, "tensor", gated=shape.gated, relu=shape.activation == "relu")
    if shape.inner_dropout and parts.recipe.drops(True):
        _drop_inside(parts, prefix, width, relu=shape.activation == "relu")
    parts.matmul(f"{prefix}_down", width, hidden, bias=down_bias)
    parts.need(float(parts.recipe.tokens * (up_width + width)))


def _drop_inside(parts: Parts, prefix: str, width: int, *, relu: bool) -> None:
    """T5's dropout between the matrices.

    ReLU keeps its output, so the dropped copy that the next matrix reads is a tensor of its own.
    """
    elements = float(parts.recipe.tokens * width)
    parts.elementwise(
        f"{prefix}_inner_dropout", 2.5 * elements, "tensor", backward_ratio=1.0, rerun=parts.recipe.cheap_rerun
    )
    parts.save(f"{prefix}_inner_dropout_mask", elements, "tensor", width="mask")
    if relu:
        parts.save(f"{prefix}_dropped", elements, "tensor", kept=parts.recipe.cheap_kept)


def add_experts(parts: Parts, shape: ExpertShape, hidden: int) -> None:
    """Router, dispatch, the experts' MLPs on top_k copies of every token, combination; shared experts beside them."""
    tokens = parts.recipe.tokens
    bias: Sharding | None = "replicated" if shape.bias else None
    parts.matmul("router", hidden, shape.num_experts, sharding="sequence", bias=bias)
    if shape.balancing_bias:
        parts.weight("router_balancing_bias", shape.num_experts, "replicated", trained=False)
    parts.save("router_scores", tokens * shape.num_experts, width="fp32")
    _run_experts(parts, shape, hidden)
    parts.elementwise("expert_combine", (shape.top_k + 1.0) * tokens * hidden, "expert", backward_ratio=1.5)
    parts.exchange("expert_combine", "all_to_all", "expert", tokens * shape.top_k * hidden)
    if shape.shared is not None:
        add_feed_forward(parts, shape.shared, hidden, "shared_expert")
        if shape.shared_gate:
            parts.matmul("shared_expert_gate", hidden, 1, sharding="sequence")
            parts.save("shared_expert_output", tokens * hidden)


def _run_experts(parts: Parts, shape: ExpertShape, hidden: int) -> None:
    """All experts' weights are read once a micro-batch; the work is top_k MLPs a token."""
    tokens, width, top_k = parts.recipe.tokens, shape.intermediate_size, shape.top_k
    up_width = 2 * width if shape.gated else width
    parts.exchange("expert_dispatch", "all_to_all", "expert", tokens * top_k * hidden)
    parts.elementwise("expert_dispatch", (top_k + 1.0) * tokens * hidden, "expert", backward_ratio=1.0)
    parts.save("expert_input", tokens * top_k * hidden, "expert")
    parts.weight("experts", shape.num_experts * hidden * (up_width + width), "expert")
    if shape.bias:
        parts.weight("experts_bias", shape.num_experts * (up_width + hidden), "expert")
    up_elements = float(shape.num_experts * hidden * up_width)
    down_elements = float(shape.num_experts * hidden * width)
    parts.multiply("expert_gate_up", hidden, up_width, up_elements, sharding="expert", rows=top_k)
    _activate(parts, "expert", width, "expert", gated=shape.gated, rows=top_k)
    parts.multiply("expert_down", width, hidden, down_elements, sharding="expert", rows=top_k)
    parts.save("expert_output", tokens * top_k * hidden, "expert")
    parts.need(float(tokens * top_k * (up_width + width + hidden)))


def _activate(
    parts: Parts, prefix: str, width: int, sharding: Sharding, *, gated: bool, relu: bool = False, rows: int = 1
) -> None:
    """The activation function. ReLU keeps its output only;
    others keep their input and the product that the next matrix reads.
    """
    elements = float(parts.recipe.tokens * rows * width)
    recipe = parts.recipe
    if gated:
        parts.elementwise(
            f"{prefix}_activation", 3 * elements, sharding, backward_ratio=5 / 3, rerun=recipe.cheap_rerun
        )
        parts.save(f"{prefix}_gate", elements, sharding)
        parts.save(f"{prefix}_up", elements, sharding)
        parts.save(f"{prefix}_product", elements, sharding, kept=recipe.cheap_kept)
        return
    rerun = ONLY_FULL if relu else recipe.cheap_rerun
    parts.elementwise(f"{prefix}_activation", 2 * elements, sharding, backward_ratio=1.5, rerun=rerun)
    if not relu:
        parts.save(f"{prefix}_up", elements, sharding)
    kept = UNLESS_FULL if relu else recipe.cheap_kept
    parts.save(f"{prefix}_activated", elements, sharding, kept=kept)

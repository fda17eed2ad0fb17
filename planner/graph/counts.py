"""Numbers of a whole graph that reports need: active parameters, the model's own FLOPs."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planner.graph.layers import Layer, LayerGraph, Operation

__all__ = ["active_parameters", "flops_per_token", "forward_flops"]


def active_parameters(layers: Iterable[Layer], expert_share: float) -> int:
    """Parameters that one token meets: of the routed experts their share (top_k / num_experts), all of the rest.

    Without prediction layers for later tokens and without the routers' balancing bias, as published figures count.
    """
    total = 0.0
    for layer in layers:
        if layer.name.startswith("mtp."):
            continue
        for weight in layer.weights:
            if weight.tied_to is None and weight.name != "router_balancing_bias":
                total += weight.parameters * (expert_share if weight.sharding == "expert" else 1.0)
    return round(total)


def forward_flops(layer: Layer) -> float:
    """FLOPs of a layer's forward pass that the model needs, for one sequence:

    products with weights and attention, without masked scores.
    """
    return sum(_needed(op) for op in layer.operations)


def flops_per_token(graph: LayerGraph) -> float:
    """Model FLOPs of a training step per token, for MFU: forward, and backward without anything that is made again.

    sum over operations of forward * (1 + min(2, backward ratio)) / sequence_length;
    close to 6 * active_parameters + 6 * layers * heads * head_dim * s for a causal model of which everything is
    trained.
    """
    flops = sum(
        _needed(op) * (1.0 + min(2.0, op.backward_flops_ratio)) for layer in graph.layers for op in layer.operations
    )
    return flops / graph.sequence_length


def _needed(op: Operation) -> float:
    if op.operation_class not in ("matmul", "attention"):
        return 0.0
    return op.flops if op.useful_flops is None else op.useful_flops

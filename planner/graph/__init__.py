"""The layer graph: what the layers of a model compute, keep and send."""

from __future__ import annotations

from planner.graph.build import build_graph
from planner.graph.counts import flops_per_token, forward_flops
from planner.graph.layers import (
    Collective,
    Edge,
    Layer,
    LayerGraph,
    MeasuredTime,
    Operation,
    OperationClass,
    RecomputePolicy,
    SavedTensor,
    Sharding,
    Weight,
)
from planner.graph.limits import (
    padded_vocabulary,
    sequence_refusal,
    tensor_parallel_limits,
    tensor_parallel_refusal,
)
from planner.graph.presets import preset_names
from planner.graph.recipe import compute_width_bytes

__all__ = [
    "Collective",
    "Edge",
    "Layer",
    "LayerGraph",
    "MeasuredTime",
    "Operation",
    "OperationClass",
    "RecomputePolicy",
    "SavedTensor",
    "Sharding",
    "Weight",
    "build_graph",
    "compute_width_bytes",
    "flops_per_token",
    "forward_flops",
    "padded_vocabulary",
    "preset_names",
    "sequence_refusal",
    "tensor_parallel_limits",
    "tensor_parallel_refusal",
]

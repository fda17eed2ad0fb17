"""What tensor and context parallelism ask of a model: heads and widths that divide, a vocabulary that is padded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.graph.layers import LayerGraph

__all__ = ["NO_NODE_SPLITS", "VOCABULARY_MULTIPLE", "padded_vocabulary"]
__all__ += ["sequence_refusal", "tensor_parallel_limits", "tensor_parallel_refusal"]

VOCABULARY_MULTIPLE = 128
"""Each tensor parallel shard of the vocabulary is a multiple of this (Megatron's --make-vocab-size-divisible-by)."""

NO_NODE_SPLITS = ("no node of the graph has tensor_parallel: true", 1)
"""The limit of an explicit graph whose nodes run whole."""


def tensor_parallel_limits(graph: LayerGraph) -> tuple[tuple[str, int], ...]:
    """(field, number) pairs that every tensor parallel degree must divide. A pair with 1 allows no splitting."""
    return graph.tensor_divisors


def tensor_parallel_refusal(graph: LayerGraph, tensor_parallel: int) -> str | None:
    """Why a degree is not possible for this model, or None.

    A degree divides the query heads, the key/value heads (none is kept twice) and the MLP width. The vocabulary needs
    no divisor: it is padded.
    """
    for name, number in tensor_parallel_limits(graph):
        if number % tensor_parallel and (name, number) == NO_NODE_SPLITS:
            return f"tensor_parallel {tensor_parallel} is not possible: {name}"
        if number % tensor_parallel:
            return f"tensor_parallel {tensor_parallel} does not divide {name} {number}"
    return None


def sequence_refusal(
    sequence_length: int, tensor_parallel: int, context_parallel: int, sequence_parallel: bool
) -> str | None:
    """Why a sequence cannot be cut for these degrees, or None.

    Context parallelism gives each chip two pieces, one from the front and one from the back, so that causal work is
    even: s divides by 2 c.
    Sequence parallelism cuts what is left by t.
    """
    pieces = 2 * context_parallel if context_parallel > 1 else 1
    if sequence_length % pieces:
        return f"sequence_length {sequence_length} does not divide by 2 x context_parallel {context_parallel}"
    rows = sequence_length // context_parallel
    if sequence_parallel and rows % tensor_parallel:
        where = f" / context_parallel {context_parallel}" if context_parallel > 1 else ""
        return (
            f"sequence_length {sequence_length}{where} does not divide by tensor_parallel {tensor_parallel},"
            " as sequence parallelism needs"
        )
    return None


def padded_vocabulary(vocabulary: int, tensor_parallel: int, multiple: int = VOCABULARY_MULTIPLE) -> int:
    """The vocabulary that a trainer really holds: the next multiple of 128 * t.

    Padded rows cost memory and FLOPs in whatever a layer marks with `vocabulary`; the published parameter count is
    without them.
    """
    step = multiple * tensor_parallel
    return -(-vocabulary // step) * step

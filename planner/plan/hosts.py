"""Third part of the check: the host memory of every node holds what its chips offload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.cost.host_copies import host_share_bytes
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.evaluate import PipelineNumbers, PipelineShape

__all__ = ["host_bytes_of_nodes", "host_violations"]


def host_bytes_of_nodes(
    shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers]
) -> dict[tuple[int, int], float]:
    """Bytes in host memory by (node group, node): optimizer states, and activations of every micro-batch in flight:

    sum over the replicas of stages that sit there of   chips of the replica * host bytes of a chip
    """
    held: dict[tuple[int, int], float] = defaultdict(float)
    for shape, own in zip(shapes, numbers, strict=True):
        for stage, breakdown, places in zip(shape.stages, own.stages, shape.places, strict=True):
            chips = stage.tensor * shape.setting.context_parallel
            for node, _ in places if breakdown.memory.host_bytes else ():
                held[stage.group, node] += chips * (breakdown.memory.host_bytes or 0.0)
    return dict(held)


def host_violations(
    subject: Subject, shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers]
) -> Iterator[Violation]:
    """Nodes whose chips keep more in host memory than `host_memory` of their group, for whatever use."""
    from planner.spec.units import format_bytes

    for (index, node), needed in sorted(host_bytes_of_nodes(shapes, numbers).items()):
        group = subject.cluster.node_groups[index]
        limit = host_share_bytes(subject.cluster.chip_of(index), group) * group.chips_per_node
        if needed > limit + group.chips_per_node:
            message = (
                f"node {node} of {group.name} needs {format_bytes(needed)} of host memory, it has"
                f" {format_bytes(limit)}: {format_bytes(needed - limit)} too much"
            )
            yield Violation("host-memory", "islands", message)

"""Third part of the check: host memory and drives of every node hold what its chips offload."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from planner.cost.host_copies import host_share_bytes
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.evaluate import PipelineNumbers, PipelineShape

__all__ = ["bytes_of_nodes", "host_violations"]


def bytes_of_nodes(
    where: Literal["host_bytes", "nvme_bytes"],
    shapes: Sequence[PipelineShape],
    numbers: Sequence[PipelineNumbers],
) -> dict[tuple[int, int], float]:
    """Bytes in host memory, or on drives, by (node group, node): optimizer states, and in host memory buffers for those
    on drives and the activations of every micro-batch in flight:

    sum over the replicas of stages that sit there of   chips of the replica * bytes of a chip
    """
    held: dict[tuple[int, int], float] = defaultdict(float)
    for shape, own in zip(shapes, numbers, strict=True):
        for stage, breakdown, places in zip(shape.stages, own.stages, shape.places, strict=True):
            chips = stage.tensor * shape.setting.context_parallel
            of_chip: float | None = getattr(breakdown.memory, where)
            for node, _ in places if of_chip else ():
                held[stage.group, node] += chips * (of_chip or 0.0)
    return dict(held)


def host_violations(
    subject: Subject, shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers]
) -> Iterator[Violation]:
    """Nodes whose chips keep more in host memory than `host_memory` of their group, for whatever use, or more on drives
    than the capacity of its `nvme`."""
    for (index, node), needed in sorted(bytes_of_nodes("host_bytes", shapes, numbers).items()):
        group = subject.cluster.node_groups[index]
        limit = host_share_bytes(subject.cluster.chip_of(index), group) * group.chips_per_node
        yield from _over("host-memory", "of host memory", index, node, needed, limit, subject)
    for (index, node), needed in sorted(bytes_of_nodes("nvme_bytes", shapes, numbers).items()):
        drives = subject.cluster.node_groups[index].nvme
        limit = 0.0 if drives is None else float(drives.capacity_bytes)
        yield from _over("nvme", "on drives", index, node, needed, limit, subject)


def _over(
    code: str, where: str, index: int, node: int, needed: float, limit: float, subject: Subject
) -> Iterator[Violation]:
    """A node that needs more than it has; a byte a chip is rounding."""
    from planner.spec.units import format_bytes

    group = subject.cluster.node_groups[index]
    if needed > limit + group.chips_per_node:
        message = (
            f"node {node} of {group.name} needs {format_bytes(needed)} {where}, it has"
            f" {format_bytes(limit)}: {format_bytes(needed - limit)} too much"
        )
        yield Violation(code, "islands", message)

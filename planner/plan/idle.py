"""Chips that a plan leaves out, by number."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.spec import Cluster

__all__ = ["MAX_RUNS", "idle_sentences", "number_runs"]

MAX_RUNS = 8
"""A sentence names so many runs of chips."""


def idle_sentences(cluster: Cluster, used: Collection[int]) -> Iterator[str]:
    """One sentence a node group with idle chips: `2 of the 6 chips of node group three stay idle: 4, 7`.

    used: chips that work, numbered in the order of the cluster's node groups, nodes and chips.
    """
    first = 0
    for group in cluster.node_groups:
        idle = [rank for rank in range(first, first + group.num_chips) if rank not in used]
        first += group.num_chips
        if idle:
            stay = "stays" if len(idle) == 1 else "stay"
            runs = number_runs(idle)
            yield f"{len(idle)} of the {group.num_chips} chips of node group {group.name} {stay} idle: {runs}"


def number_runs(numbers: Sequence[int]) -> str:
    """`4, 7-9`: neighbours run together."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:MAX_RUNS])
    return shown if len(runs) <= MAX_RUNS else f"{shown} and {len(runs) - MAX_RUNS} more runs"

"""The numbers of a placement of a branching graph: layers, tensors, classes of equal chips. No names, no files."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

__all__ = ["BranchingProblem", "ChipClass", "Placement", "Tensor"]


@dataclass(frozen=True)
class Tensor:
    """What layer `source` sends to the layers `consumers`; sent once, however many of them are on a chip."""

    source: int
    consumers: tuple[int, ...]


@dataclass(frozen=True)
class ChipClass:
    """Equal chips, which may be exchanged for each other.

    count: chips of the class.  layer_times: (layers,) any one unit of time; inf where a layer cannot run.
    transfer_times: (tensors,) same unit, for sending a tensor away or taking it in; zeros where transfers are free.
    size_limit: what the sizes of a chip's layers may sum to, in the unit of the problem's sizes.
    """

    count: int
    layer_times: tuple[float, ...]
    transfer_times: tuple[float, ...]
    size_limit: float = math.inf


@dataclass(frozen=True)
class BranchingProblem:
    """Place every layer on a chip so that the largest load is least.

    load of a chip = sum of its layers' times + the transfer time of every tensor of which some but not all of the
    layers {source and consumers} are on the chip
    sizes: (layers,).  together: sets of layers that share a chip.
    parts: (layers,) number of the part (forward 0, backward 1) of each layer.  The layers of one part on one chip are
    contiguous: no path inside the part leaves the chip and comes back.
    """

    sizes: tuple[float, ...]
    parts: tuple[int, ...]
    tensors: tuple[Tensor, ...]
    classes: tuple[ChipClass, ...]
    together: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def num_layers(self) -> int:
        return len(self.sizes)

    def __post_init__(self) -> None:
        n = self.num_layers
        assert len(self.parts) == n and all(size >= 0 for size in self.sizes)
        for tensor in self.tensors:
            assert tensor.consumers and tensor.source not in tensor.consumers
            assert all(0 <= v < n for v in (tensor.source, *tensor.consumers))
        for chips in self.classes:
            assert len(chips.layer_times) == n and len(chips.transfer_times) == len(self.tensors)
            assert chips.count >= 0 and all(t >= 0 for t in chips.layer_times)
            assert all(0 <= t < math.inf for t in chips.transfer_times)
        assert is_acyclic(n, self.edges()), "a graph of layers has no cycles"

    def edges(self) -> list[tuple[int, int]]:
        """(source, consumer) of every tensor, without repetition, in a fixed order."""
        return sorted({(t.source, v) for t in self.tensors for v in t.consumers})


def is_acyclic(num_nodes: int, edges: Sequence[tuple[int, int]]) -> bool:
    """Whether a directed graph of nodes 0..num_nodes-1 has no cycle."""
    return len(topological_order(num_nodes, edges)) == num_nodes


def topological_order(num_nodes: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Nodes in an order that every edge follows, a branch to its end before the next; nodes on cycles are left out."""
    after: list[list[int]] = [[] for _ in range(num_nodes)]
    waits = [0] * num_nodes
    for u, v in edges:
        after[u].append(v)
        waits[v] += 1
    ready = [v for v in reversed(range(num_nodes)) if not waits[v]]
    order = []
    while ready:
        u = ready.pop()
        order.append(u)
        for v in reversed(after[u]):
            waits[v] -= 1
            if not waits[v]:
                ready.append(v)
    return order


@dataclass(frozen=True)
class Placement:
    """Which chip each layer is on: (class index, chip of the class, from 0)."""

    chips: tuple[tuple[int, int], ...]

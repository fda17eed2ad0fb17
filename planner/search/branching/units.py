"""Units: layers that share a chip in some best placement, with everything the search needs to know of them.

Sets of layers and of units are bit masks (Python integers).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from planner.search.branching.evaluate import SIZE_TOLERANCE
from planner.search.branching.problem import BranchingProblem, topological_order

__all__ = ["Reach", "UnitTensor", "Units", "bits", "reach_of"]


def bits(mask: int) -> Iterator[int]:
    """The members of a mask, in order."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


@dataclass(frozen=True)
class Reach:
    """Reachability inside the parts: masks over layers, a layer itself left out.

    before[v], after[v]: layers of v's part on paths to v and from v.  order: all layers, along the edges.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    order: tuple[int, ...]

    def hull(self, layers: int) -> int:
        """The least contiguous set of layers around a set."""
        above = below = 0
        for v in bits(layers):
            above |= self.after[v]
            below |= self.before[v]
        return layers | (above & below)


def reach_of(problem: BranchingProblem) -> Reach:
    """Reachability along the edges whose two ends are in one part."""
    n, parts = problem.num_layers, problem.parts
    order = topological_order(n, problem.edges())
    inner = [(u, v) for u, v in problem.edges() if parts[u] == parts[v]]
    before, after = [0] * n, [0] * n
    place = {v: i for i, v in enumerate(order)}
    for u, v in sorted(inner, key=lambda edge: place[edge[1]]):
        before[v] |= before[u] | 1 << u
    for u, v in sorted(inner, key=lambda edge: -place[edge[0]]):
        after[u] |= after[v] | 1 << v
    return Reach(tuple(before), tuple(after), tuple(order))


@dataclass(frozen=True)
class UnitTensor:
    """What crosses chips between units: paid by a chip that holds some but not all of `members` (mask over units).

    times: per class.
    """

    source: int
    members: int
    times: tuple[float, ...]


@dataclass(frozen=True)
class Units:
    """A grouping of the layers, in the order of each unit's first layer along the graph.

    layers[u]: mask over layers.  times[c][u], sizes[u]: sums over the unit's layers.
    """

    problem: BranchingProblem
    reach: Reach
    layers: tuple[int, ...]
    times: tuple[tuple[float, ...], ...]
    sizes: tuple[float, ...]
    tensors: tuple[UnitTensor, ...]

    @property
    def num_units(self) -> int:
        return len(self.layers)

    @cached_property
    def unit_of(self) -> tuple[int, ...]:
        """(layers,) the unit of each layer."""
        owner = [0] * self.problem.num_layers
        for u, mask in enumerate(self.layers):
            for v in bits(mask):
                owner[v] = u
        return tuple(owner)

    @classmethod
    def of_groups(cls, problem: BranchingProblem, reach: Reach, groups: Sequence[int]) -> Units:
        """Units from disjoint masks over layers that hold every layer."""
        place = {v: i for i, v in enumerate(reach.order)}
        layers = tuple(sorted(groups, key=lambda mask: min(place[v] for v in bits(mask))))
        owner = {v: u for u, mask in enumerate(layers) for v in bits(mask)}
        times = tuple(tuple(sum(c.layer_times[v] for v in bits(mask)) for mask in layers) for c in problem.classes)
        sizes = tuple(sum(problem.sizes[v] for v in bits(mask)) for mask in layers)
        merged: dict[tuple[int, int], list[float]] = {}
        for i, tensor in enumerate(problem.tensors):
            source, members = owner[tensor.source], 0
            for v in (tensor.source, *tensor.consumers):
                members |= 1 << owner[v]
            if members & (members - 1):
                total = merged.setdefault((source, members), [0.0] * len(problem.classes))
                for k, c in enumerate(problem.classes):
                    total[k] += c.transfer_times[i]
        tensors = tuple(UnitTensor(s, m, tuple(t)) for (s, m), t in sorted(merged.items()))
        return cls(problem, reach, layers, times, sizes, tensors)

    def layers_of(self, units: int) -> int:
        """Mask over layers of a mask over units."""
        total = 0
        for u in bits(units):
            total |= self.layers[u]
        return total

    def contiguous(self, units: int) -> bool:
        """Whether a chip may hold exactly these units, as far as paths go."""
        layers = self.layers_of(units)
        return self.reach.hull(layers) == layers

    def load(self, c: int, units: int) -> float:
        """The load of a chip of class c that holds the units, transfers included."""
        busy = sum(self.times[c][u] for u in bits(units))
        for tensor in self.tensors:
            if tensor.members & units and tensor.members & ~units:
                busy += tensor.times[c]
        return busy

    def fits(self, c: int, units: int) -> bool:
        """Whether the sizes of the units fit a chip of class c."""
        limit = self.problem.classes[c].size_limit
        return sum(self.sizes[u] for u in bits(units)) <= limit * (1 + SIZE_TOLERANCE)

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(unit, unit) of every edge between units, those of all parts together."""
        owner = self.unit_of
        pairs = {(owner[u], owner[v]) for u, v in self.problem.edges()}
        return tuple(sorted((u, v) for u, v in pairs if u != v))

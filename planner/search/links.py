"""What the links between node groups cost at least, whatever the order of the groups along the pipeline."""

from __future__ import annotations

from typing import NamedTuple

from planner.search.candidates import OPEN, LeastTransfer, Root

__all__ = ["LinkCost", "LinkFloor", "waits"]


_MOST_GROUPS = 16


class LinkCost(NamedTuple):
    """round_trip: seconds of one micro-batch's activations and gradients over all boundaries between groups.

    wait: seconds that the step takes beyond one micro-batch's way, because the slowest boundary passes m of them.
    """

    round_trip: float
    wait: float


def waits(root: Root, onward: float, back: float, nearest: int) -> float:
    """The least wait for a boundary with these transfer seconds, at most `nearest` stages from the end of the pipeline.

    A link carries one transfer at a time each way:  (m - 1) max(c, c').
    The window of its two stages (cost/rows.py):  floor((m - k_e) / d) (c + c'), d = k_s - k_e + 1, for m > k_s.
    """
    m = root.micro_batches
    wait = (m - 1) * max(onward, back)
    k_s, k_e = root.stages_in_flight(nearest + 1), root.stages_in_flight(nearest)
    if m > k_s:
        wait = max(wait, (m - k_e) // (k_s - k_e + 1) * (onward + back))
    return wait


class LinkFloor:
    """Least costs of connecting the groups of a node, cached by its degrees and the most stages it can have."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._pairs: dict[tuple[int, int, int, int], tuple[LeastTransfer, LeastTransfer]] = {}
        self._known: dict[tuple[tuple[int, ...], int], LinkCost] = {}

    def pair(self, g: int, t: int, h: int, u: int) -> tuple[LeastTransfer, LeastTransfer]:
        """Both directions between two groups at their degrees."""
        key = (g, t, h, u) if g < h else (h, u, g, t)
        if key not in self._pairs:
            there, back = (*key, False), (*key[2:], *key[:2], False)
            self._pairs[key] = (self.root.least_transfer(*there), self.root.least_transfer(*back))
        return self._pairs[key]

    def between(self, g: int, t: int, h: int, u: int, farthest: int) -> LinkCost:
        """The cheaper direction, at most `farthest` stages from the pipeline's end; OPEN stands for the degree that
        costs least.
        """
        first = self.root.degrees(g) if t == OPEN else (t,)
        second = self.root.degrees(h) if u == OPEN else (u,)
        ways = [way for a in first for b in second for way in self.pair(g, a, h, b)]
        return LinkCost(
            min(way.both for way in ways), min(waits(self.root, way.onward, way.back, farthest) for way in ways)
        )

    def of(self, tensor: tuple[int, ...], stages: int) -> LinkCost:
        """A pipeline of at most `stages` stages through all groups with a degree, and perhaps through open ones.

        The boundaries between groups connect them: their round trips sum to at least a least spanning tree's (with open
        groups in between, to the number of links times the least), and the slowest is no faster than the least
        bottleneck that connects them.
        """
        key = (tensor, max(1, min(stages, self.root.most_stages) - 1))
        if key not in self._known:
            self._known[key] = self._least(*key)
        return self._known[key]

    def _least(self, tensor: tuple[int, ...], farthest: int) -> LinkCost:
        needed = [g for g, t in enumerate(tensor) if t > 0]
        if len(needed) < 2 or len(tensor) > _MOST_GROUPS:
            return LinkCost(0.0, 0.0)  # zero is a lower bound too; pairs of hundreds of groups are too many
        possible = [g for g, t in enumerate(tensor) if t > 0 or t == OPEN]
        pairs = [(g, h) for i, g in enumerate(possible) for h in possible[i + 1 :]]
        costs = {(g, h): self.between(g, tensor[g], h, tensor[h], farthest) for g, h in pairs}
        wait = _bottleneck(needed, sorted((c.wait, g, h) for (g, h), c in costs.items()))
        if len(possible) > len(needed):
            return LinkCost((len(needed) - 1) * min(c.round_trip for c in costs.values()), wait)
        return LinkCost(_spanning_tree(sorted((c.round_trip, g, h) for (g, h), c in costs.items())), wait)


def _find(parent: dict[int, int], g: int) -> int:
    while parent.get(g, g) != g:
        g = parent[g]
    return g


def _bottleneck(needed: list[int], edges: list[tuple[float, int, int]]) -> float:
    """The least weight at which edges up to it connect all needed groups."""
    parent: dict[int, int] = {}
    for weight, g, h in edges:
        parent[_find(parent, g)] = _find(parent, h)
        if len({_find(parent, x) for x in needed}) == 1:
            return weight
    raise AssertionError("every pair of groups has a link")


def _spanning_tree(edges: list[tuple[float, int, int]]) -> float:
    """The weight of a least spanning tree (Kruskal)."""
    parent: dict[int, int] = {}
    total = 0.0
    for weight, g, h in edges:
        a, b = _find(parent, g), _find(parent, h)
        if a != b:
            parent[a] = b
            total += weight
    return total

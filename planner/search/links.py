"""What the links between node groups cost at least, whatever the order of the groups along the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from planner.search.candidates import IDLE, OPEN, LeastTransfer, Root

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode

    Floats = NDArray[np.float64]

__all__ = ["LinkCost", "LinkFloor", "wait_factors", "waits"]


_MOST_GROUPS, _COUNTABLE = 16, 48
"""Groups up to which trees of links are looked at, and up to which the nearest other group is."""
_EXACT = 16
"""Distances from the pipeline's end up to here are told apart, farther ones in steps of as many."""


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


def wait_factors(root: Root, most: int) -> tuple[float, Floats]:
    """`waits` for every number of stages behind a boundary up to `most`: the factor of max(c, c'), and (most+1,) the
    factors of c + c'.
    """
    import numpy as np

    m = root.micro_batches
    behind = [0.0]
    for nearest in range(1, most + 1):
        k_s, k_e = root.stages_in_flight(nearest + 1), root.stages_in_flight(nearest)
        behind.append(float((m - k_e) // (k_s - k_e + 1)) if m > k_s else 0.0)
    return float(m - 1), np.array(behind)


class LinkFloor:
    """Least costs of connecting the groups of a node, cached by its modes and the most stages it can have."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self._pairs: dict[tuple[int, Mode, int, Mode], tuple[LeastTransfer, LeastTransfer]] = {}
        self._known: dict[tuple[tuple[Mode, ...], int], LinkCost] = {}
        self._between: dict[tuple[int, Mode, int, Mode, int], LinkCost] = {}

    def pair(self, g: int, t: Mode, h: int, u: Mode) -> tuple[LeastTransfer, LeastTransfer]:
        """Both directions between two groups in their modes."""
        if g > h:
            g, t, h, u = h, u, g, t
        key = (g, t, h, u)
        if key not in self._pairs:
            there, back = self.root.least_transfer(g, t, h, u, False), self.root.least_transfer(h, u, g, t, False)
            self._pairs[key] = there, back
        return self._pairs[key]

    def between(self, g: int, t: Mode, h: int, u: Mode, farthest: int) -> LinkCost:
        """The cheaper direction, at most `farthest` stages from the pipeline's end; OPEN stands for the mode that
        costs least.
        """
        key = (g, t, h, u, farthest)
        if key not in self._between:
            first = self.root.modes(g) if t == OPEN else (t,)
            second = self.root.modes(h) if u == OPEN else (u,)
            ways = [way for a in first for b in second for way in self.pair(g, a, h, b)]
            wait = min(waits(self.root, way.onward, way.back, farthest) for way in ways)
            self._between[key] = LinkCost(min(way.both for way in ways), wait)
        return self._between[key]

    def of(self, modes: tuple[Mode, ...], stages: int) -> LinkCost:
        """A pipeline of at most `stages` stages through all groups with a mode, and perhaps through open ones.

        The boundaries between groups connect them: their round trips sum to at least a least spanning tree's (with open
        groups in between, to the number of links times the least), and the slowest is no faster than the least
        bottleneck that connects them.
        """
        farthest = max(1, min(stages, self.root.most_stages) - 1)
        if farthest > _EXACT:
            farthest = -(-farthest // _EXACT) * _EXACT  # farther from the end means a shorter wait: still a lower bound
        key = (modes, farthest)
        if key not in self._known:
            self._known[key] = self._least(*key)
        return self._known[key]

    def _least(self, modes: tuple[Mode, ...], farthest: int) -> LinkCost:
        needed = [g for g, mode in enumerate(modes) if mode not in (OPEN, IDLE)]
        if len(needed) < 2 or len(modes) > _COUNTABLE:
            return LinkCost(0.0, 0.0)  # zero is a lower bound too; pairs of hundreds of groups are too many
        if len(modes) > _MOST_GROUPS:
            nearest = [self._nearest(g, modes[g], farthest) for g in needed]
            return LinkCost(sum(c.round_trip for c in nearest) / 2, max(c.wait for c in nearest))
        possible = [g for g, mode in enumerate(modes) if mode != IDLE]
        pairs = [(g, h) for i, g in enumerate(possible) for h in possible[i + 1 :]]
        costs = {(g, h): self.between(g, modes[g], h, modes[h], farthest) for g, h in pairs}
        wait = _bottleneck(needed, sorted((c.wait, g, h) for (g, h), c in costs.items()))
        if len(possible) > len(needed):
            return LinkCost((len(needed) - 1) * min(c.round_trip for c in costs.values()), wait)
        return LinkCost(_spanning_tree(sorted((c.round_trip, g, h) for (g, h), c in costs.items())), wait)

    def _nearest(self, g: int, t: Mode, farthest: int) -> LinkCost:
        """The least costs of a boundary of a group with any other. Each boundary is one of two groups at most."""
        key = (g, t, g, t, farthest)
        if key not in self._between:
            others = [h for h in range(len(self.root.groups)) if h != g and self.root.modes(h)]
            costs = [self.between(g, t, h, OPEN, farthest) for h in others]
            self._between[key] = LinkCost(min(c.round_trip for c in costs), min(c.wait for c in costs))
        return self._between[key]


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

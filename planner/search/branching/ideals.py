"""The best placement along a growing set: every chip takes the difference of two ideals (sets that hold, with a unit,
all that it waits for).

Exact among placements that can be numbered so that no edge goes from a later chip to an earlier one; others exist, so
that it gives placements and no bounds.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING

from planner.search.branching.line import Piece
from planner.search.branching.units import Units, bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["ideals_of", "place_ideals"]


def ideals_of(num_units: int, edges: Sequence[tuple[int, int]], most: int) -> list[int] | None:
    """All ideals as masks, smaller ones first; None when there are more than `most`."""
    inputs, outputs = [0] * num_units, [0] * num_units
    for a, b in edges:
        inputs[b] |= 1 << a
        outputs[a] |= 1 << b
    ready = sum(1 << u for u in range(num_units) if not inputs[u])
    level, found = {0: ready}, [0]
    while level:
        following: dict[int, int] = {}
        for ideal, can_follow in level.items():
            for u in bits(can_follow):
                larger = ideal | 1 << u
                if larger not in following:
                    new = sum(1 << v for v in bits(outputs[u]) if not inputs[v] & ~larger)
                    following[larger] = can_follow & ~(1 << u) | new
            if len(found) + len(following) > most:
                return None
        found += sorted(following)
        level = following
    return found


def place_ideals(units: Units, ideals: Sequence[int], below: float, deadline: float) -> list[Piece] | None:
    """The best pieces with a largest load less than `below`, each the difference of two ideals.

    deadline: time.monotonic() after which it gives up.
    """
    return _Growth(units, ideals, below).pieces(deadline)


class _Growth:
    """best[state][k]: least largest load of chips that together hold ideal k; a state counts the chips by class."""

    def __init__(self, units: Units, ideals: Sequence[int], below: float) -> None:
        import numpy as np

        self.units, self.ideals, self.below = units, ideals, below
        self.holds = np.array([[ideal >> u & 1 for u in range(units.num_units)] for ideal in ideals], dtype=float)
        members = np.array([[t.members >> u & 1 for u in range(units.num_units)] for t in units.tensors], dtype=float)
        members = members.reshape(len(units.tensors), units.num_units)
        self.counted, self.full = self.holds @ members.T, members.sum(1)
        self.sent = np.array([t.times for t in units.tensors]).reshape(len(units.tensors), len(units.times))
        counts = [min(c.count, units.num_units) for c in units.problem.classes]
        self.states = list(product(*(range(count + 1) for count in counts)))
        self.place = {state: i for i, state in enumerate(self.states)}
        self.best = np.full((len(self.states), len(ideals)), math.inf)
        self.best[:, 0] = 0.0
        self.came: dict[tuple[int, int], tuple[int, int, int]] = {}

    def pieces(self, deadline: float) -> list[Piece] | None:
        for k in range(len(self.ideals) - 1):
            if time.monotonic() > deadline:
                return None
            if self.best[:, k].min() < self.below:
                self._grow_from(k)
        last = len(self.ideals) - 1
        state = int(self.best[:, last].argmin())
        if not self.best[state, last] < self.below:
            return None
        found: list[Piece] = []
        while last:
            state, previous, c = self.came[state, last]
            found.append((c, self.ideals[last] & ~self.ideals[previous]))
            last = previous
        return found[::-1]

    def _grow_from(self, k: int) -> None:
        """Every larger ideal that one more chip can reach from ideal k."""
        import numpy as np

        larger = k + 1 + np.flatnonzero((self.holds[k + 1 :] >= self.holds[k]).all(1))
        pieces = self.holds[larger] - self.holds[k]
        for c, times in enumerate(self.units.times):
            can_run = np.array([t < math.inf for t in times])
            busy = pieces @ np.where(can_run, times, 0.0)
            limit = self.units.problem.classes[c].size_limit
            allowed = (busy < self.below) & (pieces[:, ~can_run].sum(1) == 0)
            if limit < math.inf:
                allowed &= pieces @ np.array(self.units.sizes) <= limit * (1 + 1e-9)
            there = np.flatnonzero(allowed)
            inside = self.counted[larger[there]] - self.counted[k]
            loads = busy[there] + ((inside > 0) & (inside < self.full)) @ self.sent[:, c]
            self._enter(k, c, larger[there], loads)

    def _enter(self, k: int, c: int, targets: NDArray[np.int64], loads: Floats) -> None:
        """Better values at the targets, where the piece is contiguous in every part."""
        import numpy as np

        for state, used in enumerate(self.states):
            more = self.place.get((*used[:c], used[c] + 1, *used[c + 1 :]))
            if more is None or not self.best[state, k] < self.below:
                continue
            values = np.maximum(self.best[state, k], loads)
            for i in np.flatnonzero((values < self.best[more, targets]) & (values < self.below)):
                target = int(targets[i])
                if self.units.contiguous(self.ideals[target] & ~self.ideals[k]):
                    self.best[more, target] = values[i]
                    self.came[more, target] = (state, k, c)

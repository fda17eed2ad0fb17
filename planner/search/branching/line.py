"""Units in a row: the best way to cut a row of units into intervals, one a chip.

With exact loads the answer is a placement; with bounds of the loads, for a row of units of which every chip must hold
an interval, the answer is a bound (chains.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from planner.search.branching.units import Units, bits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Cut", "Piece", "cut_row", "exact_loads", "place_row", "relaxed_loads"]

Piece = tuple[int, int]
"""(class, mask over units): what one chip of the class holds."""


@dataclass(frozen=True)
class Cut:
    """value: the largest load, inf where there is no cut.  intervals: (class, first, last + 1) along the row."""

    value: float
    intervals: tuple[tuple[int, int, int], ...]


def cut_row(loads: Sequence[Floats], counts: Sequence[int]) -> Cut:
    """The cut of a row of n units with the least largest load, at most counts[c] intervals of class c.

    loads[c]: (n + 1, n + 1) load of a chip of class c with units i..j-1, for i < j.
    best[used][j] = min over c, i <= j of max(best[used less one of c][i], loads[c][i, j]), an idle chip having load 0
    """
    import numpy as np

    n = loads[0].shape[0] - 1
    best: dict[tuple[int, ...], Floats] = {}
    came: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    used: tuple[int, ...] = ()
    for used in product(*(range(min(count, n) + 1) for count in counts)):
        values = np.full(n + 1, math.inf)
        values[0] = 0.0
        steps = [(-1, 0)] * (n + 1)
        for c, number in enumerate(used):
            if not number:
                continue
            before = best[(*used[:c], number - 1, *used[c + 1 :])]
            for j in range(1, n + 1):
                tops = np.append(np.maximum(before[:j], loads[c][:j, j]), before[j])
                i = int(tops.argmin())
                if tops[i] < values[j]:
                    values[j], steps[j] = tops[i], (c, i)
        best[used], came[used] = values, steps
    return Cut(float(best[used][n]), _intervals(came, used, n))


def _intervals(
    came: dict[tuple[int, ...], list[tuple[int, int]]], used: tuple[int, ...], end: int
) -> tuple[tuple[int, int, int], ...]:
    """The intervals on the way to (used, end), first to last."""
    found = []
    while end:
        c, first = came[used][end]
        if c < 0:
            return ()
        if first < end:
            found.append((c, first, end))
        used, end = (*used[:c], used[c] - 1, *used[c + 1 :]), first
    return tuple(reversed(found))


def place_row(units: Units, row: Sequence[int]) -> list[Piece] | None:
    """The best pieces that are intervals of a row of all units; None where no cut fits."""
    counts = [c.count for c in units.problem.classes]
    cut = cut_row([exact_loads(units, row, c) for c in range(len(counts))], counts)
    if cut.value == math.inf:
        return None
    return [(c, sum(1 << u for u in row[first:end])) for c, first, end in cut.intervals]


def exact_loads(units: Units, row: Sequence[int], c: int) -> Floats:
    """loads[i, j]: load of a chip of class c with exactly row[i..j-1]; inf where these do not fit or come back."""
    reach = units.reach
    loads = _loads(units, row, c, -1)
    for i in range(len(row)):
        layers = above = below = 0
        for j in range(i, len(row)):
            layers |= units.layers[row[j]]
            for v in bits(units.layers[row[j]]):
                above |= reach.after[v]
                below |= reach.before[v]
            if above & below & ~layers:
                loads[i, j + 1] = math.inf
    return loads


def relaxed_loads(units: Units, row: Sequence[int], c: int) -> Floats:
    """loads[i, j]: at least this is the load of any chip of class c that holds row[i..j-1] and no others of the row.

    Counted: times and sizes of the row's units, tensors with some but not all of their members on the row among them.
    """
    return _loads(units, row, c, sum(1 << u for u in row))


def _loads(units: Units, row: Sequence[int], c: int, seen: int) -> Floats:
    """Loads of the intervals of a row, counting of each tensor the members in the mask `seen`."""
    import numpy as np

    n = len(row)
    loads = np.full((n + 1, n + 1), math.inf)
    tensors = [(t.members & seen, t.times[c]) for t in units.tensors if t.times[c] > 0]
    touching = [[(k, *x) for k, x in enumerate(tensors) if x[0] >> u & 1] for u in row]
    for i in range(n):
        held, busy = 0, 0.0
        split: dict[int, float] = {}
        for j in range(i, n):
            held |= 1 << row[j]
            busy += units.times[c][row[j]]
            for k, members, time in touching[j]:
                split[k] = time if members & ~held else 0.0
            if busy == math.inf or not units.fits(c, held):
                break
            loads[i, j + 1] = busy + sum(split.values())
    return loads

"""What stages of a family can hold, by where they end: pieces, their times, and the rows of cost/rows.py as seconds."""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING

from planner.cost.schedule import in_flight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.shapes import Family, Kind

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["PieceRows", "StepRows", "alike"]

_SLACK = 1e-9
_ALIKE = 8
"""Of so many stages from the end the last one and its next have capacities in common, of twice as many three, .."""


@cache
def alike(i: int) -> range:
    """Stages from the end whose capacities are asked for together, the i-th among them: far ones differ little."""
    first, count = 1, 1
    while first + count <= i:
        first += count
        count = max(1, first // _ALIKE)
    return range(first, first + count)


class PieceRows:
    """A family's numbers for pieces of the chain: K kinds, L layers, U distinct pieces.

    way: (K, L+1) seconds of the layers before each position, nothing recomputed.  fastest: (L+1,) each layer on its
    fastest kind.  beyond: way - fastest.  sends: (K,) seconds both ways over the boundary after a stage, at least.
    forward, update: (K, U+1) seconds of a piece, forward at most; inf in the last column, for no piece.
    """

    def __init__(self, family: Family) -> None:
        import numpy as np

        root, pool = family.root, family.pool
        self.family, self.kinds = family, family.kinds
        self.options = [o for kind in self.kinds if (o := root.options(*kind)) is not None]
        self.layers = root.intervals.num_layers
        chain = list(root.intervals.chain.kinds)
        times = np.array([o.layer_time[chain] for o in self.options]).reshape(len(self.options), len(chain))
        none = np.zeros((len(self.options), 1))
        self.way: Floats = np.concatenate([none, times.cumsum(axis=1)], axis=1)
        least = times.min(axis=0, initial=np.inf)
        self.fastest: Floats = np.concatenate([[0.0], least.cumsum()])
        self.beyond: Floats = self.way - self.fastest
        self.forward: Floats = self._stacked(
            [o.forward + (0.0 if o.waits is None else o.waits[0]) for o in self.options]
        )
        self.update: Floats = self._stacked([o.update for o in self.options])

        def send(kind: Kind, other: Kind) -> float:
            fits = pool.context * (kind.tensor + other.tensor) <= root.groups[kind.group].chips_per_node
            return root.least_transfer(*kind, *other, kind.group == other.group and fits).both

        self.sends: Floats = np.array([min(send(kind, other) for other in self.kinds) for kind in self.kinds])
        self._held: dict[int, Floats] = {}
        self._made: dict[tuple[int, ...], Floats] = {}

    def _stacked(self, rows: list[Floats]) -> Floats:
        import numpy as np

        return np.array([np.append(row, np.inf) for row in rows])

    @cached_property
    def pieces(self) -> Counts:
        """(L+1, L) index of the piece of n+1 layers that ends before each position; -1 where there is none."""
        import numpy as np

        index = self.family.root.intervals.index
        end, n = np.arange(self.layers + 1)[:, None], np.arange(1, self.layers + 1)[None, :]
        first = end - n
        found: Counts = np.where(first >= 0, index[np.maximum(first, 0), np.maximum(end, 1)], -1)
        return found

    def times(self, held: int) -> Floats:
        """(K, U+1) seconds of each piece with so many micro-batches in flight."""
        import numpy as np

        if held not in self._held:
            rows = [o.times(held) for o in self.options]
            key = tuple(id(row) for row in rows)
            if key not in self._made:
                self._made[key] = np.array(rows)
            self._held[held] = self._made[key]
        return self._held[held]


class StepRows:
    """The rows of pipelines with at least `fewest` micro-batches and a step time.

    With S one micro-batch's way and the update of the first stage, a stage of time t and forward time F with k in
    flight asks for   S + (fewest - 1) t - (k - 1) F <= T   and  fewest * t + update <= T:  `need` is what the first one
    asks for beside S.
    """

    def __init__(self, rows: PieceRows, step_time: float, fewest: int) -> None:
        import numpy as np

        self.rows, self.step_time, self.fewest = rows, step_time, fewest
        self.busy = fewest * rows.times(1) + rows.update <= step_time * (1 + _SLACK)
        longest = self.busy[:, rows.pieces].any(axis=0).any(axis=0)
        self.longest = int(np.nonzero(longest)[0].max(initial=-1)) + 1
        self.of_end, self._pieces = self._alike()
        self._needs: dict[int, Floats] = {}
        self._ascending: dict[tuple[int, int], Floats] = {}

    def _alike(self) -> tuple[Counts, Counts]:
        """(L+1,) number of the class of ends with the same pieces behind them, and the (C, n) pieces of each class."""
        import numpy as np

        classes, of_end = np.unique(self.rows.pieces[:, : max(self.longest, 1)], axis=0, return_inverse=True)
        return of_end.reshape(-1).astype(np.int64), classes

    def held(self, i: int) -> int:
        """Micro-batches in flight of the i-th stage from the end."""
        return in_flight(self.rows.family.schedule, i, self.fewest)

    def need(self, i: int) -> Floats:
        """(K, U+1) seconds that a piece asks for beside S as the i-th stage from the end; inf where it cannot be."""
        import numpy as np

        held = self.held(i)
        if held not in self._needs:
            with np.errstate(invalid="ignore"):
                asked = (self.fewest - 1) * self.rows.times(held) - (held - 1) * self.rows.forward
            self._needs[held] = np.where(self.busy, asked, np.inf)
        return self._needs[held]

    def capacity(self, i: int, spare: Floats) -> Counts:
        """(B, K, L+1) layers that the i-th stage from the end, or one of its neighbours alike, can hold at most before
        each position, with (B,) seconds spare beside S.
        """
        import numpy as np

        stages = alike(i)
        least, most = self.held(stages[0]), self.held(stages[-1])
        if (least, most) not in self._ascending:
            with np.errstate(invalid="ignore"):
                asked = (self.fewest - 1) * self.rows.times(least) - (most - 1) * self.rows.forward
            falling = np.where(self.busy, asked, np.inf).take(self._pieces, axis=1)[:, :, ::-1]
            self._ascending[least, most] = np.minimum.accumulate(falling, axis=2)[:, :, ::-1]
        fits = self._ascending[least, most][None] <= (spare * (1 + _SLACK))[:, None, None, None]
        found: Counts = np.count_nonzero(fits, axis=3).take(self.of_end, axis=2)
        return found

    def loosest(self, spare: float) -> Counts:
        """(K,) the most layers of any stage, wherever it stands, with so many seconds spare beside S: with one
        micro-batch in flight as it is for memory, and as many as there are stages for time.
        """
        import numpy as np

        held = self.held(min(self.fewest, self.rows.layers))
        with np.errstate(invalid="ignore"):
            asked = (self.fewest - 1) * self.rows.times(1) - (held - 1) * self.rows.forward
        fits = np.where(self.busy, asked, np.inf)[:, self._pieces] <= spare * (1 + _SLACK)
        found: Counts = (fits * np.arange(1, fits.shape[2] + 1)).max(axis=(1, 2), initial=0)
        return found

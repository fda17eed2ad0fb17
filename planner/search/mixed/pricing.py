"""The best pipeline at given prices of chips, relaxed: how a lower bound of every mix comes about.

Prices (sequences a step, one a slot) are normalised: all chips together cost exactly the global batch. The pipelines of
a mix run the global batch between them and cost no more than it, so one of them runs at least as many sequences as it
costs:  b m >= cost.  For that pipeline, with S one micro-batch's way through all stages and boundaries, and u the least
update, let  a = (T - S - u) / m;  then

    T = u + S + a m >= u + S + a cost / b

and the rows of cost/rows.py (s = e) say what its i-th stage from the end can hold:

    t <= (T - S - u) / coefficient_i = a m / coefficient_i        coefficient_i = (m - k_i) + (k_i - 1) beta
    m t + u_stage <= T

So no mix is faster than the least, over boxes of m and a that cover all, of  u + min over chains (S + a cost / b).
Within a box every stage also bounds a from below by its own time, so that wide boxes lose little.
In S the stages count without recompute; in the rows with it.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.schedule import in_flight

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.shapes import Family, Kind

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["Box", "Chain", "Pricer"]

_SLACK = 1e-9
_STRIDE = 4.0
"""Distance between the rows of a flat table of ascending times, which lie in [0, 1.5]."""


_LEVEL = 2e-3
"""Logarithm of the ratio between neighbouring allowances that are told apart."""


class Box(NamedTuple):
    """Pipelines with fewest..most micro-batches and an allowance a in [low, high] seconds."""

    fewest: int
    most: int
    low: float
    high: float


class Chain(NamedTuple):
    """A pipeline of the relaxed problem: what each stage runs on, and the position after its last layer."""

    kinds: tuple[Kind, ...]
    ends: tuple[int, ...]


class _Question(NamedTuple):
    """What is asked of a family: see `Pricer.least`. busy: (K, a) layers of stages with m * t + update <= T."""

    box: Box
    prices: Floats
    shift: float
    busy: Counts


class _Longest:
    """How many layers from each position a kind's stage can hold within a time."""

    def __init__(self, times: Floats) -> None:
        """times: (K, a, n) seconds of the n+1 layers that start at a, ascending along n; inf where there are none."""
        import numpy as np

        finite = np.isfinite(times)
        self.shape = times.shape
        self.longest = float(times[finite].max(initial=0.0)) or 1.0
        rows = np.arange(times.shape[0] * times.shape[1], dtype=float).reshape(*times.shape[:2], 1)
        self._rows = _STRIDE * rows[:, :, 0]
        self._starts = (rows[:, :, 0] * times.shape[2]).astype(np.int64)
        self._answers: dict[int, Counts] = {}
        self._flat = (
            np.where(finite, np.maximum.accumulate(times, axis=2) / self.longest, 1.5) + _STRIDE * rows
        ).ravel()

    def within(self, seconds: float) -> Counts:
        """(K, a) layers. The time is rounded up to a step of a ratio, so that many questions share an answer."""
        import numpy as np

        level = math.ceil(math.log(max(seconds / self.longest, 1e-9)) / _LEVEL)
        if level not in self._answers:
            scaled = min(math.exp(level * _LEVEL) * (1 + _SLACK) + _SLACK, 1.25)
            found: Counts = np.searchsorted(self._flat, self._rows + scaled, side="right") - self._starts
            self._answers[level] = found
        return self._answers[level]


class Pricer:
    """Cheapest chains of one family at one step time."""

    def __init__(self, family: Family, step_time: float) -> None:
        self.family, self.step_time = family, step_time
        self.kinds = family.kinds
        self.options = [o for g, t in self.kinds if (o := family.root.options(g, t)) is not None]
        self.layers = family.root.intervals.num_layers
        self.beta = min((o.backward_share for o in self.options), default=0.5)
        self.least_update = min((o.least_update for o in self.options), default=0.0)
        self._tables: dict[tuple[int, ...], _Longest] = {}
        self._busy: dict[int, Counts] = {}

    @cached_property
    def _send(self) -> Floats:
        """(K,) seconds both ways over the boundary after a stage, at least."""
        import numpy as np

        root, context = self.family.root, self.family.pool.context

        def least(kind: Kind, other: Kind) -> float:
            fits = context * (kind.tensor + other.tensor) <= root.groups[kind.group].chips_per_node
            return root.least_transfer(*kind, *other, kind.group == other.group and fits).both

        return np.array([min(least(kind, other) for other in self.kinds) for kind in self.kinds])

    @cached_property
    def _way(self) -> Floats:
        """(K, L+1) seconds of the layers before each position, nothing recomputed."""
        import numpy as np

        chain = list(self.family.root.intervals.chain.kinds)
        times = np.array([o.layer_time[chain] for o in self.options])
        return np.concatenate([np.zeros((len(times), 1)), times.cumsum(axis=1)], axis=1)

    @property
    def fastest_way(self) -> float:
        """S at its least: the whole chain at the fastest kind."""
        return float(self._way[:, -1].min()) if self.kinds else 0.0

    def way(self, chain: Chain) -> float:
        """S of a chain."""
        total, first = 0.0, 0
        for s, (kind, end) in enumerate(zip(chain.kinds, chain.ends, strict=True)):
            k = self.kinds.index(kind)
            total += float(self._way[k, end] - self._way[k, first])
            total += float(self._send[k]) if s + 1 < len(chain.kinds) else 0.0
            first = end
        return total

    @cached_property
    def _pieces(self) -> Counts:
        """(a, n) index of the piece of n+1 layers from a; -1 where there is none."""
        import numpy as np

        index, layers = self.family.root.intervals.index, self.layers
        first, n = np.arange(layers)[:, None], np.arange(1, layers + 1)[None, :]
        last = np.minimum(first + n, layers)
        found: Counts = np.where(first + n <= layers, index[first, last], -1)
        return found

    def _longest(self, held: int) -> _Longest:
        """Stages with `held` micro-batches in flight."""
        import numpy as np

        times = [o.times(held) for o in self.options]
        key = tuple(id(t) for t in times)
        if key not in self._tables:
            self._tables[key] = _Longest(np.stack([t[self._pieces] for t in times]))
        return self._tables[key]

    def _busy_within(self, m: int) -> Counts:
        """(K, a) layers of stages with m * t + update <= T."""
        import numpy as np

        if m not in self._busy:
            busy = [m * np.append(o.times(1)[:-1], np.inf) + np.append(o.update, np.inf) for o in self.options]
            fits = np.stack([b[self._pieces] for b in busy]) <= self.step_time * (1 + _SLACK)
            self._busy[m] = np.where(fits.all(axis=2), self.layers, fits.argmin(axis=2))
        return self._busy[m]

    def least(
        self, box: Box, prices: Floats, shift: float = 0.0, enough: float = float("inf"), trace: bool = False
    ) -> tuple[float, Chain | None]:
        """(seconds, chain): no pipeline of two or more stages in the box has a smaller  S + (a + shift) * cost;  with
        `trace` the relaxed chain. Pipelines of one stage have tables of their own.

        prices: (K,) micro-batches for a slot of each kind.  enough: stop when the least is known to be at least this.
        Each stage says of a what its own time says: a >= max(low, t coefficient / m).
        """
        import numpy as np

        if not self.kinds:
            return float("inf"), None
        question = _Question(box, prices, shift, self._busy_within(box.fewest))
        before = self._least_before(question)
        best = [np.append(np.full(self.layers, np.inf), 0.0)]
        total, found, rest = float("inf"), 0, 0.0
        for i in range(1, self.layers + 1):
            rest = float((best[-1] + before).min())
            if rest >= min(total, enough):
                break
            best.append(self._extend(i, question, best[-1]).min(axis=0))
            if i > 1 and best[-1][0] < total:
                total, found = float(best[-1][0]), i
        if total >= enough:
            total = min(total, rest)
        if not found or not trace:
            return total, None
        return total, self._trace(best[: found + 1], question)

    def _least_before(self, q: _Question) -> Floats:
        """(L+1,) least seconds of the layers before each position, whatever the stages that hold them.

        A stage of time t costs (max(low, t / f) + shift) price, f its longest time over a: per second at least
        (high + shift) / (high f), or (low + shift) / (low f) for a negative shift.
        """
        import numpy as np

        box = q.box
        longest = max(self._factor(i, box) for i in {1, min(box.fewest, self.layers), self.layers})
        share = 1.0 if q.shift >= 0 or box.low <= 0 else max(0.0, (box.low + q.shift) / box.low)
        rate = (q.prices * (share / longest) + 1.0)[:, None] * np.diff(self._way, axis=1)
        return np.concatenate([[0.0], rate.min(axis=0).cumsum()]) * (1 - _SLACK)

    def _factor(self, i: int, box: Box) -> float:
        """m / coefficient: the longest time of the i-th stage from the end, over a; it rises with i, falls with m."""
        m = box.fewest
        held = in_flight(self.family.schedule, i, m)
        coefficient = (m - held) + (held - 1) * self.beta
        return m / coefficient if coefficient > 0 else float("inf")

    def _counts(self, i: int, allowance: float, q: _Question) -> Counts:
        """(K, a) most layers of the i-th stage from the end with an allowance, by the position where it starts."""
        import numpy as np

        held = in_flight(self.family.schedule, i, q.box.fewest)
        factor = self._factor(i, q.box)
        allowed = min(allowance * factor, self.step_time) if math.isfinite(factor) else self.step_time
        return np.minimum(self._longest(held).within(allowed), q.busy)

    def _extend(self, i: int, q: _Question, best: Floats) -> Floats:
        """(K, L+1) least seconds with one more stage at the front, by its kind and the position where it starts.

        Stages as short as the lowest allowance asks cost (low + shift) price; longer ones (t / f + shift) price.
        """
        import numpy as np

        most, factor = self._counts(i, q.box.high, q), self._factor(i, q.box)
        few = np.minimum(self._counts(i, q.box.low, q), most) if q.box.low > 0 else np.zeros_like(most)
        send = self._send if i > 1 else np.zeros(len(self.kinds))
        ahead = best[None, :] + self._way
        short = _least_in_windows(ahead, np.zeros_like(few), few) - self._way[:, :-1]
        short += (send + (q.box.low + q.shift) * q.prices)[:, None]
        slope = (q.prices / factor)[:, None] * self._way
        long = _least_in_windows(ahead + slope, few, most) - self._way[:, :-1] - slope[:, :-1]
        long += (send + q.shift * q.prices)[:, None]
        cost = np.minimum(short, long)
        return np.concatenate([cost, np.full((len(cost), 1), np.inf)], axis=1)

    def _trace(self, best: list[Floats], q: _Question) -> Chain:
        """The chain behind the last number, from the front."""
        import numpy as np

        position, kinds, ends = 0, [], []
        for i in reversed(range(1, len(best))):
            kind = int(self._extend(i, q, best[i - 1])[:, position].argmin())
            most = int(self._counts(i, q.box.high, q)[kind, position])
            after = np.arange(position + 1, position + most + 1)
            time = self._way[kind, after] - self._way[kind, position]
            few = int(self._counts(i, q.box.low, q)[kind, position]) if q.box.low > 0 else 0
            charged = np.where(after - position <= few, q.box.low, time / self._factor(i, q.box))
            position = int(after[(best[i - 1][after] + time + charged * q.prices[kind]).argmin()])
            kinds.append(self.kinds[kind])
            ends.append(position)
        return Chain(tuple(kinds), tuple(ends))


def _least_in_windows(values: Floats, few: Counts, most: Counts) -> Floats:
    """(K, L): the least of values[k, a+few+1 .. a+most]; inf where that is nothing. values: (K, L+1)."""
    import numpy as np

    count = most - few
    longest = max(1, int(count.max(initial=0)))
    levels = [values]
    while 2 ** len(levels) <= longest:
        shift, last = 2 ** (len(levels) - 1), levels[-1]
        longer = last.copy()
        np.minimum(last[:, :-shift], last[:, shift:], out=longer[:, :-shift])
        levels.append(longer)
    table = np.stack(levels)
    level = np.log2(np.maximum(count, 1)).astype(np.int64)
    kind, first = np.arange(len(values))[:, None], np.arange(values.shape[1] - 1)[None, :] + few + 1
    first = np.minimum(first, values.shape[1] - 1)
    last_start = np.maximum(first + count - 2**level, first)
    least = np.minimum(table[level, kind, first], table[level, kind, np.minimum(last_start, values.shape[1] - 1)])
    result: Floats = np.where(count > 0, least, np.inf)
    return result

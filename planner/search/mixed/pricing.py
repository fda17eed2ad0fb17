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
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.shapes import Family, Kind

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["Box", "Chain", "Pricer", "Question"]

_SLACK = 1e-9
_STRIDE = 4.0
"""Distance between the rows of a flat table of ascending times, which lie in [0, 1.5]."""


_LEVEL = 2e-3
"""Logarithm of the ratio between neighbouring allowances that are told apart."""
_OF_WIDTH, _COARSEST = 0.04, 10
"""Wide boxes are asked in wider levels: this share of their width, at most so many levels."""


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


class Question(NamedTuple):
    """What is asked of a family: the least  S + (a + shift) * cost  of a pipeline of two or more stages in the box.

    prices: (K,) micro-batches for a slot of each kind.  enough: the search may stop once the least is known to be at
    least this.
    """

    box: Box
    prices: Floats
    shift: float = 0.0
    enough: float = math.inf


class _Batch:
    """Questions that are answered together; B of them."""

    def __init__(self, questions: Sequence[Question], busy: Counts) -> None:
        """busy: (B, K, a) layers of stages with m * t + update <= T."""
        import numpy as np

        self.boxes = [q.box for q in questions]
        self.prices: Floats = np.array([q.prices for q in questions])
        self.low: Floats = np.array([q.box.low for q in questions])
        self.shift: Floats = np.array([q.shift for q in questions])
        self.enough: Floats = np.array([q.enough for q in questions])
        self.busy = busy

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop the others."""
        self.boxes = [box for box, k in zip(self.boxes, kept, strict=True) if k]
        self.prices, self.busy = self.prices[kept], self.busy[kept]
        self.low, self.shift, self.enough = self.low[kept], self.shift[kept], self.enough[kept]


class _Step(NamedTuple):
    """One more stage at the front, for a trace: cost and windows of layers by question, kind, and position from `first`
    on.
    """

    asked: NDArray[np.int64]
    kinds: NDArray[np.int64]
    first: int
    cost: Floats
    few: Counts
    most: Counts


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

    def within(self, seconds: float, stride: int = 1) -> Counts:
        """(K, a) layers. The time is rounded up to a level that is a multiple of `stride`, so that many questions share
        an answer.
        """
        import numpy as np

        level = math.ceil(math.log(max(seconds / self.longest, 1e-9)) / (_LEVEL * stride)) * stride
        if level not in self._answers:
            scaled = min(math.exp(level * _LEVEL) * (1 + _SLACK) + _SLACK, 1.25)
            found: Counts = np.searchsorted(self._flat, self._rows + scaled, side="right") - self._starts
            self._answers[level] = found
        return self._answers[level]


class Pricer:
    """Cheapest chains of one family within a step time."""

    def __init__(self, family: Family, step_time: float) -> None:
        self.family, self.step_time = family, step_time
        self.kinds, self.options = family.kinds, family.rows.options
        self._way, self._send = family.rows.way, family.rows.sends
        self.layers = family.root.intervals.num_layers
        self.beta = min((o.backward_share for o in self.options), default=0.5)
        self.least_update = min((o.least_update for o in self.options), default=0.0)
        self._tables: dict[tuple[int, ...], _Longest] = {}
        self._by_held: dict[int, _Longest] = {}
        self._busy: dict[int, Counts] = {}

    def within(self, step_time: float) -> Pricer:
        """The same one, from now on within this step time."""
        if step_time != self.step_time:
            self.step_time, self._busy = step_time, {}
        return self

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

        if held not in self._by_held:
            times = [o.times(held) for o in self.options]
            key = tuple(id(t) for t in times)
            if key not in self._tables:
                self._tables[key] = _Longest(np.stack([t[self._pieces] for t in times]))
            self._by_held[held] = self._tables[key]
        return self._by_held[held]

    def _busy_within(self, m: int) -> Counts:
        """(K, a) layers of stages with m * t + update <= T."""
        import numpy as np

        if m not in self._busy:
            busy = [m * np.append(o.times(1)[:-1], np.inf) + np.append(o.update, np.inf) for o in self.options]
            fits = np.stack([b[self._pieces] for b in busy]) <= self.step_time * (1 + _SLACK)
            self._busy[m] = np.where(fits.all(axis=2), self.layers, fits.argmin(axis=2))
        return self._busy[m]

    def least(self, questions: Sequence[Question], trace: bool = False) -> list[tuple[float, Chain | None]]:
        """(seconds, chain) for each question: no pipeline has less; with `trace` the relaxed chain. Pipelines of one
        stage have tables of their own.

        Each stage says of a what its own time says: a >= max(low, t coefficient / m).
        """
        import numpy as np

        if not self.kinds or not questions:
            return [(math.inf, None)] * len(questions)
        batch = _Batch(questions, np.array([self._busy_within(q.box.fewest) for q in questions]))
        before, asked = self._least_before(batch), np.arange(len(questions))
        total, stages = np.full(len(questions), np.inf), np.zeros(len(questions), dtype=np.int64)
        best: Floats = np.full((len(questions), self.layers + 1), np.inf)
        best[:, -1] = 0.0
        bests, steps = [best], list[_Step]()
        for i in range(1, self.layers + 1):
            known = best + before
            limit = np.minimum(total[asked], batch.enough)
            best = np.where(known < limit[:, None], best, np.inf)
            going = known.min(axis=1) < limit
            if not going.any():
                break
            if not going.all():
                batch.keep(going)
                asked, before, best = asked[going], before[going], best[going]
            best, step = self._extend(i, batch, best, asked)
            better = (best[:, 0] < total[asked]) if i > 1 else np.zeros(len(asked), dtype=bool)
            total[asked[better]], stages[asked[better]] = best[better, 0], i
            if trace:
                bests.append(best)
                steps.append(step)
        total = np.minimum(total, [q.enough for q in questions])
        chains = [
            self._trace(q, int(n), steps, bests, questions[q]) if trace and n else None for q, n in enumerate(stages)
        ]
        return [(float(seconds), chain) for seconds, chain in zip(total, chains, strict=True)]

    def _least_before(self, b: _Batch) -> Floats:
        """(B, L+1) least seconds of the layers before each position, whatever the stages that hold them.

        A stage of time t costs (max(low, t / f) + shift) price, f its longest time over a: per second at least
        (high + shift) / (high f), or (low + shift) / (low f) for a negative shift.
        """
        import numpy as np

        longest = np.array(
            [max(self._factor(i, box) for i in {1, min(box.fewest, self.layers), self.layers}) for box in b.boxes]
        )
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            share = np.where((b.shift >= 0) | (b.low <= 0), 1.0, np.maximum(0.0, (b.low + b.shift) / b.low))
        rate = (b.prices * (share / longest)[:, None] + 1.0)[:, :, None] * np.diff(self._way, axis=1)
        sums = rate.min(axis=1).cumsum(axis=1) * (1 - _SLACK)
        return np.concatenate([np.zeros((len(sums), 1)), sums], axis=1)

    def _factor(self, i: int, box: Box) -> float:
        """m / coefficient: the longest time of the i-th stage from the end, over a; it rises with i, falls with m."""
        m = box.fewest
        held = in_flight(self.family.schedule, i, m)
        coefficient = (m - held) + (held - 1) * self.beta
        return m / coefficient if coefficient > 0 else float("inf")

    def _counts(self, i: int, b: _Batch, high: bool) -> Counts:
        """(B, K, a) most layers of the i-th stage from the end within each box's high or low allowance, by the position
        where it starts.
        """
        import numpy as np

        counts = []
        for box in b.boxes:
            allowance, factor = box.high if high else box.low, self._factor(i, box)
            allowed = min(allowance * factor, self.step_time) if math.isfinite(factor) else self.step_time
            wide = math.log(box.high / box.low) / _LEVEL if 0 < box.low <= box.high else math.inf
            stride = int(min(_COARSEST, max(1, wide * _OF_WIDTH)))
            counts.append(self._longest(in_flight(self.family.schedule, i, box.fewest)).within(allowed, stride))
        return np.minimum(np.array(counts), b.busy)

    def _extend(self, i: int, b: _Batch, best: Floats, asked: NDArray[np.int64]) -> tuple[Floats, _Step]:
        """(B, L+1) least seconds with one more stage at the front, by the position where it starts.

        Stages as short as the lowest allowance asks cost (low + shift) price; longer ones (t / f + shift) price.
        Only kinds and positions from which a stage reaches what is known to lie behind are looked at.
        """
        import numpy as np

        live = np.nonzero(np.isfinite(best).any(axis=0))[0]
        end = int(live[-1])
        most = self._counts(i, b, high=True)
        kinds = np.nonzero(most[:, :, :end].any(axis=(0, 2)))[0]
        first = max(0, int(live[0]) - int(most.max(initial=0)))
        at = (slice(None), kinds, slice(first, end))
        most = np.minimum(most[at], end - np.arange(first, end))
        few = most
        if any(box.low < box.high for box in b.boxes):
            few = np.where((b.low > 0)[:, None, None], np.minimum(self._counts(i, b, high=False)[at], most), 0)
        way, prices = self._way[kinds, first : end + 1], b.prices[:, kinds]
        send = self._send[kinds] if i > 1 else np.zeros(len(kinds))
        ahead = best[:, None, first : end + 1] + way
        cost = _least_in_windows(ahead, np.zeros_like(few), few) - way[:, :-1]
        cost += (send + (b.low + b.shift)[:, None] * prices)[:, :, None]
        if (most > few).any():
            factor = np.array([self._factor(i, box) for box in b.boxes])
            slope = (prices / factor[:, None])[:, :, None] * way
            longer = _least_in_windows(ahead + slope, few, most) - way[:, :-1] - slope[:, :, :-1]
            longer += (send + b.shift[:, None] * prices)[:, :, None]
            cost = np.minimum(cost, longer)
        result = np.full_like(best, np.inf)
        result[:, first:end] = cost.min(axis=1, initial=np.inf)
        return result, _Step(asked, kinds, first, cost, few, most)

    def _trace(self, q: int, stages: int, steps: list[_Step], bests: list[Floats], question: Question) -> Chain:
        """The chain of so many stages behind the least of question q, from the front."""
        import numpy as np

        position, kinds, ends, box = 0, [], [], question.box
        for i in range(stages, 0, -1):
            step = steps[i - 1]
            row = int(np.searchsorted(step.asked, q))
            at = position - step.first
            k = int(step.cost[row, :, at].argmin())
            kind, few, most = int(step.kinds[k]), int(step.few[row, k, at]), int(step.most[row, k, at])
            behind = bests[i - 1][q if i == 1 else int(np.searchsorted(steps[i - 2].asked, q))]
            after = np.arange(position + 1, position + most + 1)
            time = self._way[kind, after] - self._way[kind, position]
            charged = np.where(after - position <= few, box.low, time / self._factor(i, box))
            position = int(after[(behind[after] + time + charged * question.prices[kind]).argmin()])
            kinds.append(self.kinds[kind])
            ends.append(position)
        return Chain(tuple(kinds), tuple(ends))


def _least_in_windows(values: Floats, few: Counts, most: Counts) -> Floats:
    """(B, K, L): the least of values[b, k, a+few+1 .. a+most]; inf where that is nothing. values: (B, K, L+1)."""
    import numpy as np

    count = most - few
    longest = max(1, int(count.max(initial=0)))
    levels = [values]
    while 2 ** len(levels) <= longest:
        shift, last = 2 ** (len(levels) - 1), levels[-1]
        longer = last.copy()
        np.minimum(last[:, :, :-shift], last[:, :, shift:], out=longer[:, :, :-shift])
        levels.append(longer)
    size, layers = values.size, values.shape[2] - 1
    table = np.concatenate([level.ravel() for level in levels])
    power = np.frexp(np.maximum(count, 1))[1].astype(np.int64) - 1
    rows = np.arange(0, size, layers + 1).reshape(*values.shape[:2], 1) + power * size
    first = np.minimum(np.arange(layers) + few + 1, layers)
    last_start = np.minimum(np.maximum(first + count - (1 << power), first), layers)
    least = np.minimum(table[rows + first], table[rows + last_start])
    result: Floats = np.where(count > 0, least, np.inf)
    return result

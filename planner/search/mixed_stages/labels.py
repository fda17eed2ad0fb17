"""Stage after stage: partial chains of one shape, those that cannot beat the target or another one left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search.mixed_stages.compose import Composer, Unsettled
from planner.search.mixed_stages.numbers import weighted
from planner.search.mixed_stages.shape import Rest, Shape

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Bools, Floats, Ints

__all__ = ["Chain", "ChainSearch", "SearchAnswer"]

_PIVOTS = 12
"""Rounds of the search for dominated labels; what is left is kept, which costs time only."""
_PAIRS = 100_000
"""Pairs of a label and a step that are held against all prices at once."""
_COMPARED = 400_000
"""Pairs of mixes compared at once."""
_HELD = 20_000
"""Labels that may gather before they are thinned out, unless more are asked for."""


@dataclass(frozen=True)
class Chain:
    """Stage i holds layers [ends[i-1], ends[i]) on mix mixes[i], with counts[i] (K,) replicas of each kind."""

    ends: tuple[int, ...]
    mixes: tuple[int, ...]
    counts: tuple[Ints, ...]
    step_time_s: float


@dataclass(frozen=True)
class SearchAnswer:
    """chain: the best one below the target that was met.  open_low: no chain that was left out for lack of room takes
    less (inf: none was; then no chain below the target is better than `chain`).
    """

    chain: Chain | None
    open_low: float


@dataclass
class _Labels:
    """Partial chains, N of them. x of the last stage lacks its onward transfer: that is `pending`, part of `total`.

    cost: (N, V) under the price vectors of the rest.  used: (N, D) by unmixed stages.  mixed: number of the multiset of
    mixed stages.  low: seconds, lower bound of whatever comes.
    """

    end: Ints
    mix: Ints
    parent: Ints
    mixed: Ints
    slowest: Floats
    pending: Floats
    total: Floats
    sync: Floats
    update: Floats
    used: Floats
    cost: Floats
    low: Floats

    def take(self, rows: Ints) -> _Labels:
        return _Labels(**{name: values[rows] for name, values in vars(self).items()})


@dataclass
class _Steps:
    """The Q stages that can follow at one position: mix, end, seconds without transfers, onward transfer at its best.

    rest: (V, Q) the least cost of what follows under each price vector, the last one in seconds of sum x.
    """

    mix: Ints
    end: Ints
    time: Floats
    onward: Floats
    sync: Floats
    update: Floats
    rest: Floats


class ChainSearch:
    """All chains of a shape below `target` seconds. low_slowest: a valid lower bound of max x below the target."""

    def __init__(
        self,
        shape: Shape,
        rest: Rest,
        composer: Composer,
        target: float,
        low_slowest: float,
        should_stop: Callable[[], bool],
    ) -> None:
        import numpy as np

        self.should_stop = should_stop
        self.shape, self.rest, self.composer, self.target = shape, rest, composer, target
        self.low_slowest = low_slowest
        self.mixes = shape.numbers.mixes
        d = shape.setting.data_parallel
        # Where leaving out kinds of a mix never costs, a stage may; elsewhere it has one replica of each at least.
        has = self.mixes.has
        prices = rest.prices / d
        cheapest = np.where(has[None], prices[:, None, :], np.inf).min(axis=2)
        size = has.sum(axis=1)
        self.mix_price: Floats = d * cheapest
        self.allowed: Bools = np.ones(len(has), dtype=bool)
        if not shape.sync.grows:
            self.mix_price = prices @ has.T + (d - size)[None, :] * cheapest
            self.allowed = size <= d
        self.mix_uses: Floats = np.where(self.mixes.pure[:, None], d * (has @ shape.packing.uses), 0.0)
        self._multisets: dict[tuple[int, ...], int] = {(): 0}
        self._names: list[tuple[int, ...]] = [()]
        self._joined: dict[tuple[int, int], int] = {}

    def run(self, limit: int) -> SearchAnswer:
        """`limit`: labels kept after each stage."""
        import numpy as np

        open_low = float("inf")
        levels: list[_Labels] = []
        labels = self._root()
        for stage in range(self.shape.num_stages):
            if self.should_stop():
                return SearchAnswer(None, min(open_low, float(labels.low.min())))
            labels, dropped = self._advance(labels, stage, limit)
            open_low = min(open_low, dropped)
            if not len(labels.end):
                return SearchAnswer(None, open_low)
            levels.append(labels)
        order = np.argsort(labels.low, kind="stable")
        for row in order.tolist():
            if self.should_stop():
                return SearchAnswer(None, min(open_low, float(labels.low[row])))
            try:
                chain = self._trace(levels, row)
            except Unsettled:
                open_low = min(open_low, float(labels.low[row]))
                continue
            if chain is not None:
                return SearchAnswer(chain, open_low)
        return SearchAnswer(None, open_low)

    def _trace(self, levels: list[_Labels], row: int) -> Chain | None:
        low = float(levels[-1].low[row])
        ends, mixes = [], []
        for labels in reversed(levels):
            ends.append(int(labels.end[row]))
            mixes.append(int(labels.mix[row]))
            row = int(labels.parent[row])
        mixes.reverse()
        counts = self.composer.compose(mixes)
        return None if counts is None else Chain(tuple(reversed(ends)), tuple(mixes), tuple(counts), low)

    def _root(self) -> _Labels:
        import numpy as np

        zero, none = np.zeros(1), np.zeros(1, dtype=np.int64)
        return _Labels(
            none, none, none, none, np.full(1, self.low_slowest), zero, zero, np.full(1, self.shape.low_sync),
            np.full(1, self.shape.low_update), np.zeros((1, self.mix_uses.shape[1])),
            np.zeros((1, len(self.rest.seconds))), zero,
        )  # fmt: skip

    def _advance(self, labels: _Labels, stage: int, limit: int) -> tuple[_Labels, float]:
        """The labels after one more stage, and the least bound among those dropped for the limit."""
        import numpy as np

        last = stage == self.shape.num_stages - 1
        parts: list[_Labels] = []
        dropped = float("inf")
        for start in np.unique(labels.end).tolist():
            steps = self._steps(stage, start)
            rows = np.flatnonzero(labels.end == start)
            size = max(1, _PAIRS // max(1, len(steps.mix)))
            for block in range(0, len(rows), size):
                parts.append(self._extend(labels, rows[block : block + size], steps, stage, start))
                if sum(len(part.end) for part in parts) > max(_HELD, 4 * limit):
                    joined, least = self._best(parts, last, 2 * limit)
                    parts, dropped = [joined], min(dropped, least)
        joined, least = self._best(parts, last, limit)
        return joined, min(dropped, least)

    def _best(self, parts: list[_Labels], last: bool, limit: int) -> tuple[_Labels, float]:
        """The undominated labels of all parts, `limit` at most, and the least bound among those left out for that."""
        import numpy as np

        joined = _Labels(**{n: np.concatenate([getattr(p, n) for p in parts]) for n in vars(parts[0])})
        if not last and len(joined.end):
            joined = joined.take(self._undominated(joined))
        if len(joined.end) <= limit:
            return joined, float("inf")
        order = np.argsort(joined.low, kind="stable")
        return joined.take(np.sort(order[:limit])), float(joined.low[order[limit]])

    def _steps(self, stage: int, start: int) -> _Steps:
        import numpy as np

        shape, numbers, mixes = self.shape, self.shape.numbers, self.mixes
        layers, last = numbers.num_layers, stage == shape.num_stages - 1
        kinds_fit = shape.whole[stage][:, start, :] <= self.rest.slowest
        fits = ~mixes.greatest((~kinds_fit).astype(np.float64)).astype(bool) & self.allowed[:, None]
        fits[:, : start + 1] = False
        if last:
            fits[:, :layers] = False
        else:
            fits[:, layers:] = False
        mix, end = np.nonzero(fits)
        time = numbers.mix_time[mix, start, end]
        onward = np.zeros(len(mix))
        least = time.copy()
        if not last:
            onward = weighted(shape.weights[stage][0], numbers.mix_least_onward[mix, end - 1])
            least = least + onward
        if stage:
            least = least + weighted(shape.weights[stage][1], numbers.mix_least_back[mix, start])
        sync = shape.sync.tables[mixes.key_of[mix], start, end]
        keep = np.flatnonzero((least <= self.rest.slowest) & (sync <= self.rest.longest))
        if shape.sync.grows:
            keep = keep[self._uncovered(stage, start, mix[keep], end[keep], time[keep], sync[keep])]
        mix, end = mix[keep], end[keep]
        rest = np.zeros((len(self.rest.seconds), len(mix)))
        if not last and len(mix):
            entering = self.rest.entering[stage + 1]
            entering = np.concatenate([entering, np.full_like(entering[:, :1], -np.inf)], axis=1)
            rest = entering[:, mixes.members[mix], end[:, None]].max(axis=2)
            alive = np.flatnonzero(np.isfinite(rest).all(axis=0))
            keep, mix, end, rest = keep[alive], mix[alive], end[alive], rest[:, alive]
        return _Steps(mix, end, time[keep], onward[keep], sync[keep], numbers.mix_update[mix, start], rest)

    def _uncovered(self, stage: int, start: int, mix: Ints, end: Ints, time: Floats, sync: Floats) -> Ints:
        """Rows of steps that no other one with the same end covers: the same replicas and more at no cost.

        Whatever stands before and after: no slower in its own layers, its transfers both ways on both sides, its
        synchronisation and update, as far as these can matter.
        """
        import numpy as np

        shape, numbers = self.shape, self.shape.numbers
        update = np.maximum(numbers.mix_update[:, start], shape.low_update)
        covers = self.mixes.covers & (update[:, None] <= update[None, :]) & ~np.eye(len(update), dtype=bool)
        if stage:
            covers &= numbers.link_covers[numbers.boundary_kind[start]]
        ends, at = np.unique(end, return_inverse=True)
        # Where a mix cannot stand its values are the largest: it covers nothing, and being covered does not matter.
        times, syncs = (np.full((len(ends), len(update)), np.inf) for _ in range(2))
        times[at, mix], syncs[at, mix] = time, np.maximum(sync, shape.low_sync)
        covered = np.zeros(times.shape, dtype=bool)
        size = max(1, _COMPARED // covers.size)
        for block in range(0, len(ends), size):
            part = slice(block, block + size)
            better = (times[part, :, None] <= times[part, None, :]) & (syncs[part, :, None] <= syncs[part, None, :])
            better &= covers & np.isfinite(times[part])[:, :, None]
            if stage < shape.num_stages - 1:
                better &= numbers.link_covers[numbers.boundary_kind[ends[part]]]
            covered[part] = better.any(axis=1)
        return np.flatnonzero(~covered[at, mix])

    def _extend(self, labels: _Labels, rows: Ints, steps: _Steps, stage: int, start: int) -> _Labels:
        """Every label of `rows` with every step, those that stay below the target."""
        import numpy as np

        shape, numbers, slowest = self.shape, self.shape.numbers, self.rest.slowest
        pending, total = labels.pending[rows], labels.total[rows]
        done = np.zeros((len(rows), len(steps.mix)))
        time = np.broadcast_to(steps.time, done.shape)
        if stage:
            before = labels.mix[rows]
            onward = weighted(shape.weights[stage - 1][0], numbers.mix_links(numbers.onward, start - 1))
            back = weighted(shape.weights[stage][1], numbers.mix_links(numbers.back, start))
            sent = onward[before[:, None], steps.mix[None, :]]
            done = pending[:, None] + sent
            time = time + back[steps.mix[None, :], before[:, None]]
            sums = total[:, None] + sent + time
        else:
            sums = total[:, None] + time
        x = np.maximum(np.maximum(labels.slowest[rows][:, None], done), time + steps.onward)
        sync = np.maximum(labels.sync[rows][:, None], steps.sync)
        update = np.maximum(labels.update[rows][:, None], steps.update)
        within = x <= slowest
        ends = shape.rounds * np.where(within, x, 0.0) + sync + update
        low = ends + sums + steps.rest[-1]
        i, q = np.nonzero((low < self.target) & within)
        keep, priced = self._affordable(labels.cost[rows], total, steps, i, q, sums[i, q], ends[i, q])
        i, q = i[keep], q[keep]
        at = rows[i]
        used = labels.used[at] + self.mix_uses[steps.mix[q]]
        inside = np.flatnonzero((used <= shape.packing.use_caps + 1e-9).all(axis=1))
        i, q, at, used, priced = i[inside], q[inside], at[inside], used[inside], priced[inside]
        more = sums[i, q] - total[i]
        cost = labels.cost[at] + self.mix_price.T[steps.mix[q]] + self.rest.seconds[None, :] * more[:, None]
        return _Labels(
            steps.end[q], steps.mix[q], at, self._join(labels.mixed[at], steps.mix[q]),
            np.maximum(labels.slowest[at], done[i, q]), time[i, q], sums[i, q], sync[i, q], update[i, q], used, cost,
            np.maximum(low[i, q], priced),
        )  # fmt: skip

    def _affordable(
        self, cost: Floats, total: Floats, steps: _Steps, i: Ints, q: Ints, sums: Floats, ends: Floats
    ) -> tuple[Ints, Floats]:
        """Which pairs (i, q) the prices allow within the target, and the seconds below which they allow no plan."""
        import numpy as np

        keep, lows = [np.zeros(0, dtype=np.int64)], [np.zeros(0)]
        seconds, pool = self.rest.seconds, self.rest.pool
        timed = np.flatnonzero(seconds > 0)
        for block in range(0, len(i), _PAIRS // 4):
            part = slice(block, block + _PAIRS // 4)
            row, step = i[part], q[part]
            spent = cost[row] + self.mix_price.T[steps.mix[step]] + steps.rest.T[step]
            spent += seconds * (sums[part] - total[row])[:, None]
            spent -= pool
            inside = np.flatnonzero((spent <= seconds * (self.target - ends[part])[:, None] + 1e-9).all(axis=1))
            keep.append(inside + block)
            lows.append((spent[inside][:, timed] / seconds[timed]).max(axis=1) + ends[part][inside])
        return np.concatenate(keep), np.concatenate(lows)

    def _join(self, mixed: Ints, mix: Ints) -> Ints:
        """Numbers of the multisets with one more stage; unmixed stages are counted by what they use instead."""
        import numpy as np

        result = mixed.copy()
        rows = np.flatnonzero(~self.mixes.pure[mix])
        if len(rows):
            codes = mixed[rows] * len(self.mixes.pure) + mix[rows]
            values, inverse = np.unique(codes, return_inverse=True)
            numbers = [self._number(*divmod(int(v), len(self.mixes.pure))) for v in values]
            result[rows] = np.array(numbers, dtype=np.int64)[inverse]
        return result

    def _number(self, multiset: int, mix: int) -> int:
        key = (multiset, mix)
        if key not in self._joined:
            name = tuple(sorted((*self._names[multiset], mix)))
            if name not in self._multisets:
                self._multisets[name] = len(self._names)
                self._names.append(name)
            self._joined[key] = self._multisets[name]
        return self._joined[key]

    def _undominated(self, labels: _Labels) -> Ints:
        """Rows of labels that no other one with the same end, mix and mixed stages is at least as good as.

        In rounds: the best label of each group that is left removes those it dominates.
        """
        import numpy as np

        values = np.column_stack(
            [labels.slowest, labels.pending, labels.total, labels.sync, labels.update, labels.used]
        )
        order = np.lexsort((labels.low, labels.mixed, labels.mix, labels.end))
        keys = np.column_stack([labels.end, labels.mix, labels.mixed])[order]
        group = np.concatenate([[0], np.cumsum((np.diff(keys, axis=0) != 0).any(axis=1))])
        kept: list[Ints] = []
        rows = order
        for _ in range(_PIVOTS):
            if not len(rows):
                break
            first = np.concatenate([[True], group[1:] != group[:-1]])
            pivots = np.flatnonzero(first)
            kept.append(rows[pivots])
            leader = rows[pivots[np.cumsum(first) - 1]]
            worse = (values[leader] <= values[rows]).all(axis=1)
            rows, group = rows[~worse], group[~worse]
        return np.sort(np.concatenate([*kept, rows]))

"""One (setting, number of stages): its arrays by stage, and bounds from chains of unmixed stages under chip prices."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

from planner.search.mixed_stages.numbers import Numbers, Synchronisation, chain_max
from planner.search.mixed_stages.packing import Packing
from planner.search.mixed_stages.quick import price_vectors
from planner.search.mixed_stages.tables import MixedProblem, MixedSetting

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Bools, Floats, Ints

__all__ = ["Prices", "Rest", "Shape"]

_TIME_SHARES = (0.3,)
"""Prices of a second of sum x, as multiples of the pool's price over the seconds there are."""


class Shape:
    """A setting and a number of stages p.

    low_sum, low_slowest, low_sync, low_update: seconds; lower bounds of sum x, max x, max sync and max update.
    floor: for each stage (K, L+1, L+1) seconds, its own back transfer at its best; whole: the onward one too.
    """

    def __init__(
        self,
        problem: MixedProblem,
        numbers: Numbers,
        sync: Synchronisation,
        packing: Packing,
        setting: MixedSetting,
        num_stages: int,
    ) -> None:
        import numpy as np

        self.numbers, self.sync, self.packing = numbers, sync, packing
        self.setting, self.num_stages = setting, num_stages
        self.rounds = setting.num_micro_batches - 1
        self.weights = [problem.transfer_weights(i, num_stages) for i in range(num_stages)]
        last = num_stages - 1
        places = [
            (problem.in_flight(i, num_stages, setting), *self.weights[i], i == 0, i == last) for i in range(num_stages)
        ]
        self.floor = [numbers.stage_times(*place)[0] for place in places]
        self.whole = [numbers.stage_times(*place)[1] for place in places]
        least = [numbers.stage_times(*place)[2] for place in places]
        self.low_sum, slowest = numbers.chain_lows(tuple(places), least)
        self.low_slowest = max(slowest, self.low_sum / num_stages)
        self.low_sync = chain_max([np.where(np.isfinite(w), sync.least, np.inf).min(axis=0) for w in self.whole])
        updates = np.where(np.isfinite(self.whole[0][:, 0, :]).any(axis=1), numbers.update[:, 0], np.inf)
        self.low_update = float(updates.min())

    @cached_property
    def high(self) -> float:
        """Seconds: every plan of this shape takes less."""
        import numpy as np

        finite = [w[np.isfinite(w)] for w in (self.numbers.onward, self.numbers.back)]
        transfers = max((float(w.max()) for w in finite if w.size), default=0.0)
        times = self.numbers.time[np.isfinite(self.numbers.time)]
        weights = max(a + b for a, b in self.weights)
        slowest = (float(times.max()) if times.size else 0.0) + weights * transfers
        sync = max(float(t[np.isfinite(t)].max()) if np.isfinite(t).any() else 0.0 for t in self.sync.tables)
        update = self.numbers.update[np.isfinite(self.numbers.update)]
        ends = sync + (float(update.max()) if update.size else 0.0)
        return (self.rounds + self.num_stages) * slowest * 1.001 + ends * 1.001 + 1e-9

    def highest_slowest(self, target: float) -> float:
        """The largest max x of a plan within `target`: no limit but the sum when there is one micro-batch."""
        room = target - self.low_sync - self.low_update
        if self.rounds == 0:
            return room
        return min((room - self.low_sum) / self.rounds, room / (self.rounds + 1))


class Prices:
    """Price vectors: chips (V, K) for one replica, the whole pool at `pool` (V,), and what a second of sum x costs (V,)
    as a multiple of the pool's price over the seconds there are. The last one prices seconds alone.
    """

    def __init__(self, packing: Packing) -> None:
        import numpy as np

        fine = price_vectors(packing, fine=True)
        coarse = price_vectors(packing, fine=False)
        parts = [(fine, 0.0), *((coarse, share) for share in _TIME_SHARES)]
        chips = [part for part, _ in parts]
        self.chips: Floats = np.concatenate([*chips, np.zeros((1, fine.shape[1]))])
        self.seconds: Floats = np.array([share for part, share in parts for _ in part] + [1.0])
        self.pool: Floats = np.array([1.0] * (len(self.chips) - 1) + [0.0])
        self.refuted: Ints = np.zeros(len(self.chips), dtype=np.int64)
        self.rows: Ints = np.arange(len(self.chips))

    def few(self, count: int) -> Prices:
        """Those that refuted most so far, and seconds alone."""
        import numpy as np

        result = copy(self)
        result.rows = rows = np.append(np.sort(np.argsort(-self.refuted[:-1], kind="stable")[:count]), self.rows[-1])
        result.chips, result.seconds, result.pool = self.chips[rows], self.seconds[rows], self.pool[rows]
        return result

    def count(self, refuting: Bools) -> None:
        """Remember which vectors refuted a shape; `few` shares the counts."""
        self.refuted[self.rows] += refuting


class Rest:
    """What the rest of a chain costs at least under prices of chips and of seconds, for stages with x <= slowest and
    sync <= longest.

    For a fixed price vector the cheapest chain may change kind only between stages, and needs no mixed stage: in a plan
    the replicas with the same number in every stage form a pipeline of their own, all of whose times are at most the
    plan's, and the cheapest of these d pipelines, taken d times, costs no more than the plan.

    after: for each stage i (V, K, L+1): the least cost of stages i.. when stage i starts at a, its onward transfers
    included and its own back transfer at its best.  V price vectors; prices (V, K) for d replicas, seconds (V,).
    """

    def __init__(self, shape: Shape, prices: Prices, slowest: float, longest: float, time_scale: float) -> None:
        import numpy as np

        self.shape = shape
        self.prices: Floats = prices.chips * shape.setting.data_parallel
        self.seconds: Floats = prices.seconds / np.where(prices.pool > 0, time_scale, 1.0)
        self.pool = prices.pool
        self.slowest, self.longest = slowest, longest
        last = shape.num_stages - 1
        self.entering: list[Floats] = [np.empty(0)] * (last + 1)
        self.after: list[Floats] = [np.empty(0)] * (last + 1)
        self.allowed = self._reachable()
        for stage in range(last, -1, -1):
            self.after[stage] = self._stage(stage, self.entering[stage + 1] if stage < last else None)
            if stage:
                self.entering[stage] = self._entering(stage)

    def _reachable(self) -> list[Bools]:
        """For each stage (K, L+1, L+1): the intervals that keep to the limits and lie on a chain over all layers."""
        import numpy as np

        shape = self.shape
        allowed: list[Bools] = []
        for whole in shape.whole:
            within: Bools = np.asarray((whole <= self.slowest) & (shape.sync.least <= self.longest))
            if allowed:
                within &= np.asarray(np.any(allowed[-1], axis=(0, 1)))[None, :, None]
            allowed.append(within)
        for stage in range(shape.num_stages - 2, -1, -1):
            allowed[stage] &= np.asarray(np.any(allowed[stage + 1], axis=(0, 2)))[None, None, :]
        return allowed

    def _stage(self, stage: int, entering: Floats | None) -> Floats:
        """(V, K, L+1) from `entering` of the next stage."""
        import numpy as np

        shape = self.shape
        allowed = self.allowed[stage]
        times = np.where(allowed, shape.floor[stage], np.inf)
        starts, ends = np.flatnonzero(allowed.any(axis=(0, 2))), np.flatnonzero(allowed.any(axis=(0, 1)))
        result = np.full((len(self.seconds), times.shape[0], times.shape[1]), np.inf)
        if not len(starts):
            return result
        part = times[:, starts[:, None], ends[None, :]]
        blocked = np.where(np.isfinite(part), 0.0, np.inf)
        cost = self.seconds[:, None, None, None] * np.where(blocked > 0, 0.0, part)
        if entering is not None:
            cost += entering[:, :, None, ends]
        cost += blocked
        result[:, :, starts] = cost.min(axis=3) + self.prices[:, :, None]
        return result

    def _entering(self, stage: int) -> Floats:
        """(V, K, L+1): the least cost of stages `stage`.. when the stage before ends at the position on kind k; with
        that stage's onward transfer, and this one's back transfer beyond its best.
        """
        import numpy as np

        shape, numbers = self.shape, self.shape.numbers
        layers = numbers.num_layers
        onward, back = shape.weights[stage - 1][0], shape.weights[stage][1]
        seconds, blocked = numbers.boundary(onward, back)
        cost = self.seconds[:, None, None, None] * seconds
        cost += self.after[stage][:, None, :, 1:layers]
        cost += blocked
        result = np.full((len(self.seconds), len(seconds), layers + 1), np.inf)
        result[:, :, 1:layers] = cost.min(axis=2)
        return result

    def spare(self, budget_s: float) -> Floats:
        """(V,) what a whole chain may cost: the pool, and the seconds of sum x."""
        return self.pool + self.seconds * budget_s

    def refuting(self, budget_s: float) -> Bools:
        """(V,) the price vectors that allow no chain whose x add up to at most `budget_s`."""
        import numpy as np

        cost = self.after[0][:, :, 0].min(axis=1)
        spare = self.spare(budget_s)
        result: Bools = cost > spare + 1e-9 * np.maximum(1.0, np.abs(spare))
        return result

    def least_step(self, low_slowest: float) -> float:
        """Seconds: no plan within the limits of this table takes less, if max x is at least `low_slowest`."""
        cost = self.after[0][:, :, 0].min(axis=1)
        timed = self.seconds > 0
        sums = (cost[timed] - self.pool[timed]) / self.seconds[timed]
        shape = self.shape
        return float(sums.max()) + shape.rounds * low_slowest + shape.low_sync + shape.low_update

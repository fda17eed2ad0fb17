"""Bounds for every (setting, number of stages) at once, before anything is built for one of them."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from planner.search.mixed_stages.numbers import Numbers
from planner.search.mixed_stages.packing import Packing
from planner.search.mixed_stages.tables import MixedProblem, MixedSetting

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Floats

__all__ = ["QuickBounds", "price_vectors"]

_LEVELS = 400
"""Stage times tried between the least and the greatest one."""
_FINE = {1: 1, 2: 16, 3: 10, 4: 6, 5: 4, 6: 3}
_COARSE = {1: 1, 2: 6, 3: 4, 4: 3}
"""Steps of a row's share in the prices, by the number of rows; 2 for more."""


class QuickBounds:
    """Lower bounds of the step time for one micro-batch size and one in-flight floor.

    least_sum: (P+1,) seconds, sum of x over p stages.  A stage on kind k with x <= X covers at most reach[k, X] of the
    work (intervals by their average time); p stages of d replicas must cover all of it with the chips there are. For
    prices of the chips that add up to one for the whole pool:

        d * min { sum_k y_k price_k : sum_k y_k = p, sum_k y_k reach[k, X] >= 1 } <= 1

    or no plan has all x_i <= X.
    """

    def __init__(self, numbers: Numbers, packing: Packing, problem: MixedProblem, in_flight: float) -> None:
        self.numbers, self.problem = numbers, problem
        self.prices = price_vectors(packing, fine=False)
        self.fits = numbers.fits(in_flight)
        self._by_weights: dict[object, tuple[Floats, Floats]] = {}
        self._tables: dict[int, tuple[float, Floats, Floats]] = {}

    def bound(self, setting: MixedSetting, num_stages: int) -> tuple[float, float]:
        """Seconds of a step without update and synchronisation, and of its slowest stage."""
        import numpy as np

        least_sum, levels, cost = self._table(num_stages)
        if not np.isfinite(least_sum):
            return float("inf"), float("inf")
        possible = setting.data_parallel * cost <= 1 + 1e-9
        if not possible.any():
            return float("inf"), float("inf")
        first = int(np.argmax(possible))
        slowest = max(float(levels[first - 1]) if first else 0.0, least_sum / num_stages)
        return (setting.num_micro_batches - 1) * slowest + max(least_sum, slowest), slowest

    def _table(self, num_stages: int) -> tuple[float, Floats, Floats]:
        if num_stages not in self._tables:
            times, sums = self._times(num_stages)
            levels, reach = self._reach(times, num_stages)
            cost = _cheapest_cover(self.prices, reach, num_stages)
            self._tables[num_stages] = (float(sums[num_stages]), levels, cost)
        return self._tables[num_stages]

    def _times(self, num_stages: int) -> tuple[Floats, Floats]:
        """Least stage times (K, L+1, L+1) and their least sums over chains of 0..L stages, for these weights."""
        import numpy as np

        weights = [self.problem.transfer_weights(i, num_stages) for i in range(num_stages)]
        inner = weights[1:-1]
        middle = (min(w[0] for w in inner), min(w[1] for w in inner)) if inner else None
        key = (weights[0], middle, weights[-1], num_stages == 1)
        if key not in self._by_weights:
            times = np.where(self.fits, self.numbers.time, np.inf)
            times = least_stage_times(self.numbers, times, weights[0], middle, weights[-1], num_stages == 1)
            self._by_weights[key] = times, _least_sums(times.min(axis=0))
        return self._by_weights[key]

    def _reach(self, times: Floats, num_stages: int) -> tuple[Floats, Floats]:
        """Levels of stage time (G,), and the share of the work (K, G) that a stage of each kind can hold below each."""
        import numpy as np

        layers = self.numbers.num_layers
        known = np.isfinite(self.numbers.time[:, 0, layers])
        finite = np.isfinite(times)
        if not known.any() or not finite.any():
            return np.zeros(1), np.zeros((len(times), 1))
        steps = np.arange(layers)
        per_layer = self.numbers.time[known][:, steps, steps + 1]
        share = (per_layer / per_layer.sum(axis=1, keepdims=True)).mean(axis=0)
        upto = np.concatenate([[0.0], np.cumsum(share)])
        work = upto[None, :] - upto[:, None]
        low, high = times[finite].min(), times[finite].max()
        levels = np.geomspace(max(low, high * 1e-9), high * (1 + 1e-9), _LEVELS)
        reach = np.zeros((len(times), _LEVELS))
        for k in range(len(times)):
            order = np.argsort(times[k], axis=None)
            ordered = times[k].ravel()[order]
            count = int(np.isfinite(ordered).sum())
            if count:
                best = np.maximum.accumulate(work.ravel()[order[:count]])
                index = np.searchsorted(ordered[:count], levels, side="right")
                reach[k] = np.where(index > 0, best[np.maximum(index, 1) - 1], 0.0)
        return levels, reach


def least_stage_times(
    numbers: Numbers,
    times: Floats,
    first: tuple[float, float],
    middle: tuple[float, float] | None,
    last: tuple[float, float],
    single: bool,
) -> Floats:
    """(K, L+1, L+1) seconds of a stage with the fastest transfers its kind can have; inf where it cannot stand."""
    import numpy as np

    layers = numbers.num_layers
    result: Floats = np.full_like(times, np.inf)
    if single:
        result[:, 0, layers] = times[:, 0, layers]
        return result
    onward, back = numbers.least_onward, numbers.least_back
    with np.errstate(invalid="ignore"):
        result[:, 0, 1:layers] = times[:, 0, 1:layers] + _times(first[0], onward[:, : layers - 1])
        result[:, 1:layers, layers] = times[:, 1:layers, layers] + _times(last[1], back[:, 1:])
        if middle is not None:
            extra = _times(middle[0], onward[:, None, : layers - 1]) + _times(middle[1], back[:, 1:, None])
            result[:, 1:layers, 1:layers] = times[:, 1:layers, 1:layers] + extra
    return result


def _times(weight: float, seconds: Floats) -> Floats:
    """weight * seconds; a missing link stays missing at weight zero (the stages are neighbours)."""
    import numpy as np

    return np.where(np.isfinite(seconds), weight * np.where(np.isfinite(seconds), seconds, 0.0), np.inf)


def _least_sums(times: Floats) -> Floats:
    """(L+1,) least sum of stage times (L+1, L+1) over chains of 0..L intervals that cover all layers."""
    import numpy as np

    layers = len(times) - 1
    sums: Floats = np.full(layers + 1, np.inf)
    best: Floats = np.full(layers + 1, np.inf)
    best[0] = 0.0
    for p in range(1, layers + 1):
        best = (best[:, None] + times).min(axis=0)
        sums[p] = best[layers]
    return sums


def _cheapest_cover(prices: Floats, reach: Floats, num_stages: int) -> Floats:
    """(G,) the least price of `num_stages` stages that cover all work, the dearest over the price vectors (V, K).

    The linear program over y has an optimal basis of one or two kinds: one that reaches 1/p at least, one below.
    """
    import numpy as np

    kinds, levels = reach.shape
    need = 1.0 / num_stages - 1e-12
    dearest: Floats = np.zeros(levels)
    over = reach >= need
    for price in prices:
        best = np.where(over, price[:, None], np.inf).min(axis=0)
        for k in range(kinds):
            # Share `part` of the stages on kind k, which reaches far enough, the rest on a cheaper one that does not.
            mixed = over[k][None, :] & ~over & (price[:, None] < price[k])
            gap = np.where(mixed, reach[k][None, :] - reach, 1.0)
            part = np.where(mixed, (need - reach) / gap, 1.0)
            value = np.where(mixed, part * price[k] + (1 - part) * price[:, None], np.inf)
            best = np.minimum(best, value.min(axis=0))
        dearest = np.maximum(dearest, num_stages * best)
    return dearest


def price_vectors(packing: Packing, fine: bool) -> Floats:
    """(V, K) prices of one replica of each kind: combinations of the packing's rows in which the whole pool costs one,
    on a grid of equal shares.
    """
    import numpy as np

    rows = packing.rows / np.maximum(packing.caps, 1e-9)[:, None]
    count = len(rows)
    steps = (_FINE if fine else _COARSE).get(count, 2)
    bars = np.array(list(combinations(range(steps + count - 1), count - 1)), dtype=np.int64).reshape(-1, count - 1)
    ends = np.concatenate([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), steps + count - 1)], axis=1)
    shares = (np.diff(ends, axis=1) - 1) / steps
    result: Floats = shares @ rows
    return result

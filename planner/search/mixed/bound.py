"""A lower bound of every mix, from prices of chips.

Prices (sequences a step, one a slot) are normalised: all chips together cost exactly the global batch. The pipelines of
a mix run the global batch between them and cost no more than it, so one of them runs at least as many sequences as it
costs. Where no pipeline within a step time does, no mix is that fast. Step times are asked for from a low one up to the
goal, each for all numbers of micro-batches, in ranges that are divided where they have to be (cheapest.py).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.cost.schedule import in_flight
from planner.search.mixed.cheapest import Box, Cheapest
from planner.search.workers import PoolOfWorkers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.rows import PieceRows
    from planner.search.mixed.shapes import Family, Pool

    Floats = NDArray[np.float64]

__all__ = ["mix_bound"]

_FIRST = 0.15
_CLOSER = (0.08, 0.05, 0.04, 0.03, 0.025, 0.02, 0.015)
_FARTHER = (0.25, 0.4)
"""How far below the best plan step times are asked for: first, then while that was shown, or until something is."""
_HALVINGS = 3
"""Step times asked for between the last one that was shown and the first one that was not."""
_WIDE, _NARROW = 1.1, 1.03
"""Ratio of the micro-batches of a first range, and of those whose fronts are not bounded more closely."""
_FEW_WAYS, _WAYS = 3, 6
"""Parts into which the ways of a wide and of a narrow range are divided for their fronts."""
_USUAL_WAY = 0.25
"""Share of the step time: longer ways are one part."""
_FINEST = 0.003
"""Share of the step time: parts of ways of one number of micro-batches that are not divided any more."""
_LABELS, _MOST_LABELS = 3_000, 60_000
"""Labels of a stage after which a wide or a narrow range is divided."""
_TOGETHER = 16
"""Ranges that are asked for before it is looked whether one of them failed, whatever the number of processes."""
_SLACK = 1e-9


@dataclass(frozen=True)
class Range:
    """Pipelines of a family, by its number, with fewest..most micro-batches."""

    family: int
    fewest: int
    most: int

    @property
    def wide(self) -> bool:
        return self.most > max(self.fewest, int(self.fewest * _NARROW))

    def halves(self) -> tuple[Range, Range]:
        """The range divided by ratio."""
        middle = min(max(int(math.sqrt(self.fewest * self.most)), self.fewest), self.most - 1)
        return Range(self.family, self.fewest, middle), Range(self.family, middle + 1, self.most)


class Refuter:
    """Says which ranges hold no pipeline within a step time that runs what it costs.

    rows, prices: of each family, prices in micro-batches for a slot of each kind.
    """

    def __init__(self, rows: Sequence[PieceRows], prices: Sequence[Floats]) -> None:
        self.rows, self.prices = rows, prices

    def holds_none(self, asked: Range, step_time: float, should_stop: Callable[[], bool]) -> bool:
        """False where that was not shown."""
        import numpy as np

        rows = self.rows[asked.family]
        if not rows.kinds or float(rows.fastest[-1]) >= step_time:
            return True
        ends = _ways(rows, step_time, asked.wide)
        prices = self.prices[asked.family]
        cheapest = Cheapest(rows, step_time, prices, asked.fewest, asked.most, np.array(ends[:-1]), asked.wide)
        left = [[Box(asked.fewest, asked.most, *ways) for ways in pairwise(ends)]]
        labels = _LABELS if asked.wide else _MOST_LABELS
        while left:
            boxes = left.pop()
            if should_stop():
                return False
            answers = cheapest.cheaper(boxes, labels)
            still = [box for box, cheaper in zip(boxes, answers, strict=True) if cheaper is not False]
            parts = [*_divided(still, step_time)] if still and not asked.wide else []
            if still and not parts:
                return False
            left += parts
        return True


def _ways(rows: PieceRows, step_time: float, wide: bool) -> list[float]:
    """Where the ways of a range are divided: evenly up to a usual one, then the rest."""
    shortest, parts = float(rows.fastest[-1]), _FEW_WAYS if wide else _WAYS
    usual = max(_USUAL_WAY * step_time, min(2 * shortest, step_time))
    return [*(shortest + (usual - shortest) * n / parts for n in range(parts + 1)), step_time]


def refuted(ranges: Sequence[Range], ask: Callable[[Sequence[Range]], Sequence[bool]]) -> list[Range] | None:
    """The ranges, divided as far as needed to show that none holds a pipeline that runs what it costs; None when that
    was not shown. ask: for each range whether it was.
    """
    left, shown = [*reversed(ranges)], list[Range]()
    while left:
        batch = [left.pop() for _ in range(min(_TOGETHER, len(left)))]
        for asked, none in zip(batch, ask(batch), strict=True):
            if none:
                shown.append(asked)
            elif asked.wide:
                left += reversed(asked.halves())
            else:
                return None
    return sorted(shown, key=lambda r: (r.family, r.fewest))


def _divided(boxes: Sequence[Box], step_time: float) -> Iterator[list[Box]]:
    """Boxes divided where they are widest, micro-batches or way; none when that is too fine already."""
    fewest, most = boxes[0].fewest, boxes[0].most
    width = max(b.long - b.short for b in boxes) / step_time
    if most > fewest and most / fewest - 1 >= width:
        middle = (fewest + most) // 2
        yield [b._replace(most=middle) for b in boxes]
        yield [b._replace(fewest=middle + 1) for b in boxes]
    elif width > _FINEST:
        halves = []
        for b in boxes:
            middle_way = (b.short + b.long) / 2
            halves += [b._replace(long=middle_way), b._replace(short=middle_way)]
        yield halves
    elif most > fewest:
        middle = (fewest + most) // 2
        yield [b._replace(most=middle) for b in boxes]
        yield [b._replace(fewest=middle + 1) for b in boxes]


def mix_bound(
    pool: Pool,
    families: Sequence[tuple[Family, int, int]],
    prices: Sequence[float],
    best: float,
    gap: float,
    should_stop: Callable[[], bool] = lambda: False,
    jobs: int = 1,
    deadline: float = math.inf,
) -> float:
    """No mix of pipelines of these families is faster than this many seconds; at most (1 - gap) * best.

    families: each with the fewest and the most micro-batches of its pipelines, all mixes covered.
    prices: of a chip of each group, in any unit.  The bound is valid for all of them, and best for the dual prices of
    the relaxed master.  jobs: processes; they heed the deadline (of the monotonic clock) alone.
    """
    import numpy as np

    whole = sum(p * n for p, n in zip(prices, pool.num_chips, strict=True))
    if whole <= 0:
        return 0.0
    batch = pool.problem.global_batch
    scaled = [p * batch / whole for p in prices]
    alone, rows, slots, ranges = math.inf, list["PieceRows"](), list["Floats"](), list[Range]()
    for family, fewest, most in families:
        if should_stop():
            return 0.0
        costs = np.array([scaled[k.group] * k.tensor * pool.context for k in family.kinds])
        alone = min(alone, _single_stages(family, costs, fewest))
        rows.append(family.rows)
        slots.append(costs / family.micro_batch_size)
        ranges += _ranges(len(rows) - 1, fewest, most)
    with Asking(Refuter(rows, slots), should_stop, jobs, deadline) as asking:
        return min(alone, _climb(ranges, asking, best, gap, alone))


def _climb(ranges: list[Range], asking: Asking, best: float, gap: float, enough: float) -> float:
    """The highest step time asked for that no range reaches; one above `enough` will do."""
    reached = 1.0
    failed: float | None = None
    for missing in (*(g for g in (_FIRST, *_CLOSER) if g > gap), gap):
        shown = refuted(ranges, asking.about(best * (1 - missing)))
        if shown is None:
            failed = missing
            break
        ranges, reached = shown, missing
        if enough <= best * (1 - reached):
            break
    for missing in _FARTHER if reached == 1.0 else ():
        if refuted(ranges, asking.about(best * (1 - missing))) is not None:
            reached = missing
            break
        failed = missing
    if failed is None or reached == 1.0:
        return best * (1 - reached)
    for _ in range(_HALVINGS):
        middle = (reached + failed) / 2
        shown = refuted(ranges, asking.about(best * (1 - middle)))
        if shown is None:
            failed = middle
        else:
            ranges, reached = shown, middle
    return best * (1 - reached)


def _ranges(family: int, fewest: int, most: int) -> Iterator[Range]:
    while fewest <= most:
        last = min(most, max(fewest, int(fewest * _WIDE)))
        yield Range(family, fewest, last)
        fewest = last + 1


class Asking:
    """Asks here (`jobs` 1) or in worker processes; what is answered does not depend on it."""

    def __init__(self, refuter: Refuter, should_stop: Callable[[], bool], jobs: int, deadline: float) -> None:
        self.refuter, self.stop, self.deadline = refuter, should_stop, deadline
        self._workers = PoolOfWorkers(jobs, _start_worker, refuter) if jobs > 1 else None

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def about(self, step_time: float) -> Callable[[Sequence[Range]], Sequence[bool]]:
        """For ranges, whether none holds a pipeline within the step time that runs what it costs."""

        def ask(ranges: Sequence[Range]) -> Sequence[bool]:
            if self._workers is None:
                return [not self.stop() and self.refuter.holds_none(r, step_time, self.stop) for r in ranges]
            calls = [(r, step_time, self.deadline) for r in ranges]
            return self._workers.answers(_holds_none, calls, self.stop, False)

        return ask


_refuters: list[Refuter] = []
"""A worker process's own, from when it starts."""


def _start_worker(refuter: Refuter) -> None:
    _refuters[:] = [refuter]


def _holds_none(asked: Range, step_time: float, deadline: float) -> bool:
    return _refuters[0].holds_none(asked, step_time, lambda: time.monotonic() > deadline)


def _single_stages(family: Family, costs: Floats, fewest: int) -> float:
    """The fastest pipeline of one stage that runs what it costs, and at least `fewest` micro-batches."""
    single = family.root.single_stage()
    whole = family.root.intervals.index[0, family.root.intervals.num_layers]
    best = math.inf
    for kind, cost in zip(family.kinds, costs, strict=True):
        options = single.options(kind.group, kind.mode)
        if options is not None:
            m = max(fewest, math.ceil(float(cost) / family.micro_batch_size * (1 - _SLACK)))
            held = in_flight(family.schedule, 1, m)
            best = min(best, float(m * options.times(held)[whole] + options.update[whole]))
    return best

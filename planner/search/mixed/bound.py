"""A lower bound of every mix, from prices of chips: branch and bound over boxes of micro-batches and allowances.

See pricing.py for what a box is and why the least over all boxes bounds the step time of every mix.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.schedule import in_flight
from planner.search.mixed.pricing import Box, Pricer, Question

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.shapes import Family, Pool

    Floats = NDArray[np.float64]

__all__ = ["mix_bound"]

_RATIO = 2.0
"""Width of the first boxes, in micro-batches and in allowance."""
_FINEST = 1.002
"""Ratio of allowances below which a box is not divided any more."""
_SMALLEST = 1e-3
"""Share of the goal below which the allowances of a first box are not told apart."""
_TOGETHER = 8
"""Boxes of one family that are divided at once: one walk of the dynamic programme answers for all their halves."""
_TILTS = (0.0, 1.0, 0.3, -0.5)
"""Multipliers of the condition that a pipeline costs no more than it runs, tried in turn."""
_M_WEIGHT = 0.2
"""How much the width of a box in micro-batches counts against its width in allowance: it only moves a correction."""


@dataclass
class _Family:
    """One family's pricer, and what a slot of each of its kinds costs, in micro-batches a step."""

    pricer: Pricer
    prices: Floats


class _Open(NamedTuple):
    """A box to be valued: what is known of it, and the tilt to try first."""

    value: float
    box: Box
    tilt: float


@dataclass
class _Bounder:
    goal: float
    families: list[_Family] = field(default_factory=list)
    heap: list[tuple[float, int, Box, float]] = field(default_factory=list)
    questions: int = 0

    def add(self, f: _Family, fewest: int, most: int, should_stop: Callable[[], bool]) -> bool:
        """Boxes that cover all pipelines of a family with fewest..most micro-batches; False when it had to stop."""
        self.families.append(f)
        cover = []
        while fewest <= most:
            last = min(most, max(fewest, math.ceil(fewest * _RATIO) - 1))
            high = (self.goal - f.pricer.fastest_way - f.pricer.least_update) / fewest
            while high * last > _SMALLEST * self.goal:
                cover.append(_Open(0.0, Box(fewest, last, high / _RATIO, high), 0.0))
                high /= _RATIO
            if high > 0:
                cover.append(_Open(0.0, Box(fewest, last, 0.0, high), 1.0))
            fewest = last + 1
        for first in range(0, len(cover), 2 * _TOGETHER):
            if should_stop():
                return False
            self.push(len(self.families) - 1, cover[first : first + 2 * _TOGETHER])
        return True

    def push(self, index: int, boxes: Sequence[_Open]) -> None:
        """Value boxes of one family, and keep those below the goal."""
        for before, (value, tilt) in zip(boxes, self.values(self.families[index], boxes), strict=True):
            if max(before.value, value) < self.goal:
                heapq.heappush(self.heap, (max(before.value, value), index, before.box, tilt))

    def values(self, f: _Family, boxes: Sequence[_Open]) -> list[tuple[float, float]]:
        """For each box: seconds that no pipeline in it which runs as many sequences as it costs can undercut, and the
        tilt that shows it.

        u + min (S + (a + nu) cost / b) - nu m  for any nu >= -a, since cost / b <= m;  m the most for nu > 0, the
        fewest for nu < 0.  nu = tilt * goal / most, or tilt * a where negative.  The tilt that an open box has is tried
        first.
        """
        update = f.pricer.least_update
        best = [(update + f.pricer.fastest_way + o.box.low * o.box.fewest, o.tilt) for o in boxes]
        orders = [list(dict.fromkeys((o.tilt, *_TILTS))) for o in boxes]
        for turn in range(max(map(len, orders), default=0)):
            below = [n for n, tilts in enumerate(orders) if turn < len(tilts) and best[n][0] < self.goal]
            questions, shifts = [], []
            for n in below:
                box, tilt = boxes[n].box, orders[n][turn]
                nu = tilt * (self.goal / box.most if tilt > 0 else box.low)
                shifts.append(update - nu * (box.most if nu > 0 else box.fewest))
                questions.append(Question(box, f.prices, nu, self.goal - shifts[-1]))
            self.questions += len(questions)
            for n, shift, (least, _) in zip(below, shifts, f.pricer.least(questions), strict=True):
                if shift + least > best[n][0]:
                    best[n] = (shift + least, orders[n][turn])
        return best

    def run(self, most_questions: int, should_stop: Callable[[], bool]) -> float:
        """The least value of any box once all are above the goal, or as many questions were asked as allowed."""
        while self.heap and self.questions < most_questions and not should_stop():
            index, halves, finest = self.heap[0][1], list[_Open](), False
            for _ in range(_TOGETHER):
                if not self.heap or self.heap[0][1] != index or finest:
                    break
                value, _, box, tilt = self.heap[0]
                divided = _halves(box)
                finest = not divided
                if divided:
                    heapq.heappop(self.heap)
                    halves += [_Open(value, half, tilt) for half in divided]
            if not halves:
                break
            self.push(index, halves)
        return min(self.heap)[0] if self.heap else self.goal


def _halves(box: Box) -> tuple[Box, ...]:
    """The box divided where it is widest; nothing when it is as fine as it gets."""
    wide_m = _M_WEIGHT * (box.most / box.fewest - 1)
    wide_a = box.high / box.low - 1 if box.low > 0 else math.inf
    fine = wide_a <= _FINEST - 1
    if fine and box.most == box.fewest:
        return ()
    if box.most > box.fewest and (fine or wide_m >= wide_a):
        middle = min(max(int(math.sqrt(box.most * box.fewest)), box.fewest), box.most - 1)
        return (
            Box(box.fewest, middle, box.low, box.high),
            Box(middle + 1, box.most, box.low, box.high),
        )
    middle_a = math.sqrt(box.high * box.low) if box.low > 0 else box.high / 4
    return Box(box.fewest, box.most, box.low, middle_a), Box(box.fewest, box.most, middle_a, box.high)


def mix_bound(
    pool: Pool,
    families: Sequence[tuple[Family, int, int]],
    prices: Sequence[float],
    goal: float,
    most_questions: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> float:
    """No mix of pipelines of these families is faster than this many seconds; at most `goal`.

    families: each with the fewest and the most micro-batches of its pipelines, all mixes covered.
    prices: of a chip of each group, in any unit.  The bound is valid for all of them, and best for the dual prices of
    the relaxed master.
    """
    import numpy as np

    whole = sum(p * n for p, n in zip(prices, pool.num_chips, strict=True))
    if whole <= 0:
        return 0.0
    batch = pool.problem.global_batch
    scaled = [p * batch / whole for p in prices]
    bounder, least = _Bounder(goal), goal
    for family, fewest, most in families:
        if should_stop():
            return 0.0
        costs = np.array([scaled[k.group] * k.tensor * pool.context for k in family.kinds])
        least = min(least, _single_stages(family, costs, fewest))
        priced = _Family(Pricer(family, goal), costs / family.micro_batch_size)
        if not bounder.add(priced, fewest, most, should_stop):
            return 0.0
    return min(least, bounder.run(most_questions, should_stop))


def _single_stages(family: Family, costs: Floats, fewest: int) -> float:
    """The fastest pipeline of one stage that runs what it costs, and at least `fewest` micro-batches."""
    single = family.root.single_stage()
    whole = family.root.intervals.index[0, family.root.intervals.num_layers]
    best = math.inf
    for kind, cost in zip(family.kinds, costs, strict=True):
        options = single.options(kind.group, kind.mode)
        if options is not None:
            m = max(fewest, math.ceil(float(cost) / family.micro_batch_size * (1 - 1e-9)))
            held = in_flight(family.schedule, 1, m)
            best = min(best, float(m * options.times(held)[whole] + options.update[whole]))
    return best

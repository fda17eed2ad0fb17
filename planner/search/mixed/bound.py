"""A lower bound of every mix, from prices of chips.

Prices (sequences a step, one a chip) are normalised: all chips together cost exactly the global batch. The pipelines of
a mix run the global batch between them and cost no more than it, so one of them runs at least as many sequences as it
costs. Where no pipeline within a step time does, no mix is that fast: whatever the prices. Step times are asked for at
the goal first, and at easier ones for what is left over (refuter.py). Where a relaxed pipeline runs what it costs,
other prices may do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from planner.cost.schedule import in_flight
from planner.search.mixed.master import chip_prices, most_sequences
from planner.search.mixed.refuter import Boxes, Question, Relaxed, first_boxes, grouped

if TYPE_CHECKING:
    from planner.search.mixed.fronts import Box
    from planner.search.mixed.refuter import Asking
    from planner.search.mixed.shapes import Family, Pool

__all__ = ["Known", "mix_bound"]

_GOALS = (0.03, 0.02, 0.015)
"""How far below the best plan step times are asked for, while that is shown, before the gap asked for."""
_EASIER = (0.08, 0.15, 0.25, 0.4, 0.6, 0.8)
"""Before the first goal: until something is shown."""
_HALVINGS = 3
"""Step times asked for between the last one that was shown and the first one that was not."""
_TOGETHER = 8
"""Groups of boxes that are asked for before it is looked whether one failed, whatever the number of processes."""
_STEPS = (0.125, 0.25, 0.5, 0.75)
"""Of the way to other prices."""
_PART_OF_MARGIN = 0.2
_PRICES = 12
"""Prices tried at a step time."""
_LOOKS, _SLACK = (40, 120), 0.005
"""Boxes of a group that are looked at before all are, so that prices which won't do are known early; and the slack of
prices at that: those that are shown then stay so at prices that are a little lower.
"""
_SLACK_ONCE = 0.02
"""As the slack, where boxes are looked at once: most are far from holding anything.
"""
_ROUNDING = 1e-9


_CLOSER = 2
"""Times that pipelines are looked for at the first prices, so that those which fail at once are known."""


class Known(Protocol):
    """Real pipelines that good prices come from."""

    def within(self, step_time: float) -> Sequence[Relaxed]:
        """Each with the most sequences that it runs within a step time."""

    def look_closer(self, prices: Sequence[float], step_time: float, should_stop: Callable[[], bool]) -> bool:
        """Look for more that run about what they cost at prices of a chip of each group; whether any was found."""


class _Shown(NamedTuple):
    """Boxes that hold no pipeline within a step time that runs what it costs at these prices, or at higher ones."""

    step_time: float
    prices: tuple[float, ...]
    boxes: Boxes

    def still(self, step_time: float, prices: Sequence[float]) -> bool:
        return step_time <= self.step_time and all(p >= q for p, q in zip(prices, self.prices, strict=True))


def mix_bound(
    pool: Pool,
    families: Sequence[tuple[Family, int, int]],
    known: Known,
    best: float,
    gap: float,
    asking: Asking,
) -> float:
    """No mix of pipelines of these families is faster than this many seconds; at most (1 - gap) * best.

    families: each with the fewest and the most micro-batches of its pipelines, all mixes covered.
    known: prices at which none of these runs what it costs are tried first; the bound is valid whatever they are, but
    good prices come from good pipelines.
    asking: about these families.
    """
    boxes: list[tuple[int, Box]] = []
    for n, (family, fewest, most) in enumerate(families):
        if asking.stop():
            return 0.0
        boxes += ((n, box) for box in first_boxes(family.rows, fewest, most, best))
    return _Climb(pool, families, known, best, boxes, asking).run(gap)


class _Climb:
    """The highest step time asked for that no pipeline reaches which runs what it costs."""

    def __init__(
        self,
        pool: Pool,
        families: Sequence[tuple[Family, int, int]],
        known: Known,
        best: float,
        boxes: Boxes,
        asking: Asking,
    ) -> None:
        self.pool, self.families, self.known, self.best = pool, families, known, best
        self.open, self.asking = boxes, asking
        self.shown: list[_Shown] = []
        self.reached, self.failed = 0.0, math.inf
        self.prices: tuple[float, ...] = ()
        self._relaxed: list[tuple[float, Relaxed]] = []

    def run(self, gap: float) -> float:
        """Seconds. What a goal leaves open after one look is asked for at easier step times first, so that something is
        known early.
        """
        goals = *(g for g in _GOALS if g > gap), gap
        self._look_closer(self.best * (1 - goals[0]))
        for goal in goals:
            step_time = self.best * (1 - goal)
            if self.asking.stop() or not self._price(step_time):
                self.failed = step_time
                break
            self._ask(Question(step_time, self.prices, _SLACK_ONCE, None))
            if not self.reached:
                self._easier(goal)
            number = len(self._relaxed)
            if not self._at(step_time) and (len(self._relaxed) == number or not self._with_other_prices(step_time)):
                self.failed = step_time
                break
        if not self.reached:
            self._fall_back(gap)
        for _ in range(_HALVINGS if 0 < self.reached < self.failed < math.inf else 0):
            middle = (self.reached + self.failed) / 2
            if not self._with_other_prices(middle):
                self.failed = middle
        return self.reached

    def _look_closer(self, step_time: float) -> None:
        """Pipelines that the first prices are too low for; these are forgotten."""
        for _ in range(_CLOSER):
            if self.asking.stop() or not self._price(step_time):
                break
            prices, self.prices = self.prices, ()
            if not self.known.look_closer(prices, step_time, self.asking.stop):
                break
        self.prices = ()

    def _easier(self, goal: float) -> None:
        """An easier step time, which divides the boxes that a goal left open."""
        for easier in (e for e in _EASIER if e > goal):
            if self._at(self.best * (1 - easier)):
                return

    def _fall_back(self, gap: float) -> None:
        """Easier step times, at other prices."""
        for easier in (e for e in _EASIER if e > gap):
            step_time = self.best * (1 - easier)
            if self._with_other_prices(step_time):
                return
            self.failed = step_time

    def _ask(self, asked: Question) -> tuple[bool, bool]:
        """Ask for all boxes of which it is not known: whether it was shown of all of them, and whether it can't be.
        Once a group fails, those after it are left for other prices, unless there are few looks at each.
        """
        self.open = [*self.open, *(b for s in self.shown if not s.still(*asked[:2]) for b in s.boxes)]
        self.shown = [s for s in self.shown if s.still(*asked[:2])]
        groups, left, shown, failed = grouped(self.open), list["tuple[int, Box]"](), list["tuple[int, Box]"](), False
        for n in range(0, len(groups), _TOGETHER):
            some = groups[n : n + _TOGETHER]
            if failed and asked.looks == math.inf:
                left += ((group.family, box) for group in some for box in group.boxes)
                continue
            for group, answer in zip(some, self.asking.answers(some, asked), strict=True):
                shown += ((group.family, box) for box in answer.shown)
                left += ((group.family, box) for box in answer.left)
                failed = failed or answer.failed
                self._relaxed += [(asked.step_time, answer.because)] if answer.because is not None else []
        self.open = left
        self.shown.append(_Shown(asked.step_time, asked.lowered(), shown))
        return not left, failed

    def _with_other_prices(self, step_time: float) -> bool:
        """Whether there are prices at which no pipeline within the step time runs what it costs; they are kept."""
        for _ in range(_PRICES):
            number = len(self._relaxed)
            if self.asking.stop() or not self._price(step_time):
                return False
            if self._at(step_time):
                return True
            if len(self._relaxed) == number:
                return False
        return False

    def _price(self, step_time: float) -> bool:
        """Prices at which what is known to run within the step time costs most beyond what it runs; False: something
        runs what it costs at any prices.
        """
        known = [*self.known.within(step_time), *(r for t, r in self._relaxed if t <= step_time)]
        chips, groups = self.pool.num_chips, len(self.pool.num_chips)
        used = [(*r.chips, *(0,) * (groups - len(r.chips))) for r in known]
        found = chip_prices(used, [r.sequences for r in known], chips, self.pool.solver)
        if found is None:
            return False
        if not any(found):
            found = [1.0] * groups
        whole, batch = most_sequences(found, chips), self.pool.problem.global_batch
        self.prices = self._on_the_way([p * batch / whole for p in found], used, [r.sequences for r in known])
        return whole < batch * (1 - _ROUNDING) or not known

    def _on_the_way(
        self, prices: Sequence[float], used: Sequence[Sequence[int]], runs: Sequence[float]
    ) -> tuple[float, ...]:
        """Prices from the last ones towards these: as near to the last ones as leaves a part of what these ones gain,
        since the best prices for what is known are often bad ones for what is not.
        """

        def margin(tried: Sequence[float]) -> float:
            costs = (sum(n * p for n, p in zip(own, tried, strict=True)) for own in used)
            return min((cost / n for cost, n in zip(costs, runs, strict=True) if n), default=math.inf) - 1

        enough = _PART_OF_MARGIN * margin(prices)
        for step in _STEPS if self.prices else ():
            tried = [(1 - step) * last + step * new for last, new in zip(self.prices, prices, strict=True)]
            if margin(tried) >= enough:
                return tuple(tried)
        return tuple(prices)

    def _at(self, step_time: float) -> bool:
        """Whether no pipeline within the step time runs what it costs."""
        if not self._singles_are_slower(step_time):
            return False
        for asked in (*(Question(step_time, self.prices, _SLACK, n) for n in _LOOKS), Question(step_time, self.prices)):
            shown, failed = self._ask(asked)
            if shown:
                self.reached = step_time
            if shown or failed or self.asking.stop():
                return shown
        return False

    def _singles_are_slower(self, step_time: float) -> bool:
        """Whether no pipeline of one stage within the step time runs what it costs."""
        slower = True
        for family, fewest, most in self.families:
            for relaxed in _single_stages(family, fewest, most, step_time):
                cost = sum(p * n for p, n in zip(self.prices, relaxed.chips, strict=False))
                if cost <= relaxed.sequences * (1 + _ROUNDING):
                    self._relaxed.append((step_time, relaxed))
                    slower = False
        return slower


def _single_stages(family: Family, fewest: int, most: int, step_time: float) -> list[Relaxed]:
    """Pipelines of one stage within the step time, each with its most sequences."""
    single = family.root.single_stage()
    whole = family.root.intervals.index[0, family.root.intervals.num_layers]
    found = []
    for kind in family.kinds:
        options = single.options(kind.group, kind.mode)
        if options is None:
            continue

        low, high = fewest - 1, most
        while low < high:
            middle = (low + high + 1) // 2
            time = options.times(in_flight(family.schedule, 1, middle))[whole]
            fits = middle * time + options.update[whole] <= step_time * (1 + _ROUNDING)
            low, high = (middle, high) if fits else (low, middle - 1)
        if low >= fewest:
            chips = [0] * (kind.group + 1)
            chips[kind.group] = kind.tensor * family.pool.context
            found.append(Relaxed(tuple(chips), low * family.micro_batch_size))
    return found

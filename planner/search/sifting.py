"""Sifting one root: what the sieve over all its shapes says about a few step times, and the plans found on the way."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from planner.search.candidates import Root
from planner.search.one_shape import Best, polished_order
from planner.search.sieve import ShapeSieve, SieveStopped
from planner.search.sieve_walks import shortest_shape
from planner.search.tree import Target

__all__ = ["Question", "Sift", "sift_root"]

_NARROW = 0.02
"""Bounds this close to the step time that passes are not raised further."""
_MOST_PLANS = 12
_STRIDE = 1.25


@dataclass(frozen=True)
class Question:
    """What to find out about a root.

    first: the step time to ask about first.  lower: a bound of its pipelines of two or more stages.  halvings: how
    often to ask between that bound and what passes.
    """

    index: int
    first: float
    lower: float
    halvings: int = 0


@dataclass(frozen=True)
class Sift:
    """lower: no pipeline of two or more stages is faster.  high: the least step time known to pass, inf without one.
    best: a better plan, if one was found.
    """

    lower: float
    high: float
    best: Best | None


def sift_root(
    root: Root, question: Question, target: Target, gap: float, should_stop: Callable[[], bool] = lambda: False
) -> Sift:
    """Ask, follow better plans, and close in on the least step time that passes. Step times only, no prices."""
    assert target.price_per_chip_s is None
    sifting = _Sifting(root, question, target.objective, should_stop)
    try:
        sifting.gallop(question.first)
        for _ in range(question.halvings):
            if _NARROW * sifting.high < sifting.high - sifting.lower < math.inf:
                sifting.ask((sifting.lower + sifting.high) / 2)
        for _ in range(_MOST_PLANS):
            goal = sifting.objective * (1 - gap)
            if sifting.best is None or not sifting.lower < goal < sifting.high:
                break
            sifting.ask(goal)
    except SieveStopped:
        pass
    return Sift(sifting.lower, sifting.high, sifting.best)


class _Sifting:
    """lower: nothing passes below.  high: the least step time known to pass."""

    def __init__(self, root: Root, question: Question, objective: float, should_stop: Callable[[], bool]) -> None:
        self.root, self.index, self.should_stop = root, question.index, should_stop
        self.sieve = ShapeSieve(root)
        self.objective = objective
        self.best: Best | None = None
        self.lower, self.high = question.lower, math.inf

    def gallop(self, farthest: float) -> None:
        """From the bound upwards to a step time that passes, `farthest` at most: long ones take long to answer."""
        asked = self.lower
        while self.high == math.inf and self.lower < farthest:
            asked = max(asked * _STRIDE, self.lower)
            self.ask(farthest if asked == 0 or asked * _STRIDE >= farthest else asked)

    def ask(self, step_time: float) -> None:
        """Whether any shape passes; if so, the plan of the one with the shortest way."""
        table = self.sieve.within(step_time, self.should_stop)
        if table is None:
            self.lower = max(self.lower, step_time)
            return
        self.high = step_time
        order, ends = shortest_shape(table)
        found = polished_order(self.root, self.index, order, self.objective, ends)
        if found is not None:
            self.best, self.objective = found, found.objective

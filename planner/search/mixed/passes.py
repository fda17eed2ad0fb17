"""Rounds again and again: with as many pipelines, and the reductions, as the best mix that the last ones found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.mixed.evaluate import ring_of
from planner.search.mixed.rounds import Rounds
from planner.search.mixed.shapes import Ring

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from planner.search.mixed.exhaustive import Found
    from planner.search.mixed.shapes import Pool, Shape

__all__ = ["Passes"]

_CLOSE = 1.25
"""Once a mix has so many times more or fewer pipelines than its shapes were made for, they are made again."""
_PASSES = 8
"""Most passes with the reductions of the best mix."""
_WORTH_A_PASS = 5e-4
"""How much faster, relatively, the best mix must have become for another pass."""


class Passes:
    """Each pass begins with the shapes that were worth most in the last one. best: the best mix, made better."""

    def __init__(self, pool: Pool, wanted: Sequence[int], best: Found, should_stop: Callable[[], bool]) -> None:
        self.pool, self.wanted, self.best, self.stop = pool, wanted, best, should_stop
        self.shapes: list[Shape] = []
        self.number = wanted[0]

    def guessed(self, number: int) -> None:
        """With reductions that are guessed, at so many pipelines, and again where the best mix has others."""
        self._run(number, Ring())
        if self._moved:
            self._run(self._used, Ring())

    def least(self, number: int | None = None) -> Rounds:
        """With the least reductions, at the number of pipelines of the best mix or so many; says what can be gained."""
        return self._run(number or self._used or self.number, None)

    def again(self) -> None:
        """With the reductions of the best mix, as long as it gets better."""
        for _ in range(_PASSES):
            if self.stop() or len(self.best.entries) < 2:
                return
            before, ring = self.best.step_time, ring_of(self.pool, self.best.entries)
            if ring is None:  # a mix of another context parallel degree, too wide here
                return
            self._run(self._used, ring)
            if self.best.step_time >= before * (1 - _WORTH_A_PASS) and not self._moved:
                return

    @property
    def _used(self) -> int:
        return sum(e.replicas for e in self.best.entries)

    @property
    def _moved(self) -> bool:
        used, number = self._used, self.number
        return used > 0 and max(used / number, number / used) >= _CLOSE

    def _run(self, number: int, ring: Ring | None) -> Rounds:
        self.number = min(self.wanted, key=lambda r: abs(r - number))
        rounds = Rounds(self.pool, self.number, ring, self.best, self.shapes, self.stop)
        rounds.run()
        self.shapes = rounds.worth_most()
        return rounds

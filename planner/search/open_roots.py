"""What is left to prove: a bound for every root that is not closed, made sharper where it matters.

A bound has three grades: a floor, which costs nothing, a quick bound, the full one. Only the least bounds are made
sharper, as long as that changes which roots are looked at first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby, islice

from planner.search.bounds import Refuter
from planner.search.candidates import Root
from planner.search.floors import LEAST_S, Floors
from planner.search.quick_bounds import least_cost, rate_bound, single_stage_bound
from planner.search.sifting import Question, Sift

__all__ = ["OpenRoots"]

_ROOMY = 0.6
"""Spare memory, as a share of what the layers need at least, from which a root hardly fails for memory."""
_NARROW = 0.01
"""A root's bound this close to a step time that its shapes pass is as good as the sieve makes it."""


class OpenRoots:
    """Bounds of the objective by root index. Roots that are not searched yet are in `waiting`; closed ones have left
    `bounds`, what they proved is in `finished`.
    """

    def __init__(
        self, roots: list[Root], price_per_chip_s: tuple[float, ...] | None, out_of_time: Callable[[], bool]
    ) -> None:
        self.roots, self.prices, self.out_of_time = roots, price_per_chip_s, out_of_time
        self.waiting: dict[int, float] = dict.fromkeys(range(len(roots)), 0.0)
        self.bounds: dict[int, float] = {}
        self.finished: list[float] = []
        self.quick: set[int] = set()
        self.refined: set[int] = set()
        self.room: dict[int, float] = {}
        self.asked: set[int] = set()
        self._single: dict[int, float] = {}
        self._lower: dict[int, float] = {}
        self._high: dict[int, float] = {}

    def least(self) -> float:
        """The least bound of all roots, waiting, open and closed; inf without any."""
        return min([*self.waiting.values(), *self.bounds.values(), *self.finished], default=math.inf)

    def find_floors(self, should_stop: Callable[[], bool]) -> None:
        """A floor for each root that waits; at least a moment is spent on them, so that every plan has a bound."""
        floors, begin = Floors(self.prices), time.monotonic()
        for i in self.waiting:
            if should_stop() or (self.out_of_time() and time.monotonic() > begin + LEAST_S):
                break
            self.waiting[i] = floors.of(self.roots[i])

    def lowest(self, number: int) -> list[int]:
        """The waiting roots with the lowest floors."""
        return sorted(self.waiting, key=lambda i: (self.waiting[i], i))[:number]

    def begin(self, indices: Iterable[int]) -> None:
        """Some of the roots that wait are searched from now on."""
        for i in indices:
            self.bounds[i] = self.waiting.pop(i)

    def sharpen(self, i: int) -> None:
        """The quick bound of a root, once; a root that can hold nothing is closed at once."""
        if i in self.quick or self.out_of_time():
            return
        self.quick.add(i)
        self.bounds[i] = max(self.bounds[i], self._quick_bound(self.roots[i]))
        if not math.isfinite(self.bounds[i]):
            del self.bounds[i]

    def _ranked(self) -> list[int]:
        return sorted(self.bounds, key=lambda i: (self.bounds[i], i))

    def _by_quick_bound(self) -> Iterator[int]:
        """All roots by their bounds, which are quick ones or better; those that come later are not touched yet."""
        heap = [(bound, i) for i, bound in self.bounds.items()]
        heapify(heap)
        while heap and not self.out_of_time():
            _bound, i = heappop(heap)
            if i in self.quick:
                yield i
                continue
            self.sharpen(i)
            if i in self.bounds:
                heappush(heap, (self.bounds[i], i))
            if not heap or heap[0][1] != i:  # else it is looked at next
                self.roots[i].release()

    def _quick_bound(self, root: Root) -> float:
        bound = min(rate_bound(root), single_stage_bound(root))
        return bound if self.prices is None or not math.isfinite(bound) else least_cost(root, self.prices)

    def refine(self, i: int) -> None:
        """The full bound of a root, once."""
        if i in self.refined:
            return
        self.quick.add(i)
        self.refined.add(i)
        root, start = self.roots[i], self.roots[i].start()
        bound = math.inf
        self.room[i] = 0.0
        if start is not None and sum(start.high) >= 2:
            refuter = Refuter(root)
            self.room[i] = refuter.memory_room(start)
            bound = refuter.bound(start)
        self._single[i] = single_stage_bound(root)
        if not math.isfinite(min(bound, self._single[i])):
            del self.bounds[i]
        elif self.prices is None:
            self.raise_bound(i, bound)

    def raise_bound(self, i: int, several_stages: float) -> None:
        """No pipeline of two or more stages of a root is faster; those of one stage have a bound of their own."""
        self._lower[i] = max(self._lower.get(i, 0.0), several_stages)
        self.bounds[i] = max(self.bounds[i], min(self._lower[i], self._single[i]))

    def unasked(self, goal: float, number: int, may_ask: Callable[[int], bool]) -> list[int]:
        """The first few roots whose bounds are below a goal and that the sieve was not asked about: those of short
        pipelines first, which are soon answered, then the least bounds. Only as many as needed are refined.
        """
        fresh = [i for i in self._ranked() if i not in self.asked and self.bounds[i] < goal]
        found: list[int] = []
        for _, group in groupby(sorted(fresh, key=self._length), key=self._length):
            for i in group:
                self._refine_below(i, goal)
                if i in self.refined and self.bounds.get(i, math.inf) < goal and may_ask(i):
                    found.append(i)
            if len(found) >= number:
                break
        return sorted(found, key=lambda i: (self._length(i), self.bounds[i], i))[:number]

    def _length(self, i: int) -> int:
        return self.roots[i].most_stages

    def _refine_below(self, i: int, goal: float) -> None:
        self.sharpen(i)
        if self.bounds.get(i, math.inf) < goal and not self.out_of_time():
            self.refine(i)
        else:
            self.roots[i].release()

    def best(self, number: int) -> list[int]:
        """The roots with the least bounds, refined until the first `number` of them are."""
        while not self.out_of_time():
            first = [*islice(self._by_quick_bound(), number)]
            rough = [i for i in first if i not in self.refined]
            if not rough:
                return first
            for i in rough:
                self.refine(i)
        return []

    def promising(self, number: int) -> list[int]:
        """A few roots with the least quick bounds, those with room in memory first."""
        roomy: list[int] = []
        tight: list[int] = []
        for i in self._by_quick_bound():
            if len(roomy) == number or self.out_of_time():
                break
            self.refine(i)
            if i in self.bounds:
                (roomy if self.room[i] >= _ROOMY else tight).append(i)
        ranked = sorted(roomy, key=lambda i: (self.bounds[i], i))
        return (ranked + sorted(tight, key=lambda i: (-self.room[i], i)))[:number]

    def roomiest(self, number: int) -> list[int]:
        """The refined roots with the most room in memory."""
        return sorted(self.refined & self.bounds.keys(), key=lambda i: (-self.room[i], i))[:number]

    def question(self, i: int, step_time: float, halvings: int = 0) -> Question:
        """To ask the sieve about a root for the first time, at a step time."""
        return Question(i, step_time, self._lower.get(i, 0.0), halvings)

    def closer_question(self, i: int, step_time: float) -> Question | None:
        """To ask about a root between its bound and what is known to pass; None when they are close."""
        lower, high = self._lower[i], min(step_time, self._high[i])
        return None if high - lower <= _NARROW * high else Question(i, (lower + high) / 2, lower)

    def answer(self, question: Question, sift: Sift) -> None:
        """Take what the sieve said."""
        i = question.index
        self.asked.add(i)
        self._high[i] = min(self._high.get(i, math.inf), sift.high)
        self.raise_bound(i, sift.lower)

    def close(self, i: int, bounds: Iterable[float]) -> None:
        """Everything of a root is proved to lie above these."""
        self.finished += bounds
        del self.bounds[i]
        self.roots[i].release()

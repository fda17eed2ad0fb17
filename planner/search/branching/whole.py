"""Pipelines over contiguous sets of a branching graph: the best of every shape, and what none can beat.

Roots in the order of their bounds, then their shapes: placements by the dynamic programme of the busiest stage, then
the assignment program until a shape is decided. What is not decided keeps its bound.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from planner.cost.tables import Problem
from planner.search.branching.pipeline_ideals import least_busiest_stage
from planner.search.branching.pipeline_solve import solve_pipeline
from planner.search.branching.placed import Placed, judge, pipeline_problem, polish_sets
from planner.search.branching.shapes import neighbours, shapes_of_root
from planner.search.branching.whole_bound import Ways, quick_bound, rate_bound, shape_bound, ways_of
from planner.search.candidates import Limits, Root, make_roots
from planner.search.floors import LEAST_S, Floors
from planner.search.improve import in_space
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.quick_bounds import single_stage_bound
from planner.search.tree import Order

__all__ = ["WholeAnswer", "search_sets"]

_MOST_SHAPES = 3000
"""Of a root, which else keeps its bound; and of all roots before no more are looked at."""
_MOST_BINARIES = 400
"""Layers x stages of an assignment program that is worth a try."""
_FIRST_SHAPES = 40
"""That are placed before any is decided."""
_NEARLY, _NEARLY_AROUND = 1.1, 1.5
"""Times the best step: placements up to there are worth moving single layers; more around the best plan."""
_LEAST_GAP = 1e-6
_ROUNDING = 2e-7
"""More than what the program's limit is rounded down by, so that a proof reaches the goal."""


@dataclass(frozen=True)
class WholeAnswer:
    """placed: the best found, at least as good as the one given; None without one.

    bound: no pipeline over contiguous sets is faster, of any shape; inf when it is proved that none fits.
    in_time: whether the clock had no part in it: everything was tried that is tried at all.
    """

    placed: Placed | None
    bound: float
    statistics: dict[str, int]
    in_time: bool


def search_sets(
    problem: Problem,
    limits: Limits,
    start: Placed | None,
    gap: float,
    deadline: float,
    should_stop: Callable[[], bool] = lambda: False,
    report: Callable[[int, int, float, float], None] = lambda *_: None,
    most_placements: int | None = None,
) -> WholeAnswer:
    """Look for better pipelines than `start`, and prove how good the best one is. deadline: of time.monotonic().

    most_placements: shapes that sets may be placed on before the rest keeps its bound; None: as many as there are.
    report: is told shapes placed, programs solved, the best step time and the bound (inf for none).
    """
    search = _Search(problem, limits, start, max(gap, _LEAST_GAP), lambda: should_stop() or time.monotonic() > deadline)
    search.report, search.left = report, math.inf if most_placements is None else most_placements
    search.find_floors(deadline, should_stop)
    search.run(deadline)
    found = math.inf if search.best is None else search.best.step_time
    return WholeAnswer(search.best, min(search.bound(), found), search.statistics, not search.out_of_time())


@dataclass(order=True)
class _Open:
    """A root, or a shape of one, that may still hold something better. seen: a shape was placed.  grade: of a root's
    bound: a floor, a quick bound, the full one.
    """

    bound: float
    rank: int
    root: int
    order: Order = field(default=(), compare=False)
    seen: bool = field(default=False, compare=False)
    grade: int = field(default=0, compare=False)

    @property
    def stages(self) -> int:
        return sum(n for _, _, n in self.order)


class _Search:
    def __init__(
        self, problem: Problem, limits: Limits, start: Placed | None, gap: float, out_of_time: Callable[[], bool]
    ) -> None:
        self.roots = make_roots(problem, Intervals(problem.chain), limits)
        self.best, self.gap, self.out_of_time = start, gap, out_of_time
        self.statistics = {"set_shapes": 0, "set_programs": 0}
        self.roots_open = [_Open(0.0, i, i) for i in range(len(self.roots))]
        self.shapes: list[_Open] = []
        self.closed = math.inf
        """The least bound of what need not be looked at any more."""
        self.report: Callable[[int, int, float, float], None] = lambda *_: None
        self.left = math.inf
        """Placements that there still may be."""
        self._ways: dict[int, Ways] = {}

    def over(self) -> bool:
        """Whether nothing more may be tried."""
        return self.left <= 0 or self.out_of_time()

    @property
    def goal(self) -> float:
        """What a better plan must be faster than."""
        return math.inf if self.best is None else self.best.step_time * (1 - self.gap)

    def bound(self) -> float:
        return min([self.closed, *(item.bound for item in (*self.roots_open, *self.shapes))])

    def offer(self, leaf: Leaf, stage_of: Sequence[int] | None, nearly: float = _NEARLY) -> None:
        placed = None if stage_of is None else judge(leaf, stage_of)
        if placed is not None and (self.best is None or placed.step_time < nearly * self.best.step_time):
            placed = polish_sets(placed, self.out_of_time)
        if placed is not None and (self.best is None or placed.step_time < self.best.step_time):
            self.best = placed

    def find_floors(self, deadline: float, should_stop: Callable[[], bool]) -> None:
        """A floor for each root; at least a moment is spent on them, so that every plan has a bound."""
        floors, end = Floors(None, any_order=True), max(deadline, time.monotonic() + LEAST_S)
        for item, root in zip(self.roots_open, self.roots, strict=True):
            if should_stop() or time.monotonic() > end:
                break
            item.bound = floors.of(root)
        heapq.heapify(self.roots_open)

    def run(self, deadline: float) -> None:
        """Placements of the most promising shapes first; then small shapes first, all of them must be decided."""
        self.place_around()
        while self.roots_open and self.roots_open[0].bound < self.goal and not self.over():
            if len(self.shapes) > _MOST_SHAPES:
                break
            self.expand(heapq.heappop(self.roots_open))
        for item in sorted(self.shapes, key=self.promise)[:_FIRST_SHAPES]:
            if item.bound < self.goal and not self.over():
                self.place(item)
        self.shapes.sort(key=lambda item: (item.stages, item.bound, item.rank))
        for item in self.shapes:
            if item.bound < self.goal and not self.over():
                self.decide(item, deadline)
                found = math.inf if self.best is None else self.best.step_time
                done = self.statistics["set_shapes"], self.statistics["set_programs"]
                self.report(*done, found, min(found, self.bound()))

    def promise(self, item: _Open) -> tuple[float, int]:
        """What a step of a shape may take: its bound, and the pipeline's filling beside."""
        fill = (item.stages - 1) / self.roots[item.root].micro_batches
        return item.bound * (1 + fill), item.rank

    def place_around(self) -> None:
        """Sets for the best shape and its neighbours, again from every better one."""
        tried: set[tuple[int, Order]] = set()
        looked: Leaf | None = None
        while self.best is not None and self.best.leaf is not looked and not self.over():
            looked = self.best.leaf
            for order in neighbours(looked.order):
                key = (id(looked.root), order)
                if key in tried or not in_space(looked.root, order) or self.over():
                    continue
                tried.add(key)
                self.place_order(looked.root, order, 0.0, _NEARLY_AROUND)
        if self.best is not None:
            self.best = polish_sets(self.best, self.out_of_time)

    def place_order(self, root: Root, order: Order, bound: float, nearly: float = _NEARLY) -> float:
        """A quick placement of a shape; what no other one can beat."""
        self.left -= 1
        leaf = Leaf(root, order)
        if leaf.num_stages == 1:
            self.offer(leaf, [0] * root.intervals.num_layers)
            return bound
        found = least_busiest_stage(pipeline_problem(leaf), self.out_of_time)
        bound = max(bound, found.bound_s)
        if bound < self.goal:
            self.offer(leaf, found.stage_of, nearly)
        return bound

    def expand(self, item: _Open) -> None:
        """A sharper bound of a root, where there is one; else its shapes."""
        root = self.roots[item.root]
        if item.grade < 2:
            bound = quick_bound(root) if item.grade == 0 else rate_bound(root, 5.0)
            bound = max(item.bound, bound)
            heapq.heappush(self.roots_open, _Open(bound, item.rank, item.root, grade=item.grade + 1))
            return
        orders = [*islice(shapes_of_root(root), _MOST_SHAPES + 1)]
        if len(orders) > _MOST_SHAPES:
            self.closed = min(self.closed, item.bound)
            return
        for order in orders:
            if self.out_of_time():
                self.closed = min(self.closed, item.bound)
                return
            bound = max(item.bound, self.bound_of(root, item.root, order))
            self.shapes.append(_Open(bound, len(self.shapes), item.root, order))

    def bound_of(self, root: Root, index: int, order: Order) -> float:
        if sum(n for _, _, n in order) == 1:
            return single_stage_bound(root, {order[0][:2]})
        if index not in self._ways:
            self._ways[index] = ways_of(root)
        return shape_bound(root, order, self._ways[index])

    def place(self, item: _Open) -> None:
        item.seen = True
        self.statistics["set_shapes"] += 1
        item.bound = self.place_order(self.roots[item.root], item.order, item.bound)

    def decide(self, item: _Open, deadline: float) -> None:
        """The assignment program of a shape, where it is not too large, until its bound reaches the goal."""
        if not item.seen:
            self.place(item)
        leaf = Leaf(self.roots[item.root], item.order)
        before = -1.0
        small = 1 < leaf.num_stages <= _MOST_BINARIES // leaf.root.intervals.num_layers
        while small and item.bound < self.goal and before != self.goal and not self.out_of_time():
            before = self.goal
            item.bound = max(item.bound, self.solve(leaf, deadline))

    def solve(self, leaf: Leaf, deadline: float) -> float:
        """The assignment program below the best plan so far; the bound that it proves."""
        self.statistics["set_programs"] += 1
        left = max(0.1, deadline - time.monotonic())
        below = math.inf if self.best is None else self.best.step_time
        gap = self.gap - _ROUNDING
        answer = solve_pipeline(
            pipeline_problem(leaf), gap=gap, time_limit_s=left, should_stop=self.out_of_time, below_s=below
        )
        self.offer(leaf, answer.stage_of)
        return answer.bound_s

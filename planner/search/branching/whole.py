"""Pipelines over contiguous sets of a branching graph: the best of every shape, and what none can beat.

Roots, then their shapes, in the order of their bounds: placements of the busiest stage's dynamic programme, then the
assignment program until a shape is decided. What is not decided keeps its bound.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice, permutations

from planner.cost.tables import Problem
from planner.search.branching.pipeline_ideals import least_busiest_stage
from planner.search.branching.pipeline_solve import solve_pipeline
from planner.search.branching.placed import Placed, judge, pipeline_problem, polish_sets
from planner.search.branching.shapes import shapes_of_root
from planner.search.branching.whole_bound import Ways, quick_bound, rate_bound, shape_bound, ways_of
from planner.search.candidates import Limits, Root, make_roots
from planner.search.improve import in_space
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.quick_bounds import single_stage_bound
from planner.search.tree import Order

__all__ = ["WholeAnswer", "search_sets"]

_MOST_SHAPES = 3000
"""Of a root; one with more keeps its bound."""
_MOST_BINARIES = 400
"""Layers x stages of an assignment program that is worth a try."""
_FIRST_SHAPES = 40
"""That are placed before any is decided."""
_MOST_ORDERS = 24
_LEAST_GAP = 1e-6
_ROUNDING = 2e-7
"""More than what the program's limit is rounded down by, so that a proof reaches the goal."""


@dataclass(frozen=True)
class WholeAnswer:
    """placed: the best found, at least as good as the one given; None without one.

    bound: no pipeline over contiguous sets is faster, of any shape; inf when it is proved that none fits.
    """

    placed: Placed | None
    bound: float
    statistics: dict[str, int]


def search_sets(
    problem: Problem,
    limits: Limits,
    start: Placed | None,
    gap: float,
    deadline: float,
    should_stop: Callable[[], bool] = lambda: False,
) -> WholeAnswer:
    """Look for better pipelines than `start`, and prove how good the best one is. deadline: of time.monotonic()."""
    search = _Search(problem, limits, start, max(gap, _LEAST_GAP), lambda: should_stop() or time.monotonic() > deadline)
    search.run(deadline)
    found = math.inf if search.best is None else search.best.step_time
    return WholeAnswer(search.best, min(search.bound(), found), search.statistics)


@dataclass(order=True)
class _Open:
    """A root, or a shape of one, that may still hold something better."""

    bound: float
    rank: int
    root: int
    order: Order | None = field(default=None, compare=False)
    refined: bool = field(default=False, compare=False)


class _Search:
    def __init__(
        self, problem: Problem, limits: Limits, start: Placed | None, gap: float, out_of_time: Callable[[], bool]
    ) -> None:
        self.roots = make_roots(problem, Intervals(problem.chain), limits)
        self.best, self.gap, self.out_of_time = start, gap, out_of_time
        self.statistics = {"set_shapes": 0, "set_programs": 0}
        self.open = [_Open(quick_bound(root), i, i) for i, root in enumerate(self.roots)]
        heapq.heapify(self.open)
        self.undecided: list[float] = []
        self.decided = math.inf
        self._ways: dict[int, Ways] = {}
        self._ranks = len(self.roots)

    @property
    def goal(self) -> float:
        """What a better plan must be faster than."""
        return math.inf if self.best is None else self.best.step_time * (1 - self.gap)

    def bound(self) -> float:
        return min([self.decided, *self.undecided, *(item.bound for item in self.open)])

    def offer(self, leaf: Leaf, stage_of: Sequence[int] | None) -> None:
        placed = None if stage_of is None else judge(leaf, stage_of)
        if placed is not None and (self.best is None or placed.step_time < 1.5 * self.best.step_time):
            placed = polish_sets(placed)
        if placed is not None and (self.best is None or placed.step_time < self.best.step_time):
            self.best = placed

    def run(self, deadline: float) -> None:
        if self.best is not None:
            self.place_around(self.best.leaf)
        placed: list[_Open] = []
        while not self.out_of_time():
            nothing_new = not self.open or self.open[0].bound >= self.goal
            if placed and (nothing_new or len(placed) >= _FIRST_SHAPES):
                for item in placed:
                    heapq.heappush(self.open, item)
                placed.clear()
            elif nothing_new:
                break
            else:
                item = heapq.heappop(self.open)
                if item.order is None:
                    self.expand(item)
                elif not item.refined and self.statistics["set_shapes"] < _FIRST_SHAPES:
                    self.place(item)
                    placed.append(item)
                else:
                    self.decide(item, deadline)
        self.open += placed

    def place_around(self, leaf: Leaf) -> None:
        """Sets for the best shape, and for the same one with its groups in other orders."""
        for order in islice(permutations(leaf.order), _MOST_ORDERS):
            if not self.out_of_time() and in_space(leaf.root, order) and leaf.num_stages > 1:
                other = Leaf(leaf.root, order)
                self.offer(other, least_busiest_stage(pipeline_problem(other)).stage_of)
        if self.best is not None:
            self.best = polish_sets(self.best)

    def expand(self, item: _Open) -> None:
        """A sharper bound of a root, then its shapes."""
        root = self.roots[item.root]
        if not item.refined:
            bound = max(item.bound, rate_bound(root, 5.0))
            heapq.heappush(self.open, _Open(bound, item.rank, item.root, refined=True))
            return
        shapes = [*islice(shapes_of_root(root), _MOST_SHAPES + 1)]
        if len(shapes) > _MOST_SHAPES:
            self.undecided.append(item.bound)
            return
        for order in shapes:
            self._ranks += 1
            bound = max(item.bound, self.bound_of(root, item.root, order))
            if bound < self.goal:
                heapq.heappush(self.open, _Open(bound, self._ranks, item.root, order))
            else:
                self.decided = min(self.decided, bound)

    def bound_of(self, root: Root, index: int, order: Order) -> float:
        if sum(n for _, _, n in order) == 1:
            return single_stage_bound(root, {order[0][:2]})
        if index not in self._ways:
            self._ways[index] = ways_of(root)
        return shape_bound(root, order, self._ways[index])

    def place(self, item: _Open) -> None:
        """A quick placement of a shape."""
        assert item.order is not None
        item.refined = True
        self.statistics["set_shapes"] += 1
        leaf = Leaf(self.roots[item.root], item.order)
        if leaf.num_stages == 1:
            self.offer(leaf, [0] * leaf.root.intervals.num_layers)
            return
        found = least_busiest_stage(pipeline_problem(leaf))
        item.bound = max(item.bound, found.bound_s)
        self.offer(leaf, found.stage_of)

    def decide(self, item: _Open, deadline: float) -> None:
        """The assignment program of a shape, where it is not too large."""
        assert item.order is not None
        if not item.refined:
            self.place(item)
        leaf = Leaf(self.roots[item.root], item.order)
        layers, bound, before = leaf.root.intervals.num_layers, item.bound, -1.0
        small = leaf.num_stages > 1 and layers * leaf.num_stages <= _MOST_BINARIES
        while small and bound < self.goal and before != self.goal and not self.out_of_time():
            before = self.goal
            bound = max(bound, self.solve(leaf, deadline))
        if bound >= self.goal:
            self.decided = min(self.decided, bound)
        else:
            self.undecided.append(bound)

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

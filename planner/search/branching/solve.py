"""From a branching graph to a placement and its proof: coarsen, bound, place along rows and ideals, solve the rest."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.search.branching.chains import chain_bound
from planner.search.branching.confirm import solve_confirmed
from planner.search.branching.evaluate import evaluate
from planner.search.branching.ideals import ideals_of, place_ideals
from planner.search.branching.line import Piece, place_row
from planner.search.branching.merge import coarsen
from planner.search.branching.problem import BranchingProblem, Placement
from planner.search.branching.program import build_assignment
from planner.search.branching.rows import acyclic_edges, rows
from planner.search.branching.units import Units, bits

__all__ = ["BranchingAnswer", "solve_branching"]

_MOST_IDEALS = 3000
_TOLERANCE = 1e-7
"""Relative: HiGHS' feasibility tolerance on loads scaled to a hundred."""
_LEAST_GAP = 1e-6
_ROUNDING = 1e-12
"""Relative: sums in another order differ by a few units in the last place."""

Stopped = Literal["gap", "infeasible", "time", "interrupted", "error"]


@dataclass(frozen=True)
class BranchingAnswer:
    """What is known at the end.

    placement: the best found, checked by the plain evaluator; None where none was found.
    objective: its largest load, inf without one.  bound: no placement has a smaller largest load; inf when none fits.
    stopped: `gap` (proved), `infeasible` (proved), `time`, `interrupted`, or `error` (the solver failed).
    """

    placement: Placement | None
    objective: float
    bound: float
    stopped: Stopped

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; inf without a placement."""
        if self.placement is None:
            return math.inf
        return (self.objective - self.bound) / self.objective if self.objective else 0.0


def solve_branching(
    problem: BranchingProblem,
    *,
    gap: float = 1e-6,
    time_limit_s: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> BranchingAnswer:
    """The placement of a branching graph with the least largest load, to a relative gap (0: to one millionth).

    Equal inputs give equal placements unless the clock ends the run.
    """
    deadline = time.monotonic() + time_limit_s
    search = _Search(problem, gap)
    if search.bound == math.inf:
        return search.answer("infeasible")
    for pieces in search.quick_placements(deadline):
        search.offer(pieces)
        if search.closed:
            return search.answer("gap")
        if should_stop():
            return search.answer("interrupted")
        if time.monotonic() > deadline:
            return search.answer("time")
    return search.answer(search.close(deadline, should_stop))


class _Search:
    """The best placement and the best bound so far."""

    def __init__(self, problem: BranchingProblem, gap: float) -> None:
        self.problem, self.gap = problem, max(gap, _LEAST_GAP)
        self.units: Units = coarsen(problem)
        self.pieces: Sequence[Piece] = ()
        self.placement: Placement | None = None
        self.objective = math.inf
        self.bound = chain_bound(self.units) * (1 - _ROUNDING)
        if not problem.num_layers:
            self.placement, self.objective = Placement(()), 0.0

    @property
    def closed(self) -> bool:
        return self.placement is not None and self.objective - self.bound <= self.gap * self.objective

    def answer(self, stopped: Stopped) -> BranchingAnswer:
        return BranchingAnswer(self.placement, self.objective, min(self.bound, self.objective), stopped)

    def quick_placements(self, deadline: float) -> Iterator[list[Piece] | None]:
        """Placements by dynamic programmes: along rows of the units, then along their ideals."""
        if self.closed:
            yield None
        edges = acyclic_edges(self.units)
        for row in rows(self.units.num_units, edges):
            yield place_row(self.units, row)
        ideals = ideals_of(self.units.num_units, edges, _MOST_IDEALS)
        if ideals is not None:
            yield place_ideals(self.units, ideals, self.objective, deadline)

    def offer(self, pieces: Sequence[Piece] | None) -> None:
        """Keep a placement if the plain evaluator finds it valid and better."""
        if not pieces:
            return
        chips = [(0, 0)] * self.problem.num_layers
        used = [0] * len(self.problem.classes)
        for c, mask in pieces:
            for v in bits(self.units.layers_of(mask)):
                chips[v] = (c, used[c])
            used[c] += 1
        placement = Placement(tuple(chips))
        verdict = evaluate(self.problem, placement)
        if not verdict.violations and verdict.objective < self.objective:
            self.pieces, self.placement, self.objective = tuple(pieces), placement, verdict.objective

    def close(self, deadline: float, should_stop: Callable[[], bool]) -> Stopped:
        """The assignment program, from the best placement so far."""
        known = self.placement is not None
        limit = self.objective if known else _largest_load(self.units)
        m = build_assignment(self.units, self.bound, limit)
        start = m.start_of(self.pieces) if known else None
        left = max(0.01, deadline - time.monotonic())
        answer = solve_confirmed(m.lp, time_limit_s=left, start=start, should_stop=should_stop)
        if answer.stop == "infeasible":
            if known:  # a placement is in hand: the solver is wrong
                return "error"
            self.bound = math.inf
            return "infeasible"
        if answer.values is not None:
            self.offer(m.pieces_of(answer.values))
        if answer.bound > 0:
            self.bound = max(self.bound, min(answer.bound * m.unit_time * (1 - _TOLERANCE), self.objective))
        if self.closed:
            return "gap"
        return answer.stop if answer.stop in ("time", "interrupted") else "error"


def _largest_load(units: Units) -> float:
    """A chip that holds all it can run and pays every transfer: no load is larger."""
    worst = 0.0
    for c, times in enumerate(units.times):
        worst = max(worst, sum(t for t in times if t < math.inf) + sum(t.times[c] for t in units.tensors))
    return worst or 1.0

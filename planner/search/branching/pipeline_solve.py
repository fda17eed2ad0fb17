"""The best assignment of a branching graph to stages in a fixed order: the program with critical-path cuts."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.cost.branching_recurrence import BranchPath, branch_critical_path
from planner.search.branching.confirm import confirm
from planner.search.branching.pipeline import PipelineProblem, evaluate_pipeline, times_of
from planner.search.branching.pipeline_ideals import least_busiest_stage
from planner.search.branching.pipeline_program import build_pipeline
from planner.search.highs import solve_program

__all__ = ["PipelineAnswer", "solve_pipeline"]

_LEAST_GAP = 8e-7
"""With what limits are rounded by it stays below one millionth."""
_TOLERANCE = 1e-7
"""Relative: HiGHS' feasibility tolerance on times scaled to a hundred."""

Stopped = Literal["gap", "infeasible", "time", "interrupted", "error"]


@dataclass(frozen=True)
class PipelineAnswer:
    """What is known at the end.

    stage_of: the best assignment found, checked by the plain evaluator; None where none was found.
    step_s: its exact step time, inf without one.  bound_s: no assignment is faster; inf when none fits.
    stopped: `gap` (proved), `infeasible` (proved), `time`, `interrupted`, or `error`.  programs: how many were solved.
    """

    stage_of: tuple[int, ...] | None
    step_s: float
    bound_s: float
    stopped: Stopped
    programs: int

    @property
    def gap(self) -> float:
        """(step - bound) / step; inf without an assignment."""
        if self.stage_of is None:
            return math.inf
        return (self.step_s - self.bound_s) / self.step_s if self.step_s else 0.0


def solve_pipeline(
    problem: PipelineProblem,
    *,
    gap: float = 1e-6,
    time_limit_s: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
    below_s: float = math.inf,
) -> PipelineAnswer:
    """The fastest assignment to a relative gap (0: to one millionth).

    below_s: slower assignments are of no use; `gap` without an assignment then means that there is none below it.

    The program is solved for step times up to (1 - gap) x the best known, its solution run exactly and the critical
    path added as a row, until the program has no solution: then that limit is a bound.
    """
    search = _Search(problem, max(gap, _LEAST_GAP), below_s)
    return search.run(time.monotonic() + time_limit_s, should_stop)


class _Search:
    """The best assignment, the bound and the rows so far.

    unconfirmed: the largest bound of a program before the last; it serves when the clock ends the search.
    """

    def __init__(self, problem: PipelineProblem, gap: float, below_s: float) -> None:
        self.problem, self.gap, self.below = problem, gap, below_s
        self.stage_of: tuple[int, ...] | None = None
        self.step = math.inf
        self.programs = 0
        self.rows: list[BranchPath] = []
        start = least_busiest_stage(problem)
        self.bound = self.unconfirmed = start.bound_s
        if start.stage_of is not None:
            self._offer(start.stage_of)

    def run(self, deadline: float, should_stop: Callable[[], bool]) -> PipelineAnswer:
        if self.bound == math.inf:
            return self._answer("infeasible")
        while True:
            known = min(self.step, self.below)
            limit = known * (1 - self.gap) * (1 - _TOLERANCE) if known < math.inf else _slowest(self.problem)
            if known < math.inf and self.bound >= limit:
                return self._answer("gap")
            left = deadline - time.monotonic()
            if left <= 0 or should_stop():
                return self._answer("time" if left <= 0 else "interrupted")
            stopped = self._solve_once(limit, left, should_stop)
            if stopped is not None:
                return self._answer(stopped)

    def _solve_once(self, limit: float, left: float, should_stop: Callable[[], bool]) -> Stopped | None:
        """One program; None when it taught something and the search goes on."""
        m = build_pipeline(self.problem, self.bound, limit, self.rows)
        answer = solve_program(m.lp, time_limit_s=left, should_stop=should_stop)
        self.programs += 1
        if answer.stop == "infeasible":
            answer = confirm(m.lp, answer, time_limit_s=left, should_stop=should_stop)
            if answer.stop == "infeasible":
                unknown = self.stage_of is None and self.below == math.inf
                self.bound = math.inf if unknown else max(self.bound, limit)
                return "infeasible" if unknown else "gap"
        elif answer.bound > 0:
            relaxed = answer.bound * m.unit_s * (1 - _TOLERANCE)
            self.unconfirmed = max(self.unconfirmed, min(relaxed, limit))
        if answer.values is not None and self._offer(m.stages_of(answer.values)) and answer.stop == "optimal":
            return None
        return answer.stop if answer.stop in ("time", "interrupted") else "error"

    def _offer(self, stage_of: Sequence[int]) -> bool:
        """Keep an assignment if it is valid and better; whether its critical path is a new row."""
        verdict = evaluate_pipeline(self.problem, stage_of)
        if verdict.violations:
            return False
        better = verdict.step_s < self.step
        if better:
            self.stage_of, self.step = tuple(stage_of), verdict.step_s
        times = times_of(self.problem, stage_of)
        row = branch_critical_path(times, self.problem.in_flight, self.problem.micro_batches)
        if row in self.rows:
            return better
        self.rows.append(row)
        return True

    def _answer(self, stopped: Stopped) -> PipelineAnswer:
        bound = max(self.bound, self.unconfirmed) if stopped in ("time", "interrupted") else self.bound
        return PipelineAnswer(self.stage_of, self.step, min(bound, self.step), stopped, self.programs)


def _slowest(problem: PipelineProblem) -> float:
    """Every action and transfer after the other on the slowest chips: no step takes longer."""
    one = sum(
        max(table.forward_s[v] + table.backward_s[v] for table in problem.stages) for v in range(problem.num_layers)
    )
    for sends in (problem.send_forward_s, problem.send_backward_s, problem.latency_s):
        one += sum(sum(own) for own in sends.values())
    update = max(sum(table.update_s) + table.fixed_update_s for table in problem.stages)
    return problem.micro_batches * one + update or 1.0

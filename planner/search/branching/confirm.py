"""Asking the solver twice before a program's answer closes a search.

HiGHS 1.16.0 with presolve, at default tolerances too, called a few in ten thousand of these small programs infeasible
or gave them a wrong optimum, although a solution was at hand; without presolve it finds it (the tests keep two such).
So what ends a search counts only when a run without presolve says the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from planner.search.highs import SolverAnswer, solve_program

if TYPE_CHECKING:
    import pulp

__all__ = ["confirm", "solve_confirmed"]


def solve_confirmed(
    program: pulp.LpProblem,
    *,
    time_limit_s: float,
    start: Mapping[str, float] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SolverAnswer:
    """Minimise; an answer `optimal` or `infeasible` has been confirmed. An unfinished run's bound is as it came."""
    begin = time.monotonic()
    presolved = {"presolve": "on"}
    first = solve_program(program, time_limit_s=time_limit_s, start=start, should_stop=should_stop, options=presolved)
    if first.stop not in ("optimal", "infeasible"):
        return first
    left = time_limit_s - (time.monotonic() - begin)
    return confirm(program, first, time_limit_s=left, start=start, should_stop=should_stop)


def confirm(
    program: pulp.LpProblem,
    first: SolverAnswer,
    *,
    time_limit_s: float,
    start: Mapping[str, float] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> SolverAnswer:
    """A second run, without presolve and from the first one's solution: its solution, and the lower of the bounds.

    The first run's objective is not compared: it was seen below what its own solution costs.
    """
    second = solve_program(
        program,
        time_limit_s=max(0.01, time_limit_s),
        start=first.values or start,
        should_stop=should_stop,
        options={"presolve": "off"},
    )
    best = first if second.values is None else second
    return SolverAnswer(second.stop, best.values, best.objective, min(first.bound, second.bound))

"""The one place where a solver is called. It reports three separate facts: why it stopped, whether there is a solution,
how good it is.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pulp

__all__ = ["SolverAnswer", "solve_program"]

Stop = Literal["optimal", "infeasible", "time", "interrupted", "error"]

_HIGHS_OPTIONS = frozenset({"presolve", "random_seed", "mip_feasibility_tolerance", "primal_feasibility_tolerance"})


@dataclass(frozen=True)
class SolverAnswer:
    """What a solver run says.

    stop: why it ended; `error` is not `infeasible` and proves nothing.  values: variable name -> value, None when there
    is no solution.
    objective: of the values.  bound: no solution is below it (-inf when unknown).
    """

    stop: Stop
    values: Mapping[str, float] | None
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, inf without a solution."""
        if self.values is None or self.objective == 0:
            return math.inf
        return (self.objective - self.bound) / abs(self.objective)


def solve_program(
    program: pulp.LpProblem,
    *,
    time_limit_s: float,
    start: Mapping[str, float] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    solver: Literal["highs", "cbc"] = "highs",
    options: Mapping[str, Any] | None = None,
) -> SolverAnswer:
    """Minimise `program` to optimality, from `start` if given.

    HiGHS runs without presolve: with it, HiGHS 1.16.0 called feasible small programs infeasible, and gave an objective
    below what its own solution costs (tests/search/branching keeps such programs). A run that ends with an error or an
    unclear status is repeated with presolve; if that fails too the answer is `error` with bound -inf.
    CBC is there to check HiGHS (tests).
    """
    unknown = set(options or {}) - _HIGHS_OPTIONS
    if unknown:
        raise AssertionError(f"unknown solver options: {sorted(unknown)}")
    if solver == "cbc":
        return _solve_with_cbc(program, time_limit_s)
    asked = {"presolve": "off", **(options or {})}
    answer = _solve_with_highs(program, time_limit_s, start, should_stop, asked)
    if answer.stop == "error":
        other = "on" if asked["presolve"] == "off" else "off"
        answer = _solve_with_highs(program, time_limit_s, start, should_stop, {**asked, "presolve": other})
    return answer


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Keep HiGHS' banner, which its constructor writes to file descriptor 1, off our output."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # stdout is closed: nothing to keep clean
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(sink)


def _highs_class() -> type[Any]:
    import highspy
    import pulp

    class StartedHighs(pulp.HiGHS):  # type: ignore[misc, unused-ignore]
        """PuLP's HiGHS with a starting solution, which PuLP 3.3 does not pass on."""

        start: Mapping[str, float] | None = None

        def createAndConfigureSolver(self, lp: Any) -> None:
            with _quiet_stdout():
                super().createAndConfigureSolver(lp)

        def callSolver(self, lp: Any) -> None:
            if self.start:
                solution = highspy.HighsSolution()
                solution.col_value = [float(self.start.get(v.name, 0.0)) for v in lp.variables()]
                lp.solverModel.setSolution(solution)
            super().callSolver(lp)

    return StartedHighs


def _solve_with_highs(
    program: pulp.LpProblem,
    time_limit_s: float,
    start: Mapping[str, float] | None,
    should_stop: Callable[[], bool],
    options: dict[str, Any],
) -> SolverAnswer:
    import highspy

    def on_callback(kind: Any, message: Any, data_out: Any, data_in: Any, user: Any) -> None:
        if data_in is not None and should_stop():
            data_in.user_interrupt = True

    solver = _highs_class()(
        msg=False,
        timeLimit=max(0.01, time_limit_s),
        gapRel=0.0,
        gapAbs=0.0,
        threads=1,
        callbackTuple=(on_callback, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
        random_seed=0,
        primal_feasibility_tolerance=1e-9,
        mip_feasibility_tolerance=1e-9,
        **options,
    )
    solver.start = start
    program.solve(solver)
    model = program.solverModel
    status = model.getModelStatus()
    info = model.getInfo()
    names = highspy.HighsModelStatus
    stops: dict[Any, Stop] = {
        names.kOptimal: "optimal",
        names.kInfeasible: "infeasible",
        names.kTimeLimit: "time",
        names.kInterrupt: "interrupted",
    }
    stop: Stop = stops.get(status, "error")
    has_solution = info.primal_solution_status == 2  # feasible point
    values = {v.name: float(v.varValue or 0.0) for v in program.variables()} if has_solution else None
    objective = float(info.objective_function_value) if has_solution else math.inf
    is_mip = any(v.cat == "Integer" for v in program.variables())
    bound = float(info.mip_dual_bound) if is_mip else objective
    if stop == "infeasible":
        return SolverAnswer(stop, None, math.inf, math.inf)
    if values is not None and not _costs(program, values, objective):
        stop = "error"
    if stop == "error":
        return SolverAnswer(stop, values, objective, -math.inf)
    return SolverAnswer(stop, values, objective, bound if math.isfinite(bound) else -math.inf)


_SAME = 1e-6
"""Relative: how far the objective that a solver reports may lie from what its solution costs."""


def _costs(program: pulp.LpProblem, values: Mapping[str, float], objective: float) -> bool:
    """Whether a solution costs what the solver says."""
    cost = sum(float(n) * values[v.name] for v, n in program.objective.items()) + float(program.objective.constant)
    return abs(cost - objective) <= _SAME * max(1.0, abs(cost), abs(objective))


def _solve_with_cbc(program: pulp.LpProblem, time_limit_s: float) -> SolverAnswer:
    import pulp

    program.solve(pulp.COIN_CMD(msg=False, timeLimit=time_limit_s, gapRel=0.0, gapAbs=0.0, threads=1))
    if program.status == pulp.LpStatusInfeasible:
        return SolverAnswer("infeasible", None, math.inf, math.inf)
    if program.sol_status != pulp.LpSolutionOptimal:
        return SolverAnswer("time", None, math.inf, -math.inf)
    values = {v.name: float(v.varValue or 0.0) for v in program.variables()}
    objective = float(pulp.value(program.objective))
    return SolverAnswer("optimal", values, objective, objective)

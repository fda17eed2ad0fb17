"""The solver adapter: why it stopped, whether there is a solution, how good it is."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import ClassVar

import pulp
import pytest

from planner.errors import InputError
from planner.search.highs import SolverName, require_solver, solve_program


def knapsack(items: int = 3, room: int = 10) -> pulp.LpProblem:
    """Values 5, 4, 3 (minimised as negatives), weights 6, 5, 4 (then the same again), `room` in all."""
    lp = pulp.LpProblem("knapsack", pulp.LpMinimize)
    take = [lp.add_variable(f"take__{i}", 0, 1, pulp.LpInteger) for i in range(items)]
    lp += pulp.lpSum(-(5 - i % 3) * x for i, x in enumerate(take))
    lp += pulp.lpSum((6 - i % 3) * x for i, x in enumerate(take)) <= room, "room"
    return lp


def hard_program() -> pulp.LpProblem:
    """Market split: equations with random coefficients, which take a solver long to refute."""
    r, rows, columns = random.Random(0), 6, 50
    lp = pulp.LpProblem("split", pulp.LpMinimize)
    x = [lp.add_variable(f"x__{i}", 0, 1, pulp.LpInteger) for i in range(columns)]
    over = [lp.add_variable(f"over__{i}", 0, 10**6) for i in range(rows)]
    under = [lp.add_variable(f"under__{i}", 0, 10**6) for i in range(rows)]
    lp += pulp.lpSum(over) + pulp.lpSum(under)
    for i in range(rows):
        coefficients = [r.randint(0, 99) for _ in x]
        row = pulp.lpSum(c * v for c, v in zip(coefficients, x, strict=True))
        lp += row - over[i] + under[i] == sum(coefficients) // 2, f"row__{i}"
    return lp


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_an_optimum_has_values_and_a_bound_equal_to_its_objective(solver: str) -> None:
    answer = solve_program(knapsack(), time_limit_s=10, solver=solver)  # type: ignore[arg-type]
    # 6 + 4 <= 10: values 5 + 3
    assert (answer.stop, answer.objective, answer.bound) == ("optimal", -8, pytest.approx(-8))
    assert answer.values == {"take__0": 1, "take__1": 0, "take__2": 1}
    assert answer.gap == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_infeasible_is_no_solution_and_an_infinite_bound(solver: str) -> None:
    lp = knapsack()
    lp += pulp.lpSum(lp.variables()) >= 3, "all"
    answer = solve_program(lp, time_limit_s=10, solver=solver)  # type: ignore[arg-type]
    assert (answer.stop, answer.values, answer.bound) == ("infeasible", None, math.inf)


def test_out_of_time_is_not_optimal_and_keeps_a_true_bound() -> None:
    answer = solve_program(hard_program(), time_limit_s=0.3)
    assert answer.stop == "time"
    assert answer.bound <= answer.objective


def test_a_stop_is_asked_for_within_the_run() -> None:
    answer = solve_program(hard_program(), time_limit_s=60, should_stop=lambda: True)
    assert answer.stop == "interrupted"


def test_a_limit_of_nodes_stops_a_run_and_keeps_a_true_bound() -> None:
    answer = solve_program(hard_program(), time_limit_s=60, options={"mip_max_nodes": 1})
    assert answer.stop == "time"
    assert answer.bound <= answer.objective


def test_the_start_is_taken() -> None:
    start = {f"take__{i}": 0.0 for i in range(3)} | {"take__1": 1.0, "take__2": 1.0}
    assert solve_program(knapsack(), time_limit_s=10, start=start).objective == -8


def test_a_linear_program_has_its_objective_as_bound() -> None:
    lp = pulp.LpProblem("line", pulp.LpMinimize)
    x = lp.add_variable("x", 0, 10)
    lp += x
    lp += 2 * x >= 5, "least"
    answer = solve_program(lp, time_limit_s=10)
    assert (answer.stop, answer.objective, answer.bound) == ("optimal", 2.5, 2.5)


def test_unknown_options_are_refused() -> None:
    with pytest.raises(AssertionError, match="unknown solver options"):
        solve_program(knapsack(), time_limit_s=10, options={"pressolve": "on"})


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_nothing_reaches_standard_output(capfd: pytest.CaptureFixture[str], tmp_path: Path, solver: SolverName) -> None:
    for log in (None, str(tmp_path / "solver.log")):
        solve_program(knapsack(30, 60), time_limit_s=10, solver=solver, log_path=log)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("solver", ["highs", "cbc"])
def test_logs_of_all_runs_follow_each_other_in_the_file_that_is_asked_for(tmp_path: Path, solver: SolverName) -> None:
    log, sizes = tmp_path / "solver.log", []
    for _ in range(2):
        solve_program(knapsack(), time_limit_s=10, solver=solver, log_path=str(log))
        sizes.append(log.stat().st_size)
    assert 0 < sizes[0] < sizes[1]


def test_a_solver_that_is_not_there_is_refused_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    require_solver("highs")
    monkeypatch.setattr(pulp.GUROBI, "available", lambda self: False)
    with pytest.raises(InputError, match="pip install gurobipy"):
        require_solver("gurobi")


class Stranger(pulp.LpSolver):
    """A solver of PuLP's that answers whatever it is told to."""

    said: ClassVar[tuple[int, int, dict[str, float]]] = (0, 0, {})

    def actualSolve(self, lp: pulp.LpProblem, **kwargs: object) -> int:
        status, solution, values = self.said
        for variable in lp.variables():
            variable.varValue = values.get(variable.name)
        lp.assignStatus(status, solution)
        return status


@pytest.mark.parametrize(
    ("status", "solution", "values", "stop"),
    [
        (pulp.LpStatusOptimal, pulp.LpSolutionOptimal, {"take__0": 1, "take__1": 0, "take__2": 1}, "optimal"),
        # 6 + 5 > 10: the solution breaks the limit
        (pulp.LpStatusOptimal, pulp.LpSolutionOptimal, {"take__0": 1, "take__1": 1, "take__2": 0}, "error"),
        (pulp.LpStatusOptimal, pulp.LpSolutionOptimal, {"take__0": 0.5, "take__1": 0, "take__2": 1}, "error"),
        (pulp.LpStatusOptimal, pulp.LpSolutionIntegerFeasible, {"take__0": 1, "take__1": 0, "take__2": 0}, "time"),
        (pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound, {}, "time"),
        (pulp.LpStatusUndefined, pulp.LpSolutionNoSolutionFound, {}, "time"),
    ],
)
def test_another_solver_is_believed_only_what_it_proves_and_what_is_checked(
    monkeypatch: pytest.MonkeyPatch, status: int, solution: int, values: dict[str, float], stop: str
) -> None:
    monkeypatch.setattr(Stranger, "said", (status, solution, values))
    monkeypatch.setattr(pulp, "getSolver", lambda name, **options: Stranger())
    answer = solve_program(knapsack(), time_limit_s=10, solver="scip")
    assert answer.stop == stop
    if stop == "optimal":
        assert answer.objective == -8 >= answer.bound
    else:
        assert (answer.values, answer.bound) == (None, -math.inf)

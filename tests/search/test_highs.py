"""The solver adapter: why it stopped, whether there is a solution, how good it is."""

from __future__ import annotations

import math
import random

import pulp
import pytest

from planner.search.highs import solve_program


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
    assert answer.gap == pytest.approx(0)


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


def test_nothing_reaches_standard_output(capfd: pytest.CaptureFixture[str]) -> None:
    solve_program(knapsack(30, 60), time_limit_s=10)
    assert capfd.readouterr() == ("", "")

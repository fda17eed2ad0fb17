"""The search equals exhaustive enumeration on small random problems."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from planner.search.mixed_stages import solve_mixed, step_time_s
from tests.search.mixed_stages.enumeration import least_step_time
from tests.search.mixed_stages.random_problems import random_problem


def _compare(seed: int) -> bool:
    """Whether the problem has a plan."""
    problem = random_problem(seed)
    best = least_step_time(problem)
    exact = solve_mixed(problem, gap=0.0)
    rough = solve_mixed(problem, gap=0.05)
    if best == math.inf:
        assert (exact.stop, exact.plan) == ("infeasible", None)
        assert (rough.stop, rough.plan) == ("infeasible", None)
        return False
    assert exact.plan is not None
    assert exact.stop == "gap"
    assert exact.objective_s == pytest.approx(best, rel=1e-9)
    assert step_time_s(problem, exact.plan) == exact.objective_s
    assert exact.bound_s <= best * (1 + 1e-9)
    assert exact.gap <= 1e-9
    assert rough.bound_s <= best * (1 + 1e-9)
    assert rough.objective_s <= rough.bound_s / (1 - 0.05) * (1 + 1e-9)
    return True


def test_small_problems_equal_enumeration() -> None:
    plans = [_compare(seed) for seed in range(30)]
    assert 5 <= sum(plans) <= 25, "both kinds of problem should occur"


@pytest.mark.slow
def test_many_small_problems_equal_enumeration() -> None:
    plans = [_compare(seed) for seed in range(1000, 1200)]
    assert 50 <= sum(plans) <= 180


def test_equal_inputs_give_equal_plans() -> None:
    answers = [solve_mixed(random_problem(7), gap=0.0) for _ in range(2)]
    assert answers[0] == answers[1]


def test_when_the_time_is_up_the_bound_still_holds() -> None:
    stops = []
    for seed in range(12):
        problem = random_problem(seed)
        answer = solve_mixed(problem, gap=0.0, time_limit_s=0.0)
        assert answer.plan is None
        assert answer.bound_s <= least_step_time(problem)
        stops.append(answer.stop)
    assert stops.count("time") >= 6, "most of them should not be settled by the quick bounds alone"


def test_nothing_to_stand_on_is_infeasible() -> None:
    problem = random_problem(5)
    assert solve_mixed(problem).plan is not None
    empty = tuple(replace(pool, count=0) for pool in problem.chips)
    for changed in (replace(problem, chips=empty), replace(problem, replica_kinds=()), replace(problem, layers={})):
        answer = solve_mixed(changed)
        assert (answer.stop, answer.plan, answer.bound_s) == ("infeasible", None, math.inf)


def test_a_chip_type_without_chips_is_left_out() -> None:
    problem = random_problem(5)
    first, *others = problem.chips
    fewer = replace(problem, chips=(replace(first, count=0), *others))
    assert solve_mixed(fewer, gap=0.0).objective_s == pytest.approx(least_step_time(fewer), rel=1e-9)

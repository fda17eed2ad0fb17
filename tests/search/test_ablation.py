"""What memory limits and a free order are worth on a memory-tight configuration: nobody says what goes where."""

from __future__ import annotations

from functools import cache

import pytest

from planner.plan import Plan, check_plan
from planner.search import SolveOptions, solve
from planner.spec import load_cluster, load_model
from tests.search.small_problems import of_one_shape

SMALL_FIRST, MODEL = "memory-tight", "llama-3.1-70b"


@cache
def planned(ignore_memory: bool = False, fixed_order: bool = False) -> Plan:
    options = SolveOptions(time_limit_s=120.0, ignore_memory=ignore_memory, fixed_order=fixed_order)
    return solve(load_cluster(SMALL_FIRST), of_one_shape(load_model(MODEL)), options).plan


def memory_of_chips(plan: Plan) -> list[int]:
    """Usable bytes of each stage's chip, first stage first."""
    return [stage.memory.usable_bytes for stage in plan.pipelines[0].stages]


@pytest.mark.slow
def test_small_chips_come_first_in_the_file() -> None:
    cluster = load_cluster(SMALL_FIRST)
    sizes = [cluster.chip_of(i).memory_bytes for i in range(len(cluster.node_groups))]
    assert sizes[0] == min(sizes) < max(sizes)


@pytest.mark.slow
def test_large_memory_chips_hold_the_early_stages_without_being_told() -> None:
    usable = memory_of_chips(planned())
    assert len(set(usable)) > 1
    assert usable == sorted(usable, reverse=True)
    held = [stage.in_flight for stage in planned().pipelines[0].stages]
    assert held == sorted(held, reverse=True)


@pytest.mark.slow
def test_ignoring_memory_fails_the_checker() -> None:
    violations = check_plan(planned(ignore_memory=True))
    assert violations
    assert {violation.code for violation in violations} == {"memory"}


@pytest.mark.slow
def test_the_order_of_the_file_costs_step_time() -> None:
    free, fixed = planned(), planned(fixed_order=True)
    # by more than both gaps together, so that the certificates prove it
    assert fixed.certificate.bound > free.certificate.objective

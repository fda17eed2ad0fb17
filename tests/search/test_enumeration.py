"""The search equals exhaustive enumeration on small instances, and every bound it reports is true."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache

import pytest

from planner.cost.tiers import Tier
from planner.search.driver import SearchSettings, search
from tests.search.small_problems import TableProblem, best_by_enumeration, random_offload_problem, random_problem

SLOW = pytest.mark.slow
TOLERANCE = 2e-6
"""`gap` 0 asks for the optimum to 1e-6."""


@cache
def best_of(seed: int, prices: tuple[float, ...] | None = None) -> float:
    """By exhaustive enumeration, once for all tests."""
    return best_by_enumeration(random_problem(seed), prices)


def compare(seed: int, solver: str, problem: TableProblem | None = None) -> None:
    own = problem is not None
    problem = problem or random_problem(seed)
    prices = tuple(g.price for g in problem.groups) if seed % 5 == 4 else None
    best = best_by_enumeration(problem, prices) if own else best_of(seed, prices)
    outcome = search(problem, SearchSettings(gap=0.0, time_limit_s=120, price_per_chip_s=prices, solver=solver))  # type: ignore[arg-type]
    if math.isinf(best):
        assert (outcome.leaf, outcome.why_stopped) == (None, "exhausted")
        return
    assert outcome.why_stopped == "gap"
    assert outcome.objective == pytest.approx(best, rel=TOLERANCE)
    assert outcome.objective >= best * (1 - 1e-9), "a plan that enumeration does not know"
    assert outcome.bound <= best * (1 + 1e-9), "the bound is above the optimum"
    assert outcome.gap <= TOLERANCE
    assert outcome.leaf is not None and outcome.split is not None
    assert outcome.leaf.step_time(outcome.split) == pytest.approx(outcome.step_time, rel=1e-12)
    for s in range(outcome.leaf.num_stages):
        assert outcome.leaf.fits(s, outcome.split.policies[s])


@pytest.mark.parametrize("first_seed", range(0, 300, 25))
def test_search_equals_exhaustive_enumeration(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 25):
        compare(seed, "highs")


@pytest.mark.parametrize("first_seed", [*range(0, 75, 25), *(pytest.param(s, marks=SLOW) for s in range(75, 300, 25))])
def test_search_equals_exhaustive_enumeration_where_layers_may_be_offloaded(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 25):
        compare(seed, "highs", random_offload_problem(seed))


@pytest.mark.parametrize("first_seed", [0, *(pytest.param(s, marks=SLOW) for s in range(50, 300, 50))])
def test_search_equals_exhaustive_enumeration_where_states_and_layers_share_host_memory(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 25):
        compare(seed, "highs", random_offload_problem(seed, 4, offloads=(Tier.CHIP, Tier.HOST)))


@pytest.mark.parametrize("first_seed", [25, *(pytest.param(s, marks=SLOW) for s in range(75, 300, 50))])
def test_search_equals_exhaustive_enumeration_where_states_are_on_drives_and_layers_on_hosts(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 25):
        compare(seed, "highs", random_offload_problem(seed, 4, offloads=(Tier.CHIP, Tier.NVME)))


def test_sharing_host_memory_decides_some_of_these_instances() -> None:
    # as if states and activations had a host memory each: some of those plans are faster
    lost = 0
    for seed in range(0, 50, 2):
        problem = random_offload_problem(seed, 4, offloads=(Tier.HOST,))
        apart = random_offload_problem(seed, 4, offloads=(Tier.HOST,))
        for key, table in apart.tables.items():
            assert table.offload is not None and table.host_bytes is not None
            apart.tables[key] = replace(table, host_bytes=0.0 * table.host_bytes)
        lost += best_by_enumeration(problem) > best_by_enumeration(apart) * (1 + 1e-9)
    assert lost >= 3


def test_offloading_decides_some_of_these_instances() -> None:
    # with tight memory in every second one: plans that only fit, or are faster, because of host memory
    better = 0
    for seed in range(0, 80, 2):
        problem = random_offload_problem(seed)
        without = random_offload_problem(seed)
        for key, table in without.tables.items():
            assert table.offload is not None
            without.tables[key] = replace(table, usable_host_bytes=0.0)
        better += best_by_enumeration(problem) < best_by_enumeration(without) * (1 - 1e-9)
    assert better >= 5


@pytest.mark.slow
@pytest.mark.parametrize("first_seed", range(0, 300, 75))
def test_search_with_cbc_equals_exhaustive_enumeration(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 25):
        compare(seed, "cbc")


def test_some_of_these_instances_cannot_be_placed() -> None:
    infeasible = sum(math.isinf(best_of(seed)) for seed in range(0, 300, 2))
    assert 5 <= infeasible <= 100


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("gap", [0.2, 0.02])
def test_a_looser_gap_is_still_a_true_one(seed: int, gap: float) -> None:
    problem = random_problem(seed)
    best = best_of(seed)
    outcome = search(problem, SearchSettings(gap=gap, time_limit_s=60))
    if math.isfinite(best):
        assert outcome.bound <= best * (1 + 1e-9)
        assert best * (1 - 1e-9) <= outcome.objective <= best / (1 - gap) * (1 + 1e-6)

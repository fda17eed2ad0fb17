"""Pipelines of several shapes: the search equals the enumeration of every mix, and no bound is above it."""

from __future__ import annotations

import math
from functools import cache

import pytest

from planner.cost.tiers import Tier
from planner.search.candidates import Limits
from planner.search.driver import Outcome, SearchSettings, search
from planner.search.intervals import Intervals
from planner.search.mixed import driver
from planner.search.mixed.driver import MixedOutcome, Start, search_mixes
from planner.search.mixed.exhaustive import Found
from planner.search.mixed.rounds import Rounds
from planner.search.mixed.shapes import Pool
from tests.search.mixed_problems import MixedTables, best_mix_by_enumeration, random_mixed_problem, with_offload

FAST, ALL = 40, 200


def mixes_of(problem: MixedTables, start: Start | None = None, gap: float = 0.0) -> MixedOutcome:
    return search_mixes(problem, Limits(), None, start or Start(None, None, math.inf), gap, lambda: False)


@cache
def exact_mix(seed: int) -> MixedOutcome:
    """Of a random pool, once for all tests."""
    return mixes_of(random_mixed_problem(seed))


@cache
def best_mix(seed: int) -> float:
    """By exhaustive enumeration, once for all tests."""
    return best_mix_by_enumeration(random_mixed_problem(seed))


@cache
def exact_identical(seed: int) -> Outcome:
    """The best plan of identical pipelines."""
    return search(random_mixed_problem(seed), SearchSettings(gap=0.0))


def close(a: float, b: float) -> bool:
    return a == b or abs(a - b) <= 1e-9 * b


def check_equals_enumeration(seed: int) -> None:
    outcome, best = exact_mix(seed), best_mix(seed)
    assert close(outcome.step_time, best)
    assert outcome.exhausted and close(outcome.bound, best)


@pytest.mark.parametrize("seed", range(FAST))
def test_the_best_mix_is_that_of_exhaustive_enumeration(seed: int) -> None:
    check_equals_enumeration(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(FAST, ALL))
def test_the_best_mix_is_that_of_exhaustive_enumeration_on_more_pools(seed: int) -> None:
    check_equals_enumeration(seed)


@pytest.mark.parametrize("tiers", [(Tier.CHIP, Tier.HOST), (Tier.CHIP, Tier.NVME)])
def test_the_best_mix_whose_groups_may_offload_is_that_of_exhaustive_enumeration(tiers: tuple[Tier, ...]) -> None:
    chosen = set()
    for seed in (12, 13, 15, 18, 32, 42, 55, 57, 58, 59):
        problem = random_mixed_problem(seed, offloads=tiers)
        outcome, best = mixes_of(problem), best_mix_by_enumeration(problem)
        assert close(outcome.step_time, best) and outcome.exhausted and close(outcome.bound, best)
        chosen |= {kind.mode.offload for entry in outcome.entries for kind in entry.shape.stages}
    assert chosen == set(tiers)


@pytest.mark.parametrize("seed", range(0, 120, 3))
def test_rounds_start_from_the_best_identical_plan_and_bound_every_mix(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way of larger pools, on small ones, where the truth is known."""
    monkeypatch.setattr(driver, "is_small", lambda pool: False)
    problem = random_mixed_problem(seed)
    found = exact_identical(seed)
    start = Start(found.leaf, found.split, found.step_time)
    outcome, best = mixes_of(problem, start), best_mix(seed)
    assert outcome.bound <= best * (1 + 1e-9)
    assert best <= outcome.step_time * (1 + 1e-9)
    assert outcome.step_time <= found.step_time
    assert not outcome.exhausted


@pytest.mark.parametrize(
    "seed", [*range(0, 24, 4), *(pytest.param(s, marks=pytest.mark.slow) for s in range(24, 60, 4))]
)
def test_no_bound_is_above_the_best_mix_where_layers_may_be_offloaded(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = with_offload(random_mixed_problem(seed))
    found = search(problem, SearchSettings(gap=0.0))
    outcome = mixes_of(problem, Start(found.leaf, found.split, found.step_time))
    best = best_mix_by_enumeration(problem)
    assert outcome.bound <= best * (1 + 1e-9)
    assert best <= outcome.step_time * (1 + 1e-9)
    assert not outcome.exhausted


@pytest.mark.parametrize("tiers", [(Tier.CHIP, Tier.HOST), (Tier.CHIP, Tier.NVME)])
@pytest.mark.parametrize("seed", [12, 13, *(pytest.param(s, marks=pytest.mark.slow) for s in (0, 18, 32, 42, 58))])
def test_no_bound_is_above_the_best_mix_where_states_and_layers_share_host_memory(
    seed: int, tiers: tuple[Tier, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = with_offload(random_mixed_problem(seed, offloads=tiers))
    found = search(problem, SearchSettings(gap=0.0))
    outcome = mixes_of(problem, Start(found.leaf, found.split, found.step_time))
    best = best_mix_by_enumeration(problem)
    assert outcome.bound <= best * (1 + 1e-9)
    assert best <= outcome.step_time * (1 + 1e-9)


def test_a_mix_that_beats_every_identical_plan_is_found() -> None:
    """Among the random pools some are not divided best into equal pipelines; there the mix must win."""
    gains = 0
    for seed in range(FAST):
        found, mixed = exact_identical(seed), exact_mix(seed)
        assert mixed.step_time <= found.step_time * (1 + 1e-9)
        gains += mixed.step_time < found.step_time * (1 - 1e-6)
    assert gains >= 5


def test_a_wider_gap_may_miss_a_mix_and_its_bound_says_so() -> None:
    for seed in range(0, 20, 2):
        problem = random_mixed_problem(seed)
        exact, rough = exact_mix(seed), mixes_of(problem, gap=0.2)
        if math.isfinite(exact.step_time):
            assert rough.bound <= exact.step_time * (1 + 1e-9)
            assert rough.step_time * (1 - 0.2) <= exact.step_time * (1 + 1e-9)


def test_limits_hold_in_every_mix() -> None:
    """An idle group stays idle, and a number of stages is that of every pipeline."""
    problem = random_mixed_problem(3)
    idle = search_mixes(problem, Limits(idle=frozenset({1})), None, Start(None, None, math.inf), 0.0, lambda: False)
    assert all(kind.group != 1 for e in idle.entries for kind in e.shape.stages)
    two = search_mixes(problem, Limits(total_stages=2), None, Start(None, None, math.inf), 0.0, lambda: False)
    assert two.entries and all(len(e.shape.stages) == 2 for e in two.entries)


@pytest.mark.parametrize("stages", [1, 2])
def test_a_pinned_number_of_stages_holds_on_larger_pools(stages: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "is_small", lambda pool: False)
    mixed = 0
    for seed in range(0, 60, 3):
        problem, limits = random_mixed_problem(seed), Limits(total_stages=stages)
        found = search(problem, SearchSettings(gap=0.0, limits=limits))
        start = Start(found.leaf, found.split, found.step_time)
        outcome = search_mixes(problem, limits, None, start, 0.0, lambda: False)
        assert all(len(e.shape.stages) == stages for e in outcome.entries)
        mixed += bool(outcome.entries)
    assert mixed


def test_pinned_numbers_of_pipelines_are_kept() -> None:
    problem = random_mixed_problem(3)
    for number in (1, 2, 3):
        outcome = search_mixes(problem, Limits(), (number,), Start(None, None, math.inf), 0.0, lambda: False)
        assert sum(e.replicas for e in outcome.entries) == number


@pytest.mark.parametrize("seed", [3, 21, 27, 36, 42])
def test_a_closer_look_adds_pipelines_with_as_many_sequences_as_they_have_time_for(seed: int) -> None:
    """27 and 36: a group with two rooms, because a node is not full."""
    problem, best = random_mixed_problem(seed), best_mix(seed)
    pool = Pool(problem, Intervals(problem.chain), Limits(), 1)
    prices = [problem.global_batch / sum(pool.num_chips)] * len(pool.num_chips)
    rounds = Rounds(pool, 2, None, Found(best, (), math.inf), (), lambda: True)
    assert not rounds.look_closer(prices, best, lambda: True) and not rounds.within(best)
    assert rounds.look_closer(prices, best, lambda: False)
    found, columns = rounds.within(best), [*rounds.columns.known.values()]
    assert not rounds.look_closer(prices, best, lambda: False) and rounds.within(best) == found
    runs = []
    for column in columns:
        size, stages, split = column.shape.micro_batch_size, column.shape.stages, column.shape.split
        leaves = {m: column.family.leaf(stages, m) for m in range(1, problem.global_batch // size + 1)}
        within = [m for m, leaf in leaves.items() if leaf.step_time(split) <= best and column.fits(m)]
        runs.append(max(within, default=0) * size)
    assert [pipeline.sequences for pipeline in found] == [n for n in runs if n]

"""Branching graphs on the stages of a pipeline: the search equals exhaustive enumeration, its bounds are true."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import pytest

from planner.search.branching.pipeline import PipelineProblem, StageTable, evaluate_pipeline
from planner.search.branching.pipeline_ideals import least_busiest_stage
from planner.search.branching.pipeline_solve import solve_pipeline
from planner.search.branching.problem import Tensor
from tests.search.branching.small_pipelines import optimum_by_exhaustion, random_pipeline, with_buffers_and_latency

SEEDS = range(100)


@pytest.mark.parametrize("first_seed", range(0, 100, 20))
def test_the_search_equals_exhaustive_enumeration(first_seed: int) -> None:
    compare(range(first_seed, first_seed + 20))


def test_the_search_is_right_where_the_solver_with_presolve_was_not() -> None:
    # HiGHS 1.16.0 calls the first program of this one infeasible
    compare([320])


def test_it_does_with_receive_buffers_and_one_latency_a_pair_of_stages() -> None:
    compare(range(40), with_buffers_and_latency)


def test_a_limit_closes_the_search_without_an_assignment() -> None:
    for seed in range(20):
        problem = random_pipeline(seed)
        best = optimum_by_exhaustion(problem)
        if not 0 < best < math.inf:
            continue
        answer = solve_pipeline(problem, below_s=best * (1 - 1e-4))
        assert answer.stopped == "gap", seed
        assert answer.bound_s >= min(best, best * (1 - 1e-4)) * (1 - 2e-6), seed
        assert answer.bound_s <= best * (1 + 1e-9), seed


def compare(
    seeds: Iterable[int], change: Callable[[PipelineProblem, int], PipelineProblem] = lambda problem, _: problem
) -> None:
    for seed in seeds:
        problem = change(random_pipeline(seed), seed)
        best = optimum_by_exhaustion(problem)
        answer = solve_pipeline(problem, time_limit_s=60)
        if math.isinf(best):
            assert (answer.stage_of, answer.stopped, answer.bound_s) == (None, "infeasible", math.inf), seed
            continue
        assert answer.stopped == "gap", seed
        assert answer.step_s == pytest.approx(best, rel=2e-6), seed
        assert answer.bound_s <= best * (1 + 1e-9), seed
        assert answer.stage_of is not None
        verdict = evaluate_pipeline(problem, answer.stage_of)
        assert (verdict.violations, verdict.step_s) == ((), answer.step_s), seed


def test_the_random_pipelines_are_of_all_sorts() -> None:
    problems = [random_pipeline(seed) for seed in SEEDS]
    best = [optimum_by_exhaustion(p) for p in problems]
    assert 3 <= sum(map(math.isinf, best)) <= 50
    assert {p.num_stages for p in problems} == {1, 2, 3, 4}
    assert any(p.together for p in problems)
    cut = [solve_pipeline(p).programs for p, step in zip(problems[:50], best, strict=False) if step < math.inf]
    assert sum(n > 1 for n in cut) >= 10, "critical paths are never needed"


def test_the_busiest_stage_is_never_above_the_optimum() -> None:
    for seed in SEEDS:
        problem = random_pipeline(seed)
        start = least_busiest_stage(problem)
        assert start.bound_s <= optimum_by_exhaustion(problem), seed
        if start.stage_of is not None:
            assert evaluate_pipeline(problem, start.stage_of).violations == (), seed


def diamond(usable_bytes: float = 100.0) -> PipelineProblem:
    """0 feeds 1 and 2, both feed 3; forward 1 s, backward 2 s; three stages, one micro-batch in flight on each."""
    one = (1.0, 1.0, 1.0, 1.0)
    table = StageTable(one, (2.0,) * 4, (0.0,) * 4, (10.0,) * 4, (5.0,) * 4, (0.0, 3.0, 0.0, 0.0), usable_bytes)
    pairs = {(a, b): (0.5, 0.25, 0.25) for b in range(3) for a in range(b)}
    tensors = (Tensor(0, (1, 2)), Tensor(1, (3,)), Tensor(2, (3,)))
    return PipelineProblem(tensors, (table,) * 3, (1, 1, 1), 1, pairs, pairs)


def test_a_tensor_goes_directly_to_every_stage_that_needs_it() -> None:
    # 0 | 1 | 2 3: layer 0's tensor goes to stages 1 and 2, each 0.5 s; layer 1's to stage 2
    # forward: 1, then 1.5 + 1 = 2.5 on stage 1, 2.75 + 2 = 4.75 on stage 2; backward 4: 8.75; 9 + 2 = 11; 11.5 + 2
    assert evaluate_pipeline(diamond(), (0, 1, 2, 2)).step_s == 13.5


def test_what_is_wrong_with_an_assignment_is_said() -> None:
    assert evaluate_pipeline(diamond(), (1, 0, 2, 2)).violations == (
        "layer 1 is on a stage before layer 0, which feeds it",
    )
    assert evaluate_pipeline(diamond(), (0, 0, 0, 2)).violations == ("stage 1 is empty",)
    # two layers: 2 x (10 + 5) + 3 = 33
    assert evaluate_pipeline(diamond(32.0), (0, 0, 1, 2)).violations == ("stage 0 needs 33 of 32 bytes",)


def test_memory_decides_where_layers_go() -> None:
    # 17 bytes: layer 1 needs 18 wherever it is
    assert solve_pipeline(diamond(17.0)).stopped == "infeasible"
    # 32 bytes: two layers fit only without layer 1
    answer = solve_pipeline(diamond(32.0))
    assert answer.stage_of is not None
    assert [answer.stage_of.count(answer.stage_of[1]), answer.stopped] == [1, "gap"]


def test_equal_inputs_give_equal_answers() -> None:
    assert solve_pipeline(random_pipeline(7)) == solve_pipeline(random_pipeline(7))

"""On small branching graphs the search equals exhaustive enumeration, and every bound it reports is true."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from planner.search.branching import BranchingProblem, ChipClass, Tensor, confirm, evaluate, solve_branching
from planner.search.branching.chains import chain_bound
from planner.search.branching.merge import coarsen
from planner.search.branching.program import build_assignment
from planner.search.highs import SolverAnswer, solve_program
from tests.search.branching.small_graphs import optimum_by_exhaustion, random_graph

SEEDS = range(100)


@pytest.mark.parametrize("first_seed", range(0, 100, 20))
def test_the_search_equals_exhaustive_enumeration(first_seed: int) -> None:
    compare(range(first_seed, first_seed + 20))


def test_the_search_is_right_where_the_solver_with_presolve_was_not() -> None:
    # HiGHS 1.16.0 ends this one `optimal` with an objective below what its own solution costs
    compare([3080])


def compare(seeds: Iterable[int]) -> None:
    for seed in seeds:
        problem = random_graph(seed)
        best = optimum_by_exhaustion(problem)
        answer = solve_branching(problem, time_limit_s=60)
        if math.isinf(best):
            assert (answer.placement, answer.stopped, answer.bound) == (None, "infeasible", math.inf), seed
            continue
        assert answer.stopped == "gap", seed
        assert answer.objective == pytest.approx(best, rel=2e-6), seed
        assert answer.bound <= best * (1 + 1e-9), seed
        assert answer.placement is not None
        verdict = evaluate(problem, answer.placement)
        assert (verdict.violations, verdict.objective) == ((), answer.objective), seed


def test_the_random_graphs_are_of_all_sorts() -> None:
    problems = [random_graph(seed) for seed in SEEDS]
    best = [optimum_by_exhaustion(p) for p in problems]
    assert 3 <= sum(map(math.isinf, best)) <= 40
    assert sum(bool(p.together) for p in problems) >= 20
    assert sum(any(p.parts) for p in problems) >= 20
    assert {len(p.classes) for p in problems} == {1, 2, 3}
    assert max(p.num_layers for p in problems) == 9


def test_units_cost_what_layers_cost() -> None:
    # coarsening loses nothing: the optimum over whole units is that over layers
    merged = 0
    for seed in (*SEEDS, 5600):  # 5600: a unit whose backward layer starts a path of its own must not move
        problem = random_graph(seed)
        units = coarsen(problem)
        assert sum(units.layers) == 2**problem.num_layers - 1
        groups = tuple(tuple(v for v in range(problem.num_layers) if mask >> v & 1) for mask in units.layers)
        together = BranchingProblem(problem.sizes, problem.parts, problem.tensors, problem.classes, groups)
        assert optimum_by_exhaustion(together) == optimum_by_exhaustion(problem), seed
        merged += units.num_units < problem.num_layers
    assert merged >= 50


def test_the_chain_bound_is_never_above_the_optimum() -> None:
    tight = 0
    for seed in SEEDS:
        problem = random_graph(seed)
        best, bound = optimum_by_exhaustion(problem), chain_bound(coarsen(problem))
        assert bound <= best * (1 + 1e-12), seed
        tight += bound >= best * (1 - 1e-9)
    assert tight >= 20


@pytest.mark.parametrize("first_seed", range(0, 100, 25))
def test_the_program_alone_equals_exhaustive_enumeration(first_seed: int) -> None:
    # without bounds, without a start and without a limit worth the name
    for seed in range(first_seed, first_seed + 25):
        problem = random_graph(seed)
        best = optimum_by_exhaustion(problem)
        m = build_assignment(coarsen(problem), 0.0, 200.0)
        answer = solve_program(m.lp, time_limit_s=60)
        if math.isinf(best):
            assert answer.stop == "infeasible", seed
        else:
            assert answer.stop == "optimal", seed
            assert answer.objective * m.unit_time == pytest.approx(best, rel=1e-6, abs=1e-6), seed


def test_a_solver_that_wrongly_says_infeasible_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def wrong_with_presolve(program: Any, **options: Any) -> SolverAnswer:
        asked.append(options["options"]["presolve"] == "on")
        if asked[-1]:
            return SolverAnswer("infeasible", None, math.inf, math.inf)
        return solve_program(program, **options)

    monkeypatch.setattr(confirm, "solve_program", wrong_with_presolve)
    compare(range(20))
    assert asked.count(True) == asked.count(False) >= 5


def test_an_unfinished_second_run_leaves_the_lower_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [SolverAnswer("optimal", {"x": 1.0}, 10.0, 10.0), SolverAnswer("time", {"x": 1.0}, 10.0, 7.0)]
    monkeypatch.setattr(confirm, "solve_program", lambda program, **options: answers.pop(0))
    assert confirm.solve_confirmed(None, time_limit_s=1) == SolverAnswer("time", {"x": 1.0}, 10.0, 7.0)  # type: ignore[arg-type]


def test_chips_may_feed_each_other_both_ways() -> None:
    # 0 -> 1 and 2 -> 3; each of {0, 3} and {1, 2} is contiguous, although either feeds the other
    tensors = (Tensor(0, (1,)), Tensor(2, (3,)))
    chips = ChipClass(2, (6.0, 4.0, 5.0, 3.0), (0.25, 0.25))
    problem = BranchingProblem((0.0,) * 4, (0,) * 4, tensors, (chips,))
    answer = solve_branching(problem)
    assert answer.placement is not None
    sets = {c: {v for v in range(4) if answer.placement.chips[v] == c} for c in answer.placement.chips}
    assert sorted(map(sorted, sets.values())) == [[0, 3], [1, 2]]
    assert (answer.objective, answer.stopped) == (9.5, "gap")


def test_no_chip_at_all_is_infeasible_and_no_layer_is_free() -> None:
    nobody = ChipClass(0, (1.0,), ())
    assert solve_branching(BranchingProblem((0.0,), (0,), (), (nobody,))).stopped == "infeasible"
    assert solve_branching(BranchingProblem((0.0,), (0,), (), ())).stopped == "infeasible"
    empty = solve_branching(BranchingProblem((), (), (), (ChipClass(1, (), ()),)))
    assert (empty.objective, empty.stopped) == (0.0, "gap")


def test_whoever_stops_the_search_gets_a_true_bound() -> None:
    for seed in (s for s in SEEDS if math.isfinite(optimum_by_exhaustion(random_graph(s)))):
        problem = random_graph(seed)
        answer = solve_branching(problem, time_limit_s=0.0)
        assert answer.bound <= optimum_by_exhaustion(problem) <= answer.objective, seed

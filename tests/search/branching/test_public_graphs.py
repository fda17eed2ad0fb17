"""Public branching graphs: the recorded optima are reached and proved."""

from __future__ import annotations

import pytest

from planner.search.branching import evaluate, solve_branching
from tests.search.branching.public_graphs import chips_of, judge, problem_of, read_graph

RECORDED = {"bert24_training": 41.7458, "bert_l-3_inference": 27.9186, "gnmt_training": 107.004}
"""Published optima, rounded to six figures."""


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_optimum_is_reached_with_proof(name: str) -> None:
    document = read_graph(name)
    answer = solve_branching(problem_of(document), gap=1e-4, time_limit_s=60)
    assert answer.placement is not None
    assert judge(document, chips_of(document, answer.placement)) == pytest.approx(answer.objective, rel=1e-9)
    assert answer.objective == pytest.approx(RECORDED[name], rel=5e-6)
    assert (answer.stopped, answer.gap <= 1e-4) == ("gap", True)
    assert answer.bound <= RECORDED[name] * (1 + 5e-6)


@pytest.mark.parametrize("name", RECORDED)
def test_the_rule_and_the_evaluator_agree_on_damaged_placements(name: str) -> None:
    document = read_graph(name)
    problem = problem_of(document)
    answer = solve_branching(problem, gap=1e-4, time_limit_s=60)
    assert answer.placement is not None
    moved = 0
    for layer in range(0, problem.num_layers, 7):
        for chip in ((0, 0), (1, 0)):
            chips = list(answer.placement.chips)
            chips[layer] = chip
            other = type(answer.placement)(tuple(chips))
            verdict = evaluate(problem, other)
            try:
                load = judge(document, chips_of(document, other))
            except ValueError:
                assert verdict.violations
                continue
            assert not verdict.violations
            assert verdict.objective == pytest.approx(load, rel=1e-9)
            moved += other != answer.placement
    assert moved or all(len(group) > 1 for group in problem.together), "no damaged placement was judged valid"


def test_equal_inputs_give_equal_placements() -> None:
    problem = problem_of(read_graph("gnmt_training"))
    first, second = (solve_branching(problem, gap=1e-4, time_limit_s=60) for _ in range(2))
    assert first == second

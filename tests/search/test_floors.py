"""Bounds before anything is searched are true: below every plan of a root, every mix, and there when time is short."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Setting
from planner.graph import build_graph
from planner.search import Progress, SolveOptions, solve
from planner.search.candidates import Limits, make_roots
from planner.search.driver import SearchSettings, search
from planner.search.floors import Floors, mix_floor
from planner.search.intervals import Intervals
from planner.search.solve import limits_of
from planner.spec import load_cluster, load_model
from tests.search.mixed_problems import best_mix_by_enumeration, random_mixed_problem
from tests.search.small_problems import TableProblem, best_by_enumeration, random_problem


@dataclass
class Knowing:
    """A problem that knows what its layers take at least."""

    base: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.base, name)

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> NDArray[np.float64] | None:
        tables = [self.base.table(group, mode, replace(setting, single_stage=single)) for single in (False, True)]
        seconds = [t.forward_s + t.backward_input_s + t.backward_weight_s for t in tables if t is not None]
        return np.min(seconds, axis=0) if seconds else None


def root_optimum(problem: TableProblem, setting: Setting, prices: tuple[float, ...] | None) -> float:
    return best_by_enumeration(replace(problem, settings=(setting,)), prices)


@pytest.mark.parametrize("priced", [False, True])
def test_no_plan_of_a_root_is_below_its_floor(priced: bool) -> None:
    positive = 0
    for seed in range(80):
        problem = random_problem(seed)
        prices = tuple(g.price for g in problem.groups) if priced else None
        floors = Floors(prices)
        for root in make_roots(Knowing(problem), Intervals(problem.chain), Limits()):  # type: ignore[arg-type]
            floor = floors.of(root)
            positive += floor > 0
            assert floor <= root_optimum(problem, root.setting, prices) * (1 + 1e-9)
    assert positive > 100


def test_no_mix_is_below_the_floor_of_all_mixes() -> None:
    tight = []
    for seed in range(0, 40, 3):
        problem = random_mixed_problem(seed)
        best, floor = best_mix_by_enumeration(problem), mix_floor(Knowing(problem), Limits())  # type: ignore[arg-type]
        assert 0 < floor <= best * (1 + 1e-9)
        tight.append(floor / best)
    assert max(tight) > 0.5


def test_a_search_with_floors_finds_what_enumeration_finds() -> None:
    for seed in range(0, 120, 3):
        problem = random_problem(seed)
        best = best_by_enumeration(problem)
        found = search(Knowing(problem), SearchSettings(gap=0.0, time_limit_s=60))  # type: ignore[arg-type]
        assert found.objective == (best if math.isinf(best) else pytest.approx(best, rel=2e-6))
        assert found.bound <= best * (1 + 1e-9)


@pytest.mark.parametrize("pair", [("mixed-lab", "llama-3.1-70b"), ("mi300x-h100", "mixtral-8x22b")])
def test_no_table_is_below_what_the_cost_model_says_at_least(pair: tuple[str, str]) -> None:
    cluster, model = load_cluster(pair[0]), load_model(pair[1])
    cost = CostModel(cluster, model, build_graph(model))
    roots = make_roots(cost, Intervals(cost.chain), limits_of(cluster, model, cost, False))
    for root in roots[:: max(1, len(roots) // 12)]:
        for g, group in enumerate(cost.groups):
            for t in group.tensor_degrees:
                for single in (False, True):
                    setting = replace(root.setting, single_stage=single)
                    least, table = cost.least_layer_s(g, Mode(t), setting), cost.table(g, Mode(t), setting)
                    assert (least is None) == (table is None)
                    if table is not None:
                        all_of_it = table.forward_s + table.backward_input_s + table.backward_weight_s
                        assert (least <= all_of_it * (1 + 1e-12)).all() and (least > 0).any()


@pytest.mark.parametrize("shapes", ["identical", "mixed"])
def test_a_search_without_time_for_more_has_a_true_bound(shapes: str) -> None:
    cluster, model = load_cluster("mixed-lab"), load_model("llama-3.1-70b")
    model = model.model_copy(update={"constraints": model.constraints.model_copy(update={"shapes": shapes})})
    seen: list[Progress] = []
    short = solve(cluster, model, SolveOptions(time_limit_s=1.0), seen.append).plan.certificate
    best = solve(cluster, model, SolveOptions(time_limit_s=20)).plan.certificate
    assert 0 < short.bound <= best.objective
    assert short.bound > 0.5 * best.objective
    # no progress claims more than is proved
    assert all(p.bound_s is None or p.bound_s <= best.objective * (1 + 1e-9) for p in seen)


def test_a_branching_model_on_131072_chips_has_a_true_bound_at_once() -> None:
    """Where no second is left for sets of layers: above what all chips take at their peak FLOP/s, below the plan."""
    cluster, model = load_cluster("h2-131072-scaled"), load_model("deepseek-v3")
    certificate = solve(cluster, model, SolveOptions(time_limit_s=2.0)).plan.certificate
    operations = [o for layer in build_graph(model).layers for o in layer.operations]
    flops = sum(o.flops * (1 + o.backward_flops_ratio) for o in operations) * model.training.global_batch
    peaks = [(g.nodes * g.chips_per_node, cluster.chip_of(i)) for i, g in enumerate(cluster.node_groups)]
    at_peak = flops / sum(n * chip.peak_flops_per_s["bf16"] for n, chip in peaks)
    assert at_peak < certificate.bound <= certificate.objective
    assert certificate.bound > 0.2 * certificate.objective

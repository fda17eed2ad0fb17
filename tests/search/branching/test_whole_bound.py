"""Bounds of roots and shapes against the optimum of every shape by exhaustion."""

from __future__ import annotations

import math

from planner.cost.model import CostModel
from planner.graph import build_graph
from planner.search.branching.pipeline_ideals import least_busiest_stage
from planner.search.branching.placed import pipeline_problem
from planner.search.branching.shapes import shapes_of_root
from planner.search.branching.whole_bound import cost_bound, quick_bound, rate_bound, shape_bound, ways_of
from planner.search.candidates import Limits, Root, make_roots
from planner.search.floors import Floors
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from tests.search.branching.small_models import best_by_exhaustion, random_inputs
from tests.search.branching.small_pipelines import optimum_by_exhaustion


def roots_of(seed: int) -> list[Root]:
    cluster, model = random_inputs(seed, layers=5)
    graph = build_graph(model)
    if graph.is_chain:
        return []
    cost = CostModel(cluster, model, graph)
    return make_roots(cost, Intervals(cost.chain), Limits())


def test_no_bound_is_above_what_a_shape_takes() -> None:
    compared, close, tight = 0, 0, 0
    for seed in range(24):
        for root in roots_of(seed):
            quick, rate, ways = quick_bound(root), rate_bound(root, 10.0), ways_of(root)
            floor = Floors(None, any_order=True).of(root)
            assert quick <= rate
            for order in shapes_of_root(root):
                leaf = Leaf(root, order)
                if leaf.num_stages == 1:
                    continue
                best = optimum_by_exhaustion(pipeline_problem(leaf))
                own = shape_bound(root, order, ways)
                assert max(floor, rate, own, least_busiest_stage(pipeline_problem(leaf)).bound_s) <= best, (seed, order)
                money = best * sum(n * t.tensor * root.setting.data_parallel * (1 + g) for g, t, n in order)
                assert cost_bound(root, (1.0, 2.0)) <= money, (seed, order)
                compared += best < math.inf
                close += own > 0.7 * best
                tight += floor > 0.7 * best
    assert compared > 100
    assert close > compared / 8 and tight > compared / 12, "the bounds say next to nothing"


def test_no_plan_in_any_order_is_below_the_least_floor() -> None:
    for seed in range(16):
        roots = roots_of(seed)
        floors = [Floors(None, any_order=True).of(root) for root in roots]
        assert not roots or 0 < min(floors) <= best_by_exhaustion(*random_inputs(seed, layers=5)) * (1 + 1e-9)


def test_ways_are_longest_paths_at_the_fastest_chips() -> None:
    for seed in range(12):
        for root in roots_of(seed)[:1]:
            tables = [root.options(g, t) for g in range(2) for t in root.modes(g)]
            times = [min(float(o.layer_time[k]) for o in tables if o is not None) for k in root.intervals.chain.kinds]
            feeds: dict[int, set[int]] = {}
            for tensor in root.intervals.chain.tensors or ():
                feeds.setdefault(tensor.source, set()).update(tensor.consumers)
            paths = [path for v in range(len(times)) for path in paths_from(v, feeds)]
            through = [max(sum(times[u] for u in path) for path in paths if v in path) for v in range(len(times))]
            ways = ways_of(root)
            assert math.isclose(ways.longest, max(through)) and math.isclose(ways.least, min(through))


def paths_from(v: int, feeds: dict[int, set[int]]) -> list[list[int]]:
    return [[v], *([v, *rest] for w in sorted(feeds.get(v, ())) for rest in paths_from(w, feeds))]

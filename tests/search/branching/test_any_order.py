"""`solve` on models whose layers branch: sets of layers in any order, and what the certificate says of them."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import pytest

from planner.cost.model import CostModel
from planner.errors import DplanError, InfeasibleError
from planner.graph import build_graph
from planner.plan import check_plan
from planner.plan.schema import Plan
from planner.search.any_order import ANY_ORDER, MODEL_ORDER
from planner.search.branching.whole import WholeAnswer, search_sets
from planner.search.candidates import Limits
from planner.search.driver import search
from planner.search.solve import Progress, SolveOptions, search_settings, solve
from planner.spec import Cluster, ModelSpec, parse_cluster, parse_model
from tests.search.branching.small_models import all_plans, best_by_exhaustion, random_inputs
from tests.search.branching.test_branching_recurrence import step_by_longest_path

EXACT = SolveOptions(gap=0.0, time_limit_s=60)

CLUSTER = """
name: two-kinds
node_groups:
  - {name: sighted, chip: quick, nodes: 1}
  - {name: wordy, chip: steady, nodes: 1}
chips:
  quick: {memory: 16 GiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 1, host_staging: 20 GB/s,
          nic: {bandwidth: 100 Gbps, latency: 5 us}}
  steady: {memory: 16 GiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 1, host_staging: 20 GB/s,
           nic: {bandwidth: 100 Gbps, latency: 5 us}}
"""


def node(name: str, quick: int, steady: int) -> str:
    times = f"quick: {{forward: {quick} ms, backward: {2 * quick} ms}}"
    times += f", steady: {{forward: {steady} ms, backward: {2 * steady} ms}}"
    return f"{{name: {name}, parameters: 1000, saved: 1 MB, output: 1 MB, times: {{{times}}}}}"


def towers(constraints: str = "") -> ModelSpec:
    """Pictures go well on `quick`, words on `steady`; written turn by turn, as the towers of a model file may be."""
    nodes = ", ".join(
        [
            node("see.0", 1, 3),
            node("read.0", 3, 1),
            node("see.1", 1, 3),
            node("read.1", 3, 1),
            node("join", 1, 2),
        ]
    )
    pairs = [("see.0", "see.1"), ("read.0", "read.1"), ("see.1", "join"), ("read.1", "join")]
    edges = ", ".join(f"{{source: {a}, target: {b}}}" for a, b in pairs)
    return parse_model(
        f"""
name: towers
model: {{graph: {{nodes: [{nodes}], edges: [{edges}]}}}}
training: {{sequence_length: 8, global_batch: 32, micro_batch_sizes: [1], recompute: [none]}}
{constraints}
""",
        "towers.yaml",
    )


def solved(cluster: Cluster, model: ModelSpec, options: SolveOptions = EXACT) -> Plan:
    plan = solve(cluster, model, options).plan
    assert check_plan(plan) == ()
    return plan


def test_two_towers_sit_on_the_chips_that_suit_them() -> None:
    plan = solved(parse_cluster(CLUSTER, "c.yaml"), towers())
    first, second = plan.pipelines[0].stages
    assert (first.node_group, first.layers) == ("wordy", ("read.0", "read.1"))
    assert (second.node_group, second.layers) == ("sighted", ("see.0", "see.1", "join"))
    assert [(t.from_stage, t.to_stage, t.bytes) for t in plan.pipelines[0].transfers] == [(0, 1, 10**6)]
    # the slower stage: 3 layers x 3 ms x 32 micro-batches; before it the other tower's first forward, 2 ms
    assert 0.288 < plan.prediction.step_time_s < 0.300
    assert plan.certificate.plan_space["layer_order"] == ANY_ORDER
    assert plan.certificate.gap < 1e-6


def test_the_models_own_order_is_slower_there_and_is_never_better() -> None:
    cluster, model = parse_cluster(CLUSTER, "c.yaml"), towers()
    assert in_own_order(cluster, model) > 1.5 * solved(cluster, model).prediction.step_time_s


def in_own_order(cluster: Cluster, model: ModelSpec) -> float:
    cost = CostModel(cluster, model, build_graph(model))
    return search(cost, search_settings(cluster, model, cost, EXACT)).step_time


@pytest.mark.parametrize("first_seed", range(0, 32, 8))
def test_solve_equals_exhaustive_enumeration(first_seed: int) -> None:
    compare(range(first_seed, first_seed + 8), layers=6)


def test_it_does_with_more_layers() -> None:
    compare(range(101, 104), layers=9)


def compare(seeds: range, layers: int) -> None:
    for seed in seeds:
        cluster, model = random_inputs(seed, layers=layers)
        if build_graph(model).is_chain:
            continue
        best = best_by_exhaustion(cluster, model)
        try:
            plan = solved(cluster, model)
        except DplanError as error:
            assert best == math.inf and error.exit_code == 3, seed
            continue
        assert plan.certificate.objective == pytest.approx(best, rel=2e-6), seed
        assert plan.certificate.bound <= best * (1 + 1e-9), seed
        assert plan.certificate.why_stopped == "gap", seed


def test_the_bound_is_not_above_the_best_plan_where_layers_may_be_recomputed() -> None:
    for seed in range(200, 210):
        cluster, model = random_inputs(seed, layers=5, recompute="[none, full]")
        if build_graph(model).is_chain:
            continue
        best = best_by_exhaustion(cluster, model)
        try:
            certificate = solved(cluster, model).certificate
        except DplanError:
            assert best == math.inf, seed
            continue
        assert certificate.bound <= best * (1 + 1e-9), seed
        assert certificate.objective >= best * (1 - 1e-9), seed


def test_the_certificate_speaks_of_the_models_order_where_nothing_more_is_proved() -> None:
    # too many layers for the program over sets; the search over the chain closes the gap
    nodes = ", ".join(node(f"l{i}", 1 + i % 3, 2) for i in range(230))
    edges = ", ".join(f"{{source: l{i}, target: l{i + 1}}}" for i in range(229))
    text = f"""
name: long
model: {{graph: {{nodes: [{nodes}], edges: [{edges}, {{source: l3, target: l200}}]}}}}
training: {{sequence_length: 8, global_batch: 32, micro_batch_sizes: [1], recompute: [none]}}
constraints: {{pipeline_parallel: 2}}
"""
    plan = solved(parse_cluster(CLUSTER, "c.yaml"), parse_model(text, "m.yaml"), SolveOptions(gap=0.02))
    assert plan.certificate.plan_space["layer_order"] in (MODEL_ORDER, ANY_ORDER)
    assert plan.certificate.gap <= 0.02


def test_the_bound_of_the_models_order_holds_for_stages_that_each_feed_the_next() -> None:
    for seed in range(500, 512):
        cluster, model = random_inputs(seed, layers=7)
        graph = build_graph(model)
        if graph.is_chain:
            continue
        cost = CostModel(cluster, model, graph)
        outcome = search(cost, search_settings(cluster, model, cost, EXACT))
        best = math.inf
        for times, held, m, stage_of in all_plans(cluster, model):
            neighbours = {(s, s + 1) for s in range(times.num_stages - 1)}
            if list(stage_of) == sorted(stage_of) and neighbours <= set(times.send_forward):
                best = min(best, step_by_longest_path(times, held, m))
        assert outcome.bound <= best * (1 + 1e-9), seed
        assert outcome.step_time <= best * (1 + 2e-3) or outcome.why_stopped != "gap", seed


HEAVY = """
name: heavy
model:
  graph:
    nodes:
      - {name: a, parameters: 716000000, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
      - {name: b, parameters: 716000000, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
      - {name: after-a, parameters: 119000000, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
      - {name: after-b, parameters: 119000000, forward_flops: 1 GFLOP, saved: 1 MB, output: 1 MB}
    edges: [{source: a, target: after-a}, {source: b, target: after-b}]
training: {sequence_length: 8, global_batch: 4, micro_batch_sizes: [1], recompute: [none]}
"""


def test_sets_fit_where_no_piece_of_the_models_order_does() -> None:
    # 12 and 2 GiB a layer with its optimizer states, 15 usable: in order one stage would hold 12 + 2 + 2
    cluster, model = parse_cluster(CLUSTER, "c.yaml"), parse_model(HEAVY, "heavy.yaml")
    assert in_own_order(cluster, model) == math.inf
    stages = solved(cluster, model).pipelines[0].stages
    assert sorted(stage.layers for stage in stages) == [("a", "after-a"), ("b", "after-b")]


def test_a_proof_that_nothing_fits_covers_sets_too() -> None:
    heavier = HEAVY.replace("716000000", "860000000")
    with pytest.raises(InfeasibleError):
        solve(parse_cluster(CLUSTER, "c.yaml"), parse_model(heavier, "heavy.yaml"), EXACT)


def test_least_cost_is_searched_in_the_models_order() -> None:
    priced = parse_cluster(CLUSTER + "prices: {quick: 2 USD/h, steady: 1 USD/h}\n", "c.yaml")
    plan = solved(priced, towers(), SolveOptions(objective="cost", gap=0.0))
    placed = [name for stage in plan.pipelines[0].stages for name in stage.layers]
    assert placed == ["see.0", "read.0", "see.1", "read.1", "join"]
    assert 0 < plan.certificate.bound <= plan.certificate.objective


def test_pinned_layers_keep_the_models_order() -> None:
    pinned = towers("constraints: {layers_per_stage: [2, 3]}")
    plan = solved(parse_cluster(CLUSTER, "c.yaml"), pinned)
    assert [stage.layers for stage in plan.pipelines[0].stages] == [("see.0", "read.0"), ("see.1", "read.1", "join")]


def test_pipelines_of_a_branching_model_are_of_one_shape() -> None:
    plan = solved(parse_cluster(CLUSTER, "c.yaml"), towers("constraints: {shapes: mixed}"))
    assert plan.certificate.plan_space["pipelines"] == "identical replicas of one shape"
    assert plan.certificate.identical_bound is None
    assert any("layers branch" in warning.message for warning in plan.warnings)


def test_the_search_says_when_it_speaks_of_the_models_order_alone() -> None:
    told: list[Progress] = []
    solve(parse_cluster(CLUSTER, "c.yaml"), towers(), EXACT, told.append)
    parts = dict.fromkeys((p.phase, p.whole) for p in told)
    assert [*parts] == [("layers in the model's order", False), ("any order of layers", True)]


@pytest.mark.parametrize(("in_time", "why"), [(True, "gap"), (False, "time")])
def test_what_the_clock_had_a_part_in_does_not_end_by_the_gap(
    monkeypatch: pytest.MonkeyPatch, in_time: bool, why: str
) -> None:
    def cut_short(*given: Any) -> WholeAnswer:
        return replace(search_sets(*given), in_time=in_time)

    monkeypatch.setattr("planner.search.any_order.search_sets", cut_short)
    certificate = solved(parse_cluster(CLUSTER, "c.yaml"), towers()).certificate
    assert certificate.gap < 1e-6
    assert certificate.why_stopped == why


def test_where_a_few_placements_are_asked_for_no_more_are_tried() -> None:
    cluster, model = parse_cluster(CLUSTER, "c.yaml"), towers()
    cost = CostModel(cluster, model, build_graph(model))
    never = time.monotonic() + 3600
    whole = search_sets(cost, Limits(), None, 0.0, never)
    assert whole.in_time and whole.statistics["set_shapes"] > 1
    one = search_sets(cost, Limits(), None, 0.0, never, most_placements=1)
    assert one.in_time and one.statistics["set_shapes"] == 1
    assert 0 < one.bound <= whole.bound * (1 + 1e-9)


def test_equal_inputs_give_equal_plans() -> None:
    cluster = parse_cluster(CLUSTER, "c.yaml")
    first, second = (solved(cluster, towers()).model_dump_json() for _ in range(2))
    assert first == second

"""Solving on a topology: certificates that hold for every placement; without one, documents as they always were."""

from __future__ import annotations

import pytest

from planner.plan import check_plan
from planner.plan.evaluate import traffic_of
from planner.plan.file import dump_plan, sha256_of
from planner.plan.placing import place_well
from planner.search import Progress, SolveOptions, solve
from planner.search.choices import choice_of_leaf
from planner.search.driver import SearchSettings, search
from planner.search.on_uplinks import placed_choices, placed_leaf
from planner.search.placed_leaf import PlacedLeaf
from planner.search.progress import PLACING
from planner.spec import load_cluster, load_model, parse_cluster
from tests.plan.racks import random_case
from tests.search.small_problems import of_one_shape

DOCUMENTS = {
    "mixed-lab": "d1ed75545ebb",
    "h100-64": "5d2579767f0a",
    "three-sites": "d6a8e3b19d9c",
    "two-three-three": "a5b93df9bc86",
    "five-chips-one-server": "9a9893cad739",
}
"""Hashes of clusters without a topology, from before there was one: their plans carry these documents."""

PODS = """
name: pods
node_groups:
  - {name: h100, chip: nvidia-h100-80gb-sxm, nodes: 4}
  - {name: a100, chip: nvidia-a100-80gb-sxm, nodes: 4}
"""
TOPOLOGY = """
topology:
  - name: pod
    count: 2
    oversubscription: 7
    switches: [{name: rack, count: 2, nodes: {h100: 1, a100: 1}, oversubscription: 1, latency: 1 us}]
"""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_cluster_without_a_topology_has_the_document_it_always_had(name: str):
    assert sha256_of(load_cluster(name).model_dump(mode="json")).startswith(DOCUMENTS[name])


def test_uplinks_that_carry_everything_change_no_number():
    plain, model = parse_cluster(PODS, "c.yaml"), of_one_shape(load_model("llama-3.1-8b"))
    wide = parse_cluster(PODS + "topology: [{name: rack, count: 4, nodes: {h100: 1, a100: 1}, uplink: 900 TB/s}]", "c")
    plans = [solve(cluster, model, SolveOptions(time_limit_s=20)).plan for cluster in (plain, wide)]
    assert plans[0].prediction == plans[1].prediction
    assert plans[0].pipelines == plans[1].pipelines
    assert plans[0].certificate.bound == plans[1].certificate.bound


def test_a_plan_on_a_topology_is_placed_checked_and_the_same_every_time():
    cluster, model = parse_cluster(PODS + TOPOLOGY, "c.yaml"), of_one_shape(load_model("llama-3.1-8b"))
    results = [solve(cluster, model, SolveOptions(time_limit_s=20)) for _ in range(2)]
    plan = results[0].plan
    assert check_plan(plan) == ()
    assert dump_plan(plan) == dump_plan(results[1].plan)
    assert plan.certificate.bound <= plan.prediction.step_time_s <= plan.certificate.solver["file_order_step_s"]
    slower = plan.prediction.step_time_s
    assert slower >= solve(parse_cluster(PODS, "c.yaml"), model, SolveOptions(time_limit_s=20)).plan.certificate.bound
    assert any("uplink" in sentence for sentence in plan.assumptions)


def test_it_is_said_when_a_plan_gets_its_nodes():
    told: list[Progress] = []
    cluster, model = parse_cluster(PODS + TOPOLOGY, "c.yaml"), of_one_shape(load_model("llama-3.1-8b"))
    solve(cluster, model, SolveOptions(time_limit_s=20, gap=0.5), told.append)
    assert [*dict.fromkeys(progress.phase for progress in told)] == ["", PLACING]
    last = told[-1]
    assert last.gap == pytest.approx(1 - last.bound_s / last.incumbent_s)


@pytest.mark.parametrize("seed", [3, 11, 19, 30])
def test_the_bound_is_below_every_plan_at_every_placement(seed: int):
    case = random_case(seed, most_nodes=3)
    model = case.model if seed == 3 else of_one_shape(case.model)
    plan = solve(case.cluster, model, SolveOptions(time_limit_s=20)).plan
    assert check_plan(plan) == ()
    identical = plan.certificate.identical_bound
    assert (identical is not None) == (seed == 3)
    bound = plan.certificate.bound
    placed = place_well(case.cost, case.shapes)
    assert placed is not None and bound <= placed.step_time_s <= placed.file_order_step_s
    assert identical is None or bound <= identical <= placed.step_time_s


@pytest.mark.parametrize("seed", [0, 2, 6, 10])
def test_layers_are_moved_at_exact_prices_and_never_to_a_slower_plan(seed: int):
    case = random_case(seed, most_nodes=3)
    found = search(case.cost, SearchSettings(time_limit_s=20))
    assert found.leaf is not None and found.split is not None
    first = placed_choices(case.cost, (choice_of_leaf(case.cost, found.leaf, found.split),))
    traffic = traffic_of(case.cost, first.placed.shapes)
    assert traffic is not None
    # two ways to one number: tables of the leaf at its places, and the parts of the plan that the checker asks for
    leaf = PlacedLeaf(found.leaf, case.cost, traffic)
    assert leaf.step_time(found.split) == pytest.approx(first.objective, rel=1e-12)
    assert found.step_time <= first.objective * (1 + 1e-12)
    moved = placed_leaf(case.cost, found.leaf, found.split)
    assert found.bound <= moved.objective <= first.objective

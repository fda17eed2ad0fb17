"""Layers that branch on a topology: what each pair of stages gets, from paths of a networkx graph; solved, checked."""

from __future__ import annotations

import random

import networkx as nx
import pytest

from planner.cost.branching_recurrence import BranchTimes
from planner.cost.model import CostModel
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import Mode
from planner.cost.uplinks import Detour
from planner.graph import build_graph
from planner.plan import Plan, check_plan
from planner.plan.assemble import Proved, assemble_plan
from planner.plan.evaluate import PipelineShape, evaluate_plan
from planner.plan.layout import shapes_of
from planner.plan.placing import place_well
from planner.search import SolveOptions, solve
from planner.search.any_order import ANY_ORDER
from planner.spec import Cluster, ModelSpec, parse_cluster
from planner.spec.topology import Topology
from tests.plan.racks import random_topology
from tests.plan.small import CLUSTER
from tests.plan.test_branching import U_SHAPE, along_edges, choice_of, skipping
from tests.search.branching.test_branching_recurrence import step_by_longest_path

PLAIN = CLUSTER.replace("chips_per_node: 4", "chips_per_node: 1").replace(
    "fast, chip: quick, nodes: 1", "fast, chip: quick, nodes: 2"
)
PLAIN = PLAIN.replace("slow, chip: steady, nodes: 2", "slow, chip: steady, nodes: 8")
"""Two nodes `fast`, eight `slow`, one chip in each: every transfer leaves its node."""
RACKS = """
topology:
  - {name: left, nodes: {fast: 1, slow: 4}, uplink: 400 MB/s, latency: 10 us}
  - {name: right, nodes: {fast: 1, slow: 4}, uplink: 400 MB/s, latency: 10 us}
"""


def racks(text: str = PLAIN + RACKS) -> Cluster:
    return parse_cluster(text, "racks.yaml")


def random_case(seed: int) -> tuple[Cluster, ModelSpec, list[list[int]]] | None:
    """A cluster with a random topology, a random graph, the layers of each stage; None where the graph is a chain."""
    r = random.Random(seed)
    n = r.randint(3, 9)
    sizes = {(a, b): r.choice([1, 2, 8]) for b in range(n) for a in range(b) if r.random() < 0.4}
    stage_of = along_edges(r, n, sizes)
    model = skipping(sizes, n)
    if build_graph(model).is_chain:
        return None
    cluster = racks(PLAIN).model_copy(update={"topology": random_topology(r, {"fast": 2, "slow": 8})})
    return cluster, model, [[v for v in range(n) if stage_of[v] == s] for s in range(max(stage_of) + 1)]


def ways_of(
    topology: Topology, cost: CostModel, shape: PipelineShape
) -> dict[tuple[int, int], list[list[frozenset[object]]]]:
    """For every pair of stages that exchange tensors and every replica, the cables between their nodes."""
    graph: nx.Graph = nx.Graph()
    for index, switch in enumerate(topology.switches):
        graph.add_edge(index, "core" if switch.parent is None else switch.parent)
        for g, name in enumerate(("fast", "slow")):
            for first, last, step in switch.nodes.get(name, ()):
                graph.add_edges_from((index, (g, "node", node)) for node in range(first, last + 1, step))
    edges = {(a, b) for tensor in cost.chain.tensors or () for a in [tensor.source] for b in tensor.consumers}
    stage_of = {layer: s for s, stage in enumerate(shape.stages) for layer in stage.held}
    pairs = sorted({(stage_of[a], stage_of[b]) for a, b in edges if stage_of[a] != stage_of[b]})
    seats = [
        [(stage.group, "node", node) for node, _ in places]
        for stage, places in zip(shape.stages, shape.places, strict=True)
    ]
    return {
        (s, t): [
            [frozenset(hop) for hop in nx.utils.pairwise(nx.shortest_path(graph, a, b))]
            for a, b in zip(seats[s], seats[t], strict=True)
        ]
        for s, t in pairs
    }


@pytest.mark.parametrize("seed", range(60))
def test_pairs_of_stages_share_the_uplinks_that_they_cross(seed: int) -> None:
    case = random_case(seed)
    if case is None:
        return
    cluster, model, held = case
    assert cluster.topology is not None
    cost = CostModel(cluster, model, build_graph(model))
    placed = place_well(cost, shapes_of(cost, [choice_of(held)]))
    assert placed is not None and cost.uplinks is not None
    (shape,) = placed.shapes
    (numbers,) = evaluate_plan(cost, [shape])
    ways = ways_of(cluster.topology, cost, shape)
    parents = [switch.parent for switch in cluster.topology.switches]
    cables = {frozenset((i, "core" if above is None else above)): i for i, above in enumerate(parents)}
    crossing = [cables[hop] for each in ways.values() for way in each for hop in way if hop in cables]
    assert [(b.source, b.target) for b in numbers.boundaries] == [*ways]
    for boundary in numbers.boundaries:
        passed = [[cables[hop] for hop in way if hop in cables] for way in ways[boundary.source, boundary.target]]
        rates = [cost.uplinks.rate[u] / crossing.count(u) for way in passed for u in way]
        detour = Detour(
            min(rates, default=float("inf")),
            max(sum(cluster.topology.switches[u].latency_s for u in way) for way in passed),
        )
        ends = int(boundary.source > 0), Mode(1), int(boundary.target > 0), Mode(1)
        # the same bytes on a chain, which knows nothing of pairs
        chain_model = skipping({(0, 1): boundary.num_bytes // 10**6}, 2)
        chain = CostModel(racks(PLAIN), chain_model, build_graph(chain_model))
        table = chain.transfer(*ends, boundary.same_node, shape.setting, detour)
        expected = table.forward_s[0], table.backward_s[0]
        assert (boundary.onward_s, boundary.back_s) == pytest.approx(expected, rel=1e-9)
        least = cost.transfer(*ends, boundary.same_node, shape.setting).seconds(boundary.num_bytes / 2)
        assert least <= (boundary.onward_s * (1 + 1e-12), boundary.back_s * (1 + 1e-12))
    times = BranchTimes(
        [stage.time.forward_s for stage in numbers.stages],
        [stage.time.backward_s for stage in numbers.stages],
        [stage.time.update_s for stage in numbers.stages],
        {(b.source, b.target): b.onward_s for b in numbers.boundaries},
        {(b.source, b.target): b.back_s for b in numbers.boundaries},
    )
    longest = step_by_longest_path(times, in_flight_counts("1f1b", len(held), 16), 16)
    assert placed.step_time_s == numbers.step_time_s == pytest.approx(longest, rel=1e-12)


def plan_of(cluster: Cluster, held: list[list[int]]) -> Plan:
    model = skipping(U_SHAPE, 4)
    graph = build_graph(model)
    proved = Proved(bound=0.0, gap_asked=1.0, why_stopped="gap", plan_space={})
    return assemble_plan(cluster, model, graph, CostModel(cluster, model, graph), choice_of(held), proved)


def test_the_checker_prices_every_pair_from_the_ranks() -> None:
    plan = plan_of(racks(), [[0], [1], [2, 3]])
    assert check_plan(plan) == ()
    moved = plan.model_dump(mode="json")
    stages = moved["islands"][0]["pipelines"][0]["stages"]
    stages[1]["ranks"], stages[2]["ranks"] = [[2], [3]], [[6], [7]]  # all of stage 1 left, all of stage 2 right
    violations = check_plan(Plan.model_validate(moved))
    assert {v.code for v in violations} >= {"transfers", "prediction"}
    assert {v.where.split(".time")[0].split(".backward")[0] for v in violations if v.code == "transfers"} >= {
        f"islands[0].pipelines[0].transfers[{index}]" for index in range(3)
    }


def test_uplinks_that_carry_everything_change_no_number_where_layers_branch() -> None:
    model = skipping({(0, 2): 1, (1, 3): 2, (2, 4): 3, (3, 4): 5}, 5)
    wide = PLAIN + RACKS.replace("400 MB/s", "900 TB/s").replace("latency: 10 us", "latency: 0 s")
    plain, placed = (solve(racks(text), model, SolveOptions(time_limit_s=20)).plan for text in (PLAIN, wide))
    assert plain.prediction == placed.prediction
    assert plain.certificate.bound == placed.certificate.bound
    assert plain.certificate.plan_space["layer_order"] == placed.certificate.plan_space["layer_order"] == ANY_ORDER


@pytest.mark.parametrize("seed", [1, 4, 7, 12, 15])
def test_the_bound_is_below_every_placed_plan_where_layers_branch(seed: int) -> None:
    case = random_case(seed)
    assert case is not None
    cluster, model, held = case
    plan = solve(cluster, model, SolveOptions(time_limit_s=10)).plan
    assert check_plan(plan) == ()
    solver = plan.certificate.solver
    assert plan.certificate.bound <= plan.prediction.step_time_s <= solver["file_order_step_s"] * (1 + 1e-12)
    cost = CostModel(cluster, model, build_graph(model))
    for size in (1, 2):
        placed = place_well(cost, shapes_of(cost, [choice_of(held, size)]))
        assert placed is not None
        if plan.certificate.plan_space["layer_order"] == ANY_ORDER:
            assert plan.certificate.bound <= placed.step_time_s * (1 + 1e-9)

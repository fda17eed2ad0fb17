"""What uplinks leave: cases by hand, and the same from paths and cuts of a networkx graph."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import networkx as nx
import pytest

from planner.cost.sharding import ExpertLayout
from planner.cost.traffic import StageTraffic, Traffic
from planner.cost.uplinks import FREE, Uplinks
from planner.spec import parse_cluster
from tests.plan.racks import Case, random_case, random_topology

CLUSTER = """
name: two-racks
node_groups: [{name: a, chip: ideal, nodes: 4}]
chips:
  ideal: {memory: 64 GiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 2,
          efficiency: {network: 0.5}, intra_node: {bandwidth: 100 GB/s, latency: 3 us},
          nic: {bandwidth: 10 GB/s, latency: 5 us}}
topology: [{name: rack, count: 2, nodes: {a: 2}, uplink: 8 GB/s, latency: 1 us}]
"""


def two_racks() -> Uplinks:
    cluster = parse_cluster(CLUSTER, "c.yaml")
    assert cluster.topology is not None
    return Uplinks(cluster, cluster.topology)


def stage(*homes: int, tensor: int = 1) -> StageTraffic:
    return StageTraffic(homes, tensor, 1, ExpertLayout(tensor, tensor, len(homes), 1))


def test_an_uplink_reaches_the_share_that_networks_reach():
    assert two_racks().rate == (4e9, 4e9)


def test_replicas_and_boundaries_that_cross_at_once_share_an_uplink():
    # two pipelines of three stages: each goes from rack 0 to rack 1 and back, four passages of either uplink
    traffic = Traffic(two_racks(), [(stage(0, 0), stage(1, 1), stage(0, 0))], [(0,), (1,), (2,)])
    assert traffic.boundary(0, (0, 1)) == (1e9, 2e-6)
    assert traffic.stage(0, 0).dense == FREE


def test_a_skip_connection_shares_an_uplink_with_what_crosses_beside_it():
    chain = (stage(0), stage(1), stage(1))
    alone = Traffic(two_racks(), [chain], [(0,), (1,), (2,)])
    skipping = Traffic(two_racks(), [chain], [(0,), (1,), (2,)], [[(0, 1), (0, 2), (1, 2)]])
    assert alone.boundary(0, (0, 1)) == (4e9, 2e-6)
    assert skipping.boundary(0, (0, 1)) == skipping.boundary(0, (0, 2)) == (2e9, 2e-6)
    assert skipping.boundary(0, (1, 2)) == FREE
    assert alone.left() != skipping.left()


def test_stages_that_reduce_at_once_share_an_uplink_and_their_rings_share_that():
    # both stages have a replica in either rack; the wide one has two rings
    traffic = Traffic(two_racks(), [(stage(0, 1), stage(0, 1, tensor=2))], [(0,), (1,)])
    assert traffic.boundary(0, (0, 1)) == FREE
    assert traffic.stage(0, 0).dense == (2e9, 2e-6)
    assert traffic.stage(0, 1).dense == (1e9, 2e-6)


def test_with_zero_2_rings_and_transfers_are_on_the_uplinks_together():
    chain = (stage(0, 1), stage(1, 0))
    apart = Traffic(two_racks(), [chain], [(0,), (1,)])
    together = Traffic(two_racks(), [tuple(replace(s, reduces_always=True) for s in chain)], [(0,), (1,)])
    assert apart.boundary(0, (0, 1)).bytes_per_s == apart.stage(0, 0).dense.bytes_per_s == 2e9
    assert together.boundary(0, (0, 1)).bytes_per_s == together.stage(0, 0).dense.bytes_per_s == 1e9


def test_a_stage_that_reduces_in_every_micro_batch_shares_with_transfers_and_one_that_waits_does_not():
    # two racks, both stages in both; the boundary crosses twice. In a micro-batch: two crossings and the ring of the
    # first; after the last one: both rings
    first, second = replace(stage(0, 1), reduces_always=True), stage(1, 0)
    traffic = Traffic(two_racks(), [(first, second)], [(0,), (1,)])
    assert traffic.boundary(0, (0, 1)).bytes_per_s == pytest.approx(4e9 / 3)
    assert traffic.stage(0, 0).dense.bytes_per_s == pytest.approx(4e9 / 3)
    assert traffic.stage(0, 1).dense.bytes_per_s == pytest.approx(4e9 / 2)


def test_an_all_to_all_sends_what_leaves_the_rack():
    # four chips, two in each rack: each sends 2/3 of what it sends to the other rack, 2 x 2/3 = 4/3 shares in all
    spread = StageTraffic((0, 0, 1, 1), 1, 1, ExpertLayout(1, 4, 1, 4))
    assert Traffic(two_racks(), [(spread,)], [(0,)]).stage(0, 0).all_to_all == pytest.approx((3e9, 2e-6))


def test_the_best_ring_stays_in_a_rack_that_holds_it_and_else_takes_the_fastest_uplinks():
    uplinks = two_racks()
    assert uplinks.best_ring_bytes_per_s(0, 2) == float("inf")
    assert uplinks.best_ring_bytes_per_s(0, 3) == 4e9


# --- the same, from a graph ------------------------------------------------------------------------------------------


def graph_of(case: Case) -> nx.Graph:
    """Every node, every switch and the core; an edge a cable. Nodes have cables without limit."""
    assert case.cluster.topology is not None and case.cost.uplinks is not None
    graph: nx.Graph = nx.Graph()
    for index, switch in enumerate(case.cluster.topology.switches):
        above = "core" if switch.parent is None else ("switch", switch.parent)
        graph.add_edge(("switch", index), above, rate=case.cost.uplinks.rate[index], latency=switch.latency_s)
        for name, ranges in switch.nodes.items():
            for first, last, step in ranges:
                for node in range(first, last + 1, step):
                    group = case.cluster.group_index(name)
                    graph.add_edge(("node", group, node), ("switch", index), rate=float("inf"), latency=0.0)
    return graph


def cables(graph: nx.Graph, a: object, b: object) -> list[frozenset[object]]:
    return [frozenset(edge) for edge in pairwise(nx.shortest_path(graph, a, b))]


@pytest.mark.parametrize("seed", range(60))
def test_transfers_and_rings_get_what_paths_and_cuts_of_the_graph_leave(seed: int):
    case = random_case(seed)
    graph, (shape,) = graph_of(case), case.shapes
    rate = {frozenset(edge[:2]): edge[2]["rate"] for edge in graph.edges(data=True)}
    seats = [
        [("node", stage.group, node) for node, _ in places]
        for stage, places in zip(shape.stages, shape.places, strict=True)
    ]
    traffic = Traffic(
        case.cost.uplinks,
        [
            tuple(
                case.cost.stage_traffic(s.group, s.mode, shape.setting, [node for node, _ in places])
                for s, places in zip(shape.stages, shape.places, strict=True)
            )
        ],
        [(s,) for s in range(len(seats))],
    )
    passages: dict[frozenset[object], int] = {}
    for here, there in pairwise(seats):
        for a, b in zip(here, there, strict=True):
            for cable in cables(graph, a, b):
                passages[cable] = passages.get(cable, 0) + 1
    for s, (here, there) in enumerate(pairwise(seats)):
        ways = [(a, b, cables(graph, a, b)) for a, b in zip(here, there, strict=True)]
        least = (
            min(rate[cable] / passages[cable] for _, _, way in ways for cable in way)
            if any(way for _, _, way in ways)
            else float("inf")
        )
        latest = max(nx.shortest_path_length(graph, a, b, weight="latency") for a, b, _ in ways)
        assert traffic.boundary(0, (s, s + 1)) == pytest.approx((least, latest))
    crossed = []
    for members in seats:
        cut = set()
        for edge in list(graph.edges):
            rest = graph.copy()
            rest.remove_edge(*edge)
            below = nx.node_connected_component(rest, edge[0])
            if {m in below for m in members} == {True, False} and rate[frozenset(edge)] < float("inf"):
                cut.add(frozenset(edge))
        crossed.append(cut)
    for s, cut in enumerate(crossed):
        shares = [rate[u] / sum(u in other for other in crossed) / shape.stages[s].tensor for u in cut]
        dense = traffic.stage(0, s).dense
        assert dense.bytes_per_s == pytest.approx(min(shares, default=float("inf")))
        assert (dense.latency_s == 0) or cut


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_of_a_ring_beats_the_best_ring(seed: int):
    pick = random.Random(seed)
    cluster = parse_cluster(CLUSTER.split("topology")[0].replace("nodes: 4", "nodes: 12"), "c.yaml")
    topology = random_topology(pick, {"a": 12}, most_racks=5)
    uplinks = Uplinks(cluster.model_copy(update={"topology": topology}), topology)
    for _ in range(300):
        nodes = pick.sample(range(12), pick.randint(2, 12))
        traffic = Traffic(uplinks, [(stage(*(uplinks.homes[0][node] for node in nodes)),)], [(0,)])
        rate = traffic.stage(0, 0).dense.bytes_per_s
        assert rate <= uplinks.best_ring_bytes_per_s(0, len(nodes))

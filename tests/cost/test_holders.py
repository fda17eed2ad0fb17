"""Layers that stages of several pipeline shapes hold: who, where, and over which ring their gradients are summed."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planner.cost.holders import SharedLayers, holder_of, lines_crossed, shared_layers
from planner.cost.links import group_links, least_ring, shared_ring
from planner.cost.placement import Block, place_blocks
from planner.cost.sharding import Degrees, ExpertLayout
from planner.cost.tables import ChipGroup, Holder, Mode, Setting
from tests.cost.stand_ins import GB, Cluster, Interconnect, LinkPath, NodeGroup, cluster_of, cost_model

# ---- who holds what -------------------------------------------------------------------------------------------------


def test_the_chain_is_cut_wherever_a_stage_of_any_shape_ends():
    assert shared_layers([[4, 9], [3, 9], [9]]) == [
        SharedLayers(0, 3, (0, 0, 0)),
        SharedLayers(3, 4, (0, 1, 0)),
        SharedLayers(4, 9, (1, 1, 0)),
    ]


@given(st.lists(st.sets(st.integers(1, 11), max_size=5), min_size=1, max_size=4))
def test_every_layer_is_in_one_run_and_its_stages_hold_it(cuts):
    ends = [[*sorted(own), 12] for own in cuts]
    pieces = shared_layers(ends)
    assert [layer for p in pieces for layer in range(p.first, p.end)] == list(range(12))
    for piece in pieces:
        for own, s in zip(ends, piece.stages, strict=True):
            assert (own[s - 1] if s else 0) <= piece.first and piece.end <= own[s]


def test_a_holder_knows_how_its_replicas_are_spread():
    assert holder_of(1, 2, [(0, 6), (1, 0), (1, 2)]) == Holder(1, 2, replicas=3, nodes=2, per_node=1, node=0)


def test_pipelines_cross_a_line_once_a_boundary_whichever_way_they_run():
    shapes = [(3, [0, 0, 1]), (2, [1, 0, 2]), (4, [2])]
    assert lines_crossed(shapes) == {(0, 1): 5, (0, 2): 2}


# ---- rings ----------------------------------------------------------------------------------------------------------


def ring(cluster: Cluster, holders: list[Holder], own: int = 0, context: int = 1, sharing: int = 1):
    links = {h.group: group_links(cluster, h.group) for h in holders}  # type: ignore[arg-type]
    return shared_ring(cluster, links, holders, own, context, sharing)  # type: ignore[arg-type]


def one(group: int = 0, tensor: int = 1, node: int = 0, replicas: int = 1) -> Holder:
    return Holder(group, tensor, replicas, nodes=1, per_node=replicas, node=node)


PAIR = cluster_of(NodeGroup("a", nodes=2), NodeGroup("b", nodes=2))
"""Nodes of eight ideal chips: 100 GB/s inside, a NIC of 10 GB/s each."""


def test_stages_of_one_node_use_its_links():
    assert ring(PAIR, [one(), one(), one(replicas=4)]).bytes_per_s == 100 * GB


def test_stages_of_two_nodes_use_the_nics():
    assert ring(PAIR, [one(node=0), one(node=1)]).bytes_per_s == 10 * GB
    assert ring(PAIR, [one(), one(group=1)]).bytes_per_s == 10 * GB


def test_the_nics_of_all_replicas_in_a_node_carry_the_ring():
    assert ring(PAIR, [one(replicas=4), one(node=1, replicas=3)]).bytes_per_s == 30 * GB
    assert ring(PAIR, [one(), one(node=1)], context=4).bytes_per_s == 40 * GB


def test_the_slowest_replica_decides_and_wider_ones_wait():
    # four chips at 10 GB/s each could do 40; the one-chip replica does 10 in all, so each of the four does 2.5
    holders = [one(tensor=4), one(group=1, tensor=1)]
    assert ring(PAIR, holders, own=0).bytes_per_s == 2.5 * GB
    assert ring(PAIR, holders, own=1).bytes_per_s == 10 * GB


def test_stages_share_a_line_of_limited_total():
    paths = dict.fromkeys([(0, 1), (1, 0)], LinkPath(10 * GB, 1e-3, total_bytes_per_s=6 * GB))
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b"), paths=paths)
    holders = [one(tensor=2), one(group=1, tensor=2)]
    # a replica has 6 GB/s alone, 2 GB/s when three stages reduce at once; two rings share that
    assert ring(cluster, holders).bytes_per_s == 3 * GB
    assert ring(cluster, holders, sharing=3).bytes_per_s == 1 * GB
    assert ring(cluster, holders).latency_s == 1e-3


def test_nodes_of_one_chip_have_no_link_inside_that_could_bound():
    # nodes of a group are 1 GB/s apart, the other group 8 GB/s: with one replica in each only the latter counts
    groups = [NodeGroup(n, nodes=2, chips_per_node=1, intra_node=None) for n in ("a", "b")]
    paths = {(g, h): LinkPath(1 * GB if g == h else 8 * GB) for g in (0, 1) for h in (0, 1)}
    assert ring(cluster_of(*groups, paths=paths), [one(), one(group=1)]).bytes_per_s == 8 * GB


# ---- seconds --------------------------------------------------------------------------------------------------------


def test_seconds_are_those_of_a_ring_over_all_replicas_at_the_slowest_replicas_rate():
    model = cost_model(PAIR, zero=0)  # four layers of a million parameters, fp32 gradients
    setting = Setting(1, data_parallel=3, mixed=True)
    holders = (one(tensor=2), one(group=1, replicas=2))
    # R = 3; a's replica has two rings of a NIC each, b's node two NICs for its one ring: 20 GB/s a replica
    expected = 2 * (2 / 3) * 4e6 / 20e9  # 2 (R-1)/R * bytes / rate
    for own in (0, 1):
        reduced = model.reduction(own, holders, setting)
        assert reduced.seconds == pytest.approx([expected])
        assert reduced.fixed_s == 0
    assert model.table(0, Mode(2), setting).reduction_s <= expected  # a bound


def test_latency_counts_once_over_all_replicas():
    cluster = cluster_of(NodeGroup("a", nic=Interconnect(10 * GB, 5e-6), nodes=2), NodeGroup("b"))
    reduced = cost_model(cluster).reduction(0, (one(), one(node=1), one()), Setting(1, 3, mixed=True))
    assert reduced.fixed_s == pytest.approx(2 * 2 * 5e-6)


@pytest.mark.parametrize(("nodes", "replicas", "tensor"), [(1, 4, 2), (2, 8, 2), (2, 16, 1), (4, 4, 8), (3, 6, 4)])
@pytest.mark.parametrize("zero", [0, 1])
def test_one_shape_alone_reduces_as_its_table_says(nodes, replicas, tensor, zero):
    cluster = cluster_of(NodeGroup("a", nodes=4, nic=Interconnect(10 * GB, 5e-6)))
    model = cost_model(cluster, zero=zero, global_batch=48)
    setting = Setting(1, replicas)
    table = model.table(0, Mode(tensor), setting)
    alone = model.reduction(0, (Holder(0, tensor, replicas, nodes, replicas // nodes, 0),), setting)
    assert alone.seconds == pytest.approx(table.reduction_s)
    assert alone.fixed_s == pytest.approx(table.fixed_update_s)


def test_transfers_of_mixed_settings_share_no_line_and_leave_no_trace():
    paths = dict.fromkeys([(0, 1), (1, 0)], LinkPath(10 * GB, total_bytes_per_s=1 * GB))
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b"), paths=paths)
    model, fresh = cost_model(cluster), cost_model(cluster)
    free = model.transfer(0, Mode(1), 1, Mode(1), False, Setting(1, 4, mixed=True))
    alone = fresh.transfer(0, Mode(1), 1, Mode(1), False, Setting(1, 1))
    assert list(free.forward_s) == list(alone.forward_s)
    assert list(model.transfer(0, Mode(1), 1, Mode(1), False, Setting(1, 1)).forward_s) == list(alone.forward_s)
    assert list(model.transfer(0, Mode(1), 1, Mode(1), False, Setting(1, 4)).forward_s) == pytest.approx(
        4 * alone.forward_s
    )


# ---- the least of all mixes -----------------------------------------------------------------------------------------


@st.composite
def clusters(draw) -> Cluster:
    groups = []
    for name in "abc"[: draw(st.integers(1, 3))]:
        chips = draw(st.sampled_from([1, 1, 2, 4, 6, 8]))
        inside = Interconnect(draw(st.sampled_from([20, 100, 300])) * GB, draw(st.sampled_from([0.0, 3e-6])))
        alone = chips == 1 and draw(st.booleans())
        nic = Interconnect(draw(st.sampled_from([1, 10, 50])) * GB, draw(st.sampled_from([0.0, 5e-6])))
        groups.append(NodeGroup(name, "ideal", draw(st.integers(1, 3)), chips, nic, None if alone else inside))
    paths = {}
    for a in range(len(groups)):
        for b in range(a, len(groups)):
            if draw(st.booleans()):
                total = draw(st.sampled_from([None, 1 * GB, 20 * GB])) if a != b else None
                host = draw(st.booleans())
                path = LinkPath(
                    draw(st.sampled_from([1, 8, 40])) * GB,
                    draw(st.sampled_from([0.0, 1e-3])),
                    "host" if host else "rdma",
                    20 * GB if host else None,
                    total,
                )
                paths[a, b] = paths[b, a] = path
    return cluster_of(*groups, paths=paths)


def chip_groups(cluster: Cluster) -> list[ChipGroup]:
    return [ChipGroup(g.name, g.chip, g.nodes, g.chips_per_node, (1, 2, 3, 4, 8)) for g in cluster.node_groups]


@st.composite
def mixes(draw) -> tuple[Cluster, list[Holder], int]:
    """Holders of one layer with places of their own, among other stages that take chips too."""
    cluster = draw(clusters())
    groups = chip_groups(cluster)
    context = draw(st.sampled_from([1, 2])) if all(g.chips_per_node > 1 for g in groups) else 1
    degrees, blocks, places = [], [], []
    for _ in range(draw(st.integers(1, 8))):
        group = draw(st.integers(0, len(groups) - 1))
        possible = [t for t in (1, 2, 3, 4, 8) if t * context <= groups[group].chips_per_node]
        tensor = draw(st.sampled_from(possible))
        block = Block(group, tensor * context, draw(st.integers(1, 6)))
        placed = place_blocks(groups, [*blocks, block])
        if placed is not None:
            degrees.append(tensor)
            blocks.append(block)
            places = placed
    assume(blocks)
    count = draw(st.integers(1, len(blocks)))  # the rest are stages that hold other layers
    holders = [holder_of(blocks[i].group, degrees[i], places[i]) for i in range(count)]
    return cluster, holders, context


@settings(deadline=None, max_examples=300)
@given(mix=mixes(), sharing=st.integers(1, 4))
def test_no_mix_has_a_faster_ring_than_the_least_one(mix, sharing):
    cluster, holders, context = mix
    replicas = sum(h.replicas for h in holders)
    if replicas == 1:
        return
    for own, holder in enumerate(holders):
        layout = ExpertLayout(holder.tensor, holder.tensor, context * replicas, 1)
        degrees = Degrees(holder.tensor, context, replicas, True, layout)
        slots = chip_groups(cluster)[holder.group].slots_per_node(holder.tensor, context)
        links = {holder.group: group_links(cluster, holder.group)}
        least = least_ring(cluster, links, holder.group, slots, degrees)
        real = ring(cluster, holders, own, context, sharing)
        assert real.bytes_per_s <= least.bytes_per_s * (1 + 1e-12)
        assert real.latency_s >= least.latency_s


def test_narrow_neighbours_can_keep_a_wide_stage_inside_its_node():
    """R = 5 replicas of four chips need several nodes, but one of them and four of one chip do not."""
    cluster = cluster_of(NodeGroup("a", nodes=2))
    holders = [one(tensor=4), one(replicas=4)]
    assert ring(cluster, holders).bytes_per_s == 25 * GB
    degrees = Degrees(4, 1, 5, True, ExpertLayout(4, 4, 5, 1))
    least = least_ring(cluster, {0: group_links(cluster, 0)}, 0, 2, degrees)  # type: ignore[arg-type]
    assert least.bytes_per_s == 25 * GB


def test_a_bound_leaves_the_node_when_no_node_can_hold_all_replicas():
    cluster = cluster_of(NodeGroup("a", nodes=4, nic=Interconnect(10 * GB, 5e-6)))
    degrees = Degrees(4, 1, 16, True, ExpertLayout(4, 4, 16, 1))
    least = least_ring(cluster, {0: group_links(cluster, 0)}, 0, 2, degrees)  # type: ignore[arg-type]
    assert (least.bytes_per_s, least.latency_s) == (20 * GB, 5e-6)


def test_a_cluster_of_one_node_never_leaves_it():
    degrees = Degrees(4, 1, 5, True, ExpertLayout(4, 4, 5, 1))
    cluster = cluster_of(replace(PAIR.node_groups[0], nodes=1))
    assert least_ring(cluster, {0: group_links(cluster, 0)}, 0, 2, degrees).bytes_per_s == 25 * GB  # type: ignore[arg-type]

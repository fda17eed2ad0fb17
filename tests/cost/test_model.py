"""The cost model as the search and the checker see it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Problem, Setting
from planner.errors import Notice
from planner.graph import build_graph
from planner.graph.layers import Edge, LayerGraph, Operation
from planner.spec import load_cluster, parse_model
from tests.cost.stand_ins import (
    GB,
    Constraints,
    Interconnect,
    LinkPath,
    NodeGroup,
    cluster_of,
    cost_model,
    graph_of,
    matmul_layer,
)


def test_the_cost_model_is_a_problem():
    problem: Problem = cost_model()
    assert problem.global_batch == 16
    assert problem.policies == ("none", "selective", "full")
    assert problem.schedules == ("1f1b",)


def test_policies_are_those_allowed_in_the_order_of_frugality():
    assert cost_model(recompute=("full", "none")).policies == ("none", "full")


def test_equal_layers_are_one_kind():
    head = matmul_layer("head", kind="head")
    chain = cost_model(graph=graph_of(*(matmul_layer(f"layers.{i}") for i in range(3)), head)).chain
    # the last of the equal layers stands before a tensor of the same size: still the same kind
    assert chain.kinds == (0, 0, 0, 1)
    assert chain.names == ("layers.0", "layers.1", "layers.2", "head")
    assert chain.kind_names == ("layer", "head")


def test_d6_a_boundary_that_grows_with_depth_makes_kinds_of_its_own():
    layers = tuple(matmul_layer(f"layers.{i}") for i in range(3))
    edges = (
        Edge("layers.0", "layers.1", 100.0),
        Edge("layers.0", "layers.2", 200.0),
        Edge("layers.1", "layers.2", 100.0),
    )
    graph = LayerGraph("growing", layers, edges, 1024, 0, 0, 0)
    model = cost_model(graph=graph)
    # after layers.0: 100 and 200 elements; after layers.1: 200 and 100; the last layer is of the kind before it
    assert model.chain.kinds == (0, 0, 0)
    skip = LayerGraph("skip", layers, (*edges[:1], edges[2], Edge("layers.1", "layers.2", 50.0)), 1024, 0, 0, 0)
    assert cost_model(graph=skip).chain.kinds == (0, 1, 1)


def test_tables_are_made_once():
    model = cost_model()
    assert model.table(0, Mode(2), Setting(1, 4)) is model.table(0, Mode(2), Setting(1, 4))
    assert model.transfer(0, Mode(2), 0, Mode(2), True, Setting(1, 4)) is model.transfer(
        0, Mode(2), 0, Mode(2), True, Setting(1, 8)
    )


# --- transfers -----------------------------------------------------------------------------------------------------

MIXED = cluster_of(
    NodeGroup("a", nodes=2, intra_node=Interconnect(100 * GB, 1e-6), nic=Interconnect(25 * GB, 5e-6)),
    NodeGroup("b", nodes=2, intra_node=Interconnect(50 * GB, 2e-6), nic=Interconnect(10 * GB, 8e-6)),
)
GIGA = graph_of(elements=0.5e9)
"""A boundary tensor of 1 GB."""


def test_a_transfer_inside_a_node_uses_its_link():
    moved = cost_model(MIXED, GIGA).transfer(0, Mode(4), 0, Mode(4), True, Setting(1, 1))
    assert moved.forward_s[0] == moved.backward_s[0] == pytest.approx(1 / 400 + 1e-6)


def test_a_group_of_one_node_without_a_nic_has_the_link_inside_and_no_other_way():
    # bounds ask for both ways; the node may well have no network at all (public case C5)
    alone = cluster_of(NodeGroup("a", nic=None, intra_node=Interconnect(100 * GB, 1e-6)))
    for same_node in (True, False):
        moved = cost_model(alone, GIGA).transfer(0, Mode(4), 0, Mode(4), same_node, Setting(1, 1))
        assert moved.forward_s[0] == moved.backward_s[0] == pytest.approx(1 / 400 + 1e-6)


def test_a_transfer_between_nodes_of_a_group_uses_every_chip_s_nic():
    moved = cost_model(MIXED, GIGA).transfer(0, Mode(4), 0, Mode(4), False, Setting(1, 1))
    assert moved.forward_s[0] == pytest.approx(1 / 100 + 5e-6)


def test_unequal_degrees_gather_on_the_receiving_side():
    moved = cost_model(MIXED, GIGA).transfer(0, Mode(8), 1, Mode(4), False, Setting(1, 1))
    # 8 x 10 by pair, 8 x 25 and 4 x 10 by NIC: 40 GB/s; then 3/4 GB at 50 GB/s in b, or 7/8 GB at 100 GB/s in a
    assert moved.forward_s[0] == pytest.approx(1 / 40 + 8e-6 + 0.75 / 50 + 3 * 2e-6)
    assert moved.backward_s[0] == pytest.approx(1 / 40 + 8e-6 + 0.875 / 100 + 7 * 1e-6)


def test_without_sequence_parallelism_the_receiving_side_gathers_too():
    with_it = cost_model(MIXED, GIGA).transfer(0, Mode(4), 0, Mode(4), False, Setting(1, 1))
    without = cost_model(MIXED, GIGA, sequence_parallel=False).transfer(0, Mode(4), 0, Mode(4), False, Setting(1, 1))
    assert without.forward_s[0] - with_it.forward_s[0] == pytest.approx(0.75 / 100 + 3e-6)


def test_a_host_link_adds_staging_on_both_ends():
    paths = {(a, b): LinkPath(10 * GB, 8e-6, "host", 12 * GB) for a, b in ((0, 1), (1, 0))}
    cluster = cluster_of(*MIXED.node_groups, paths=paths)
    model = cost_model(cluster, GIGA)
    moved = model.transfer(0, Mode(2), 1, Mode(2), False, Setting(1, 1))
    assert moved.forward_s[0] == pytest.approx(1 / 20 + 8e-6 + 2 / 24)
    assert (model.transport(0, 1, False), model.transport(0, 0, True)) == ("host", "rdma")


def with_total(total: float | None) -> Any:
    paths = {(a, b): LinkPath(10 * GB, 0.0, total_bytes_per_s=total) for a, b in ((0, 1), (1, 0))}
    return cluster_of(*MIXED.node_groups, paths=paths)


def test_replicas_that_cross_at_once_share_what_the_line_carries():
    model = cost_model(with_total(2 * GB), GIGA)
    for data in (1, 2, 8):
        moved = model.transfer(0, Mode(1), 1, Mode(1), False, Setting(1, data))
        # 1 GB at 2 GB/s over d; one pair of chips could have 10 GB/s
        assert moved.forward_s[0] == moved.backward_s[0] == pytest.approx(data / 2)
    # four pairs a replica change nothing, and inside a group the line plays no part
    assert model.transfer(0, Mode(4), 1, Mode(4), False, Setting(1, 8)).forward_s[0] == pytest.approx(8 / 2)
    assert model.transfer(0, Mode(4), 0, Mode(4), False, Setting(1, 8)) is model.transfer(
        0, Mode(4), 0, Mode(4), False, Setting(1, 2)
    )


def test_a_wide_line_leaves_pairs_and_nics_as_the_bounds():
    wide, none = (
        cost_model(with_total(total), GIGA).transfer(0, Mode(1), 1, Mode(1), False, Setting(1, 8))
        for total in (100 * GB, None)
    )
    assert wide.forward_s[0] == none.forward_s[0] == pytest.approx(1 / 10)


@given(total=st.floats(0.01, 100), factor=st.floats(1, 100), data=st.sampled_from([1, 2, 4, 8]))
def test_a_line_that_carries_more_never_slows_a_transfer(total, factor, data):
    before, after, unlimited = (
        cost_model(cluster, GIGA).transfer(0, Mode(2), 1, Mode(2), False, Setting(1, data)).forward_s[0]
        for cluster in (with_total(total * GB), with_total(total * factor * GB), with_total(None))
    )
    assert unlimited <= after <= before * (1 + 1e-12)


def test_the_sharing_of_lines_is_stated_where_lines_have_totals():
    sentence = "share a line's `total` evenly; each boundary between two node groups has the line to itself"
    assert any(sentence in note for note in cost_model(with_total(GB), GIGA).notes)
    assert not any("`total`" in note for note in cost_model(MIXED, GIGA).notes)


def test_experts_are_assumed_to_be_evenly_used_once():
    mixtral = parse_model(
        "model: {preset: mixtral-8x7b}\ntraining: {sequence_length: 4096, global_batch: 8}", "mixtral.yaml"
    )
    notes = CostModel(load_cluster("one-node-h100"), mixtral, build_graph(mixtral)).notes
    assert sum("evenly over the experts" in note for note in notes) == 1


def test_a_notice_of_the_graph_is_a_warning_and_no_restriction_or_assumption():
    notice = Notice("sequence-length", "too long")
    model = cost_model(graph=graph_of(notes=("plain", notice.message), notices=(notice,)))
    assert notice in model.excluded
    assert "plain" in model.notes
    assert notice.message not in (*model.notes, *model.space["restrictions"])


def test_micro_batches_and_context_scale_a_transfer():
    model = cost_model(MIXED, GIGA, micro_batch_sizes=(4,), context_parallel=(2,))
    moved = model.transfer(0, Mode(2), 0, Mode(2), False, Setting(4, 1, 2))
    assert moved.forward_s[0] == pytest.approx(4 / (2 * 50) + 5e-6)
    assert model.boundary_bytes(0, Setting(4, 1, 2)) == 4e9


def test_one_chip_nodes_have_no_link_inside():
    cluster = cluster_of(NodeGroup("a", nodes=4, chips_per_node=1, intra_node=None))
    model = cost_model(cluster, GIGA)
    assert model.transfer(0, Mode(1), 0, Mode(1), True, Setting(1, 1)).forward_s[0] == pytest.approx(0.1)


@given(factor=st.floats(1, 100), tensors=st.tuples(st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8])))
def test_a_faster_link_never_slows_a_transfer(factor, tensors):
    thin = cluster_of(*MIXED.node_groups, paths={(0, 1): LinkPath(GB), (1, 0): LinkPath(GB)})
    wide = cluster_of(*MIXED.node_groups, paths={(0, 1): LinkPath(factor * GB), (1, 0): LinkPath(factor * GB)})
    before, after = (
        cost_model(c, GIGA).transfer(0, Mode(tensors[0]), 1, Mode(tensors[1]), False, Setting(1, 1))
        for c in (thin, wide)
    )
    assert after.forward_s[0] <= before.forward_s[0] * (1 + 1e-12)
    assert after.backward_s[0] <= before.backward_s[0] * (1 + 1e-12)


# --- breakdown -----------------------------------------------------------------------------------------------------


@given(
    counts=st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any),
    tensor=st.sampled_from([1, 2, 4]),
    in_flight=st.integers(1, 8),
    zero=st.integers(0, 3),
)
def test_the_parts_of_a_stage_sum_to_its_tables(counts, tensor, in_flight, zero):
    model = cost_model(MIXED, zero=zero)
    setting = Setting(1, 2)
    table = model.table(0, Mode(tensor), setting)
    assert table is not None
    stage = model.breakdown(0, Mode(tensor), setting, [[n] for n in counts], in_flight)
    layers = sum(counts)
    saved = sum(n * table.saved_bytes[q, 0] for q, n in enumerate(counts))
    transient = max(table.transient_bytes[q, 0] for q, n in enumerate(counts) if n)
    peak = layers * table.static_bytes[0] + in_flight * saved + transient + table.fixed_bytes
    assert stage.memory.peak_bytes == pytest.approx(peak)
    assert sum(stage.memory.parts().values()) == stage.memory.peak_bytes
    recompute = sum(n * table.recompute_s[q, 0] for q, n in enumerate(counts))
    backward = layers * (table.backward_input_s[0] + table.backward_weight_s[0]) + recompute
    assert stage.time.forward_s == pytest.approx(layers * table.forward_s[0])
    assert stage.time.backward_s == pytest.approx(backward)
    update = layers * (table.reduction_s[0] + table.optimizer_s[0]) + table.fixed_update_s
    assert stage.time.update_s == pytest.approx(update)
    assert stage.memory.usable_bytes == table.usable_bytes
    assert stage.memory.fits == (stage.memory.peak_bytes <= table.usable_bytes)


def test_counts_come_from_layer_names_and_their_policies():
    model = cost_model(
        graph=graph_of(*(matmul_layer(f"layers.{i}") for i in range(3)), matmul_layer("head", kind="head"))
    )
    assert model.kind_counts(["layers.1", "layers.2", "head"], {"layers.2": "full"}) == [[1, 1], [0, 0], [1, 0]]
    only_full = cost_model(recompute=("full",))
    assert only_full.kind_counts(["layers.0"], {}) == [[1]]


# --- figures of the whole model ------------------------------------------------------------------------------------


def test_model_flops_count_useful_matmuls_and_attention_three_times():
    operations = (
        Operation("matrix", "matmul", 100.0, "tensor", weight_gradient=True),
        Operation("core", "attention", 80.0, "tensor", backward_flops_ratio=2.5, useful_flops=40.0),
        Operation("norm", "elementwise", 7.0, "sequence"),
    )
    model = cost_model(graph=graph_of(matmul_layer(operations=operations)), global_batch=2)
    assert model.model_flops_per_step == 2 * (300 + 120)


def test_the_space_lists_every_dimension():
    model = cost_model(MIXED, constraints=Constraints(tensor_parallel={"b": 2}), global_batch=4)
    space = model.space
    assert space["tensor_parallel"] == {"a": [1, 2, 4, 8], "b": [2]}
    assert space["data_parallel"] == [1, 2, 4]
    assert space["recompute"] == ["none", "selective", "full"]


def test_assumptions_are_stated():
    text = " ".join(cost_model().notes)
    assert "the best matmul reaches 80% of the peak" in text
    assert "do not overlap" in text
    assert "tf32" not in text

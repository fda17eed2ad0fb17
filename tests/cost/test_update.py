"""Gradient reduction and optimizer step by hand: 1e9 parameters, links of 100 GB/s inside a node, NICs of 10 GB/s."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.tables import LayerTable, Mode, Setting
from planner.graph.layers import Weight
from tests.cost.stand_ins import GB, Interconnect, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

INSIDE = Interconnect(100 * GB, 1e-6)
ACROSS = Interconnect(10 * GB, 5e-6)


def table_of(setting: Setting, tensor: int = 1, nodes: int = 1, layer=None, graph=None, **training) -> LayerTable:
    layer = layer or matmul_layer(parameters=10**9, operations=())
    cluster = cluster_of(NodeGroup("a", nodes=nodes, intra_node=INSIDE, nic=ACROSS))
    layers = tuple(replace(layer, name=f"layers.{i}") for i in range(2))
    model = cost_model(cluster, graph_of(*layers, **(graph or {})), **training)
    table = model.table(0, Mode(tensor), setting)
    assert table is not None, model.why_not(0, Mode(tensor), setting)
    return table


def test_without_zero_gradients_are_all_reduced():
    # 4 GB of fp32 gradients over 4 replicas of a node: 2 * 3/4 * 4 / 100 = 60 ms; 6 hops of 1 us, once a stage
    table = table_of(Setting(1, 4), zero=0)
    assert table.reduction_s[0] == pytest.approx(0.06)
    assert table.fixed_update_s == pytest.approx(6e-6)


def test_zero_1_scatters_gradients_and_gathers_weights():
    # 3/4 * (4 + 2) GB / 100 GB/s
    table = table_of(Setting(1, 4), zero=1)
    assert table.reduction_s[0] == pytest.approx(0.045)
    assert table.fixed_update_s == pytest.approx(6e-6)


def test_zero_1_has_the_volume_of_an_all_reduce_when_both_dtypes_are_equal():
    equal = {"gradients": "compute"}
    assert table_of(Setting(1, 4), zero=1, **equal).reduction_s == pytest.approx(
        table_of(Setting(1, 4), zero=0, **equal).reduction_s
    )


def test_zero_2_scatters_after_every_micro_batch():
    table = table_of(Setting(1, 4), zero=2)
    assert table.backward_weight_s[0] == pytest.approx(0.03 + 3e-6)
    assert table.reduction_s[0] == pytest.approx(0.015)
    assert table.fixed_update_s == pytest.approx(3e-6)


def test_zero_3_gathers_weights_twice_and_scatters_gradients_once_a_micro_batch():
    table = table_of(Setting(1, 4), zero=3)
    assert table.forward_s[0] == pytest.approx(0.015 + 3e-6)
    assert table.backward_input_s[0] == pytest.approx(0.015 + 3e-6)
    assert table.backward_weight_s[0] == pytest.approx(0.03 + 3e-6)
    assert (table.reduction_s[0], table.fixed_update_s) == (0, 0)


def test_context_parallel_chips_hold_the_same_weights():
    four = table_of(Setting(1, 2, 2), zero=0, context_parallel=(2,))
    assert four.reduction_s == pytest.approx(table_of(Setting(1, 4), zero=0).reduction_s)


def test_replicas_on_two_nodes_reduce_through_their_nics():
    # 16 replicas on 2 nodes, 8 NICs of 10 GB/s a ring: 2 * 15/16 * 4 / 80; latency of the NIC
    table = table_of(Setting(1, 16), nodes=2, zero=0)
    assert table.reduction_s[0] == pytest.approx(2 * 15 / 16 * 4 / 80)
    assert table.fixed_update_s == pytest.approx(30 * 5e-6)
    # tensor 8: a replica a node, a NIC a ring, an eighth of the gradients
    assert table_of(Setting(1, 2), 8, nodes=2, zero=0).reduction_s[0] == pytest.approx(2 / 2 * 0.5 / 10)


def test_one_replica_reduces_nothing():
    table = table_of(Setting(1, 1), zero=0)
    assert (table.reduction_s[0], table.fixed_update_s) == (0, 0)


def test_experts_reduce_over_their_own_replicas():
    # 8 chips, 8 shards: one replica; 4 shards: two
    layer = matmul_layer(operations=(), weights=(Weight("experts", 10**9, "expert"),))
    experts = {"num_experts": 8}
    assert table_of(Setting(1, 8, 1, 8), layer=layer, graph=experts, zero=0).reduction_s[0] == 0
    two = table_of(Setting(1, 8, 1, 4), layer=layer, graph=experts, zero=0)
    assert two.reduction_s[0] == pytest.approx(2 / 2 * 1 / 100)


def test_a_frozen_weight_is_neither_reduced_nor_updated():
    layer = matmul_layer(operations=(), weights=(Weight("matrix", 10**9, "tensor", trained=False),))
    table = table_of(Setting(1, 4), layer=layer, zero=0)
    assert (table.reduction_s[0], table.optimizer_s[0]) == (0, 0)
    gathered = table_of(Setting(1, 4), layer=layer, zero=3)
    assert gathered.forward_s[0] > 0
    assert gathered.backward_weight_s[0] == 0


def test_a_tied_matrix_is_reduced_between_its_two_stages():
    # 4 GB over 2 stages at the NIC: 2 * 1/2 * 4 / 10 = 0.4 s and 2 hops of 5 us, on both; nothing with one stage
    owner = matmul_layer("embedding", kind="embedding", parameters=10**9, operations=())
    copy = replace(owner, name="head", kind="head", weights=(Weight("matrix", 10**9, "tensor", tied_to="embedding"),))
    cluster = cluster_of(NodeGroup("a", nodes=2, intra_node=INSIDE, nic=ACROSS))
    model = cost_model(cluster, graph_of(owner, matmul_layer(operations=()), copy), zero=0)
    split, whole = (model.table(0, Mode(1), Setting(1, 1, single_stage=single)) for single in (False, True))
    assert split is not None and whole is not None
    assert split.reduction_s.tolist() == pytest.approx([0.4 + 1e-5, 0.0, 0.4 + 1e-5])
    assert whole.reduction_s.tolist() == [0, 0, 0]
    assert whole.optimizer_s[2] == 0 < split.optimizer_s[2]


def test_the_optimizer_step_is_bound_by_memory():
    # 30 bytes a parameter at 1 TB/s: 30 ms; a fourth of it with ZeRO-1 over 4 replicas
    assert table_of(Setting(1, 4), zero=0).optimizer_s[0] == pytest.approx(0.03)
    assert table_of(Setting(1, 4), zero=1).optimizer_s[0] == pytest.approx(0.0075)


def test_muon_adds_its_newton_schulz_steps():
    # a 1e6-parameter matrix: 5 x 3 x 2 x 1e9 = 30 GFLOP at 100 TFLOP/s = 0.3 ms; bytes: 4 + 8 + 8 + 2 = 22 each
    layer = matmul_layer(parameters=10**6, operations=())
    assert table_of(Setting(1, 1), layer=layer, optimizer="muon").optimizer_s[0] == pytest.approx(3e-4 + 22e6 / 1e12)
    # 100 experts, one matrix each: a hundred times the same
    experts = matmul_layer(parameters=10**6 * 100, operations=(), sharding="expert")
    table = table_of(Setting(1, 1), layer=experts, graph={"num_experts": 100}, optimizer="muon")
    assert table.optimizer_s[0] == pytest.approx(100 * (3e-4 + 22e6 / 1e12))

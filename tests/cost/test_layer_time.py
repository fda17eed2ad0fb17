"""Times of a layer in the tables, by hand: ideal chips of 100 TFLOP/s and 1 TB/s, links of 100 GB/s inside a node."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.tables import LayerTable, Mode, Setting
from planner.graph.layers import Collective, Layer, MeasuredTime, Operation, Weight
from tests.cost.stand_ins import (
    GB,
    TFLOPS,
    Chip,
    Interconnect,
    NodeGroup,
    cluster_of,
    cost_model,
    graph_of,
    matmul_layer,
)

PLAIN = Setting(1, 1)
FULL, NEVER = frozenset({"full"}), frozenset[str]()


def table_of(
    layer: Layer, setting: Setting = PLAIN, tensor: int = 1, cluster=None, graph=None, **training
) -> LayerTable:
    layers = tuple(replace(layer, name=f"layers.{i}") for i in range(4))
    model = cost_model(cluster, graph_of(*layers, **(graph or {})), **training)
    table = model.table(0, Mode(tensor), setting)
    assert table is not None, model.why_not(0, Mode(tensor), setting)
    return table


def test_a_large_matmul_takes_its_flops_over_the_peak():
    # 1 TFLOP at 100 TFLOP/s: 10 ms forward, input and weight part; memory is far below
    table = table_of(matmul_layer(flops=1e12))
    assert (table.forward_s[0], table.backward_input_s[0], table.backward_weight_s[0]) == pytest.approx(
        (0.01, 0.01, 0.01)
    )


def test_micro_batches_scale_arithmetic_but_read_weights_once():
    # 2 GB of weights at 1 TB/s: 2 ms, however many sequences; 0.1 TFLOP: 1 ms a sequence
    layer = matmul_layer(parameters=10**9, flops=0.1e12)
    assert table_of(layer, Setting(1, 1), micro_batch_sizes=(1, 4)).forward_s[0] == pytest.approx(2e-3)
    assert table_of(layer, Setting(4, 1), micro_batch_sizes=(1, 4)).forward_s[0] == pytest.approx(4e-3)


def test_the_weight_part_accumulates_fp32_gradients():
    # reads and writes 1e9 gradients of 4 bytes: 8 ms at 1 TB/s
    assert table_of(matmul_layer(parameters=10**9, flops=1e11)).backward_weight_s[0] == pytest.approx(8e-3)


def test_tensor_and_context_parallel_chips_share_the_work():
    layer = matmul_layer(flops=1e12)
    assert table_of(layer, Setting(1, 1, 2), 4, context_parallel=(2,)).forward_s[0] == pytest.approx(0.01 / 8)


@pytest.mark.parametrize(("sequence_parallel", "divisor"), [(True, 4), (False, 1)])
def test_sequence_sharded_work_is_shared_with_sequence_parallelism_only(sequence_parallel, divisor):
    operation = Operation("norm", "elementwise", 0.0, "sequence", activation_elements=1e9)
    table = table_of(matmul_layer(operations=(operation,)), tensor=4, sequence_parallel=sequence_parallel)
    # 1e9 elements of 2 bytes at 1 TB/s: 2 ms
    assert table.forward_s[0] == pytest.approx(2e-3 / divisor)


def test_an_operation_without_weights_has_its_whole_backward_in_the_input_part():
    operation = Operation("core", "attention", 1e12, "tensor", backward_flops_ratio=2.5)
    table = table_of(matmul_layer(operations=(operation,)))
    assert (table.backward_input_s[0], table.backward_weight_s[0]) == pytest.approx((0.025, 0.0))


def test_attention_stays_bf16_when_matmuls_run_in_fp8():
    chip = Chip(peak_flops_per_s={"fp8": 200 * TFLOPS, "bf16": 100 * TFLOPS})
    operations = (Operation("matrix", "matmul", 1e12, "tensor"), Operation("core", "attention", 1e12, "tensor"))
    table = table_of(matmul_layer(operations=operations), cluster=cluster_of(chips=(chip,)), precision="fp8")
    assert table.forward_s[0] == pytest.approx(0.005 + 0.01)


def test_recompute_adds_the_forward_of_what_a_policy_reruns():
    operations = (
        Operation("matrix", "matmul", 2e12, "tensor", rerun=FULL),
        Operation("core", "attention", 1e12, "tensor", rerun=frozenset({"selective", "full"})),
        Operation("never", "matmul", 4e12, "tensor", rerun=NEVER),
    )
    assert table_of(matmul_layer(operations=operations)).recompute_s[:, 0] == pytest.approx([0, 0.01, 0.03])


def test_experts_share_work_over_tensor_chips_and_weights_over_shards():
    # 8e9 weights over 8 shards: 1e9 x 2 bytes = 2 ms; the work, 0.4 TFLOP over 4 chips: 1 ms
    operation = Operation("experts", "matmul", 0.4e12, "expert", weight_elements=8e9)
    layer = matmul_layer(operations=(operation,), weights=(Weight("experts", 8 * 10**9, "expert"),))
    assert table_of(layer, Setting(1, 2, 1, 8), 4, graph={"num_experts": 8}).forward_s[0] == pytest.approx(2e-3)


# --- measured layers -----------------------------------------------------------------------------------------------


def test_measured_times_override_the_roofline_on_their_chip():
    layer = matmul_layer(measured={"ideal": MeasuredTime(forward_s=1.0, backward_s=2.0)})
    table = table_of(layer, Setting(2, 1), micro_batch_sizes=(2,))
    assert (table.forward_s[0], table.backward_input_s[0], table.backward_weight_s[0]) == (2.0, 2.0, 2.0)
    assert table.recompute_s[:, 0].tolist() == [0.0, 0.0, 2.0]
    assert table_of(layer, tensor=4).forward_s[0] == 0.25


def test_a_layer_that_cannot_be_split_gains_nothing_from_tensor_parallelism():
    layer = matmul_layer(sharding="replicated", measured={"ideal": MeasuredTime(1.0, 2.0)})
    assert table_of(layer, tensor=4).forward_s[0] == 1.0


def test_a_chip_with_every_layer_measured_needs_no_peak():
    chip = Chip(peak_flops_per_s={})
    layer = matmul_layer(measured={"ideal": MeasuredTime(1.0, 2.0)})
    assert table_of(layer, cluster=cluster_of(chips=(chip,))).forward_s[0] == 1.0


def test_measured_times_of_another_chip_change_nothing():
    layer = matmul_layer(measured={"other": MeasuredTime(1.0, 2.0)})
    assert table_of(layer).forward_s[0] == pytest.approx(0.01)


# --- collectives ---------------------------------------------------------------------------------------------------


def test_tensor_all_reduce_runs_on_the_link_inside_the_node():
    # 1e9 elements of 2 bytes over 4 chips: 2 * 3/4 * 2e9 / 100e9 = 30 ms and 6 hops of 1 us; once forward, twice back
    collective = Collective("sum", "all_reduce", "tensor", 1e9, forward=1, backward=2)
    layer = matmul_layer(operations=(), collectives=(collective,))
    cluster = cluster_of(NodeGroup("a", intra_node=Interconnect(100 * GB, 1e-6)))
    table = table_of(layer, tensor=4, cluster=cluster)
    assert table.forward_s[0] == pytest.approx(0.03 + 6e-6)
    assert table.backward_input_s[0] == pytest.approx(0.06 + 12e-6)
    assert table.recompute_s[:, 0] == pytest.approx([0, 0, 0.03 + 6e-6])
    assert table_of(layer, tensor=1).forward_s[0] == 0


def test_context_ring_passes_keys_and_values():
    # 4e9 elements of 2 bytes over 2 x 2 chips: slices of 2 GB, passed once: 20 ms
    layer = matmul_layer(operations=(), collectives=(Collective("kv", "ring", "context", 4e9),))
    assert table_of(layer, Setting(1, 1, 2), 2, context_parallel=(2,)).forward_s[0] == pytest.approx(0.02)


def test_expert_all_to_all_inside_a_node_and_across():
    # 4e9 elements of 2 bytes over tensor 2: 4 GB a chip; 4 chips: 3/4 * 4 GB / 100 GB/s = 30 ms, across 10 GB/s: 300 ms
    layer = matmul_layer(
        operations=(),
        weights=(Weight("experts", 8, "expert"),),
        collectives=(Collective("go", "all_to_all", "expert", 4e9),),
    )
    experts = {"num_experts": 16}
    assert table_of(layer, Setting(1, 4, 1, 4), 2, graph=experts).forward_s[0] == pytest.approx(0.03)
    two_nodes = cluster_of(NodeGroup("a", nodes=2))
    # 8 replicas of 2 chips over two nodes; 16 chips: 15/16 * 4 GB / 10 GB/s
    across = table_of(layer, Setting(1, 8, 1, 16), 2, cluster=two_nodes, graph=experts).forward_s[0]
    assert across == pytest.approx(15 / 16 * 4 / 10)


def test_divided_experts_gather_their_tokens_in_the_tensor_group():
    # expert 2 with tensor 4: all-to-all of 1/2 of 2 GB, then an all-gather of 8 GB over 4 chips (3/4)
    layer = matmul_layer(
        operations=(),
        weights=(Weight("experts", 8, "expert"),),
        collectives=(Collective("go", "all_to_all", "expert", 4e9),),
    )
    table = table_of(layer, Setting(1, 2, 1, 2), 4, graph={"num_experts": 8})
    assert table.forward_s[0] == pytest.approx(0.01 + 0.06)
    alone = table_of(layer, Setting(1, 2, 1, 1), 4, graph={"num_experts": 8})
    assert alone.forward_s[0] == 0  # experts over the tensor group only: the layer's own all-reduce is all


# --- properties ----------------------------------------------------------------------------------------------------


@given(
    factor=st.floats(1, 10), tensor=st.sampled_from([1, 2, 4, 8]), figure=st.sampled_from(["peak", "memory", "link"])
)
def test_a_better_chip_is_never_slower(factor, tensor, figure):
    collective = Collective("sum", "all_reduce", "tensor", 1e8)
    layer = matmul_layer(parameters=10**8, collectives=(collective,))
    chip = Chip()
    better = Chip(
        peak_flops_per_s={k: v * (factor if figure == "peak" else 1) for k, v in chip.peak_flops_per_s.items()},
        memory_bandwidth_bytes_per_s=1000 * GB * (factor if figure == "memory" else 1),
    )
    link = Interconnect(100 * GB * (factor if figure == "link" else 1))
    before = table_of(layer, tensor=tensor)
    after = table_of(layer, tensor=tensor, cluster=cluster_of(NodeGroup("a", intra_node=link), chips=(better,)))
    for name in ("forward_s", "backward_input_s", "backward_weight_s", "recompute_s", "optimizer_s", "reduction_s"):
        assert np.all(getattr(after, name) <= getattr(before, name) * (1 + 1e-12)), name

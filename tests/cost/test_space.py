"""The plan space: what is in it, what is left out, what is refused."""

from __future__ import annotations

import pytest

from planner.cost.space import divisors_of
from planner.cost.tables import Mode, Setting
from planner.errors import InputError
from planner.graph.layers import MeasuredTime, Weight
from tests.cost.stand_ins import TFLOPS, Chip, Constraints, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer


def refused(*args, **kwargs) -> str:
    with pytest.raises(InputError) as caught:
        cost_model(*args, **kwargs)
    return caught.value.render()


def test_divisors_of_a_node_and_powers_of_two_are_tensor_degrees():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b", chips_per_node=6), NodeGroup("c", chips_per_node=1))
    # 3 and 6 do not divide the sequence of 1,024; 4 leaves two chips of b idle
    assert [g.tensor_degrees for g in cost_model(cluster).groups] == [(1, 2, 4, 8), (1, 2, 4), (1,)]


def test_divisors():
    assert divisors_of(12) == (1, 2, 3, 4, 6, 12)
    assert divisors_of(1) == (1,)


def test_heads_that_do_not_divide_leave_a_degree_out_and_say_so():
    model = cost_model(graph=graph_of(tensor_divisors=(("num_attention_heads", 25),)))
    assert model.groups[0].tensor_degrees == (1,)
    assert any("num_attention_heads 25" in notice.message for notice in model.excluded)


def test_c1_a_pinned_degree_that_heads_forbid_is_refused_by_name():
    graph = graph_of(tensor_divisors=(("num_attention_heads", 32),))
    text = refused(cluster_of(NodeGroup("a", chips_per_node=5)), graph, Constraints(tensor_parallel=5))
    assert "tensor_parallel 5 does not divide num_attention_heads 32" in text


def test_e3_a_sequence_that_tensor_parallelism_does_not_divide_is_refused_by_name():
    graph = graph_of(sequence_length=2047)
    text = refused(None, graph, Constraints(tensor_parallel=4))
    assert "sequence_length 2047" in text and "tensor_parallel 4" in text
    assert cost_model(graph=graph).groups[0].tensor_degrees == (1,)
    assert cost_model(graph=graph, sequence_parallel=False).groups[0].tensor_degrees == (1, 2, 4, 8)


def test_e5_a_tensor_degree_never_leaves_a_node():
    text = refused(cluster_of(NodeGroup("a", nodes=4, chips_per_node=4)), None, Constraints(tensor_parallel=16))
    assert "tensor_parallel 16" in text and "never leave a node" in text
    text = refused(None, None, Constraints(tensor_parallel={"a": 16}))
    assert "constraints.tensor_parallel.a" in text


def test_c2_a_pinned_degree_may_leave_chips_of_a_node_idle_and_says_how_many():
    model = cost_model(cluster_of(NodeGroup("a", nodes=2, chips_per_node=3)), None, Constraints(tensor_parallel=2))
    assert model.groups[0].tensor_degrees == (2,)
    assert "leaves 1 of 3 chips" in model.excluded[0].message


def test_one_pinned_degree_leaves_smaller_nodes_out():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b", chips_per_node=4))
    model = cost_model(cluster, None, Constraints(tensor_parallel=8))
    assert [g.tensor_degrees for g in model.groups] == [(8,), ()]
    assert any("'b' is left out" in notice.message for notice in model.excluded)


def test_degrees_can_be_pinned_per_group():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b"))
    model = cost_model(cluster, None, Constraints(tensor_parallel={"a": [2, 4], "b": 8}))
    assert [g.tensor_degrees for g in model.groups] == [(2, 4), (8,)]


def test_settings_are_all_that_divide_the_batch_and_fit():
    # 8 chips, batch 12, micro-batches of 1 and 4: replicas up to 8 that divide 12 and 3
    settings = cost_model(global_batch=12, micro_batch_sizes=(1, 4)).settings
    assert [(s.micro_batch_size, s.data_parallel) for s in settings] == [
        *((1, d) for d in (1, 2, 3, 4, 6)),
        *((4, d) for d in (1, 3)),
    ]
    assert not any(s.single_stage for s in settings)


def test_a_micro_batch_size_that_does_not_divide_is_skipped_unless_none_does():
    assert {s.micro_batch_size for s in cost_model(global_batch=6, micro_batch_sizes=(2, 4)).settings} == {2}
    assert "no micro-batch size divides global_batch 6" in refused(global_batch=6, micro_batch_sizes=(4,))


def test_e2_replicas_that_do_not_divide_the_batch_are_refused():
    text = refused(None, None, Constraints(data_parallel=3), global_batch=8)
    assert "data_parallel 3 does not divide global_batch 8" in text


def test_pinned_replicas_that_no_group_holds_are_refused():
    text = refused(None, None, Constraints(data_parallel=16), global_batch=16)
    assert "data_parallel 16 needs 16 replicas of a stage; 'a' holds 8" in text


def test_context_parallel_takes_two_slices_a_chip():
    text = refused(graph=graph_of(sequence_length=1026), context_parallel=(1, 2))
    assert "training.context_parallel" in text and "1026" in text
    assert {s.context_parallel for s in cost_model(context_parallel=(1, 2, 4)).settings} == {1, 2, 4}


def test_context_times_tensor_stays_in_a_node():
    model = cost_model(context_parallel=(4,))
    assert model.table(0, Mode(2), Setting(1, 1, 4)) is not None
    assert model.table(0, Mode(4), Setting(1, 1, 4)) is None
    assert "exceeds the 8 chips of a node" in str(model.why_not(0, Mode(4), Setting(1, 1, 4)))
    assert "context_parallel 16" in refused(context_parallel=(16,))


def moe_graph(num_experts: int = 8, **changes):
    weights = (Weight("experts", 10**6, "expert"),)
    layers = [matmul_layer(f"layers.{i}", weights=weights) for i in range(4)]
    return graph_of(*layers, num_experts=num_experts, **changes)


def test_d4_expert_degrees_divide_the_experts_and_the_stage():
    model = cost_model(graph=moe_graph(6), global_batch=16)
    pairs = {(s.data_parallel, s.expert_parallel) for s in model.settings}
    # 3 and 6 chips never divide 1, 2, 4 or 8 replicas, nor do 6/2 = 3
    assert pairs == {(d, e) for d in (1, 2, 4, 8) for e in (1, 2)}


def test_an_expert_degree_that_does_not_divide_the_experts_is_refused():
    assert "expert_parallel 3 does not divide num_experts 8" in refused(graph=moe_graph(), expert_parallel=(3,))
    assert "the model has none" in refused(expert_parallel=(2,))


def test_a5_experts_over_more_chips_than_a_stage_has_are_refused_by_name():
    # 32 chips as tensor 8 x pipeline 4: 8 chips a stage, expert 16
    cluster = cluster_of(NodeGroup("a", nodes=4))
    pinned = Constraints(tensor_parallel=8, pipeline_parallel=4)
    text = refused(cluster, moe_graph(16), pinned, expert_parallel=(16,))
    assert "expert_parallel 16" in text
    wide = cluster_of(NodeGroup("a", nodes=8))
    assert cost_model(wide, moe_graph(16), pinned, expert_parallel=(16,)).settings == (Setting(1, 2, 1, 16),)


def test_why_not_names_the_reason_of_every_missing_table():
    model = cost_model(global_batch=16)
    assert model.why_not(0, Mode(1), Setting(1, 1)) is None
    assert "possible: 1, 2, 4, 8" in str(model.why_not(0, Mode(3), Setting(1, 1)))
    assert "holds 2" in str(model.why_not(0, Mode(4), Setting(1, 4)))


# --- chips that cannot, figures that are not known ------------------------------------------------------------------


V100 = Chip("v100", peak_flops_per_s={"fp16": 125 * TFLOPS})


def test_a_chip_without_the_precision_is_left_out_with_a_notice():
    model = cost_model(cluster_of(NodeGroup("a"), NodeGroup("v", chip="v100"), chips=(Chip(), V100)))
    assert [g.tensor_degrees for g in model.groups] == [(1, 2, 4, 8), ()]
    assert model.excluded[0].code == "precision"
    assert "v100 has no bf16" in model.excluded[0].message
    assert model.table(1, Mode(1), Setting(1, 1)) is None


def test_no_chip_with_the_precision_is_an_input_error():
    text = refused(cluster_of(NodeGroup("v", chip="v100"), chips=(V100,)))
    assert "no chip of cluster 'stand-in' computes in bf16" in text and "ask for fp16" in text


def test_a_group_that_must_be_used_must_have_the_precision():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("v", chip="v100"), chips=(Chip(), V100))
    assert "'v' must be used, but v100 has no bf16" in refused(cluster, None, Constraints(use=("v",)))


def test_a_layer_known_by_its_times_runs_on_the_chips_that_have_them():
    timed = matmul_layer(operations=(), measured={"ideal": MeasuredTime(1.0, 2.0)}, measured_only=True)
    other = Chip("other")
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b", chip="other"), chips=(Chip(), other))
    model = cost_model(cluster, graph_of(timed))
    assert [bool(g.tensor_degrees) for g in model.groups] == [True, False]
    assert "no time on other is given for 'layers.0', nor FLOPs" in model.excluded[0].message
    assert "no node group can run the model" in refused(
        cluster_of(NodeGroup("b", chip="other"), chips=(other,)), graph_of(timed)
    )


def test_constraints_name_groups_that_exist():
    cluster = cluster_of(NodeGroup("a100"), NodeGroup("h100"))
    text = refused(cluster, None, Constraints(tensor_parallel={"a10": 2}, idle=("h200",), order=("h100", "x")))
    assert "constraints.tensor_parallel: 'a10' is no node group of cluster 'stand-in'" in text
    assert "constraints.idle: 'h200'" in text and "constraints.order: 'x'" in text
    assert "pinned idle and used" in refused(cluster, None, Constraints(idle=("h100",), use=("h100",)))


def test_every_missing_figure_is_named_in_one_run():
    bare = Chip("bare", memory_bytes=None, peak_flops_per_s={}, memory_bandwidth_bytes_per_s=None, efficiency=None)
    text = refused(cluster_of(NodeGroup("a", chip="bare", intra_node=None), chips=(bare,)))
    for figure in ("memory", "memory_bandwidth", "peak", "intra_node"):
        assert f"chips.bare.{figure}: bare: {figure} is not known" in text


def test_an_idle_group_needs_no_figures():
    bare = Chip("bare", memory_bytes=None, peak_flops_per_s={}, memory_bandwidth_bytes_per_s=None)
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b", chip="bare"), chips=(Chip(), bare))
    assert cost_model(cluster, None, Constraints(idle=("b",))).groups[1].tensor_degrees == ()
    assert "every node group is pinned idle" in refused(None, None, Constraints(idle=("a",)))


def test_fp32_on_a_chip_with_tf32_only_says_how_to_use_it():
    tf32 = Chip("tf32", peak_flops_per_s={"tf32": 156 * TFLOPS})
    both = Chip(peak_flops_per_s={"fp32": 20 * TFLOPS})
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b", chip="tf32"), chips=(both, tf32))
    assert "tf32 is not fp32" in cost_model(cluster, precision="fp32").excluded[0].message


def test_pinned_stages_that_a_group_cannot_hold_are_refused_by_name():
    cluster = cluster_of(NodeGroup("a", chips_per_node=1), NodeGroup("b", nodes=2, chips_per_node=1))
    graph = graph_of(*(matmul_layer(f"layers.{i}") for i in range(3)))
    text = refused(cluster, graph, Constraints(stages={"a": 2}))
    assert "constraints.stages.a" in text and "2 stages" in text and "allow 1" in text
    text = refused(cluster, graph, Constraints(stages={"b": 2}, data_parallel=2))
    assert "constraints.stages.b" in text


def test_more_pinned_stages_than_chips_name_pipeline_parallel_and_nothing_else():
    cluster = cluster_of(NodeGroup("a", chips_per_node=1), NodeGroup("b", nodes=2, chips_per_node=1))
    text = refused(cluster, None, Constraints(pipeline_parallel=4))
    assert "pipeline_parallel 4" in text and "allow 3" in text and "data_parallel" not in text


def test_more_pinned_stages_than_layers_are_refused():
    text = refused(None, None, Constraints(stages={"a": 5}))  # eight chips, four layers
    assert "constraints.stages.a" in text and "allow 4" in text


def test_a_group_that_the_order_does_not_name_stays_idle_and_says_so():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b"))
    model = cost_model(cluster, None, Constraints(order=("b",)))
    assert [bool(group.tensor_degrees) for group in model.groups] == [False, True]
    assert "constraints.order does not name it" in model.excluded[0].message


def test_a_group_with_stages_or_use_must_be_in_the_order_and_not_idle():
    cluster = cluster_of(NodeGroup("a"), NodeGroup("b"))
    assert "constraints.use" in refused(cluster, None, Constraints(use=("a",), order=("b",)))
    assert "constraints.stages" in refused(cluster, None, Constraints(stages={"a": 1}, order=("b",)))
    assert "'a' is pinned idle and used" in refused(cluster, None, Constraints(stages={"a": 1}, idle=("a",)))


def test_layers_that_take_no_time_at_all_are_refused():
    nothing = matmul_layer("nothing", flops=0.0, parameters=0)
    assert "no layer takes any time on ideal" in refused(None, graph_of(nothing))

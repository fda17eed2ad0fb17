"""The vocabulary head and the embedding are layers as others: on stages of their own, on other chips, tied or not."""

from __future__ import annotations

import pytest

from planner.plan import Plan, check_plan
from planner.plan.schema import Stage
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model

CLUSTER = """
name: two-kinds
node_groups:
  - {name: layers, chip: nvidia-a100-80gb-sxm, nodes: 1, chips_per_node: 4}
  - {name: heads, chip: nvidia-h100-80gb-sxm, nodes: 1, chips_per_node: 1}
links: [{between: [layers, heads], bandwidth: 200 Gbps, latency: 5 us}]
"""
VOCABULARY, WIDTH = 256_000, 2048


def plan_of(constraints: str = "", *, tied: bool = False, cluster: str = CLUSTER) -> Plan:
    """Twelve narrow layers under a vocabulary of 256,000: the head takes as long as three and a half layers."""
    model = f"""
model:
  dimensions:
    {{num_hidden_layers: 12, hidden_size: {WIDTH}, num_attention_heads: 16, num_key_value_heads: 8,
      intermediate_size: 8192, vocab_size: {VOCABULARY}, tie_word_embeddings: {str(tied).lower()}}}
training: {{sequence_length: 4096, global_batch: 64, loss: fused}}
constraints: {{{", ".join(["shapes: identical", *([constraints] if constraints else [])])}}}
"""
    settings = SolveOptions(time_limit_s=60.0, gap=1e-3)
    plan = solve(parse_cluster(cluster, "c.yaml"), parse_model(model, "m.yaml"), settings).plan
    assert check_plan(plan) == ()
    return plan


def stages(plan: Plan) -> tuple[Stage, ...]:
    return plan.pipelines[0].stages


def test_the_head_gets_a_chip_type_of_its_own_where_that_is_fastest() -> None:
    # nothing is pinned but that all chips are used: four A100 hold the layers, the H100 the head
    *before, last = stages(plan_of("use: [layers, heads], data_parallel: 1"))
    assert (last.node_group, last.layers) == ("heads", ("norm", "head"))
    assert [stage.node_group for stage in before] == ["layers"] * 4
    assert {len(stage.layers) for stage in before} == {3, 4}


def test_on_equal_chips_the_last_stage_has_fewer_layers() -> None:
    only = CLUSTER.replace("chips_per_node: 4", "chips_per_node: 2")
    first, last = stages(plan_of("idle: [heads], pipeline_parallel: 2", cluster=only))
    assert sum("layers." in name for name in first.layers) > sum("layers." in name for name in last.layers) > 0


def test_a_tied_head_on_another_chip_type_is_a_copy_that_both_stages_keep_and_reduce() -> None:
    pinned = "order: [layers, heads], layers_per_stage: [4, 3, 3, 3, 2]"
    plan, untied = plan_of(pinned, tied=True), plan_of(pinned)
    assert plan.tied_layers == (("embedding", "head"),)
    first, *between, last = stages(plan)
    assert (last.node_group, last.layers) == ("heads", ("norm", "head"))
    assert first.layers[0] == "embedding"
    # bf16 weights of the whole matrix on both stages, no less than untied, and an all-reduce of its gradient at both
    assert last.memory.parts["weights"] == pytest.approx(2 * VOCABULARY * WIDTH, rel=1e-3)
    assert [s.memory.parts["weights"] for s in stages(plan)] == [s.memory.parts["weights"] for s in stages(untied)]
    assert first.time.reduction_s > 0 < last.time.reduction_s
    assert not any(stage.time.reduction_s for stage in (*between, *stages(untied)))
    assert plan.prediction.step_time_s > untied.prediction.step_time_s


def test_a_tied_matrix_on_one_stage_is_kept_once() -> None:
    (stage,) = stages(plan_of("use: [heads], idle: [layers], data_parallel: 1", tied=True))
    (untied,) = stages(plan_of("use: [heads], idle: [layers], data_parallel: 1"))
    saved = untied.memory.parts["weights"] - stage.memory.parts["weights"]
    assert saved == pytest.approx(2 * VOCABULARY * WIDTH)
    assert stage.time.reduction_s == 0


@pytest.mark.parametrize("tied", [False, True])
def test_embedding_and_head_may_each_have_a_stage_alone(tied: bool) -> None:
    plan = plan_of("order: [layers, heads], layers_per_stage: [1, 6, 7, 1], tensor_parallel: 1", tied=tied)
    assert [stage.layers[0] for stage in stages(plan)] == ["embedding", "layers.0", "layers.6", "head"]
    assert stages(plan)[-1].node_group == "heads"


def test_the_head_may_have_another_tensor_degree_than_the_last_layers() -> None:
    pinned = "order: [layers, heads], layers_per_stage: [7, 6, 2], tensor_parallel: {layers: 2, heads: 1}"
    plan = plan_of(pinned, tied=True)
    assert [(s.tensor_parallel, s.layers[-1]) for s in stages(plan)] == [(2, "layers.5"), (2, "layers.11"), (1, "head")]

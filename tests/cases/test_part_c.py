"""Public cases, part C: odd clusters (docs/public-cases.md)."""

from __future__ import annotations

import pytest

from planner.errors import InfeasibleError
from planner.spec import parse_cluster
from tests.cases.given import (
    GIB,
    equal_layers,
    layer_counts,
    on,
    peak_gib,
    pinned,
    plan_of,
    preset,
    refusal,
    stages_of,
    state_gib,
    warnings,
)

# ---- C1: github.com/dylanyunlon/Neuron_SP/issues/4, /issues/38 -------------------------------------------------------

# One server, five chips of three kinds on PCIe: one node of one kind of chip is one node group, so it is written as
# three. Blackwell is not said to be which card; a B200 with its link cut down to PCIe 5 is taken.
FIVE = """
name: five
node_groups:
  - {name: a6000, chip: nvidia-rtx-a6000-48gb, nodes: 1, chips_per_node: 2}
  - {name: h100, chip: nvidia-h100-80gb-pcie, nodes: 1, chips_per_node: 1}
  - {name: blackwell, chip: nvidia-b200-180gb-sxm, nodes: 1, chips_per_node: 2,
     intra_node: {bandwidth: 50 GB/s, latency: 5 us}}
links:
  - {between: [a6000, h100], bandwidth: 25 GB/s, latency: 10 us, transport: rdma}
  - {between: [a6000, blackwell], bandwidth: 25 GB/s, latency: 10 us, transport: rdma}
  - {between: [h100, blackwell], bandwidth: 50 GB/s, latency: 10 us, transport: rdma}
"""
LLAMA_7B = preset("llama-2-7b", 2048)


def test_c1_five_stages_of_one_chip_get_layers_by_the_chips_speed() -> None:
    plan = plan_of(FIVE, LLAMA_7B + pinned(pipeline_parallel=5))
    held: dict[str, list[int]] = {}
    for stage, count in zip(stages_of(plan), layer_counts(plan), strict=True):
        held.setdefault(stage.node_group, []).append(count)
    assert {name: len(counts) for name, counts in held.items()} == {"a6000": 2, "h100": 1, "blackwell": 2}
    # dense bf16 peaks: 155, 756 and 2,250 TFLOP/s
    assert max(held["a6000"]) <= held["h100"][0] < min(held["blackwell"])


def test_c1_two_one_and_two_chips_a_stage_are_a_plan_too_and_no_group_mixes_kinds() -> None:
    degrees = {"tensor_parallel": "{a6000: 2, h100: 1, blackwell: 2}", "use": "[a6000, h100, blackwell]"}
    plan = plan_of(FIVE, LLAMA_7B + pinned(**degrees))
    assert sorted((s.node_group, s.tensor_parallel) for s in stages_of(plan)) == [
        ("a6000", 2),
        ("blackwell", 2),
        ("h100", 1),
    ]
    homes = {"a6000": {0, 1}, "h100": {2}, "blackwell": {3, 4}}
    assert all(set(ranks) <= homes[stage.node_group] for stage in stages_of(plan) for ranks in stage.ranks)


def test_c1_both_shapes_are_in_the_plan_space_and_the_best_of_it_is_found() -> None:
    free = plan_of(FIVE, LLAMA_7B)
    assert free.certificate.plan_space["tensor_parallel"] == {"a6000": [1, 2], "h100": [1], "blackwell": [1, 2]}
    for degrees in ({"pipeline_parallel": 5}, {"tensor_parallel": "{a6000: 2, h100: 1, blackwell: 2}"}):
        fixed = plan_of(FIVE, LLAMA_7B + pinned(**degrees))
        assert free.certificate.bound <= fixed.prediction.step_time_s


def test_c1_five_chips_of_one_matrix_are_refused_by_the_heads() -> None:
    text = refusal(lambda: plan_of(FIVE, LLAMA_7B + pinned(tensor_parallel=5)))
    assert "constraints.tensor_parallel: tensor_parallel 5 does not divide num_attention_heads 32" in text


# ---- C2: github.com/huggingface/accelerate/issues/1291, /issues/2780 -------------------------------------------------

TWO_THREE_THREE = """
name: two-three-three
node_groups:
  - {name: two, chip: nvidia-rtx-3090-24gb, nodes: 1, chips_per_node: 2, nic: {bandwidth: 5 Gbps, latency: 40 us}}
  - {name: three, chip: nvidia-rtx-3090-24gb, nodes: 2, chips_per_node: 3, nic: {bandwidth: 3.3 Gbps, latency: 40 us}}
"""
LLAMA_1B = preset("llama-3.2-1b", 1024)


def test_c2_eight_stages_use_all_eight_chips() -> None:
    plan = plan_of(TWO_THREE_THREE, LLAMA_1B + pinned(pipeline_parallel=8))
    assert plan.used_ranks == tuple(range(8))
    assert plan.idle == () and warnings(plan, "idle") == []


def test_c2_two_chips_a_stage_leave_one_of_three_idle_and_say_which() -> None:
    # chips 0 1 | 2 3 4 | 5 6 7: the third of each node of three has no partner
    plan = plan_of(TWO_THREE_THREE, LLAMA_1B + pinned(tensor_parallel=2, use="[two, three]"))
    assert plan.used_ranks == (0, 1, 2, 3, 5, 6)
    assert warnings(plan, "idle") == ["2 of the 6 chips of node group three stay idle: 4, 7"]
    assert warnings(plan, "idle_chips") == [
        "node group 'three': tensor_parallel 2 leaves 1 of 3 chips of every node idle"
    ]


# ---- C3: github.com/noonghunna/club-3090/issues/766 ------------------------------------------------------------------

UNEQUAL_CARDS = """
name: desk
node_groups:
  - {name: newer, chip: nvidia-rtx-5090-32gb, nodes: 1, chips_per_node: 1}
  - {name: older, chip: rtx-3090-ti, nodes: 1}
links:
  - {between: [newer, older], bandwidth: 25 GB/s, latency: 10 us, transport: rdma}
chips:
  rtx-3090-ti: {memory: 24 GiB, peak: {bf16: 80 TFLOPS}, memory_bandwidth: 1008 GB/s, chips_per_node: 1}
"""


def test_c3_unequal_cards_make_stages_of_unequal_length_and_never_one_group() -> None:
    plan = plan_of(UNEQUAL_CARDS, LLAMA_1B)
    counts = {stage.node_group: count for stage, count in zip(stages_of(plan), layer_counts(plan), strict=True)}
    assert {stage.tensor_parallel for stage in stages_of(plan)} == {1}
    assert counts["newer"] > counts["older"]
    text = refusal(lambda: plan_of(UNEQUAL_CARDS, LLAMA_1B + pinned(tensor_parallel=2)))
    assert "tensor_parallel 2 fits no node" in text


# ---- C4: github.com/hiyouga/LlamaFactory/issues/406 ------------------------------------------------------------------


EIGHTY_A100 = on("nvidia-a100-40gb-sxm", nodes=10)
LLAMA_70B = preset("llama-2-70b", 4096, global_batch=40, gradients="compute")


def test_c4_seventy_billion_fits_eighty_small_chips_with_ten_stages() -> None:
    plan = plan_of(EIGHTY_A100, LLAMA_70B + pinned(tensor_parallel=8, pipeline_parallel=10))
    stages = stages_of(plan)
    assert layer_counts(plan) == [8] * 10
    assert stages[0].in_flight == 10
    # 16 bytes x 69.0 billion / 80 chips = 12.9 GiB on average; eight layers of 855.7 million without the ends
    assert sum(map(state_gib, stages)) / 10 == pytest.approx(16 * 69.0e9 / 80 / GIB, rel=0.01)
    assert state_gib(stages[1]) == pytest.approx(8 * 855.7e6 * 16 / 8 / GIB, rel=0.001)
    assert warnings(plan, "bubble") == []
    few = preset("llama-2-70b", 4096, global_batch=8) + pinned(tensor_parallel=8, pipeline_parallel=10)
    (text,) = warnings(plan_of(EIGHTY_A100, few), "bubble")
    assert text.endswith("a global batch of 10 would fill it")


def test_c4_five_stages_on_two_replicas_fit_as_well_and_are_no_slower() -> None:
    # states in two shards: 16 layers x 855.7 million x (4 + 12 / 2) bytes / 8 chips = 15.9 GiB; the pipeline is
    # half as long: (5 - 1) / (20 + 4) = 17 % bubble, not (10 - 1) / (40 + 9) = 18 %
    free = plan_of(EIGHTY_A100, LLAMA_70B)
    ten = plan_of(EIGHTY_A100, LLAMA_70B + pinned(tensor_parallel=8, pipeline_parallel=10))
    five = plan_of(EIGHTY_A100, LLAMA_70B + pinned(tensor_parallel=8, pipeline_parallel=5, data_parallel=2))
    assert state_gib(stages_of(five)[1]) == pytest.approx(16 * 855.7e6 * 10 / 8 / GIB, rel=0.001)
    assert five.prediction.step_time_s < ten.prediction.step_time_s
    assert free.certificate.bound <= five.prediction.step_time_s
    assert free.prediction.step_time_s <= 1.01 * five.prediction.step_time_s
    assert len(free.used_ranks) == 80


# ---- C5: github.com/hiyouga/LlamaFactory/issues/5977 -----------------------------------------------------------------

EIGHT_3090 = on("nvidia-rtx-3090-24gb", chips_per_node=8)
LLAMA_8B = preset("llama-3.1-8b", 1024, global_batch=2, gradients="compute")
EVEN, RAISED = [5, 4, 4, 4, 4, 4, 4, 6], [4, 4, 4, 5, 5, 4, 4, 5]
"""Layers of each stage with the embedding in front, norm and head behind: 4 x 8, and 3, 4, 4, 5, 5, 4, 4, 3."""


def test_c5_the_states_of_an_even_and_of_a_raised_split_are_as_computed() -> None:
    # 16 bytes: a layer of 218.1 M parameters 3.25 GiB, a table of 525.3 M 7.83 GiB
    even = plan_of(EIGHT_3090, LLAMA_8B + pinned(layers_per_stage=EVEN))
    raised = plan_of(EIGHT_3090, LLAMA_8B + pinned(layers_per_stage=RAISED))
    assert layer_counts(raised) == [3, 4, 4, 5, 5, 4, 4, 3]
    assert [round(state_gib(stage), 1) for stage in stages_of(even)] == [20.8, *[13.0] * 6, 20.8]
    assert [round(state_gib(stage), 2) for stage in stages_of(raised)][3:] == [16.25, 16.25, 13.0, 13.0, 17.58]
    assert state_gib(stages_of(raised)[0]) == pytest.approx(17.58, abs=0.01)
    assert max(map(peak_gib, stages_of(raised))) < max(map(peak_gib, stages_of(even))) - 3
    # logits of 1,024 tokens in fp32: 0.49 GiB
    assert stages_of(even)[-1].memory.parts["activations"] > 0.49 * GIB


def test_c5_where_the_even_split_does_not_fit_another_one_is_found() -> None:
    nic = "{bandwidth: 10 Gbps, latency: 40 us}"
    tight = on("nvidia-rtx-3090-24gb", chips_per_node=8, reserve="4 GiB", nic=nic)
    with pytest.raises(InfeasibleError, match="GiB missing"):
        plan_of(tight, LLAMA_8B + pinned(layers_per_stage=EVEN))
    plan = plan_of(tight, LLAMA_8B + pinned(pipeline_parallel=8))
    assert max(layer_counts(plan)[0], layer_counts(plan)[-1]) <= 3
    assert max(map(state_gib, stages_of(plan))) <= 17.6


def test_c5_two_micro_batches_on_eight_stages_are_mostly_bubble() -> None:
    # (p - 1) / (m + p - 1) = 7 / 9 when stages are equal
    plan = plan_of(EIGHT_3090, LLAMA_8B + pinned(layers_per_stage=EVEN))
    (text,) = warnings(plan, "bubble")
    assert text.startswith("8 stages share 2 micro-batches, so the pipeline never fills: ")
    assert text.endswith("a global batch of 8 would fill it")
    assert plan.prediction.bubble_fraction == pytest.approx(7 / 9, abs=0.02)
    # left free, eight chips a stage have no bubble at all
    assert plan_of(EIGHT_3090, LLAMA_8B).prediction.step_time_s < plan.prediction.step_time_s / 2


# ---- C6: github.com/vllm-project/vllm/issues/49816, github.com/exo-explore/exo/issues/976, /issues/1972 --------------

DESKTOP = """
name: desk
node_groups:
  - {name: bare, chip: nvidia-rtx-3090-24gb, nodes: 1, chips_per_node: 1, reserve: 1 GiB}
  - {name: screen, chip: nvidia-rtx-3090-24gb, nodes: 1, chips_per_node: 1, reserve: 9 GiB}
links:
  - {between: [bare, screen], bandwidth: 25 GB/s, latency: 10 us}
"""


def test_c6_layers_follow_usable_memory_and_not_the_nominal_one() -> None:
    # twenty layers of 0.1 billion parameters, 1.68 GiB of state each: 22.6 and 15 GiB are usable, 13 and 8 layers
    plan = plan_of(DESKTOP, equal_layers(20, 100_000_000) + pinned(pipeline_parallel=2))
    counts = {stage.node_group: len(stage.layers) for stage in stages_of(plan)}
    assert counts["bare"] - counts["screen"] in (4, 6)
    assert all(stage.memory.peak_bytes <= stage.memory.usable_bytes for stage in stages_of(plan))
    usable = {stage.node_group: stage.memory.usable_bytes / GIB for stage in stages_of(plan)}
    assert usable["bare"] - usable["screen"] == 8


def test_c6_a_split_by_nominal_memory_is_marked_tight() -> None:
    # 45.6 GB in 48 layers, [0, 33) on 48 GB and [33, 48) on 24 GB: 31.4 and 14.3 GB of weights; of the larger
    # machine 14 GB are taken, so 92 % of what is left
    cluster = """
name: two-machines
node_groups:
  - {name: larger, chip: m, nodes: 1, reserve: 14 GB}
  - {name: smaller, chip: s, nodes: 1, reserve: 6 GB}
chips:
  m: {memory: 48 GB, peak: {bf16: 30 TFLOPS}, memory_bandwidth: 400 GB/s, chips_per_node: 1,
      nic: {bandwidth: 40 Gbps, latency: 20 us}}
  s: {memory: 24 GB, peak: {bf16: 15 TFLOPS}, memory_bandwidth: 200 GB/s, chips_per_node: 1,
      nic: {bandwidth: 40 Gbps, latency: 20 us}}
"""
    weights_only = equal_layers(48, 475_000_000, frozen="['item.*']")
    plan = plan_of(cluster, weights_only + pinned(layers_per_stage=[33, 15], order="[larger, smaller]"))
    held = [stage.memory.parts["weights"] / 1e9 for stage in stages_of(plan)]
    assert held == pytest.approx([31.35, 14.25])
    (text,) = warnings(plan, "tight")
    assert text.startswith("stage 0 on larger is tight: ")


def test_c6_a_reserve_that_nobody_gives_has_a_default_and_is_told() -> None:
    plan = plan_of(on("nvidia-a100-80gb-sxm"), LLAMA_1B)
    (text,) = [line for line in plan.assumptions if "`reserve`" in line]
    assert "6.0 % where the cluster file has none" in text
    assert text.endswith(": 4.8 GiB on all")
    given = plan_of(DESKTOP, LLAMA_1B)
    assert any(line.endswith(": 1.0 GiB on bare; 9.0 GiB on screen") for line in given.assumptions)


def test_c6_memory_that_is_shared_with_the_host_asks_for_a_reserve_of_its_own() -> None:
    # github.com/MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark/issues/5
    unified = parse_cluster(on("nvidia-gb10-128gb"), "cluster.yaml").notices
    assert any("needs more than the default reserve of 6 %; set `reserve` on group all" in n.message for n in unified)
    given = parse_cluster(on("nvidia-gb10-128gb", reserve="15 %"), "cluster.yaml").notices
    assert not any(notice.code == "unified-memory" for notice in given)

"""Public cases, part E: settings that contradict each other, units (docs/public-cases.md)."""

from __future__ import annotations

import re

import pytest

from planner.cost.tables import Mode, Setting
from planner.errors import InfeasibleError
from planner.graph.limits import padded_vocabulary
from planner.spec import Cluster, parse_cluster
from tests.cases.given import (
    LLAMA,
    chips,
    config_graph,
    cost_of,
    equal_layers,
    gpt,
    layer_counts,
    on,
    pinned,
    plan_of,
    preset,
    refusal,
    stages_of,
    warnings,
)

H100S = "nvidia-h100-80gb-sxm"


# ---- E1: github.com/NVIDIA-NeMo/Automodel/pull/2575, github.com/pytorch/torchtitan/issues/775 ------------------------


def moe(global_batch: int) -> str:
    """64 chips: 8 stages x 8 replicas, experts over 8."""
    model = preset("qwen3-30b-a3b", 4096, global_batch=global_batch, expert_parallel=[8])
    return model + pinned(pipeline_parallel=8, data_parallel=8)


def test_e1_four_micro_batches_on_eight_stages_are_warned_of_with_the_smallest_batch_that_fills_them() -> None:
    plan = plan_of(on(H100S, nodes=8), moe(32))
    assert (plan.pipelines[0].micro_batches, len(stages_of(plan))) == (4, 8)
    (text,) = warnings(plan, "bubble")
    share = 100 * plan.prediction.bubble_fraction
    assert text == (
        f"8 stages share 4 micro-batches, so the pipeline never fills: {share:.1f} % of the chips' time is bubble;"
        " a global batch of 64 would fill it"  # 8 a replica
    )
    # (p - 1) / (m + p - 1) = 7 / 11 of equal stages; unequal ones can do a little better
    assert share == pytest.approx(100 * 7 / 11, abs=4)


@pytest.mark.parametrize("global_batch", [64, 512])
def test_e1_eight_micro_batches_and_more_are_not_warned_of(global_batch: int) -> None:
    assert warnings(plan_of(on(H100S, nodes=8), moe(global_batch)), "bubble") == []


# ---- E2: github.com/pytorch/pytorch/issues/126600 --------------------------------------------------------------------


def test_e2_a_batch_of_eight_is_cut_into_equal_micro_batches_on_three_stages() -> None:
    model = gpt(6, 512, 1024, heads=8, global_batch=8, micro_batch_sizes=[1, 2, 3, 4])
    pipeline = plan_of(chips(3), model + pinned(pipeline_parallel=3)).pipelines[0]
    assert pipeline.micro_batch_size * pipeline.micro_batches == 8


def test_e2_micro_batches_of_three_sequences_are_refused_with_what_divides() -> None:
    model = gpt(6, 512, 1024, heads=8, global_batch=8, micro_batch_sizes=[3])
    text = refusal(lambda: plan_of(chips(3), model + pinned(pipeline_parallel=3)))
    assert "training.micro_batch_sizes: no micro-batch size divides global_batch 8" in text
    assert "use divisors of 8: 1, 2, 4, 8" in text
    assert "data_parallel" not in text


def test_e2_three_replicas_of_eight_sequences_are_refused() -> None:
    model = gpt(6, 512, 1024, heads=8, global_batch=8)
    text = refusal(lambda: plan_of(chips(3), model + pinned(data_parallel=3)))
    assert "constraints.data_parallel: data_parallel 3 does not divide global_batch 8" in text
    # four replicas divide it, but not with four sequences a micro-batch
    large = gpt(6, 512, 1024, heads=8, global_batch=8, micro_batch_sizes=[4])
    text = refusal(lambda: plan_of(chips(4), large + pinned(data_parallel=4)))
    assert "data_parallel 4 x micro-batch size 4 does not divide global_batch 8" in text
    assert "allow a smaller micro-batch, or pin fewer replicas" in text


# ---- E3: github.com/pytorch/torchtitan/issues/1306 -------------------------------------------------------------------


def test_e3_a_sequence_that_does_not_divide_is_refused_by_name_or_its_degrees_are_left_out() -> None:
    model = gpt(4, 512, 1024, heads=8, tokens=2047)
    text = refusal(lambda: plan_of(chips(4), model + pinned(tensor_parallel=4)))
    assert "sequence_length 2047 does not divide by tensor_parallel 4, as sequence parallelism needs" in text
    free = plan_of(chips(4), model)
    assert {stage.tensor_parallel for stage in stages_of(free)} == {1}
    assert any("tensor_parallel 4" in message for message in warnings(free, "tensor_parallel"))
    # without sequence parallelism nothing has to divide
    whole = gpt(4, 512, 1024, heads=8, tokens=2047, sequence_parallel="false")
    assert stages_of(plan_of(chips(4), whole + pinned(tensor_parallel=4)))[0].tensor_parallel == 4


def test_e3_context_parallelism_takes_two_pieces_a_chip() -> None:
    model = gpt(4, 512, 1024, heads=8, tokens=2046, context_parallel=[2])
    text = refusal(lambda: plan_of(chips(4), model))
    assert "training.context_parallel: sequence_length 2046 does not divide by 2 x context_parallel 2" in text


# ---- E4: github.com/vllm-project/vllm/issues/440, /issues/578, /issues/1705, /issues/31474 ---------------------------
# ----     github.com/NVIDIA-NeMo/Megatron-Bridge/issues/1331, github.com/NVIDIA/Megatron-LM/issues/1754 ---------------


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "padded"),
    [
        (50257, 1, 50304),
        (50257, 2, 50432),
        (250682, 8, 250880),
        (49954, 16, 51200),
        (151552, 6, 152064),
        (151669, 4, 152064),
    ],
)
def test_e4_the_vocabulary_is_padded_to_128_times_the_degree(vocabulary: int, tensor: int, padded: int) -> None:
    assert padded_vocabulary(vocabulary, tensor) == padded
    assert padded % tensor == 0


def test_e4_memory_counts_padded_rows_and_the_plan_says_so() -> None:
    # two chips: 50,432 / 2 rows of 768 in bf16
    cost = cost_of(chips(2), gpt(12, 768, 50257, heads=12))
    counts = cost.kind_counts(["head"], {})
    assert cost.breakdown(0, Mode(2), Setting(1, 1), counts, in_flight=1).memory.weights == 50432 / 2 * 768 * 2
    sizes = "50304 at tensor_parallel 1, 50432 at tensor_parallel 2"
    text = f"embedding and head are sized for a padded vocabulary: 50257 -> {sizes}"
    assert text in plan_of(chips(2), gpt(12, 768, 50257, heads=12)).assumptions
    # a vocabulary that is a multiple of 128 may still be padded for four chips: 512 x 99 = 50,688
    assert any("50304 -> " in note and "50688" in note for note in cost_of(chips(4), gpt(12, 768, 50304, 12)).notes)


def test_e4_twenty_five_heads_split_over_five_chips_and_not_over_two() -> None:
    text = refusal(lambda: plan_of(chips(2), preset("gpt-2-xl", 1024) + pinned(tensor_parallel=2)))
    assert "constraints.tensor_parallel: tensor_parallel 2 does not divide num_attention_heads 25" in text
    five = plan_of(chips(5), preset("gpt-2-xl", 1020) + pinned(tensor_parallel=5))
    assert {stage.tensor_parallel for stage in stages_of(five)} == {5}
    # 50,257 rows do not divide by five: 640 x 79 = 50,560 do
    assert any("50560 at tensor_parallel 5" in note for note in five.assumptions)


# ---- E5: github.com/sgl-project/sglang/issues/2591, /issues/3345; github.com/InternLM/lmdeploy/issues/2960 -----------

FOURTEEN = """
name: fourteen
node_groups:
  - {name: four, chip: nvidia-h100-80gb-sxm, nodes: 3, chips_per_node: 4}
  - {name: two, chip: nvidia-h100-80gb-sxm, nodes: 1, chips_per_node: 2}
"""


def test_e5_fourteen_chips_of_one_matrix_are_refused_by_the_heads() -> None:
    text = refusal(lambda: plan_of(FOURTEEN, preset("deepseek-v3", 4096) + pinned(tensor_parallel=14)))
    assert "constraints.tensor_parallel: tensor_parallel 14 does not divide num_attention_heads 128" in text


def test_e5_stages_over_uneven_nodes_use_all_fourteen() -> None:
    model = preset("llama-3.2-3b", 4096) + pinned(pipeline_parallel=7, tensor_parallel=2)
    plan = plan_of(FOURTEEN, model)
    assert plan.used_ranks == tuple(range(14))
    assert sum(layer_counts(plan)) == 28


def test_e5_671_billion_do_not_fit_fourteen_chips_and_it_is_said_by_how_much() -> None:
    # 18 bytes x 671 billion / 14 chips = 803 GiB a chip, less 75: seven tenths of a TiB are missing
    model = preset("deepseek-v3", 4096, expert_parallel=[1], recompute="[full]", zero=3, loss="fused")
    with pytest.raises(InfeasibleError) as caught:
        plan_of(FOURTEEN, model + pinned(pipeline_parallel=7, tensor_parallel=2))
    match = re.search(r"74\.9 GiB is usable: ([0-9.]+) GiB missing", str(caught.value))
    assert match is not None and 803 - 75 < float(match[1]) < 850


def test_e5_a_quantised_checkpoint_is_read_unquantised_and_that_is_told() -> None:
    quantised = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    graph = config_graph({**LLAMA, "quantization_config": quantised})
    assert graph.parameters == config_graph(LLAMA).parameters
    assert "quantization_config is ignored: the model is read as unquantised for training" in graph.notes


# ---- E7: meta-pytorch/torchtune/issues/1346, brevdev/cloud/pull/140, pingcap/tiflash/issues/5524, ------------------
# ----     hiyouga/LlamaFactory/issues/4014, Reed-CompBio/spras/issues/484 (all on github.com) -------------------------


def with_memory(written: str) -> Cluster:
    return parse_cluster(chips(4, memory=written), "cluster.yaml")


@pytest.mark.parametrize(
    ("written", "num_bytes"),
    [
        ("80GB", 80 * 10**9),
        ("80GiB", 80 * 2**30),
        ("'80 GB'", 80 * 10**9),
        ("80e9 B", 80 * 10**9),
        ("74.5 GiB", 149 * 2**29),  # not cut to 74
    ],
)
def test_e7_memory_with_a_unit_is_read_exactly(written: str, num_bytes: int) -> None:
    assert with_memory(written).chips["plain"].memory_bytes == num_bytes


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("80", "'80' has no unit; write '80 GB' (10^9 bytes) or '80 GiB' (2^30 bytes)"),
        ("80e9", "has no unit"),
        ("8e10", "'80000000000' has no unit; write '80000000000 B'"),  # without a point YAML reads text
        ("85899345920", "'85899345920' has no unit; write '85899345920 B'"),
        ("42 Gb", "a small b means bits"),
        ("-80 GB", "is negative"),
        ("0 GB", "is zero"),
        (".nan", "is not a finite number"),
        (".inf", "is not a finite number"),
        ("yes", "is not a number"),
        ("true", "is true, not the memory of a chip"),
    ],
)
def test_e7_memory_that_could_be_read_in_two_ways_is_refused_by_key(written: str, words: str) -> None:
    text = refusal(lambda: with_memory(written))
    assert text.startswith("cluster.yaml:5:19: chips.plain.memory: ")
    assert words in text


@pytest.mark.parametrize(
    ("written", "rate"),
    [("100Gbps", 12.5e9), ("100GB/s", 100e9), ("1e9 B/s", 1e9), ("100 Gbit/s", 12.5e9)],
)
def test_e7_bits_and_bytes_a_second_are_kept_apart(written: str, rate: float) -> None:
    nic = parse_cluster(chips(4).replace("100 Gbps", written), "cluster.yaml").node_groups[0].nic
    assert nic is not None and nic.bandwidth_bytes_per_s == rate


@pytest.mark.parametrize("written", ["1e9", "100 Gb/s", "100 GB", "-1 Gbps", "0 Gbps", ".nan"])
def test_e7_a_bandwidth_that_could_be_read_in_two_ways_is_refused_by_key(written: str) -> None:
    text = refusal(lambda: parse_cluster(chips(4).replace("100 Gbps", written), "cluster.yaml"))
    assert ": chips.plain.nic.bandwidth: " in text


def test_e7_numbers_that_yaml_reads_as_text_are_numbers() -> None:
    # 2e2 has no point, so YAML 1.1 reads text; a count is compared as a number all the same
    model = equal_layers(4).replace("global_batch: 64", "global_batch: 2e2")
    assert plan_of(chips(1), model + pinned()).pipelines[0].micro_batches == 200


def test_e7_names_given_twice_and_tabs_are_refused_at_their_place() -> None:
    twice = chips(4).replace("nodes: 1}\n", "nodes: 1}\n  - {name: all, chip: plain, nodes: 1}\n")
    assert "cluster.yaml:4:12: node_groups[1].name: " in refusal(lambda: parse_cluster(twice, "cluster.yaml"))
    tab = chips(4).replace("  - {name", "\t- {name")
    assert "a tab stands where YAML wants spaces" in refusal(lambda: parse_cluster(tab, "cluster.yaml"))

"""Public cases, part A: layer counts that do not divide (docs/public-cases.md)."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from planner.plan import Plan, check_plan
from tests.cases.given import (
    chips,
    equal_layers,
    gpt,
    layer_counts,
    on,
    peak_gib,
    pinned,
    plan_of,
    preset,
    refusal,
    stages_of,
)

# One node of four chips with room for everything in DeepSeek-V3 and Qwen3-235B but for their number of layers (A6).
FOUR_LARGE_CHIPS = """
name: four
node_groups: [{name: large, chip: large, nodes: 4}]
chips:
  large: {memory: MEMORY, peak: {bf16: 800 TFLOPS}, memory_bandwidth: 3 TB/s, chips_per_node: 1,
          nic: {bandwidth: 400 Gbps, latency: 5 us}}
"""
A100S = on("nvidia-a100-80gb-sxm", nodes=2)
H100S = "nvidia-h100-80gb-sxm"


def names(plan: Plan) -> list[str]:
    return [name for stage in stages_of(plan) for name in stage.layers]


# ---- A1: github.com/NVIDIA/Megatron-LM/issues/1304, ml-explore/mlx-lm/issues/1688, pytorch/torchtitan/pull/963 -------


@pytest.mark.parametrize(("layers", "num_chips", "counts"), [(30, 4, [7, 7, 8, 8]), (10, 3, [3, 3, 4])])
def test_a1_layers_that_do_not_divide_are_all_placed_once(layers: int, num_chips: int, counts: list[int]) -> None:
    # a vocabulary of 1,024 weighs 1024 / (12 x 1024) = 0.08 layers: the head decides where the short stages are
    model = gpt(layers, 1024, 1024) + pinned(pipeline_parallel=num_chips)
    plan = plan_of(chips(num_chips), model, gap=0.0)
    assert sorted(layer_counts(plan)) == counts
    assert names(plan) == ["embedding", *(f"layers.{i}" for i in range(layers)), "norm", "head"]


def test_a1_a_heavy_head_takes_layers_from_the_last_stage() -> None:
    # with GPT-2's own vocabulary the head weighs 50,304 / (12 x 1024) = 4.1 layers, so 8, 8, 7, 7 is not best:
    # (30 + 4.1) / 4 = 8.5 layers' worth a stage, so 9 at most and 4 at most beside the head
    plan = plan_of(chips(4), gpt(30, 1024, 50257) + pinned(pipeline_parallel=4))
    even = plan_of(chips(4), gpt(30, 1024, 50257) + pinned(pipeline_parallel=4, layers_per_stage=[9, 8, 7, 9]))
    assert max(layer_counts(plan)) == 9
    assert layer_counts(plan)[-1] <= 4
    assert plan.prediction.step_time_s < 0.85 * even.prediction.step_time_s


def test_a1_a_plan_that_lost_layers_does_not_pass_and_they_are_named() -> None:
    # 7, 7, 7, 7 of 30: layers 28 and 29 are never built
    plan = plan_of(chips(4), gpt(30, 1024, 1024) + pinned(pipeline_parallel=4))
    document = plan.model_dump(mode="json")
    stages = document["islands"][0]["pipelines"][0]["stages"]
    for stage, first in zip(stages, (0, 7, 14, 21), strict=True):
        stage["layers"] = [f"layers.{i}" for i in range(first, first + 7)]
    stages[0]["layers"].insert(0, "embedding")
    stages[-1]["layers"] += ["norm", "head"]
    found = [violation.message for violation in check_plan(Plan.model_validate(document))]
    assert "31 layers are placed of 33; missing: layers.28, layers.29" in found


# ---- A2: github.com/NVIDIA/Megatron-LM/issues/1303 -------------------------------------------------------------------


def test_a2_forty_layers_on_sixteen_stages_are_at_most_three_a_stage() -> None:
    # 40 / 16 = 2.5: no stage above 3, none empty; the head (0.8 layers) stands beside 2 at most
    model = gpt(40, 5120, 50257, heads=40, tokens=2048, global_batch=128)
    plan = plan_of(A100S, model + pinned(pipeline_parallel=16), gap=0.0001)
    counts = layer_counts(plan)
    assert (sum(counts), max(counts)) == (40, 3)
    assert counts[-1] <= 2
    # eight stages of 3 between eight of 2, as the thread would have it
    published = [3, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2, 2, 4]
    split = plan_of(A100S, model + pinned(pipeline_parallel=16, layers_per_stage=published))
    assert sorted(layer_counts(split)) == [2] * 8 + [3] * 8
    assert plan.prediction.step_time_s <= split.prediction.step_time_s


def test_a2_two_chips_a_stage_make_the_split_even_and_the_step_shorter() -> None:
    model = gpt(40, 5120, 50257, heads=40, tokens=2048, global_batch=128)
    long = plan_of(A100S, model + pinned(pipeline_parallel=16))
    short = plan_of(A100S, model + pinned(pipeline_parallel=8, tensor_parallel=2))
    free = plan_of(A100S, model)
    assert layer_counts(short) == [5] * 8
    assert short.prediction.step_time_s < long.prediction.step_time_s
    assert free.prediction.step_time_s < short.prediction.step_time_s


# ---- A3: github.com/deepspeedai/DeepSpeed/pull/4312 ------------------------------------------------------------------


def test_a3_no_stage_is_empty_although_the_maximum_would_allow_it() -> None:
    # five equal layers: 2, 2, 1, 0 has the least maximum too, but an empty stage cannot train
    plan = plan_of(chips(4), equal_layers(5) + pinned(pipeline_parallel=4))
    assert sorted(len(stage.layers) for stage in stages_of(plan)) == [1, 1, 1, 2]
    assert plan.certificate.plan_space["stages_per_group"] == "any number that the chips allow, none empty"


def test_a3_an_empty_stage_is_refused_wherever_it_comes_from() -> None:
    text = refusal(lambda: plan_of(chips(4), equal_layers(5) + pinned(layers_per_stage=[2, 2, 1, 0])))
    assert "constraints.layers_per_stage[3]: '0' is too small" in text
    document = plan_of(chips(4), equal_layers(5) + pinned(pipeline_parallel=4)).model_dump(mode="json")
    document["islands"][0]["pipelines"][0]["stages"][3]["layers"] = []
    with pytest.raises(ValidationError, match="at least 1 item"):
        Plan.model_validate(document)


# ---- A4: github.com/deepspeedai/DeepSpeed/pull/4053, /pull/3159 ------------------------------------------------------


def test_a4_the_remainder_is_spread_and_not_left_to_the_last_stage() -> None:
    model = equal_layers(38, global_batch=256)
    spread = plan_of(chips(8), model + pinned(pipeline_parallel=8))
    assert max(len(stage.layers) for stage in stages_of(spread)) == 5
    # 4, 4, 4, 4, 4, 4, 4, 10: (38 + 255 x 10) / (38 + 255 x 5) = 1.97 times as long
    dumped = plan_of(chips(8), model + pinned(pipeline_parallel=8, layers_per_stage=[4] * 7 + [10]))
    assert dumped.prediction.step_time_s / spread.prediction.step_time_s == pytest.approx(2588 / 1313, rel=0.02)


def test_a4_sixty_five_billion_on_twelve_stages_is_not_six_a_stage_and_seventeen() -> None:
    # 80 layers, embedding, norm and head: 83 = 11 x 6 + 17
    plan = plan_of(chips(12), equal_layers(83) + pinned(pipeline_parallel=12))
    assert max(len(stage.layers) for stage in stages_of(plan)) == 7


# ---- A5: github.com/NVIDIA-NeMo/Megatron-Bridge/pull/5551, github.com/modelscope/ms-swift/issues/5737 ----------------


@pytest.mark.parametrize(
    ("name", "stages", "expert", "published"),
    [
        # the graph counts embedding, norm, head and one prediction layer too: one more in front, three at the end
        ("glm-4.5", 8, 16, [11, 12, 12, 12, 12, 12, 12, 13]),
        ("glm-4.5-air", 4, 16, [12, 12, 12, 14]),
    ],
)
def test_a5_glm_is_split_at_least_as_well_as_its_recipe(
    name: str, stages: int, expert: int, published: list[int]
) -> None:
    cluster = on(H100S, nodes=2 * stages)
    model = preset(name, 4096, global_batch=512, recompute="[full]", expert_parallel=[expert])
    degrees = {"tensor_parallel": 8, "pipeline_parallel": stages, "data_parallel": 2}
    plan = plan_of(cluster, model + pinned(**degrees))
    recipe = plan_of(cluster, model + pinned(**degrees, layers_per_stage=published))
    counts = {8: [10, 12, 12, 12, 12, 12, 12, 10], 4: [11, 12, 12, 11]}
    assert layer_counts(recipe) == counts[stages]
    assert plan.prediction.step_time_s <= recipe.prediction.step_time_s


def test_a5_experts_that_do_not_fit_a_stage_are_refused_by_name() -> None:
    # 32 chips / 4 stages = 8 chips a stage: 16 experts' places do not fit; with 64 chips they do
    model = preset(
        "glm-4.5-air", 4096, global_batch=16, micro_batch_sizes=[2], recompute="[full]", expert_parallel=[16]
    )
    degrees = {"tensor_parallel": 8, "pipeline_parallel": 4}
    text = refusal(lambda: plan_of(on(H100S, nodes=4), model + pinned(**degrees)))
    assert "training.expert_parallel: expert_parallel 16 with tensor_parallel 8 needs a multiple of 2 replicas" in text
    plan = plan_of(on(H100S, nodes=8), model + pinned(**degrees, data_parallel=2))
    assert {stage.expert_parallel for stage in stages_of(plan)} == {16}


# ---- A6: github.com/vllm-project/vllm/pull/46217 ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ample", "scarce"),
    [("deepseek-v3", "8 TiB", "3200 GiB"), ("qwen3-235b-a22b", "8 TiB", "1100 GiB")],
)
def test_a6_the_split_changes_with_memory(name: str, ample: str, scarce: str) -> None:
    model = preset(name, 4096, expert_parallel=[1]) + pinned(pipeline_parallel=4)
    wide = plan_of(FOUR_LARGE_CHIPS.replace("MEMORY", ample), model)
    narrow = plan_of(FOUR_LARGE_CHIPS.replace("MEMORY", scarce), model)
    assert layer_counts(wide) != layer_counts(narrow)
    assert wide.prediction.step_time_s < narrow.prediction.step_time_s
    # in training the head is work: with room for it, the last stage still holds the fewest layers
    assert layer_counts(wide)[-1] == min(layer_counts(wide))
    # what binds is told: stages of the ample split would not fit, those of the other are marked
    limit = stages_of(narrow)[0].memory.usable_bytes / 2**30
    assert max(map(peak_gib, stages_of(wide))) > limit
    assert any(notice.code == "tight" for notice in narrow.warnings)
    assert not any(notice.code == "tight" for notice in wide.warnings)


# ---- A7: github.com/radixark/miles/pull/1102, github.com/NovaSky-AI/SkyRL/pull/1000 ----------------------------------


def test_a7_four_key_value_heads_do_not_split_over_eight_chips() -> None:
    cluster = on(H100S, nodes=4)
    text = refusal(lambda: plan_of(cluster, preset("qwen3-235b-a22b", 4096) + pinned(tensor_parallel=8)))
    assert "constraints.tensor_parallel: tensor_parallel 8 does not divide num_key_value_heads 4" in text


def test_a7_a_split_that_does_not_add_up_is_refused_with_both_numbers() -> None:
    # 16, 16, 16, 13 are 61 layers; embedding in front, norm and head behind: 17, 16, 16, 15 = 64
    model = gpt(61, 512, 512, heads=8)
    plan = plan_of(chips(4), model + pinned(layers_per_stage=[17, 16, 16, 15], pipeline_parallel=4))
    assert layer_counts(plan) == [16, 16, 16, 13]
    text = refusal(lambda: plan_of(chips(4), model + pinned(layers_per_stage=[17, 16, 16, 18])))
    assert "constraints.layers_per_stage: [17, 16, 16, 18] sums to 67, the model has 64 layers" in text


# ---- A8: github.com/NVIDIA/Megatron-LM/issues/1778 -------------------------------------------------------------------


def test_a8_one_stage_holds_the_whole_model_and_never_beats_the_peak() -> None:
    # 20 layers of which the thread's run had one, and a rate of 20
    plan = plan_of(chips(1), gpt(20, 512, 512, heads=8))
    assert layer_counts(plan) == [20]
    assert plan.prediction.mfu is not None and plan.prediction.mfu < 1
    document = plan.model_dump(mode="json")
    document["islands"][0]["pipelines"][0]["stages"][0]["layers"] = ["embedding", "layers.0", "norm", "head"]
    found = [violation.message for violation in check_plan(Plan.model_validate(document))]
    assert any(text.startswith("4 layers are placed of 23; missing: layers.1, layers.2, ") for text in found)

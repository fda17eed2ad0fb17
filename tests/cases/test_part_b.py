"""Public cases, part B: first and last stage, logits, activations (docs/public-cases.md)."""

from __future__ import annotations

import pytest

from planner.cost.tables import Mode, Setting
from planner.errors import InfeasibleError
from tests.cases.given import (
    GIB,
    chips,
    config_graph,
    cost_of,
    gpt,
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

V100S, H20 = on("nvidia-v100-32gb-sxm", nodes=11, chips_per_node=4), on("nvidia-h20-96gb-sxm")
BLOOM_CHIP = "nvidia-a100-80gb-sxm"


# ---- B1: github.com/deepspeedai/DeepSpeed/issues/1378 ----------------------------------------------------------------


def tied_gpt(layers: int) -> str:
    """The thread's state, 4,660 MB in the middle and 2,164 MB more in front, is a vocabulary of 0.464 layers: V / 12 h,
    that is h = 9,035 for 50,304. 9,216 on four chips makes 18 bytes x 12 h^2 / 4 = 4,374 MiB a layer."""
    return gpt(
        layers, 9216, 50257, heads=72, tokens=2048, micro_batch_sizes=[2], recompute="[full]", precision="fp16", zero=0
    )


def test_b1_both_ends_need_a_third_more_than_the_middle() -> None:
    split = [2, 1, 1, 1, 1, 1, 1, 3]  # one layer a stage; the embedding in front, norm and head behind
    model = tied_gpt(8).replace("zero: 0", "zero: 0, attention: math")
    plan = plan_of(V100S, model + pinned(tensor_parallel=4, layers_per_stage=split))
    assert layer_counts(plan) == [1] * 8
    peaks = [peak_gib(stage) for stage in stages_of(plan)]
    # measured: 10,824 and 10,981 MB against 8,041: 1.35 and 1.37
    assert 1.25 < peaks[0] / peaks[3] < 1.45
    assert 1.25 < peaks[-1] / peaks[3] < 1.45
    # measured state: 6,824, 4,660 and 7,126 MB
    states = [state_gib(stage) * 1024 for stage in stages_of(plan)]
    assert states[0] == pytest.approx(6824, rel=0.05)
    assert states[3] == pytest.approx(4660, rel=0.10)
    assert states[-1] == pytest.approx(7126, rel=0.15)


def test_b1_a_tied_matrix_counts_on_both_ends_and_its_gradient_is_reduced_between_them() -> None:
    # github.com/NVIDIA/Megatron-LM/issues/299; 50,257 padded to 50,688 x 9,216 x 18 bytes / 4 chips = 1.96 GiB
    plan = plan_of(V100S, tied_gpt(8) + pinned(tensor_parallel=4, layers_per_stage=[1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]))
    first, middle, *_, last = stages_of(plan)
    assert plan.tied_layers == (("embedding", "head"),)
    assert state_gib(last) == pytest.approx(50688 * 9216 * 18 / 4 / GIB, rel=0.001)
    assert state_gib(first) - state_gib(last) == pytest.approx(2048 * 9216 * 18 / GIB, rel=0.001)  # positions, whole
    assert min(first.time.reduction_s, last.time.reduction_s) > 0 == middle.time.reduction_s


def test_b1_embedding_and_head_may_have_stages_of_their_own() -> None:
    split = [1, 1, 1, 1, 1, 1, 1, 1, 1, 2]
    plan = plan_of(V100S, tied_gpt(8) + pinned(tensor_parallel=4, layers_per_stage=split))
    assert layer_counts(plan) == [0, 1, 1, 1, 1, 1, 1, 1, 1, 0]
    peaks = [peak_gib(stage) for stage in stages_of(plan)]
    assert max(peaks) == max(peaks[1:-1])


# ---- B2: github.com/bigscience-workshop/Megatron-DeepSpeed/issues/186, /issues/166, /pull/256 ------------------------


def bloom(global_batch: int, **pins: object) -> str:
    fields = {"global_batch": global_batch, "micro_batch_sizes": [2], "recompute": "[full]", "attention": "math"}
    model = preset("bloom-176b", 2048, **fields, sequence_parallel="false")
    return model + pinned(tensor_parallel=4, pipeline_parallel=12, data_parallel=8, **pins)


def test_b2_a_vocabulary_of_250_thousand_weighs_more_than_a_layer() -> None:
    # 250,880 / (12 x 14,336) = 1.46 layers; at 11,600 (the 104B model) 1.80
    for hidden, layers in ((14336, 1.46), (11600, 1.80)):
        sizes = {"n_embed": hidden, "n_head": 112, "head_dim": 128, "n_layer": 1, "vocab_size": 250880}
        graph = config_graph({"model_type": "bloom", **sizes})
        table = next(w.parameters for w in graph.layers[0].weights if w.name == "embedding")
        assert table / (12 * hidden**2) == pytest.approx(layers, abs=0.005)


def test_b2_bloom_has_five_layers_on_either_end_when_memory_is_scarce() -> None:
    # 40.2 GiB with five layers in front, 45.8 GiB with six; the head's matmul keeps the last stage short anyway
    scarce = plan_of(on(BLOOM_CHIP, nodes=48, reserve="38 GiB"), bloom(2048))
    assert layer_counts(scarce) == [5, 6, 6, 6, 6, 6, 6, 6, 6, 6, 6, 5]
    assert scarce.pipelines[0].micro_batches == 128
    ample = plan_of(on(BLOOM_CHIP, nodes=48), bloom(2048), gap=0.001)
    assert layer_counts(ample)[-1] <= 5
    assert ample.prediction.step_time_s <= scarce.prediction.step_time_s


def test_b2_bloom_s_first_stage_adds_up() -> None:
    # a layer: 12 h^2 + 13 h; the table: 250,880 h, its norm 2 h; 4 chips; 2 + 4 + 12/8 bytes a parameter
    hidden = 14336
    plan = plan_of(on(BLOOM_CHIP, nodes=48), bloom(2048, layers_per_stage=[6] * 11 + [7]))
    first = stages_of(plan)[0]
    parameters = 5 * 12 * hidden**2 + 250880 * hidden
    assert state_gib(first) == pytest.approx(7.5 * parameters / 4 / GIB, rel=0.002)
    # full recompute keeps 2 s b h bytes a layer and micro-batch: twelve in flight, five layers
    inputs = 12 * 5 * 2 * 2048 * 2 * hidden
    assert first.memory.parts["activations"] == pytest.approx(inputs, rel=0.25)
    assert 60e9 / 1.6 < first.memory.peak_bytes < 60e9  # what was reported includes what the account does not hold


def test_b2_the_warm_up_batch_fills_twelve_stages_from_192_on() -> None:
    cluster = on(BLOOM_CHIP, nodes=48)
    assert warnings(plan_of(cluster, bloom(192)), "bubble") == []
    (text,) = warnings(plan_of(cluster, bloom(176)), "bubble")
    assert text.startswith("12 stages share 11 micro-batches")
    assert text.endswith("a global batch of 192 would fill it")


# ---- B3: github.com/ISEEKYAN/Megatron-LM/pull/132, github.com/NVIDIA-NeMo/Automodel/issues/3907 ----------------------


def test_b3_the_kind_of_loss_decides_the_last_stage_s_peak_and_is_told() -> None:
    # 8,192 tokens x 151,936 in fp32: 4.637 GiB, 1,024 tokens 0.580 GiB; the bf16 logits beside them are half of each
    peaks = {}
    for loss in ("plain", "chunked", "fused"):
        model = preset("qwen3-8b", 8192, loss=loss)
        cost = cost_of(on("nvidia-h100-80gb-sxm"), model)
        head = cost.breakdown(0, Mode(1), Setting(1, 1), cost.kind_counts(["head"], {}), in_flight=1)
        peaks[loss] = (head.memory.activations + head.memory.transient) / GIB
        assert f"the loss is computed as `{loss}` (training.loss)" in cost.notes
    hidden = 2 * 8192 * 4096 / GIB  # the working set that is left without logits
    assert peaks["plain"] - peaks["fused"] + hidden == pytest.approx(1.5 * 8192 * 151936 * 4 / GIB, abs=0.001)
    assert peaks["chunked"] - peaks["fused"] + hidden == pytest.approx(1.5 * 1024 * 151936 * 4 / GIB, abs=0.001)


def test_b3_the_default_loss_is_stated_in_the_plan() -> None:
    plan = plan_of(chips(1), gpt(4, 512, 512, heads=8))
    assert "the loss is computed as `plain` (training.loss)" in plan.assumptions


# ---- B4: github.com/NVIDIA-NeMo/RL/issues/2859 -----------------------------------------------------------------------


def test_b4_the_peak_is_that_of_a_later_step_with_optimizer_states_and_fp32_logits() -> None:
    # AdamW: 12 bytes a parameter, there from the second step on; logits of 8,192 tokens x 50,304 in fp32: 1.5 GiB
    plan = plan_of(chips(1), gpt(4, 512, 50257, heads=8, tokens=8192))
    (stage,) = stages_of(plan)
    parts = stage.memory.parts
    assert parts["optimizer"] == pytest.approx(6 * parts["weights"])
    assert parts["activations"] > 8192 * 50304 * 4
    assert stage.memory.peak_bytes == sum(parts.values())


# ---- B5: github.com/VITA-MLLM/Long-VITA/issues/7 ---------------------------------------------------------------------

QWEN_14B = """
model:
  dimensions: {model_type: qwen2, num_hidden_layers: 48, hidden_size: 5120, num_attention_heads: 40,
               num_key_value_heads: 8, intermediate_size: 13824, vocab_size: 152064}
training: {sequence_length: TOKENS, global_batch: 8, micro_batch_sizes: [1], attention: KERNEL}
"""


def qwen_14b(kernel: str, tokens: int = 32768) -> str:
    return QWEN_14B.replace("KERNEL", kernel).replace("TOKENS", str(tokens))


def one_layer_mib(kernel: str, tokens: int) -> float:
    """The peak of a single layer on four chips."""
    cost = cost_of(H20, qwen_14b(kernel, tokens))
    counts = cost.kind_counts(["layers.0"], {})
    return cost.breakdown(0, Mode(4), Setting(1, 1), counts, in_flight=1).memory.peak_bytes / 2**20


def test_b5_a_kernel_that_holds_scores_grows_as_measured_and_flash_grows_in_a_line() -> None:
    # measured 4,025.6, 12,110.4 and 43,931.1 MiB at 4,096, 8,192 and 16,384 tokens: a + b s + c s^2 with c = 2,608.5
    def square(values: list[float]) -> float:
        return (values[2] - 3 * values[1] + 2 * values[0]) / 6

    lengths = (4096, 8192, 16384)
    assert square([4025.6, 12110.4, 43931.1]) == pytest.approx(2608.5, abs=0.1)
    assert square([one_layer_mib("math", tokens) for tokens in lengths]) == pytest.approx(2608.5, rel=0.03)
    assert square([one_layer_mib("flash", tokens) for tokens in lengths]) == pytest.approx(0, abs=0.1)
    assert one_layer_mib("math", 32768) > 2608.5 * 64 * 0.97  # one layer at 32,768: about 160 GiB


def test_b5_flash_fits_and_math_is_proved_not_to_with_the_kernel_as_the_way_out() -> None:
    degrees = pinned(tensor_parallel=8, pipeline_parallel=1)
    plan = plan_of(H20, qwen_14b("flash") + degrees)
    assert "attention runs with a `flash` kernel (training.attention)" in plan.assumptions
    with pytest.raises(InfeasibleError, match=r"it fits with: attention: flash \(each verified by solving\)"):
        plan_of(H20, qwen_14b("math") + degrees)


# ---- B6: github.com/NVIDIA-NeMo/Megatron-Bridge/pull/3107 ------------------------------------------------------------


def test_b6_a_borderline_fit_is_marked_and_not_just_called_a_fit() -> None:
    # 70B in fp8 on 4 x 8 chips, tensor 4, 4 stages, 2 replicas: the thread's runs failed more often than not
    model = preset("llama-3-70b", 4096, global_batch=128, precision="fp8", recompute="[none]")
    degrees = {"tensor_parallel": 4, "pipeline_parallel": 4, "data_parallel": 2}
    plan = plan_of(on("nvidia-h100-80gb-sxm", nodes=4), model + pinned(**degrees))
    full = [i for i, s in enumerate(stages_of(plan)) if s.memory.peak_bytes > 0.9 * s.memory.usable_bytes]
    assert 0 in full
    marked = warnings(plan, "tight")
    assert [int(text.split()[1]) for text in marked] == full
    assert "stage 0 on all is tight: " in marked[0] and marked[0].endswith(" % of its usable memory is left")


def test_b6_interleaved_schedules_are_refused_by_name_until_they_can_be_planned() -> None:
    model = preset("llama-3-70b", 4096, schedules="[interleaved_1f1b]")
    text = refusal(lambda: plan_of(on("nvidia-h100-80gb-sxm", nodes=4), model))
    assert "training.schedules[0]: schedule 'interleaved_1f1b' cannot be planned yet" in text

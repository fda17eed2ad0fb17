"""Public cases, part F: model configurations that people really feed (docs/public-cases.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from planner.graph.limits import tensor_parallel_refusal
from planner.graph.presets import PRESETS
from tests.cases.given import LLAMA, config_graph, layer_counts, on, pinned, plan_of, refusal, stages_of

if TYPE_CHECKING:
    from planner.graph import LayerGraph


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def query_key_value(graph: LayerGraph) -> int:
    """Weights and biases of the first layer's fused projection."""
    layer = next(layer for layer in graph.layers if layer.name == "layers.0")
    return sum(w.parameters for w in layer.weights if w.name.startswith("attention_query_key_value"))


def core_flops(graph: LayerGraph) -> list[float]:
    """Work of each layer's attention core."""
    return [
        sum(op.flops for op in layer.operations if op.operation_class == "attention")
        for layer in graph.layers
        if layer.name.startswith("layers.")
    ]


# ---- F1: IINemo/lm-polygraph/pull/435, alvarobartt/hf-mem/pull/26, huggingface/transformers/issues/37515, -----------
# ----     vllm-project/vllm-omni/issues/4298 (all on github.com) ------------------------------------------------------


@pytest.mark.parametrize("path", ["text_config", "language_config", "llm_config", "thinker_config.text_config"])
def test_f1_the_language_model_is_found_where_it_is_nested_and_the_tower_is_not_planned(path: str) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(path.split(".")):
        config = {key: config, "model_type": "seer"}
    graph = config_graph({**config, "vision_config": {"hidden_size": 32}})
    assert graph.parameters == config_graph(LLAMA).parameters
    assert f"the language model is read from {path}" in graph.notes
    assert "the vision tower (vision_config) is not planned and takes no memory in this plan" in graph.notes


def test_f1_a_nested_configuration_that_omits_class_defaults_is_refused_and_not_filled_in() -> None:
    # llava-1.5's file holds the vocabulary and leaves the sizes to the class
    nested = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}}
    text = refusal(lambda: config_graph(nested))
    for name in ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size"):
        assert f"config.text_config.{name}: is absent" in text


# ---- F2: huggingface/candle/issues/2358, EleutherAI/gpt-neox/issues/1434, MiniMax-AI/MiniMax-01/issues/29, ----------
# ----     HabanaAI/vllm-fork/pull/1294 (all on github.com) ------------------------------------------------------------


def test_f2_mistral_nemo_has_heads_of_128_and_12_2_billion_parameters() -> None:
    # 32 query and 8 key/value heads of 128 in a hidden size of 5,120; 5,120 / 32 = 160 would make 12.7 billion
    graph = config_graph(PRESETS["mistral-nemo-12b"])
    assert query_key_value(graph) == 5120 * (32 + 2 * 8) * 128
    assert graph.parameters == 12_247_782_400


def test_f2_the_smallest_gemma_has_heads_wider_than_its_share() -> None:
    # hidden 640, 4 heads of 256: 1,024 wide queries, not 640
    config = {"model_type": "gemma3_text", "hidden_size": 640, "num_attention_heads": 4, "num_key_value_heads": 1}
    config |= {"head_dim": 256, "num_hidden_layers": 18, "intermediate_size": 2048, "vocab_size": 262144}
    graph = config_graph(config)
    assert query_key_value(graph) == 640 * (4 + 2) * 256
    assert graph.parameters == 268_098_176


def test_f2_a_null_head_width_is_hidden_over_heads_and_one_that_does_not_divide_is_refused() -> None:
    assert query_key_value(config_graph({**LLAMA, "head_dim": None})) == query_key_value(config_graph(LLAMA))
    text = refusal(lambda: config_graph({**LLAMA, "num_attention_heads": 6}))
    assert "config.hidden_size: 64 does not divide by 6 heads; the file gives no head_dim of its own" in text


def test_f2_an_architecture_that_nobody_describes_is_refused_by_name() -> None:
    # MiniMax-01: 64 heads of 128 in 6,144, and attention of another kind
    minimax = {"model_type": "minimax_text_01", "hidden_size": 6144, "num_attention_heads": 64, "head_dim": 128}
    assert "config.model_type: the architecture 'minimax_text_01' is not known" in refusal(
        lambda: config_graph(minimax)
    )


# ---- F3: nod-ai/AMD-SHARK-ModelDev/pull/388, lablup/mlxcel/pull/926, huggingface/transformers/pull/24523, -----------
# ----     huggingface/optimum/pull/1825 (all on github.com) -----------------------------------------------------------


def test_f3_null_or_absent_key_value_heads_are_as_many_as_query_heads() -> None:
    # 4 + 4 + 4 heads of 16
    assert query_key_value(config_graph({**LLAMA, "num_key_value_heads": None})) == 64 * 12 * 16
    assert query_key_value(config_graph(without(LLAMA, "num_key_value_heads"))) == 64 * 12 * 16


def test_f3_multi_query_is_one_key_value_head_under_gpt_bigcode_s_names() -> None:
    # 16 heads of 128 and two more: a fused width of 2,304 = 2,048 + 2 x 128; n_inner null is 4 x n_embd
    config = {"model_type": "gpt_bigcode", "n_embd": 2048, "n_layer": 1, "n_head": 16, "n_inner": None}
    config |= {"n_positions": 1024, "vocab_size": 1000, "multi_query": True}
    graph = config_graph(config)
    assert query_key_value(graph) == 2048 * 2304 + 2304
    assert next(w.parameters for w in graph.layers[1].weights if w.name == "mlp_up") == 2048 * 8192


def test_f3_falcon_goes_by_its_architecture_flag() -> None:
    config = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"vocab_size": 1000, "num_kv_heads": 2, "multi_query": True}
    old = config_graph({**config, "new_decoder_architecture": False})
    new = config_graph({**config, "new_decoder_architecture": True})
    renamed = config_graph({**without(config, "num_kv_heads"), "n_head_kv": 2, "new_decoder_architecture": True})
    assert query_key_value(old) == 64 * (4 + 2 * 1) * 16
    assert query_key_value(new) == query_key_value(renamed) == 64 * (4 + 2 * 2) * 16


def test_f3_seventy_one_heads_split_over_no_group_of_chips() -> None:
    graph = config_graph(PRESETS["falcon-7b"])
    refused = [degree for degree in range(2, 9) if tensor_parallel_refusal(graph, degree)]
    assert refused == [2, 3, 4, 5, 6, 7, 8]
    # 71 ways would leave 70 chips without the one key/value head, which is not kept twice
    assert tensor_parallel_refusal(graph, 71) == "tensor_parallel 71 does not divide num_key_value_heads 1"


@pytest.mark.parametrize("model_type", ["qwen", None])
def test_f3_an_unknown_family_with_familiar_keys_is_refused_and_not_taken_for_a_llama(model_type: str | None) -> None:
    config = {
        "model_type": model_type,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 4,
        "vocab_size": 1000,
        "multi_query": True,
    }
    assert "config.model_type: " in refusal(lambda: config_graph(config))


# ---- F4: meta-llama/llama3/issues/299, huggingface/transformers/issues/32166, vllm-project/vllm/pull/28542, ---------
# ----     keras-team/keras-hub/issues/2729, microsoft/onnxruntime-genai/pull/2609, lightseekorg/tokenspeed/pull/484 ---


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": None},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
        },
        {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn"}, "sliding_attention": {"rope_type": "default"}}},
        {"rope_theta": 10000},
    ],
)
def test_f4_rotary_settings_change_nothing_in_whatever_form_they_come(rope: dict[str, Any]) -> None:
    graph = config_graph({**LLAMA, **rope})
    assert graph.layers == config_graph(LLAMA).layers
    assert graph.notes == ()


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["bfloat16", "torch.bfloat16", "auto", None])
def test_f4_a_stored_type_that_agrees_or_is_open_passes_in_silence(name: str, value: str | None) -> None:
    assert config_graph({**LLAMA, name: value}).notes == ()


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
@pytest.mark.parametrize("value", ["float16", "torch.float16"])
def test_f4_training_runs_in_what_the_model_file_says_and_a_conflict_is_told(name: str, value: str) -> None:
    graph = config_graph({**LLAMA, name: value}, precision="bf16")
    text = "the configuration stores weights as float16; training runs in bf16 (training.precision)"
    assert graph.notes == (text,)
    assert graph.layers == config_graph(LLAMA).layers


# ---- F5: ikawrakow/ik_llama.cpp/pull/377, ggml-org/llama.cpp/issues/12654, facebookresearch/fairseq2/pull/1516, -----
# ----     vllm-project/vllm/pull/35396 (all on github.com) ------------------------------------------------------------


def test_f5_larger_first_layers_take_fewer_of_them_to_the_first_chip() -> None:
    # as in the 49B model: the first ten of twenty layers have an MLP four times as wide; two chips of 24 GB
    sizes = "num_hidden_layers: 20, hidden_size: 2048, num_attention_heads: 16, vocab_size: 1024"
    widths = [16384] * 10 + [4096] * 10
    dimensions = f"model: {{dimensions: {{{sizes}, intermediate_size: {widths}}}}}\n"
    model = dimensions + "training: {sequence_length: 1024, global_batch: 64, micro_batch_sizes: [1]}\n"
    cluster = on("nvidia-rtx-3090-24gb", chips_per_node=2)
    plan = plan_of(cluster, model + pinned(pipeline_parallel=2))
    # 117.4 and 41.9 million parameters a layer, 18 bytes each: ten of the large ones alone are 19.7 of 22.6 GiB
    first, second = layer_counts(plan)
    assert first < 10 < second
    weights = [stage.memory.parts["weights"] for stage in stages_of(plan)]
    assert max(weights) < 1.25 * min(weights)


@pytest.mark.parametrize("name", ["num_attention_heads", "num_key_value_heads", "intermediate_size"])
def test_f5_a_list_has_one_entry_a_layer(name: str) -> None:
    text = refusal(lambda: config_graph({**LLAMA, name: [4, 4, 4]}))
    assert f"config.{name}: has 3 entries; the model has 4 layers (num_hidden_layers)" in text
    assert config_graph({**LLAMA, name: [4, 4, 4, 4]}).parameters > 0


def test_f5_a_layer_without_attention_is_refused_by_its_place() -> None:
    # 162 layers, 128 heads or none: the list says so, and no family here has such layers
    text = refusal(lambda: config_graph({**LLAMA, "num_attention_heads": [4, 0, 4, 0]}))
    assert "config.num_attention_heads[1]: is 0" in text
    assert "config.num_attention_heads[3]: is 0" in text


@pytest.mark.parametrize(
    ("model_type", "field"),
    [
        ("nemotron-nas", {"block_configs": [{"attention": {"no_op": True}}]}),
        ("nemotron_h", {"hybrid_override_pattern": "MEM*" * 13}),
        ("bamba", {"layers_block_type": ["mamba", "attention"]}),
    ],
)
def test_f5_layers_of_other_kinds_are_refused_by_the_field_that_has_them(model_type: str, field: Any) -> None:
    text = refusal(lambda: config_graph({**LLAMA, "model_type": model_type, **field}))
    assert f"config.{next(iter(field))}: describes layers that no architecture here has ({model_type!r})" in text


# ---- F6: Blackwellboy/model-serving-minefield/issues/107, vllm-project/vllm/pull/33521, ----------------------------
# ----     sgl-project/sglang/pull/22529 (all on github.com) -----------------------------------------------------------


def test_f6_a_window_without_its_switch_is_void_and_makes_nothing_cheaper() -> None:
    config = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 30}
    full = core_flops(config_graph(config))
    assert core_flops(config_graph({**config, "sliding_window": 64})) == full
    switched = core_flops(config_graph({**config, "sliding_window": 64, "use_sliding_window": True}))
    # layers from max_window_layers on slide: 28 where the file has none
    assert switched[:28] == full[:28]
    assert max(switched[28:]) < min(full)


def test_f6_twenty_seven_of_thirty_six_layers_slide_as_the_list_says() -> None:
    types = (["sliding_attention"] * 3 + ["full_attention"]) * 9
    config = {**LLAMA, "model_type": "mistral", "num_hidden_layers": 36, "sliding_window": 64, "layer_types": types}
    graph = config_graph(config)
    work = core_flops(graph)
    assert sum(flops < max(work) for flops in work) == 27
    # s w - w^2 / 2 pairs of s^2 / 2: 512 x 64 - 2,048 of 131,072
    assert min(work) / max(work) == pytest.approx((512 * 64 - 64**2 / 2) / (512**2 / 2))
    assert graph.parameters == config_graph(without(config, "sliding_window", "layer_types")).parameters
    text = refusal(lambda: config_graph({**config, "layer_types": types[:-1]}))
    assert "config.layer_types: has 35 entries; the model has 36 layers (num_hidden_layers)" in text


def test_f6_a_list_of_windows_repeats_over_the_layers_or_is_refused() -> None:
    config = {**LLAMA, "model_type": "mistral"}
    work = core_flops(config_graph({**config, "sliding_window": [64, None]}))
    assert [flops < max(work) for flops in work] == [True, False, True, False]
    text = refusal(lambda: config_graph({**config, "sliding_window": [64, None, 64]}))
    assert "config.sliding_window: has 3 entries" in text


def test_f6_a_window_as_long_as_the_sequence_slides_nowhere() -> None:
    # Gemma 2: every other layer sees 4,096 tokens; of a sequence of 4,096 that is all
    assert len(set(core_flops(config_graph(PRESETS["gemma-2-2b"], sequence_length=4096)))) == 1
    assert len(set(core_flops(config_graph(PRESETS["gemma-2-2b"], sequence_length=8192)))) == 2

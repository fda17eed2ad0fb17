"""Configurations as people really write them: what is read, what is refused and how."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from planner.errors import InputError
from planner.graph.architectures import known_model_types
from planner.graph.presets import PRESETS

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.graph import LayerGraph
    from tests.graph.conftest import GraphOf

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 96,
    "vocab_size": 1000,
}


def without(config: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in config.items() if name not in names}


def refusal(build: Callable[[], object]) -> str:
    with pytest.raises(InputError) as caught:
        build()
    return caught.value.render()


def query_key_value(graph: LayerGraph, layer: str = "layers.0") -> int:
    found = next(x for x in graph.layers if x.name == layer)
    return sum(w.parameters for w in found.weights if w.name.startswith("attention_query_key_value"))


def local_layers(graph: LayerGraph) -> list[int]:
    """Numbers of the layers whose attention core costs less than the dearest."""
    cost = {
        int(layer.name.split(".")[1]): sum(op.flops for op in layer.operations if op.operation_class == "attention")
        for layer in graph.layers
        if layer.name.startswith("layers.")
    }
    return [i for i, flops in cost.items() if flops < max(cost.values())]


# --- the family -----------------------------------------------------------------------------------------------------


def test_an_unknown_architecture_is_refused_by_name(graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({**LLAMA, "model_type": "lama"}))
    assert "config.model_type: the architecture 'lama' is not known" in text
    assert "did you mean 'llama'?" in text
    assert "explicit graph" in text


def test_an_absent_architecture_is_refused_and_never_taken_for_a_llama(graph_of: GraphOf) -> None:
    qwen1 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": 100, "multi_query": True}
    assert "config.model_type: is absent" in refusal(lambda: graph_of(qwen1))


def test_every_known_architecture_is_covered_by_a_preset_or_a_test_here() -> None:
    presets = {config["model_type"] for config in PRESETS.values()}
    here = {"RefinedWeb", "RefinedWebModel", "gemma", "gpt_bigcode", "kimi_k2", "mt5", "gemma3_text"}
    assert set(known_model_types()) == presets | here


@pytest.mark.parametrize(
    "extra",
    [
        {"block_configs": [{"attention": {"n_heads_in_group": 8}}]},
        {"hybrid_override_pattern": "M-M*-"},
        {"layers_block_type": ["mamba", "attention"]},
        {"mamba_d_state": 128},
        {"attention_chunk_size": 8192},
    ],
)
def test_layers_that_are_not_alike_in_ways_nobody_describes_here_are_refused(extra: Any, graph_of: GraphOf) -> None:
    for model_type in ("llama", "nemotron-nas"):
        text = refusal(lambda model_type=model_type: graph_of({**LLAMA, "model_type": model_type, **extra}))
        assert f"config.{next(iter(extra))}: describes layers that no architecture here has ('{model_type}')" in text


@pytest.mark.parametrize("extra", [{"num_experts": 8}, {"kv_lora_rank": 512}, {"num_nextn_predict_layers": 1}])
def test_a_field_that_changes_the_layers_is_never_passed_over(extra: dict[str, int], graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({**LLAMA, **extra}))
    assert f"config.{next(iter(extra))}: has no meaning for 'llama'" in text


def test_fields_without_effect_pass_and_unknown_ones_are_told(graph_of: GraphOf) -> None:
    assert graph_of({**LLAMA, "bos_token_id": 1, "use_cache": True, "initializer_range": 0.02}).notes == ()
    notes = graph_of({**LLAMA, "my_field": 3}).notes
    assert notes == ("fields of the configuration that were not used: my_field",)


# --- sizes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"]
)
def test_an_absent_size_is_refused_by_name(name: str, graph_of: GraphOf) -> None:
    assert f"config.{name}: is absent" in refusal(lambda: graph_of(without(LLAMA, name)))
    assert f"config.{name}: is null" in refusal(lambda: graph_of({**LLAMA, name: None}))


def test_every_absent_size_is_told_in_one_run(graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({"model_type": "llama"}))
    assert text.count("is absent") == 5


@pytest.mark.parametrize("value", ["64", 64.5, True, [64], {}, -64, 0, 10**40])
def test_a_size_that_is_no_whole_number_is_refused(value: Any, graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({**LLAMA, "hidden_size": value}))
    assert "config.hidden_size: " in text
    assert len(text) < 400


def test_an_absurd_number_of_layers_is_refused_before_they_are_built(graph_of: GraphOf) -> None:
    assert "no model has more than 10,000 layers" in refusal(lambda: graph_of({**LLAMA, "num_hidden_layers": 10**8}))


def test_the_width_of_a_head_is_its_own_number(graph_of: GraphOf) -> None:
    # 4 heads of 32 in a hidden size of 64; without the field, or with null, 64 / 4
    assert query_key_value(graph_of({**LLAMA, "head_dim": 32})) == 64 * (4 + 2 * 2) * 32
    assert query_key_value(graph_of({**LLAMA, "head_dim": None})) == 64 * (4 + 2 * 2) * 16
    assert query_key_value(graph_of(LLAMA)) == 64 * (4 + 2 * 2) * 16


def test_heads_that_do_not_divide_the_hidden_size_need_a_width(graph_of: GraphOf) -> None:
    odd = {**LLAMA, "num_attention_heads": 6, "num_key_value_heads": 6}
    assert "config.hidden_size: 64 does not divide by 6 heads" in refusal(lambda: graph_of(odd))
    assert query_key_value(graph_of({**odd, "head_dim": 16})) == 64 * 18 * 16


def test_absent_or_null_key_value_heads_are_as_many_as_query_heads(graph_of: GraphOf) -> None:
    assert query_key_value(graph_of(without(LLAMA, "num_key_value_heads"))) == 64 * 3 * 64
    assert query_key_value(graph_of({**LLAMA, "num_key_value_heads": None})) == 64 * 3 * 64


def test_key_value_heads_divide_query_heads(graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({**LLAMA, "num_key_value_heads": 3}))
    assert "config.num_key_value_heads: is 3" in text


def test_multi_query_means_one_key_value_head(graph_of: GraphOf) -> None:
    # 16 heads of 128: fused width 2304 = 2048 + 2 x 128; n_inner null is 4 x n_embd
    config = {"model_type": "gpt_bigcode", "n_embd": 2048, "n_layer": 1, "n_head": 16, "n_inner": None}
    config |= {"n_positions": 1024, "vocab_size": 100, "multi_query": True}
    graph = graph_of(config)
    assert query_key_value(graph) == 2048 * 2304 + 2304
    assert next(w.parameters for w in graph.layers[1].weights if w.name == "mlp_up") == 2048 * 8192
    assert query_key_value(graph_of({**config, "multi_query": False})) == 2048 * 6144 + 6144


def test_starcoder_has_its_published_count(graph_of: GraphOf) -> None:
    config = {"model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24576}
    assert graph_of({**config, "n_positions": 8192, "vocab_size": 49152}).parameters == 15_517_456_384


def test_falcon_follows_its_architecture_flag(graph_of: GraphOf) -> None:
    # the old decoder shares one key/value head, whatever num_kv_heads says; the new one ignores multi_query
    config = {"model_type": "falcon", "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    config |= {"vocab_size": 100, "num_kv_heads": 2, "multi_query": True}
    assert query_key_value(graph_of({**config, "new_decoder_architecture": False})) == 64 * (4 + 2) * 16
    assert query_key_value(graph_of({**config, "new_decoder_architecture": True})) == 64 * (4 + 4) * 16
    assert query_key_value(graph_of({**config, "multi_query": False})) == 64 * 12 * 16


def test_the_first_spelling_of_falcon_is_read(graph_of: GraphOf, preset_graph: GraphOf) -> None:
    # the released falcon-40b config.json of May 2023
    config = {"model_type": "RefinedWeb", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8}
    config |= {"vocab_size": 65024, "parallel_attn": True, "alibi": False, "bias": False}
    assert graph_of(config).parameters == preset_graph("falcon-40b").parameters


def test_kimi_k2_is_a_deepseek_v3_of_other_sizes(graph_of: GraphOf) -> None:
    config = PRESETS["deepseek-v3"] | {"model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64}
    config |= {"n_routed_experts": 384, "first_k_dense_replace": 1, "vocab_size": 163840, "num_nextn_predict_layers": 0}
    assert graph_of(config).parameters == 1_026_408_232_448


def test_gemma_1_ties_its_embedding_and_has_wide_heads(graph_of: GraphOf) -> None:
    # Gemma 2B: 2,506,172,416
    config = {"model_type": "gemma", "hidden_size": 2048, "num_hidden_layers": 18, "num_attention_heads": 8}
    config |= {"num_key_value_heads": 1, "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000}
    assert graph_of(config).parameters == 2_506_172_416


def test_mt5_is_a_gated_untied_t5(graph_of: GraphOf) -> None:
    # mT5-small: 300,176,768
    config = {"model_type": "mt5", "d_model": 512, "d_kv": 64, "d_ff": 1024, "num_layers": 8, "num_decoder_layers": 8}
    config |= {"num_heads": 6, "vocab_size": 250112, "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}
    assert graph_of(config).parameters == 300_176_768


# --- layer by layer -------------------------------------------------------------------------------------------------


def test_a_list_gives_each_layer_its_own_size(graph_of: GraphOf) -> None:
    graph = graph_of({**LLAMA, "intermediate_size": [96, 96, 32, 96]})
    assert [layer.parameters for layer in graph.layers][3] == graph.layers[1].parameters - 3 * 64 * 64
    assert [layer.kind for layer in graph.layers][1:5] == ["layer", "layer", "layer_2", "layer"]


@pytest.mark.parametrize("name", ["intermediate_size", "num_key_value_heads", "num_attention_heads"])
def test_a_list_of_the_wrong_length_is_refused_with_both_lengths(name: str, graph_of: GraphOf) -> None:
    text = refusal(lambda: graph_of({**LLAMA, name: [4, 4, 4]}))
    assert f"config.{name}: has 3 entries" in text
    assert "4 layers" in text


def test_a_degree_must_divide_the_heads_of_every_layer(graph_of: GraphOf) -> None:
    graph = graph_of({**LLAMA, "head_dim": 16, "num_attention_heads": [4, 4, 6, 4], "num_key_value_heads": 2})
    assert graph.num_heads == 2


def test_dense_layers_among_experts_come_from_the_file(graph_of: GraphOf) -> None:
    # every second layer has experts (1, 3, 5), layer 3 is taken out
    config = LLAMA | {"model_type": "qwen3_moe", "num_hidden_layers": 6, "num_experts": 4, "num_experts_per_tok": 2}
    config |= {"moe_intermediate_size": 32, "decoder_sparse_step": 2, "mlp_only_layers": [3]}
    kinds = [layer.kind for layer in graph_of(config).layers][1:7]
    assert kinds == ["layer", "layer_moe", "layer", "layer", "layer", "layer_moe"]


def test_more_experts_a_token_than_there_are_is_refused(graph_of: GraphOf) -> None:
    config = LLAMA | {"model_type": "mixtral", "num_local_experts": 2, "num_experts_per_tok": 4}
    assert "config.num_experts_per_tok: is 4; the model has 2 experts" in refusal(lambda: graph_of(config))


# --- sliding windows ------------------------------------------------------------------------------------------------


def test_layer_types_say_which_layers_slide(graph_of: GraphOf) -> None:
    types = ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention"]
    config = {**LLAMA, "model_type": "mistral", "sliding_window": 16, "layer_types": types}
    assert local_layers(graph_of(config)) == [0, 2, 3]
    assert graph_of(config).parameters == graph_of(without(config, "sliding_window", "layer_types")).parameters


def test_a_window_without_its_switch_makes_no_qwen_cheaper(graph_of: GraphOf) -> None:
    config = {**LLAMA, "model_type": "qwen2", "num_hidden_layers": 30, "sliding_window": 16}
    assert local_layers(graph_of(config)) == []
    assert local_layers(graph_of({**config, "use_sliding_window": False})) == []
    assert local_layers(graph_of({**config, "use_sliding_window": True})) == [28, 29]  # from max_window_layers, 28
    assert local_layers(graph_of({**config, "use_sliding_window": True, "max_window_layers": 29})) == [29]


def test_a_list_of_windows_repeats_over_the_layers(graph_of: GraphOf) -> None:
    config = {**LLAMA, "model_type": "mistral"}
    assert local_layers(graph_of({**config, "sliding_window": [16, None]})) == [0, 2]
    text = refusal(lambda: graph_of({**config, "sliding_window": [16, None, 16]}))
    assert "config.sliding_window: has 3 entries" in text
    assert "4 layers" in text


def test_layer_types_of_another_length_or_kind_are_refused(graph_of: GraphOf) -> None:
    short = {**LLAMA, "layer_types": ["full_attention"]}
    assert "config.layer_types: has 1 entries" in refusal(lambda: graph_of(short))
    linear = {**LLAMA, "layer_types": ["linear_attention"] * 4}
    assert "config.layer_types: has 'linear_attention'" in refusal(lambda: graph_of(linear))


# --- nested files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "keys", [("text_config",), ("language_config",), ("llm_config",), ("thinker_config", "text_config")]
)
def test_a_nested_language_model_is_read_and_told(keys: tuple[str, ...], graph_of: GraphOf) -> None:
    config: dict[str, Any] = LLAMA
    for key in reversed(keys):
        config = {key: config, "model_type": "some_vlm"}
    graph = graph_of({**config, "vision_config": {"model_type": "clip_vision_model", "hidden_size": 32}})
    assert graph.parameters == graph_of(LLAMA).parameters
    assert f"the language model is read from {'.'.join(keys)}" in graph.notes
    assert any("vision tower (vision_config) is not planned" in note for note in graph.notes)


def test_a_nested_file_that_leaves_out_class_defaults_is_refused(graph_of: GraphOf) -> None:
    llava = {"model_type": "llava", "text_config": {"model_type": "llama", "vocab_size": 32064}, "vision_config": {}}
    assert "config.text_config.hidden_size: is absent" in refusal(lambda: graph_of(llava))


def test_a_gemma_3_text_model_needs_no_nesting(graph_of: GraphOf) -> None:
    nested = PRESETS["gemma-3-27b"]["text_config"]
    flat = graph_of({**nested, "model_type": "gemma3"})
    assert flat.parameters == graph_of({"model_type": "gemma3", "text_config": nested}).parameters == 27_009_346_304


def test_the_outer_file_may_say_that_embeddings_are_tied(graph_of: GraphOf) -> None:
    graph = graph_of({"model_type": "some_vlm", "tie_word_embeddings": True, "text_config": LLAMA})
    assert graph.layers[-1].weights[0].tied_to == "embedding"


# --- keys that do not matter ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "extra",
    [
        {"rope_scaling": None},
        {"rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}},
        {"rope_parameters": {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_theta": 1e4}}},
        {"dtype": "bfloat16"},
        {"torch_dtype": "torch.bfloat16"},
        {"torch_dtype": "auto"},
        {"torch_dtype": None},
    ],
)
def test_rope_and_dtype_keys_of_any_form_change_nothing(extra: dict[str, Any], graph_of: GraphOf) -> None:
    graph, plain = graph_of({**LLAMA, **extra}), graph_of(LLAMA)
    assert graph.layers == plain.layers
    assert graph.notes == ()


@pytest.mark.parametrize("key", ["dtype", "torch_dtype"])
def test_a_stored_dtype_that_differs_from_the_training_precision_is_told(key: str, graph_of: GraphOf) -> None:
    notes = graph_of({**LLAMA, key: "torch.float16"}).notes
    assert notes == ("the configuration stores weights as float16; training runs in bf16 (training.precision)",)
    assert graph_of({**LLAMA, key: "float16"}, precision="fp16").notes == ()


def test_a_quantised_checkpoint_is_read_as_unquantised(graph_of: GraphOf) -> None:
    quantised = {**LLAMA, "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}
    assert graph_of(quantised).notes == (
        "quantization_config is ignored: the model is read as unquantised for training",
    )
    assert graph_of(quantised).parameters == graph_of(LLAMA).parameters


# --- sequence length ------------------------------------------------------------------------------------------------


def test_learned_positions_end_where_their_table_ends(preset_graph: GraphOf) -> None:
    text = refusal(lambda: preset_graph("gpt-2", sequence_length=2048))
    assert "training.sequence_length: is 2048; the model has learned positions for 1024 tokens" in text


def test_rotary_positions_beyond_the_files_promise_are_told(graph_of: GraphOf) -> None:
    config = {**LLAMA, "max_position_embeddings": 256}
    sentence = "sequence_length 512 is longer than the 256 tokens of max_position_embeddings"
    graph = graph_of(config)
    assert graph.notes == (sentence,)
    assert [notice.message for notice in graph.notices] == [sentence]
    assert graph_of({**LLAMA, "max_position_embeddings": 512}).notices == ()


# --- dimensions and presets -----------------------------------------------------------------------------------------


def test_dimensions_without_a_model_type_mean_a_llama(dimensions_graph: GraphOf, graph_of: GraphOf) -> None:
    assert dimensions_graph(without(LLAMA, "model_type")).layers == graph_of(LLAMA).layers


def test_dimensions_of_the_public_100b_shape(dimensions_graph: GraphOf, preset_graph: GraphOf) -> None:
    # 96 layers, hidden 8192, 64 heads, 8 key/value heads, FFN 36,864, vocabulary 103,168
    fields = {"num_hidden_layers": 96, "hidden_size": 8192, "num_attention_heads": 64, "num_key_value_heads": 8}
    fields |= {"intermediate_size": 36864, "vocab_size": 103168}
    graph = dimensions_graph(fields, sequence_length=4096)
    layer = 2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 36864 + 2 * 8192
    assert graph.parameters == 96 * layer + 2 * 103168 * 8192 + 8192 == 103_160_487_936
    assert graph.layers == preset_graph("h2-100b", sequence_length=4096).layers


def test_an_unknown_dimension_is_refused_with_the_closest_name(dimensions_graph: GraphOf) -> None:
    fields = {**without(LLAMA, "model_type"), "intermediate_sizes": 96, "colour": "red"}
    text = refusal(lambda: dimensions_graph(fields))
    assert "dimensions.intermediate_sizes: is not a known field" in text
    assert "did you mean 'intermediate_size'?" in text
    assert "dimensions.colour: is not a known field" in text


def test_a_misspelt_dimension_is_named_where_the_right_one_is_missed(dimensions_graph: GraphOf) -> None:
    fields = {**without(LLAMA, "model_type", "hidden_size"), "hiden_size": 64}
    assert "dimensions.hidden_size: is absent" in (text := refusal(lambda: dimensions_graph(fields)))
    assert "the file has 'hiden_size'" in text


def test_dimensions_may_name_another_family(dimensions_graph: GraphOf, preset_graph: GraphOf) -> None:
    fields = {
        "model_type": "gpt2",
        "n_embd": 768,
        "n_layer": 12,
        "n_head": 12,
        "n_positions": 1024,
        "vocab_size": 50257,
    }
    assert dimensions_graph(fields).layers == preset_graph("gpt-2").layers


def test_an_unknown_preset_is_refused_with_the_closest_name(preset_graph: GraphOf) -> None:
    text = refusal(lambda: preset_graph("llama-3-1-8b"))
    assert "'llama-3-1-8b' is no preset" in text
    assert "did you mean 'llama-3.1-8b'?" in text

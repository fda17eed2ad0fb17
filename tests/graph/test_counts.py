"""Parameter counts equal the published ones, to the unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from planner.graph.presets import PRESETS, preset, preset_names

if TYPE_CHECKING:
    from planner.graph import LayerGraph
    from tests.graph.conftest import GraphOf


def main_model(graph: LayerGraph) -> int:
    """Without prediction layers for later tokens, as published counts are."""
    return sum(layer.parameters for layer in graph.layers if not layer.name.startswith("mtp."))


def stored(graph: LayerGraph) -> int:
    """With every copy of a tied matrix, as a checkpoint with prediction layers stores them."""
    return sum(weight.parameters for layer in graph.layers for weight in layer.weights)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_has_exactly_the_parameters_it_cites(name: str, preset_graph: GraphOf) -> None:
    graph, known = preset_graph(name), preset(name)
    assert main_model(graph) == known["parameters"]
    assert graph.active_parameters == known.get("active_parameters", known["parameters"])


def test_every_preset_cites_its_source() -> None:
    assert all("configuration: " in preset(name)["source"] and "count: " in preset(name)["source"] for name in PRESETS)


def test_the_promised_presets_are_there() -> None:
    promised = [
        "gpt-3-175b",
        "llama-2-7b",
        "llama-2-13b",
        "llama-2-70b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.1-405b",
        "llama-3.2-1b",
        "mistral-7b",
        "mixtral-8x7b",
        "mixtral-8x22b",
        "qwen2.5-7b",
        "qwen2.5-72b",
        "qwen3-8b",
        "qwen3-32b",
        "qwen3-30b-a3b",
        "qwen3-235b-a22b",
        "gemma-2-9b",
        "gemma-2-27b",
        "gemma-3-27b",
        "phi-3-mini",
        "gpt-2",
        "gpt-neox-20b",
        "falcon-40b",
        "bloom-176b",
        "deepseek-v2",
        "deepseek-v3",
        "t5-11b",
        "h2-100b",
        "opt-350m",
    ]
    assert len(promised) >= 25
    assert set(promised) <= set(preset_names())


def test_all_reference_models_have_their_exact_count(reference_models: list[dict[str, Any]], graph_of: GraphOf) -> None:
    assert len(reference_models) == 58
    wrong = {}
    for row in reference_models:
        graph = graph_of(row["config"])
        count = main_model(graph)
        if row["name"] == "Gemma-3-27B":
            count += 423_060_336  # the vision tower and its projector, which the published total includes
        if count != row["parameters"]:
            wrong[row["name"]] = count - row["parameters"]
        if row["parameters_active"] is not None and graph.active_parameters != row["parameters_active"]:
            wrong[f"{row['name']} active"] = (graph.active_parameters or 0) - row["parameters_active"]
    assert wrong == {}


def test_a_vision_tower_is_counted_in_a_note_and_not_planned(preset_graph: GraphOf) -> None:
    graph = preset_graph("gemma-3-27b")
    assert any("vision tower" in note and "423,060,336 parameters" in note for note in graph.notes)
    assert graph.parameters == 27_009_346_304


def test_a_checkpoint_with_prediction_layers_holds_copies_of_embedding_and_head(preset_graph: GraphOf) -> None:
    # DeepSeek-R1's stored total; GLM-4.5's and GLM-4.5-Air's
    assert stored(preset_graph("deepseek-v3")) == 684_489_845_504
    assert stored(preset_graph("glm-4.5")) == 358_337_791_296
    assert stored(preset_graph("glm-4.5-air")) == 110_468_824_832


def test_a_head_tied_to_the_embedding_counts_once(graph_of: GraphOf) -> None:
    config = {"model_type": "llama", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config |= {"intermediate_size": 16, "vocab_size": 100}
    untied = graph_of({**config, "tie_word_embeddings": False})
    tied = graph_of({**config, "tie_word_embeddings": True})
    assert untied.parameters - tied.parameters == 100 * 8
    assert [w.tied_to for w in tied.layers[-1].weights] == ["embedding"]


def test_all_experts_are_resident_and_top_k_of_them_active(preset_graph: GraphOf) -> None:
    # Mixtral 8x7B: 32 layers x 8 experts x 3 x 4096 x 14336, of which a quarter works on a token
    graph = preset_graph("mixtral-8x7b")
    experts = 32 * 8 * 3 * 4096 * 14336
    assert graph.parameters == 46_702_792_704
    assert graph.active_parameters == graph.parameters - experts * 3 // 4
    assert graph.num_experts == 8

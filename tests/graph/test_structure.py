"""Names, order, edges and kinds of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from planner.graph.presets import preset_names

if TYPE_CHECKING:
    from planner.graph import LayerGraph
    from tests.graph.conftest import GraphOf


def names(graph: LayerGraph) -> list[str]:
    return [layer.name for layer in graph.layers]


def kinds(graph: LayerGraph) -> list[str]:
    return [layer.kind for layer in graph.layers]


def test_a_decoder_is_embedding_layers_norm_head(preset_graph: GraphOf) -> None:
    graph = preset_graph("gpt-2")
    assert names(graph) == ["embedding", *(f"layers.{i}" for i in range(12)), "norm", "head"]
    assert kinds(graph) == ["embedding", *["layer"] * 12, "norm", "head"]
    assert [(e.source, e.target) for e in graph.edges] == list(zip(names(graph), names(graph)[1:], strict=False))
    assert {e.elements for e in graph.edges} == {512 * 768}


def test_dense_and_routed_layers_are_two_kinds(preset_graph: GraphOf) -> None:
    # DeepSeek-V3: three dense layers, 58 with experts, one prediction layer in front of the head
    graph = preset_graph("deepseek-v3")
    expected = ["embedding", *["layer"] * 3, *["layer_moe"] * 58, "norm", "mtp", "head"]
    assert kinds(graph) == expected
    dense, routed = graph.layers[1].parameters, graph.layers[4].parameters
    assert routed > 15 * dense


def test_experts_in_every_layer_need_no_suffix(preset_graph: GraphOf) -> None:
    assert set(kinds(preset_graph("mixtral-8x7b"))) == {"embedding", "layer", "norm", "head"}


def test_gemma_2_alternates_and_gemma_3_has_five_local_layers_a_global_one(preset_graph: GraphOf) -> None:
    two = kinds(preset_graph("gemma-2-9b", sequence_length=8192))[1:-2]
    three = kinds(preset_graph("gemma-3-27b", sequence_length=8192))[1:-2]
    assert two == ["layer_local", "layer"] * 21
    assert three == (["layer_local"] * 5 + ["layer"]) * 10 + ["layer_local"] * 2


def test_a_window_as_long_as_the_sequence_makes_no_kind_of_its_own(preset_graph: GraphOf) -> None:
    assert set(kinds(preset_graph("gemma-2-9b", sequence_length=4096))) == {"embedding", "layer", "norm", "head"}


def test_layers_of_one_kind_are_equal_in_every_number(preset_graph: GraphOf) -> None:
    from dataclasses import replace

    for name in ("deepseek-v3", "gemma-3-27b", "t5-small", "gpt-oss-20b"):
        first = {}
        for layer in preset_graph(name, sequence_length=2048).layers:
            plain = replace(layer, name="", kind="")
            assert first.setdefault(layer.kind, plain) == plain
        assert len(set(map(repr, first.values()))) == len(first)


def test_an_encoder_feeds_every_decoder_layer(preset_graph: GraphOf) -> None:
    graph = preset_graph("t5-small")
    assert names(graph) == [
        "encoder.embedding",
        *(f"encoder.layers.{i}" for i in range(6)),
        "encoder.norm",
        "decoder.embedding",
        *(f"decoder.layers.{i}" for i in range(6)),
        "decoder.norm",
        "head",
    ]
    fed = [e.target for e in graph.edges if e.source == "encoder.norm"]
    assert fed == [f"decoder.layers.{i}" for i in range(6)]
    assert kinds(graph)[1:4] == ["encoder_layer_first", "encoder_layer", "encoder_layer"]


def test_a_cut_in_the_decoder_carries_the_encoder_output_too(preset_graph: GraphOf) -> None:
    # one tensor in the encoder; two from decoder.embedding on, until the last decoder layer has read the encoder's
    graph = preset_graph("t5-small", sequence_length=100)
    one = 100 * 512
    assert list(graph.boundary_elements()) == [one] * 8 + [2 * one] * 6 + [one, one]


def test_encoder_decoder_and_head_share_one_table(preset_graph: GraphOf) -> None:
    tied = {layer.name: [w.tied_to for w in layer.weights if w.vocabulary] for layer in preset_graph("t5-small").layers}
    assert tied["encoder.embedding"] == [None]
    assert tied["decoder.embedding"] == tied["head"] == ["encoder.embedding"]
    untied = {
        layer.name: [w.tied_to for w in layer.weights if w.vocabulary] for layer in preset_graph("flan-t5-xxl").layers
    }
    assert untied["head"] == [None]


def test_a_prediction_layer_reads_the_last_hidden_vector_and_copies_embedding_and_head(preset_graph: GraphOf) -> None:
    graph = preset_graph("deepseek-v3")
    assert [(e.source, e.target) for e in graph.edges[-3:]] == [
        ("layers.60", "norm"),
        ("norm", "mtp.0"),
        ("norm", "head"),
    ]
    layer = next(layer for layer in graph.layers if layer.name == "mtp.0")
    assert [w.tied_to for w in layer.weights if w.tied_to] == ["embedding", "head"]
    assert "softmax" in {tensor.name for tensor in layer.saved}


def test_learned_positions_belong_to_the_embedding(preset_graph: GraphOf) -> None:
    weights = {w.name: w.parameters for w in preset_graph("gpt-2").layers[0].weights}
    assert weights == {"embedding": 50257 * 768, "positions": 1024 * 768}


def test_a_narrow_token_table_is_projected_up_and_down(preset_graph: GraphOf) -> None:
    graph = preset_graph("opt-350m")
    assert {w.name: w.parameters for w in graph.layers[0].weights}["embedding_projection"] == 512 * 1024
    assert "norm" not in names(graph)


@pytest.mark.parametrize("name", preset_names())
def test_edges_point_forward_and_reach_every_layer(name: str, preset_graph: GraphOf) -> None:
    graph = preset_graph(name)
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    assert len(position) == len(graph.layers)
    assert all(position[edge.source] < position[edge.target] for edge in graph.edges)
    entries = {"embedding", "encoder.embedding", "decoder.embedding"}
    assert {edge.target for edge in graph.edges} | entries >= set(position)
    assert len(graph.boundary_elements()) == len(graph.layers) - 1
    assert all(elements > 0 for elements in graph.boundary_elements())


def test_weights_are_divided_by_what_they_are(preset_graph: GraphOf) -> None:
    sharding = {w.name: w.sharding for w in preset_graph("deepseek-v3").layers[4].weights}
    assert sharding["attention_norm"] == sharding["router"] == sharding["attention_key_value_down"] == "replicated"
    assert sharding["attention_query_up"] == sharding["shared_expert_down"] == "tensor"
    assert sharding["experts"] == "expert"


def test_a_balancing_bias_is_not_trained_by_the_gradient(preset_graph: GraphOf) -> None:
    trained = {w.name: w.trained for w in preset_graph("deepseek-v3").layers[4].weights}
    assert [name for name, value in trained.items() if not value] == ["router_balancing_bias"]

"""Layers that are not trained."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from planner.errors import InputError
from planner.graph import flops_per_token

if TYPE_CHECKING:
    from planner.graph import LayerGraph
    from tests.graph.conftest import GraphOf

CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4}
CONFIG |= {"intermediate_size": 96, "vocab_size": 1000}


def kinds(graph: LayerGraph) -> dict[str, str]:
    return {layer.name: layer.kind for layer in graph.layers}


def test_a_frozen_layer_passes_gradients_on_without_weight_gradients(graph_of: GraphOf) -> None:
    graph = graph_of(CONFIG, frozen=("layers.2",))
    layer = next(layer for layer in graph.layers if layer.name == "layers.2")
    assert not any(weight.trained for weight in layer.weights)
    assert {
        (op.weight_gradient, op.backward_flops_ratio) for op in layer.operations if op.operation_class == "matmul"
    } == {(False, 1.0)}
    assert layer.saved
    assert kinds(graph)["layers.2"] == "layer_frozen"
    assert kinds(graph)["layers.1"] == "layer"


def test_nothing_runs_backward_before_the_first_trained_layer(graph_of: GraphOf) -> None:
    graph = graph_of(CONFIG, frozen=("embedding", "layers.[01]"))
    for layer in graph.layers[:3]:
        assert layer.kind.endswith("_forward_only")
        assert layer.saved == ()
        assert {op.backward_flops_ratio for op in layer.operations} == {0.0}
        assert all(collective.backward == 0 for collective in layer.collectives)
    assert kinds(graph)["layers.2"] == "layer"


def test_a_tied_head_is_frozen_with_its_embedding(graph_of: GraphOf) -> None:
    graph = graph_of({**CONFIG, "tie_word_embeddings": True}, frozen=("embedding",))
    assert [weight.trained for weight in graph.layers[-1].weights] == [False]


def test_freezing_changes_no_parameter_count(graph_of: GraphOf) -> None:
    whole, frozen = graph_of(CONFIG), graph_of(CONFIG, frozen=("layers.*",))
    assert whole.parameters == frozen.parameters
    assert whole.active_parameters == frozen.active_parameters


def test_model_flops_fall_with_what_is_not_trained(graph_of: GraphOf) -> None:
    # everything but the head frozen: one forward pass, and three head products
    frozen = graph_of(CONFIG, frozen=("embedding", "layers.*", "norm"), sequence_length=1)
    matrices = 4 * (64 * 192 + 64 * 64 + 64 * 192 + 96 * 64)
    head = 64 * 1000
    attention = 4 * (4 * 0.5 * 64)
    assert flops_per_token(frozen) == pytest.approx(2 * matrices + attention + 3 * 2 * head)


def test_a_pattern_that_matches_nothing_is_refused_with_the_closest_name(graph_of: GraphOf) -> None:
    with pytest.raises(InputError) as caught:
        graph_of(CONFIG, frozen=("embeding", "layers.9"))
    text = caught.value.render()
    assert "frozen[0]: 'embeding' matches no layer" in text
    assert "did you mean 'embedding'?" in text
    assert "frozen[1]" in text

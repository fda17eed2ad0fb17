"""FLOPs, bytes and collectives of layers, by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from planner.graph import flops_per_token
from planner.graph.attention import visible_pairs

if TYPE_CHECKING:
    from planner.graph import Layer, LayerGraph, Operation
    from tests.graph.conftest import GraphOf

SMALL = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
SMALL |= {"num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 1000}


def layer_of(graph: LayerGraph, name: str = "layers.0") -> Layer:
    return next(layer for layer in graph.layers if layer.name == name)


def operation(layer: Layer, name: str) -> Operation:
    return next(op for op in layer.operations if op.name == name)


def core_flops(layer: Layer) -> float:
    return sum(op.flops for op in layer.operations if op.operation_class == "attention")


def test_a_matrix_costs_two_flops_a_weight_and_token(graph_of: GraphOf) -> None:
    # hidden 64; 4 query heads and 2 key/value heads of 16: 64 x (64 + 2 x 32); MLP 64 x 192 and 96 x 64
    layer = layer_of(graph_of(SMALL, sequence_length=10))
    assert operation(layer, "attention_query_key_value").flops == 2 * 10 * 64 * 128
    assert operation(layer, "attention_projection").flops == 2 * 10 * 64 * 64
    assert operation(layer, "mlp_gate_up").flops == 2 * 10 * 64 * 192
    assert operation(layer, "mlp_down").flops == 2 * 10 * 96 * 64


def test_matrices_have_a_weight_gradient_as_large_as_their_forward_pass(graph_of: GraphOf) -> None:
    for op in layer_of(graph_of(SMALL)).operations:
        assert op.weight_gradient == (op.operation_class == "matmul")
        if op.operation_class == "matmul":
            assert op.backward_flops_ratio == 2.0


def test_causal_flash_attention_skips_the_upper_half(graph_of: GraphOf) -> None:
    # two products over s x s pairs, 4 heads of 16, halved; its backward makes the scores again
    layer = layer_of(graph_of(SMALL, sequence_length=100))
    assert core_flops(layer) == 2 * 2 * 100 * 100 * 64 / 2
    assert operation(layer, "attention_core").backward_flops_ratio == 2.5


def test_a_math_kernel_computes_masked_scores_that_do_not_count_as_useful(graph_of: GraphOf) -> None:
    layer = layer_of(graph_of(SMALL, sequence_length=100, attention="math"))
    assert core_flops(layer) == 2 * 2 * 100 * 100 * 64
    assert operation(layer, "attention_scores").useful_flops == 2 * 100 * 100 * 64 / 2


def test_scores_in_memory_cost_sixteen_bytes_each(preset_graph: GraphOf) -> None:
    # measured: 2608.5 MiB for every (4096 tokens)^2 on a quarter of 40 heads, that is 16.3 bytes a score
    measured = 2608.5 * 2**20 / (10 * 4096**2)

    def working_set(kernel: str) -> float:
        layer = layer_of(preset_graph("qwen2.5-7b", attention=kernel, sequence_length=8192))
        kept = sum(tensor.elements for tensor in layer.saved if tensor.name == "attention_softmax")
        return 2 * (layer.transient_elements + kept) + 4 * layer.transient_fp32_elements

    scores = 28 * 8192**2
    assert working_set("math") / scores == pytest.approx(16, rel=0.02)
    assert measured == pytest.approx(16.3, abs=0.05)
    assert working_set("flash") < working_set("math") / 20


def test_bidirectional_attention_sees_every_pair(preset_graph: GraphOf) -> None:
    # T5-small, 8 heads of 64: the encoder sees all pairs, the decoder half of its own and all of the encoder's
    graph = preset_graph("t5-small", sequence_length=100)
    whole = 2 * 2 * 100 * 100 * 512
    assert core_flops(layer_of(graph, "encoder.layers.1")) == whole
    assert core_flops(layer_of(graph, "decoder.layers.1")) == whole / 2 + whole


def test_a_window_leaves_a_band_and_never_costs_more_than_none() -> None:
    assert visible_pairs(100, causal=True, window=None) == 5000
    assert visible_pairs(100, causal=True, window=10) == 100 * 10 - 50
    assert visible_pairs(100, causal=True, window=100) == 5000
    assert visible_pairs(100, causal=True, window=99) < 5000


def test_experts_work_on_top_k_copies_of_a_token_and_are_all_read(preset_graph: GraphOf) -> None:
    # Mixtral 8x7B: 2 of 8 experts, 4096 x 14336
    layer = layer_of(preset_graph("mixtral-8x7b", sequence_length=100))
    up = operation(layer, "expert_gate_up")
    assert up.flops == 2 * (2 * 100) * 4096 * 28672
    assert up.weight_elements == 8 * 4096 * 28672
    assert operation(layer, "router").flops == 2 * 100 * 4096 * 8


def test_latent_attention_projects_down_and_up(preset_graph: GraphOf) -> None:
    # DeepSeek-V3: h 7168, query rank 1536, key/value rank 512 + 64 rotary, 128 heads of 128 + 64, values 128
    layer = layer_of(preset_graph("deepseek-v3", sequence_length=10))
    assert operation(layer, "attention_query_down").flops == 2 * 10 * 7168 * 1536
    assert operation(layer, "attention_query_up").flops == 2 * 10 * 1536 * 128 * 192
    assert operation(layer, "attention_key_value_down").flops == 2 * 10 * 7168 * 576
    assert operation(layer, "attention_key_value_up").flops == 2 * 10 * 512 * 128 * 256
    assert core_flops(layer) == 2 * (10 * 10 / 2) * 128 * (192 + 128)


def test_queries_that_are_not_compressed_are_projected_at_once(preset_graph: GraphOf) -> None:
    layer = layer_of(preset_graph("deepseek-v2-lite", sequence_length=10))
    assert operation(layer, "attention_query").flops == 2 * 10 * 2048 * 16 * 192


def test_a_layer_has_two_all_reduces_each_way(graph_of: GraphOf) -> None:
    layer = layer_of(graph_of(SMALL, sequence_length=10))
    reduces = [c for c in layer.collectives if c.axis == "tensor"]
    assert [(c.name, c.elements, c.forward, c.backward) for c in reduces] == [
        ("attention_output", 640, 1, 1),
        ("mlp_output", 640, 1, 1),
    ]


def test_attention_and_mlp_side_by_side_need_one_all_reduce_each_way(preset_graph: GraphOf) -> None:
    layer = layer_of(preset_graph("gpt-neox-20b"))
    assert [(c.forward, c.backward) for c in layer.collectives if c.axis == "tensor"] == [(1, 1)]


def test_embedding_reduces_once_and_the_head_on_the_way_back(graph_of: GraphOf) -> None:
    graph = graph_of(SMALL, sequence_length=10)
    first, last = graph.layers[0], graph.layers[-1]
    assert [(c.elements, c.forward, c.backward) for c in first.collectives] == [(640, 1, 0)]
    assert [(c.name, c.forward, c.backward) for c in last.collectives] == [("head_input", 0, 1), ("loss", 1, 0)]


def test_experts_dispatch_and_combine_top_k_copies_of_every_token(preset_graph: GraphOf) -> None:
    layer = layer_of(preset_graph("mixtral-8x7b", sequence_length=10))
    exchanges = [(c.name, c.kind, c.elements) for c in layer.collectives if c.axis == "expert"]
    assert exchanges == [
        ("expert_dispatch", "all_to_all", 10 * 2 * 4096),
        ("expert_combine", "all_to_all", 10 * 2 * 4096),
    ]


def test_context_parallelism_sends_keys_and_values_around_and_twice_on_the_way_back(graph_of: GraphOf) -> None:
    layer = layer_of(graph_of(SMALL, sequence_length=10))
    rings = [(c.elements, c.forward, c.backward) for c in layer.collectives if c.axis == "context"]
    assert rings == [(10 * (32 + 32), 1, 2)]


def test_model_flops_are_six_a_parameter_and_token_plus_attention(graph_of: GraphOf) -> None:
    # two layers of four matrices, and the head 64 x 1000; attention 6 l s (heads x width)
    graph = graph_of(SMALL, sequence_length=100)
    matrices = 2 * (64 * 128 + 64 * 64 + 64 * 192 + 96 * 64) + 64 * 1000
    assert flops_per_token(graph) == pytest.approx(6 * matrices + 6 * 2 * 100 * 64, rel=1e-12)


def test_model_flops_do_not_depend_on_kernel_loss_or_recomputation(graph_of: GraphOf) -> None:
    usual = flops_per_token(graph_of(SMALL))
    assert flops_per_token(graph_of(SMALL, attention="math")) == pytest.approx(usual, rel=1e-12)
    assert flops_per_token(graph_of(SMALL, loss="chunked")) == pytest.approx(usual, rel=1e-12)


def test_elementwise_work_is_priced_by_its_bytes(graph_of: GraphOf) -> None:
    for layer in graph_of(SMALL).layers:
        for op in layer.operations:
            assert (op.flops == 0) == (op.operation_class in ("elementwise", "embedding"))
            assert op.activation_elements > 0

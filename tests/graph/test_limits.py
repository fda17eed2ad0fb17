"""Which parallel degrees a model allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from planner.graph import padded_vocabulary, sequence_refusal, tensor_parallel_limits, tensor_parallel_refusal

if TYPE_CHECKING:
    from planner.graph import LayerGraph
    from tests.graph.conftest import GraphOf


def allowed(graph: LayerGraph, largest: int = 128) -> list[int]:
    return [t for t in range(1, largest + 1) if tensor_parallel_refusal(graph, t) is None]


def test_a_degree_divides_heads_key_value_heads_and_mlp_width(preset_graph: GraphOf) -> None:
    # Llama-3.1-8B: 32 heads, 8 key/value heads, width 14336
    graph = preset_graph("llama-3.1-8b")
    expected = (("num_attention_heads", 32), ("num_key_value_heads", 8), ("intermediate_size", 14336))
    assert tensor_parallel_limits(graph) == expected
    assert allowed(graph) == [1, 2, 4, 8]


def test_a_refused_degree_names_the_field_it_breaks(preset_graph: GraphOf) -> None:
    # DeepSeek-V3 has 128 heads, Qwen3-235B 4 key/value heads, GPT-2 XL 25 heads
    assert tensor_parallel_refusal(preset_graph("deepseek-v3"), 14) == (
        "tensor_parallel 14 does not divide num_attention_heads 128"
    )
    assert tensor_parallel_refusal(preset_graph("qwen3-235b-a22b"), 8) == (
        "tensor_parallel 8 does not divide num_key_value_heads 4"
    )
    assert "num_attention_heads 25" in (tensor_parallel_refusal(preset_graph("gpt-2-xl"), 2) or "")
    assert tensor_parallel_refusal(preset_graph("gpt-2-xl"), 5) is None


def test_71_heads_with_one_key_value_head_run_whole(preset_graph: GraphOf) -> None:
    assert allowed(preset_graph("falcon-7b")) == [1]


@pytest.mark.parametrize(
    ("vocabulary", "tensor", "padded"),
    [(50257, 1, 50304), (50257, 2, 50432), (50304, 1, 50304), (250682, 8, 250880), (151669, 4, 152064), (1, 1, 128)],
)
def test_the_vocabulary_is_padded_to_a_multiple_of_128_a_shard(vocabulary: int, tensor: int, padded: int) -> None:
    assert padded_vocabulary(vocabulary, tensor) == padded


def test_sequence_parallelism_cuts_the_sequence_evenly() -> None:
    assert sequence_refusal(2047, 4, 1, sequence_parallel=True) == (
        "sequence_length 2047 does not divide by tensor_parallel 4, as sequence parallelism needs"
    )
    assert sequence_refusal(2047, 4, 1, sequence_parallel=False) is None
    assert sequence_refusal(2047, 1, 1, sequence_parallel=True) is None
    assert sequence_refusal(2048, 4, 1, sequence_parallel=True) is None


def test_context_parallelism_gives_each_chip_two_pieces() -> None:
    assert sequence_refusal(2046, 1, 2, sequence_parallel=True) == (
        "sequence_length 2046 does not divide by 2 x context_parallel 2"
    )
    assert sequence_refusal(2048, 1, 2, sequence_parallel=True) is None
    assert "/ context_parallel 2" in (sequence_refusal(4 * 1023, 4, 2, sequence_parallel=True) or "")

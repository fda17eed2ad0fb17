"""What a GPT layer keeps is exactly what Korthikanti et al. say (arXiv 2205.05198, table 2), operation by operation."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from planner.graph import Layer, LayerGraph
    from tests.graph.conftest import GraphOf

WIDTH_BYTES = {"compute": 2, "fp32": 4, "mask": 1}


def kept_bytes(layer: Layer, policy: str, tensor: int = 1, sequence_parallel: bool = False) -> float:
    """Bytes that one sequence keeps on one chip, in sixteen bits."""
    divisor = {"tensor": tensor, "expert": tensor, "sequence": tensor if sequence_parallel else 1, "replicated": 1}
    return sum(t.elements * WIDTH_BYTES[t.width] / divisor[t.sharding] for t in layer.saved if policy in t.kept)


def layer_of(graph: LayerGraph, name: str = "layers.0") -> Layer:
    return next(layer for layer in graph.layers if layer.name == name)


@pytest.fixture(params=["gpt-3-175b", "megatron-22b", "gpt-2"])
def case(request: pytest.FixtureRequest, preset_graph: GraphOf) -> tuple[Layer, int, int, int]:
    """A layer with materialised scores, and s, h, a. The paper factors s h out: s h (34 + 5 a s / h)."""
    s, h, a = {"gpt-3-175b": (2048, 12288, 96), "megatron-22b": (2048, 6144, 64), "gpt-2": (1024, 768, 12)}[
        request.param
    ]
    return layer_of(preset_graph(request.param, attention="math", sequence_length=s)), s, h, a


def test_a_layer_keeps_34_and_5_a_s_over_h(case: tuple[Layer, int, int, int]) -> None:
    layer, s, h, a = case
    assert kept_bytes(layer, "none") == 34 * s * h + 5 * a * s * s


@pytest.mark.parametrize("t", [2, 4])
def test_tensor_parallelism_divides_24_and_the_scores(case: tuple[Layer, int, int, int], t: int) -> None:
    layer, s, h, a = case
    assert kept_bytes(layer, "none", t) == 10 * s * h + (24 * s * h + 5 * a * s * s) / t


@pytest.mark.parametrize("t", [2, 4])
def test_sequence_parallelism_divides_everything(case: tuple[Layer, int, int, int], t: int) -> None:
    layer, s, h, a = case
    assert kept_bytes(layer, "none", t, sequence_parallel=True) == (34 * s * h + 5 * a * s * s) / t


@pytest.mark.parametrize("t", [1, 2, 4])
def test_selective_recomputation_keeps_no_scores(case: tuple[Layer, int, int, int], t: int) -> None:
    layer, s, h, _ = case
    assert kept_bytes(layer, "selective", t, sequence_parallel=True) == 34 * s * h / t
    assert kept_bytes(layer, "selective", t) == 10 * s * h + 24 * s * h / t


@pytest.mark.parametrize("t", [1, 4])
def test_full_recomputation_keeps_the_input(case: tuple[Layer, int, int, int], t: int) -> None:
    layer, s, h, _ = case
    assert kept_bytes(layer, "full", t) == 2 * s * h
    assert kept_bytes(layer, "full", t, sequence_parallel=True) == 2 * s * h / t


def test_selective_with_math_reruns_the_attention_core_only(preset_graph: GraphOf) -> None:
    layer = layer_of(preset_graph("gpt-2", attention="math"))
    rerun = {op.name for op in layer.operations if "selective" in op.rerun}
    assert rerun == {"attention_scores", "attention_softmax", "attention_dropout", "attention_values"}


def test_flash_attention_keeps_softmax_statistics_instead_of_scores(preset_graph: GraphOf) -> None:
    # GPT-2 at s = 1024: 34 s h as before, and one fp32 number a head and token
    s, h, a = 1024, 768, 12
    layer = layer_of(preset_graph("gpt-2", sequence_length=s))
    assert kept_bytes(layer, "none") == 34 * s * h + 4 * a * s


def test_selective_with_flash_frees_norm_outputs_and_activations(preset_graph: GraphOf) -> None:
    # two norm outputs of s h, one activation output of 4 s h, two bytes each
    s, h, a = 1024, 768, 12
    layer = layer_of(preset_graph("gpt-2", sequence_length=s))
    assert kept_bytes(layer, "selective") == 34 * s * h + 4 * a * s - 2 * (2 * s * h + 4 * s * h)
    rerun = {op.name for op in layer.operations if "selective" in op.rerun}
    assert rerun == {"attention_norm", "mlp_norm", "mlp_activation"}


def test_dropout_follows_the_training_file_before_the_architecture(preset_graph: GraphOf) -> None:
    # masks: one byte for two residual dropouts; with math also mask and dropped copy of the scores, 3 a s^2
    s, h, a = 512, 768, 12
    with_masks = kept_bytes(layer_of(preset_graph("gpt-2", attention="math")), "none")
    without = kept_bytes(layer_of(preset_graph("gpt-2", attention="math", dropout=False)), "none")
    assert with_masks - without == 2 * s * h + 3 * a * s * s


def test_a_llama_layer_keeps_no_masks_and_three_mlp_tensors(preset_graph: GraphOf) -> None:
    # Llama-3.1-8B, s = 512: input, norm output, twice: 4 s h; q and attention output 2 s h; k and v 2 s 1024;
    # gate, up, product 3 s 14336; statistics 4 bytes for 32 heads
    s, h = 512, 4096
    layer = layer_of(preset_graph("llama-3.1-8b"))
    assert kept_bytes(layer, "none") == 2 * s * (4 * h + 2 * h + 2 * 1024 + 3 * 14336) + 4 * 32 * s
    assert kept_bytes(layer, "selective") == 2 * s * (2 * h + 2 * h + 2 * 1024 + 2 * 14336) + 4 * 32 * s
    assert kept_bytes(layer, "full") == 2 * s * h


def test_materialised_scores_grow_with_the_square_of_the_sequence(preset_graph: GraphOf) -> None:
    def kept(kernel: str, s: int) -> float:
        return kept_bytes(layer_of(preset_graph("qwen2.5-7b", attention=kernel, sequence_length=s)), "none")

    assert kept("flash", 16384) == 2 * kept("flash", 8192)
    assert kept("math", 16384) - kept("flash", 16384) > 3.9 * (kept("math", 8192) - kept("flash", 8192))


def test_routed_experts_keep_top_k_copies_of_every_token(preset_graph: GraphOf) -> None:
    # Mixtral 8x7B, top 2 of 8: dispatched input and expert output 2 s h each, gate, up, product 2 s 14336 each
    s, h = 512, 4096
    layer = layer_of(preset_graph("mixtral-8x7b"))
    routed = {t.name: t.elements for t in layer.saved if t.sharding == "expert"}
    assert routed["expert_input"] == routed["expert_output"] == 2 * s * h
    assert routed["expert_gate"] == routed["expert_up"] == routed["expert_product"] == 2 * s * 14336


def test_every_saved_tensor_is_kept_when_nothing_is_recomputed(preset_graph: GraphOf) -> None:
    for name in ("gpt-2", "deepseek-v2-lite", "gemma-2-2b", "t5-small", "opt-350m", "olmo-2-7b", "falcon-7b"):
        graph = preset_graph(name)
        assert all("none" in tensor.kept for layer in graph.layers for tensor in layer.saved)


def test_a_policy_that_frees_more_never_keeps_more(preset_graph: GraphOf) -> None:
    for name in (
        "gpt-2",
        "deepseek-v3",
        "gemma-3-1b",
        "t5-small",
        "opt-350m",
        "olmo-2-7b",
        "falcon-7b",
        "mixtral-8x7b",
    ):
        for layer in preset_graph(name, attention="flash").layers:
            kept = [kept_bytes(layer, policy) for policy in ("none", "selective", "full")]
            assert kept == sorted(kept, reverse=True)

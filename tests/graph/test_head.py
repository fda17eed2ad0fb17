"""Logits: the largest tensor of a model with a large vocabulary, by the kind of loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from planner.graph import Layer
    from tests.graph.conftest import GraphOf

GIB = 2**30
TOKENS, VOCABULARY = 8192, 151_936


def head(preset_graph: GraphOf, loss: str, **settings: str) -> Layer:
    return preset_graph("qwen3-8b", sequence_length=TOKENS, loss=loss, **settings).layers[-1]


def fp32_gib(layer: Layer) -> float:
    kept = sum(tensor.elements for tensor in layer.saved if tensor.width == "fp32")
    return 4 * (kept + layer.transient_fp32_elements) / GIB


def test_a_plain_loss_holds_all_logits_in_fp32_a_chunked_one_1024_tokens_of_them(preset_graph: GraphOf) -> None:
    # 8192 x 151,936 x 4 bytes = 4.637 GiB (published as 4.638), an eighth of it in a chunk
    assert fp32_gib(head(preset_graph, "plain")) == TOKENS * VOCABULARY * 4 / GIB == pytest.approx(4.637, abs=1e-3)
    assert fp32_gib(head(preset_graph, "chunked")) == pytest.approx(4.637 / 8, abs=1e-3)
    assert fp32_gib(head(preset_graph, "fused")) == 0.0


def test_logits_or_their_gradient_in_compute_width_come_on_top(preset_graph: GraphOf) -> None:
    assert head(preset_graph, "plain").transient_elements == TOKENS * VOCABULARY
    assert head(preset_graph, "chunked").transient_elements == 1024 * VOCABULARY
    assert head(preset_graph, "fused").transient_elements == TOKENS * 4096  # the gradient of the head's input


def test_fp32_training_needs_no_copy_of_the_logits(preset_graph: GraphOf) -> None:
    layer = head(preset_graph, "plain", precision="fp32")
    assert fp32_gib(layer) == pytest.approx(4.637, abs=1e-3)
    assert layer.transient_elements == TOKENS * 4096


def test_losses_that_keep_no_logits_make_them_twice(preset_graph: GraphOf) -> None:
    ratio = {loss: next(op for op in head(preset_graph, loss).operations if op.name == "head").backward_flops_ratio
             for loss in ("plain", "chunked", "fused")}  # fmt: skip
    assert ratio == {"plain": 2.0, "chunked": 3.0, "fused": 3.0}


def test_recompute_policies_leave_the_head_alone(preset_graph: GraphOf) -> None:
    layer = head(preset_graph, "plain")
    assert all(tensor.kept == {"none", "selective", "full"} for tensor in layer.saved)
    assert all(op.rerun == frozenset() for op in layer.operations)


def test_the_logits_are_divided_by_tensor_parallelism_and_grow_with_a_padded_vocabulary(preset_graph: GraphOf) -> None:
    layer = head(preset_graph, "plain")
    softmax = next(tensor for tensor in layer.saved if tensor.name == "softmax")
    assert (softmax.sharding, softmax.vocabulary) == ("tensor", True)
    assert (layer.transient_sharding, layer.transient_vocabulary) == ("tensor", True)
    assert all(weight.vocabulary for weight in layer.weights)
    assert not head(preset_graph, "fused").transient_vocabulary

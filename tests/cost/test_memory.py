"""Memory of a stage: published forms through the tables, and every part by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.tables import Mode, Setting
from planner.graph.layers import Layer, SavedTensor, Weight
from planner.graph.recipe import Recipe
from planner.graph.shapes import AttentionShape, FeedForwardShape, LayerShape
from planner.graph.transformer import transformer_layer
from tests.cost.stand_ins import GIB, Chip, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

S, H, A, B = 2048, 6144, 64, 4
"""Sequence, hidden size, heads, micro-batch of the 22B model of arXiv 2205.05198."""


def gpt_layer(index: int) -> Layer:
    """A GPT layer without flash attention, with dropout."""
    head = H // A
    shape = LayerShape(
        label="layer",
        attention=AttentionShape(
            A, A, head, head, rotary=False, dropout=True, query_key_value_bias=True, output_bias=True
        ),
        feed_forward=FeedForwardShape(4 * H, gated=False, bias=True),
        norm="layer",
        dropout=True,
    )
    return transformer_layer(f"layers.{index}", shape, H, Recipe(tokens=S, attention="math", dropout=True))


def gpt_saved_bytes(policy: str, tensor: int, sequence_parallel: bool, context: int = 1) -> float:
    graph = graph_of(
        *(gpt_layer(i) for i in range(4)), elements=float(S * H), sequence_length=S, num_heads=A, num_kv_heads=A
    )
    model = cost_model(
        graph=graph,
        sequence_length=S,
        micro_batch_sizes=(B,),
        sequence_parallel=sequence_parallel,
        attention="math",
        context_parallel=(context,),
    )
    table = model.table(0, Mode(tensor), Setting(B, 1, context))
    assert table is not None
    return float(table.saved_bytes[model.policies.index(policy), 0])


def test_a_gpt_layer_keeps_the_published_bytes():
    # s b h (34 + 5 a s / h) in whole numbers
    assert gpt_saved_bytes("none", 1, True) == 34 * S * B * H + 5 * A * S * S * B


@pytest.mark.parametrize("t", [2, 8])
def test_tensor_parallelism_leaves_ten_bytes_whole(t):
    assert gpt_saved_bytes("none", t, False) == pytest.approx(
        S * B * H * (10 + 24 / t + 5 * A * S / (H * t)), rel=1e-12
    )


@pytest.mark.parametrize("t", [2, 8])
def test_sequence_parallelism_divides_everything(t):
    assert gpt_saved_bytes("none", t, True) == pytest.approx(S * B * H * (34 + 5 * A * S / H) / t, rel=1e-12)


@pytest.mark.parametrize("t", [1, 8])
def test_selective_recompute_drops_the_attention_core(t):
    assert gpt_saved_bytes("selective", t, True) == pytest.approx(S * B * H * 34 / t, rel=1e-12)


@pytest.mark.parametrize("t", [1, 8])
def test_full_recompute_keeps_the_input(t):
    assert gpt_saved_bytes("full", t, False) == S * B * H * 2
    assert gpt_saved_bytes("full", t, True) == S * B * H * 2 / t


def test_context_parallelism_divides_activations():
    assert gpt_saved_bytes("none", 2, True, context=2) == gpt_saved_bytes("none", 4, True)


def one_kind(setting: Setting, tensor: int = 1, layer: Layer | None = None, cluster: object = None, **training: object):
    layer = layer or matmul_layer()
    graph = graph_of(*(replace(layer, name=f"layers.{i}") for i in range(4)), **training.pop("graph", {}))
    model = cost_model(cluster, graph, **training)
    table = model.table(0, Mode(tensor), setting)
    assert table is not None, model.why_not(0, Mode(tensor), setting)
    return model, table


@pytest.mark.parametrize(("zero", "expected"), [(0, 18.0), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 18 / 8)])
def test_static_bytes_shard_over_data_and_context(zero, expected):
    # 1e6 parameters over tensor 1; 4 data x 2 context = 8 replicas
    _, table = one_kind(Setting(1, 4, 2), zero=zero, context_parallel=(2,))
    assert table.static_bytes[0] == pytest.approx(1e6 * expected, rel=1e-12)


def test_tensor_parallelism_divides_matrices_not_norms():
    layer = matmul_layer(weights=(Weight("matrix", 10**6, "tensor"), Weight("norm", 1000, "replicated")))
    _, table = one_kind(Setting(1, 1), 4, layer, zero=0)
    assert table.static_bytes[0] == 18 * (10**6 / 4 + 1000)


def test_experts_divide_by_their_shards_and_zero_by_their_replicas():
    # 8 chips: tensor 2, data 4, expert 4 (a multiple of tensor): 4 shards, 2 replicas: 6 + 12/2 = 12 bytes
    layer = matmul_layer(weights=(Weight("experts", 10**6, "expert"),))
    _, table = one_kind(Setting(1, 4, 1, 4), 2, layer, zero=1, graph={"num_experts": 8})
    assert table.static_bytes[0] == pytest.approx(12 * 10**6 / 4)


def test_a_tied_copy_takes_memory_unless_there_is_one_stage():
    head = replace(matmul_layer("head", kind="head"), weights=(Weight("table", 10**6, "tensor", tied_to="embedding"),))
    embedding = replace(matmul_layer("embedding", kind="embedding"), weights=(Weight("table", 10**6, "tensor"),))
    model = cost_model(graph=graph_of(embedding, matmul_layer(), head), zero=0)
    split = model.table(0, Mode(1), Setting(1, 1))
    whole = model.table(0, Mode(1), Setting(1, 1, single_stage=True))
    assert split is not None and whole is not None
    assert split.static_bytes.tolist() == [18e6, 18e6, 18e6]
    assert whole.static_bytes.tolist() == [18e6, 18e6, 0.0]


def test_e4_embedding_and_head_are_sized_for_the_padded_vocabulary():
    # 50,257 rows of 10: 50,304 at tensor 1, 50,432 at tensor 2 (25,216 a chip)
    weight = Weight("table", 50_257 * 10, "tensor", vocabulary=True)
    layer = matmul_layer(
        "head", weights=(weight,), saved=(SavedTensor("softmax", 50_257, "tensor", "fp32", vocabulary=True),)
    )
    model = cost_model(graph=graph_of(layer, vocabulary=50_257), zero=0)
    for tensor, rows in ((1, 50_304), (2, 50_432)):
        table = model.table(0, Mode(tensor), Setting(1, 1))
        assert table is not None
        assert table.static_bytes[0] == pytest.approx(18 * rows * 10 / tensor)
        assert table.saved_bytes[0, 0] == pytest.approx(4 * rows / tensor)
    assert "50257 -> 50304" in " ".join(model.notes)


def test_saved_tensors_have_their_own_width():
    saved = tuple(SavedTensor(w, 100, "replicated", w) for w in ("compute", "mask", "fp32"))
    for precision, expected in (("bf16", 200 + 100 + 400), ("fp32", 400 + 100 + 400)):
        chip = Chip(peak_flops_per_s={"bf16": 1e14, "fp32": 1e13})
        _, table = one_kind(Setting(1, 1), 1, matmul_layer(saved=saved), cluster_of(chips=(chip,)), precision=precision)
        assert table.saved_bytes[0, 0] == expected


def test_what_recompute_frees_is_a_working_set_of_its_layer():
    # keeps 1,000 + 3,000 elements; selective and full drop 3,000; own working set 500 + 4 x 100 bytes... in bytes
    layer = matmul_layer(transient_elements=500.0, transient_fp32_elements=100.0)
    model, table = one_kind(Setting(2, 1), 1, layer)
    own = 2 * (2 * 500 + 4 * 100)
    assert table.transient_bytes[:, 0].tolist() == [own, own + 2 * 2 * 3000, own + 2 * 2 * 3000]
    assert table.saved_bytes[:, 0].tolist() == [2 * 2 * 4000, 2 * 2 * 1000, 2 * 2 * 1000]
    assert model.policies == ("none", "selective", "full")


def test_zero_2_and_3_gather_one_layer_at_a_time():
    own = {zero: one_kind(Setting(1, 4), zero=zero)[1].transient_bytes[0, 0] for zero in range(4)}
    assert own[0] == own[1] == 0
    assert own[2] == 4e6  # the whole fp32 gradient of 1e6 parameters
    assert own[3] == 4e6 + 2e6  # and the gathered weights
    assert one_kind(Setting(1, 1), zero=3)[1].transient_bytes[0, 0] == 0  # nothing is sharded over one replica


def test_a_stage_receives_both_ways_and_a_single_stage_does_not():
    # 1,000 elements of 2 bytes, 2 sequences, tensor 4 with sequence parallelism
    _, table = one_kind(Setting(2, 1), 4)
    assert table.fixed_bytes == 2 * 1000 * 2 * 2 / 4
    _, whole = one_kind(Setting(2, 1), 4, sequence_parallel=False)
    assert whole.fixed_bytes == 2 * 1000 * 2 * 2
    _, single = one_kind(Setting(2, 1, single_stage=True), 4)
    assert single.fixed_bytes == 0


def test_c6_two_equal_chips_with_different_reserves_have_different_room():
    cluster = cluster_of(NodeGroup("desktop", reserve_bytes=14 * GIB), NodeGroup("server", reserve_bytes=2 * GIB))
    model = cost_model(cluster)
    tables = [model.table(group, Mode(1), Setting(1, 1)) for group in (0, 1)]
    assert [table.usable_bytes / GIB for table in tables if table is not None] == [66, 78]


def test_c6_reported_memory_counts_before_nominal_memory():
    chip = Chip(memory_bytes=80 * GIB, reported_memory_bytes=79 * GIB)
    _, table = one_kind(Setting(1, 1), 1, None, cluster_of(NodeGroup("a", reserve_bytes=GIB), chips=(chip,)))
    assert table.usable_bytes == 78 * GIB


@given(
    tensor=st.sampled_from([1, 2, 4]),
    data=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2, 3]),
    sequence_parallel=st.booleans(),
)
def test_more_tensor_parallelism_never_takes_more_memory(tensor, data, zero, sequence_parallel):
    graph = graph_of(gpt_layer(0), elements=float(S * H))
    model = cost_model(cluster_of(NodeGroup("a", nodes=2)), graph, zero=zero, sequence_parallel=sequence_parallel)
    less, more = (model.table(0, Mode(t), Setting(1, data)) for t in (2 * tensor, tensor))
    assert less is not None and more is not None
    for name in ("static_bytes", "saved_bytes", "transient_bytes", "fixed_bytes"):
        assert np.all(getattr(less, name) <= getattr(more, name) * (1 + 1e-12)), name


@given(zero=st.integers(0, 2), data=st.sampled_from([1, 2, 4, 8]))
def test_a_higher_zero_level_never_keeps_more(zero, data):
    lower, higher = (one_kind(Setting(1, data), zero=level)[1] for level in (zero, zero + 1))
    assert higher.static_bytes[0] <= lower.static_bytes[0]

"""The cost model on real profiles and presets against published figures."""

from __future__ import annotations

import pytest

from planner.cost.model import CostModel
from planner.cost.tables import LayerTable, Mode, Setting
from planner.graph import build_graph
from planner.spec import parse_cluster, parse_model

GIB = 2**30


def real_model(preset: str, nodes: int, training: str, chip: str = "nvidia-a100-80gb-sxm") -> CostModel:
    cluster = parse_cluster(f"name: t\nnode_groups:\n  - {{name: a, chip: {chip}, nodes: {nodes}}}\n", "cluster.yaml")
    model = parse_model(f"model: {{preset: {preset}}}\ntraining: {{{training}}}\n", "model.yaml")
    return CostModel(cluster, model, build_graph(model))


def table_of(model: CostModel, tensor: int, setting: Setting) -> LayerTable:
    table = model.table(0, Mode(tensor), setting)
    assert table is not None, model.why_not(0, Mode(tensor), setting)
    return table


@pytest.mark.parametrize(
    ("preset", "stages", "chunks", "size", "batch", "recompute", "measured_s"),
    [
        ("megatron-22b", 1, 1, 4, 4, "full", 1.42),
        ("megatron-22b", 1, 1, 4, 4, "selective", 1.10),
        ("gpt-3-175b", 8, 3, 1, 64, "full", 18.13),
        ("gpt-3-175b", 8, 3, 1, 64, "selective", 13.75),
        ("megatron-530b", 35, 3, 1, 280, "full", 49.05),
        ("megatron-530b", 35, 3, 1, 280, "selective", 37.83),
        ("megatron-1t", 64, 1, 1, 512, "full", 94.42),
        ("megatron-1t", 64, 1, 1, 512, "selective", 71.49),
    ],
)
def test_korthikanti_table_5_within_seven_percent(preset, stages, chunks, size, batch, recompute, measured_s):
    # arXiv 2205.05198: A100, tensor 8; full recompute without, selective with sequence parallelism;
    # equal stages in an interleaved schedule: (m + (p - 1)/v) micro-batches, the ends left out but for one stage
    parallel = str(recompute == "selective").lower()
    training = (
        f"sequence_length: 2048, global_batch: {batch}, micro_batch_sizes: [{size}], precision: fp16, attention: math,"
        f" zero: 0, sequence_parallel: {parallel}"
    )
    model = real_model(preset, stages, training)
    table = table_of(model, 8, Setting(size, 1, single_stage=stages == 1))
    busy = table.forward_s + table.backward_input_s + table.backward_weight_s
    kind = model.chain.kind_names.index("layer")
    layers = model.chain.kinds.count(kind) / stages
    seconds = layers * (busy + table.recompute_s[model.policies.index(recompute)])[kind]
    ends = sum(busy[k] for k in set(model.chain.kinds) - {kind}) if stages == 1 else 0.0
    micro_batches = batch // size
    step_s = (micro_batches + (stages - 1) / chunks) * seconds + micro_batches * ends + layers * table.optimizer_s[kind]
    assert step_s == pytest.approx(measured_s, rel=0.07)


@pytest.mark.parametrize(("size", "measured_s"), [(1, 4.40e-3), (8, 31.5e-3)])
def test_galvatron_s_llama_layer_within_eight_percent(size, measured_s):
    # its computation profile of Llama-2-7B, sequence 2,048, bf16, A100: forward of one layer
    model = real_model("llama-2-7b", 1, "sequence_length: 2048, global_batch: 8")
    kind = model.chain.kind_names.index("layer")
    assert table_of(model, 1, Setting(size, 1)).forward_s[kind] == pytest.approx(measured_s, rel=0.08)


def test_b3_the_last_stage_s_peak_differs_between_the_kinds_of_loss():
    # 8,192 tokens x 151,936 in fp32: 4.638 GiB, a chunk of 1,024 tokens 0.580 GiB; logits in bf16 are half of each
    peaks = {}
    for loss in ("plain", "chunked", "fused"):
        training = f"sequence_length: 8192, global_batch: 8, micro_batch_sizes: [1], loss: {loss}"
        model = real_model("qwen3-8b", 1, training)
        stage = model.breakdown(0, Mode(1), Setting(1, 1), model.kind_counts(["head"], {}), in_flight=1)
        peaks[loss] = stage.memory.activations + stage.memory.transient
        assert any(f"`{loss}`" in note for note in model.notes)
    hidden = 2 * 8192 * 4096  # the working set without logits
    assert (peaks["plain"] - peaks["fused"] + hidden) / GIB == pytest.approx(4.638 * 1.5, abs=0.005)
    assert (peaks["chunked"] - peaks["fused"] + hidden) / GIB == pytest.approx(0.580 * 1.5, abs=0.005)


def test_b5_math_attention_keeps_scores_that_grow_with_the_square():
    # tensor 8, 32,768 tokens: 40 / 8 = 5 heads x 32,768^2 scores of 2 bytes = 10 GiB a layer
    saved, peak = {}, {}
    for attention in ("flash", "math"):
        training = f"sequence_length: 32768, global_batch: 8, micro_batch_sizes: [1], attention: {attention}"
        model = real_model("qwen2.5-32b", 1, training, chip="nvidia-h20-96gb-sxm")
        stage = model.breakdown(0, Mode(8), Setting(1, 1), model.kind_counts(["layers.0"], {}), in_flight=1)
        saved[attention], peak[attention] = stage.memory.activations, stage.memory.peak_bytes
    assert (saved["math"] - saved["flash"]) / GIB == pytest.approx(10, abs=0.5)
    assert peak["math"] > 4 * peak["flash"]


def test_d4_dense_layers_of_deepseek_are_much_lighter_than_expert_layers():
    training = "sequence_length: 4096, global_batch: 64, micro_batch_sizes: [1]"
    model = real_model("deepseek-v3", 32, training, chip="nvidia-h200-141gb-sxm")
    table = table_of(model, 1, Setting(1, 8, 1, 8))
    dense, sparse = (
        table.static_bytes[model.chain.kinds[model.chain.names.index(n)]] for n in ("layers.0", "layers.3")
    )
    assert sparse > 5 * dense


def test_every_table_of_a_mixture_of_experts_has_positive_times():
    model = real_model("mixtral-8x7b", 4, "sequence_length: 4096, global_batch: 64")
    for setting in model.settings:
        for tensor in model.groups[0].tensor_degrees:
            table = model.table(0, Mode(tensor), setting)
            if table is not None:
                assert (table.forward_s > 0).all() and (table.backward_input_s > 0).all()
                assert (table.static_bytes >= 0).all() and (table.saved_bytes >= 0).all()

"""What a plan says that it took for granted."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.model import CostModel
from planner.graph import build_graph
from planner.spec import parse_cluster, parse_model
from tests.cost.stand_ins import GIB, NodeGroup, cluster_of, cost_model, graph_of

MODEL = """
model:
  dimensions: {num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4, intermediate_size: 96, vocab_size: V}
training: {sequence_length: 64, global_batch: 8, attention: KERNEL}
"""


def notes_of(vocabulary: int, kernel: str = "flash") -> tuple[str, ...]:
    model = parse_model(MODEL.replace("V", str(vocabulary)).replace("KERNEL", kernel), "model.yaml")
    text = "name: lab\nnode_groups: [{name: a, chip: nvidia-a100-40gb-sxm, nodes: 1, chips_per_node: 4}]\n"
    return CostModel(parse_cluster(text, "cluster.yaml"), model, build_graph(model)).notes


def test_the_reserve_of_every_group_is_told_with_its_default() -> None:
    a, b, c = (NodeGroup(name) for name in "abc")
    cluster = cluster_of(
        replace(a, reserve_bytes=2 * GIB), replace(b, reserve_bytes=GIB), replace(c, reserve_bytes=GIB)
    )
    (text,) = [note for note in cost_model(cluster).notes if "reserve" in note]
    assert text == (
        "memory that stays free on each chip (`reserve`, 6.0 % where the cluster file has none):"
        " 2.0 GiB on a; 1.0 GiB on b, c"
    )


def test_the_attention_kernel_is_told_where_there_is_attention() -> None:
    for kernel in ("flash", "math"):
        assert f"attention runs with a `{kernel}` kernel (training.attention)" in notes_of(1000, kernel)
    assert not any("attention runs" in note for note in cost_model(graph=graph_of()).notes)


def test_the_padded_vocabulary_is_told_for_every_degree_of_the_plan_space() -> None:
    sizes = "1024 at tensor_parallel 1, 1024 at tensor_parallel 2, 1024 at tensor_parallel 4"
    assert f"embedding and head are sized for a padded vocabulary: 1000 -> {sizes}" in notes_of(1000)
    # 1,152 = 9 x 128 needs no padding on one chip, 1,280 = 5 x 256 rows on two
    sizes = "1152 at tensor_parallel 1, 1280 at tensor_parallel 2, 1536 at tensor_parallel 4"
    assert f"embedding and head are sized for a padded vocabulary: 1152 -> {sizes}" in notes_of(1152)
    assert not any("padded" in note for note in notes_of(2048))

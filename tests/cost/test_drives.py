"""Optimizer states on drives, by hand: 1e9 parameters a layer, a node of 8 chips whose drives hold 16 TB and read 24
GB/s or write 12 GB/s, copies at 20 GB/s, 800 GB/s of host memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from planner.cost.host_copies import copy_rate
from planner.cost.model import CostModel
from planner.cost.offload import TILES_IN_HOST_MEMORY, drive_share
from planner.cost.tables import LayerTable, Mode, Setting
from planner.cost.tiers import Tier, tiers_asked
from planner.errors import InputError
from planner.graph import build_graph
from planner.spec import parse_cluster, parse_model
from planner.spec.drives import Drives
from tests.cost.stand_ins import GB, GIB, Chip, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

DRIVES = Drives(capacity_bytes=16 * 10**12, read_bytes_per_s=24.0 * GB, write_bytes_per_s=12.0 * GB)
NODE = NodeGroup("a", host_memory_bytes=1024 * GIB, host_memory_bandwidth_bytes_per_s=800.0 * GB, nvme=DRIVES)
COPIES = Chip(host_staging_bytes_per_s=20.0 * GB)
LAYERS = (10**9, 10**9, 4 * 10**8)


def model_of(group: NodeGroup = NODE, chip: Chip = COPIES, **training: Any) -> CostModel:
    layers = [
        replace(matmul_layer(parameters=n, operations=()), name=f"layers.{i}", kind=f"of {n}")
        for i, n in enumerate(LAYERS)
    ]
    return cost_model(
        cluster_of(group, chips=(chip,)), graph_of(*layers), **({"offload_optimizer": "allowed"} | training)
    )


def table_of(tier: Tier = Tier.NVME, replicas: int = 4, **given: Any) -> LayerTable:
    table = model_of(**given).table(0, Mode(1, offload=tier), Setting(1, replicas))
    assert table is not None
    return table


def test_an_update_reads_and_writes_what_it_keeps_there_beside_what_the_host_does() -> None:
    # with ZeRO-1 over four replicas 0.25e9 parameters: gradient 4, master 4, moments 8 are 4 GB; a chip reads 3 GB/s
    # and writes 1.5 GB/s.  On the host as ever: 75 ms of copies, 75 ms of the optimizer
    assert table_of().optimizer_s[0] == pytest.approx(4 / 3 + 4 / 1.5 + 0.15)
    assert table_of(Tier.HOST).optimizer_s[0] == pytest.approx(0.15)
    # without ZeRO every replica has all of it
    assert table_of(zero=0).optimizer_s[0] == pytest.approx(4 * (4 / 3 + 4 / 1.5 + 0.15))


def test_drives_are_no_faster_than_the_chips_share_of_host_memory() -> None:
    slow = replace(NODE, host_memory_bandwidth_bytes_per_s=16.0 * GB)  # 2 GB/s a chip; copies too
    assert table_of(group=slow).optimizer_s[0] == pytest.approx(4 / 2 + 4 / 1.5 + 0.25 * (6 + 30) / 2)


def test_drives_hold_the_states_and_host_memory_two_tiles_of_the_largest_layer() -> None:
    on_chip, on_host, on_drives = (table_of(tier) for tier in Tier)
    assert (on_drives.static_bytes == on_host.static_bytes).all()
    assert on_chip.static_bytes[0] - on_drives.static_bytes[0] == pytest.approx(0.25e9 * 12)
    assert on_drives.nvme_bytes == pytest.approx([4e9, 1.6e9]) and on_drives.usable_nvme_bytes == 2e12
    assert (on_drives.host_bytes, on_drives.host_fixed_bytes) == (None, pytest.approx(2 * 4e9))
    assert on_drives.usable_host_bytes == 128 * GIB
    assert (on_host.nvme_bytes, on_host.host_fixed_bytes) == (None, 0)
    for name in ("forward_s", "backward_input_s", "backward_weight_s", "saved_bytes", "transient_bytes", "reduction_s"):
        assert (getattr(on_chip, name) == getattr(on_drives, name)).all()


@pytest.mark.parametrize(
    ("training", "size"),
    [
        ({}, 4 + 4 + 8),
        ({"gradients": "compute"}, 4 + 4 + 8),  # two bytes on the chip and to the host, four on drives
        ({"gradients": "compute", "precision": "fp16"}, 2 + 4 + 4 + 8),
        ({"master_weights": "none"}, 4 + 2 + 8),
        ({"optimizer": "sgd"}, 4 + 4 + 4),
    ],
)
def test_drives_hold_what_the_update_needs_with_gradients_in_fp32(training: dict[str, Any], size: int) -> None:
    table = table_of(replicas=1, **training)
    assert table.nvme_bytes is not None and table.nvme_bytes[0] == pytest.approx(1e9 * size)
    assert table.host_fixed_bytes == pytest.approx(2e9 * size)


# --- the same by another way: tensor by tensor, tile by tile, on the clock --------------------------------------------


@dataclass
class Node:
    """All chips of a node at the same work, one thing after another: seconds gone, bytes on drives and in buffers."""

    seconds: float = 0.0
    on_drives: float = 0.0
    buffered: float = 0.0
    most_buffered: float = 0.0

    def hold(self, size: float) -> None:
        self.buffered += size
        self.most_buffered = max(self.most_buffered, self.buffered)


def update_of_node(parameters: float, chips: int) -> Node:
    """The last gradients go to the drives; then tile after tile comes in, is updated, goes out. AdamW, bf16, fp32
    gradients: `parameters` of each layer that one chip updates. The next tile has its buffers before the last one's are
    free.
    """
    node = Node()
    read, write, memory = 24e9, 12e9, 800e9  # of the whole node
    sizes = [n * parameters for n in LAYERS]
    for n in sizes:
        gradient = 4 * n
        node.seconds += gradient / 20e9  # off each chip, over its own link
        node.seconds += chips * gradient / write
        node.on_drives += chips * gradient
    for n in sizes:  # master weight and moments are there since the step before
        node.on_drives += chips * 3 * 4 * n
    for i, n in enumerate(sizes):
        tensors = [4 * n] * 4  # master weight, gradient, two moments
        node.hold(sum(tensors) * chips)
        if i:
            node.buffered -= 4 * 4 * sizes[i - 1] * chips
        node.seconds += sum(chips * size / read for size in tensors)
        states = [tensors[0], tensors[2], tensors[3]]
        node.seconds += chips * (sum(2 * size for size in states) + tensors[1] + 2 * n) / memory  # weight copy made
        node.seconds += 2 * n / 20e9  # and sent to each chip
        node.seconds += sum(chips * size / write for size in states)
    return node


@pytest.mark.parametrize(("replicas", "share"), [(1, 1.0), (4, 0.25)])
def test_a_nodes_update_tensor_by_tensor_takes_as_long_and_as_much(replicas: int, share: float) -> None:
    node, table = update_of_node(share, chips=8), table_of(replicas=replicas)
    layers = [2, 1]  # two of the large kind, one of the small
    assert table.nvme_bytes is not None
    assert float(layers @ table.optimizer_s) == pytest.approx(node.seconds, rel=1e-12)
    assert 8 * float(layers @ table.nvme_bytes) == pytest.approx(node.on_drives, rel=1e-12)
    assert 8 * table.host_fixed_bytes == pytest.approx(node.most_buffered, rel=1e-12)
    assert TILES_IN_HOST_MEMORY == 2


def test_a_chips_share_is_that_of_a_node_divided_by_its_chips() -> None:
    share = drive_share(cluster_of(NODE, chips=(COPIES,)), 0)  # type: ignore[arg-type]
    assert (share.usable_bytes, share.read_bytes_per_s, share.write_bytes_per_s) == (2e12, 3e9, 1.5e9)
    assert copy_rate(COPIES, NODE) == 20e9  # type: ignore[arg-type]


# --- who may ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "tiers"),
    [
        ("never", (Tier.CHIP,)),
        ("allowed", (Tier.CHIP, Tier.HOST, Tier.NVME)),
        ("always", (Tier.HOST, Tier.NVME)),
        (("none", "host"), (Tier.CHIP, Tier.HOST)),
        (("nvme",), (Tier.NVME,)),
    ],
)
def test_the_model_file_says_which_tiers_there_are(asked: Any, tiers: tuple[Tier, ...]) -> None:
    assert model_of(offload_optimizer=asked).groups[0].offloads == tiers
    without = replace(NODE, nvme=None)
    kept = tuple(tier for tier in tiers if tier is not Tier.NVME)
    if kept:
        assert model_of(without, offload_optimizer=asked).groups[0].offloads == kept


def test_a_list_that_a_word_says_is_that_word_and_tiers_are_in_their_order() -> None:
    said = "{preset: llama-3.1-8b}\ntraining: {sequence_length: 1024, global_batch: 8, offload_optimizer: TIERS}\n"

    def read(tiers: str) -> Any:
        return parse_model("model: " + said.replace("TIERS", tiers), "m.yaml").training.offload_optimizer

    assert [read(t) for t in ("[none]", "[nvme, host, none]", "[nvme, host]")] == ["never", "allowed", "always"]
    assert (read("[nvme, none]"), read("[host]")) == (("none", "nvme"), ("host",))
    training = parse_model("model: " + said.replace("TIERS", "[nvme, none]"), "m.yaml").training
    assert tiers_asked(training) == (Tier.CHIP, Tier.NVME)
    assert training.model_validate(training.model_dump(mode="json")) == training


@pytest.mark.parametrize(
    ("group", "reason"),
    [
        (replace(NODE, nvme=None), "the group does not say its nvme"),
        (replace(NODE, host_memory_bytes=None), "the group does not say its host_memory"),
    ],
)
def test_without_its_figures_a_group_keeps_its_states_or_is_refused(group: NodeGroup, reason: str) -> None:
    model = model_of(group, offload_optimizer=("none", "nvme"))
    assert model.groups[0].offloads == (Tier.CHIP,)
    message = f"node group 'a' keeps its optimizer states on the chips: {reason}"
    assert message in [notice.message for notice in model.excluded]
    with pytest.raises(InputError) as caught:
        model_of(group, offload_optimizer=("nvme",))
    assert "cannot be offloaded on node group 'a'" in str(caught.value) and reason in str(caught.value)
    assert "`none` in a list" in caught.value.render()


def test_nobody_hears_of_drives_who_neither_has_nor_asks_for_them() -> None:
    model = model_of(replace(NODE, nvme=None), offload_optimizer="allowed")
    said = [notice.message for notice in model.excluded] + list(model.notes)
    assert not any("drive" in text or "nvme" in text for text in said)
    assert any("optimizer states on drives" in note for note in model_of().notes)
    assert "drives" in str(model_of().space["restrictions"])
    assert model_of().space["offload_optimizer"] == {"a": ["none", "host", "nvme"]}


def test_a_tier_that_is_no_choice_says_why() -> None:
    reason = model_of(offload_optimizer=("none", "host")).why_not(0, Mode(1, offload=Tier.NVME), Setting(1, 1))
    assert reason == "the optimizer states of 'a' have to be on the chips or in host memory"


def test_frozen_weights_have_nothing_on_drives() -> None:
    frozen = matmul_layer(parameters=10**9, operations=())
    frozen = replace(frozen, name="layers.0", weights=tuple(replace(w, trained=False) for w in frozen.weights))
    other = replace(matmul_layer(parameters=10**6, operations=()), name="layers.1", kind="other")
    cluster = cluster_of(NODE, chips=(COPIES,))
    table = cost_model(cluster, graph_of(frozen, other), offload_optimizer="allowed").table(
        0, Mode(1, offload=Tier.NVME), Setting(1, 1)
    )
    assert table is not None and table.nvme_bytes is not None
    assert (table.nvme_bytes[0], table.optimizer_s[0]) == (0, 0)
    assert table.host_fixed_bytes == pytest.approx(2 * 16e6)


def test_states_nearer_to_the_chip_are_never_worse_only_where_no_limit_tells_them_apart() -> None:
    on_chip, on_host, on_drives = (table_of(tier) for tier in Tier)
    assert not on_host.is_never_worse(on_drives) and not on_drives.is_never_worse(on_host)
    assert not on_chip.is_never_worse(on_drives) and not on_drives.is_never_worse(on_chip)
    assert on_drives.is_never_worse(on_drives)
    assert on_drives.is_never_worse(replace(on_drives, usable_nvme_bytes=1.0))
    assert not replace(on_drives, usable_nvme_bytes=1.0).is_never_worse(on_drives)
    assert not on_drives.is_never_worse(replace(on_drives, host_fixed_bytes=0.0))


# --- why activations have none: the table of docs/offload.md ----------------------------------------------------------


def test_what_activations_would_need_of_drives_is_what_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs" / "offload.md").read_text().split("## Why not to drives")[1]
    rows = re.findall(
        r"^\| ([\d,]+), ([\d,]+) \| ([\d.]+) ms \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE
    )
    assert len(rows) == 4
    for hidden, tokens, *written in rows:
        forward_s, rates = drive_rates_needed(int(hidden.replace(",", "")), int(tokens.replace(",", "")))
        assert written == [f"{1e3 * forward_s:.1f}", *(f"{rate / 1e9:.1f}" for rate in rates)]


def drive_rates_needed(hidden: int, tokens: int) -> tuple[float, list[float]]:
    """Seconds of a Llama block's forward pass on one H100, bytes/s that each policy has to move meanwhile."""
    cluster = parse_cluster(
        "node_groups: [{name: a, chip: nvidia-h100-80gb-sxm, nodes: 1, host_memory: 1 TiB}]", "c.yaml"
    )
    policies = ("offload", "selective_offload", "full_offload")
    model = parse_model(
        f"""
model:
  dimensions: {{num_hidden_layers: 2, hidden_size: {hidden}, num_attention_heads: {hidden // 128},
               num_key_value_heads: 8, intermediate_size: {7 * hidden // 2}, vocab_size: 1024}}
training: {{sequence_length: {tokens}, global_batch: 8, micro_batch_sizes: [1], recompute: [{", ".join(policies)}]}}
""",
        "m.yaml",
    )
    cost = CostModel(cluster, model, build_graph(model))
    table, kind = cost.table(0, Mode(1), Setting(1, 1)), cost.chain.kinds[cost.chain.names.index("layers.0")]
    assert table is not None and table.offload is not None and cost.policies == policies
    forward_s = float(table.forward_s[kind])
    return forward_s, [float(moved) / forward_s for moved in table.offload.host_bytes[:, kind]]

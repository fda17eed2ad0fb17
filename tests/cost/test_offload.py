"""Optimizer states in host memory, by hand: 1e9 parameters, copies at 20 GB/s, 800 GB/s and 1 TiB for 8 chips."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Setting
from planner.cost.tiers import Tier
from planner.errors import InputError
from tests.cost.stand_ins import GB, GIB, Chip, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

HOST = NodeGroup("a", host_memory_bytes=1024 * GIB, host_memory_bandwidth_bytes_per_s=800.0 * GB)
COPIES = Chip(host_staging_bytes_per_s=20.0 * GB)
ON_CHIP, ON_HOST = Mode(1), Mode(1, offload=Tier.HOST)


def model_of(group: NodeGroup = HOST, chip: Chip = COPIES, graph: Any = None, **training: Any) -> CostModel:
    layer = matmul_layer(parameters=10**9, operations=())
    layers = (replace(layer, name="layers.0"), replace(layer, name="layers.1"))
    return cost_model(
        cluster_of(group, chips=(chip,)),
        graph or graph_of(*layers),
        **({"offload_optimizer": "allowed"} | training),
    )


def seconds(**given: Any) -> float:
    table = model_of(**given).table(0, ON_HOST, Setting(1, 4))
    assert table is not None
    return float(table.optimizer_s[0])


def test_gradients_go_to_the_host_it_updates_and_weights_come_back():
    # a quarter of 1e9 with ZeRO-1: (4 + 2) bytes at 20 GB/s = 75 ms; 30 bytes touched at 800 / 8 GB/s = 75 ms
    assert seconds() == pytest.approx(0.075 + 0.075)
    # every replica updates everything without ZeRO
    assert seconds(zero=0) == pytest.approx(4 * 0.15)


def test_copies_are_no_faster_than_the_chips_share_of_host_memory():
    slow = replace(HOST, host_memory_bandwidth_bytes_per_s=80.0 * GB)  # 10 GB/s a chip
    assert seconds(group=slow) == pytest.approx(0.25 * (6 + 30) / 10)


def test_without_a_known_copy_rate_the_default_counts_and_is_said():
    model = model_of(chip=Chip())
    assert any("has no host_staging; offloaded states are copied at 12.0 GB/s" in n.message for n in model.excluded)
    assert seconds(chip=Chip()) == pytest.approx(0.25 * (6 / 12 + 30 / 100))


def test_states_leave_the_chip_and_take_host_memory_with_a_place_for_gradients():
    model = model_of()
    on_chip, on_host = (model.table(0, mode, Setting(1, 4)) for mode in (ON_CHIP, ON_HOST))
    assert on_chip is not None and on_host is not None
    assert on_chip.host_bytes is None
    # master 4 and moments 8, over 4 replicas
    assert on_chip.static_bytes[0] - on_host.static_bytes[0] == pytest.approx(0.25e9 * 12)
    assert on_host.host_bytes[0] == pytest.approx(0.25e9 * (4 + 12))
    assert on_host.usable_host_bytes == 128 * GIB
    for name in ("forward_s", "backward_input_s", "backward_weight_s", "saved_bytes", "transient_bytes", "reduction_s"):
        assert (getattr(on_chip, name) == getattr(on_host, name)).all()


@pytest.mark.parametrize(
    ("training", "size"),
    [
        ({"gradients": "compute"}, 2 + 4 + 8),
        ({"gradients": "compute", "precision": "fp16"}, 2 + 4 + 4 + 8),
        ({"master_weights": "none"}, 4 + 2 + 8),
        ({"optimizer": "sgd"}, 4 + 4 + 4),
    ],
)
def test_the_host_holds_what_the_update_needs(training: dict[str, Any], size: int) -> None:
    table = model_of(**training).table(0, ON_HOST, Setting(1, 1))
    assert table is not None and table.host_bytes is not None
    assert table.host_bytes[0] == pytest.approx(1e9 * size)


def test_frozen_weights_have_nothing_to_offload():
    frozen = matmul_layer(parameters=10**9, operations=())
    frozen = replace(frozen, name="layers.0", weights=tuple(replace(w, trained=False) for w in frozen.weights))
    other = replace(matmul_layer(parameters=10**6, operations=()), name="layers.1", kind="other")
    table = model_of(graph=graph_of(frozen, other)).table(0, ON_HOST, Setting(1, 1))
    assert table is not None and table.host_bytes is not None
    assert (table.host_bytes[0], table.optimizer_s[0]) == (0, 0)


def test_never_is_the_default_and_leaves_one_mode():
    assert cost_model().groups[0].offloads == (Tier.CHIP,)
    assert model_of().groups[0].modes[:2] == (ON_CHIP, ON_HOST)
    assert {mode.offload for mode in model_of(offload_optimizer="always").groups[0].modes} == {Tier.HOST}


REASONS = [
    (replace(HOST, host_memory_bytes=None), COPIES, {}, "the group does not say its host_memory"),
    (NodeGroup("a"), COPIES, {}, "the group does not say its host_memory and host_memory_bandwidth"),
    (HOST, replace(COPIES, unified_memory=True), {}, "ideal shares its memory with the host"),
    (HOST, COPIES, {"optimizer": "muon"}, "Muon's matrix products"),
]


@pytest.mark.parametrize(("group", "chip", "training", "reason"), REASONS)
def test_a_group_that_cannot_offload_keeps_its_states_or_is_refused(
    group: NodeGroup, chip: Chip, training: dict[str, Any], reason: str
) -> None:
    model = model_of(group, chip, **training)
    assert model.groups[0].offloads == (Tier.CHIP,)
    kept = "node group 'a' keeps its optimizer states on the chips: "
    assert any(notice.message.startswith(kept + reason) for notice in model.excluded)
    with pytest.raises(InputError, match="cannot be offloaded on node group 'a'") as caught:
        model_of(group, chip, offload_optimizer="always", **training)
    assert reason in caught.value.render()


def test_a_mode_that_is_no_choice_says_why():
    assert model_of(offload_optimizer="never").why_not(0, ON_HOST, Setting(1, 1)) == (
        "the optimizer states of 'a' have to be on the chips"
    )
    assert model_of(offload_optimizer="always").why_not(0, ON_CHIP, Setting(1, 1)) == (
        "the optimizer states of 'a' have to be in host memory"
    )

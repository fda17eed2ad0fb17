"""Activations in host memory: what waits for the copies, what stays on the chip, what fills the host.

On the ideal chip a layer of 1e12 FLOPs takes 10 ms forward and 20 ms backward; it keeps 4,000 elements, 8,000 bytes, of
which `full` keeps 2,000 bytes.
"""

from __future__ import annotations

import numpy as np
import pytest

from planner.cost.host_copies import copy_rate
from planner.cost.model import CostModel
from planner.cost.tables import LayerTable, Mode, Setting
from planner.graph.layers import Collective
from tests.cost.stand_ins import Chip, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

ALL = ("none", "selective", "full", "offload", "selective_offload", "full_offload")
MS = 1e-3


def model_with(
    rate: float | None, group: NodeGroup | None = None, link: int | None = None, **more: object
) -> CostModel:
    chip = Chip(host_staging_bytes_per_s=rate, chips_per_host_link=link)
    cluster = cluster_of(group or NodeGroup("a"), chips=(chip,))
    return cost_model(cluster, recompute=more.pop("recompute", ALL), **more)  # type: ignore[arg-type]


def added(rate: float, policy: str, **more: object) -> tuple[float, float]:
    """Seconds that a policy adds to a layer's forward and backward pass."""
    cost = model_with(rate, **more)  # type: ignore[arg-type]
    table, q = cost.table(0, Mode(1), Setting(1, 1)), cost.policies.index(policy)
    assert table is not None and table.offload is not None
    return float(table.offload.forward_s[q, 0]), float(table.recompute_s[q, 0])


def test_copies_as_fast_as_the_layer_cost_nothing() -> None:
    assert added(8000 / (10 * MS), "offload") == pytest.approx((0.0, 0.0))


def test_what_a_copy_takes_longer_than_the_forward_pass_is_waited_for() -> None:
    # 16 ms each way: 6 ms more than the forward pass, less than the backward pass
    assert added(8000 / (16 * MS), "offload") == pytest.approx((6 * MS, 0.0))


def test_a_slow_copy_is_waited_for_both_ways() -> None:
    # 25 ms each way: 15 ms and 5 ms
    assert added(8000 / (25 * MS), "offload") == pytest.approx((15 * MS, 5 * MS))


def test_chips_on_one_host_link_share_it() -> None:
    assert added(2 * 8000 / (25 * MS), "offload", link=2) == pytest.approx((15 * MS, 5 * MS))


def test_a_host_link_has_no_more_chips_than_the_node() -> None:
    chip = Chip(host_staging_bytes_per_s=12e9, chips_per_host_link=4)
    rates = [copy_rate(chip, NodeGroup("a", chips_per_node=n)) for n in (1, 2, 8)]  # type: ignore[arg-type]
    assert rates == [12e9, 6e9, 3e9]


def test_a_checkpoint_on_the_host_is_recomputed_from_as_well() -> None:
    # 2,000 bytes in 15 ms: 5 ms more than the forward pass; the backward pass has 10 ms more work and hides it all
    cost = model_with(2000 / (15 * MS), graph=graph_of(*(rerun(f"layers.{i}") for i in range(4))))
    table = cost.table(0, Mode(1), Setting(1, 1))
    assert table is not None and table.offload is not None
    full, on_host = cost.policies.index("full"), cost.policies.index("full_offload")
    assert table.recompute_s[full, 0] == pytest.approx(10 * MS)
    assert table.recompute_s[on_host, 0] == pytest.approx(10 * MS)
    assert table.offload.forward_s[on_host, 0] == pytest.approx(5 * MS)
    assert table.added_s[on_host, 0] == pytest.approx(15 * MS)


def rerun(name: str, **more: object):  # type: ignore[no-untyped-def]
    from dataclasses import replace

    layer = matmul_layer(name, **more)
    operations = tuple(replace(op, rerun=frozenset({"selective", "full"})) for op in layer.operations)
    return replace(layer, operations=operations)


def test_collectives_hide_no_copies() -> None:
    # two chips halve work and bytes; a collective of 5 ms each way is on top, and the copy still waits 3 ms
    gather = Collective("gather", "all_gather", "tensor", 1e9, forward=1, backward=1)
    layers = tuple(matmul_layer(f"layers.{i}", collectives=(gather,)) for i in range(4))
    cost = model_with(8000 / (16 * MS), graph=graph_of(*layers, num_heads=2, num_kv_heads=2))
    table = cost.table(0, Mode(2), Setting(1, 1))
    assert table is not None and table.offload is not None
    assert table.forward_s[0] > 6 * MS
    # the input is divided with sequence parallelism, the inner part by tensor parallelism: 4,000 bytes in 8 ms
    assert table.offload.forward_s[cost.policies.index("offload"), 0] == pytest.approx(3 * MS)


def test_what_is_offloaded_leaves_the_chip_but_for_a_working_set_and_staging_buffers() -> None:
    # three of four layers offloaded, four micro-batches in flight
    cost = model_with(8000 / (25 * MS))
    counts = [[0] for _ in cost.policies]
    counts[cost.policies.index("none")] = [1]
    counts[cost.policies.index("offload")] = [3]
    stage = cost.breakdown(0, Mode(1), Setting(1, 1), counts, in_flight=4)
    assert stage.memory.activations == 4 * 8000
    assert stage.memory.host_bytes == 4 * 3 * 8000
    assert stage.memory.staging == 2 * 8000  # one layer out, one back
    assert stage.memory.transient == 8000  # a layer that runs backward has its activations on the chip
    assert stage.memory.peak_bytes == sum(stage.memory.parts().values())
    assert (stage.time.offload_forward_s, stage.time.offload_backward_s) == pytest.approx((45 * MS, 15 * MS))
    assert stage.time.forward_s == pytest.approx(4 * 10 * MS + 45 * MS)
    assert stage.time.backward_s == pytest.approx(4 * 20 * MS + 15 * MS)
    assert stage.time.recompute_s == 0


def test_a_stage_that_offloads_nothing_has_no_part_of_it() -> None:
    cost = model_with(1e9)
    counts = [[4]] + [[0] for _ in cost.policies[1:]]
    memory = cost.breakdown(0, Mode(1), Setting(1, 1), counts, in_flight=4).memory
    assert memory.host_bytes is None and "staging" not in memory.parts()


def test_each_chip_has_an_equal_share_of_the_host() -> None:
    table = table_of(model_with(1e9, NodeGroup("a", chips_per_node=4, host_memory_bytes=1000)))
    assert table.offload is not None and table.usable_host_bytes == 250
    unlimited = table_of(model_with(1e9))
    assert unlimited.offload is not None and unlimited.usable_host_bytes == float("inf")


def table_of(cost: CostModel) -> LayerTable:
    table = cost.table(0, Mode(1), Setting(1, 1))
    assert table is not None
    return table


def test_without_offload_policies_tables_know_nothing_of_hosts() -> None:
    table = table_of(model_with(1e9, recompute=("none", "selective", "full")))
    assert table.offload is None
    np.testing.assert_array_equal(table.added_s, table.recompute_s)


def test_other_policies_have_the_same_numbers_beside_offload() -> None:
    plain, more = table_of(model_with(1e9, recompute=("none", "selective", "full"))), table_of(model_with(1e9))
    for name in ("recompute_s", "saved_bytes", "transient_bytes"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(more, name)[:3])


def test_an_unknown_rate_is_that_of_pcie_3_and_a_notice_says_so() -> None:
    assert copy_rate(Chip(), NodeGroup("a")) == 12e9  # type: ignore[arg-type]
    notices = {notice.code: notice.message for notice in model_with(None).excluded}
    assert notices["host-staging"].startswith("host_staging of ideal is not known; activations are offloaded at 12")
    assert "chips_per_host_link of ideal is not known" in notices["host-link"]
    assert "host_memory of a is not given" in notices["host-memory"]


def test_memory_that_is_shared_with_the_host_is_not_freed_by_moving_it() -> None:
    chip = Chip(unified_memory=True)
    cost = cost_model(cluster_of(chips=(chip,)), recompute=ALL)
    table = table_of(cost)
    assert table.offload is not None and table.usable_host_bytes == 0
    notices = {notice.code: notice.message for notice in cost.excluded}
    assert notices["unified-memory"] == "ideal: memory is shared with the host, so that nothing is offloaded there"
    assert not {"host-staging", "host-link", "host-memory"} & set(notices)


def test_nothing_is_assumed_where_everything_is_given() -> None:
    group = NodeGroup("a", host_memory_bytes=10**12)
    codes = {notice.code for notice in model_with(1e9, group, link=1).excluded}
    assert not codes & {"host-staging", "host-link", "host-memory"}
    assert not {n.code for n in cost_model().excluded} & {"host-staging", "host-link", "host-memory"}


def test_the_plan_space_and_the_assumptions_tell_of_host_memory() -> None:
    asked, plain = model_with(1e9), cost_model()
    assert asked.space["recompute"] == list(ALL)
    assert "each chip has an equal share of its host's memory" in asked.space["restrictions"]  # type: ignore[operator]
    assert sum("host memory" in note for note in asked.notes) == 2
    assert not any("host memory" in note for note in plain.notes)

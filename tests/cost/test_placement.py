"""Which slots, chips and ranks a stage replica takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.cost.placement import (
    chips_of_slot,
    crosses_node,
    first_rank,
    idle_chips_per_node,
    node_of_slot,
    ranks_of_replica,
    slot_of,
)
from planner.cost.tables import ChipGroup

A = ChipGroup("a", "a100", nodes=2, chips_per_node=8, tensor_degrees=(1, 2, 4, 8))
B = ChipGroup("b", "v100", nodes=1, chips_per_node=4, tensor_degrees=(1, 2, 4))


def test_replicas_of_a_stage_take_neighbouring_slots():
    assert [slot_of(1, replica, data=2) for replica in (0, 1)] == [2, 3]


def test_a_pipeline_leaves_a_node_after_its_last_slot():
    # 4 slots a node, one replica: stages 0-3 in node 0, 4-7 in node 1
    assert [crosses_node(stage, 1, 4) for stage in range(7)] == [False, False, False, True, False, False, False]


def test_two_replicas_cross_after_every_second_stage():
    assert [crosses_node(stage, 2, 4) for stage in range(3)] == [False, True, False]


def test_as_many_replicas_as_slots_cross_always():
    assert all(crosses_node(stage, 4, 4) for stage in range(3))


def test_slots_skip_the_idle_chips_of_a_node():
    # 3-chip nodes, tensor 2: chips 2 and 5 stay idle
    assert [chips_of_slot(slot, 3, 2) for slot in (0, 1)] == [(0, 1), (3, 4)]
    assert idle_chips_per_node(3, 2) == 1


def test_ranks_count_earlier_groups_whole():
    assert first_rank((A, B), 1) == 16
    assert ranks_of_replica((A, B), 1, stage_index=1, replica=0, data=1, tensor=2) == (18, 19)
    assert ranks_of_replica((B, A), 1, stage_index=0, replica=1, data=2, tensor=4) == (8, 9, 10, 11)


def test_context_parallel_chips_belong_to_the_slot():
    assert ranks_of_replica((A,), 0, stage_index=1, replica=0, data=1, tensor=2, context=2) == (4, 5, 6, 7)


@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_no_chip_is_used_twice_and_no_slot_leaves_its_node(chips_per_node, width, stages, data):
    if width > chips_per_node:
        return
    slots = [slot_of(s, i, data) for s in range(stages) for i in range(data)]
    chips = [chips_of_slot(slot, chips_per_node, width) for slot in slots]
    used = [chip for slot in chips for chip in slot]
    assert len(set(used)) == len(used)
    for slot, members in zip(slots, chips, strict=True):
        assert {chip // chips_per_node for chip in members} == {node_of_slot(slot, chips_per_node // width)}

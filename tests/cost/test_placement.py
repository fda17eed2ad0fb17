"""Which slots, chips and ranks a stage replica takes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from planner.cost.placement import (
    Block,
    chips_of_slot,
    crosses_node,
    first_rank,
    idle_chips_per_node,
    node_of_slot,
    place_blocks,
    ranks_of_place,
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


def test_wide_blocks_come_first_and_narrow_ones_fill_what_is_left():
    # A has two nodes of eight chips
    blocks = [Block(0, 2, 2), Block(1, 1, 1), Block(0, 4, 3), Block(0, 2, 1)]
    assert place_blocks((A, B), blocks[:3]) == [[(1, 4), (1, 6)], [(0, 0)], [(0, 0), (0, 4), (1, 0)]]
    assert place_blocks((A, B), blocks) is None


def test_equal_blocks_stay_in_the_order_given():
    assert place_blocks((B,), [Block(0, 1, 1), Block(0, 2, 1), Block(0, 1, 1)]) == [[(0, 2)], [(0, 0)], [(0, 3)]]


def test_chips_that_wide_replicas_leave_over_are_filled():
    six = ChipGroup("six", "c", nodes=2, chips_per_node=6, tensor_degrees=(1, 2, 4))
    assert place_blocks((six,), [Block(0, 4, 2), Block(0, 2, 2)]) == [[(0, 0), (1, 0)], [(0, 4), (1, 4)]]


groups_and_degrees = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from([1, 2, 3, 4, 6, 8]), st.integers(1, 8)), min_size=1, max_size=3
)


@given(groups_and_degrees, st.lists(st.integers(0, 2), min_size=1, max_size=5), st.integers(1, 4), st.integers(1, 2))
def test_one_shape_sits_where_the_slots_are(shape, order, data, context):
    groups = [ChipGroup(str(i), "c", nodes, chips, (1,)) for i, (nodes, chips, _) in enumerate(shape)]
    stages = [g for g in order if g < len(groups)]
    degrees = [min(tensor, max(1, chips // context)) for _, chips, tensor in shape]
    if any(degrees[g] * context > groups[g].chips_per_node for g in stages):
        return
    placed = place_blocks(groups, [Block(g, degrees[g] * context, data) for g in stages])
    fits = all(stages.count(g) <= groups[g].max_stages(degrees[g], data, context) for g in set(stages))
    # what does not fit whole stages may still fit replica by replica, never the other way round
    assert placed is not None or not fits
    for s, g in enumerate(stages):
        for i in range(data if placed else 0):
            own = ranks_of_place(groups, g, placed[s][i], degrees[g] * context)
            assert own == ranks_of_replica(groups, g, stages[:s].count(g), i, data, degrees[g], context)


@given(
    st.integers(1, 3),
    st.sampled_from([4, 8, 16]),
    st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=8),
)
def test_powers_of_two_are_packed_without_loss_and_no_chip_is_used_twice(nodes, chips, sizes):
    group = ChipGroup("a", "c", nodes, chips, (1,))
    blocks = [Block(0, 2**power, replicas) for power, replicas in sizes if 2**power <= chips]
    placed = place_blocks((group,), blocks)
    assert (placed is not None) == (sum(b.width * b.replicas for b in blocks) <= nodes * chips)
    ranks = [
        rank
        for block, places in zip(blocks, placed or (), strict=False)
        for place in places
        for rank in ranks_of_place((group,), 0, place, block.width)
    ]
    assert len(set(ranks)) == len(ranks)
    assert all(first + b.width <= chips for b, p in zip(blocks, placed or (), strict=False) for _, first in p)

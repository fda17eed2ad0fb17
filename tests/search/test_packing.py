"""What node groups have room for, and mixes that a search by bare chip counts would miss."""

from __future__ import annotations

from itertools import product

import pytest

from planner.cost.placement import Block, place_blocks
from planner.cost.tables import ChipGroup
from planner.search.mixed.packing import Room, rooms_of, taken
from planner.search.mixed.variants import variants


def group(nodes: int, chips: int) -> ChipGroup:
    return ChipGroup("g", "chip", nodes, chips, (1, 2, 4))


def test_a_node_of_seven_chips_has_six_for_stages_of_two_and_four_for_one_of_four() -> None:
    rooms = rooms_of([group(2, 7)], [(0, 1), (0, 2), (0, 4)])
    assert rooms == (Room(0, 1, 14), Room(0, 2, 12), Room(0, 4, 8))
    assert taken(rooms, [(0, 1), (0, 2), (0, 4), (0, 4)]) == (11, 10, 8)


def test_full_nodes_of_eight_have_one_room() -> None:
    assert rooms_of([group(3, 8)], [(0, 1), (0, 2), (0, 4), (0, 8)]) == (Room(0, 1, 24),)


def test_widths_that_do_not_divide_each_other_leave_no_stages_out() -> None:
    """Two stages of two and one of three fill seven chips."""
    assert rooms_of([group(1, 7)], [(0, 2), (0, 3)]) == (Room(0, 2, 7), Room(0, 3, 6))


@pytest.mark.parametrize("chips", [3, 5, 6, 7, 8])
def test_stages_fit_their_nodes_exactly_when_they_fit_all_rooms(chips: int) -> None:
    pool, widths = group(2, chips), (1, 2, 4)
    rooms = rooms_of([pool], [(0, w) for w in widths])
    seen = set()
    for counts in product(range(6), range(4), range(4)):
        slots = [(0, w) for w, n in zip(widths, counts, strict=True) for _ in range(n)]
        fits = all(n <= room.chips for n, room in zip(taken(rooms, slots), rooms, strict=True))
        assert fits == (place_blocks([pool], [Block(0, w, 1) for _, w in slots]) is not None), counts
        seen.add(fits)
    assert seen == {True, False}


def test_variants_of_a_pipeline_are_a_step_away_from_it() -> None:
    found = set(variants([("a", "a", "b")], ["a", "b", "c"]))  # type: ignore[list-item]
    assert {("a", "b"), ("a", "a", "a", "b"), ("c", "a", "b"), ("a", "c", "b"), ("a", "a", "c")} <= found
    assert {("c", "c", "b"), ("a", "a", "b", "a", "a", "b"), ("a",), ("a", "b")} <= found
    assert () not in found

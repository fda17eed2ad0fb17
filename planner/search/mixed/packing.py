"""What node groups have room for: chips that stages of a width can take, as a node holds whole stages only.

Seven chips hold three stages of two chips, and one of four beside one of two. With widths that divide each other
(powers of two), stages fit their group exactly when they fit all its rooms; with others the rooms may be too wide,
never too narrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from planner.cost.tables import ChipGroup

__all__ = ["Room", "rooms_of", "taken"]


class Room(NamedTuple):
    """Stages of `width` chips or more take at most `chips` chips of the group."""

    group: int
    width: int
    chips: int


def rooms_of(groups: Sequence[ChipGroup], slots: Iterable[tuple[int, int]]) -> tuple[Room, ...]:
    """The rooms of all groups, those left out that a narrower one implies. slots: (group, width of a stage)."""
    rooms = []
    for g, widths in enumerate(_widths(slots, len(groups))):
        before = None
        for i, width in enumerate(widths):
            chips = groups[g].nodes * _most_taken(groups[g].chips_per_node, widths[i:])
            if chips != before:
                rooms.append(Room(g, width, chips))
            before = chips
    return tuple(rooms)


def taken(rooms: Sequence[Room], slots: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Chips that stages take of every room. slots: (group, width) of every stage."""
    return tuple(sum(w for g, w in slots if g == room.group and w >= room.width) for room in rooms)


def _widths(slots: Iterable[tuple[int, int]], num_groups: int) -> list[list[int]]:
    widths: list[set[int]] = [set() for _ in range(num_groups)]
    for group, width in slots:
        widths[group].add(width)
    return [sorted(found) for found in widths]


def _most_taken(chips: int, widths: Sequence[int]) -> int:
    """The most of a node's chips that stages of these widths take together."""
    possible = {0}
    for total in range(1, chips + 1):
        if any(total - width in possible for width in widths):
            possible.add(total)
    return max(possible)

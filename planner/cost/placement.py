"""Where stages sit: pure rules that the search, the checker and the trainers share.

A *slot* is the tensor x context chips of one stage replica; it never leaves a node. The slots of a node group are
numbered node by node; stage j (0-based, counted within its group) with replicas i = 0 .. d-1 occupies slots j*d + i.
With several pipeline shapes the widest slots of a group come first, each at the first node with room (`place_blocks`);
with one shape that is the same rule. Chips of a node that no slot covers stay idle. Ranks number every chip of the
cluster in the order of node groups, nodes and chips. On a topology whole nodes of a group are exchanged afterwards
(plan/placing.py); nothing here changes by that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.cost.tables import ChipGroup

__all__ = [
    "Block",
    "chips_of_slot",
    "crosses_node",
    "first_rank",
    "idle_chips_per_node",
    "node_of_slot",
    "place_blocks",
    "ranks_of_place",
    "ranks_of_replica",
    "slot_of",
    "stays_in_node",
]


def slot_of(stage_index: int, replica: int, data: int) -> int:
    """Slot of a replica of the group's stage `stage_index`:  j*d + i."""
    return stage_index * data + replica


def node_of_slot(slot: int, slots_per_node: int) -> int:
    """Node (within its group) that a slot sits in."""
    return slot // slots_per_node


def crosses_node(stage_index: int, data: int, slots_per_node: int) -> bool:
    """Whether the transfer from a stage to the next of the same group leaves a node for any replica."""
    return not stays_in_node(stage_index, stage_index + 1, data, slots_per_node)


def stays_in_node(one: int, other: int, data: int, slots_per_node: int) -> bool:
    """Whether two stages of a group, counted within it, sit in the same node in every replica."""
    return all(
        node_of_slot(slot_of(one, i, data), slots_per_node) == node_of_slot(slot_of(other, i, data), slots_per_node)
        for i in range(data)
    )


def chips_of_slot(slot: int, chips_per_node: int, tensor: int, context: int = 1) -> tuple[int, ...]:
    """Chips of a slot, numbered within the group, tensor parallel neighbours together."""
    width = tensor * context
    slots_per_node = chips_per_node // width
    start = node_of_slot(slot, slots_per_node) * chips_per_node + slot % slots_per_node * width
    return tuple(range(start, start + width))


def idle_chips_per_node(chips_per_node: int, tensor: int, context: int = 1) -> int:
    """Chips of every node that no slot covers."""
    return chips_per_node % (tensor * context)


def first_rank(groups: Sequence[ChipGroup], group: int) -> int:
    """Rank of a group's first chip: all chips of earlier groups come before it, idle ones included."""
    return sum(g.nodes * g.chips_per_node for g in groups[:group])


def ranks_of_replica(
    groups: Sequence[ChipGroup], group: int, stage_index: int, replica: int, data: int, tensor: int, context: int = 1
) -> tuple[int, ...]:
    """Ranks of one replica of the group's stage `stage_index`."""
    slot = slot_of(stage_index, replica, data)
    start = first_rank(groups, group)
    return tuple(start + chip for chip in chips_of_slot(slot, groups[group].chips_per_node, tensor, context))


def ranks_of_place(groups: Sequence[ChipGroup], group: int, place: tuple[int, int], width: int) -> tuple[int, ...]:
    """Ranks of `width` chips of a node. place: (node, first chip of the node)."""
    node, first = place
    start = first_rank(groups, group) + node * groups[group].chips_per_node + first
    return tuple(range(start, start + width))


class Block(NamedTuple):
    """All replicas of one stage of one shape. width: tensor x context chips of a replica."""

    group: int
    width: int
    replicas: int


def place_blocks(groups: Sequence[ChipGroup], blocks: Sequence[Block]) -> list[list[tuple[int, int]]] | None:
    """(node, first chip of the node) of every replica of every block; None when they do not fit.

    In each group the widest blocks first, equal ones in the order given; every replica at the first node with room.
    Widths that divide each other (powers of two) are packed without loss by this rule.
    """
    places: list[list[tuple[int, int]]] = [[] for _ in blocks]
    for g, group in enumerate(groups):
        own = sorted((i for i, b in enumerate(blocks) if b.group == g), key=lambda i: (-blocks[i].width, i))
        taken = [0] * group.nodes
        node, width = 0, 0
        for i in own:
            if blocks[i].width != width:
                node, width = 0, blocks[i].width
            for _ in range(blocks[i].replicas):
                while node < group.nodes and taken[node] + width > group.chips_per_node:
                    node += 1
                if node == group.nodes:
                    return None
                places[i].append((node, taken[node]))
                taken[node] += width
    return places

"""Replicas stay inside nodes, also where degrees do not divide one another or the last node is smaller."""

from __future__ import annotations

import numpy as np

from planner.search.mixed_stages import ChipPool, ReplicaKind
from planner.search.mixed_stages.packing import Packing, pack_nodes


def test_a_smaller_last_node_holds_fewer_large_replicas() -> None:
    # 10 chips in nodes of 4, 4 and 2: two replicas of degree 4, or five of degree 2
    packing = Packing([ChipPool("a", 10, 4, 0.0)], [ReplicaKind(0, 1), ReplicaKind(0, 2), ReplicaKind(0, 4)])
    assert [packing.most(k) for k in range(3)] == [10, 5, 2]
    assert packing.assign(np.array([2, 0, 2])) == [[2, 2], [], [0, 1]]
    assert packing.assign(np.array([0, 0, 3])) is None
    # One row for all degrees (10 chips), one for degree 4 alone (8 chips): degree 2 wastes nothing.
    assert packing.caps.tolist() == [10.0, 8.0]
    assert packing.rows.tolist() == [[1.0, 2.0, 4.0], [0.0, 0.0, 4.0]]


def test_degrees_that_do_not_divide_one_another_are_packed_by_search() -> None:
    # A node of 7 holds 3 + 2 + 2; largest first puts 3 + 3 into one and then three 2s, not four, into the other.
    assert pack_nodes((7, 7), [(3, 2), (2, 4)]) is not None
    assert pack_nodes((6, 6), [(3, 2), (2, 3)]) == [[0, 0], [1, 1, 1]]
    assert pack_nodes((6, 6), [(3, 3), (2, 2)]) is None


def test_what_is_packed_is_what_was_asked_for() -> None:
    placed = pack_nodes((7, 7), [(2, 4), (3, 2)])
    assert placed is not None
    used = [0, 0]
    for degree, nodes in zip((2, 3), placed, strict=True):
        for node in nodes:
            used[node] += degree
    assert [len(nodes) for nodes in placed] == [4, 2]
    assert used == [7, 7]

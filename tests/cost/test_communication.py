"""Alpha-beta formulas by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.communication import (
    RingPath,
    StageLink,
    all_gather_s,
    all_reduce_s,
    all_to_all_s,
    gather_after_transfer_s,
    reduce_scatter_s,
    ring_exchange_s,
    ring_path,
    staged_rate,
    transfer_s,
)

INSIDE, ACROSS = RingPath(100.0, 1e-6), RingPath(10.0, 5e-6)


def test_ring_all_reduce_of_four_chips():
    # 2 * 3/4 * 800 bytes / 100 B/s = 12 s, and 2 * 3 hops of 1 s
    assert all_reduce_s(800.0, 4, 100.0, 1.0) == pytest.approx(12 + 6)


def test_reduce_scatter_and_all_gather_are_half_an_all_reduce():
    half = all_reduce_s(800.0, 4, 100.0, 1.0) / 2
    assert reduce_scatter_s(800.0, 4, 100.0, 1.0) == all_gather_s(800.0, 4, 100.0, 1.0) == half


def test_all_to_all_keeps_its_own_share():
    assert all_to_all_s(800.0, 4, 100.0, 1.0) == pytest.approx(6 + 3)


def test_ring_exchange_passes_every_slice_by_every_chip():
    assert ring_exchange_s(100.0, 4, 100.0, 1.0) == pytest.approx(3 * (1 + 1))


def test_one_chip_communicates_nothing():
    for collective in (all_reduce_s, reduce_scatter_s, all_gather_s, all_to_all_s, ring_exchange_s):
        assert collective(1e12, 1, 1.0, 1.0) == 0


def test_a_ring_within_one_node_uses_the_link_inside():
    # 8 slots a node: 1, 2, 4 or 8 replicas always share a node
    for data in (1, 2, 4, 8):
        assert ring_path(INSIDE, ACROSS, 8, data, 1, 1) is INSIDE


def test_a_ring_across_nodes_uses_the_nics_of_its_stage():
    # 16 replicas of one chip: 8 chips a node, one ring: 8 NICs of 10 B/s, below the 100 B/s inside
    assert ring_path(INSIDE, ACROSS, 8, 16, 1, 1) == RingPath(80.0, 5e-6)
    # tensor 8: one replica of 8 chips a node, 8 rings, a NIC each
    assert ring_path(INSIDE, ACROSS, 1, 2, 8, 8) == RingPath(10.0, 5e-6)
    # tensor 2, 4 slots a node, 8 replicas: 8 chips, 2 rings, 4 NICs each
    assert ring_path(INSIDE, ACROSS, 4, 8, 2, 2) == RingPath(40.0, 5e-6)
    # a node of 20 NICs a ring is bounded by the link inside
    assert ring_path(INSIDE, ACROSS, 20, 40, 1, 1) == RingPath(100.0, 5e-6)


def test_replicas_that_straddle_nodes_count_the_least_a_node_can_hold():
    # 4 slots a node, 6 replicas: some node holds only 2 of a stage's replicas (gcd)
    assert ring_path(INSIDE, ACROSS, 4, 6, 1, 1) == RingPath(20.0, 5e-6)
    # 3 replicas over 4 slots: one node may hold a single one
    assert ring_path(INSIDE, ACROSS, 4, 3, 1, 1) == RingPath(10.0, 5e-6)


def test_equal_degrees_send_a_slice_a_chip():
    # 4 pairs of 10 B/s, NICs of 10 B/s: 40 B/s
    link = StageLink(10.0, 1.0, 10.0, 10.0)
    assert transfer_s(400.0, 4, 4, 1, link) == pytest.approx(10 + 1)


def test_the_side_with_fewer_nics_bounds_unequal_degrees():
    link = StageLink(10.0, 0.0, 10.0, 10.0)
    assert transfer_s(400.0, 8, 2, 1, link) == transfer_s(400.0, 2, 8, 1, link) == pytest.approx(400 / 20)


def test_a_thin_link_bounds_every_pair():
    assert transfer_s(400.0, 2, 4, 1, StageLink(1.0, 0.0, 10.0, 10.0)) == pytest.approx(400 / 4)


def test_context_parallel_chips_share_the_load():
    link = StageLink(10.0, 0.0, 10.0, 10.0)
    assert transfer_s(400.0, 2, 2, 2, link) == pytest.approx(transfer_s(400.0, 2, 2, 1, link) / 2)


def test_host_staging_stores_and_forwards_on_both_ends():
    # 400/40 network + 400/(4*5) out + 400/(4*20) in
    link = StageLink(10.0, 1.0, 10.0, 10.0, (5.0, 20.0))
    assert transfer_s(400.0, 4, 4, 1, link) == pytest.approx(10 + 1 + 20 + 5)
    assert staged_rate(10.0, 5.0) == pytest.approx(1 / (1 / 10 + 2 / 5))
    assert staged_rate(10.0, None) == 10.0


def test_no_gather_between_equal_degrees_with_sequence_parallelism():
    assert gather_after_transfer_s(400.0, 4, 4, 1, True, INSIDE) == 0


def test_the_receiving_node_gathers_otherwise():
    path = RingPath(100.0, 1.0)
    # 3/4 * 400 / 100 + 3 * 1
    assert gather_after_transfer_s(400.0, 4, 4, 1, False, path) == pytest.approx(6)
    assert gather_after_transfer_s(400.0, 8, 4, 1, True, path) == pytest.approx(6)
    assert gather_after_transfer_s(400.0, 8, 1, 1, True, path) == 0


@given(
    st.floats(1, 1e9), st.sampled_from([1, 2, 4, 8]), st.sampled_from([1, 2, 4, 8]), st.floats(1, 1e3), st.floats(1, 4)
)
def test_a_faster_link_is_never_slower(num_bytes, source, target, rate, factor):
    slow = StageLink(rate, 1e-6, rate, rate)
    fast = StageLink(rate * factor, 1e-6, rate * factor, rate * factor)
    assert transfer_s(num_bytes, source, target, 1, fast) <= transfer_s(num_bytes, source, target, 1, slow)


def test_a_replica_has_no_more_than_its_share_of_the_line():
    pairs = StageLink(10.0, 1.0, 100.0, 100.0, None, 25.0)
    # four pairs and two context slices could carry 80, the replica's share is 25; one pair carries 10
    assert transfer_s(400.0, 4, 4, 2, pairs) == pytest.approx(400 / 25 + 1)
    assert transfer_s(400.0, 1, 1, 1, pairs) == pytest.approx(400 / 10 + 1)


@given(st.integers(1, 32), st.integers(1, 64), st.sampled_from([1, 2, 4, 8]))
def test_a_ring_is_never_faster_than_the_link_inside(slots, data, tensor):
    path = ring_path(INSIDE, ACROSS, slots, data, tensor, tensor)
    assert ACROSS.bytes_per_s <= path.bytes_per_s <= INSIDE.bytes_per_s

"""Which rate counts on which link."""

from __future__ import annotations

import pytest

from planner.cost.compute import INTRA_NODE_EFFICIENCY, NETWORK_EFFICIENCY
from planner.cost.links import expert_path, group_links, link_between
from planner.cost.sharding import Degrees, ExpertLayout, expert_layout
from tests.cost.stand_ins import GB, Chip, Interconnect, LinkPath, Measured, NodeGroup, cluster_of

PLAIN = Chip(efficiency=None)


def degrees(tensor: int, data: int, expert: int) -> Degrees:
    layout = expert_layout(expert, tensor, 1, data, 64)
    assert isinstance(layout, ExpertLayout)
    return Degrees(tensor, 1, data, True, layout)


def test_class_defaults_apply_where_a_profile_says_nothing():
    links = group_links(cluster_of(NodeGroup("a", nodes=2), chips=(PLAIN,)), 0)
    assert links.inside.bytes_per_s == pytest.approx(100 * GB * INTRA_NODE_EFFICIENCY)
    assert links.across.bytes_per_s == pytest.approx(10 * GB * NETWORK_EFFICIENCY)


def test_a_measured_all_reduce_is_the_rate_of_collectives_not_of_one_pair():
    chip = Chip(efficiency=None, measured=Measured(allreduce_bytes_per_s=70 * GB))
    links = group_links(cluster_of(chips=(chip,)), 0)
    assert links.inside.bytes_per_s == 70 * GB
    assert links.inside_link.bytes_per_s == pytest.approx(100 * GB * INTRA_NODE_EFFICIENCY)


def test_a_group_with_its_own_link_does_not_inherit_the_measurement():
    chip = Chip(efficiency=None, measured=Measured(allreduce_bytes_per_s=70 * GB))
    links = group_links(cluster_of(NodeGroup("a", intra_node=Interconnect(50 * GB)), chips=(chip,)), 0)
    assert links.inside.bytes_per_s == pytest.approx(50 * GB * INTRA_NODE_EFFICIENCY)


def test_the_nic_bounds_a_faster_network():
    cluster = cluster_of(NodeGroup("a", nodes=2), paths={(0, 0): LinkPath(40 * GB, 7e-6)})
    assert group_links(cluster, 0).across.bytes_per_s == 10 * GB
    assert group_links(cluster, 0).across.latency_s == 7e-6


def test_tied_stages_of_a_one_node_cluster_use_the_link_inside():
    links = group_links(cluster_of(), 0)
    assert links.tied is links.inside
    two_nodes = group_links(cluster_of(NodeGroup("a", nodes=2)), 0)
    assert two_nodes.tied is two_nodes.across


def test_a_group_without_nics_uses_its_link_to_the_others():
    cluster = cluster_of(
        NodeGroup("a", nic=None), NodeGroup("b"), paths={(0, 1): LinkPath(4 * GB), (1, 0): LinkPath(4 * GB)}
    )
    assert group_links(cluster, 0).tied.bytes_per_s == 4 * GB
    link = link_between(cluster, 0, 1)
    assert (link.source_chip_bytes_per_s, link.target_chip_bytes_per_s) == (float("inf"), 10 * GB)


def test_a_host_link_is_staged_at_both_ends():
    paths = {(0, 1): LinkPath(8 * GB, 1e-5, "host", 12 * GB)}
    assert link_between(cluster_of(NodeGroup("a"), NodeGroup("b"), paths=paths), 0, 1).staging_bytes_per_s == (
        12 * GB,
        12 * GB,
    )


def test_experts_that_never_leave_a_node_use_the_link_inside():
    links = group_links(cluster_of(NodeGroup("a", nodes=4)), 0)
    # 8 slots a node, tensor 1
    assert expert_path(links, 8, degrees(1, 8, 8)) is links.inside  # the whole stage in one node
    assert expert_path(links, 8, degrees(1, 16, 8)) is links.inside  # two aligned sets of 8
    assert expert_path(links, 8, degrees(1, 16, 16)).bytes_per_s == 10 * GB
    assert expert_path(links, 8, degrees(1, 12, 4)) is links.inside  # 4 divides 8 and 12
    assert expert_path(links, 8, degrees(1, 6, 2)) is links.inside
    # tensor 4, 2 slots a node: 4 chips are one slot, 8 chips two
    assert expert_path(links, 2, degrees(4, 8, 4)) is links.inside
    assert expert_path(links, 2, degrees(4, 8, 8)) is links.inside
    assert expert_path(links, 2, degrees(4, 8, 16)).bytes_per_s == 10 * GB
    # divided experts: expert 2 x tensor 4 = two slots
    assert expert_path(links, 2, degrees(4, 8, 2)) is links.inside

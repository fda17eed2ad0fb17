"""Paths between node groups: what the file says, else the site link, else the slower NIC."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.spec import DEFAULT_HOST_STAGING_BYTES_PER_S
from tests.spec.written import CHIP, cluster, problems

SLOW = CHIP.replace("100 Gbps, latency: 5 us", "25 Gbps, latency: 9 us").replace("host_staging: 20", "host_staging: 8")
OTHER = SLOW.replace("vendor: acme", "vendor: other")
GROUPS = "{name: a, chip: acme, nodes: 2}\n{name: b, chip: slow, nodes: 2}"


def test_without_a_link_the_slower_nic_and_the_larger_latency_count():
    path = cluster(GROUPS, slow=SLOW).path(0, 1)
    assert (path.bandwidth_bytes_per_s, path.latency_s) == (25e9 / 8, 9e-6)


def test_inside_a_vendor_transfers_go_from_chip_to_chip():
    path = cluster(GROUPS, slow=SLOW).path(0, 1)
    assert (path.transport, path.staging_bytes_per_s) == ("rdma", None)


def test_between_vendors_transfers_are_staged_at_the_slower_side():
    path = cluster(GROUPS, slow=OTHER).path(0, 1)
    assert (path.transport, path.staging_bytes_per_s) == ("host", 8e9)


def test_two_different_chips_of_nobody_count_as_two_vendors():
    mine = CHIP.replace("vendor: acme, ", "")
    found = cluster("{name: a, chip: mine, nodes: 2}\n{name: b, chip: yours, nodes: 2}", mine=mine, yours=mine)
    assert found.path(0, 1).transport == "host"
    assert found.path(0, 0).transport == "rdma"


def test_nodes_of_one_group_reach_each_other_through_their_nics():
    path = cluster(GROUPS, slow=SLOW).path(1, 1)
    assert (path.bandwidth_bytes_per_s, path.latency_s, path.transport) == (25e9 / 8, 9e-6, "rdma")


def test_a_link_between_two_groups_counts_in_both_directions_and_leaves_the_rest_at_its_default():
    found = cluster(GROUPS, "links: [{between: [b, a], bandwidth: 50 Gbps}]", slow=SLOW)
    for path in (found.path(0, 1), found.path(1, 0)):
        assert (path.bandwidth_bytes_per_s, path.latency_s) == (50e9 / 8, 9e-6)
    assert found.path(1, 1).bandwidth_bytes_per_s == 25e9 / 8


def test_a_link_may_say_how_transfers_travel_and_at_what_staging_rate():
    found = cluster(GROUPS, "links: [{between: [a, b], transport: host, staging: 5 GB/s}]", slow=SLOW)
    assert (found.path(0, 1).transport, found.path(0, 1).staging_bytes_per_s) == ("host", 5e9)


def test_an_unknown_staging_rate_has_a_stated_default_that_is_noticed():
    unknown = OTHER.replace(", host_staging: 8 GB/s", "")
    found = cluster(GROUPS, slow=unknown)
    assert found.path(0, 1).staging_bytes_per_s == DEFAULT_HOST_STAGING_BYTES_PER_S == 12e9
    assert [n.message for n in found.notices] == [
        "host staging of slow is not known; 12.0 GB/s is assumed (PCIe 3.0 x16)"
    ]


def test_a_staging_rate_that_nobody_needs_is_not_asked_for():
    assert cluster(GROUPS, slow=SLOW.replace(", host_staging: 8 GB/s", "")).notices == ()


SITES = "{name: a, chip: acme, nodes: 2, site: east}\n{name: b, chip: slow, nodes: 2, site: west}"


def test_groups_at_two_sites_without_a_site_link_are_refused_by_name():
    with pytest.raises(InputError) as caught:
        cluster(SITES, slow=SLOW)
    assert problems(caught.value) == [
        "lab.yaml:4:43: node_groups[1].site: the total and latency between sites 'east' and 'west' is not known; "
        "a local network would be a guess; `total` is what the line carries in each direction for all pairs of chips "
        "together (`bandwidth` is for one pair of chips, and optional); add `sites: {links: [{between: [east, west], "
        "total: 10 Gbps, latency: 20 ms}]}` with your figures"
    ]


def test_a_site_link_without_latency_is_refused_too():
    with pytest.raises(InputError, match="the latency between sites 'east' and 'west' is not known"):
        cluster(SITES, "sites: {total: 10 Gbps}", slow=SLOW)


def test_a_site_link_that_says_what_one_pair_has_and_not_what_the_line_carries_is_refused():
    link = "{between: [west, east], bandwidth: 10 Gbps, latency: 20 ms}"
    with pytest.raises(InputError) as caught:
        cluster(SITES, f"sites: {{links: [{link}]}}", slow=SLOW)
    (line,) = problems(caught.value)
    assert line.startswith("lab.yaml:8:17: sites.links[0]: the total between sites 'east' and 'west' is not known; ")
    assert "`total` is what the line carries in each direction for all pairs" in line
    assert line.endswith("add `total: 10 Gbps` with your figures to the link")
    for rest in ("sites: {bandwidth: 10 Gbps, latency: 20 ms}", f"links: [{link.replace('west, east', 'a, b')}]"):
        with pytest.raises(InputError, match=r"the total( and latency)? between sites 'east' and 'west' is not known"):
            cluster(SITES, rest, slow=SLOW)


def test_what_a_line_carries_leaves_one_pair_at_the_slower_nic():
    for rest in (
        "sites: {total: 10 Gbps, latency: 20 ms}",
        "sites: {links: [{between: [east, west], total: 10 Gbps, latency: 20 ms}]}",
        "links: [{between: [a, b], total: 10 Gbps, latency: 20 ms}]",
    ):
        found = cluster(SITES, rest, slow=SLOW)
        for path in (found.path(0, 1), found.path(1, 0)):
            assert (path.bandwidth_bytes_per_s, path.total_bytes_per_s) == (25e9 / 8, 10e9 / 8)
        assert found.path(1, 1).total_bytes_per_s is None


def test_one_pair_of_chips_without_known_nics_has_all_that_the_line_carries():
    offline = CHIP.replace(", nic: {bandwidth: 100 Gbps, latency: 5 us}", "")
    groups = "{name: a, chip: off, nodes: 1}\n{name: b, chip: off, nodes: 1}"
    path = cluster(groups, "links: [{between: [a, b], total: 10 Gbps, latency: 1 ms}]", off=offline).path(0, 1)
    assert path.bandwidth_bytes_per_s == path.total_bytes_per_s == 10e9 / 8


def test_the_most_specific_figure_counts_group_link_then_site_link_then_all_sites():
    rest = """\
links: [{between: [a, b], latency: 1 ms}]
sites: {bandwidth: 1 Gbps, total: 2 Gbps, latency: 50 ms, transport: host,
        links: [{between: [west, east], bandwidth: 10 Gbps, total: 40 Gbps}]}"""
    path = cluster(SITES, rest, slow=SLOW).path(0, 1)
    assert path.total_bytes_per_s == 40e9 / 8
    assert (path.latency_s, path.bandwidth_bytes_per_s, path.transport) == (1e-3, 10e9 / 8, "host")


def test_groups_at_one_site_do_not_use_the_site_link():
    three = f"{SITES}\n{{name: c, chip: slow, nodes: 1, site: west}}"
    found = cluster(three, "sites: {bandwidth: 1 Gbps, total: 8 Gbps, latency: 50 ms}", slow=SLOW)
    assert found.path(1, 2).bandwidth_bytes_per_s == 25e9 / 8
    assert found.path(0, 2).bandwidth_bytes_per_s == 1e9 / 8

"""Racks, pods, uplinks and NICs: what a file becomes, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import Cluster, parse_cluster
from tests.spec.written import cluster, problems

GROUPS = "{name: a, chip: acme, nodes: 8}\n{name: b, chip: acme, nodes: 4}"
"""Acme nodes have eight chips with a NIC of 12.5 GB/s each: 100 GB/s a node."""


def racks(rest: str, groups: str = GROUPS) -> Cluster:
    return cluster(groups, f"topology: {rest}")


def refused(rest: str, groups: str = GROUPS) -> list[str]:
    with pytest.raises(InputError) as caught:
        racks(rest, groups)
    return problems(caught.value)


def homes(built: Cluster, group: str) -> list[str]:
    assert built.topology is not None
    nodes = next(g.nodes for g in built.node_groups if g.name == group)
    return [built.topology.switches[home].name if home >= 0 else "core" for home in built.topology.homes(group, nodes)]


def test_a_count_takes_the_next_nodes_in_each_of_the_switches():
    built = racks(
        "[{name: pod, count: 2, uplink: 1 TB/s, switches: [{name: rack, count: 2, nodes: {a: 2}, uplink: 1 TB/s}]}]"
    )
    assert homes(built, "a") == [
        *["pod-0/rack-0"] * 2,
        *["pod-0/rack-1"] * 2,
        *["pod-1/rack-0"] * 2,
        *["pod-1/rack-1"] * 2,
    ]
    assert homes(built, "b") == ["core"] * 4


def test_a_range_names_nodes_and_may_leave_some_out():
    built = racks(
        "[{name: even, nodes: {a: 0-6:2}, uplink: 1 TB/s}, {name: odd, nodes: {a: '1-3:2,5,7'}, uplink: 1 TB/s}]"
    )
    assert homes(built, "a") == ["even", "odd"] * 4


def test_oversubscription_is_what_enters_over_what_the_uplink_carries():
    built = racks(
        "[{name: pod, oversubscription: '4:1', switches: "
        "[{name: rack, count: 4, nodes: {a: 2, b: 1}, oversubscription: 2}]}]"
    )
    assert built.topology is not None
    pod, *rest = built.topology.switches
    assert [rack.uplink_bytes_per_s for rack in rest] == [150e9] * 4
    assert pod.uplink_bytes_per_s == 150e9


def test_a_very_large_pod_has_an_uplink_too():
    groups = "{name: a, chip: acme, nodes: 1000000, chips_per_node: 64, nic: {bandwidth: 10 TB/s}}"
    built = racks("[{name: pod, nodes: {a: 1000000}, oversubscription: 1}]", groups)
    assert built.topology is not None
    assert built.topology.switches[0].uplink_bytes_per_s == pytest.approx(64e6 * 10e12)
    assert Cluster.model_validate(built.model_dump(mode="json")) == built


def test_a_cluster_with_a_topology_survives_its_document():
    built = racks("[{name: rack, count: 4, nodes: {a: 2, b: 1}, oversubscription: 2, latency: 1 us}]")
    assert Cluster.model_validate(built.model_dump(mode="json")) == built
    assert "topology" not in cluster(GROUPS).model_dump(mode="json")


@pytest.mark.parametrize(
    ("rest", "said"),
    [
        ("[{name: r, nodes: {a: 8}}]", "has no uplink"),
        ("[{name: r, nodes: {a: 8}, uplink: 1 TB/s, oversubscription: 2}]", "has an uplink and an oversubscription"),
        ("[{name: r, uplink: 1 TB/s}]", "holds nothing"),
        ("[{name: r, nodes: {c: 8}, uplink: 1 TB/s}]", "unknown node group 'c'"),
        ("[{name: r, count: 3, nodes: {a: 3}, uplink: 1 TB/s}]", "takes 3 x 3 nodes of 'a', which has 8"),
        ("[{name: r, count: 3, nodes: {a: 2}, uplink: 1 TB/s}]", "2 of the 8 nodes of 'a' hang at no switch"),
        ("[{name: r, nodes: {a: 0-8}, uplink: 1 TB/s}]", "there is no node 8"),
        ("[{name: r, nodes: {a: '0-4,3-7'}, uplink: 1 TB/s}]", "node 3 of 'a' is named a second time"),
        ("[{name: r, count: 2, nodes: {a: 0-3}, uplink: 1 TB/s}]", "names its nodes but occurs 2 times"),
        ("[{name: r, nodes: {a: 4}, uplink: 1 TB/s}, {name: s, nodes: {a: 4-7}, uplink: 1 TB/s}]", "by counts and by"),
        ("[{name: r, nodes: {a: 4}, uplink: 1 TB/s}, {name: r, nodes: {a: 4}, uplink: 1 TB/s}]", "'r' is given twice"),
        ("[{name: r, nodes: {a: 8}, oversubscription: 0.5}]", "'0.5' is no oversubscription"),
        ("[{name: r, nodes: {a: 7-0}, uplink: 1 TB/s}]", "'7-0' is no range of nodes"),
        ("[{name: r, nodes: {a: 8}, uplink: 1 TB}]", "uplink"),
        (
            "[{name: r, count: 99999, uplink: 1 TB/s, switches: [{name: s, count: 2, nodes: {a: 1}, uplink: 1 GB/s}]}]",
            "too many",
        ),
    ],
)
def test_what_is_not_clear_is_refused_with_its_place(rest: str, said: str):
    found = refused(rest)
    assert any(said in problem for problem in found), found
    assert all(problem.startswith("lab.yaml:") and "topology[" in problem for problem in found), found


def test_documents_of_strangers_are_looked_at_before_they_are_believed():
    document = racks("[{name: rack, count: 4, nodes: {a: 2}, uplink: 1 TB/s}]").model_dump(mode="json")
    for change in (
        {"parent": 3},
        {"nodes": {"a": [[0, 8, 1]]}},
        {"nodes": {"a": [[2, 3, 1]]}},
        {"nodes": {"a": [[0, 1, 0]]}},
        {"nodes": {"c": [[0, 1, 1]]}},
    ):
        switches = [document["topology"]["switches"][0] | change, *document["topology"]["switches"][1:]]
        with pytest.raises(ValueError, match="switch"):
            Cluster.model_validate(document | {"topology": {"switches": switches}})
    groups = [document["node_groups"][0] | {"nodes": 10**9}, document["node_groups"][1]]
    switch = document["topology"]["switches"][0] | {"nodes": {"a": [[0, 10**9 - 1, 1]]}}
    with pytest.raises(ValueError, match="more than 1,000,000 nodes"):
        Cluster.model_validate(document | {"node_groups": groups, "topology": {"switches": [switch]}})


def test_a_switch_joins_no_two_sites():
    groups = "{name: a, chip: acme, nodes: 8, site: x}\n{name: b, chip: acme, nodes: 4, site: y}"
    rest = "[{name: r, nodes: {a: 8, b: 4}, uplink: 1 TB/s}]\nsites: {total: 10 Gbps, latency: 1 ms}"
    assert any("holds nodes at different sites: x, y" in problem for problem in refused(rest, groups))


def test_chips_sit_near_nics_in_equal_runs_unless_they_are_named():
    group = cluster("{name: a, chip: acme, nodes: 2, nic_affinity: {nics: 4}}").node_groups[0]
    assert group.nic_affinity is not None
    assert group.nic_affinity.near == group.nic_affinity.use == (0, 0, 1, 1, 2, 2, 3, 3)
    assert group.reached_nic == group.nic


def test_a_far_nic_costs_what_is_published_and_is_warned_of():
    built = cluster("{name: a, chip: acme, nodes: 2, nic_affinity: {near: [0,0,0,0,1,1,1,1], use: [1,1,1,1,0,0,0,0]}}")
    group = built.node_groups[0]
    assert group.reached_nic is not None and group.nic is not None
    assert group.reached_nic.bandwidth_bytes_per_s == pytest.approx(0.74 * group.nic.bandwidth_bytes_per_s)
    assert built.path(0, 0).bandwidth_bytes_per_s == pytest.approx(0.74 * group.nic.bandwidth_bytes_per_s)
    (notice,) = [n for n in built.notices if n.code == "nic-affinity"]
    assert "8 of the 8 chips" in notice.message and "26 %" in notice.message


def test_chips_that_crowd_a_nic_share_it():
    group = cluster("{name: a, chip: acme, nodes: 2, nic_affinity: {nics: 2, use: [0,0,0,0,0,0,0,0]}}").node_groups[0]
    assert group.nic_affinity is not None
    assert group.nic_affinity.share == pytest.approx(0.5 * 0.74)


@pytest.mark.parametrize(
    ("affinity", "said"),
    [
        ("{}", "needs one of `nics` and `near`"),
        ("{nics: 3}", "is not clear"),
        ("{near: [0, 1]}", "names the NICs of 2 chips"),
        ("{nics: 8, use: [0]}", "names the NICs of 1 chips"),
    ],
)
def test_nics_that_are_not_clear_are_refused(affinity: str, said: str):
    with pytest.raises(InputError) as caught:
        cluster(f"{{name: a, chip: acme, nodes: 2, nic_affinity: {affinity}}}")
    assert any(said in problem for problem in problems(caught.value))


def test_the_files_of_the_page_are_read():
    page = Path(__file__).parents[2] / "docs" / "topology.md"
    pods, nics = (
        parse_cluster(text, "page.yaml") for text in re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    )
    assert pods.topology is not None and len(pods.topology.switches) == 8 * 17
    assert nics.node_groups[1].nic_affinity is not None and nics.node_groups[1].nic_affinity.share == 0.74

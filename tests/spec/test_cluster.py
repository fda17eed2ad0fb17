"""Clusters: what a file becomes, and what is refused across its parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import Cluster, load_cluster, parse_cluster
from tests.spec.written import CHIP, cluster, problems

TWO = "{name: a, chip: acme, nodes: 2}\n{name: b, chip: acme, nodes: 3}"


def refused(groups: str, rest: str = "", **chips: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        cluster(groups, rest, **chips)
    return problems(caught.value)


def test_a_group_takes_what_it_does_not_say_from_its_chip():
    group = cluster("{name: a, chip: acme, nodes: 2}").node_groups[0]
    assert group.chips_per_node == 8
    assert group.nic is not None
    assert group.nic.bandwidth_bytes_per_s == 12.5e9
    assert group.intra_node is not None
    assert group.intra_node.latency_s == 3e-6
    assert group.site == "site"


def test_a_group_may_have_other_nodes_and_nics_than_the_profile():
    group = cluster("{name: a, chip: acme, nodes: 2, chips_per_node: 4, nic: {bandwidth: 25 Gbps}}").node_groups[0]
    assert group.chips_per_node == 4
    assert group.nic is not None
    assert group.nic.bandwidth_bytes_per_s == 25e9 / 8
    assert group.nic.latency_s == 5e-6  # the profile's


def test_six_percent_of_the_memory_is_reserved_unless_the_file_says_otherwise():
    assert cluster("{name: a, chip: acme, nodes: 1}").node_groups[0].reserve_bytes == round(0.06 * 64 * 2**30)
    assert cluster("{name: a, chip: acme, nodes: 1}", "reserve: 10 %").node_groups[0].reserve_bytes == round(
        6.4 * 2**30
    )
    assert cluster("{name: a, chip: acme, nodes: 1}", "reserve: 0").node_groups[0].reserve_bytes == 0


def test_two_groups_of_one_chip_may_keep_different_amounts_free():
    groups = "{name: desk, chip: acme, nodes: 1, reserve: 4 GiB}\n{name: rack, chip: acme, nodes: 1, reserve: 3 %}"
    desk, rack = cluster(groups).node_groups
    assert desk.reserve_bytes == 4 * 2**30
    assert rack.reserve_bytes == round(0.03 * 64 * 2**30)


def test_the_reserve_is_a_share_of_what_the_driver_reports_where_that_is_known():
    reporting = CHIP.replace("memory: 64 GiB", "memory: 64 GiB, reported_memory: 62 GiB")
    found = cluster("{name: a, chip: b, nodes: 1}", b=reporting)
    assert found.chip_of(0).capacity_bytes == 62 * 2**30
    assert found.node_groups[0].reserve_bytes == round(0.06 * 62 * 2**30)


def test_a_reserve_that_leaves_nothing_is_refused():
    assert refused("{name: a, chip: acme, nodes: 1, reserve: 64 GiB}") == [
        "lab.yaml:3:46: node_groups[0].reserve: 64.0 GiB leaves nothing to use; acme has 64.0 GiB; reserve less"
    ]


def test_chips_that_share_memory_with_the_host_warn_about_the_default_reserve():
    shared = CHIP.replace("vendor", "unified_memory: true, vendor")
    assert [n.code for n in cluster("{name: a, chip: b, nodes: 1}", b=shared).notices] == ["unified-memory", "unused"]
    stated = cluster("{name: a, chip: b, nodes: 1, reserve: 15 %}", b=shared)
    assert [n.code for n in stated.notices] == ["unused"]


def test_a_cluster_is_named_by_its_file_unless_it_says_its_name():
    text = f"node_groups: [{{name: a, chip: acme, nodes: 1}}]\nchips: {{acme: {CHIP}}}"
    assert parse_cluster(text, "folder/small.yaml").name == "small"


def test_a_cluster_may_be_written_in_json():
    chip = {"memory": "8 GiB", "peak": {"fp32": "1 TFLOPS"}, "chips_per_node": 1}
    text = json.dumps({"node_groups": [{"name": "a", "chip": "tiny", "nodes": 1}], "chips": {"tiny": chip}})
    assert parse_cluster(text, "lab.json").num_chips == 1


def test_prices_go_to_the_groups_with_that_chip():
    found = cluster(TWO, "prices: {acme: 1.80 USD/h}")
    assert found.currency == "USD"
    assert found.prices == {"acme": 1.8}
    assert [group.price_per_chip_hour for group in found.node_groups] == [1.8, 1.8]


def test_the_price_of_a_node_group_is_refused_with_the_name_of_its_chip():
    groups = "{name: h100, chip: acme, nodes: 1}"
    assert refused(groups, "prices: {h100: 2 USD/h}") == [
        "lab.yaml:6:10: prices.h100: 'h100' is a node group, not a chip; prices are per chip; write its chip, `acme`"
    ]


def test_the_price_of_a_chip_that_nothing_describes_is_not_answered_with_that_very_word():
    lines = refused("{name: a, chip: h100, nodes: 1}", "prices: {h100: 2 USD/h, a: 2 USD/h}")
    prices = [line for line in lines if ": prices." in line]
    assert len(prices) == 2
    assert not any("'h100'?" in line or "`h100`" in line for line in lines)


def test_a_link_s_unknown_end_is_not_answered_with_its_other_end():
    groups = "{name: h100, chip: acme, nodes: 1}\n{name: a100, chip: acme, nodes: 1}"
    (line,) = refused(groups, "links: [{between: [h100, h10]}]")
    assert line.endswith("unknown node group 'h10'; node groups here: a100")
    (line,) = refused(groups, "links: [{between: [h100, a10]}]")
    assert line.endswith("unknown node group 'a10'; did you mean 'a100'?")
    (alone,) = refused("{name: h100, chip: acme, nodes: 1}", "links: [{between: [h100, a10]}]")
    assert alone.endswith("unknown node group 'a10'; node groups here: h100")


def test_prices_in_two_currencies_are_refused():
    lines = refused(
        "{name: a, chip: acme, nodes: 1}\n{name: b, chip: b, nodes: 1}", "prices: {acme: 1 USD/h, b: 1 EUR/h}", b=CHIP
    )
    assert len(lines) == 1
    assert "prices.b: is in EUR, the price of acme in USD; costs are added up; convert to one currency" in lines[0]


def test_settings_that_have_no_effect_are_noticed():
    found = cluster("{name: a, chip: acme, nodes: 1}", "prices: {spare: 1 USD/h}\nsites: {total: 1 Gbps}", spare=CHIP)
    assert [notice.message for notice in found.notices] == [
        "chips.spare is not used: no node group has this chip",
        "prices.spare is not used: no node group has this chip",
        "`sites` is not used: all node groups stand at one site",
    ]


@pytest.mark.parametrize("trust", ["low", "medium", "announced", "reconstructed"])
def test_a_chip_with_doubtful_figures_is_noticed(trust: str):
    found = cluster("{name: a, chip: b, nodes: 1}", b=CHIP.replace("vendor", f"trust: {trust}, vendor"))
    assert f"(trust: {trust})" in found.notices[0].message


@pytest.mark.parametrize("trust", ["good", "user"])
def test_a_chip_with_good_figures_is_not_noticed(trust: str):
    found = cluster("{name: a, chip: b, nodes: 1}", b=CHIP.replace("vendor", f"trust: {trust}, vendor"))
    assert [notice.code for notice in found.notices] == ["unused"]  # the chip `acme`


@pytest.mark.parametrize(
    ("left_out", "message"),
    [
        ("memory: 64 GiB, ", "node_groups[0].chip: the memory of b is not known; every plan needs it"),
        ("chips_per_node: 8, ", "node_groups[0].chips_per_node: is not known; the profile of b does not say"),
        ("intra_node: {bandwidth: 200 GB/s, latency: 3 us}, ", "node_groups[0].intra_node: is not known"),
        (
            "nic: {bandwidth: 100 Gbps, latency: 5 us}, ",
            "node_groups[0].nic: is not known; the profile of b does not say",
        ),
    ],
)
def test_a_figure_that_planning_needs_and_nobody_knows_is_refused_by_name(left_out: str, message: str):
    assert left_out in CHIP
    lines = refused("{name: a, chip: b, nodes: 2}", b=CHIP.replace(left_out, ""))
    assert len(lines) == 1
    assert message in lines[0]


def test_one_chip_in_a_node_needs_no_link_inside_it():
    alone = CHIP.replace("intra_node: {bandwidth: 200 GB/s, latency: 3 us}, ", "").replace("node: 8", "node: 1")
    assert cluster("{name: a, chip: b, nodes: 2}", b=alone).node_groups[0].intra_node is None


def test_one_node_alone_needs_no_nic():
    offline = CHIP.replace("nic: {bandwidth: 100 Gbps, latency: 5 us}, ", "")
    assert cluster("{name: a, chip: b, nodes: 1}", b=offline).node_groups[0].nic is None


def test_chips_of_several_kinds_in_one_server_are_joined_by_links_instead_of_nics():
    offline = CHIP.replace("nic: {bandwidth: 100 Gbps, latency: 5 us}, ", "")
    groups = "{name: a, chip: b, nodes: 1, chips_per_node: 2}\n{name: c, chip: b, nodes: 1, chips_per_node: 1}"
    link = "links: [{between: [a, c], bandwidth: 25 GB/s, latency: 5 us, transport: host}]"
    path = cluster(groups, link, b=offline).path(0, 1)
    assert (path.bandwidth_bytes_per_s, path.transport) == (25e9, "host")
    assert len(refused(groups, b=offline)) == 2  # without the link both groups need a NIC


def test_every_mistake_of_a_file_is_reported_in_one_run_in_the_order_of_the_file():
    text = """\
name: lab
node_groups:
  - {name: a, chip: nvidia-a100-80gb-sx, nodes: 2}
  - {name: a, chip: acme, nods: 2}
links:
  - {between: [a, c], bandwidth: 100 Gb/s}
  - {between: [a, a]}
chips:
  acme: {memory: 64, peak: {bf17: 1 TFLOPS}}
prizes: {}
"""
    with pytest.raises(InputError) as caught:
        parse_cluster(text, "lab.yaml")
    places = [line.split(": ")[0:2] for line in problems(caught.value)]
    assert places == [
        ["lab.yaml:3:21", "node_groups[0].chip"],
        ["lab.yaml:4:12", "node_groups[1].name"],
        ["lab.yaml:4:27", "node_groups[1].nods"],
        ["lab.yaml:6:19", "links[0].between[1]"],
        ["lab.yaml:6:34", "links[0].bandwidth"],
        ["lab.yaml:7:15", "links[1].between"],
        ["lab.yaml:9:18", "chips.acme.memory"],
        ["lab.yaml:9:29", "chips.acme.peak.bf17"],
        ["lab.yaml:10:1", "prizes"],
    ]


def test_a_misspelt_key_is_one_mistake_not_two():
    assert refused("{name: a, chip: acme, node: 2}") == [
        "lab.yaml:3:27: node_groups[0].node: unknown key 'node'; did you mean 'nodes'?"
    ]


def test_a_hundred_thousand_chips_are_counted_not_listed():
    found = cluster("{name: a, chip: acme, nodes: 16384}")
    assert found.num_chips == 131_072
    assert len(found.model_dump_json()) < 3000


def test_a_cluster_survives_the_plan_file():
    found = cluster(TWO, "prices: {acme: 1 USD/h}\nlinks: [{between: [a, b], latency: 0}]")
    document = json.loads(json.dumps(found.model_dump(mode="json")))
    assert Cluster.model_validate(document) == found
    assert "notices" not in document


def test_a_document_that_contradicts_itself_is_not_a_cluster():
    document = cluster(TWO).model_dump(mode="json")
    document["node_groups"][0]["chip"] = "other"
    with pytest.raises(ValueError, match="chips without a profile: other"):
        Cluster.model_validate(document)


def test_a_shipped_cluster_has_a_name_and_an_unknown_name_is_answered_with_the_list():
    with pytest.raises(
        InputError, match=r"no shipped cluster has the name 'one-node-h10'.*did you mean 'one-node-h100'"
    ):
        load_cluster("one-node-h10")
    assert load_cluster("one-node-h100").num_chips == 8


def test_a_bare_name_beside_a_file_of_that_name_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("lab-17.yaml").write_text("name: x")
    with pytest.raises(InputError, match=r"did you mean the file 'lab-17.yaml'\?"):
        load_cluster("lab-17")

"""Drives of a node group, and tiers for optimizer states: what is read, and what is refused where."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.spec import Cluster, parse_model
from tests.spec.written import cluster, problems

GROUP = "{name: a, chip: acme, nodes: 1, nvme: DRIVES}"


def test_drives_of_a_node_are_read_with_their_units() -> None:
    read = cluster(GROUP.replace("DRIVES", "{capacity: 7 TiB, read: 12 GB/s, write: 48 Gbps}"))
    drives = read.node_groups[0].nvme
    assert drives is not None
    assert (drives.capacity_bytes, drives.read_bytes_per_s, drives.write_bytes_per_s) == (7 * 2**40, 12e9, 6e9)
    document = read.model_dump(mode="json")
    assert Cluster.model_validate(document) == read
    assert document["node_groups"][0]["nvme"] == {
        "capacity_bytes": 7 * 2**40,
        "read_bytes_per_s": 12e9,
        "write_bytes_per_s": 6e9,
    }


def test_a_group_without_drives_says_nothing_of_them() -> None:
    read = cluster("{name: a, chip: acme, nodes: 1}")
    assert read.node_groups[0].nvme is None and "nvme" not in read.model_dump(mode="json")["node_groups"][0]


@pytest.mark.parametrize(
    ("drives", "said"),
    [
        ("{capacity: 7 TiB, read: 12 GB/s}", "node_groups[0].nvme.write: is missing; add `write: 6 GB/s`"),
        ("{}", "node_groups[0].nvme.capacity: is missing; add `capacity: 7 TiB`"),
        ("{capacity: 7, read: 12 GB/s, write: 6 GB/s}", "node_groups[0].nvme.capacity: '7' has no unit"),
        ("{capacity: 7 TiB, read: 12 GB, write: 6 GB/s}", "node_groups[0].nvme.read: "),
        ("{capacity: 7 TiB, read: 0 GB/s, write: 6 GB/s}", "node_groups[0].nvme.read: '0 GB/s' is zero"),
        ("{capacity: 7 TiB, reads: 12 GB/s, write: 6 GB/s}", "unknown key 'reads'; did you mean 'read'?"),
        ("7 TiB", "node_groups[0].nvme: '7 TiB' is not a mapping"),
    ],
)
def test_drives_that_are_not_wholly_said_are_refused_at_their_place(drives: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        cluster(GROUP.replace("DRIVES", drives))
    assert any(said in text for text in problems(caught.value))


MODEL = """
model: {preset: llama-3.1-8b}
training: {sequence_length: 1024, global_batch: 8, offload_optimizer: TIERS}
"""


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("nvme", "'nvme' is one tier alone; where optimizer states may be is a list; write [nvme], or [none, nvme]"),
        ("none", "'none' is one tier alone; where optimizer states may be is a list; write never"),
        (
            "sometimes",
            "'sometimes' does not say where optimizer states may be; write never, allowed, always, or a list",
        ),
        ("{device: nvme}", "write never, allowed, always, or a list of none, host, nvme"),
        ("[host, host]", "names 'host' twice"),
        ("[none, cpu]", "offload_optimizer[1]: 'cpu' is no choice here; known: none, host, nvme"),
        ("[]", "is empty; at least one tier is needed"),
    ],
)
def test_tiers_that_are_none_are_refused_at_their_place(written: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_model(MODEL.replace("TIERS", written), "m.yaml")
    (text,) = (problem.render() for problem in caught.value.problems)
    assert text.startswith("m.yaml:3:") and said in text

"""Stages whose replicas share each micro-batch: the same as smaller micro-batches and more data parallelism."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Setting
from planner.errors import InputError
from tests.cost.stand_ins import GB, Interconnect, LinkPath, NodeGroup, cluster_of, cost_model, graph_of, matmul_layer

PAIR = cluster_of(NodeGroup("a", nodes=2), NodeGroup("b", nodes=2, nic=Interconnect(5 * GB)))


def model_of(cluster: Any = PAIR, **training: Any) -> CostModel:
    layers = tuple(matmul_layer(f"layers.{i}") for i in range(2))
    given = {"stage_replicas": (1, 2, 4), "micro_batch_sizes": (1, 2, 4)} | training
    return cost_model(cluster, graph_of(*layers, elements=1e9), **given)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("replicas", [2, 4])
def test_a_replica_has_its_part_of_the_sequences_and_reduces_over_all(zero: int, replicas: int) -> None:
    model = model_of(zero=zero)
    shared, apart = (
        model.table(0, Mode(1, replicas=replicas), Setting(4, 2)),
        model.table(0, Mode(1), Setting(4 // replicas, 2 * replicas)),
    )
    assert shared is not None and apart is not None
    for field in fields(shared):
        assert np.array_equal(getattr(shared, field.name), getattr(apart, field.name)), field.name


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("same_node", [True, False])
def test_equal_replicas_exchange_their_parts_side_by_side(replicas: int, same_node: bool) -> None:
    model, mode = model_of(), Mode(2, replicas=replicas)
    shared = model.transfer(0, mode, 0, mode, same_node, Setting(4, 2))
    apart = model.transfer(0, Mode(2), 0, Mode(2), same_node, Setting(4 // replicas, 2))
    assert list(shared.forward_s) == pytest.approx(list(apart.forward_s))
    assert list(shared.backward_s) == pytest.approx(list(apart.backward_s))


def test_one_replica_sends_to_four_as_fast_as_the_slower_side_allows():
    # 4 sequences x 1e9 elements x 2 bytes = 8 GB. One chip's NIC of 10 GB/s against four of 5 GB/s: 0.8 s; the link of
    # a pair carries 5 GB/s, but there are four pairs. Equal tensor degrees: nothing is gathered.
    model = model_of()
    there = model.transfer(0, Mode(1), 1, Mode(1, replicas=4), False, Setting(4, 1))
    assert there.forward_s[0] == pytest.approx(0.8)
    assert there.backward_s[0] == pytest.approx(0.8)
    # the other way round: one chip of 5 GB/s against four of 10 GB/s
    back = model.transfer(0, Mode(1, replicas=4), 1, Mode(1), False, Setting(4, 1))
    assert back.forward_s[0] == pytest.approx(1.6)


def test_two_replicas_send_to_four_in_two_parts():
    # each part has 4 GB, one sender of 10 GB/s and two receivers of 5 GB/s
    there = model_of().transfer(0, Mode(1, replicas=2), 1, Mode(1, replicas=4), False, Setting(4, 1))
    assert there.forward_s[0] == pytest.approx(0.4)


def test_receivers_gather_what_they_received():
    # 8 GB in two parts: 4 GB from one chip (10 GB/s) to two of 5 GB/s: 0.4 s; each of the two chips of a receiving
    # replica has all of its part: all-gather of 4 GB over two chips at 100 GB/s: 20 ms
    there = model_of().transfer(0, Mode(1, replicas=2), 1, Mode(2, replicas=2), False, Setting(4, 1))
    assert there.forward_s[0] == pytest.approx(0.4 + 0.02)
    # four receiving replicas: each gathers 2 GB
    wide = model_of().transfer(0, Mode(1, replicas=2), 1, Mode(2, replicas=4), False, Setting(4, 1))
    assert wide.forward_s[0] == pytest.approx(4 / 10 + 0.01)


def test_all_parts_of_all_pipelines_share_a_line():
    line = LinkPath(10 * GB, 0.0, total_bytes_per_s=2 * GB)
    cluster = cluster_of(*PAIR.node_groups, paths={(0, 1): line, (1, 0): line})
    # two pipelines move 8 GB each over 2 GB/s, in how many parts does not matter
    for modes in ((Mode(1), Mode(1)), (Mode(1, replicas=2), Mode(1, replicas=4))):
        assert model_of(cluster).transfer(0, modes[0], 1, modes[1], False, Setting(4, 2)).forward_s[0] == pytest.approx(
            8
        )


def test_replicas_take_chips_and_whole_sequences():
    model = model_of()
    assert model.groups[0].room(Mode(2, replicas=4), Setting(4, 2)) == 1  # 2 nodes x 4 slots / 8
    assert "do not share micro-batches of 2 evenly" in str(model.why_not(0, Mode(1, replicas=4), Setting(2, 1)))
    assert "holds 4 at tensor_parallel 4" in str(model.why_not(0, Mode(4, replicas=4), Setting(4, 2)))
    assert "are no choice on 'a' (possible: 1, 2, 4)" in str(model.why_not(0, Mode(1, replicas=8), Setting(4, 1)))
    assert model.table(0, Mode(1, replicas=4), Setting(2, 1)) is None
    assert not model.may_mix


def test_replicas_that_no_micro_batch_can_have_are_refused():
    with pytest.raises(InputError, match="do not share micro-batches of 1 evenly"):
        model_of(stage_replicas=(2,), micro_batch_sizes=(1,))

"""Chips that a plan leaves out are named."""

from __future__ import annotations

from dataclasses import replace

from planner.cost.tables import Mode
from planner.plan.assemble import PipelineChoice, StageChoice
from planner.plan.idle import idle_sentences
from planner.spec import parse_cluster
from tests.plan.small import CLUSTER, choice, small_plan


def idle(used: set[int], nodes: int = 2) -> list[str]:
    """Chips 0-3 are `fast`, the rest `slow`."""
    return [*idle_sentences(parse_cluster(CLUSTER.replace("nodes: 2", f"nodes: {nodes}"), "cluster.yaml"), used)]


def test_idle_chips_are_named_by_node_group_and_number() -> None:
    assert idle(set(range(12))) == []
    assert idle(set(range(12)) - {3}) == ["1 of the 4 chips of node group fast stays idle: 3"]
    assert idle({0, 1, 2, 3, 5, 9, 10}) == ["5 of the 8 chips of node group slow stay idle: 4, 6-8, 11"]
    assert idle(set()) == [
        "4 of the 4 chips of node group fast stay idle: 0-3",
        "8 of the 8 chips of node group slow stay idle: 4-11",
    ]


def test_many_scattered_chips_are_counted_after_the_first_runs() -> None:
    (text,) = idle(set(range(0, 44, 2)) | {1, 3}, nodes=10)
    assert text == "20 of the 40 chips of node group slow stay idle: 5, 7, 9, 11, 13, 15, 17, 19 and 12 more runs"


def test_a_plan_warns_of_its_idle_chips() -> None:
    assert not [w for w in small_plan().warnings if w.code == "idle"]
    stages = (StageChoice(1, Mode(2), 0, 4, {}), StageChoice(1, Mode(2), 4, 9, {}))
    setting = replace(choice().setting, data_parallel=1)
    plan = small_plan(chosen=PipelineChoice("1f1b", setting, 16, stages))
    assert [w.message for w in plan.warnings if w.code == "idle"] == [
        "4 of the 4 chips of node group fast stay idle: 0-3",
        "4 of the 8 chips of node group slow stay idle: 8-11",
    ]

"""Plans whose layers are offloaded: what their file says, and what the checker finds."""

from __future__ import annotations

import json

from planner.cost.tables import Chain, Mode, Setting
from planner.plan import check_plan, parse_plan
from planner.plan.assemble import PipelineChoice, StageChoice, recompute_by_name
from planner.plan.file import dump_plan
from planner.plan.schema import Plan
from tests.plan.small import CLUSTER, MODEL, choice, edited, small_plan

OFFLOADING = MODEL.replace("tokens: 1 B tokens", "recompute: [none, full, offload, full_offload]")
LIMITED = CLUSTER.replace("chip: quick, nodes: 1}", "chip: quick, nodes: 1, host_memory: 10 MiB}")


def offloading_plan(cluster: str = CLUSTER) -> Plan:
    """The small plan with two of the layers of its first stage in host memory: two replicas x two chips of one node,
    three micro-batches in flight.
    """
    stages = (
        StageChoice(0, Mode(2), 0, 4, {"layers.0": "offload", "layers.1": "full_offload"}),
        *choice().stages[1:],
    )
    return small_plan(OFFLOADING, PipelineChoice("1f1b", Setting(2, 2), 8, stages), cluster_text=cluster)


def test_a_plan_with_offloaded_layers_passes_and_reads_back_equal() -> None:
    plan = offloading_plan()
    assert check_plan(plan) == ()
    assert parse_plan(dump_plan(plan), "plan.json") == plan


def test_the_file_tells_host_memory_staging_and_waiting_only_where_layers_are_offloaded() -> None:
    plan = offloading_plan()
    first, second = json.loads(dump_plan(plan))["islands"][0]["pipelines"][0]["stages"][:2]
    assert first["memory"]["host_bytes"] > 0 and first["memory"]["parts"]["staging"] > 0
    assert "host_bytes" not in second["memory"] and "staging" not in second["memory"]["parts"]
    assert not {"offload_forward_s", "offload_backward_s"} & set(second["time"])
    assert first["recompute"] == {"layers.0": "offload", "layers.1": "full_offload"}
    plain = dump_plan(small_plan())
    assert not any(f'"{key}"' in plain for key in ("host_bytes", "staging", "offload_forward_s", "host_memory_bytes"))


def test_a_node_whose_host_memory_is_too_small_is_found() -> None:
    plan = offloading_plan(LIMITED)
    held = plan.pipelines[0].stages[0].memory.host_bytes
    assert held is not None and 4 * held > 10 * 2**20  # two replicas of two chips on the only node
    (violation,) = check_plan(plan)
    assert violation.code == "host-memory"
    assert "node 0 of fast needs" in violation.render() and "it has 10.0 MiB" in violation.render()


def test_offloading_where_the_chip_has_the_hosts_memory_is_found() -> None:
    unified = CLUSTER.replace("quick: {memory: 16 GiB,", "quick: {memory: 16 GiB, unified_memory: true,")
    (violation,) = check_plan(offloading_plan(unified))
    assert violation.code == "host-memory" and "it has 0 B" in violation.render()


def test_wrong_host_numbers_are_found() -> None:
    plan = offloading_plan()
    memory = plan.model_dump(mode="json")["islands"][0]["pipelines"][0]["stages"][0]["memory"]
    wrong = edited(plan, stage_0={"memory": memory | {"host_bytes": memory["host_bytes"] // 2}})
    (violation,) = check_plan(wrong)
    assert (violation.code, violation.where) == (
        "memory-numbers",
        "islands[0].pipelines[0].stages[0].memory.host_bytes",
    )


def test_a_policy_that_the_model_file_does_not_list_is_found() -> None:
    plan = edited(small_plan(), stage_0={"recompute": {"layers.0": "offload"}})
    assert {v.code for v in check_plan(plan)} == {"recompute"}


def test_the_earliest_layers_are_offloaded() -> None:
    # their activations are needed last; full recompute comes next
    chain = Chain(("layers.0", "layers.1", "layers.2", "layers.3"), (0, 0, 0, 0), ("layer",))
    assert recompute_by_name(chain, 0, 4, [[1, 1, 1, 1]], ("none", "full", "offload", "full_offload")) == {
        "layers.0": "full_offload",
        "layers.1": "offload",
        "layers.2": "full",
    }

"""Plans whose stages have their optimizer states on drives: written, priced, added up by node, checked."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from planner.cost.tables import Mode
from planner.cost.tiers import Tier
from planner.errors import InfeasibleError
from planner.plan import check_plan, parse_plan
from planner.plan.file import dump_plan, sha256_of
from planner.plan.schema import Plan
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model
from tests.plan.small import CLUSTER, MODEL, choice, edited, small_plan

MIB = 2**20
DRIVES = CLUSTER.replace(
    "nodes: 1}",
    "nodes: 1, host_memory: HOST, host_memory_bandwidth: 100 GB/s,\n"
    "     nvme: {capacity: CAPACITY, read: 8 GB/s, write: 4 GB/s}}",
)
ALLOWED = MODEL.replace("tokens: 1 B tokens", "tokens: 1 B tokens, offload_optimizer: allowed")


def cluster_text(host: str = "64 GiB", capacity: str = "1 TB") -> str:
    return DRIVES.replace("HOST", host).replace("CAPACITY", capacity)


@cache
def on_drives(host: str = "64 GiB", capacity: str = "1 TB") -> Plan:
    """Stage 0, on chips 0 1 | 2 3 of the one node of `fast`, has its states on the drives."""
    stages = choice().stages
    chosen = replace(choice(), stages=(replace(stages[0], mode=Mode(2, offload=Tier.NVME)), *stages[1:]))
    return small_plan(ALLOWED, chosen, cluster_text=cluster_text(host, capacity))


def found(plan: Plan) -> list[str]:
    return [violation.render() for violation in check_plan(plan)]


def test_states_on_drives_are_nowhere_else_and_the_plan_says_what_they_take() -> None:
    plan, plain = on_drives(), small_plan()
    assert found(plan) == [] and found(parse_plan(dump_plan(plan), "plan.json")) == []
    (first, *rest), (same, *others) = plan.pipelines[0].stages, plain.pipelines[0].stages
    assert (first.offload_optimizer, first.memory.parts["optimizer"]) == ("nvme", 0)
    # 12 bytes a parameter over two replicas leave the chip; with the gradients 16 are on drives
    assert first.memory.nvme_bytes == pytest.approx(same.memory.parts["optimizer"] * 16 / 12, abs=1)
    assert (first.memory.usable_nvme_bytes, first.memory.usable_host_bytes) == (250 * 10**9, 16 * 2**30)
    assert [(s.memory, s.time) for s in rest] == [(s.memory, s.time) for s in others]
    assert not any(word in dump_plan(plain) for word in ("nvme", "offload", "host_bytes"))


def test_what_a_plan_says_is_what_the_whole_node_reads_writes_and_holds() -> None:
    """From the parameters that the node holds, and its own rates, without the cost model."""
    hidden, inner, vocabulary, kv = 512, 1024, 1024, 512
    layer = 2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner + 2 * hidden
    held = 3 * layer + vocabulary * hidden  # embedding and three layers, once: ZeRO-1 over both replicas
    first, plain = on_drives().pipelines[0].stages[0], small_plan().pipelines[0].stages[0]
    kept = 16 * held  # gradient, master weight, two moments
    # norms are not divided over tensor parallel chips: 3 x 2 x 512 parameters a second time
    assert 4 * (first.memory.nvme_bytes or 0) == pytest.approx(kept, rel=1e-3)
    assert 4 * (first.memory.host_bytes or 0) == pytest.approx(2 * 16 * layer, rel=1e-3)
    drives = kept / 8e9 + kept / 4e9
    copies = (4 + 2) * held / 4 / 20e9  # each chip over its own link, to the host and back
    optimizer = (4 + 2 * 12 + 2) * held / 100e9
    assert first.time.optimizer_s == pytest.approx(drives + copies + optimizer, rel=1e-3)
    assert first.time.optimizer_s > plain.time.optimizer_s


def test_the_drives_of_a_node_have_a_limit_that_all_its_chips_share() -> None:
    needed = 4 * (on_drives().pipelines[0].stages[0].memory.nvme_bytes or 0)
    assert found(on_drives(capacity=f"{-(-needed // MIB)} MiB")) == []
    (over,) = found(on_drives(capacity=f"{needed // MIB} MiB"))
    assert over.startswith("islands: node 0 of fast needs ") and "on drives, it has" in over and "too much" in over
    (buffers,) = found(on_drives(host="64 MiB"))
    assert "of host memory, it has 64.0 MiB" in buffers


def test_drives_that_the_cluster_lost_since_are_found() -> None:
    document = json.loads(dump_plan(on_drives()))
    cluster = document["inputs"]["cluster"]
    del cluster["document"]["node_groups"][0]["nvme"]
    cluster["sha256"] = sha256_of(cluster["document"])
    texts = found(Plan.model_validate(document))
    assert any("the optimizer states of 'fast' have to be on the chips or in host memory" in text for text in texts)


def test_another_tier_than_the_one_that_was_priced_is_found() -> None:
    on_host = found(edited(on_drives(), stage_0={"offload_optimizer": "host"}))
    for part in ("memory.host_bytes", "memory.nvme_bytes", "time.optimizer_s"):
        assert any(f"stages[0].{part}" in text for text in on_host)
    memory = on_drives().pipelines[0].stages[0].memory.model_dump()
    wrong = found(edited(on_drives(), stage_0={"memory": memory | {"nvme_bytes": 5}}))
    assert any("stages[0].memory.nvme_bytes: is 5, the cost model says" in text for text in wrong)


def test_a_tier_that_the_model_file_leaves_out_is_found() -> None:
    plan = json.loads(dump_plan(on_drives()))
    model = plan["inputs"]["model"]
    model["document"]["training"]["offload_optimizer"] = ["none", "host"]
    model["sha256"] = sha256_of(model["document"])
    texts = found(Plan.model_validate(plan))
    assert any("stages[0].offload_optimizer: is nvme; the model file allows none, host" in text for text in texts)


def test_a_process_knows_where_its_states_are() -> None:
    assert [on_drives().for_rank(rank).offload_optimizer for rank in (0, 3, 4)] == ["nvme", "nvme", "none"]


def only_fast(offload: str) -> str:
    asked = MODEL.replace("tokens: 1 B tokens", f"tokens: 1 B tokens, offload_optimizer: {offload}")
    return asked + "constraints: {idle: [slow], shapes: identical}\n"


@pytest.mark.parametrize(("host", "tier"), [("96 MiB", "nvme"), ("1 GiB", "host")])
def test_solve_goes_to_the_drives_where_chips_and_host_memory_are_short(host: str, tier: str) -> None:
    text = cluster_text(host).replace("memory: 16 GiB", "memory: 60 MiB")
    model = parse_model(only_fast("allowed"), "m.yaml")
    plan = solve(parse_cluster(text, "c.yaml"), model, SolveOptions(gap=0.0)).plan
    assert check_plan(plan) == () and plan.certificate.gap <= 2e-6
    assert {stage.offload_optimizer for stage in plan.pipelines[0].stages} == {tier}
    assert plan.certificate.plan_space["offload_optimizer"] == {"fast": ["none", "host", "nvme"], "slow": ["none"]}


def test_where_the_drives_are_what_is_missing_solve_says_so_and_what_helps() -> None:
    cluster = parse_cluster(cluster_text(capacity="4 MiB"), "c.yaml")
    with pytest.raises(InfeasibleError) as caught:
        solve(cluster, parse_model(only_fast("[nvme]"), "m.yaml"), SolveOptions(time_limit_s=10))
    said = str(caught.value)
    assert "on drives a chip; 1.0 MiB is usable" in said
    assert "offload_optimizer: allowed" in said and "more capacity of nvme" in said

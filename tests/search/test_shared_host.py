"""Optimizer states and activations in one host memory that holds either alone, but not both."""

from __future__ import annotations

import json
from functools import cache

import pytest

from planner.errors import InfeasibleError
from planner.plan import Plan, check_plan
from planner.plan.file import dump_plan, sha256_of
from planner.plan.schema import Stage
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model

MIB = 2**20


@cache
def plan_of(chip: int = 4096, host: int = 4096, states: str = "allowed", policies: str = "none, offload") -> Plan:
    """Six narrow layers on one chip of so many MiB, on a host of so many MiB."""
    cluster = f"""
name: one
node_groups:
  - {{name: a, chip: quick, nodes: 1, reserve: 0 GiB, host_memory: {host} MiB, host_memory_bandwidth: 50 GB/s}}
chips:
  quick: {{memory: {chip} MiB, peak: {{bf16: 100 TFLOPS}}, memory_bandwidth: 1 TB/s, chips_per_node: 1,
          host_staging: 20 GB/s, chips_per_host_link: 1}}
"""
    model = f"""
name: toy
model:
  dimensions:
    {{num_hidden_layers: 6, hidden_size: 512, num_attention_heads: 8, intermediate_size: 1024, vocab_size: 1024}}
training:
  {{sequence_length: 256, global_batch: 16, micro_batch_sizes: [8], recompute: [{policies}],
    offload_optimizer: {states}}}
constraints: {{shapes: identical}}
"""
    options = SolveOptions(time_limit_s=30.0, gap=0.0)
    plan = solve(parse_cluster(cluster, "c.yaml"), parse_model(model, "m.yaml"), options).plan
    assert check_plan(plan) == ()
    return plan


def stage_of(plan: Plan) -> Stage:
    return plan.pipelines[0].stages[0]


def on_host(plan: Plan) -> int:
    return stage_of(plan).memory.host_bytes or 0


def peak(plan: Plan) -> int:
    return stage_of(plan).memory.peak_bytes


def alone_and_both() -> tuple[Plan, Plan, Plan]:
    """States alone, activations of every layer alone, both in host memory."""
    return (
        plan_of(states="always", policies="none"),
        plan_of(states="never", policies="offload"),
        plan_of(states="always", policies="offload"),
    )


def host_for_either() -> int:
    """MiB that hold the larger of the two."""
    states, layers, _ = alone_and_both()
    return -(-max(on_host(states), on_host(layers)) // MIB)


def test_both_together_take_what_each_takes() -> None:
    states, layers, both = alone_and_both()
    assert min(on_host(states), on_host(layers)) > 8 * MIB
    assert on_host(both) == pytest.approx(on_host(states) + on_host(layers), abs=2)
    assert stage_of(both).memory.usable_host_bytes == 4096 * MIB
    assert on_host(both) > host_for_either() * MIB


def test_either_is_chosen_where_it_suffices_and_never_more_than_the_host_holds() -> None:
    states, layers, both = alone_and_both()
    chip = -(-max(peak(states), peak(layers)) // MIB)
    assert peak(both) < chip * MIB < peak(plan_of(states="never", policies="none"))
    plan = plan_of(chip, host_for_either())
    assert 0 < on_host(plan) <= host_for_either() * MIB
    assert not (stage_of(plan).offload_optimizer and len(stage_of(plan).recompute) == len(stage_of(plan).layers))
    alone = [plan_of(chip, host_for_either(), "always", "none"), plan_of(chip, host_for_either(), "never", "offload")]
    assert plan.prediction.step_time_s <= min(p.prediction.step_time_s for p in alone) * (1 + 1e-6)


def test_where_both_are_needed_a_host_for_either_is_too_small() -> None:
    states, layers, both = alone_and_both()
    chip = -(-peak(both) // MIB)
    assert chip * MIB < min(peak(states), peak(layers))
    enough = plan_of(chip, -(-on_host(both) // MIB))
    assert stage_of(enough).offload_optimizer and stage_of(enough).recompute
    with pytest.raises(InfeasibleError, match="more host_memory"):
        plan_of(chip, host_for_either())


def test_the_checker_refuses_both_in_a_host_for_either() -> None:
    states, layers, both = alone_and_both()
    for plan in (states, layers):
        assert check_plan(on_a_host_of(plan, host_for_either())) == ()
    (violation,) = check_plan(on_a_host_of(both, host_for_either()))
    assert violation.code == "host-memory" and "too much" in violation.render()


def on_a_host_of(plan: Plan, mib: int) -> Plan:
    """The plan as it would be on a host with less memory: the same choices."""
    document = json.loads(dump_plan(plan))
    cluster = document["inputs"]["cluster"]
    cluster["document"]["node_groups"][0]["host_memory_bytes"] = mib * MIB
    cluster["sha256"] = sha256_of(cluster["document"])
    document["islands"][0]["pipelines"][0]["stages"][0]["memory"]["usable_host_bytes"] = mib * MIB
    return Plan.model_validate(document)

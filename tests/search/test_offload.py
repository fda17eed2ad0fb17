"""Host memory as a choice beside recompute, from inputs to a checked plan: where it wins, where not, and its limits."""

from __future__ import annotations

from collections import Counter

import pytest

from planner.errors import InfeasibleError
from planner.plan import Plan, check_plan
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model
from planner.spec.units import parse_bytes

ON_CHIP = "none, selective, full"
MORE = f"{ON_CHIP}, offload, selective_offload"
ALL = f"{MORE}, full_offload"
PCIE_5 = "47 GB/s"
"""PCIe 5.0 x16, 63.0 GB/s each way (16 lanes x 32 GT/s x 128/130 / 8), less what the default rate takes from PCIe 3.0:
128 of 154 bytes are payload, and copies reach nine tenths."""
WIDE = "hidden_size: 8192, num_attention_heads: 64, num_key_value_heads: 8, intermediate_size: 28672"
NARROW = "hidden_size: 2048, num_attention_heads: 16, num_key_value_heads: 8, intermediate_size: 7168"


def plan_of(
    policies: str, width: str, sequence: int, *, rate: str = PCIE_5, memory: str = "80 GiB", host: str = ""
) -> Plan:
    """32 layers on one node of 8 H100, tensor parallel over all of them, 8 micro-batches of one sequence."""
    cluster = f"""
name: node
node_groups: [{{name: h, chip: nvidia-h100-80gb-sxm, nodes: 1{host}}}]
chips: {{nvidia-h100-80gb-sxm: {{memory: {memory}, host_staging: {rate}, chips_per_host_link: 1}}}}
"""
    model = f"""
model: {{dimensions: {{num_hidden_layers: 32, {width}, vocab_size: 32000}}}}
training:
  {{sequence_length: {sequence}, global_batch: 8, micro_batch_sizes: [1], loss: fused, recompute: [{policies}]}}
constraints: {{tensor_parallel: 8, shapes: identical}}
"""
    settings = SolveOptions(time_limit_s=60.0, gap=1e-4)
    plan = solve(parse_cluster(cluster, "c.yaml"), parse_model(model, "m.yaml"), settings).plan
    assert check_plan(plan) == ()
    assert plan.certificate.why_stopped == "gap"
    return plan


def used(plan: Plan) -> Counter[str]:
    return Counter(policy for stage in plan.pipelines[0].stages for policy in stage.recompute.values())


def test_offloading_beats_recompute_on_a_fast_host_link_and_wide_layers() -> None:
    # 8192 wide, 32,768 tokens: a layer's forward pass takes 124 ms of a chip, what `selective` keeps 129 ms over PCIe 5
    on_chip, all_of_them = plan_of(ON_CHIP, WIDE, 32768), plan_of(ALL, WIDE, 32768)
    assert used(on_chip)["full"] >= 10
    assert used(all_of_them)["full"] == 0 and used(all_of_them)["selective_offload"] >= 15
    assert all_of_them.prediction.step_time_s < 0.9 * on_chip.prediction.step_time_s


def test_recompute_beats_offloading_on_a_slow_host_link_and_narrow_layers() -> None:
    # 2048 wide over PCIe 3: copies take 30 times as long as the forward pass that recompute repeats
    slow = {"rate": "12 GB/s", "memory": "11 GiB"}
    on_chip, more = plan_of(ON_CHIP, NARROW, 32768, **slow), plan_of(MORE, NARROW, 32768, **slow)
    assert used(on_chip)["selective"] >= 25
    (stage,) = more.pipelines[0].stages
    offloaded = {name for name, policy in stage.recompute.items() if policy.endswith("offload")}
    assert not any(name.startswith("layers.") for name in offloaded), "at most the little that the final norm keeps"
    assert more.prediction.step_time_s == pytest.approx(on_chip.prediction.step_time_s, rel=2e-3)


def test_a_model_fits_that_does_not_fit_with_everything_recomputed() -> None:
    # 131,072 tokens of 8192 elements: 32 checkpoints of 0.25 GiB, of which host memory takes all
    with pytest.raises(InfeasibleError, match=r"it fits with: .*recompute: full_offload allowed"):
        plan_of(ON_CHIP, WIDE, 131072, memory="74 GiB")
    plan = plan_of(ALL, WIDE, 131072, memory="74 GiB")
    assert sum(n for policy, n in used(plan).items() if policy.endswith("offload")) >= 16


def test_host_memory_is_a_limit() -> None:
    # 60 GiB for 8 chips: 7.5 GiB each
    free, limited = plan_of(ALL, WIDE, 32768), plan_of(ALL, WIDE, 32768, host=", host_memory: 60 GiB")
    free_stage, stage = free.pipelines[0].stages[0], limited.pipelines[0].stages[0]
    assert (free_stage.memory.host_bytes or 0) > parse_bytes("7.5 GiB") >= (stage.memory.host_bytes or 0) > 0
    assert limited.prediction.step_time_s > free.prediction.step_time_s
    assert {w.code for w in free.warnings} - {w.code for w in limited.warnings} == {"host-memory"}


def test_host_memory_is_named_where_it_is_what_nothing_fits_for() -> None:
    with pytest.raises(InfeasibleError, match=r"it fits with: .*more host_memory"):
        plan_of("offload", WIDE, 32768, host=", host_memory: 1 GiB")


def test_without_any_host_memory_the_plan_is_that_of_recompute() -> None:
    none, on_chip = plan_of(ALL, WIDE, 32768, host=", host_memory: 1 MiB"), plan_of(ON_CHIP, WIDE, 32768)
    assert used(none) == used(on_chip)
    assert none.prediction == on_chip.prediction


def test_the_plan_space_lists_what_layers_may_choose_from() -> None:
    plan = plan_of(ALL, WIDE, 32768)
    space = plan.certificate.plan_space
    assert space["recompute"] == ALL.split(", ")
    assert "each chip has an equal share of its host's memory" in space["restrictions"]

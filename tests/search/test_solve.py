"""From inputs to a plan: constraints become limits, contradictions are refused by name, failures explain themselves."""

from __future__ import annotations

import pytest

from planner.errors import DplanError, InfeasibleError, InputError, NoPlanFoundError
from planner.plan import Plan, check_plan
from planner.search import Progress, SolveOptions, solve
from planner.spec import parse_cluster, parse_model

CLUSTER = """
name: pair
node_groups:
  - {name: fast, chip: nvidia-h100-80gb-sxm, nodes: 1}
  - {name: slow, chip: nvidia-a100-80gb-sxm, nodes: 2}
links: [{between: [fast, slow], bandwidth: 100 Gbps, latency: 10 us}]
"""
PRICES = "prices: {nvidia-h100-80gb-sxm: 4 USD/h, nvidia-a100-80gb-sxm: 1 USD/h}\n"


def model(constraints: str = "", preset: str = "llama-3.1-8b", training: str = "") -> str:
    text = f"model: {{preset: {preset}}}\ntraining: {{sequence_length: 4096, global_batch: 64{training}}}\n"
    parts = [part for part in (constraints, "" if "shapes" in constraints else "shapes: identical") if part]
    return text + f"constraints: {{{', '.join(parts)}}}\n"


def planned(constraints: str = "", cluster: str = CLUSTER, **options: object) -> Plan:
    settings = SolveOptions(time_limit_s=30.0, **options)  # type: ignore[arg-type]
    plan = solve(parse_cluster(cluster, "c.yaml"), parse_model(model(constraints), "m.yaml"), settings).plan
    assert check_plan(plan) == ()
    return plan


def groups(plan: Plan) -> list[str]:
    return [stage.node_group for stage in plan.pipelines[0].stages]


def test_the_order_and_stage_counts_that_are_pinned_are_those_of_the_plan() -> None:
    assert groups(planned("order: [slow, fast], stages: {slow: 2, fast: 1}")) == ["slow", "slow", "fast"]


def test_idle_and_required_groups_are_obeyed() -> None:
    assert set(groups(planned("idle: [fast]"))) == {"slow"}
    assert set(groups(planned("use: [fast, slow]"))) == {"fast", "slow"}


def test_layers_per_stage_count_embedding_norm_and_head() -> None:
    plan = planned("layers_per_stage: [10, 25]")
    assert [len(stage.layers) for stage in plan.pipelines[0].stages] == [10, 25]
    assert plan.certificate.plan_space["layers_per_stage"] == [10, 25]


def test_a_number_of_stages_and_replicas_can_be_pinned() -> None:
    plan = planned("pipeline_parallel: 3, data_parallel: 2")
    assert (len(plan.pipelines[0].stages), plan.pipelines[0].replicas) == (3, 2)


@pytest.mark.parametrize(
    ("constraints", "words"),
    [
        ("layers_per_stage: [10, 20]", "sums to 30, the model has 35 layers"),
        ("idle: [quick]", "quick"),
        ("order: [quick, slow]", "quick"),
        ("stages: {quick: 2}", "quick"),
    ],
)
def test_contradictions_are_refused_by_name(constraints: str, words: str) -> None:
    with pytest.raises(InputError, match=words.replace("[", r"\[")):
        planned(constraints)


def test_money_is_minimised_and_needs_prices() -> None:
    with pytest.raises(InputError, match="prices: no price for the chips of fast, slow"):
        planned(objective="cost")
    cheap, fast = planned(cluster=CLUSTER + PRICES, objective="cost"), planned(cluster=CLUSTER + PRICES)
    assert cheap.certificate.unit == "USD/token"
    assert cheap.training is not None and fast.training is not None
    assert cheap.training.price_per_million_tokens <= fast.training.price_per_million_tokens  # type: ignore[operator]
    assert cheap.prediction.step_time_s >= fast.prediction.step_time_s * (1 - 0.01)
    # an H100 costs four times an A100 and is about three times as fast
    assert set(groups(cheap)) == {"slow"}


def test_a_cost_bound_is_below_what_the_fastest_plan_costs() -> None:
    cheap, fast = planned(cluster=CLUSTER + PRICES, objective="cost"), planned(cluster=CLUSTER + PRICES)
    assert fast.training is not None and fast.training.price_per_million_tokens is not None
    assert cheap.certificate.bound * 1e6 <= fast.training.price_per_million_tokens


def test_progress_has_a_falling_objective_and_a_bound_below_it() -> None:
    seen: list[Progress] = []
    solve(parse_cluster(CLUSTER, "c.yaml"), parse_model(model(), "m.yaml"), SolveOptions(), seen.append)
    found = [p.incumbent_s for p in seen if p.incumbent_s is not None]
    assert found and found == sorted(found, reverse=True)
    assert all(p.bound_s <= p.incumbent_s for p in seen if p.incumbent_s is not None and p.bound_s is not None)


def test_what_does_not_fit_is_proved_with_verified_remedies() -> None:
    one = "name: one\nnode_groups: [{name: few, chip: nvidia-a100-40gb-sxm, nodes: 1}]\n"
    with pytest.raises(InfeasibleError) as caught:
        solve(parse_cluster(one, "c.yaml"), parse_model(model(preset="llama-3.1-70b"), "m.yaml"), SolveOptions())
    text = caught.value.render()
    assert "missing" in text and "largest parts: " in text
    more = int(text.split("more nvidia-a100-40gb-sxm (")[1].split(" node")[0])
    # the remedy is true, and one node less is not enough
    for nodes, fits in ((1 + more, True), (more, False)):
        cluster = parse_cluster(one.replace("nodes: 1", f"nodes: {nodes}"), "c.yaml")
        try:
            solve(cluster, parse_model(model(preset="llama-3.1-70b"), "m.yaml"), SolveOptions(gap=0.5))
            assert fits
        except DplanError as error:
            assert not fits and error.exit_code == 3


def test_too_little_time_is_no_proof() -> None:
    with pytest.raises(NoPlanFoundError, match="no proof that none exists"):
        options = SolveOptions(time_limit_s=1e-6)
        solve(parse_cluster(CLUSTER, "c.yaml"), parse_model(model(), "m.yaml"), options)


GRAPH = """
model:
  graph:
    nodes:
      - {name: a, parameters: 1000, forward_flops: 1 TFLOP, saved: 1 MiB, output: 1 MiB}
      - {name: reshape, parameters: 0, forward_flops: 0, saved: 0, output: 1 MiB}
      - {name: b, parameters: 1000, forward_flops: 1 TFLOP, saved: 1 MiB, output: 1 MiB}
    edges: [{source: a, target: reshape}, {source: reshape, target: b}]
training: {sequence_length: 1024, global_batch: 8}
"""


def test_a_layer_without_work_is_placed_too() -> None:
    plan = solve(parse_cluster(CLUSTER, "c.yaml"), parse_model(GRAPH, "m.yaml"), SolveOptions()).plan
    assert [name for stage in plan.pipelines[0].stages for name in stage.layers] == ["a", "reshape", "b"]
    assert check_plan(plan) == ()


def test_very_long_chains_are_refused_by_their_length() -> None:
    nodes = ", ".join(
        f"{{name: n{i}, parameters: 1, forward_flops: 1 GFLOP, saved: 0, output: 1 MiB}}" for i in range(1201)
    )
    edges = ", ".join(f"{{source: n{i}, target: n{i + 1}}}" for i in range(1200))
    text = (
        f"model: {{graph: {{nodes: [{nodes}], edges: [{edges}]}}}}\ntraining: {{sequence_length: 8, global_batch: 8}}\n"
    )
    with pytest.raises(InputError, match="1,201 layers"):
        solve(parse_cluster(CLUSTER, "c.yaml"), parse_model(text, "m.yaml"), SolveOptions())


def test_a_diagnosis_that_is_cut_short_claims_nothing_it_did_not_prove() -> None:
    from planner.search.diagnose import explain_infeasible

    one = parse_cluster("name: one\nnode_groups: [{name: few, chip: nvidia-a100-40gb-sxm, nodes: 1}]\n", "c.yaml")
    text = explain_infeasible(
        one, parse_model(model(preset="llama-3.1-70b"), "m.yaml"), SolveOptions(), lambda: True
    ).render()
    assert "how much is missing was not found in time" in text
    assert "contradict" not in text and "still does not fit" not in text


def test_a_constraint_that_stands_in_the_way_is_named_as_a_remedy() -> None:
    one = "name: one\nnode_groups: [{name: few, chip: nvidia-a100-40gb-sxm, nodes: 1}]\n"
    pinned = model("pipeline_parallel: 1, tensor_parallel: 1")
    with pytest.raises(InfeasibleError, match=r"constraints\.pipeline_parallel left out"):
        solve(parse_cluster(one, "c.yaml"), parse_model(pinned, "m.yaml"), SolveOptions())


@pytest.mark.parametrize(("precision", "warned"), [("fp16", True), ("bf16", False)])
def test_a_peak_that_nobody_checked_makes_solve_warn(precision: str, warned: bool) -> None:
    # the A30's bf16 peak is sourced, its fp16 peak is recalled
    cluster = "name: one\nnode_groups: [{name: all, chip: nvidia-a30-24gb, nodes: 1, chips_per_node: 8}]\n"
    spec = model(preset="llama-3.2-1b", training=f", precision: {precision}")
    result = solve(parse_cluster(cluster, "c.yaml"), parse_model(spec, "m.yaml"), SolveOptions())
    for notices in (result.notices, result.plan.warnings):
        assert [n.code for n in notices].count("unverified") == int(warned)


def test_a_mix_of_one_shape_is_no_plan_of_identical_pipelines() -> None:
    """Its stages are on the same node group before and after another's, which only mixes may do: it may be faster than
    every plan of identical pipelines.
    """
    cluster = """
name: there-and-back
node_groups:
  - {name: small, chip: nvidia-rtx-3090-24gb, nodes: 1, chips_per_node: 1, nic: {bandwidth: 200 Gbps, latency: 5 us}}
  - {name: large, chip: nvidia-a100-80gb-sxm, nodes: 2, chips_per_node: 2, nic: {bandwidth: 400 Gbps, latency: 5 us}}
"""
    text = """
model: {dimensions: {num_hidden_layers: 1, hidden_size: 1536, intermediate_size: 3072, num_attention_heads: 12,
  num_key_value_heads: 12, vocab_size: 32000}}
training: {sequence_length: 1024, global_batch: 1, precision: fp16, micro_batch_sizes: [1]}
constraints: {use: [small]}
"""
    given = parse_cluster(cluster, "c.yaml"), parse_model(text, "m.yaml")
    plan = solve(*given, SolveOptions(time_limit_s=30.0)).plan
    assert [s.node_group for s in plan.pipelines[0].stages] == ["large", "small", "large"] and len(plan.pipelines) == 1
    assert plan.certificate.identical_bound is not None
    assert plan.certificate.identical_bound > plan.certificate.objective
    assert check_plan(plan) == ()
    assert solve(*given, SolveOptions(time_limit_s=30.0, warm_start=plan)).plan == plan
    identical = parse_model(text.replace("use:", "shapes: identical, use:"), "m.yaml")
    other = solve(given[0], identical, SolveOptions(time_limit_s=30.0)).plan
    wrong = other.certificate.model_copy(update={"identical_bound": 2 * other.certificate.objective})
    (said,) = check_plan(other.model_copy(update={"certificate": wrong}))
    assert said.render().startswith("certificate.identical_bound")


def test_an_order_of_no_groups_is_refused() -> None:
    with pytest.raises(InputError, match="order"):
        parse_model(model("order: []"), "m.yaml")

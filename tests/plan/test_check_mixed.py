"""The checker on plans of several pipeline shapes: each way to be wrong is found, in the pipeline where it is."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.plan import check_plan, parse_plan
from planner.plan.file import dump_plan, sha256_of
from planner.plan.schema import Plan
from tests.plan.mixed import SITES, changed, entry, mixed_plan, three, two
from tests.plan.small import MODEL


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mixed_plan(three())


def found(plan: Plan) -> list[str]:
    return [f"{violation.code}: {violation.render()}" for violation in check_plan(plan)]


def only(plan: Plan, code: str, *texts: str) -> None:
    """All violations have this code, and each text stands in one of them."""
    violations = check_plan(plan)
    assert violations and {violation.code for violation in violations} == {code}, found(plan)
    for text in texts:
        assert any(text in violation.render() for violation in violations), found(plan)


def where(pipeline: int, rest: str = "") -> str:
    return f"islands[0].pipelines[{pipeline}]{rest}"


@pytest.mark.parametrize("choices", [two(), two()[::-1], three()])
def test_right_plans_of_several_shapes_pass(choices: Any) -> None:
    for objective in ("throughput", "cost"):
        plan = mixed_plan(choices, objective=objective)
        assert check_plan(plan) == ()
        assert check_plan(parse_plan(dump_plan(plan), "plan.json")) == ()


def test_pipelines_over_a_line_of_limited_total_pass() -> None:
    assert check_plan(mixed_plan(three(), SITES)) == ()


def test_context_parallel_shapes_pass() -> None:
    model = MODEL.replace("tokens: 1 B tokens", "context_parallel: [1, 2]")
    choices = [entry(1, 8, 2, (0, 2, 4), (1, 2, 9), context=2), entry(2, 8, 1, (1, 1, 9), context=2)]
    plan = mixed_plan(choices, model_text=model)
    ranks = [[stage.ranks for stage in p.stages] for p in plan.pipelines]
    assert ranks == [[((0, 1, 2, 3),), ((4, 5, 6, 7),)], [((8, 9), (10, 11))]]
    assert check_plan(plan) == ()


# ---- structure ------------------------------------------------------------------------------------------------------


def test_every_shape_holds_every_layer(plan: Plan) -> None:
    only(changed(plan, 2, stage_1={"layers": ["layers.1", "layers.2", "layers.3"]}), "layers", where(2, ".stages: 8"))
    swapped = {"layers": ["layers.2", "layers.1", "layers.3", "layers.4"]}
    only(changed(plan, 2, stage_1=swapped), "layers", where(2, ".stages: out of order"))


def test_the_sequences_of_all_shapes_make_up_the_global_batch(plan: Plan) -> None:
    texts = found(changed(plan, 1, micro_batches=3))
    expected = "replicas x micro-batches x sequences: 1 x 4 x 2 + 1 x 3 x 4 + 2 x 2 x 2 = 28, the global batch is 32"
    assert f"batch: islands[0].pipelines: {expected}" in texts


def test_no_chip_works_for_two_shapes(plan: Plan) -> None:
    only(changed(plan, 1, stage_0={"ranks": [[1, 2]]}), "ranks", "islands[0].pipelines: used more than once: chip 1")
    only(changed(plan, 1, stage_0={"ranks": [[2, 12]]}), "ranks", "islands[0].pipelines: ", "there is no chip 12")
    only(changed(plan, 2, stage_0={"ranks": [[6], [3]]}), "ranks", "used more than once: chip 3", where(2))


def test_degrees_that_must_be_equal_are_those_of_the_first_pipeline(plan: Plan) -> None:
    texts = found(changed(plan, 2, stage_1={"expert_parallel": 2}))
    assert f"degrees: {where(2)}.stages[1].expert_parallel: is 2, on the first stage of the first pipeline 1" in texts


def test_every_shape_has_its_schedule_and_boundaries(plan: Plan) -> None:
    only(changed(plan, 2, stage_0={"in_flight": 3}), "schedule", where(2, ".stages[0].in_flight: is 3"))
    only(changed(plan, 2, transfers=[]), "transfers", where(2, ".transfers"))


def test_ranks_are_those_of_the_layout_over_all_shapes(plan: Plan) -> None:
    swapped = changed(changed(plan, 0, stage_0={"ranks": [[2, 3]]}), 1, stage_0={"ranks": [[0, 1]]})
    only(swapped, "placement", where(0, ".stages[0].ranks"), where(1, ".stages[0].ranks"), "has it on 0, 1")


def test_idle_chips_are_those_that_all_shapes_leave() -> None:
    document = mixed_plan(two()).model_dump(mode="json") | {"idle": []}
    only(Plan.model_validate(document), "idle", "the ranks leave {'slow': 4}")


def test_experts_are_not_spread_over_shapes() -> None:
    model = MODEL.replace(
        "vocab_size: 1024}", "vocab_size: 1024, num_local_experts: 4, num_experts_per_tok: 2}"
    ).replace("dimensions:\n    {", "dimensions:\n    {model_type: mixtral, num_key_value_heads: 8, ")
    plan = mixed_plan(two(), model_text=model)
    assert check_plan(plan) == ()
    document = plan.model_dump(mode="json")
    for pipeline in document["islands"][0]["pipelines"]:
        for stage in pipeline["stages"]:
            stage["expert_parallel"] = 2
    only(Plan.model_validate(document), "degrees", "islands[0].pipelines: ", "experts spread over 2 chips would span")


@pytest.mark.parametrize("zero", [2, 3])
def test_shapes_that_reduce_in_every_micro_batch_do_not_mix(zero: int) -> None:
    plan = with_model(mixed_plan(two()), "training", zero=zero)
    assert f"ZeRO {zero} reduces in each" in found(plan)[0]
    assert found(plan)[0].startswith("pipelines: islands[0].pipelines: ")


def test_several_islands_are_refused_not_half_checked(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    document["islands"] *= 2
    only(Plan.model_validate(document), "islands", "islands: this version checks plans of one island; the plan has 2")


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pipeline", "stage"), [(0, 1), (1, 0), (2, 2)])
@pytest.mark.parametrize(
    "name", ["forward_s", "backward_input_s", "backward_weight_s", "reduction_s", "optimizer_s", "communication_s"]
)
def test_times_of_every_shape_are_the_cost_models(plan: Plan, pipeline: int, stage: int, name: str) -> None:
    time = plan.pipelines[pipeline].stages[stage].time.model_dump()
    wrong = changed(plan, pipeline, **{f"stage_{stage}": {"time": time | {name: time[name] * 1.01 + 1e-6}}})
    only(wrong, "time", where(pipeline, f".stages[{stage}].time.{name}"))


def test_memory_of_every_shape_is_the_cost_models(plan: Plan) -> None:
    memory = plan.pipelines[2].stages[1].memory.model_dump()
    parts = memory["parts"] | {"optimizer": memory["parts"]["optimizer"] - 2**20}
    wrong = changed(plan, 2, stage_1={"memory": memory | {"parts": parts}})
    only(wrong, "memory-numbers", where(2, ".stages[1].memory.parts.optimizer"))


def test_a_stage_that_does_not_fit_is_named_with_its_pipeline() -> None:
    large = MODEL.replace("hidden_size: 512", "hidden_size: 8192").replace(
        "intermediate_size: 1024", "intermediate_size: 28672"
    )
    plan = mixed_plan(three(), model_text=large)
    only(plan, "memory", where(1, ".stages[0].memory: stage 0 of pipeline 2 on fast needs"))


@pytest.mark.parametrize(
    ("name", "value"),
    [("bytes", 1), ("time_s", 1.0), ("backward_time_s", 1.0), ("transport", "host"), ("same_node", False)],
)
def test_transfers_of_every_shape_are_the_cost_models(plan: Plan, name: str, value: Any) -> None:
    transfers = [transfer.model_dump() for transfer in plan.pipelines[2].transfers]
    wrong = [transfers[0], transfers[1] | {name: value}]
    if transfers[1][name] == value:
        wrong[1][name] = "host"
    only(changed(plan, 2, transfers=wrong), "transfers", where(2, f".transfers[1].{name}: is {value}"))


@pytest.mark.parametrize("name", ["reduction_s", "optimizer_s"])
def test_longest_updates_are_each_shapes_own(plan: Plan, name: str) -> None:
    longest = getattr(plan.pipelines[0], name)
    only(changed(plan, 1, **{name: longest / 3}), "time", where(1, f".{name}"))


@pytest.mark.parametrize("name", ["step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "mfu", "bubble_fraction"])
def test_predictions_are_computed_again(plan: Plan, name: str) -> None:
    document = plan.model_dump(mode="json")
    document["prediction"][name] *= 0.9
    only(Plan.model_validate(document), "prediction", f"prediction.{name}")


def test_costs_are_computed_again(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    document["training"]["price_per_hour"] -= 2.0
    only(Plan.model_validate(document), "training", "training.price_per_hour")


# ---- pins -----------------------------------------------------------------------------------------------------------


def with_model(plan: Plan, section: str, **changes: Any) -> Plan:
    document = plan.model_dump(mode="json")
    model = document["inputs"]["model"]
    model["document"][section] |= changes
    model["sha256"] = sha256_of(model["document"])
    return Plan.model_validate(document)


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ({"shapes": "identical"}, "islands[0].pipelines: there are 3; constraints.shapes is identical"),
        ({"data_parallel": [1, 2]}, "islands[0].pipelines: have 4 replicas in all; constraints.data_parallel is"),
        ({"pipeline_parallel": 2}, where(1, ".stages: there are 1; constraints.pipeline_parallel is 2")),
        ({"tensor_parallel": {"fast": [2], "slow": [2]}}, where(2, ".stages[0].tensor_parallel: is 1")),
        ({"stages": {"slow": 1}}, where(1, ".stages: 0 on slow; constraints.stages says 1")),
        ({"stages": {"slow": 1}}, where(2, ".stages: 3 on slow; constraints.stages says 1")),
        ({"order": ["slow", "fast"]}, where(0, ".stages: run over fast, slow; constraints.order is slow, fast")),
        ({"layers_per_stage": [4, 5]}, where(1, ".stages: hold [9] layers")),
        ({"micro_batch_size": 2}, where(1, ".micro_batch_size: is 4; the model file allows 2")),
        ({"idle": ["fast"]}, where(1, ".stages: use fast, which constraints.idle leaves out")),
    ],
)
def test_what_the_model_file_pins_is_kept_by_every_shape(plan: Plan, constraints: dict[str, Any], text: str) -> None:
    assert any(text in line for line in found(with_model(plan, "constraints", **constraints)))


def test_a_schedule_is_one_that_the_model_file_allows(plan: Plan) -> None:
    texts = found(changed(plan, 1, schedule={"name": "gpipe", "chunks": 1}))
    assert any(where(1, ".schedule.name: is gpipe; the model file allows 1f1b") in text for text in texts)


def test_a_group_that_must_be_used_is_used_by_one_shape() -> None:
    plan = mixed_plan([entry(1, 8, 2, (1, 2, 9)), entry(2, 8, 1, (1, 1, 9))])
    texts = found(with_model(plan, "constraints", use=["fast", "slow"]))
    said = "constraints: islands[0].pipelines: do not use fast, which constraints.use asks for"
    assert [text for text in texts if text.startswith("constraints")] == [said]


def test_pins_that_hold_are_no_violation(plan: Plan) -> None:
    pins: dict[str, Any] = {
        "shapes": "mixed",
        "data_parallel": [4],
        "tensor_parallel": {"fast": [2], "slow": [1, 2]},
        "use": ["fast", "slow"],
    }
    assert found(with_model(plan, "constraints", **pins)) == []
    both = mixed_plan(two())
    pins = {"stages": {"slow": 1, "fast": 1}, "order": ["fast", "slow"], "pipeline_parallel": 2}
    assert found(with_model(both, "constraints", **pins)) == []


# ---- robustness -----------------------------------------------------------------------------------------------------

DOCUMENT = mixed_plan(two()).model_dump(mode="json")


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_edit_of_a_number_makes_the_checker_fail(data: st.DataObject) -> None:
    document = json.loads(json.dumps(DOCUMENT))
    spots = [
        (holder, key)
        for holder in _holders(document["islands"])
        for key, value in (holder.items() if isinstance(holder, dict) else enumerate(holder))
        if isinstance(value, int) and not isinstance(value, bool)
    ]
    for _ in range(data.draw(st.integers(1, 2))):
        holder, key = data.draw(st.sampled_from(spots))
        holder[key] = data.draw(st.integers(min_value=0, max_value=12) | st.integers(min_value=0, max_value=2**40))
    try:
        edited = Plan.model_validate(document)
    except ValueError:
        return
    assert isinstance(check_plan(edited), tuple)


def _holders(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(h for item in value.values() for h in _holders(item))]
    if isinstance(value, list):
        return [value, *(h for item in value for h in _holders(item))]
    return []

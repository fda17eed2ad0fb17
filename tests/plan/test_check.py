"""The checker: a right plan passes, and each way to be wrong is found and named."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import planner.plan
from planner.cost.tables import Mode
from planner.plan import check_plan, parse_plan
from planner.plan.assemble import PipelineChoice, StageChoice
from planner.plan.file import dump_plan, sha256_of
from planner.plan.schema import Plan
from tests.plan.small import MODEL, choice, edited, small_plan

PIPELINE = "islands[0].pipelines[0]"


@pytest.fixture(scope="module")
def plan() -> Plan:
    return small_plan()


def found(plan: Plan) -> list[str]:
    return [f"{violation.code}: {violation.render()}" for violation in check_plan(plan)]


def only(plan: Plan, code: str, *texts: str) -> None:
    """All violations have this code, and each text stands in one of them."""
    violations = check_plan(plan)
    assert violations and {violation.code for violation in violations} == {code}, found(plan)
    for text in texts:
        assert any(text in violation.render() for violation in violations), found(plan)


def test_a_right_plan_passes(plan: Plan) -> None:
    assert check_plan(plan) == ()


def test_a_plan_read_from_its_file_passes(plan: Plan) -> None:
    assert check_plan(parse_plan(dump_plan(plan), "plan.json")) == ()


def test_a_plan_with_one_stage_passes_and_has_no_copies_of_tied_matrices() -> None:
    tied = MODEL.replace("vocab_size: 1024}", "vocab_size: 1024, tie_word_embeddings: true}")
    whole = PipelineChoice(
        "1f1b", choice().setting.__class__(2, 2, single_stage=True), 8, (StageChoice(0, Mode(2), 0, 9, {}),)
    )
    plan = small_plan(tied, whole)
    assert plan.tied_layers == (("embedding", "head"),)
    assert check_plan(plan) == ()


def test_a_plan_for_least_cost_passes() -> None:
    plan = small_plan(objective="cost")
    assert plan.certificate.unit == "USD/token"
    # 4 chips at 2 USD/h and 8 at 1 USD/h, 32 sequences of 256 tokens a step
    assert plan.certificate.objective == pytest.approx(plan.prediction.step_time_s * 16 / 3600 / 8192)
    assert check_plan(plan) == ()


# ---- layers ---------------------------------------------------------------------------------------------------------


def test_missing_layers_are_named() -> None:
    """Public case A1: 30 layers on 4 stages built as 7, 7, 7, 7; layers 28 and 29 are lost."""
    model = MODEL.replace("num_hidden_layers: 6", "num_hidden_layers: 30")
    names = ["embedding", *(f"layers.{i}" for i in range(30)), "norm", "head"]
    setting = choice().setting
    # two stages on each group; the whole model, then the one that loses two layers
    ends = [8, 15, 22, 33]
    stages = [StageChoice(g, Mode(1), a, b, {}) for g, a, b in zip((0, 0, 1, 1), [0, *ends], ends, strict=False)]
    plan = small_plan(model, PipelineChoice("1f1b", setting, 8, tuple(stages)))
    assert check_plan(plan) == ()
    lost = edited(plan, stage_3={"layers": [name for name in names[22:33] if name not in ("layers.28", "layers.29")]})
    only(lost, "layers", "31 layers are placed of 33; missing: layers.28, layers.29")


def test_layers_placed_twice_foreign_layers_and_wrong_order_are_named(plan: Plan) -> None:
    only(edited(plan, stage_1={"layers": ["layers.3", "layers.4", "layers.5"]}), "layers", "more than once: layers.5")
    only(edited(plan, stage_1={"layers": ["layers.3", "layers.4", "layers.99"]}), "layers", "has no layer layers.99")
    only(edited(plan, stage_1={"layers": ["layers.4", "layers.3"]}), "layers", "layers.4 stands where layers.3 belongs")


def test_recompute_names_layers_of_the_stage(plan: Plan) -> None:
    only(edited(plan, stage_1={"recompute": {"layers.0": "full"}}), "recompute", "does not hold: layers.0")


# ---- chips ----------------------------------------------------------------------------------------------------------


def test_ranks_exist_and_work_once(plan: Plan) -> None:
    only(edited(plan, stage_2={"ranks": [[8, 9], [10, 12]]}), "ranks", "there is no chip 12")
    only(edited(plan, stage_2={"ranks": [[8, 9], [10, 7]]}), "ranks", "used more than once: chip 7")


def test_tensor_groups_stay_in_a_node_of_the_stages_group(plan: Plan) -> None:
    only(
        edited(plan, stage_1={"ranks": [[4, 5], [7, 8]]}, stage_2={"ranks": [[6, 9], [10, 11]]}), "ranks", "nodes 0, 1"
    )
    only(
        edited(plan, stage_0={"ranks": [[0, 1], [4, 5]]}, stage_1={"ranks": [[2, 3], [6, 7]]}),
        "ranks",
        "chip 4, 5 is not of node group fast",
        "chip 2, 3 is not of node group slow",
    )


def test_the_chip_is_the_groups(plan: Plan) -> None:
    only(edited(plan, stage_0={"chip": "steady"}), "ranks", "is steady; node group fast has quick")
    only(edited(plan, stage_0={"node_group": "no"}), "ranks", "no node group 'no'")


def test_ranks_are_those_that_the_times_are_for(plan: Plan) -> None:
    only(
        edited(plan, stage_0={"ranks": [[2, 3], [0, 1]]}),
        "placement",
        "replica 0 is on chips 2, 3; the layout that the times are for has it on 0, 1",
    )


def test_idle_chips_are_those_that_are_left() -> None:
    plan = small_plan(
        chosen=PipelineChoice(
            "1f1b", choice().setting, 8, (StageChoice(1, Mode(2), 0, 4, {}), StageChoice(1, Mode(2), 4, 9, {}))
        )
    )
    assert [(item.node_group, item.chips) for item in plan.idle] == [("fast", 4)]
    assert check_plan(plan) == ()
    document = plan.model_dump(mode="json") | {"idle": []}
    only(Plan.model_validate(document), "idle", "says none; the ranks leave {'fast': 4}")


# ---- counts ---------------------------------------------------------------------------------------------------------


def test_micro_batches_make_up_the_global_batch(plan: Plan) -> None:
    assert (
        "batch: islands[0].pipelines[0]: 2 replicas x 7 micro-batches x 2 sequences = 28, the global batch is 32"
        in found(edited(plan, micro_batches=7))
    )


def test_every_stage_has_chips_for_every_replica(plan: Plan) -> None:
    texts = found(edited(plan, stage_1={"ranks": [[4, 5]]}))
    assert any("has ranks for 1 replicas, the pipeline has 2" in text for text in texts)
    texts = found(edited(plan, stage_1={"ranks": [[4, 5], [6]]}))
    assert any("replica 1 has not tensor x context = 2 chips" in text for text in texts)


def test_in_flight_counts_and_boundaries_are_the_schedules(plan: Plan) -> None:
    only(edited(plan, stage_0={"in_flight": 2}), "schedule", "is 2; 1f1b with 3 stages holds 3")
    only(edited(plan, transfers=[]), "transfers", "the boundaries are (0, 1), (1, 2)")


def test_context_and_expert_degrees_are_equal_on_all_stages(plan: Plan) -> None:
    texts = found(edited(plan, stage_1={"expert_parallel": 2}))
    assert "degrees: islands[0].pipelines[0].stages[1].expert_parallel: is 2, on the first stage 1" in texts


def test_the_same_pipeline_twice_takes_its_chips_twice(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    document["islands"][0]["pipelines"] *= 2
    texts = found(Plan.model_validate(document))
    assert any("ranks: islands[0].pipelines: used more than once" in text for text in texts)
    assert any("batch: islands[0].pipelines: " in text and "= 64, the global batch is 32" in text for text in texts)


# ---- numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["forward_s", "backward_input_s", "backward_weight_s", "recompute_s", "reduction_s", "optimizer_s"]
)
def test_times_are_the_cost_models(plan: Plan, name: str) -> None:
    time = plan.pipelines[0].stages[0].time.model_dump()
    wrong = edited(plan, stage_0={"time": time | {name: time[name] * 1.01}})
    only(wrong, "time", f"{PIPELINE}.stages[0].time.{name}")


def test_memory_is_the_cost_models_part_by_part(plan: Plan) -> None:
    memory = plan.pipelines[0].stages[1].memory.model_dump()
    parts = memory["parts"] | {"activations": memory["parts"]["activations"] - 2**20}
    only(
        edited(plan, stage_1={"memory": memory | {"parts": parts}}), "memory-numbers", "parts.activations", "peak_bytes"
    )
    only(edited(plan, stage_1={"memory": memory | {"usable_bytes": 1}}), "memory-numbers", "usable_bytes: is 1")


def test_a_stage_that_does_not_fit_is_named_with_what_is_missing() -> None:
    """Layers of hidden size 8192 need 12 bytes x 570 million parameters and more: far above 8 GiB."""
    large = MODEL.replace("hidden_size: 512", "hidden_size: 8192").replace(
        "intermediate_size: 1024", "intermediate_size: 28672"
    )
    plan = small_plan(large)
    only(plan, "memory", "stages[0].memory: stage 0 on fast needs", "GiB too much", "stages[1].memory")


def test_transfers_are_the_cost_models_on_the_plans_own_chips(plan: Plan) -> None:
    transfers = [transfer.model_dump() for transfer in plan.pipelines[0].transfers]
    for name, value in (
        ("bytes", 1),
        ("time_s", 1.0),
        ("backward_time_s", 1.0),
        ("transport", "rdma"),
        ("same_node", True),
    ):
        wrong = [transfers[0] | {name: value}, transfers[1]]
        only(edited(plan, transfers=wrong), "transfers", f"{PIPELINE}.transfers[0].{name}: is {value}")


@pytest.mark.parametrize("name", ["step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "mfu", "bubble_fraction"])
def test_predictions_are_computed_again(plan: Plan, name: str) -> None:
    document = plan.model_dump(mode="json")
    document["prediction"][name] *= 0.9
    only(Plan.model_validate(document), "prediction", f"prediction.{name}")


def test_days_and_cost_are_computed_again(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    document["training"]["cost"] = 1.0
    only(Plan.model_validate(document), "training", "training.cost: is 1.0")
    only(Plan.model_validate(document | {"training": None}), "training", "is missing")


def test_objective_bound_and_gap_agree(plan: Plan) -> None:
    def with_certificate(**changes: Any) -> Plan:
        document = plan.model_dump(mode="json")
        document["certificate"] |= changes
        return Plan.model_validate(document)

    objective, bound = plan.certificate.objective, plan.certificate.bound
    only(with_certificate(gap=0.005), "certificate", "certificate.gap: is 0.005")
    only(with_certificate(bound=objective * 2), "certificate", "above the objective")
    only(with_certificate(bound=objective / 2, gap=0.5), "certificate", "says that the gap 0.02 was reached; it is 0.5")
    only(
        with_certificate(objective=objective / 2, bound=bound / 2),
        "certificate",
        "certificate.objective: is",
        "the prediction says",
    )
    only(with_certificate(unit="EUR/token"), "certificate", "objectives of this plan: s, USD/token")


# ---- inputs ---------------------------------------------------------------------------------------------------------


def test_hashes_are_those_of_the_documents(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    document["inputs"]["model"]["sha256"] = "0" * 64
    only(Plan.model_validate(document), "sha256", "inputs.model.sha256: is 000000000000...")


def test_documents_that_are_no_inputs_are_named(plan: Plan) -> None:
    for name in ("cluster", "model"):
        document = plan.model_dump(mode="json")
        document["inputs"][name] |= {"document": {"name": "x"}, "sha256": sha256_of({"name": "x"})}
        only(Plan.model_validate(document), "inputs", f"inputs.{name}.document: is not a {name}")


def test_a_model_without_the_graph_that_it_names_is_no_model(plan: Plan) -> None:
    document = plan.model_dump(mode="json")
    model = document["inputs"]["model"]
    model["document"] |= {"source": "graph", "graph": None}
    model["sha256"] = sha256_of(model["document"])
    only(Plan.model_validate(document), "inputs", "a model has a graph with the source `graph`")


def with_constraints(plan: Plan, **constraints: Any) -> Plan:
    document = plan.model_dump(mode="json")
    model = document["inputs"]["model"]
    model["document"]["constraints"] |= constraints
    model["sha256"] = sha256_of(model["document"])
    return Plan.model_validate(document)


@pytest.mark.parametrize(
    ("constraints", "text"),
    [
        ({"pipeline_parallel": 2}, "there are 3; constraints.pipeline_parallel is 2"),
        ({"data_parallel": [4]}, "is 2; constraints.data_parallel is"),
        ({"tensor_parallel": {"slow": [4]}}, "stages[1].tensor_parallel: is 2"),
        ({"stages": {"slow": 1}}, "2 on slow; constraints.stages says 1"),
        ({"order": ["slow", "fast"]}, "run over fast, slow; constraints.order is slow, fast"),
        ({"layers_per_stage": [3, 3, 3]}, "hold [4, 2, 3] layers"),
        ({"micro_batch_size": 1}, "is 2; the model file allows 1"),
    ],
)
def test_what_the_model_file_pins_is_kept(plan: Plan, constraints: dict[str, Any], text: str) -> None:
    assert any(text in line for line in found(with_constraints(plan, **constraints)))


def test_a_group_that_must_stay_idle_does(plan: Plan) -> None:
    texts = found(with_constraints(plan, idle=["slow"]))
    assert any("use slow, which constraints.idle leaves out" in text for text in texts)


def test_pins_that_hold_are_no_violation(plan: Plan) -> None:
    pins: dict[str, Any] = {
        "pipeline_parallel": 3,
        "data_parallel": [2],
        "tensor_parallel": 2,
        "stages": {"slow": 2, "fast": 1},
        "order": ["fast", "slow"],
        "layers_per_stage": [4, 2, 3],
        "use": ["fast", "slow"],
        "micro_batch_size": 2,
    }
    assert found(with_constraints(plan, **pins)) == []


# ---- robustness -----------------------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_no_edit_of_a_number_makes_the_checker_fail(data: st.DataObject) -> None:
    """Whatever a stranger writes into a readable plan, the answer is a list of violations."""
    document = small_plan().model_dump(mode="json")
    spots = [
        (holder, key)
        for holder in _holders(document["islands"])
        for key, value in (holder.items() if isinstance(holder, dict) else enumerate(holder))
        if isinstance(value, int) and not isinstance(value, bool)
    ]
    holder, key = data.draw(st.sampled_from(spots))
    holder[key] = data.draw(st.integers(min_value=0, max_value=2**40))
    try:
        changed = Plan.model_validate(json.loads(json.dumps(document)))
    except ValueError:
        return
    assert isinstance(check_plan(changed), tuple)


def _holders(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(h for item in value.values() for h in _holders(item))]
    if isinstance(value, list):
        return [value, *(h for item in value for h in _holders(item))]
    return []


def test_the_checker_knows_nothing_of_the_integer_program() -> None:
    for path in Path(planner.plan.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not [name for name in names if name.startswith(("pulp", "highspy", "planner.search"))], path

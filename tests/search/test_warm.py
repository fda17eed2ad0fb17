"""An older plan as a start: judged anew, a floor for what the clock ends, without a say in what the gap ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from planner.cost.tables import Mode, Setting
from planner.errors import NoPlanFoundError
from planner.plan import Plan, check_plan
from planner.plan.assemble import PipelineChoice, StageChoice
from planner.plan.file import dump_plan
from planner.search import SolveOptions, SolveResult, driver, solve
from planner.spec import parse_cluster, parse_model
from tests.plan.small import CLUSTER, MODEL, choice, edited, small_plan

MIXED = MODEL + "constraints: {shapes: mixed}\n"
ONE_SHAPE = MODEL + "constraints: {shapes: identical}\n"


def result(cluster: str = CLUSTER, model: str = ONE_SHAPE, **options: Any) -> SolveResult:
    return solve(parse_cluster(cluster, "c.yaml"), parse_model(model, "m.yaml"), SolveOptions(**options))


def said(found: SolveResult) -> str:
    return " ".join(n.message for n in found.notices if n.code == "warm_start")


def a_mix(model: str = MIXED) -> Plan:
    """Two replicas of one stage on `fast` with 6 micro-batches of 2, and one on `slow` with 4: 32 sequences."""
    fast = PipelineChoice("1f1b", Setting(2, 3), 6, (StageChoice(0, Mode(2), 0, 9, {}),), 2)
    slow = PipelineChoice(
        "1f1b", Setting(2, 3), 4, (StageChoice(1, Mode(4), 0, 4, {}), StageChoice(1, Mode(4), 4, 9, {})), 1
    )
    return small_plan(model, (fast, slow))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def optimum() -> Plan:
    return result(gap=0.0).plan


# ---- what the gap ends ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("gap", [0.05, 0.0])
def test_what_the_gap_ends_is_the_same_with_and_without_an_older_plan(jobs: int, gap: float, optimum: Plan) -> None:
    cold = result(gap=gap, jobs=jobs)
    assert cold.why_stopped == "gap"
    for older in (small_plan(), optimum):
        warm = result(gap=gap, jobs=jobs, warm_start=older)
        assert warm.why_stopped == "gap"
        assert dump_plan(warm.plan) == dump_plan(cold.plan)


def test_a_better_older_plan_that_the_gap_hides_is_said(optimum: Plan) -> None:
    wide = result(gap=0.5)
    assert wide.plan.certificate.objective > optimum.certificate.objective
    warm = result(gap=0.5, warm_start=optimum)
    assert dump_plan(warm.plan) == dump_plan(wide.plan)
    assert "% better than the one that was found" in said(warm) and "smaller --gap" in said(warm)


def test_mixes_that_the_gap_ends_are_the_same_with_and_without_an_older_mix() -> None:
    cold = result(model=MIXED, gap=0.9)
    assert cold.why_stopped == "gap"
    assert dump_plan(result(model=MIXED, gap=0.9, warm_start=a_mix()).plan) == dump_plan(cold.plan)


# ---- what the clock ends --------------------------------------------------------------------------------------------


def test_with_no_time_at_all_the_older_plan_is_the_plan() -> None:
    with pytest.raises(NoPlanFoundError):
        result(time_limit_s=0.0)
    older = small_plan()
    warm = result(time_limit_s=0.0, warm_start=older)
    assert (warm.why_stopped, check_plan(warm.plan)) == ("time", ())
    assert warm.plan.islands == older.islands
    assert 0 < warm.plan.certificate.bound <= warm.plan.certificate.objective
    assert "nothing better than the older plan" in said(warm)


def test_an_older_mix_is_the_plan_when_there_is_no_time() -> None:
    older = a_mix()
    warm = result(model=MIXED, time_limit_s=0.0, warm_start=older)
    assert (warm.why_stopped, check_plan(warm.plan)) == ("time", ())
    assert warm.plan.islands == older.islands
    assert len(warm.plan.pipelines) == 2


def test_money_is_compared_as_money() -> None:
    older = small_plan()
    warm = result(time_limit_s=0.0, objective="cost", warm_start=older)
    assert warm.plan.islands == older.islands
    assert warm.plan.certificate.unit == "USD/token"
    cold = result(objective="cost")
    assert dump_plan(result(objective="cost", warm_start=older).plan) == dump_plan(cold.plan)


def test_after_half_of_the_time_the_search_goes_on_from_the_older_plan(
    monkeypatch: pytest.MonkeyPatch, optimum: Plan
) -> None:
    monkeypatch.setattr(driver, "_ALONE", 0.0)
    best = optimum.certificate.objective
    warm = result(gap=0.05, warm_start=optimum)
    # the clock let it in: the gap is closed, but did not decide alone
    assert warm.why_stopped == "time" and warm.plan.certificate.gap <= 0.0501
    assert warm.plan.certificate.bound <= best * (1 + 1e-6)
    assert warm.plan.certificate.objective <= best * (1 + 1e-9)
    # a plan that is worse than the first one found has no say
    assert result(gap=0.05, warm_start=small_plan()).why_stopped == "gap"


def test_progress_has_a_plan_from_the_beginning() -> None:
    seen: list[Any] = []
    older = small_plan()
    cluster, model = parse_cluster(CLUSTER, "c.yaml"), parse_model(ONE_SHAPE, "m.yaml")
    solve(cluster, model, SolveOptions(warm_start=older), seen.append)
    assert seen[0].incumbent_s == pytest.approx(older.certificate.objective)
    assert all(b.incumbent_s <= a.incumbent_s for a, b in itertools.pairwise(seen))


# ---- on a topology --------------------------------------------------------------------------------------------------

RACKS = """
topology:
  - {name: left, nodes: {fast: 1, slow: 1-1}, uplink: 300 MB/s, latency: 1 us}
  - {name: right, nodes: {slow: 0-0}, uplink: 300 MB/s, latency: 1 us}
"""


def test_an_older_plan_is_placed_and_priced_on_the_uplinks() -> None:
    there = small_plan(cluster_text=CLUSTER + RACKS)
    assert there.prediction.step_time_s > small_plan().prediction.step_time_s
    warm = result(CLUSTER + RACKS, time_limit_s=0.0, warm_start=small_plan())
    assert (warm.why_stopped, check_plan(warm.plan)) == ("time", ())
    assert [(s.node_group, s.tensor_parallel) for s in warm.plan.pipelines[0].stages] == [
        ("fast", 2),
        ("slow", 2),
        ("slow", 2),
    ]
    # layers are moved where that helps on the uplinks, and only then
    assert warm.plan.prediction.step_time_s <= there.prediction.step_time_s
    assert 0 < warm.plan.certificate.bound <= warm.plan.certificate.objective


def test_an_older_mix_is_placed_and_priced_on_the_uplinks() -> None:
    older = a_mix()
    warm = result(CLUSTER + RACKS, MIXED, time_limit_s=0.0, warm_start=older)
    assert (warm.why_stopped, check_plan(warm.plan)) == ("time", ())
    assert [[s.layers for s in p.stages] for p in warm.plan.pipelines] == [
        [s.layers for s in p.stages] for p in older.pipelines
    ]
    solver = warm.plan.certificate.solver
    assert older.prediction.step_time_s < warm.plan.prediction.step_time_s <= solver["file_order_step_s"]
    assert "nothing better than the older plan" in said(warm)


def test_a_plan_of_two_racks_is_an_older_plan_that_nothing_worse_replaces() -> None:
    best = result(CLUSTER + RACKS, gap=0.0)
    assert best.why_stopped in ("gap", "exhausted")
    again = result(CLUSTER + RACKS, gap=0.0, time_limit_s=0.1, warm_start=best.plan)
    assert check_plan(again.plan) == ()
    assert again.plan.prediction.step_time_s <= best.plan.prediction.step_time_s * (1 + 1e-9)
    assert again.plan.certificate.bound <= best.plan.prediction.step_time_s * (1 + 1e-9)


def test_an_older_plan_that_is_only_faster_without_uplinks_has_no_say(optimum: Plan) -> None:
    cold = result(CLUSTER + RACKS, gap=0.0)
    assert optimum.prediction.step_time_s < cold.plan.prediction.step_time_s
    warm = result(CLUSTER + RACKS, gap=0.0, warm_start=optimum)
    assert warm.plan.prediction == cold.plan.prediction


def test_what_the_gap_ends_on_a_topology_is_the_same_with_and_without_an_older_plan() -> None:
    cold = result(CLUSTER + RACKS, gap=0.5)
    assert cold.why_stopped == "gap"
    best = result(CLUSTER + RACKS, gap=0.0).plan
    for older in (small_plan(), best):
        warm = result(CLUSTER + RACKS, gap=0.5, warm_start=older)
        assert dump_plan(warm.plan) == dump_plan(cold.plan)


def test_money_on_a_topology_is_that_of_the_exact_step() -> None:
    warm = result(CLUSTER + RACKS, time_limit_s=0.0, objective="cost", warm_start=small_plan())
    assert check_plan(warm.plan) == () and warm.plan.certificate.unit == "USD/token"


# ---- judged, never trusted ------------------------------------------------------------------------------------------


def test_what_the_file_says_of_times_and_proofs_is_not_read() -> None:
    honest = small_plan()
    document = honest.model_dump(mode="json")
    document["prediction"]["step_time_s"] = 1e-9
    document["certificate"] |= {"objective": 1e-9, "bound": 1e-9, "gap": 0.0}
    document["islands"][0]["pipelines"][0]["stages"][0]["time"]["forward_s"] = 0.0
    warm = result(time_limit_s=0.0, warm_start=Plan.model_validate(document))
    assert warm.plan.prediction.step_time_s == honest.prediction.step_time_s


def test_another_batch_keeps_the_shape_and_another_model_its_stages() -> None:
    double = MODEL.replace("global_batch: 32", "global_batch: 64")
    warm = result(model=double, time_limit_s=0.0, warm_start=small_plan())
    assert warm.plan.pipelines[0].micro_batches == 16
    assert [len(s.layers) for s in warm.plan.pipelines[0].stages] == [4, 2, 3]
    mix = result(model=double + "constraints: {shapes: mixed}\n", time_limit_s=0.0, warm_start=a_mix())
    assert [p.micro_batches for p in mix.plan.pipelines] == [12, 8]
    longer = MODEL.replace("num_hidden_layers: 6", "num_hidden_layers: 12")
    warm = result(model=longer, time_limit_s=0.0, warm_start=small_plan())
    assert [s.node_group for s in warm.plan.pipelines[0].stages] == ["fast", "slow", "slow"]
    assert sum(len(s.layers) for s in warm.plan.pipelines[0].stages) == 15
    assert "the layers divided anew" in said(warm)


def with_stage(**changes: Any) -> Plan:
    return edited(small_plan(), stage_0=changes)


@pytest.mark.parametrize(
    ("older", "cluster", "model", "words"),
    [
        (small_plan(), CLUSTER.replace("name: fast", "name: quick"), MODEL, "the cluster has no node group 'fast'"),
        (small_plan(), CLUSTER.replace("nodes: 2", "nodes: 1, chips_per_node: 2"), MODEL, "do not fit slow"),
        (small_plan(), CLUSTER, MODEL + "constraints: {idle: [slow]}\n", "tensor parallel degree 2"),
        (small_plan(), CLUSTER, MODEL + "constraints: {order: [slow, fast]}\n", "`constraints:`"),
        (small_plan(), CLUSTER, MODEL + "constraints: {data_parallel: 4}\n", "2 replicas with micro-batches of 2"),
        (edited(small_plan(), micro_batch_size=16), CLUSTER, ONE_SHAPE, "2 replicas with micro-batches of 16"),
        (edited(small_plan(), replicas=10**15), CLUSTER, ONE_SHAPE, "1,000,000,000,000,000 replicas"),
        (with_stage(tensor_parallel=3), CLUSTER, ONE_SHAPE, "degree 3 on fast is not possible; possible is 1, 2, 4"),
        (edited(small_plan(), schedule={"name": "gpipe"}), CLUSTER, ONE_SHAPE, "schedule gpipe is not among 1f1b"),
        (a_mix(), CLUSTER, ONE_SHAPE, "constraints.shapes asks for one shape"),
        (a_mix(), CLUSTER.replace("nodes: 2", "nodes: 1"), MIXED, "uses 8 chips of slow, which has 4"),
        (a_mix(), CLUSTER, MIXED.replace("layers: 6", "layers: 7"), "its layers are not those of this model"),
        (a_mix(), CLUSTER, MIXED.replace("batch: 32", "batch: 30"), "32 sequences a step do not scale to 30"),
        (a_mix(), CLUSTER.replace("memory: 8 GiB", "memory: 32 MiB"), MIXED, "needs"),
    ],
)
def test_a_plan_that_does_not_fit_is_no_start_and_the_notice_says_why(
    older: Plan, cluster: str, model: str, words: str
) -> None:
    mixed = "shapes: mixed" in model
    warm = result(cluster, model, gap=0.9, time_limit_s=1.5 if mixed else 30.0, warm_start=older)
    assert "the older plan is no start" in said(warm) and words in said(warm)
    if not mixed:
        assert dump_plan(warm.plan) == dump_plan(result(cluster, model, gap=0.9).plan)


def test_without_any_plan_the_error_says_why_the_older_one_did_not_help() -> None:
    with pytest.raises(NoPlanFoundError, match="no node group 'fast'"):
        result(CLUSTER.replace("name: fast", "name: quick"), time_limit_s=0.0, warm_start=small_plan())


def test_hostile_numbers_of_replicas_in_a_mix_are_refused_before_they_are_counted() -> None:
    document = a_mix().model_dump(mode="json")
    document["islands"][0]["pipelines"][1]["replicas"] = 10**15
    warm = result(model=MIXED, time_limit_s=1.5, warm_start=Plan.model_validate(document))
    assert "chips of slow, which has 8" in said(warm)


def test_layers_that_stand_twice_are_divided_anew() -> None:
    older = edited(small_plan(), stage_1={"layers": ["layers.3", "layers.3"]})
    warm = result(time_limit_s=0.0, warm_start=older)
    assert check_plan(warm.plan) == () and "divided anew" in said(warm)
    assert choice().stages[0].end == 4

"""Plans whose stages have modes of their own (ZeRO level, offloaded states, replicas): written, priced, checked."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.tables import Mode, Setting
from planner.cost.tiers import Tier
from planner.errors import InfeasibleError, InputError
from planner.plan import check_plan, parse_plan
from planner.plan.file import dump_plan
from planner.plan.schema import Plan
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model
from tests.plan.mixed import mixed_plan, two
from tests.plan.small import CLUSTER, MODEL, choice, edited, small_plan

LEVELS = MODEL.replace("tokens: 1 B tokens", "tokens: 1 B tokens, zero: [1, 3]")


def plan_with(*levels: int | None, model: str = LEVELS) -> Plan:
    chosen = choice()
    stages = tuple(replace(s, mode=Mode(2, level)) for s, level in zip(chosen.stages, levels, strict=True))
    return small_plan(model, replace(chosen, stages=stages))


def found(plan: Plan) -> list[str]:
    return [violation.render() for violation in check_plan(plan)]


def test_each_stage_has_the_numbers_of_a_model_with_its_level_alone() -> None:
    plan = plan_with(1, 3, 3)
    assert found(plan) == [] and found(parse_plan(dump_plan(plan), "plan.json")) == []
    for s, level in enumerate((1, 3, 3)):
        alone = small_plan(MODEL.replace("tokens: 1 B tokens", f"tokens: 1 B tokens, zero: {level}"))
        own, same = plan.pipelines[0].stages[s], alone.pipelines[0].stages[s]
        assert (own.zero, same.zero) == (level, None)
        assert (own.memory, own.time) == (same.memory, same.time)


def test_a_plan_without_a_choice_says_nothing_of_levels() -> None:
    assert '"zero": 1' in dump_plan(small_plan()) and small_plan().pipelines[0].stages[0].zero is None
    assert dump_plan(small_plan(MODEL.replace("tokens: 1", "zero: [1], tokens: 1"))) == dump_plan(small_plan())


def test_a_level_that_is_said_where_there_is_one_must_be_that_one() -> None:
    assert found(edited(small_plan(), stage_0={"zero": 1})) == []
    assert any("ZeRO level 3: 'fast' can have 1" in text for text in found(edited(small_plan(), stage_0={"zero": 3})))


def test_a_level_outside_the_model_file_and_one_that_is_missing_are_found() -> None:
    plan = plan_with(1, 3, 3)
    foreign, missing = found(edited(plan, stage_1={"zero": 2})), found(edited(plan, stage_1={"zero": None}))
    assert any("stages[1].zero: is 2; the model file allows 1, 3" in text for text in foreign)
    assert any("ZeRO level not given: 'slow' can have 1, 3" in text for text in missing)


def test_another_level_than_the_one_that_was_priced_is_found() -> None:
    texts = found(edited(plan_with(1, 3, 3), stage_0={"zero": 3}))
    assert any("stages[0].memory.parts.weights" in text for text in texts)
    assert any("stages[0].time.forward_s" in text for text in texts)


def test_a_process_knows_the_level_of_its_stage() -> None:
    plan = plan_with(1, 3, 3)
    assert [plan.for_rank(rank).zero for rank in (0, 4, 8)] == [1, 3, 3]
    assert small_plan().for_rank(0).zero == 1


def test_pipelines_of_several_shapes_have_no_levels_of_their_own() -> None:
    with pytest.raises(AssertionError, match="ZeRO level not given"):
        mixed_plan(two(), model_text=LEVELS)


# ---- optimizer states in host memory --------------------------------------------------------------------------------

HOSTS = CLUSTER.replace("nodes: 1}", "nodes: 1, host_memory: HOST, host_memory_bandwidth: 100 GB/s}")
ALLOWED = MODEL.replace("tokens: 1 B tokens", "tokens: 1 B tokens, offload_optimizer: allowed")


def offloaded(host: str = "64 GiB") -> Plan:
    """Stage 0, on `fast`, has its states in host memory."""
    stages = choice().stages
    first = replace(stages[0], mode=Mode(2, offload=Tier.HOST))
    chosen = replace(choice(), stages=(first, *stages[1:]))
    return small_plan(ALLOWED, chosen, cluster_text=HOSTS.replace("HOST", host))


def test_offloaded_states_are_on_the_host_and_nowhere_else() -> None:
    plan, plain = offloaded(), small_plan()
    assert found(plan) == [] and found(parse_plan(dump_plan(plan), "plan.json")) == []
    (first, *rest), (same, *others) = plan.pipelines[0].stages, plain.pipelines[0].stages
    assert (first.offload_optimizer, first.memory.parts["optimizer"]) == ("host", 0)
    # 12 bytes a parameter over two replicas leave the chip; with the gradient that arrives 16 are on the host
    assert first.memory.host_bytes == pytest.approx(same.memory.parts["optimizer"] * 16 / 12, abs=1)
    assert first.memory.usable_host_bytes == 16 * 2**30
    assert first.time.optimizer_s > same.time.optimizer_s
    assert [(s.memory, s.time) for s in rest] == [(s.memory, s.time) for s in others]
    assert not any(word in dump_plan(plain) for word in ("offload", "host_bytes", "host_memory"))


def test_a_group_that_says_nothing_of_its_host_cannot_offload() -> None:
    texts = found(edited(offloaded(), stage_1={"offload_optimizer": "host"}))
    assert any("the optimizer states of 'slow' have to be on the chips" in text for text in texts)


def test_what_is_offloaded_without_leave_or_priced_otherwise_is_found() -> None:
    never = edited(small_plan(cluster_text=HOSTS.replace("HOST", "64 GiB")), stage_0={"offload_optimizer": "host"})
    assert any("stages[0].offload_optimizer: is host; the model file allows none" in text for text in found(never))
    back = found(edited(offloaded(), stage_0={"offload_optimizer": None}))
    assert any("stages[0].memory.host_bytes" in text for text in back)
    assert any("stages[0].time.optimizer_s" in text for text in back)


def test_host_memory_has_a_limit_and_numbers_that_are_checked() -> None:
    over = found(offloaded("4 MiB"))
    assert len(over) == 1 and "of host memory, it has 4.0 MiB" in over[0]
    memory = offloaded().pipelines[0].stages[0].memory.model_dump()
    wrong = edited(offloaded(), stage_0={"memory": memory | {"host_bytes": 5}})
    assert any("stages[0].memory.host_bytes: is 5, the cost model says" in text for text in found(wrong))


def test_a_process_knows_whether_its_states_are_on_the_host() -> None:
    plan = offloaded()
    assert [plan.for_rank(rank).offload_optimizer for rank in (0, 4, 8)] == ["host", "none", "none"]


def test_where_host_memory_is_what_is_missing_solve_says_so_and_what_helps() -> None:
    cluster = parse_cluster(HOSTS.replace("HOST", "4 MiB"), "c.yaml")
    always = ALLOWED.replace("allowed", "always") + "constraints: {idle: [slow], shapes: identical}\n"
    with pytest.raises(InfeasibleError) as caught:
        solve(cluster, parse_model(always, "m.yaml"), SolveOptions(time_limit_s=10))
    said = str(caught.value)
    assert "of host memory a chip; 1.0 MiB is usable" in said and "offload_optimizer: allowed" in said


# ---- replicas of a stage that share each micro-batch ----------------------------------------------------------------

SHARED = MODEL.replace("tokens: 1 B tokens", "tokens: 1 B tokens, stage_replicas: [1, 2]")


def shared() -> Plan:
    """Two pipelines with micro-batches of 2: stage 0 on 0 1 | 2 3 of `fast`, a sequence a chip; the others as ever."""
    first, *rest = choice().stages
    return small_plan(SHARED, replace(choice(), stages=(replace(first, mode=Mode(1, replicas=2)), *rest)))


def test_a_stage_whose_replicas_share_micro_batches_passes() -> None:
    plan = shared()
    assert found(plan) == [] and found(parse_plan(dump_plan(plan), "plan.json")) == []
    first, second, _ = plan.pipelines[0].stages
    assert (first.replicas, first.ranks) == (2, ((0,), (1,), (2,), (3,)))
    assert (second.replicas, second.ranks) == (None, ((4, 5), (6, 7)))
    # a chip has one sequence, and its gradients go round all four: as with micro-batches of 1 and four pipelines
    single = tuple(replace(stage, mode=Mode(1)) for stage in choice().stages)
    same = small_plan(chosen=replace(choice(), setting=Setting(1, 4), stages=single)).pipelines[0].stages[0]
    assert (first.memory, first.time, first.in_flight) == (same.memory, same.time, same.in_flight)
    stages = small_plan().model_dump(mode="json")["islands"][0]["pipelines"][0]["stages"]
    assert not any({"replicas", "zero", "offload_optimizer"} & set(stage) for stage in stages)


def test_chips_that_do_not_match_the_replicas_of_a_stage_are_found() -> None:
    alone = found(edited(shared(), stage_0={"replicas": None}))
    assert any("has ranks for 4 replicas, the pipeline has 2" in text for text in alone)
    half = found(edited(shared(), stage_0={"ranks": [[0], [1]]}))
    assert any("has ranks for 2 replicas, the pipeline has 2 x 2 of the stage" in text for text in half)


def test_replicas_that_the_model_file_does_not_allow_are_found() -> None:
    plan = edited(small_plan(), stage_0={"replicas": 2, "tensor_parallel": 1, "ranks": [[0], [1], [2], [3]]})
    texts = found(plan)
    assert any("stages[0].replicas: is 2; the model file allows 1" in text for text in texts)
    assert any("2 replicas of a stage are no choice on 'fast' (possible: 1)" in text for text in texts)


def test_a_process_knows_its_part_and_whom_it_shares_with() -> None:
    plan = shared()
    views = [plan.for_rank(rank) for rank in range(12)]
    assert [(v.replica, v.stage_replica, v.stage_replicas) for v in views[:4]] == [
        (0, 0, 2),
        (0, 1, 2),
        (1, 0, 2),
        (1, 1, 2),
    ]
    assert [v.next for v in views[:4]] == [(4, 5), (4, 5), (6, 7), (6, 7)]
    assert (views[4].previous, views[6].previous) == ((0, 1), (2, 3))
    assert views[4].receives_from[0].ranks == (0, 1)
    assert {group.ranks for group in views[1].reduction_groups} == {(0, 1, 2, 3)}
    assert [(v.first_sequence, v.num_sequences) for v in (views[1], views[2])] == [(0, 16), (16, 16)]


def test_with_more_modes_to_choose_from_solve_finds_no_worse_plan() -> None:
    cluster = parse_cluster(HOSTS.replace("HOST", "64 GiB"), "c.yaml")
    one = MODEL + "constraints: {shapes: identical}\n"
    more = one.replace(
        "tokens: 1 B tokens", "tokens: 1 B tokens, zero: [1, 3], offload_optimizer: allowed, stage_replicas: [1, 2]"
    )
    plain, wide = (solve(cluster, parse_model(text, "m.yaml"), SolveOptions(gap=0.0)).plan for text in (one, more))
    assert wide.prediction.step_time_s <= plain.prediction.step_time_s * (1 + 1e-6)
    assert found(wide) == []
    space = wide.certificate.plan_space
    assert space["zero"] == [1, 3]
    assert space["offload_optimizer"] == {"fast": ["none", "host"], "slow": ["none"]}
    assert space["stage_replicas"] == {"fast": [1, 2], "slow": [1, 2]}
    assert not {"zero", "offload_optimizer", "stage_replicas"} & set(plain.certificate.plan_space)


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("[1, 1]", "names '1' twice"),
        ("[1, 4]", "training.zero[1]: '4' is too large"),
        ("[]", "at least one ZeRO level"),
    ],
)
def test_levels_that_are_none_are_refused_at_their_place(written: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        small_plan(MODEL.replace("tokens: 1 B tokens", f"zero: {written}"))
    assert said in "\n".join(problem.render() for problem in caught.value.problems)

"""Plans whose stages have ZeRO levels of their own: written, priced and checked stage by stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.tables import Mode
from planner.errors import InputError
from planner.plan import check_plan, parse_plan
from planner.plan.file import dump_plan
from planner.plan.schema import Plan
from tests.plan.mixed import mixed_plan, two
from tests.plan.small import MODEL, choice, edited, small_plan

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

"""From the search's choice to a plan: ranks, numbers and certificate follow from it alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.tables import Chain, Mode, Setting
from planner.plan import check_plan
from planner.plan.assemble import PipelineChoice, StageChoice, recompute_by_name
from planner.plan.file import dump_plan
from tests.plan.small import MODEL, choice, small_plan

CHAIN = Chain(
    ("embedding", "layers.0", "layers.1", "layers.2", "head"), (0, 1, 1, 1, 2), ("embedding", "layer", "head")
)


def test_of_each_kind_the_earliest_layers_are_recomputed_full_before_selective() -> None:
    # one layer of kind 1 full, one selective, one none; head selective
    counts = [[1, 0, 0], [1, 1, 1], [0, 1, 0]]
    assert recompute_by_name(CHAIN, 0, 5, counts, ("none", "selective", "full")) == {
        "layers.0": "full",
        "layers.1": "selective",
        "head": "selective",
    }


def test_only_layers_of_the_stage_are_named() -> None:
    assert recompute_by_name(CHAIN, 2, 4, [[0, 0], [1, 1], [0, 0]], ("none", "full")) == {"layers.1": "full"}


def test_where_none_is_no_choice_every_layer_is_named() -> None:
    assert recompute_by_name(CHAIN, 3, 5, [[0], [1], [1]], ("full",)) == {"layers.2": "full", "head": "full"}


def test_stages_of_a_group_fill_its_slots_one_after_the_other() -> None:
    ranks = [stage.ranks for stage in small_plan().pipelines[0].stages]
    assert ranks == [((0, 1), (2, 3)), ((4, 5), (6, 7)), ((8, 9), (10, 11))]


def test_transfers_inside_a_node_are_marked() -> None:
    # one replica; both stages of `slow` fit its first node
    setting = Setting(micro_batch_size=2, data_parallel=1)
    plan = small_plan(chosen=PipelineChoice("1f1b", setting, 16, choice().stages))
    assert [stage.ranks for stage in plan.pipelines[0].stages] == [((0, 1),), ((4, 5),), ((6, 7),)]
    assert [transfer.same_node for transfer in plan.pipelines[0].transfers] == [False, True]
    assert [(item.node_group, item.chips) for item in plan.idle] == [("fast", 2), ("slow", 4)]
    assert check_plan(plan) == ()


def test_the_step_time_is_the_recurrence_over_the_plans_own_numbers() -> None:
    plan = small_plan()
    pipeline = plan.pipelines[0]
    times = [stage.time for stage in pipeline.stages]
    chain = ChainTimes(
        forward=[t.forward_s for t in times],
        backward=[t.backward_input_s + t.backward_weight_s + t.recompute_s for t in times],
        update=[t.reduction_s + t.optimizer_s for t in times],
        send_forward=[t.time_s for t in pipeline.transfers],
        send_backward=[t.backward_time_s for t in pipeline.transfers],
    )
    step = step_time(chain, [3, 2, 1], 8)
    assert plan.prediction.step_time_s == pytest.approx(step, rel=1e-12)
    assert plan.prediction.tokens_per_s == pytest.approx(32 * 256 / step)
    assert plan.prediction.tokens_per_s_per_chip == pytest.approx(32 * 256 / step / 12)


def test_the_bubble_is_what_no_chip_works() -> None:
    plan = small_plan()
    busy = 0.0
    for stage in plan.pipelines[0].stages:  # four chips each
        t = stage.time
        each = t.forward_s + t.backward_input_s + t.backward_weight_s + t.recompute_s
        busy += 4 * (8 * each + t.reduction_s + t.optimizer_s)
    assert plan.prediction.bubble_fraction == pytest.approx(1 - busy / (12 * plan.prediction.step_time_s))


def test_days_and_cost_follow_from_steps_and_prices() -> None:
    training = small_plan().training
    step = small_plan().prediction.step_time_s
    assert training is not None
    assert training.steps == 122_071  # 10^9 tokens / 8192, rounded up
    assert training.days == pytest.approx(122_071 * step / 86_400)
    assert training.price_per_hour == 16.0  # 4 chips at 2 USD/h, 8 at 1 USD/h
    assert training.cost == pytest.approx(122_071 * step / 3600 * 16)
    assert training.currency == "USD"


def test_a_used_chip_without_a_price_is_not_free() -> None:
    """No total is better than one that leaves a chip out; the chip is named."""
    from tests.plan.small import CLUSTER

    plan = small_plan(cluster_text=CLUSTER.replace(", steady: 1.00 USD/h", ""))
    training = plan.training
    assert training is not None and training.days is not None
    assert (training.price_per_hour, training.price_per_million_tokens, training.cost, training.currency) == (None,) * 4
    (warning,) = [w for w in plan.warnings if w.code == "price"]
    expected = "no price is known for steady (8 used), so none is given for the plan; add it to `prices`"
    assert warning.message == expected
    assert check_plan(plan) == ()


def test_a_chip_that_is_not_used_needs_no_price_and_a_price_of_0_is_one() -> None:
    from tests.plan.small import CLUSTER

    alone = PipelineChoice("1f1b", replace(choice().setting, data_parallel=2), 8, choice().stages[1:])
    first = replace(alone.stages[0], first=0)
    plan = small_plan(
        chosen=replace(alone, stages=(first, alone.stages[1])),
        cluster_text=CLUSTER.replace("quick: 2.00 USD/h, ", ""),
    )
    assert plan.training is not None and plan.training.price_per_hour == 8.0
    assert not [w for w in plan.warnings if w.code == "price"]
    plan = small_plan(cluster_text=CLUSTER.replace("1.00 USD/h", "0 USD/h"))
    assert plan.training is not None and plan.training.price_per_hour == 8.0
    assert check_plan(plan) == ()


def test_without_any_price_nothing_is_warned_of() -> None:
    from tests.plan.small import CLUSTER

    plan = small_plan(cluster_text=CLUSTER.partition("prices:")[0])
    assert plan.training is not None and plan.training.cost is None
    assert not [w for w in plan.warnings if w.code == "price"]


def test_without_length_and_prices_there_is_no_estimate() -> None:
    from tests.plan.small import CLUSTER

    plan = small_plan(MODEL.replace(", tokens: 1 B tokens", ""), cluster_text=CLUSTER.partition("prices:")[0])
    assert plan.training is None
    assert check_plan(plan) == ()


def test_equal_choices_give_equal_bytes() -> None:
    assert dump_plan(small_plan()) == dump_plan(small_plan())


@settings(deadline=None, max_examples=60)
@given(
    cuts=st.lists(st.integers(1, 8), min_size=2, max_size=2, unique=True).map(sorted),
    tensor=st.sampled_from([1, 2]),
    data=st.sampled_from([1, 2]),
    size=st.sampled_from([1, 2, 4]),
    schedule=st.sampled_from(["gpipe", "1f1b", "eager_1f1b"]),
    policies=st.lists(st.sampled_from(["none", "selective", "full"]), min_size=6, max_size=6),
)
def test_every_choice_makes_a_plan_that_passes_the_check(
    cuts: list[int], tensor: int, data: int, size: int, schedule: str, policies: list[str]
) -> None:
    chosen = {f"layers.{i}": policy for i, policy in enumerate(policies) if policy != "none"}
    bounds = [0, *cuts, 9]
    stages = []
    for group, first, end in zip((0, 1, 1), bounds, bounds[1:], strict=False):
        held = {f"layers.{i - 1}" for i in range(first, end)}
        stages.append(StageChoice(group, Mode(tensor), first, end, {n: p for n, p in chosen.items() if n in held}))
    setting = replace(choice().setting, micro_batch_size=size, data_parallel=data)
    model = MODEL.replace("tokens: 1 B tokens", "schedules: [gpipe, 1f1b, eager_1f1b]")
    plan = small_plan(model, PipelineChoice(schedule, setting, 32 // (size * data), tuple(stages)))
    assert check_plan(plan) == ()


def test_fewer_micro_batches_than_stages_are_warned_of_with_the_bubble() -> None:
    """Public case E1: the batch that fills the pipeline is stages x micro-batch size x replicas."""
    setting = Setting(micro_batch_size=8, data_parallel=2)
    plan = small_plan(chosen=PipelineChoice("1f1b", setting, 2, choice().stages))
    (warning,) = [w for w in plan.warnings if w.code == "bubble"]
    assert warning.message.startswith("3 stages share 2 micro-batches, so the pipeline never fills: ")
    assert warning.message.endswith(" % of the chips' time is bubble; a global batch of 48 would fill it")
    assert f"{100 * plan.prediction.bubble_fraction:.1f} %" in warning.message
    assert check_plan(plan) == ()


def test_a_stage_with_less_than_a_tenth_left_is_warned_of() -> None:
    from tests.plan.small import CLUSTER

    peak = small_plan().pipelines[0].stages[0].memory.peak_bytes
    assert not [w for w in small_plan().warnings if w.code == "tight"]
    # 6 % of memory is reserved: usable = 0.94 memory; 5 % of that is left
    memory = f"{round(peak / 0.95 / 0.94 / 2**20)} MiB"
    plan = small_plan(cluster_text=CLUSTER.replace("16 GiB", memory))
    (warning,) = [w for w in plan.warnings if w.code == "tight"]
    assert warning.message.startswith("stage 0 on fast is tight: ")
    assert float(warning.message.split(": ")[1].split(" %")[0]) == pytest.approx(5, abs=1)

"""The parts of a comparison, each by hand: shares of a batch, splits of a rule, where a plan's time goes, verdicts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.tables import Setting
from planner.plan.schema import Plan
from planner.search.baselines.ablations import CHANGES, DividedLayers, FreeRecompute, FreeTransfers
from planner.search.baselines.accounts import PARTS, Replay, chip_seconds, chip_time, speed_of
from planner.search.baselines.budget import Budget
from planner.search.baselines.explain import Ablation, Rate, statements
from planner.search.baselines.narrowed import batch_share, chip_types, only_groups, with_free_shape
from planner.search.baselines.results import Ratio
from planner.search.baselines.rules import counted_layers, share_out, stage_ends
from planner.spec import parse_cluster, parse_model
from tests.plan.handmade import document
from tests.plan.small import CLUSTER, MODEL, edited, small_plan
from tests.search.small_problems import random_problem

# ---- one chip type as a cluster of its own --------------------------------------------------------------------------

THREE_GROUPS = """
name: lab
node_groups:
  - {name: old, chip: nvidia-a100-80gb-sxm, nodes: 1}
  - {name: fast, chip: nvidia-h100-80gb-sxm, nodes: 1}
  - {name: new, chip: nvidia-a100-80gb-sxm, nodes: 2}
links:
  - {between: [old, new], bandwidth: 50 Gbps}
  - {between: [old, fast], bandwidth: 25 Gbps}
prices: {nvidia-h100-80gb-sxm: 4 USD/h, nvidia-a100-80gb-sxm: 2 USD/h}
"""
LLAMA = "model: {preset: llama-3.1-8b}\ntraining: {sequence_length: 4096, global_batch: 64}\n"


def test_node_groups_of_one_chip_are_one_type() -> None:
    types = chip_types(parse_cluster(THREE_GROUPS, "c.yaml"), parse_model(LLAMA, "m.yaml"))
    assert [(t.chip, t.node_groups, t.chips) for t in types] == [
        ("nvidia-a100-80gb-sxm", ("old", "new"), 24),
        ("nvidia-h100-80gb-sxm", ("fast",), 8),
    ]


def test_groups_that_stay_idle_are_no_part_of_a_comparison() -> None:
    model = parse_model(LLAMA + "constraints: {idle: [new]}\n", "m.yaml")
    assert [t.node_groups for t in chip_types(parse_cluster(THREE_GROUPS, "c.yaml"), model)] == [("old",), ("fast",)]


def test_a_type_alone_keeps_its_own_links_chip_and_price() -> None:
    alone = only_groups(parse_cluster(THREE_GROUPS, "c.yaml"), (0, 2), "a100 only")
    assert [group.name for group in alone.node_groups] == ["old", "new"]
    assert [set(link.between) for link in alone.links] == [{"old", "new"}]
    assert alone.path(0, 1).bandwidth_bytes_per_s == 50e9 / 8
    assert set(alone.chips) == set(alone.prices) == {"nvidia-a100-80gb-sxm"}
    assert type(alone).model_validate(alone.model_dump(mode="json")) == alone


def test_a_baseline_keeps_degrees_and_micro_batch_size_and_nothing_of_the_mixed_pipeline() -> None:
    pins = "order: [fast, old], data_parallel: 2, stages: {fast: 1}, micro_batch_size: 2"
    pins += ", tensor_parallel: {old: 4, fast: 8}"
    free = with_free_shape(parse_model(LLAMA + f"constraints: {{{pins}}}\n", "m.yaml"), ["old"]).constraints
    assert (free.order, free.data_parallel, free.stages) == (None, None, None)
    assert (free.micro_batch_size, free.tensor_parallel) == (2, {"old": 4})


@pytest.mark.parametrize(
    ("share", "chips", "sizes", "batch"),
    [
        (Fraction(512), 256, (1, 2, 4), 512),  # 2048 over 256 of 1,024 chips: nothing to round
        (Fraction(512, 3), 16, (1,), 176),  # 170.7: 176 and 192 have all of 16 in common with 16 chips, 176 is nearer
        (Fraction(1024, 3), 32, (1,), 352),  # 341.3: 352 = 11 x 32
        (Fraction(32, 3), 4, (1,), 12),  # 10.7: 12 divides over 4 replicas, 11 over one
        (Fraction(32, 3), 4, (8,), 16),  # micro-batches of 8 sequences: no multiple within an eighth, the next one
        (Fraction(1, 2), 1, (1,), 1),  # half a sequence: at least one
        (Fraction(64), 6, (1,), 66),  # 64 has 2 in common with 6 chips, 66 has 6
    ],
)
def test_a_share_of_the_batch_is_rounded_up_to_what_divides_over_the_chips(
    share: Fraction, chips: int, sizes: tuple[int, ...], batch: int
) -> None:
    assert batch_share(share, chips, sizes) == batch >= share


# ---- rules of thumb -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "weights", "counts"),
    [
        (96, [1, 1, 1, 1], [24, 24, 24, 24]),
        (10, [1, 1, 1], [4, 3, 3]),  # the remainder goes to the earliest
        (9, [2, 1], [6, 3]),
        (10, [312, 125], [7, 3]),  # 7.14 and 2.86
        (4, [100, 1, 1], [2, 1, 1]),  # nobody is left without a layer
    ],
)
def test_layers_are_shared_out_in_proportion(layers: int, weights: list[float], counts: list[int]) -> None:
    assert share_out(layers, weights) == counts


def test_embedding_norm_and_head_go_with_their_neighbours() -> None:
    names = ["embedding", "layers.0", "layers.1", "layers.2", "layers.3", "norm", "head"]
    counted = counted_layers(names)
    assert counted == [1, 2, 3, 4]
    assert stage_ends(counted, len(names), [2, 2]) == (3, 7)  # embedding, 0, 1 | 2, 3, norm, head
    assert stage_ends(counted, len(names), [1, 2, 1]) == (2, 4, 7)


def test_layers_in_the_middle_that_do_not_count_stay_before_the_cut() -> None:
    names = ["encoder.embedding", "encoder.layers.0", "encoder.norm", "decoder.embedding", "decoder.layers.0", "head"]
    assert stage_ends(counted_layers(names), len(names), [1, 1]) == (4, 6)


def test_a_graph_without_counted_layers_counts_all() -> None:
    assert counted_layers(["norm", "head"]) == [0, 1]


# ---- where the time of a plan goes ----------------------------------------------------------------------------------


def even_plan(recompute_s: float = 0.0, transfer_s: float = 0.0) -> Plan:
    """Two stages on 4 chips of `fast` and 4 of `slow`; 8 micro-batches of 1 s forward and 2 s backward; no update."""
    plan = small_plan()
    time = {"forward_s": 1.0, "backward_input_s": 1.0, "backward_weight_s": 1.0, "recompute_s": 0.0}
    time |= {"reduction_s": 0.0, "optimizer_s": 0.0}
    stages = plan.model_dump(mode="json")["islands"][0]["pipelines"][0]["stages"]
    stages = [stages[0] | {"in_flight": 2, "time": time | {"recompute_s": recompute_s}}]
    stages += [small_plan().model_dump(mode="json")["islands"][0]["pipelines"][0]["stages"][1]]
    stages[1] = stages[1] | {"in_flight": 1, "time": time}
    transfer = plan.model_dump(mode="json")["islands"][0]["pipelines"][0]["transfers"][0]
    transfer |= {"time_s": transfer_s, "backward_time_s": transfer_s}
    plan = edited(plan, stages=stages, transfers=[transfer])
    times = ChainTimes([1, 1], [2 + recompute_s, 2], [0, 0], [transfer_s], [transfer_s])
    prediction = plan.prediction.model_copy(update={"step_time_s": step_time(times, (2, 1), 8)})
    return plan.model_copy(update={"prediction": prediction, "idle": ()})


def test_equal_stages_wait_only_while_the_pipeline_fills_and_drains() -> None:
    # 8 x 3 s of work in a step of 9 x 3 s
    assert even_plan().prediction.step_time_s == 27
    for parts in chip_seconds(even_plan()).values():
        assert parts == {"compute": 4 * 24, "fill": 4 * 3} | dict.fromkeys(
            ("recompute", "update", "uneven", "links", "idle"), 0.0
        )


def test_the_shorter_stage_waits_for_the_longer_one() -> None:
    # stage 0 takes 4 s with its recompute, stage 1 3 s: 8 x 1 s of unevenness; stage 0 waits 2 s for its first gradient
    parts = chip_seconds(even_plan(recompute_s=1.0))
    assert even_plan(recompute_s=1.0).prediction.step_time_s == 8 * 4 + 2
    assert parts["quick"] == pytest.approx(
        {"compute": 96, "recompute": 32, "update": 0, "uneven": 0, "fill": 8, "links": 0, "idle": 0}
    )
    assert parts["steady"] == pytest.approx(
        {"compute": 96, "recompute": 0, "update": 0, "uneven": 32, "fill": 8, "links": 0, "idle": 0}
    )


def test_links_cost_what_the_step_would_save_without_them() -> None:
    plan = even_plan(transfer_s=0.5)
    assert Replay(free_links=True).step_time_s(plan) == pytest.approx(27)
    saved = plan.prediction.step_time_s - 27
    assert saved > 0
    for parts in chip_seconds(plan).values():
        assert parts["links"] == pytest.approx(4 * saved)


def test_all_parts_of_all_chips_are_the_chips_times_the_step() -> None:
    plan = small_plan()  # 4 chips of quick, 8 of steady, all used
    for chip, chips in (("quick", 4), ("steady", 8)):
        assert sum(chip_seconds(plan)[chip].values()) == pytest.approx(chips * plan.prediction.step_time_s)


def test_pipelines_that_end_earlier_wait_for_the_last() -> None:
    """Two pipelines: the second one's stages take half the time, so it waits half the step."""
    plan = even_plan()
    whole = plan.model_dump(mode="json")
    pipeline = whole["islands"][0]["pipelines"][0]
    fast = [
        s | {"time": {name: t / 2 for name, t in s["time"].items()}, "node_group": "slow", "chip": "steady"}
        for s in pipeline["stages"]
    ]
    whole["islands"][0]["pipelines"] = [pipeline, pipeline | {"stages": fast}]
    both = chip_seconds(Plan.model_validate(whole))
    assert Replay().step_time_s(Plan.model_validate(whole)) == 27
    # steady: stage 1 of the first pipeline, and both stages of the second: 12 s of work, 13.5 s late, 1.5 s filling
    assert both["steady"]["uneven"] == pytest.approx(8 * 13.5)
    assert both["steady"]["fill"] == pytest.approx(4 * 3 + 8 * 1.5)


def test_idle_chips_count_unless_they_are_left_out() -> None:
    plan = Plan.model_validate(document())  # 1 of 3 chips of group a is idle
    assert chip_seconds(plan)["chip-a"]["idle"] == pytest.approx(plan.prediction.step_time_s)
    assert chip_seconds(plan, left_out=["a"])["chip-a"]["idle"] == 0


def test_a_replay_changes_only_what_it_says() -> None:
    plan = small_plan()
    same = Replay().step_time_s(plan)
    assert same == plan.prediction.step_time_s
    assert Replay(free_links=True).step_time_s(plan) < same
    assert Replay(no_recompute=True).step_time_s(plan) < same
    assert same < Replay(times_batch=8).step_time_s(plan) < 8 * same
    # 2 micro-batches instead of 1: the first stage would hold two
    short = edited(plan, micro_batches=1, stage_0={"in_flight": 1}, stage_1={"in_flight": 1})
    assert Replay(times_batch=2).step_time_s(short) == math.inf


def test_weighted_shares_sum_to_one_and_give_the_ratio() -> None:
    mixed = even_plan(recompute_s=1.0)
    quick, steady = (alone(chip) for chip in ("quick", "steady"))
    speeds = {"quick": speed_of(quick), "steady": speed_of(steady)}
    time = chip_time(mixed, [("quick", 4, quick), ("steady", 4, steady)], speeds)
    assert time is not None
    assert sum(time.mixed.values()) == pytest.approx(1)
    assert sum(time.separate.values()) == pytest.approx(1)
    separate = quick.prediction.tokens_per_s + steady.prediction.tokens_per_s
    ratio = mixed.prediction.tokens_per_s / separate
    assert time.yield_ratio * time.mixed["compute"] / time.separate["compute"] == pytest.approx(ratio)


def alone(chip: str) -> Plan:
    """Both stages of `even_plan` on 4 chips of one type, half the tokens."""
    plan = even_plan()
    whole = plan.model_dump(mode="json")
    pipeline = whole["islands"][0]["pipelines"][0]
    pipeline["stages"] = [stage | {"chip": chip, "ranks": [[i], [i + 2]]} for i, stage in enumerate(pipeline["stages"])]
    whole["prediction"]["tokens_per_s"] /= 2
    return Plan.model_validate(whole)


def test_a_type_that_cannot_train_alone_is_idle_on_its_side() -> None:
    quick = alone("quick")
    speeds = {"quick": speed_of(quick), "steady": speed_of(quick)}
    time = chip_time(even_plan(), [("quick", 4, quick), ("steady", 4, None)], speeds)
    assert time is not None and time.separate["idle"] == pytest.approx(0.5)
    assert chip_time(even_plan(), [("quick", 4, None), ("steady", 4, None)], speeds) is None


# ---- taking causes away ---------------------------------------------------------------------------------------------


def test_free_transfers_are_free_and_all_else_is_as_it_was() -> None:
    problem = random_problem(3)
    free = FreeTransfers(problem)
    for key, table in problem.transfers.items():
        changed = free.transfer(*key, problem.settings[0])
        assert not changed.forward_s.any() and not changed.backward_s.any()
        assert changed.forward_s.shape == table.forward_s.shape
    assert (free.chain, free.groups, free.settings) == (problem.chain, problem.groups, problem.settings)


def test_divided_layers_hold_and_take_the_same_together() -> None:
    problem = random_problem(2)
    divided = DividedLayers(problem)
    counts = [problem.chain.kinds.count(k) for k in range(len(problem.chain.kind_names))]
    pieces = [divided.chain.kinds.count(k) for k in range(len(counts))]
    assert pieces == [2 * n if n > 1 else n for n in counts]
    assert len(set(divided.chain.names)) == divided.chain.num_layers
    key = next(iter(problem.tables))
    whole, parts = problem.tables[key], divided.table(*key)
    assert parts is not None
    assert np.allclose(parts.forward_s * pieces, whole.forward_s * counts)
    assert np.allclose(parts.saved_bytes * pieces, whole.saved_bytes * counts)
    assert parts.usable_bytes == whole.usable_bytes
    assert divided.table(key[0], key[1], Setting(7, 7)) is None


def test_what_a_change_leaves_the_others_have() -> None:
    budget = Budget(100.0, 5)
    assert budget.next() == pytest.approx(20, rel=0.01)
    assert budget.next() == pytest.approx(25, rel=0.01)  # the first took no time
    assert budget.next(3) == pytest.approx(100, rel=0.01)
    assert budget.next() > 0  # even one too many gets a moment


def test_what_a_solve_takes_beyond_its_time_is_not_taken_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    budget = Budget(100.0, 4)
    assert budget.next() == 25
    now = 60.0  # 25 s of solving, 35 s of explaining why nothing fits
    assert budget.next() == 25
    now = 65.0  # took 5 s
    assert budget.next() == (100 - 25 - 5) / 2


# ---- ratios and verdicts --------------------------------------------------------------------------------------------


def test_a_ratio_lies_between_what_both_certificates_prove() -> None:
    # 110 found of at most 121, against 100 found of at most 110
    ratio = Ratio.of((110.0, 121.0), (100.0, 110.0))
    assert (ratio.value, ratio.least, ratio.most) == pytest.approx((1.1, 1.0, 1.21))
    assert Ratio.of((110.0, math.inf), (100.0, 110.0)).most is None
    assert Ratio.of((110.0, 121.0), (0.0, 0.0)) == Ratio(None, None, None)
    unproved = Ratio.of((110.0, 121.0), (100.0, math.inf))
    assert (unproved.value, unproved.least, unproved.most) == (pytest.approx(1.1), None, pytest.approx(1.21))


def judged(after: float, gap: float = 0.01, code: str = "recompute", **shares: tuple[float, float]) -> Any:
    """The statement of a cause when the ratio was 1.05 and is `after` without the cause; every search within `gap`."""

    def rate(found: float) -> Rate:
        return Rate(found, found / (1 - gap), settled=gap <= 0.02)

    sides = [dict.fromkeys(PARTS, 0.0) | {name: pair[i] for name, pair in shares.items()} for i in (0, 1)]
    again = Ablation("changed", rate(after), rate(1.0))
    return next(s for s in statements(chip_time_of(*sides), rate(1.05), rate(1.0), {code: again}) if s.code == code)


def chip_time_of(mixed: dict[str, float], separate: dict[str, float]) -> Any:
    from planner.search.baselines.accounts import ChipTime

    return ChipTime(mixed, separate, 1.0)


def test_a_gain_is_confirmed_when_the_ratio_falls_without_its_cause() -> None:
    statement = judged(0.95, recompute=(0.01, 0.05))
    assert (statement.title, statement.verdict, statement.proved) == ("recompute avoided", "confirmed", True)
    assert statement.gain == pytest.approx(0.04)


def test_a_small_fall_confirms_but_proves_nothing() -> None:
    statement = judged(1.045, recompute=(0.01, 0.05))
    assert (statement.verdict, statement.proved) == ("confirmed", False)


def test_a_ratio_that_rises_does_not_confirm_a_gain() -> None:
    assert judged(1.06, recompute=(0.01, 0.05)).verdict == "not confirmed"


def test_a_loss_is_confirmed_when_the_ratio_rises_without_its_cause() -> None:
    statement = judged(1.10, code="bubble", fill=(0.08, 0.05), update=(0.01, 0.01))
    assert (statement.title, statement.verdict) == ("bubble added", "confirmed")
    assert statement.gain == pytest.approx(-0.03)


def test_a_search_that_was_cut_short_decides_nothing_unless_it_proves_it() -> None:
    assert judged(1.0, gap=0.2, recompute=(0.01, 0.05)).verdict == "undecided"
    statement = judged(0.5, gap=0.2, recompute=(0.01, 0.05))
    assert (statement.verdict, statement.proved) == ("confirmed", True)


def test_idle_chips_are_confirmed_when_making_them_work_does_not_help() -> None:
    statement = judged(1.0, code="idle", idle=(0.2, 0.0))
    assert (statement.title, statement.verdict, statement.proved) == ("idle chips", "confirmed", True)
    assert judged(1.2, code="idle", idle=(0.2, 0.0)).verdict == "not confirmed"


def test_equal_shares_are_no_difference_and_untested_causes_say_so() -> None:
    assert judged(1.0, recompute=(0.05, 0.0502)).verdict == "no difference"
    time = chip_time_of(*[dict.fromkeys(PARTS, 0.0) | {"links": share} for share in (0.02, 0.01)])
    links = next(s for s in statements(time, Rate(1, 1), Rate(1, 1), {}) if s.code == "links")
    assert (links.verdict, links.ablation) == ("not tested", None)


def test_every_cause_but_idle_chips_has_a_change_that_takes_it_away() -> None:
    assert {change.code for change in CHANGES} == {"recompute", "memory", "bubble", "links", "integrality"}
    assert [change.code for change in CHANGES if change.lifts_memory] == ["memory"]


def test_recompute_that_takes_no_time_still_frees_memory() -> None:
    problem = random_problem(2)
    free = FreeRecompute(problem)
    key = next(iter(problem.tables))
    before, after = problem.tables[key], free.table(*key)
    assert after is not None and not after.recompute_s.any()
    assert after.saved_bytes is before.saved_bytes


def test_what_memory_costs_is_what_each_side_gains_without_its_limit() -> None:
    time = chip_time_of(dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, 0.0))
    now = {"memory": Ablation("memory has no limit", Rate(100.0, 101.0), Rate(110.0, 111.0))}
    made = statements(time, Rate(95.0, 95.5), Rate(88.0, 88.5), now)
    memory = next(s for s in made if s.code == "memory")
    # 5 of 100 against 22 of 110
    assert (memory.mixed_share, memory.separate_share) == pytest.approx((0.05, 0.2))
    assert (memory.title, memory.verdict, memory.proved) == ("memory costs less", "confirmed", True)


def test_the_small_inputs_are_those_of_the_plan_tests() -> None:
    cluster, model = parse_cluster(CLUSTER, "c.yaml"), parse_model(MODEL, "m.yaml")
    assert [(t.chip, t.chips) for t in chip_types(cluster, model)] == [("quick", 4), ("steady", 8)]

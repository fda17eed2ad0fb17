"""The cheapest relaxed pipelines against every real one: none of those is cheaper."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
import pytest

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import Chain, ChipGroup, LayerTable, Mode, Setting, TransferTable
from planner.search.candidates import Limits
from planner.search.intervals import Intervals
from planner.search.mixed.bound import mix_bound
from planner.search.mixed.cheapest import cheaper
from planner.search.mixed.fronts import Behind, Box
from planner.search.mixed.refuter import Asking, Question, Refuter, Relaxed, first_boxes, grouped
from planner.search.mixed.shapes import Family, Pool
from tests.search.mixed_problems import (
    MixedTables,
    bare_times,
    best_mix_by_enumeration,
    pipelines,
    random_mixed_problem,
)


def real_pipelines(problem: MixedTables, schedule: str, size: int, replicas: int) -> list[tuple[float, list, int]]:
    """(seconds, stages, micro-batches) of every pipeline of two or more stages, transfers and reductions at best."""
    found = []
    for _, (its, b, stages, ends, chosen, m) in pipelines(problem, replicas):
        if its == schedule and b == size and len(stages) > 1:
            setting = Setting(size, replicas, mixed=True)
            bare = bare_times(problem, setting, (its, b, stages, ends, chosen, m))
            onward, back, update = [], [], []
            for s, ((g, t), (h, u)) in enumerate(pairwise(stages)):
                fits = t.chips + u.chips <= problem.groups[g].chips_per_node
                table = problem.transfer(g, t, h, u, g == h and fits, setting)
                kind = problem.chain.kinds[ends[s] - 1]
                onward.append(float(table.forward_s[kind]))
                back.append(float(table.backward_s[kind]))
            for s, (g, t) in enumerate(stages):
                table = problem.table(g, t, setting)
                assert table is not None
                layers = list(problem.chain.kinds[ends[s - 1] if s else 0 : ends[s]])
                update.append(table.fixed_update_s + float((table.reduction_s + table.optimizer_s)[layers].sum()))
            times = ChainTimes(bare.forward, bare.backward, update, onward, back)
            found.append((step_time(times, in_flight_counts(schedule, len(stages), m), m), list(stages), m))
    return found


class HeavyFirst(MixedTables):
    """One chip that runs the heavy first layer, and two that are ten times slower at it."""

    def __init__(self) -> None:
        groups = tuple(ChipGroup(f"g{i}", f"chip{i}", 1, chips, (1,)) for i, chips in enumerate((1, 2)))
        chain = Chain(("a", "b", "c"), (0, 1, 1), ("heavy", "light"))
        super().__init__(0, chain, groups, ("none",), 12, (1,), ("1f1b",), False)

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable:
        heavy, nothing, none = 10.0 if group else 1.0, np.zeros(2), np.zeros((1, 2))
        forward, backward = np.array([heavy, 0.4]), np.array([2 * heavy, 0.85])
        half = backward / 2
        return LayerTable(forward, half, half, none, nothing, none, none, nothing, nothing, 0.0, 1e15)

    def transfer(self, *_: object) -> TransferTable:
        return TransferTable(np.full(2, 0.005), np.full(2, 0.005))


NOTHING_FITS = (32, 38)
"""Problems in which no pipeline of two stages fits."""


@pytest.mark.parametrize("seed", [s for s in range(60) if s not in NOTHING_FITS])
def test_no_real_pipeline_is_cheaper(seed: int) -> None:
    """At random prices and step times: where the search says none costs as little as it runs, none does; and with
    prices at which the cheapest real one costs what it runs, the search does not say so.
    """
    problem, draw = random_mixed_problem(seed), random.Random(seed)
    schedule, size, replicas = draw.choice(problem.schedules), draw.choice(problem.sizes), draw.choice([1, 2, 3])
    pool = Pool(problem, Intervals(problem.chain), Limits(), 1)
    rows = Family(pool, schedule, size, replicas).rows
    real = real_pipelines(problem, schedule, size, replicas)
    assert real
    index = {(k.group, k.mode): i for i, k in enumerate(rows.kinds)}
    for _ in range(12):
        prices = np.array([draw.uniform(0.1, 2.0) for _ in rows.kinds])
        limit = draw.choice(sorted(x for x, _, _ in real)[: max(1, len(real) // 2)]) * (1 + 1e-9)
        fewest = draw.randint(1, problem.global_batch // size)
        most = draw.randint(fewest, problem.global_batch // size)
        middle = draw.randint(fewest, most)
        parts = [(fewest, middle), (middle + 1, most)] if middle < most else [(fewest, most)]
        cheapest = [
            min(
                (sum(prices[index[k]] for k in stages) / m for x, stages, m in real if x <= limit and a <= m <= z),
                default=math.inf,
            )
            for a, z in parts
        ]
        scales = [near / least for least in cheapest for near in (0.999, 1.001)]
        for scale in (1.0, *(s for s in scales if s)):
            fastest = float(rows.fastest[-1])
            ways = [fastest, 1.5 * fastest, max(limit, 3 * fastest)]
            boxes = [Box(*part, *way) for part in parts for way in pairwise(ways)]
            behind = Behind(rows, limit, prices * scale, draw.randint(1, fewest))
            answers = cheaper(behind, boxes, 10**9, draw.choice([2, 3]))
            assert None not in answers
            for n, least in enumerate(cheapest):
                if least * scale <= 1:
                    assert True in answers[2 * n : 2 * n + 2]


def priced(prices: list[float]) -> Callable[[float], list[Relaxed]]:
    """Columns that lead to these prices: single chips, cheap enough to leave room for others."""
    return lambda _: [
        Relaxed(tuple(int(g == other) for other in range(len(prices))), 1e-3 * p) for g, p in enumerate(prices)
    ]


class Given(NamedTuple):
    """Pipelines that are known, and no more to look for."""

    columns: Callable[[float], list[Relaxed]]

    def within(self, step_time: float) -> list[Relaxed]:
        return self.columns(step_time)

    def look_closer(self, prices: Sequence[float], step_time: float, should_stop: Callable[[], bool]) -> bool:
        return False


def bound_of(
    pool: Pool,
    families: list[tuple[Family, int, int]],
    columns: Callable[[float], list[Relaxed]],
    best: float,
) -> float:
    with Asking(Refuter([f for f, _, _ in families]), lambda: False, 1, math.inf) as asking:
        return mix_bound(pool, families, Given(columns), best, 0.0, asking)


@pytest.mark.parametrize("seed", range(0, 90, 3))
def test_the_bound_holds_at_any_prices(seed: int) -> None:
    problem, draw = random_mixed_problem(seed), random.Random(seed)
    best = best_mix_by_enumeration(problem)
    pool = Pool(problem, Intervals(problem.chain), Limits(), 1)
    most = problem.global_batch
    families = [
        (Family(pool, schedule, size, most, 1), 1, most // size)
        for schedule, size in product(problem.schedules, problem.sizes)
        if size <= most
    ]
    if math.isinf(best):
        return
    for _ in range(3):
        prices = [draw.uniform(0.2, 2.0) for _ in problem.groups]
        for above in (1.0, 1.3, 2.0):
            assert bound_of(pool, families, priced(prices), above * best) <= best * (1 + 1e-9)


@pytest.mark.parametrize("seed", range(1, 60, 3))
@pytest.mark.parametrize("looks", [None, 3, math.inf])
def test_what_is_shown_with_slack_holds_at_lower_prices(seed: int, looks: float | None) -> None:
    """Boxes asked for are all shown or left, and no real pipeline in a shown one runs what it costs at prices that are
    lower by the slack.
    """
    problem, draw = random_mixed_problem(seed), random.Random(seed)
    schedule, size, most = draw.choice(problem.schedules), draw.choice(problem.sizes), problem.global_batch
    family = Family(Pool(problem, Intervals(problem.chain), Limits(), 1), schedule, size, 1)
    real = real_pipelines(problem, schedule, size, 1)
    if not real:
        return
    limit = sorted(x for x, _, _ in real)[len(real) // 2] * (1 + 1e-9)
    refuter, boxes = Refuter([family]), [(0, b) for b in first_boxes(family.rows, 1, most // size, limit)]
    for _ in range(4):
        asked = Question(limit, tuple(draw.uniform(0.1, 2.0) for _ in problem.groups), draw.choice([0.0, 0.1]), looks)
        for group in grouped(boxes):
            answer = refuter.answer(group, asked, lambda: False)
            assert covered([*answer.shown, *answer.left]) == pytest.approx(covered(group.boxes))
            for x, stages, m in real:
                shown = any(b.fewest <= m <= b.most and b.long >= limit for b in answer.shown)
                if x <= limit and shown and all(b.fewest > m or b.most < m for b in answer.left):
                    cost = sum(asked.lowered()[g] * t.chips for g, t in stages)
                    assert cost > m * size * (1 - 1e-9)


def covered(boxes: Iterable[Box]) -> float:
    """What boxes cover of micro-batches and ways."""
    return sum((b.most - b.fewest + 1) * (b.long - b.short) for b in boxes)


def test_fewer_layers_in_front_may_cost_more() -> None:
    """A heavy first layer that fits three stages from the end and not two: the best pipeline has one layer a stage."""
    step = step_time(ChainTimes([1, 0.4, 0.4], [2, 0.85, 0.85], [0] * 3, [0.005] * 2, [0.005] * 2), (3, 2, 1), 12)
    other = step_time(ChainTimes([1, 0.8], [2, 1.7], [0] * 2, [0.005], [0.005]), (2, 1), 12)
    assert step < other * 0.97
    pool = Pool(HeavyFirst(), Intervals(HeavyFirst().chain), Limits(), 1)
    family = Family(pool, "1f1b", 1, 1, 1)
    for prices in ([1.0, 0.0], [1.0, 0.05]):
        for best in (1.0, 1.01, 1.02, 1.025):
            assert bound_of(pool, [(family, 12, 12)], priced(prices), best * step) <= step * (1 + 1e-9)


def test_a_micro_batch_size_that_runs_nowhere_bounds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other sizes say what no mix beats; a family without any possible degree must not stand in the way."""
    problem = random_mixed_problem(3)
    pool, most = Pool(problem, Intervals(problem.chain), Limits(), 1), problem.global_batch
    known = [(Family(pool, problem.schedules[0], 1, most, 1), 1, most)]
    prices = priced([1.0 for _ in problem.groups])
    alone = bound_of(pool, known, prices, 1.5 * best_mix_by_enumeration(problem))
    monkeypatch.setattr(MixedTables, "table", lambda self, group, mode, setting: None)
    nowhere = Family(pool, problem.schedules[0], 2, most, 1)
    assert not nowhere.rows.kinds
    monkeypatch.undo()
    both = bound_of(pool, [*known, (nowhere, 1, most // 2)], prices, 1.5 * best_mix_by_enumeration(problem))
    assert both == alone > 0


@pytest.mark.parametrize("schedule", ["1f1b", "eager_1f1b", "gpipe"])
def test_the_rows_are_below_the_step_time(schedule: str) -> None:
    """On random pipelines; with all stages alike and no transfers the second one is the step time."""
    draw = random.Random(schedule)
    for case in range(300):
        stages, m = draw.randint(2, 9), draw.randint(1, 40)
        alike = case % 3 == 0
        forward = [1.0] * stages if alike else draws(draw, stages, 2.0)
        backward = [2.0] * stages if alike else draws(draw, stages, 4.0)
        onward, back = ([0.0] * (stages - 1) if alike else draws(draw, stages - 1, 0.5) for _ in range(2))
        update = [0.0] * stages if alike else draws(draw, stages, 1.0)
        held = in_flight_counts(schedule, stages, m)
        step = step_time(ChainTimes(forward, backward, update, onward, back), held, m)
        whole = sum(forward) + sum(backward) + sum(onward) + sum(back) + update[0]
        highest = 0.0
        for s, k in enumerate(held):
            time = forward[s] + backward[s]
            way = sum(forward[s:]) + sum(backward[s:]) + sum(onward[s:]) + sum(back[s:])
            rows = [whole + (m - 1) * time - (k - 1) * forward[s]]
            rows += [whole + q * way + (m - 1 - q * k) * time for q in range(1, (m - 1) // k + 1) if m > k]
            assert max(rows) <= step * (1 + 1e-9)
            highest = max(highest, *rows)
        if alike and schedule == "1f1b":
            assert highest == pytest.approx(step)


def draws(draw: random.Random, count: int, most: float) -> list[float]:
    return [draw.uniform(0.05, most) for _ in range(count)]

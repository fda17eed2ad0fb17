"""The sieve over all shapes of a root rules out no shape that has a plan, and finds the splits of what it keeps."""

from __future__ import annotations

import math
import random
from functools import cache

import pytest

from planner.cost.tables import Setting
from planner.search.candidates import Limits, Root, make_roots
from planner.search.intervals import Intervals
from planner.search.sieve import ShapeSieve, SieveStopped
from planner.search.sieve_walks import all_shapes, shortest_shape
from planner.search.tree import Order
from tests.search.small_problems import (
    TableProblem,
    _best_of_shape,
    random_offload_problem,
    random_problem,
    shapes_of,
)

OFFLOADED = 10_000
"""Seeds from here on are of problems whose layers may be offloaded: forward passes of equal pieces differ there."""


@cache
def problem_of(seed: int) -> TableProblem:
    return random_problem(seed) if seed < OFFLOADED else random_offload_problem(seed - OFFLOADED)


def roots_of(seed: int, limits: Limits | None = None) -> list[Root]:
    problem = problem_of(seed)
    return make_roots(problem, Intervals(problem.chain), limits or Limits())


@cache
def steps_of(seed: int, setting: Setting, schedule: str, micro_batches: int) -> dict[Order, float]:
    """The least step time of every shape of two or more stages, by enumeration; inf where none fits."""
    problem = problem_of(seed)
    return {
        order: _best_of_shape(problem, setting, schedule, micro_batches, order)  # type: ignore[no-untyped-call]
        for order in shapes_of(problem, setting)
        if sum(n for _, _, n in order) >= 2
    }


def steps_of_root(seed: int, root: Root) -> dict[Order, float]:
    return steps_of(seed, root.setting, root.schedule, root.micro_batches)


@pytest.mark.parametrize("first_seed", [*range(0, 200, 20), *range(OFFLOADED, OFFLOADED + 80, 20)])
def test_no_shape_that_reaches_a_step_time_is_ruled_out(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 20):
        for root in roots_of(seed):
            steps = {o: t for o, t in steps_of_root(seed, root).items() if math.isfinite(t)}
            for target in sorted(steps.values())[:: max(1, len(steps) // 6)]:
                table = ShapeSieve(root).within(target)
                kept = set() if table is None else set(all_shapes(table))
                assert {o for o, t in steps.items() if t <= target} <= kept


def allowed(order: Order, limits: Limits) -> bool:
    groups = [g for g, _, _ in order]
    return (
        limits.use <= set(groups)
        and not limits.idle & set(groups)
        and all({g: n for g, _, n in order}.get(g) == n for g, n in limits.stages.items())
        and limits.total_stages in (None, sum(n for _, _, n in order))
        and (not limits.fixed_order or groups == sorted(groups))
        and (limits.order is None or groups == [g for g in limits.order if g in groups])
    )


@pytest.mark.parametrize("seed", range(60))
def test_limits_keep_what_they_allow_and_nothing_else(seed: int) -> None:
    groups = len(problem_of(seed).groups)
    for limits in (
        Limits(fixed_order=True),
        Limits(idle=frozenset({0})),
        Limits(use=frozenset(range(groups))),
        Limits(total_stages=2),
        Limits(total_stages=3),
        Limits(stages={0: 1}),
        Limits(order=tuple(reversed(range(groups)))),
    ):
        for root in roots_of(seed, limits):
            steps = {o: t for o, t in steps_of_root(seed, root).items() if math.isfinite(t) and allowed(o, limits)}
            table = ShapeSieve(root).within(max(steps.values(), default=1e3))
            kept = set() if table is None else set(all_shapes(table))
            assert set(steps) <= kept
            assert all(allowed(order, limits) for order in kept)


@pytest.mark.parametrize("seed", range(60))
def test_pinned_layers_keep_the_shapes_that_can_hold_them(seed: int) -> None:
    layers = problem_of(seed).chain.num_layers
    cut = random.Random(seed).randint(1, layers - 1)
    for root in roots_of(seed, Limits(layers_per_stage=(cut, layers - cut))):
        table = ShapeSieve(root).within(1e3)
        for order in all_shapes(table) if table is not None else ():
            assert sum(n for _, _, n in order) == 2
        if table is not None:
            assert shortest_shape(table)[1] == (cut, layers)


@pytest.mark.parametrize("seed", range(60))
def test_the_shortest_shape_is_one_of_them_and_its_stages_cover_the_chain(seed: int) -> None:
    for root in roots_of(seed):
        steps = [t for t in steps_of_root(seed, root).values() if math.isfinite(t)]
        table = ShapeSieve(root).within(max(steps, default=10.0))
        if table is None:
            continue
        order, ends = shortest_shape(table)
        assert order in set(all_shapes(table))
        assert len(ends) == sum(n for _, _, n in order)
        assert list(ends) == sorted(set(ends)) and ends[-1] == problem_of(seed).chain.num_layers


def test_what_passes_a_step_time_passes_every_longer_one() -> None:
    for seed in range(30):
        for root in roots_of(seed):
            sieve, fresh = ShapeSieve(root), ShapeSieve(root)
            answers = [sieve.within(t) is not None for t in (100.0, 30.0, 10.0, 5.0, 2.0, 1.0)]
            assert answers == sorted(answers, reverse=True)
            # an earlier question leaves nothing behind that changes a later answer for the worse
            assert [fresh.within(t) is not None for t in (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)] == answers[::-1]


def test_asked_to_stop_it_gives_no_answer() -> None:
    root = next(r for seed in range(20) for r in roots_of(seed) if ShapeSieve(r).within(1e3) is not None)
    with pytest.raises(SieveStopped):
        ShapeSieve(root).within(1e3, lambda: True)

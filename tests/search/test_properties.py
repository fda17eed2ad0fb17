"""What must hold of any optimum: more never hurts, restrictions never help, and the workers do not matter."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.cost.tables import TransferTable
from planner.search.candidates import Limits
from planner.search.driver import Outcome, SearchSettings, search
from tests.search.small_problems import TableProblem, random_problem

EQUAL = 3e-6
"""Two searches with `gap` 0 agree to one millionth each."""


def optimum(problem: TableProblem, limits: Limits | None = None, jobs: int = 1) -> Outcome:
    return search(problem, SearchSettings(gap=0.0, time_limit_s=60, limits=limits or Limits(), jobs=jobs))


def never_worse(better: TableProblem, base: TableProblem) -> None:
    assert optimum(better).objective <= optimum(base).objective * (1 + EQUAL)


@pytest.mark.parametrize("seed", range(40))
def test_more_memory_never_hurts(seed: int) -> None:
    base = random_problem(seed)
    tables = {key: replace(t, usable_bytes=1.25 * t.usable_bytes) for key, t in base.tables.items()}
    never_worse(replace(base, tables=tables), base)


@pytest.mark.parametrize("seed", range(40))
def test_faster_links_never_hurt(seed: int) -> None:
    base = random_problem(seed)
    transfers = {key: TransferTable(0.5 * t.forward_s, 0.5 * t.backward_s) for key, t in base.transfers.items()}
    never_worse(replace(base, transfers=transfers), base)


@pytest.mark.parametrize("seed", range(30))
def test_one_more_node_never_hurts(seed: int) -> None:
    base = random_problem(seed, max_layers=5)
    first = base.groups[0]
    never_worse(replace(base, groups=(replace(first, nodes=first.nodes + 1), *base.groups[1:])), base)


@pytest.mark.parametrize("seed", range(40))
def test_restrictions_never_help(seed: int) -> None:
    problem = random_problem(seed)
    free = optimum(problem).objective
    for limits in (
        Limits(fixed_order=True),
        Limits(idle=frozenset({0})),
        Limits(use=frozenset(range(len(problem.groups)))),
        Limits(total_stages=2),
        Limits(stages={0: 1}),
    ):
        assert optimum(problem, limits).objective >= free * (1 - EQUAL)


@pytest.mark.parametrize("seed", range(20))
def test_pinning_the_answer_gives_the_answer(seed: int) -> None:
    problem = random_problem(seed)
    free = optimum(problem)
    if free.leaf is None or free.split is None:
        return
    starts = (0, *free.split.ends[:-1])
    pinned = Limits(
        stages={g: n for g, _, n in free.leaf.order},
        order=tuple(g for g, _, _ in free.leaf.order),
        idle=frozenset(range(len(problem.groups))) - {g for g, _, _ in free.leaf.order},
        layers_per_stage=tuple(end - start for start, end in zip(starts, free.split.ends, strict=True)),
    )
    assert optimum(problem, pinned).objective == pytest.approx(free.objective, rel=EQUAL)


def test_worker_processes_find_the_same_plan() -> None:
    one, two = (optimum(random_problem(11), jobs=jobs) for jobs in (1, 2))
    assert one.leaf is not None and two.leaf is not None
    assert (one.objective, one.bound, one.split, one.leaf.order) == (
        two.objective,
        two.bound,
        two.split,
        two.leaf.order,
    )
    assert one.statistics == two.statistics

"""From the best plan of identical pipelines to the best mix: exhaustively where the pool is small, else in rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search.highs import SolverChoice
from planner.search.intervals import Intervals
from planner.search.mixed.bound import mix_bound
from planner.search.mixed.exhaustive import Found, exhaust, is_small
from planner.search.mixed.passes import Passes
from planner.search.mixed.pricing import Box, Pricer, Question
from planner.search.mixed.refuter import Asking, Refuter
from planner.search.mixed.shapes import Entry, Family, Kind, Pool, Shape

if TYPE_CHECKING:
    from planner.cost.tables import MixedProblem
    from planner.search.candidates import Limits
    from planner.search.leaf import Leaf, Split
    from planner.search.mix_progress import MixPhase
    from planner.search.mixed.rounds import Rounds

__all__ = ["MixedOutcome", "Start", "search_mixes"]

_RANGES = (1, 2)
"""Numbers of pipelines from which a bound has tables of its own."""
_HIGHS = SolverChoice()
_FOREVER = 1e30
"""Seconds that no step needs."""
_APART = 1.1
"""The search of a part of the pool keeps mixes that are up to so many times slower than the best: its own come next."""


@dataclass(frozen=True)
class Start:
    """What is known before: the best plan of identical pipelines. step_time inf: none."""

    leaf: Leaf | None
    split: Split | None
    step_time: float


@dataclass(frozen=True)
class MixedOutcome:
    """entries: the best mix, empty when no mix is better than the start.  bound: no plan of the whole space, mixed or
    identical, is faster.  exhausted: every mix was looked at.
    """

    entries: tuple[Entry, ...]
    context_parallel: int
    step_time: float
    bound: float
    exhausted: bool
    statistics: dict[str, int]


def search_mixes(
    problem: MixedProblem,
    limits: Limits,
    replicas: Sequence[int] | None,
    start: Start,
    gap: float,
    should_stop: Callable[[], bool],
    hurry: Callable[[], bool] | None = None,
    solver: SolverChoice = _HIGHS,
    jobs: int = 1,
    deadline: float = math.inf,
    enter: Callable[[MixPhase, Found | None], None] = lambda phase, found: None,
) -> MixedOutcome:
    """Look for a mix faster than the start, and bound all of them.

    hurry: says when no more mixes should be looked for, so that time is left for the bound; None: as `should_stop`.

    replicas: the numbers of pipelines to choose from; None: any.  gap: relative; mixes less than that much faster than
    the best known may be missed, and the bound says so.  solver: of the master program.
    jobs: processes for the bound, which does not depend on it.  deadline: of the monotonic clock, for them.
    enter: told of each phase.
    """
    found = Found(start.step_time, (), math.inf)
    bounds, context, small = [start.step_time], 1, True
    for degree in sorted({s.context_parallel for s in problem.settings if s.expert_parallel == 1}):
        pool = Pool(problem, Intervals(problem.chain), limits, degree)
        pool.solver = solver
        before = found.step_time
        wanted = _numbers(pool, replicas)
        if wanted and is_small(pool):
            enter("every mix", found)
            found = exhaust(pool, wanted, found, gap, should_stop)
            bounds.append(0.0 if should_stop() else found.bound)
        elif wanted and not math.isfinite(found.step_time):
            small = False
            bounds.append(math.inf if nothing_fits(pool, wanted) else 0.0)
        elif wanted:
            small = False
            families = [*_families(pool, wanted)]
            with Asking(Refuter([f for f, _, _ in families]), should_stop, jobs, deadline) as asking:
                best = _with_start(pool, found, start)
                enter("better mixes", best)
                rounds = _improve(pool, wanted, found, best, start, hurry or should_stop)
                enter("bound of all mixes", None)
                if should_stop() or not math.isfinite(found.step_time):
                    bounds.append(0.0)
                else:
                    bounds.append(mix_bound(pool, families, rounds, found.step_time, gap, asking))
        context = degree if found.step_time < before else context
    statistics = {"mixes": found.mixes}
    bound = min([*bounds, found.step_time])
    return MixedOutcome(found.entries, context, found.step_time, bound, small and not should_stop(), statistics)


def nothing_fits(pool: Pool, wanted: Sequence[int]) -> bool:
    """Proof that no mix has the memory, with one micro-batch in flight and states divided over the most pipelines.

    The memory that one pipeline needs bounds the number of pipelines, and that number what states divide by.
    """
    numbers = sorted(wanted)
    while numbers:
        share = min((_least_share(family) for family in pool.families(numbers[-1])), default=math.inf)
        if share == math.inf:
            return True
        fewer = [r for r in numbers if r * share <= 1]
        if len(fewer) == len(numbers):
            return False
        numbers = fewer
        pool.release()
    return True


def _least_share(family: Family) -> float:
    """The least share of all chips' memory that the chips of one pipeline have; inf when no pipeline fits."""
    import numpy as np

    pool, root, single = family.pool, family.root, family.root.single_stage()
    whole = root.intervals.index[0, root.intervals.num_layers]
    usable = [0.0] * len(pool.num_chips)
    for g, t in pool.kinds:
        tables = [o.table.usable_bytes for o in (root.options(g, t), single.options(g, t)) if o is not None]
        usable[g] = max([usable[g], *tables])
    every = sum(n * u for n, u in zip(pool.num_chips, usable, strict=True))
    if not 0 < every < math.inf:
        return 0.0

    def share(kind: Kind) -> float:
        return kind.tensor * pool.context * usable[kind.group] / every

    alone = [share(k) for k in pool.kinds if (o := single.options(*k)) and np.isfinite(o.times(1)[whole])]
    pricer = Pricer(family, _FOREVER)
    heavy = (
        1e9 * max([float(o.layer_time.max()) for o in pricer.options], default=0.0) * (root.intervals.num_layers + 1)
    )
    question = Question(Box(1, 1, 0.0, _FOREVER), np.array([share(k) for k in family.kinds]), max(heavy, 1.0))
    together = pricer.least([question])[0][0] / question.shift
    return min([together - 4e-9, *alone])  # two ways of one micro-batch are 2e-9 of the weight


def _numbers(pool: Pool, replicas: Sequence[int] | None) -> list[int]:
    """Numbers of pipelines that the batch and the chips allow."""
    narrowest = [
        min((mode.tensor for g, mode in pool.kinds if g == h), default=0) * pool.context
        for h in range(len(pool.num_chips))
    ]
    room = sum(n // width for n, width in zip(pool.num_chips, narrowest, strict=True) if width)
    most = min(room, pool.problem.global_batch // min(pool.micro_batch_sizes, default=1))
    return [r for r in (range(1, most + 1) if replicas is None else replicas) if r <= most]


def _improve(
    pool: Pool, wanted: Sequence[int], found: Found, best: Found, start: Start, should_stop: Callable[[], bool]
) -> Rounds:
    """Passes over the pool, then over parts of its modes and sizes, then over the pool again; columns for the bound.

    best: what is known, with the start among its entries; it is made better, and what it finds goes into `found`.
    """
    guess = start.leaf.setting.data_parallel if start.leaf is not None else max(wanted)
    search = Passes(pool, wanted, best, should_stop)
    if pool.is_large:
        least = search.least(guess)
        if not least.promises:
            found.mixes += best.mixes
            return least
    search.guessed(guess)
    least = search.least()
    search.again()
    before = best.step_time
    for part in () if pool.is_large else pool.parts():
        apart = Found(best.step_time * _APART, (), math.inf)
        alone = Passes(part, wanted, apart, should_stop)
        alone.guessed(sum(e.replicas for e in best.entries) or guess)
        alone.again()
        best.mixes += apart.mixes
        if apart.step_time < best.step_time:
            best.step_time, best.entries = apart.step_time, apart.entries
    if best.step_time < before:
        search.again()
    if best.step_time < found.step_time:
        found.step_time, found.entries = best.step_time, best.entries
    found.mixes += best.mixes
    return least


def _with_start(pool: Pool, found: Found, start: Start) -> Found:
    """What is known, the start's shape among the entries so that its pipelines can be mixed with others."""
    entries = found.entries
    leaf = start.leaf
    if not entries and leaf is not None and start.split is not None and leaf.setting.context_parallel == pool.context:
        stages = tuple(Kind(s.group, s.mode) for s in leaf.stages)
        shape = Shape(leaf.root.schedule, leaf.setting.micro_batch_size, stages, start.split)
        entries = (Entry(shape, leaf.setting.data_parallel, leaf.micro_batches),)
    return Found(found.step_time, entries, math.inf)


def _families(pool: Pool, wanted: Sequence[int]) -> Iterator[tuple[Family, int, int]]:
    """Families that cover all numbers of pipelines, and the fewest and most micro-batches of theirs."""
    batch, smallest = pool.problem.global_batch, min(pool.micro_batch_sizes)
    ends = [*_RANGES[1:], math.inf]
    for low, end in zip(_RANGES, ends, strict=True):
        numbers = [r for r in wanted if low <= r < end]
        for schedule in pool.problem.schedules if numbers else ():
            for size in pool.micro_batch_sizes:
                most = (batch - (numbers[0] - 1) * smallest) // size
                if numbers == [1] and batch % size:
                    continue
                fewest = most if numbers == [1] else 1
                if most >= 1:
                    yield Family(pool, schedule, size, numbers[-1], numbers[0]), fewest, most

"""Small pools: every mix of pipelines, in the order of what it can reach at best, until none can beat the best one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import NamedTuple

from planner.cost.policies import offloads
from planner.search.leaf import Split
from planner.search.mixed.evaluate import step_time_of_mix
from planner.search.mixed.shapes import Entry, Family, Kind, MixedLeaf, Pool, Shape, policies_of
from planner.search.splitting import Splitter

__all__ = ["Found", "exhaust", "in_order", "is_small"]

_MOST_SEQUENCES = 4000
_MOST_SPLITS = 30_000
_MOST_COLUMNS = 20_000
_MOST_MIXES = 20_000

Usage = tuple[int, ...]
Stages = tuple[Kind, ...]


@dataclass
class Found:
    """The best mix known, and what is proved: no mix of the pool is faster than `bound` seconds."""

    step_time: float
    entries: tuple[Entry, ...]
    bound: float
    mixes: int = 0
    columns: int = field(default=0)


class _Column(NamedTuple):
    """A pipeline with its micro-batches: seconds at best, sequences a step, chips of each group."""

    seconds: float
    sequences: int
    usage: Usage
    shape: Shape
    micro_batches: int


def is_small(pool: Pool) -> bool:
    """Whether every split of the chain over every sequence of stages can be listed.

    Not where layers may be offloaded: a stage then trades forward for backward time, and one choice is not enough.
    """
    if any(map(offloads, pool.problem.policies)):
        return False
    layers, splits = pool.intervals.num_layers, 0
    for number, stages in enumerate(_sequences(pool)):
        splits += math.comb(layers - 1, len(stages) - 1)
        if number >= _MOST_SEQUENCES or splits > _MOST_SPLITS:
            return False
    return True


def _sequences(pool: Pool, most: int | None = None) -> Iterator[Stages]:
    """Every sequence of stages that the chips and the layers allow."""
    longest = pool.intervals.num_layers if most is None else most
    wanted = pool.limits.total_stages

    def extend(stages: Stages, left: tuple[int, ...]) -> Iterator[Stages]:
        if stages and wanted in (None, len(stages)):
            yield stages
        if len(stages) == longest or len(stages) == wanted:
            return
        for kind in pool.kinds:
            width = kind.tensor * pool.context
            if left[kind.group] >= width:
                rest = (*left[: kind.group], left[kind.group] - width, *left[kind.group + 1 :])
                yield from extend((*stages, kind), rest)

    yield from extend((), pool.num_chips)


def exhaust(
    pool: Pool, replicas: Sequence[int], best: Found, gap: float, should_stop: Callable[[], bool] = lambda: False
) -> Found:
    """Look at every mix with these numbers of pipelines; `best` is what is known before, its bound is not used."""
    found = Found(best.step_time, best.entries, math.inf, best.mixes, best.columns)
    bounds = []
    for r in replicas:
        bounds.append(_Exhaustion(pool, r, found, gap, should_stop).run())
        pool.release()
    found.bound = min([*bounds, found.step_time * (1 - gap)])
    return found


class _Exhaustion:
    """All mixes of one number of pipelines."""

    def __init__(self, pool: Pool, replicas: int, found: Found, gap: float, stop: Callable[[], bool]) -> None:
        self.pool, self.replicas, self.found, self.gap, self.stop = pool, replicas, found, gap, stop
        self.batch = pool.problem.global_batch

    @property
    def goal(self) -> float:
        """What a mix must stay below to matter."""
        return self.found.step_time * (1 - self.gap)

    def run(self) -> float:
        """A lower bound of all mixes; inf when there are none below what is known."""
        most = self._most_sequences()
        if self.stop():
            return 0.0
        rooms = _rooms(most, self.replicas, self.pool.num_chips)
        if rooms[-1].get(self.pool.num_chips, 0) < self.batch:
            return math.inf
        columns: list[_Column] = []
        for (family, stages), m in most.items():
            usage = self.pool.chips_of(stages)
            rest = rooms[self.replicas - 1].get(_less(self.pool.num_chips, usage), -1)
            if m * family.micro_batch_size + rest >= self.batch and rest >= 0:
                for column in self._columns(family, stages, usage, m):
                    columns.append(column)
                    if len(columns) > _MOST_COLUMNS or self.stop():
                        return 0.0
        columns.sort(key=lambda c: (c.seconds, c.sequences, c.shape.schedule, c.shape.stages, c.shape.split.ends))
        self.found.columns += len(columns)
        return self._walk(columns, rooms)

    def _most_sequences(self) -> dict[tuple[Family, Stages], int]:
        """For every pipeline the most micro-batches that its bound leaves within the goal; none: left out."""
        most: dict[tuple[Family, Stages], int] = {}
        families = self.pool.families(self.replicas)
        small = min(f.micro_batch_size for f in families)
        for stages in _sequences(self.pool):
            if self.stop():
                break
            for family in families:
                tables = family.root.single_stage() if len(stages) == 1 else family.root
                if any(tables.options(g, t) is None for g, t in stages):
                    continue
                cap = (self.batch - (self.replicas - 1) * small) // family.micro_batch_size
                m = _most_micro_batches(family, stages, cap, self.goal)
                if m:
                    most[family, stages] = m
        return most

    def _columns(self, family: Family, stages: Stages, usage: Usage, most: int) -> Iterator[_Column]:
        """Every split of a pipeline, for every number of micro-batches that it can run within the goal."""
        for m in range(1, most + 1):
            leaf = family.leaf(stages, m)
            for split in _splits(leaf):
                seconds = leaf.step_time(split)
                if seconds < self.goal:
                    shape = Shape(family.schedule, family.micro_batch_size, stages, split)
                    yield _Column(seconds, m * family.micro_batch_size, usage, shape, m)

    def _walk(self, columns: list[_Column], rooms: list[dict[Usage, int]]) -> float:
        """Mixes in the order of their slowest column; the seconds of the first column not looked at are a bound."""
        for last, column in enumerate(columns):
            if column.seconds >= self.goal:
                return math.inf
            if self.found.mixes > _MOST_MIXES or self.stop():
                return column.seconds
            for chosen in self._mixes(columns, last, column, rooms):
                if self.found.mixes > _MOST_MIXES or self.stop():
                    return column.seconds
                self._try(chosen)
        return math.inf

    def _mixes(
        self, columns: list[_Column], last: int, column: _Column, rooms: list[dict[Usage, int]]
    ) -> Iterator[list[_Column]]:
        """Multisets with columns[last] and others up to it that fill the batch and fit the chips."""

        def extend(chosen: list[_Column], top: int, missing: int, left: Usage) -> Iterator[list[_Column]]:
            more = self.replicas - len(chosen)
            if not more:
                if missing == 0:
                    yield chosen
                return
            if rooms[more].get(left, -1) < missing:
                return
            for i in range(top, -1, -1):
                candidate = columns[i]
                rest = _less(left, candidate.usage)
                if min(rest) >= 0 and candidate.sequences <= missing:
                    yield from extend([*chosen, candidate], i, missing - candidate.sequences, rest)

        rest = _less(self.pool.num_chips, column.usage)
        yield from extend([column], last, self.batch - column.sequences, rest)

    def _try(self, chosen: list[_Column]) -> None:
        self.found.mixes += 1
        entries = in_order([Entry(c.shape, 1, c.micro_batches) for c in chosen])
        if not self._uses_needed(chosen):
            return
        step = step_time_of_mix(self.pool, entries)
        if step < self.found.step_time:
            self.found.step_time, self.found.entries = step, entries

    def _uses_needed(self, chosen: list[_Column]) -> bool:
        return all(any(c.usage[g] for c in chosen) for g in self.pool.limits.use)


def in_order(entries: Sequence[Entry]) -> tuple[Entry, ...]:
    """Equal entries together, in an order that depends on nothing else; places follow it."""
    counts: dict[tuple[Shape, int], int] = {}
    for e in entries:
        counts[e.shape, e.micro_batches] = counts.get((e.shape, e.micro_batches), 0) + e.replicas
    return tuple(sorted((Entry(shape, n, m) for (shape, m), n in counts.items()), key=_order))


def _order(e: Entry) -> tuple[object, ...]:
    s = e.shape
    return s.schedule, s.micro_batch_size, s.stages, s.split.ends, s.split.policies, -e.micro_batches


def _less(a: Usage, b: Usage) -> Usage:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _rooms(most: dict[tuple[Family, Stages], int], replicas: int, chips: Usage) -> list[dict[Usage, int]]:
    """rooms[r][left]: the most sequences that r pipelines can run on `left` chips of each group."""
    best: dict[Usage, int] = {}
    for (family, stages), m in most.items():
        usage = [0] * len(chips)
        for g, mode in stages:
            usage[g] += mode.tensor * family.pool.context
        key = tuple(usage)
        best[key] = max(best.get(key, 0), m * family.micro_batch_size)
    lefts = [*_grid(chips)]
    rooms: list[dict[Usage, int]] = [dict.fromkeys(lefts, 0)]
    for _ in range(replicas):
        before, now = rooms[-1], {}
        for left in lefts:
            options = [n + before.get(_less(left, usage), -(10**9)) for usage, n in best.items()]
            top = max(options, default=-1)
            if top >= 0:
                now[left] = top
        rooms.append(now)
    return rooms


def _grid(chips: Usage) -> Iterator[Usage]:
    if not chips:
        yield ()
        return
    for first in range(chips[0] + 1):
        for rest in _grid(chips[1:]):
            yield (first, *rest)


def _most_micro_batches(family: Family, stages: Stages, cap: int, goal: float) -> int:
    """The most micro-batches that the dynamic programme does not refute: more than a refuted number are refuted too."""

    def possible(m: int) -> bool:
        return Splitter(family.leaf(stages, m)).split_within(min(goal, 1e30)) is not None

    if cap < 1 or not possible(1):
        return 0
    low, high = 1, 2
    while high <= cap and possible(high):
        low, high = high, high * 2
    high = min(high, cap + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if possible(middle) else (low, middle)
    return low


def _splits(leaf: MixedLeaf) -> Iterator[Split]:
    """Every split of the chain over the stages, each stage with its least recompute."""
    layers, prefix = leaf.root.intervals.num_layers, leaf.root.intervals.prefix
    known: dict[tuple[int, int, int], tuple[tuple[int, ...], ...] | None] = {}
    for cuts in combinations(range(1, layers), leaf.num_stages - 1):
        ends = (*cuts, layers)
        policies = []
        first = 0
        for s, end in enumerate(ends):
            if (s, first, end) not in known:
                counts = tuple(int(n) for n in prefix[end] - prefix[first])
                known[s, first, end] = policies_of(leaf, s, counts)
            chosen = known[s, first, end]
            if chosen is None:
                break
            policies.append(chosen)
            first = end
        if len(policies) == len(ends):
            yield Split(ends, tuple(policies))

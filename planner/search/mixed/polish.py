"""Local search around mixes: add, drop and exchange pipelines of the shapes known, each tried at its real step time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from planner.cost.schedule import in_flight_counts
from planner.search.leaf import Split
from planner.search.mixed.evaluate import chain_times_of_mix, pipeline_time, step_time_of_mix
from planner.search.mixed.exhaustive import in_order
from planner.search.mixed.shapes import Entry, Pool, Shape, policies_of

if TYPE_CHECKING:
    from planner.search.mixed.exhaustive import Found

__all__ = ["Polisher"]

_NEIGHBOURS = 30
"""Shapes that may be added to a mix."""

Mix = dict[Shape, int]
"""Replicas of each shape."""


class Polisher:
    """Tries mixes and keeps the best. most_tries: over the whole life."""

    def __init__(self, pool: Pool, best: Found, most_tries: int, should_stop: Callable[[], bool]) -> None:
        self.pool, self.best, self.stop, self.left = pool, best, should_stop, most_tries
        self.batch = pool.problem.global_batch
        self._tried: dict[tuple[tuple[Shape, int], ...], float] = {}

    def climb(self, start: Mix, shapes: Sequence[Shape]) -> None:
        """From a mix to a better neighbour, the first that there is, until none is better. shapes: the best first."""
        current, value = start, self.value(start)
        better = True
        while better:
            better = False
            for mix in self._neighbours(current, shapes[:_NEIGHBOURS]):
                if self._spent():
                    return
                seconds = self.value(mix)
                if seconds < value * (1 - 1e-9):
                    current, value, better = mix, seconds, True
                    break

    def _spent(self) -> bool:
        return self.left <= 0 or self.stop()

    def value(self, mix: Mix) -> float:
        """Seconds of a step of the mix, its micro-batches shared out; inf where it does not fit. The best is kept."""
        key = tuple(sorted(mix.items(), key=repr))
        if not mix or not self.pool.limits.use <= self._groups(mix):
            return math.inf
        if key not in self._tried:
            self.left -= 1
            self.best.mixes += 1
            self._tried[key] = self._value(mix)
        return self._tried[key]

    def _value(self, mix: Mix) -> float:
        entries = self._shared_out(mix)
        if entries is None:
            return math.inf
        seconds = step_time_of_mix(self.pool, entries)
        if seconds < self.best.step_time:
            self.best.step_time, self.best.entries = seconds, entries
        return seconds

    def _groups(self, mix: Mix) -> frozenset[int]:
        return frozenset(g for shape in mix for g, _ in shape.stages)

    def _neighbours(self, mix: Mix, shapes: Sequence[Shape]) -> Iterator[Mix]:
        """One shape more, as often as it fits or once; the same after a replica of another shape has gone."""
        for gone in (None, *mix):
            kept = {s: n - (s == gone) for s, n in mix.items() if n - (s == gone) > 0}
            if gone is not None and kept:
                yield kept
            room = self._room(kept)
            for shape in shapes:
                if shape == gone:
                    continue
                used = self.pool.taken(shape.stages)
                fits = min((left // n for left, n in zip(room, used, strict=True) if n), default=0)
                for count in sorted({1, fits}):
                    if 1 <= count <= fits:
                        yield {**kept, shape: kept.get(shape, 0) + count}

    def _room(self, mix: Mix) -> list[int]:
        room = [r.chips for r in self.pool.rooms]
        for shape, n in mix.items():
            for i, used in enumerate(self.pool.taken(shape.stages)):
                room[i] -= n * used
        return room

    def _shared_out(self, mix: Mix) -> tuple[Entry, ...] | None:
        """Micro-batches for every replica, so that all end as early as possible; None when something does not fit."""
        replicas = sum(mix.values())
        each = max(1, self.batch // replicas)
        fitted = [(fitted_shape(self.pool, s, replicas, max(1, each // s.micro_batch_size)), n) for s, n in mix.items()]
        if any(shape is None for shape, _ in fitted):
            return None
        entries = [Entry(s, n, max(1, each // s.micro_batch_size)) for s, n in fitted if s is not None]
        lines = _lines(self.pool, entries)
        if lines is None:
            return None
        totals = _totals(entries, lines, self.batch)
        if totals is None:
            return None
        shared = []
        for entry, total in zip(entries, totals, strict=True):
            few, more = divmod(total, entry.replicas)
            for n, m in ((more, few + 1), (entry.replicas - more, few)):
                shape = fitted_shape(self.pool, entry.shape, replicas, m) if n else None
                if n and shape is None:
                    return None
                if n and shape is not None:
                    shared.append(Entry(shape, n, m))
        return in_order(shared)


def fitted_shape(pool: Pool, shape: Shape, replicas: int, micro_batches: int) -> Shape | None:
    """The shape with recompute chosen for these numbers; None where it does not fit."""
    leaf = pool.family(shape.schedule, shape.micro_batch_size, replicas).leaf(shape.stages, micro_batches)
    prefix, policies = leaf.root.intervals.prefix, []
    for s in range(len(shape.stages)):
        first, end = shape.split.bounds(s)
        chosen = policies_of(leaf, s, tuple(int(n) for n in prefix[end] - prefix[first]))
        if chosen is None:
            return None
        policies.append(chosen)
    return Shape(shape.schedule, shape.micro_batch_size, shape.stages, Split(shape.split.ends, tuple(policies)))


def _lines(pool: Pool, entries: Sequence[Entry]) -> list[tuple[float, float]] | None:
    """(start, slope) of each entry's step time over its micro-batches, from two runs; None when they have no room."""
    times = chain_times_of_mix(pool, entries)
    if times is None:
        return None
    lines = []
    for (chain, _), e in zip(times, entries, strict=True):
        stages = len(e.shape.stages)
        m = max(e.micro_batches, stages)
        now, later = (
            pipeline_time(chain, in_flight_counts(e.shape.schedule, stages, n), n) for n in (m, m + max(1, stages))
        )
        slope = max((later - now) / max(1, stages), 1e-12)
        lines.append((now - m * slope, slope))
    return lines


def _totals(entries: Sequence[Entry], lines: Sequence[tuple[float, float]], batch: int) -> list[int] | None:
    """Micro-batches of all replicas of each entry: the least step time by the lines, the batch filled exactly."""

    def each(seconds: float) -> list[int]:
        return [max(1, int((seconds - start) / slope + 1e-9)) for start, slope in lines]

    def filled(seconds: float) -> int:
        return sum(m * e.replicas * e.shape.micro_batch_size for m, e in zip(each(seconds), entries, strict=True))

    high = 1e-6
    while filled(high) < batch:
        high *= 2
    low = 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if filled(middle) >= batch else (middle, high)
    totals = [m * e.replicas for m, e in zip(each(high), entries, strict=True)]
    return reduced(totals, entries, lines, filled(high) - batch)


def reduced(
    totals: list[int], entries: Sequence[Entry], lines: Sequence[tuple[float, float]], excess: int
) -> list[int] | None:
    """Take sequences off the slowest entries until none is too many; None when the micro-batch sizes do not add up."""
    while excess > 0:
        possible = [j for j, e in enumerate(entries) if e.shape.micro_batch_size <= excess and totals[j] > e.replicas]
        if not possible:
            return None
        j = max(possible, key=lambda j: (lines[j][0] + lines[j][1] * -(-totals[j] // entries[j].replicas), -j))
        entry = entries[j]
        level = (totals[j] - 1) // entry.replicas * entry.replicas
        step = min(totals[j] - max(level, entry.replicas), excess // entry.shape.micro_batch_size)
        totals[j] -= step
        excess -= step * entry.shape.micro_batch_size
    return totals

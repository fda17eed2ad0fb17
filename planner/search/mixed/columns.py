"""Shapes worth having in a mix, found by pricing: what the relaxed problem would run at the chips' prices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from planner.search.leaf import Split
from planner.search.mixed.pricing import Box, Chain, Pricer, Question
from planner.search.mixed.shapes import Family, Shape, policies_of
from planner.search.mixed.variants import variants
from planner.search.splitting import Splitter

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.shapes import Kind, Pool, Ring

    Floats = NDArray[np.float64]

__all__ = ["Column", "Columns"]

_TOGETHER = 8
"""Numbers of micro-batches priced in one walk: not more, so that the search can stop in between."""
_GRID = 1.35
"""Ratio of neighbouring numbers of micro-batches for which shapes are priced."""
_BALANCED = 5
"""Shapes a family whose layers are balanced in each round: those with the most sequences for their price."""
_CLOSER = 2
"""Times that the allowance of a priced shape is corrected by its own way through the pipeline."""
_SHARES = (1.0, 1 - 1e-9, 0.95, 0.9)
"""Of the micro-batches for which a pipeline was priced: its whole layers are balanced at the first of these at which
they pass. The second is one micro-batch fewer.
"""


@dataclass
class Column:
    """A shape at one number of replicas in all: its step time over its micro-batches, at best.

    The step time rises by the same amount with every micro-batch once the pipeline is full, so two runs tell it; a
    mix's real step time is run in full when it is tried.
    """

    family: Family
    shape: Shape
    taken: tuple[int, ...]
    """Chips of each room of the pool."""

    def uses(self, group: int) -> bool:
        """Whether a stage is on a chip of the group."""
        return any(g == group for g, _ in self.shape.stages)

    @cached_property
    def _known(self) -> dict[int, float]:
        return {}

    @cached_property
    def _fitted(self) -> dict[int, bool]:
        return {}

    def _runs(self, micro_batches: int) -> float:
        if micro_batches not in self._known:
            leaf = self.family.leaf(self.shape.stages, micro_batches)
            self._known[micro_batches] = leaf.step_time(self.shape.split)
        return self._known[micro_batches]

    @cached_property
    def _line(self) -> tuple[int, float, float]:
        """Micro-batches that fill the pipeline, seconds for them, and seconds for each one more."""
        full = 2 * len(self.shape.stages)
        first, later = self._runs(full), self._runs(2 * full)
        return full, first, max((later - first) / full, 1e-12)

    def fits(self, micro_batches: int) -> bool:
        """Whether every stage has the memory, with the recompute that the shape has."""
        held = min(micro_batches, 2 * len(self.shape.stages))  # no schedule but GPipe holds more
        key = micro_batches if self.shape.schedule == "gpipe" else held
        if key not in self._fitted:
            leaf = self.family.leaf(self.shape.stages, micro_batches)
            self._fitted[key] = all(leaf.fits(s, p) for s, p in enumerate(self.shape.split.policies))
        return self._fitted[key]

    def within(self, step_time: float, cap: int) -> int:
        """The most micro-batches within a step time, at most `cap`; 0 for none."""
        if cap < 1:
            return 0
        full, first, each = self._line
        most = min(cap, full + int((step_time - first) / each + 1e-9) if step_time >= first else 0)
        if most < full:
            most = _largest(min(full - 1, cap), lambda m: self._runs(m) <= step_time)
        return _largest(most, self.fits)


def _largest(most: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `most` for which something holds that holds for all smaller ones; 0 for none."""
    if most < 1 or holds(most):
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


class Columns:
    """The shapes known so far, at one number of replicas in all. ring: with whom they reduce; None: the least."""

    def __init__(self, pool: Pool, replicas: int, ring: Ring | None, should_stop: Callable[[], bool]) -> None:
        self.pool, self.replicas, self.ring, self.stop = pool, replicas, ring, should_stop
        self.known: dict[Shape, Column] = {}
        self._seen: set[tuple[Family, Chain, int]] = set()
        self._pricers: dict[Family, Pricer] = {}

    def add_shape(self, family: Family, shape: Shape) -> None:
        """A shape that is known from elsewhere."""
        if shape not in self.known and self.pool.allows(shape.stages):
            self.known[shape] = Column(family, shape, self.pool.taken(shape.stages))

    def price(self, prices: Sequence[float], step_time: float, most: int) -> None:
        """Add the best shapes of the relaxed problem at these prices (sequences a chip of each room), with up to
        `most` sequences a pipeline.
        """
        import numpy as np

        for family in self.pool.families(self.replicas, self.ring):
            pricer = self._pricers.setdefault(family, Pricer(family, step_time)).within(step_time)
            per_slot = np.array([self.pool.price(prices, kind) for kind in family.kinds])
            found: dict[int, tuple[float, Chain]] = {}
            last = max(1, min(most, self.pool.problem.global_batch) // family.micro_batch_size)
            for ratio in (_GRID**2, _GRID, _GRID**0.5):
                best = max(found, key=lambda m: found[m][0], default=0)
                numbers = [m for m in _around(best, last, ratio) if m not in found]
                for some in range(0, len(numbers), _TOGETHER):
                    if not self.stop():
                        found |= _priced(family, pricer, per_slot, numbers[some : some + _TOGETHER], step_time)
            for m in sorted(found, key=lambda m: (-found[m][0], m))[:_BALANCED]:
                if not self.stop():
                    self.add_chain(family, found[m][1], m, step_time)
            for kind in () if self.stop() else family.kinds:
                self.add_chain(family, Chain((kind,), (pricer.layers,)), 1, step_time)

    def add_variants(self, shapes: Sequence[Shape], prices: Sequence[float], step_time: float, most: int) -> None:
        """Add the stages of some shapes in every micro-batch size, and in those that they have up to `most` pipelines a
        step away; with as many micro-batches as they cost, or a tenth less.
        """
        pipelines = [*dict.fromkeys(s.stages for s in shapes)]
        used = {s.micro_batch_size for s in shapes}
        for family in self.pool.families(self.replicas, self.ring):
            size = family.micro_batch_size
            tried = (*pipelines, *(variants(pipelines, family.kinds) if size in used else ()))
            for number, stages in enumerate(dict.fromkeys(tried)):
                if number >= most or self.stop():
                    break
                cost = sum(p * n for p, n in zip(prices, self.pool.taken(stages), strict=True))
                if self.pool.has_room(stages) and all(kind in family.kinds for kind in stages):
                    self.add_chain(family, Chain(stages, ()), max(1, round(cost / size)), step_time, (1.0, 0.9))

    def add_chain(
        self, family: Family, chain: Chain, m: int, step_time: float, shares: tuple[float, ...] = _SHARES
    ) -> None:
        """Whole layers for a chain's stages: the dynamic programme balances them, at the first share of m micro-batches
        at which some pass.
        """
        if (family, chain, m) in self._seen or not self.pool.allows(chain.kinds):
            return
        self._seen.add((family, chain, m))
        for tried in dict.fromkeys(max(1, int(m * share)) for share in shares):
            shape = balanced(family, chain.kinds, tried, step_time)
            if shape is not None:
                self.add_shape(family, shape)
                return


def _around(best: int, last: int, ratio: float) -> list[int]:
    """Numbers of micro-batches to look at: all up to `last` in steps of a ratio, or a few steps around the best."""
    if not best:
        steps = range(int(math.log(max(last, 1)) / math.log(ratio)) + 2)
        return sorted({min(last, max(1, round(ratio**i))) for i in steps})
    return sorted({min(last, max(1, round(best * ratio**i))) for i in (-2, -1, 1, 2)})


def _priced(
    family: Family, pricer: Pricer, prices: Floats, numbers: Sequence[int], step_time: float
) -> dict[int, tuple[float, Chain]]:
    """For numbers of micro-batches m: the relaxed pipeline that costs least within a step time, and sequences over
    cost.
    """
    ways = dict.fromkeys(numbers, pricer.fastest_way)
    found: dict[int, tuple[float, Chain]] = {}
    for _ in range(_CLOSER + 1):
        questions = {}
        for m, way in ways.items():
            allowance = (step_time - pricer.least_update - way) / m
            if allowance > 0:
                questions[m] = Question(Box(m, m, allowance, allowance), prices / family.micro_batch_size)
        before, ways = ways, {}
        answers = pricer.least(list(questions.values()), trace=True)
        for m, (_, chain) in zip(questions, answers, strict=True):
            if chain is not None:
                cost = sum(float(prices[family.kinds.index(kind)]) for kind in chain.kinds)
                found[m] = (m * family.micro_batch_size / max(cost, 1e-300), chain)
                way = pricer.way(chain)
                if abs(way - before[m]) > 0.01 * before[m]:
                    ways[m] = way
    return found


def balanced(family: Family, stages: tuple[Kind, ...], m: int, step_time: float) -> Shape | None:
    """The shape of these stages that runs m micro-batches fastest, if it takes no longer than `step_time` or so."""
    leaf = family.leaf(stages, m)
    splitter = Splitter(leaf)
    ends = splitter.split_within(step_time)
    if ends is None:
        return None
    _, closer = splitter.bound(0.9 * step_time, step_time, 2e-3)
    intervals = family.root.intervals
    for candidate in (closer, ends):
        if candidate is None:
            continue
        policies, first = [], 0
        for s, end in enumerate(candidate):
            chosen = policies_of(leaf, s, tuple(int(n) for n in intervals.prefix[end] - intervals.prefix[first]))
            if chosen is None:
                break
            policies.append(chosen)
            first = end
        if len(policies) == len(candidate):
            return Shape(family.schedule, family.micro_batch_size, stages, Split(tuple(candidate), tuple(policies)))
    return None

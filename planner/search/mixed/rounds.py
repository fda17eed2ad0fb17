"""Larger pools: shapes by pricing, replicas of each by the master program, then the exact step time of the mix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from planner.search.mixed.columns import Column, Columns
from planner.search.mixed.master import chip_prices, most_sequences, replica_counts
from planner.search.mixed.polish import Polisher
from planner.search.mixed.refuter import Relaxed
from planner.search.mixed.shapes import Pool, Ring, Shape

if TYPE_CHECKING:
    from planner.search.mixed.exhaustive import Found

__all__ = ["Rounds"]

_ROUNDS = 6
_WORTH_A_ROUND = 2e-3
"""What a new column must run beyond what it costs, relatively, for another round; and how much faster than the best
plan even fractions of pipelines must be for whole ones to be looked for.
"""
_TARGETS = 6
"""Step times between the relaxed master's and the best known that the master program is asked for."""
_MOST_COLUMNS = 40
"""Columns of the master program: those that cost least beyond what they run."""
_MOST_SEQUENCES = 2
"""Pipelines priced run up to so many times the sequences of a pipeline of the best plan known."""
_VARIANTS = 400
"""Pipelines a step away from those of the best mix that are looked at in a round, for each micro-batch size."""
_KEPT = 120
"""Shapes that the next rounds begin with."""
_TRIES = 250
"""Mixes whose real step time is looked at in one run of rounds."""
_NEVER = 1e6
"""Factor on the prices of the other groups when pipelines of one group alone are looked for."""


class Rounds:
    """Column generation at one number of replicas in all. ring: with whom they reduce gradients; None: the least.

    shapes: known from elsewhere.
    """

    def __init__(
        self,
        pool: Pool,
        replicas: int,
        ring: Ring | None,
        best: Found,
        shapes: Sequence[Shape],
        should_stop: Callable[[], bool],
    ) -> None:
        self.pool, self.best, self.stop = pool, best, should_stop
        self.batch = pool.problem.global_batch
        self._chips = [room.chips for room in pool.rooms]
        self.step = best.step_time
        self.columns = Columns(pool, replicas, ring, should_stop)
        self.prices = _prices_by_rate(pool, replicas)
        self.polisher = Polisher(pool, best, _TRIES, should_stop)
        for shape in (*(e.shape for e in best.entries), *shapes):
            family = pool.family(shape.schedule, shape.micro_batch_size, replicas, ring)
            self.columns.add_shape(family, shape)
        self._begun = len(shapes) > 0
        each = max((e.micro_batches * e.shape.micro_batch_size for e in best.entries), default=self.batch)
        self.most = min(self.batch, _MOST_SEQUENCES * each)

    def run(self) -> None:
        """Generate columns until they add nothing; if the relaxed master is faster than the best plan, solve the master
        at a few step times and search around the best.
        """
        step = self.best.step_time
        self._start(step)
        step = self._relax(step)
        for _ in range(_ROUNDS):
            known = len(self.columns.known)
            self.columns.price(self.prices, step, self.most)
            if self.columns.ring is not None and self.columns.ring.holders:
                shapes = [e.shape for e in self.best.entries]
                self.columns.add_variants(shapes, self.prices, self.best.step_time, _VARIANTS)
            if self.stop() or not self._earns(self._listed()[known:], step):
                break
            step = self._relax(step)
        self.step = step
        if self.promises:
            self._solve_masters(step)
            self._climb()

    @property
    def promises(self) -> bool:
        """Whether fractions of columns are so much faster than the best plan that whole ones are worth looking for."""
        return self.step < self.best.step_time * (1 - _WORTH_A_ROUND)

    def _start(self, step_time: float) -> None:
        """Columns to begin with: pipelines of each group alone; in a large pool those of all at likely prices."""
        rooms = self.pool.rooms
        groups = sorted({room.group for room in rooms})
        if len(groups) < 2:
            return
        if self.pool.is_large and not self._begun:
            self.columns.price(self.prices, step_time, self.most)
        if self.pool.is_large or self.columns.ring is None:
            return
        for g in groups:
            alone = [p if r.group == g else p * _NEVER for r, p in zip(rooms, self.prices, strict=True)]
            self.columns.price(alone, step_time, self.most)

    def _earns(self, columns: Sequence[Column], step_time: float) -> bool:
        """Whether a column runs more sequences than it costs, by so much that another round is worth its time."""
        most = self._within(columns, step_time)
        return any(
            m * c.shape.micro_batch_size > self._cost(c) * (1 + _WORTH_A_ROUND)
            for c, m in zip(columns, most, strict=True)
        )

    def _climb(self) -> None:
        """Local search from the best mix, with the shapes that are worth most at the last prices."""
        if self.best.entries:
            start: dict[Shape, int] = {}
            for e in self.best.entries:
                start[e.shape] = start.get(e.shape, 0) + e.replicas
            columns = self._listed()
            most = self._within(columns, self.best.step_time)
            worth = [self._cost(c) - m * c.shape.micro_batch_size for c, m in zip(columns, most, strict=True)]
            ranked = sorted((j for j, m in enumerate(most) if m), key=lambda j: (worth[j], j))
            self.polisher.climb(start, [columns[j].shape for j in ranked])

    def worth_most(self) -> list[Shape]:
        """The shapes that cost least beyond what they run at the last prices."""
        columns = self._listed()
        runs = self._sequences(columns, self.best.step_time)
        worth = [(self._cost(c) - n, j) for j, (c, n) in enumerate(zip(columns, runs, strict=True)) if n]
        return [columns[j].shape for _, j in sorted(worth)[:_KEPT]]

    def _listed(self) -> list[Column]:
        return list(self.columns.known.values())

    def _within(self, columns: Sequence[Column], step_time: float) -> list[int]:
        caps = [0 if self.stop() else self.batch // c.shape.micro_batch_size for c in columns]
        return [c.within(step_time, cap) for c, cap in zip(columns, caps, strict=True)]

    def _relax(self, step_time: float) -> float:
        """The least step time at which fractions of columns run the whole batch; its prices are kept."""
        low, high = 0.5 * step_time, step_time
        while high - low > 2e-3 * high and not self.stop():
            middle = (low + high) / 2
            prices = self._dual(middle)
            if prices is not None and most_sequences(prices, self._chips) >= self.batch:
                high = middle
            else:
                low = middle
        prices = self._dual(high)
        if prices is not None and any(prices):
            self.prices = prices
        return high

    def _dual(self, step_time: float) -> list[float] | None:
        """Prices of a chip of each room at a step time; None: no answer."""
        columns = self._listed()
        runs = self._sequences(columns, step_time)
        return chip_prices([c.taken for c in columns], runs, self._chips, self.pool.solver)

    def within(self, step_time: float) -> list[Relaxed]:
        """The columns, each with the most sequences that it runs within a step time: for the bound, which knows no
        rooms.
        """
        columns = self._listed()
        runs = [c.within(step_time, self.batch // (b := c.shape.micro_batch_size)) * b for c in columns]
        return [Relaxed(self.pool.chips_of(c.shape.stages), n) for c, n in zip(columns, runs, strict=True) if n]

    def look_closer(self, prices: Sequence[float], step_time: float, should_stop: Callable[[], bool]) -> bool:
        """Add columns at prices of a chip of each group; whether there were any to add. For the bound, as `within`."""
        known, self.columns.stop = len(self.columns.known), should_stop
        self.columns.price(_of_rooms(self.pool, prices), step_time, self.most)
        return len(self.columns.known) > known

    def _sequences(self, columns: Sequence[Column], step_time: float) -> list[int]:
        most = self._within(columns, step_time)
        return [m * c.shape.micro_batch_size for c, m in zip(columns, most, strict=True)]

    def _solve_masters(self, low: float) -> None:
        """Ask the master for the whole batch at step times from the best known down to the relaxed one."""
        high = self.best.step_time
        for _ in range(_TARGETS):
            if self.stop() or high - low <= 1e-3 * high:
                return
            middle = (low + high) / 2
            if self._solve_master(middle):
                high = min(middle, self.best.step_time)
            else:
                low = middle

    def _solve_master(self, step_time: float) -> bool:
        """Whether whole replicas run the whole batch in time; the mix is tried, whatever it really takes."""
        columns = self._listed()
        most = self._within(columns, step_time)
        ranked = sorted(
            (j for j, m in enumerate(most) if m),
            key=lambda j: (self._cost(columns[j]) - most[j] * columns[j].shape.micro_batch_size, j),
        )[:_MOST_COLUMNS]
        chosen, at_most = [columns[j] for j in ranked], [most[j] for j in ranked]
        counts = replica_counts(chosen, at_most, self.pool.rooms, self.pool.limits.use, self.stop, self.pool.solver)
        if counts is None:
            return False
        runs = [(c, x, m) for c, x, m in zip(chosen, counts, at_most, strict=True) if x]
        if sum(x * m * c.shape.micro_batch_size for c, x, m in runs) < self.batch:
            return False
        self.polisher.value({c.shape: x for c, x, _ in runs})
        return True

    def _cost(self, column: Column) -> float:
        return sum(p * n for p, n in zip(self.prices, column.taken, strict=True))


def _prices_by_rate(pool: Pool, replicas: int) -> list[float]:
    """A first guess: what a chip does in a second in the best of its modes, all chips together the batch."""
    family = pool.families(replicas)[0]
    rates = [0.0] * len(pool.num_chips)
    for g, mode in family.kinds:
        options = family.root.options(g, mode)
        if options is not None and options.least_time_per_work < float("inf"):
            rates[g] = max(rates[g], 1 / (mode.tensor * pool.context * max(options.least_time_per_work, 1e-300)))
    whole = sum(r * n for r, n in zip(rates, pool.num_chips, strict=True)) or 1.0
    scale = pool.problem.global_batch / whole
    return _of_rooms(pool, [rate * scale for rate in rates])


def _of_rooms(pool: Pool, prices: Sequence[float]) -> list[float]:
    """Prices of a chip of each room, from those of each group: its first room is what it has chips for."""
    first = {room.group: room for room in reversed(pool.rooms)}
    return [prices[room.group] if room is first[room.group] else 0.0 for room in pool.rooms]

"""All shapes of a root at once: which of them pass the rows of a step time?

A dynamic programme from the pipeline's end: `behind[mask, c][k, a]` is the least time of one micro-batch through the
last k stages and their boundaries when they hold the layers from a on, use the groups of `mask`, and the first of them
is of choice c (group and mode). A block of stages of one more group is put in front, stage by stage. Memory and rows
are those of `stage_rows.py`, exact in the distance from the end; recompute is relaxed as everywhere in the bounds.
From the distance at which all micro-batches are in flight on, stages do not differ: they share the last row of a table.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from planner.search.candidates import Root
from planner.search.links import wait_factors
from planner.search.stage_rows import Asked, Choice, Front, StageLimits, longest_update, most_held

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode
    from planner.search.tree import Order

    Floats = NDArray[np.float64]

__all__ = ["MOST_GROUPS", "ShapeSieve", "ShapeTable", "SieveStopped"]

MOST_GROUPS = 8
"""Subsets of more groups are too many."""
_WAYS = (0, 0, 1)
"""Which transfers ways, spans and tails cross a boundary with: both, both, onward alone."""
_ALLOWANCE = 1 + 1e-9
_MOST_ENDS = 20_000


class SieveStopped(Exception):
    """Asked to stop before an answer was there."""


class ShapeSieve:
    """Asks one root about step times."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.layers = root.intervals.num_layers
        pinned = root.limits.stages
        self.choices = [
            Choice(g, mode, pinned.get(g, 1), root.max_stages(g, mode), options)
            for g in range(len(root.groups))
            for mode in root.modes(g)
            if (options := root.options(g, mode)) is not None
        ]
        self.index_of = {(choice.group, choice.mode): c for c, choice in enumerate(self.choices)}
        self.used = sorted({c.group for c in self.choices})
        self.bit = {g: 1 << i for i, g in enumerate(self.used)}
        self.most = self._most_distances()
        self.least_update = min((c.options.least_update for c in self.choices), default=0.0)
        self._wait_factors = wait_factors(root, self.most)
        self._transfers: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        self._ways: list[tuple[float, float]] = []
        """Step times, and ways that no shape within them undercuts; nor does any within a shorter step time."""

    def _most_distances(self) -> int:
        """Stages that differ in their distance from the end; with a pinned number of stages, that number."""
        root = self.root
        if root.limits.total_stages is not None or root.limits.layers_per_stage is not None:
            return root.most_stages
        full = next((k for k in range(2, root.most_stages) if root.stages_in_flight(k) >= root.micro_batches), None)
        return root.most_stages if full is None else full

    def empty(self, step_time: float) -> ShapeTable:
        """A table to ask about single shapes."""
        front = Front(self.root, self.choices)
        way = max([float(front.time[-1]), *(w for t, w in self._ways if t >= step_time)])
        return ShapeTable(self, step_time * _ALLOWANCE, way, front, closer=True)

    def within(self, step_time: float, should_stop: Callable[[], bool] = lambda: False) -> ShapeTable | None:
        """The shapes of two or more stages that pass the rows of a step time; None: there is none, and no plan either.

        Raises SieveStopped when asked to stop.
        """
        assert len(self.used) <= MOST_GROUPS, "too many groups"
        needed = self.root.limits.use | set(self.root.limits.stages)
        if not self.choices or not needed <= set(self.used):
            return None
        limit, front = step_time * _ALLOWANCE, Front(self.root, self.choices)
        way = max([float(front.time[-1]), *(w for t, w in self._ways if t >= step_time)])
        least = ShapeTable(self, limit, way, front).fill(should_stop)
        if least is None or least + self.least_update > limit:
            return None
        self._ways.append((step_time, max(way, least)))
        table = ShapeTable(self, limit, max(way, least), front, closer=True)
        return None if table.fill(should_stop) is None else table

    def may_precede(self, group: int, mask: int) -> bool:
        """Whether the limits let a group stand in front of those of the mask."""
        limits = self.root.limits
        order = limits.order if limits.order is not None else (tuple(self.used) if limits.fixed_order else None)
        if order is None:
            return True
        if group not in order:
            return False
        return all(order.index(group) < order.index(g) for g in self.used if mask & self.bit[g])

    def transfer(self, c: int, d: int) -> tuple[Floats, Floats]:
        """Least seconds of a cut at every position between a stage of choice c and one of d behind it, both ways and
        onward, and how long the step waits for it by the number of stages behind.
        """
        if (c, d) not in self._transfers:
            import numpy as np

            root, a, b = self.root, self.choices[c], self.choices[d]
            kinds = np.array(root.intervals.chain.kinds)
            ways = [False, True] if c == d and self._may_share_a_node(a) else [False]
            tables = [root.transfer(a.group, a.mode, b.group, b.mode, same) for same in ways]
            by_kind = np.min([[t.forward_s + t.backward_s, t.forward_s] for t in tables], axis=0)
            least = [root.least_transfer(a.group, a.mode, b.group, b.mode, same) for same in ways]
            once, both = self._wait_factors
            waits = [np.maximum(once * max(x.onward, x.back), both * (x.onward + x.back)) for x in least]
            self._transfers[c, d] = np.pad(by_kind[:, kinds], ((0, 0), (1, 0))), np.min(waits, axis=0)
        return self._transfers[c, d]

    def _may_share_a_node(self, choice: Choice) -> bool:
        """Whether the transfer between some two stages of a group can stay inside nodes."""
        setting, group = self.root.setting, self.root.groups[choice.group]
        slots = group.slots_per_node(choice.mode.tensor, setting.context_parallel)
        return setting.data_parallel * choice.mode.replicas < slots


class ShapeTable:
    """The tables of one step time: thresholds of every choice, and what lies behind every state.

    way: no shape that passes has a shorter way of one micro-batch.  closer: look at spans and tails too.
    """

    def __init__(self, sieve: ShapeSieve, step_time: float, way: float, front: Front, *, closer: bool = False) -> None:
        self.sieve, self.step_time, self.front, self.closer = sieve, step_time, front, closer
        self.room = step_time - sieve.least_update - way
        """Seconds that a wait may add to the shortest way."""
        asked = Asked(sieve.root, front, step_time, way, sieve.least_update, sieve.most + 1)
        self.limits = [StageLimits(choice, asked) for choice in sieve.choices]
        self.behind: dict[tuple[int, int], Values] = {}
        self._by_group: dict[tuple[int, int], Values | None] = {}
        self._crossings: dict[tuple[int, int], Floats] = {}
        self._ends: dict[Order, Values | None] = {}
        self._reach: list[int] = []
        self._useful: list[int] = []

    def fill(self, should_stop: Callable[[], bool]) -> float | None:
        """The least way of one micro-batch through a shape that passes; None when there is none."""
        sieve = self.sieve
        if not self._find_reach():
            return None
        for mask in range(1 << len(sieve.used)):
            if should_stop():
                raise SieveStopped
            for c in self._useful:
                group = sieve.choices[c].group
                if not mask & sieve.bit[group] and sieve.may_precede(group, mask):
                    self._add_block(mask, c)
        return min((float(whole.min()) for _, whole in self.whole()), default=None)

    def whole(self) -> list[tuple[tuple[int, int], Floats]]:
        """(mask, choice) of the first block, and the ways of whole pipelines by their number of stages."""
        import numpy as np

        sieve, limits, found = self.sieve, self.sieve.root.limits, []
        needed = sum(sieve.bit[g] for g in limits.use | set(limits.stages))
        for key, values in self.behind.items():
            if values.a or key[0] & needed != needed:
                continue
            whole = np.full(sieve.most + 1, np.inf)
            whole[values.k : values.k + values.data.shape[1]] = values.data[0, :, 0]
            whole[:2] = np.inf  # one stage has tables of its own
            if limits.total_stages is not None:
                whole[np.arange(len(whole)) != limits.total_stages] = np.inf
            if np.isfinite(whole).any():
                found.append((key, whole))
        return found

    def _find_reach(self) -> bool:
        """For each set of groups: the farthest position up to which the other groups can hold everything; whether all
        together hold the chain. Choices that leave too little are left out.
        """
        import numpy as np

        sieve, work = self.sieve, self.front.work
        total = float(work[-1]) * (1 - 1e-9)
        if sum(most_held(self.limits).values()) < total:
            return False
        longest = longest_update(self.limits, float(work[-1]))
        for of in self.limits:
            of.add_update(longest)
        held = most_held(self.limits)
        self._useful = [
            c
            for c, of in enumerate(self.limits)
            if sum(held.values()) - held[of.choice.group] + of.most_work() >= total
        ]
        for mask in range(1 << len(sieve.used)):
            others = sum(held[g] for g in sieve.used if not mask & sieve.bit[g])
            self._reach.append(int(np.searchsorted(work, others * _ALLOWANCE + 1e-300, side="right")) - 1)
        return sum(held.values()) >= total

    def _add_block(self, mask: int, c: int) -> None:
        choice, entering = self.sieve.choices[c], self.entering(mask, c)
        if entering is None:
            return
        whole = mask | self.sieve.bit[choice.group]
        best, reach = _least(self.stages(mask, c, entering)[choice.least - 1 :]), self._reach[whole]
        if best is not None and best.a <= reach:
            self.behind[whole, c] = Values(best.k, best.a, best.data[:, :, : reach + 1 - best.a])

    def stages(self, mask: int, c: int, entering: Values) -> list[Values]:
        """What one, two, ... stages of a choice in front of `entering` take, with all that lies behind them."""
        of, result = self.limits[c], []
        values: Values | None = entering
        for j in range(self.sieve.choices[c].most):
            assert values is not None
            behind = self.across(values, c, self.sieve.choices[c].group) if j else values
            values = _one_more(behind, of, self._reach[mask], self.sieve.most)
            if values is None:
                break
            result.append(values)
        return result

    def passes(self, order: Order) -> bool:
        """Whether one shape passes, looked at alone. Needs no `fill`."""
        values = self._alone(order)
        return values is not None and values.a == 0

    def _alone(self, order: Order) -> Values | None:
        """What the blocks of the end of a shape take. Ends are remembered: many shapes share them."""
        import numpy as np

        if not order:
            return Values(0, self.sieve.layers, np.zeros((3 if self.closer else 1, 1, 1)))
        if order not in self._ends:
            if len(self._ends) >= _MOST_ENDS:
                self._ends.clear()
            self._ends[order] = self._with_block(order[0], order[1:])
        return self._ends[order]

    def _with_block(self, block: tuple[int, Mode, int], rest: Order) -> Values | None:
        """The same with one more block in front."""
        group, mode, count = block
        c = self.sieve.index_of[group, mode]
        values, behind = self._alone(rest), rest[0][0] if rest else None
        for _ in range(count):
            if values is None:
                break
            if behind is not None:
                values = self.across(values, c, behind)
            values, behind = _one_more(values, self.limits[c], self.sieve.layers, self.sieve.most), group
        return values

    def across(self, values: Values, c: int, group: int) -> Values:
        """The same with the boundary in front, between a stage of choice c and one of `group` behind it; inf where the
        step would wait too long.
        """
        (k, a, data), crossing = values, self.crossing(c, group)
        return Values(k, a, data + crossing[: len(data), k : k + data.shape[1], a : a + data.shape[2]])

    def crossing(self, c: int, group: int) -> Floats:
        """Seconds of the boundary at every state, at the best degree of the group behind; inf where it is too slow. For
        each number that `Values` has.
        """
        if (c, group) not in self._crossings:
            import numpy as np

            sieve, own = self.sieve, self.sieve.choices[c].group == group
            tables = []
            for d in [c] if own else [d for d in sieve.index_of.values() if sieve.choices[d].group == group]:
                seconds, waits = sieve.transfer(c, d)
                tables.append(seconds[_WAYS, None, :] + np.where(waits > self.room, np.inf, 0.0)[None, :, None])
            self._crossings[c, group] = np.min(tables, axis=0)
        return self._crossings[c, group]

    def entering(self, mask: int, c: int) -> Values | None:
        """What lies behind a new block of choice c, the boundary included."""
        import numpy as np

        if not mask:
            return Values(0, self.sieve.layers, np.zeros((3 if self.closer else 1, 1, 1)))
        parts = [(g, self._of_group(mask, g)) for g in self.sieve.used if mask & self.sieve.bit[g]]
        return _least([self.across(values, c, g) for g, values in parts if values is not None])

    def _of_group(self, mask: int, group: int) -> Values | None:
        """What lies behind states whose first block is of a group, whatever its degree."""
        if (mask, group) not in self._by_group:
            choices = [c for c in self._useful if self.sieve.choices[c].group == group]
            found = [self.behind[mask, c] for c in choices if (mask, c) in self.behind]
            self._by_group[mask, group] = _least(found)
        return self._by_group[mask, group]


class Values(NamedTuple):
    """`data[:, i, j]` belongs to state (k + i, a + j); all other states are impossible.

    data[0]: the way of one micro-batch there and back.  At a closer look data[1], data[2]: span, tail (`CloserLimits`).
    """

    k: int
    a: int
    data: Floats

    def within(self, stages: int, layers: int) -> Floats:
        """(stages+1, layers+1) all ways."""
        import numpy as np

        table: Floats = np.full((stages + 1, layers + 1), np.inf)
        table[self.k : self.k + self.data.shape[1], self.a : self.a + self.data.shape[2]] = self.data[0]
        return table


def _least(parts: list[Values]) -> Values | None:
    """The least of several tables, number by number."""
    import numpy as np

    if len(parts) < 2:
        return parts[0] if parts else None
    k, a = min(v.k for v in parts), min(v.a for v in parts)
    stages = max(v.k + v.data.shape[1] for v in parts) - k
    layers = max(v.a + v.data.shape[2] for v in parts) - a
    result = np.full((len(parts[0].data), stages, layers), np.inf)
    for v in parts:
        part = result[:, v.k - k : v.k - k + v.data.shape[1], v.a - a : v.a - a + v.data.shape[2]]
        np.minimum(part, v.data, out=part)
    return Values(k, a, result)


def _trimmed(k: int, a: int, data: Floats) -> Values | None:
    """Without impossible states around; None when nothing is possible."""
    import numpy as np

    alive = data[0] < np.inf
    rows, columns = np.nonzero(alive.any(axis=1))[0], np.nonzero(alive.any(axis=0))[0]
    if not rows.size:
        return None
    i, j = rows[0], columns[0]
    return Values(k + int(i), a + int(j), data[:, i : rows[-1] + 1, j : columns[-1] + 1])


def _one_more(values: Values, of: StageLimits, reach: int, most: int) -> Values | None:
    """One more stage in front of what `values` says lies behind it. The row `most` holds what has more stages too."""
    import numpy as np

    (k, a, data), longest = values, len(of.time)
    numbers, rows, first = len(data), data.shape[1], max(0, a - longest)
    width = min(reach + 1, a + data.shape[2] - 1) - first
    if width <= 0 or not longest:
        return None
    padded = np.full((numbers, rows, width + longest - 1), np.inf)
    offset = a - first - 1  # of the first column, which is position first + 1
    skip = max(0, -offset)
    known = data[:, :, skip : skip + padded.shape[2] - max(0, offset)]
    padded[:, :, max(0, offset) : max(0, offset) + known.shape[2]] = known
    number, row, column = padded.strides
    shape, strides = (numbers, longest, rows, width), (number, column, row, column)
    behind: Floats = np.ndarray(shape, padded.dtype, padded, 0, strides)
    total = _stage_in_front(behind, of, (slice(None), slice(k, k + rows), slice(first, first + width)))
    if k + rows > most:
        if rows > 1:
            np.minimum(total[:, -2], total[:, -1], out=total[:, -2])
            total = total[:, :-1]
        else:
            k -= 1
    return _trimmed(k + 1, first, total)


def _stage_in_front(behind: Floats, of: StageLimits, at: tuple[slice, slice, slice]) -> Floats:
    """The least of each number over the pieces that pass; `behind` has the numbers by piece and state."""
    import numpy as np

    ways, time = behind[0], of.time[at]
    passes = ways <= of.limit[at]
    if len(behind) == 1:
        shortest: Floats = np.where(passes, ways + time, np.inf).min(axis=0)[None]
        return shortest
    rows, closer = at[1:], of.closer
    spans, tails, forward, long = behind[1], behind[2], closer.forward[:, :, at[2]], closer.long[rows[0]]
    with np.errstate(invalid="ignore"):
        waiting = ways * long
        passes &= spans <= closer.span_limit[at]
        passes &= np.maximum(closer.last[at], waiting) + tails <= closer.tail_limit[at]
        busy = closer.busy[at] + np.maximum(closer.low[at], ways) + np.maximum(closer.high[at], waiting)
        numbers = (
            ways + time,
            np.maximum(spans + time, busy),
            np.maximum(tails + forward, ways + closer.ended[at]),
        )
    result: Floats = np.array([np.where(passes, number, np.inf).min(axis=0) for number in numbers])
    return result

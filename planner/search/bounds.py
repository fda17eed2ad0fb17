"""Refutation: nodes of the tree that cannot hold all layers within a step time T, whatever the order of their groups.

For every stage of every plan with step time T (rows of cost/rows.py with s = e, weakened to depend on few numbers):

    S + C + coefficient * t_s + u <= T
        coefficient = (m - k_s) + (k_s - 1) * beta,  beta = the least share of B in t, or 1/2
    m t_s + u_s <= T
    f S + ((1 - f) + coefficient) t_s + u_s <= T      (stage s's own end, without the way out)
        f = the least share of F in t

S: time of one micro-batch through all stages; C: all transfers onward and back; u: the least update of a stage.
A stage therefore holds no more work than the largest piece of the chain within a time; if all stages together hold less
than the whole chain, the node is dead.
S itself is at least the cheapest way to spread the chain over what the stages can hold: raise S, floor again, until
nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.search.candidates import IDLE, OPEN, Node, Root
from planner.search.links import LinkFloor, waits
from planner.search.quick_bounds import rate_bound
from planner.search.stage_options import StageOptions, StairTable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode

    Floats = NDArray[np.float64]

__all__ = ["Refuter"]

_ROUNDS = 4
_FOREVER = 1e30
"""A step time that no plan needs: what is refuted at it cannot be placed at all."""
_INSTANT = 1e-12
"""Seconds: no step is shorter; layers without work have a rate bound of zero."""
_Rows = list[list[tuple["Mode", "NDArray[np.int64]"]]]
"""Of every group: a mode, and the numbers of the nodes that have it."""


class Refuter:
    """Refutes nodes of one root. Vectorised over nodes."""

    def __init__(self, root: Root) -> None:
        self.root = root
        self.num_groups = len(root.groups)
        self.total = 0.0
        self._tables: dict[tuple[int, Mode], StairTable] = {}
        self._links = LinkFloor(root)
        self._inner: dict[tuple[int, Mode], float] = {}
        self._beta: float = 0.5
        self._least_update = 0.0
        self._prepare()

    def _prepare(self) -> None:
        root = self.root
        ratios, updates, forward = [], [], []
        for g in range(self.num_groups):
            for mode in root.modes(g):
                options = root.options(g, mode)
                assert options is not None
                ratios.append(options.backward_share)
                updates.append(options.least_update)
                forward.append(options.forward_share)
        self._beta = min(ratios, default=0.5)
        self._forward = min(forward, default=0.0)
        m, most = root.micro_batches, root.stages_in_flight(root.most_stages)
        self._late_factor = (1 - self._forward) + (m - most) + (most - 1) * self._beta
        self._least_update = min(updates, default=0.0)
        self.total = root.total_work()

    def _inner_transfer(self, g: int, mode: Mode) -> float:
        if (g, mode) not in self._inner:
            self._inner[g, mode] = self._least_inner_transfer(g, mode)
        return self._inner[g, mode]

    def _least_inner_transfer(self, g: int, mode: Mode) -> float:
        return min(self.root.least_transfer(g, mode, g, mode, same).both for same in (True, False))

    def refuted(
        self, nodes: list[Node], step_time: Floats | Sequence[float] | float
    ) -> tuple[NDArray[np.bool_], Floats]:
        """Which nodes are dead at `step_time` (scalar or one a node), and each node's spare capacity over the chain's
        work (negative when dead).
        """
        import numpy as np

        n = len(nodes)
        limit = np.broadcast_to(np.asarray(step_time, dtype=float), (n,))
        rows = self._rows(nodes)
        low, high = np.array([x.low for x in nodes]), np.array([x.high for x in nodes])
        transfers, wait = self._transfer_floor(nodes, rows, low)
        through = np.zeros(n)
        dead = np.zeros(n, dtype=bool)
        spare = np.full(n, np.inf)
        for _ in range(_ROUNDS):
            room = limit - through - transfers - self._least_update
            limits = (limit, limit - self._forward * through)
            capacity, speed = self._capacities(rows, high, room, limits)
            spare = capacity.sum(axis=1) / self.total - 1.0
            previous, through = through, self._fill(capacity, speed)
            dead |= (spare < -1e-9) | (room <= 0) | (self._way(through, transfers, wait) > limit)
            if np.all((through <= previous * (1 + 1e-6)) | dead):
                break
        return dead, np.where(dead, np.minimum(spare, -1e-9), spare)

    def _rows(self, nodes: list[Node]) -> _Rows:
        """The nodes that have a group in a mode, mode by mode; idle ones left out."""
        import numpy as np

        found: list[dict[Mode, list[int]]] = [{} for _ in range(self.num_groups)]
        for i, node in enumerate(nodes):
            for g, mode in enumerate(node.modes):
                if mode != IDLE:
                    found[g].setdefault(mode, []).append(i)
        return [[(mode, np.array(rows)) for mode, rows in own.items()] for own in found]

    def bound(self, node: Node) -> float:
        """A lower bound of a node's step time: the largest refuted T to 0.4 %; inf when no T is possible (memory)."""
        if self.refuted([node], _FOREVER)[0][0]:
            return float("inf")
        low = max(rate_bound(self.root), _INSTANT)
        if low == float("inf"):
            return low
        high, factor = low * 1.02, 1.05
        while self.refuted([node], high)[0][0]:
            low, high, factor = high, high * factor, factor**2
        while high - low > 4e-3 * high:
            middle = (low * high) ** 0.5
            if self.refuted([node], middle)[0][0]:
                low = middle
            else:
                high = middle
        return low

    def memory_room(self, node: Node) -> float:
        """Work that the chips' memory holds beyond the chain's, as a share of it, time being no object."""
        return float(self.refuted([node], _FOREVER)[1][0])

    def _way(self, through: Floats, transfers: Floats, wait: Floats) -> Floats:
        """One micro-batch's way and the slowest link's wait: no step is shorter."""
        return (through + transfers + wait + self._least_update) * (1 - 1e-9)

    def _transfer_floor(self, nodes: list[Node], rows: _Rows, low: NDArray[np.int64]) -> tuple[Floats, Floats]:
        """Least round trip over all boundaries of each node, and least wait for the slowest between groups."""
        import numpy as np

        links = [self._links.of(node.modes, sum(node.high)) for node in nodes]
        total: Floats = np.array([cost.round_trip for cost in links])
        for g, own in enumerate(rows):
            for mode, at in own:
                if mode != OPEN:
                    total[at] += np.maximum(low[at, g] - 1, 0) * self._inner_transfer(g, mode)
        return total, np.array([cost.wait for cost in links])

    def _capacities(
        self, rows: _Rows, high: NDArray[np.int64], room: Floats, limits: tuple[Floats, Floats]
    ) -> tuple[Floats, Floats]:
        """(N, G) most work of each group, and least seconds per work."""
        import numpy as np

        capacity, speed = np.zeros(high.shape), np.full(high.shape, np.inf)
        stages = high.sum(axis=1)
        for g, own in enumerate(rows):
            for chosen, at in own:
                for mode in self.root.modes(g) if chosen == OPEN else (chosen,):
                    count = np.minimum(high[at, g], self.root.max_stages(g, mode))
                    behind = stages[at] - high[at, g]
                    held = self._group_capacity(g, mode, count, behind, room[at], (limits[0][at], limits[1][at]))
                    capacity[at, g] = np.maximum(capacity[at, g], held)
                    options = self.root.options(g, mode)
                    assert options is not None
                    speed[at, g] = np.minimum(speed[at, g], options.least_time_per_work)
        return capacity, speed

    def _group_capacity(
        self,
        g: int,
        mode: Mode,
        count: NDArray[np.int64],
        others: NDArray[np.int64],
        room: Floats,
        limits: tuple[Floats, Floats],
    ) -> Floats:
        """Most work of `count` stages of one group: stage i from the group's end has i to i + others micro-batches'
        stages behind it.
        """
        import numpy as np

        options = self.root.options(g, mode)
        assert options is not None
        m, limit = self.root.micro_batches, limits[0]
        busy = self._busy_limit(options, *limits)
        index = np.arange(1, int(count.max(initial=0)) + 1)
        k = self._most_in_flight(index[None, :] + others[:, None])
        coefficient = (m - k) + (k - 1) * self._beta
        allowed = np.where(coefficient > 0, room[:, None] / np.where(coefficient > 0, coefficient, 1.0), limit[:, None])
        allowed = np.where(room[:, None] > 0, np.minimum(allowed, limit[:, None]), -1.0)
        held = self._stairs(g, mode).most_work(allowed, index[None, :] - 1)
        total: Floats = np.where(index[None, :] <= count[:, None], np.minimum(held, busy[:, None]), 0.0).sum(axis=1)
        return total

    def _stairs(self, g: int, mode: Mode) -> StairTable:
        """Staircases of a group's stages by their distance from the end of the pipeline (entry 0: the last stage)."""
        if (g, mode) not in self._tables:
            options = self.root.options(g, mode)
            assert options is not None
            counts = [_rounded_down(self.root.stages_in_flight(i)) for i in range(1, self.root.most_stages + 1)]
            self._tables[g, mode] = StairTable(options, counts)
        return self._tables[g, mode]

    def refuted_ends(self, node: Node, ends: list[tuple[int, ...]], step_time: float) -> NDArray[np.bool_]:
        """Which ends of the pipeline are dead at `step_time`, for a node with fixed counts.

        ends: the last groups of the order, in order, all equally many; whole orders are the longest ends. A group of
        the end has an exact distance from the
        pipeline's end; any other lies before it, behind none or all of the remaining groups.
        """
        import numpy as np

        active = node.active
        count = np.array([node.low[g] for g in active])
        near, far = _stages_behind(active, count, ends)
        transfers, wait = np.array([self._end_transfers(node, end) for end in ends]).T
        speed = np.array([[self._speed(g, node.modes[g]) for g in active]]).repeat(len(ends), axis=0)
        through, dead = np.zeros(len(ends)), np.zeros(len(ends), dtype=bool)
        for _ in range(_ROUNDS):
            room = step_time - through - transfers - self._least_update
            late = step_time - self._forward * through
            held = [
                self._end_capacity(g, node.modes[g], int(count[i]), (near[:, i], far[:, i]), room, step_time, late)
                for i, g in enumerate(active)
            ]
            capacity = np.stack(held, axis=1)
            previous, through = through, self._fill(capacity, speed)
            dead |= (capacity.sum(axis=1) < self.total * (1 - 1e-9)) | (room <= 0)
            dead |= self._way(through, transfers, wait) > step_time
            if np.all((through <= previous * (1 + 1e-6)) | dead):
                break
        return dead

    def _speed(self, g: int, mode: Mode) -> float:
        options = self.root.options(g, mode)
        assert options is not None
        return options.least_time_per_work

    def _busy_limit(self, options: StageOptions, limit: Floats, late: Floats) -> Floats:
        """Most work of a stage by its own end: busy with m micro-batches, or behind the others, and then its update."""
        import numpy as np

        busy = options.busy_staircase(self.root.micro_batches).most_work(limit)
        behind = options.busy_staircase(self._late_factor).most_work(late)
        result: Floats = np.minimum(busy, behind)
        return result

    def _end_transfers(self, node: Node, end: tuple[int, ...]) -> tuple[float, float]:
        """Least round trip over all boundaries and wait for the slowest, exact between the groups of the end."""
        cost = self._links.of(node.modes, sum(node.low))
        inside = sum((node.low[g] - 1) * self._inner_transfer(g, node.modes[g]) for g in node.active)
        known, wait, behind = 0.0, cost.wait, 0
        for g, h in reversed(list(pairwise(end))):
            behind += node.low[h]
            least = self.root.least_transfer(g, node.modes[g], h, node.modes[h], False)
            known += least.both
            wait = max(wait, waits(self.root, least.onward, least.back, behind))
        return inside + max(cost.round_trip, known), wait

    def _end_capacity(
        self,
        g: int,
        mode: Mode,
        count: int,
        behind: tuple[NDArray[np.int64], NDArray[np.int64]],
        room: Floats,
        step_time: float,
        late: Floats,
    ) -> Floats:
        """Most work of a group with at least behind[0] and at most behind[1] stages behind it: memory at the nearest,
        time at the farthest.
        """
        import numpy as np

        index = np.arange(1, count + 1)[None, :]
        k = self._most_in_flight(behind[1][:, None] + index)
        coefficient = (self.root.micro_batches - k) + (k - 1) * self._beta
        allowed = np.where(coefficient > 0, room[:, None] / np.where(coefficient > 0, coefficient, 1.0), step_time)
        allowed = np.where(room[:, None] > 0, np.minimum(allowed, step_time), -1.0)
        stairs = self._stairs(g, mode).most_work(allowed, behind[0][:, None] + index - 1)
        options = self.root.options(g, mode)
        assert options is not None
        busy = self._busy_limit(options, np.full(len(late), step_time), late)
        held: Floats = np.minimum(stairs, busy[:, None]).sum(axis=1)
        return held

    def _most_in_flight(self, distance: NDArray[np.int64]) -> NDArray[np.int64]:
        import numpy as np

        m = self.root.micro_batches
        if self.root.schedule == "gpipe":
            return np.full(distance.shape, m)
        return np.minimum(m, distance if self.root.schedule == "1f1b" else 2 * distance - 1)

    def _fill(self, capacity: Floats, speed: Floats) -> Floats:
        """Least seconds of one micro-batch through all stages: the groups with the least seconds per work first."""
        import numpy as np

        order = np.argsort(speed, axis=1, kind="stable")
        held = np.take_along_axis(capacity, order, axis=1)
        seconds = np.take_along_axis(speed, order, axis=1)
        before = np.concatenate([np.zeros((len(held), 1)), np.cumsum(held, axis=1)[:, :-1]], axis=1)
        used = np.clip(self.total - before, 0.0, held)
        result: Floats = (used * np.where(used > 0, seconds, 0.0)).sum(axis=1)
        return result


def _rounded_down(in_flight: int) -> int:
    """Fewer micro-batches in flight need less memory, so a smaller count keeps the bound valid: exact up to 8, then in
    steps of an eighth of the power of two below.
    """
    step = 1 << max(0, in_flight.bit_length() - 4)
    return in_flight // step * step


def _stages_behind(
    active: list[int], count: NDArray[np.int64], ends: list[tuple[int, ...]]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(ends, groups) least and most stages behind each active group."""
    import numpy as np

    total = int(count.sum())
    near = np.zeros((len(ends), len(active)), dtype=np.int64)
    far = np.zeros_like(near)
    stages = dict(zip(active, count.tolist(), strict=True))
    for row, end in enumerate(ends):
        behind = 0
        placed = {}
        for g in reversed(end):
            placed[g] = behind
            behind += stages[g]
        for i, g in enumerate(active):
            near[row, i] = placed.get(g, behind)
            far[row, i] = placed.get(g, total - stages[g])
    return near, far

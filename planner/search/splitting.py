"""Splitting the chain over the stages of a leaf by dynamic programming: a bound of the leaf, and the split to start
from.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from planner.search.candidates import least_transfer
from planner.search.leaf import Leaf, Split
from planner.search.links import waits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Splitter", "choose_policies"]

_ROUNDS = 6
_REPAIRS = 12
_HEAVY_UPDATE = 0.003
"""Share of the step time from which an average stage's update is worth a row of its own."""
_SLOW_LINK = 0.02
"""Share of a round trip between two stages from which a link's transfers are worth their own row."""


class Splitter:
    """Finds, for a step time T, the split with the least time of one micro-batch among those whose stages pass the rows
    of T.

    Rows as in search/bounds.py, with the stages' exact in-flight counts, pieces and transfers; recompute still relaxed.
    When no split passes, no plan of this
    leaf reaches T; the time of one micro-batch is raised to the least found and the rows floored again, until nothing
    changes.
    """

    def __init__(self, leaf: Leaf) -> None:
        self.leaf = leaf
        m = leaf.micro_batches
        self.layers = leaf.root.intervals.num_layers
        self.pinned = leaf.root.limits.layers_per_stage
        self._banned: dict[int, NDArray[np.bool_]] = {}
        self.options = [leaf.options(s) for s in range(leaf.num_stages)]
        self.beta = min(options.backward_share for options in self.options)
        self.coefficient = [(m - k) + (k - 1) * self.beta for k in leaf.in_flight]
        self._least = [least_transfer(table, leaf.root.intervals) for table in leaf.transfers]
        self.transfers = sum(least.both for least in self._least)
        self.least_update = self.options[0].least_update
        self.forward = min(options.forward_share for options in self.options)
        self._updates = max(options.most_update for options in self.options) / leaf.num_stages
        self.wait = max((self._wait(j) for j in range(leaf.num_stages - 1)), default=0.0)

    def _wait(self, j: int) -> float:
        """What the boundary after stage j adds to one micro-batch's way."""
        nearest = self.leaf.num_stages - 1 - j
        return waits(self.leaf.root, self._least[j].onward, self._least[j].back, nearest)

    def split_within(self, step_time: float) -> tuple[int, ...] | None:
        """Stage ends of the best split that passes the rows of `step_time`; None: no plan of this leaf reaches it."""
        through = 0.0
        ends: tuple[int, ...] | None = None
        for _ in range(_ROUNDS):
            room = step_time - self.transfers - self.least_update - through
            if room < 0:
                return None
            found = self._cheapest(step_time, room)
            if found is None:
                return None
            total, ends = found
            if total <= through * (1 + 1e-9):
                break
            through = total
            if through + self.transfers + self.wait + self.least_update > step_time * (1 + 1e-9):
                return None
        return ends

    def _cheapest(self, step_time: float, room: float) -> tuple[float, tuple[int, ...]] | None:
        """Forward over the stages: `total[n-1, b]` is the least time of stages 0..s when stage s holds the n layers
        that end at b.
        """
        import numpy as np

        best = np.full(self.layers + 1, np.inf)
        best[0] = 0.0
        totals: list[Floats] = []
        pieces = [self._usable(s, step_time, room) for s in range(self.leaf.num_stages)]
        if not all(len(time) for time, _ in pieces):
            return None
        times = [time for time, _ in pieces]
        after = self._least_after(pieces) if self._updates > _HEAVY_UPDATE * step_time else None
        for s, (time, usable) in enumerate(pieces):
            starts = self.leaf.root.intervals.starts[: len(time)]
            if after is not None:
                possible = np.where(usable, time, 0.0)
                usable = usable & (self._own_end(s, possible, best[starts], after[s]) <= step_time * (1 + 1e-9))
            pair = self._pair_room(s - 1, room) if s else np.inf
            before = best[starts] if pair == np.inf else _least_within(totals[-1], times[s - 1], starts, pair - time)
            totals.append(np.where(usable, before + time, np.inf))
            best = totals[-1].min(axis=0)
        if not np.isfinite(best[-1]):
            return None
        return float(best[-1]), self._trace(totals, times, room)

    def _least_after(self, pieces: list[tuple[Floats, NDArray[np.bool_]]]) -> list[Floats]:
        """For every stage: the least time of the stages after it, by the position where it ends."""
        import numpy as np

        after = np.full(self.layers + 1, np.inf)
        after[-1] = 0.0
        result = [after]
        for time, usable in reversed(pieces[1:]):
            total = np.where(usable, time + after[None, :], np.inf)
            before = np.full(self.layers + 1, np.inf)
            for n in range(1, len(time) + 1):
                ends = slice(n, self.layers + 1)
                starts = slice(0, self.layers + 1 - n)
                before[starts] = np.minimum(before[starts], total[n - 1, ends])
            after = before
            result.append(after)
        return list(reversed(result))

    def _own_end(self, s: int, time: Floats, before: Floats, after: Floats) -> Floats:
        """When stage s ends its update at the earliest: its row (cost/rows.py, s = e) with the exit at s.

        before, after: least times of the stages in front and behind; F >= f t and B >= beta t of every stage.
        """
        import numpy as np

        m, k, f = self.leaf.micro_batches, self.leaf.in_flight[s], self.forward
        way_in = f * before + sum(least.onward for least in self._least[:s])
        x = after[None, :] + sum(least.both for least in self._least[s:])
        if m > k:
            inner = (m - k + 1) * time + np.maximum((k - 1) * f * time, x) + np.maximum((k - 1) * self.beta * time, x)
        else:
            inner = m * time + np.maximum(x - (m - 1) * (1 - max(f, self.beta)) * time, 0.0)
        result: Floats = way_in + inner + self.options[s].update_band()[: len(time)]
        return result

    def _trace(self, totals: list[Floats], times: list[Floats], room: float) -> tuple[int, ...]:
        import numpy as np

        position, allowed, ends = self.layers, np.inf, []
        for s in reversed(range(self.leaf.num_stages)):
            column = np.where(times[s][:, position] <= allowed, totals[s][:, position], np.inf)
            n = int(column.argmin())
            ends.append(position)
            allowed = self._pair_room(s - 1, room) - times[s][n, position] if s else np.inf
            position -= n + 1
        return tuple(reversed(ends))

    def _pair_room(self, j: int, room: float) -> float:
        """Most time of the two stages at boundary j together, when a slow link makes their window bind; else inf.

        S + C + floor((m - k_e) / d) (t_j + t_{j+1} + c + c') + u <= T
        with d = k_j - k_{j+1} + 1, k_e = k_{j+1}, for m > k_j
        """
        m, k_s, k_e = self.leaf.micro_batches, self.leaf.in_flight[j], self.leaf.in_flight[j + 1]
        rounds = (m - k_e) // (k_s - k_e + 1) if m > k_s else 0
        if not rounds or self._least[j].both < _SLOW_LINK * room / rounds:
            return float("inf")
        return room / rounds * (1 + 1e-9) - self._least[j].both

    def _usable(self, s: int, step_time: float, room: float) -> tuple[Floats, NDArray[np.bool_]]:
        """Times (layers, end) of the pieces that can be short enough, and which of them pass stage s's rows."""
        options, k = self.options[s], self.leaf.in_flight[s]
        allowed = room / self.coefficient[s] if self.coefficient[s] > 0 else step_time
        allowed = min(allowed, step_time) * (1 + 1e-9)
        most = options.most_layers(k, allowed)
        times = options.band(k)[:most]
        busy = options.busy_band(k, self.leaf.micro_batches)[:most]
        usable = (times <= allowed) & (busy <= step_time * (1 + 1e-9))
        if s in self._banned:
            usable &= ~self._banned[s][:most]
        if self.pinned is not None:
            self._pin(s, usable)
        return times, usable

    def _pin(self, s: int, usable: NDArray[np.bool_]) -> None:
        assert self.pinned is not None
        layers = self.pinned[s] if s < len(self.pinned) else 0
        end = sum(self.pinned[: s + 1])
        keep = bool(0 < layers <= len(usable) and usable[layers - 1, end])
        usable[:] = False
        if keep:
            usable[layers - 1, end] = True

    def reachable_ends(self, step_time: float) -> list[tuple[int, int]] | None:
        """Least and most end of every stage over all splits whose stages pass the rows of `step_time`."""
        import numpy as np

        ends = self.split_within(step_time)
        if ends is None:
            return None
        room = max(0.0, step_time - self.transfers - self.least_update - self._through(ends))
        usable = [self._usable(s, step_time, room)[1] for s in range(self.leaf.num_stages)]
        starts = self.leaf.root.intervals.starts
        ahead: list[NDArray[np.bool_]] = [np.zeros(self.layers + 1, dtype=bool)]
        ahead[0][0] = True
        for mask in usable:
            reached = ahead[-1][starts[: len(mask)]] & mask
            ahead.append(np.asarray(reached.any(axis=0)))
        behind = np.zeros(self.layers + 1, dtype=bool)
        behind[-1] = True
        windows: list[tuple[int, int]] = []
        for s in reversed(range(self.leaf.num_stages)):
            both = np.nonzero(ahead[s + 1] & behind)[0]
            if not both.size:
                return None
            windows.append((int(both[0]), int(both[-1])))
            before = np.zeros(self.layers + 1, dtype=bool)
            for n in range(1, len(usable[s]) + 1):
                before[: self.layers + 1 - n] |= usable[s][n - 1, n:] & behind[n:]
            behind = before
        return list(reversed(windows))

    def _through(self, ends: tuple[int, ...]) -> float:
        starts = (0, *ends[:-1])
        total = 0.0
        for s, (a, b) in enumerate(zip(starts, ends, strict=True)):
            total += float(self.options[s].band(self.leaf.in_flight[s])[b - a - 1, b])
        return total

    def bound(self, lower: float, upper: float, tolerance: float = 1e-4) -> tuple[float, tuple[int, ...] | None]:
        """The largest T found that no split reaches (between lower and upper), and a split for the least T found that
        one does.
        """
        ends = self.split_within(upper)
        if ends is None:
            return upper, None
        while upper - lower > tolerance * upper:
            middle = (lower + upper) / 2
            found = self.split_within(middle)
            if found is None:
                lower = middle
            else:
                upper, ends = middle, found
        return lower, ends

    def complete(self, ends: tuple[int, ...]) -> Split | None:
        """Whole-layer recompute choices for given stage ends; None when a stage does not fit with whole layers."""
        policies = []
        for s, received in enumerate(self.leaf.received(ends)):
            first = ends[s - 1] if s else 0
            counts = self.leaf.root.intervals.prefix[ends[s]] - self.leaf.root.intervals.prefix[first]
            chosen = choose_policies(self.leaf, s, tuple(int(c) for c in counts), received)
            if chosen is None:
                return None
            policies.append(chosen)
        return Split(ends, tuple(policies))

    def find_split(self, step_time: float, ends: tuple[int, ...]) -> Split | None:
        """A split with whole layers for `ends`, or near them: pieces that do not fit with whole layers are left out and
        the rows of `step_time` solved again, a few times. Proves nothing.
        """
        candidate: tuple[int, ...] | None = ends
        try:
            for _ in range(_REPAIRS):
                if candidate is None:
                    return None
                split = self.complete(candidate)
                if split is not None:
                    return split
                self._ban(candidate)
                candidate = self.split_within(step_time)
        finally:
            self._banned.clear()
        return None

    def _ban(self, ends: tuple[int, ...]) -> None:
        intervals = self.leaf.root.intervals
        received = self.leaf.received(ends)
        for s, (a, b) in enumerate(pairwise((0, *ends))):
            counts = intervals.prefix[b] - intervals.prefix[a]
            if choose_policies(self.leaf, s, tuple(int(c) for c in counts), received[s]) is None:
                same = intervals.band == intervals.index[a, b]
                self._banned[s] = self._banned[s] | same if s in self._banned else same


def _least_within(total: Floats, time: Floats, starts: NDArray[np.int64], allowed: Floats) -> Floats:
    """For pieces that start at `starts` and leave `allowed` to the stage before: the least of its totals among pieces
    that end there in that time.
    """
    import numpy as np

    fits = time[:, starts] <= allowed[None, :, :]
    result: Floats = np.where(fits, total[:, starts], np.inf).min(axis=0)
    return result


def choose_policies(
    leaf: Leaf, stage: int, counts: tuple[int, ...], received: float = 0.0
) -> tuple[tuple[int, ...], ...] | None:
    """A whole number of layers per kind and recompute policy that fits the stage; None when none is found.

    received: elements that the stage receives (`Leaf.received`).
    Cheapest exchanges first; if that fails, everything at its most frugal and back towards the fastest while it fits.
    """
    import numpy as np

    table, options = leaf.table(stage), leaf.options(stage)
    num_policies = table.recompute_s.shape[0]
    fastest = table.added_s.argmin(axis=0)
    chosen = [[0] * num_policies for _ in counts]
    for k, n in enumerate(counts):
        chosen[k][int(fastest[k])] = n
    exchanges = options.whole_exchanges()
    for step in (*exchanges, *options.exchanges_on_chip):
        _exchange(leaf, stage, chosen, step, received)
    if leaf.fits(stage, _frozen(chosen), received):
        return _frozen(chosen)
    if table.offload is None:
        return _from_frugal(leaf, stage, chosen, exchanges, received)
    on_chip = np.where(table.offload.host_bytes > 0, np.inf, table.added_s).argmin(axis=0)
    for first, steps in ((on_chip, options.exchanges_on_chip), (fastest, exchanges)):
        chosen = [[n if q == first[k] else 0 for q in range(num_policies)] for k, n in enumerate(counts)]
        found = _from_frugal(leaf, stage, chosen, steps, received)
        if found is not None:
            return found
    return None


def _from_frugal(
    leaf: Leaf, stage: int, chosen: list[list[int]], exchanges: Sequence[tuple[int, int, int]], received: float
) -> tuple[tuple[int, ...], ...] | None:
    """Every exchange made, and taken back layer by layer while the stage fits; None when it never does."""
    for kind, source, target in exchanges:
        chosen[kind][target] += chosen[kind][source]
        chosen[kind][source] = 0
    if not leaf.fits(stage, _frozen(chosen), received):
        return None
    for kind, source, target in reversed(exchanges):
        while chosen[kind][target]:
            chosen[kind][target] -= 1
            chosen[kind][source] += 1
            if not leaf.fits(stage, _frozen(chosen), received):
                chosen[kind][target] += 1
                chosen[kind][source] -= 1
                break
    return _frozen(chosen)


def _frozen(chosen: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(row) for row in chosen)


def _exchange(leaf: Leaf, stage: int, chosen: list[list[int]], step: tuple[int, int, int], received: float) -> None:
    """Move layers of a kind from one policy to the next until the stage fits or none is left."""
    kind, source, target = step
    table = leaf.table(stage)
    freed = float(table.saved_bytes[source, kind] - table.saved_bytes[target, kind]) * leaf.in_flight[stage]
    while chosen[kind][source]:
        missing = leaf.peak_bytes(stage, _frozen(chosen), received) - table.usable_bytes
        if missing <= 0:
            return
        n = min(chosen[kind][source], max(1, int(missing / freed)), _host_room(leaf, stage, chosen, step))
        if n < 1:
            return
        chosen[kind][source] -= n
        chosen[kind][target] += n


def _host_room(leaf: Leaf, stage: int, chosen: list[list[int]], step: tuple[int, int, int]) -> int:
    """Layers whose exchange the host's memory still has room for."""
    kind, source, target = step
    table = leaf.table(stage)
    host, usable = table.offload, table.usable_host_bytes
    if host is None or usable == float("inf"):
        return sum(chosen[kind])
    more = leaf.in_flight[stage] * float(host.host_bytes[target, kind] - host.host_bytes[source, kind])
    left = usable - leaf.host_bytes(stage, _frozen(chosen))
    return sum(chosen[kind]) if more <= 0 else max(0, int(left / more))

"""What one stage can hold on one chip type: the least time of every piece of the chain under the memory limit.

Recompute counts are relaxed to fractions here, and every layer's working set to that of its most frugal policy, so the
times are
lower bounds; the stage program and the checker decide with whole layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import LayerTable
    from planner.search.intervals import Intervals

    Floats = NDArray[np.float64]

__all__ = ["StageOptions", "StairTable", "Staircase"]


class _Exchange(NamedTuple):
    """Trading time for memory in layers of one kind: seconds and bytes (per micro-batch in flight) per layer."""

    kind: int
    source: int
    target: int
    seconds: float
    saved_bytes: float


class Staircase(NamedTuple):
    """The most work a stage can hold within a time: `work[i]` is reached at `time[i]`; both ascend, the first entry is
    (-inf, 0).
    """

    time: Floats
    work: Floats

    def most_work(self, time: Floats | float) -> Floats:
        """Work reachable within `time` (vectorised)."""
        import numpy as np

        result: Floats = self.work[np.searchsorted(self.time, time, side="right") - 1]
        return result


class StageOptions:
    """Times of all pieces for one layer table.

    work: (K,) the yardstick of each kind, equal for all chips of a candidate family: what all stages together must
    hold.
    """

    def __init__(self, table: LayerTable, intervals: Intervals, work: Floats) -> None:
        import numpy as np

        self.table, self.intervals = table, intervals
        counts = intervals.counts.astype(float)
        self._added = table.added_s
        self._cheapest = self._added.argmin(axis=0)
        kinds = np.arange(counts.shape[1])
        base = table.forward_s + table.backward_input_s + table.backward_weight_s
        self._base_recompute = self._added[self._cheapest, kinds]
        self.layer_time: Floats = base + self._base_recompute
        self._saved = table.saved_bytes[self._cheapest, kinds]
        self._counts = counts
        self.work: Floats = counts @ work
        self.update: Floats = counts @ (table.reduction_s + table.optimizer_s) + table.fixed_update_s
        self.forward: Floats = counts @ table.forward_s
        self.waits: tuple[Floats, Floats] | None = None
        """The most that policies add to the forward pass of each piece, and its time without (s); None where they only
        add to the backward one."""
        if table.offload is not None:
            least = base + table.recompute_s.min(axis=0)
            self.waits = counts @ table.offload.forward_s.max(axis=0), counts @ least
        self._plain_time: Floats = counts @ self.layer_time
        static = counts @ table.static_bytes + table.fixed_bytes
        present = counts > 0
        base, least = table.transient_bytes[self._cheapest, kinds], table.transient_bytes.min(axis=0)
        self._exchanges = self._find_exchanges()
        self._room: Floats = table.usable_bytes - static - np.where(present, base[None, :], 0.0).max(axis=1)
        working_set = np.maximum(np.where(present, least[None, :], 0.0).max(axis=1), self._least_recompute_set(present))
        self._tight_room: Floats = table.usable_bytes - static - working_set
        beyond = _too_much_off_chip(table, counts)
        self._room[beyond] = self._tight_room[beyond] = -np.inf
        self._unbound_times: Floats = np.append(self._plain_time, np.inf)
        self._times: dict[int, Floats] = {}
        self._stairs: dict[tuple[int, float], Staircase] = {}
        self._bands: dict[tuple[int, int], Floats] = {}
        self._fastest: dict[int, Floats] = {}
        self.chosen: dict[tuple[int, tuple[int, ...]], tuple[tuple[int, ...], ...] | None] = {}
        """Recompute choices made before, by micro-batches in flight and layers of each kind; None: nothing fits."""

    @cached_property
    def backward_share(self) -> float:
        """The least share of the backward pass in a layer's time, at least 1/2: max(F, B) >= share x t for every stage,
        recompute or not.
        """
        import numpy as np

        table = self.table
        total = table.forward_s + table.backward_input_s + table.backward_weight_s
        busy = total > 0
        backward = table.backward_input_s + table.backward_weight_s
        share = backward[busy] / total[busy]
        if table.offload is not None and share.size:
            slower = (backward + table.recompute_s)[:, busy] / (total + table.added_s)[:, busy]
            share = np.minimum(share, slower.min(axis=0))
        return max(0.5, float(share.min())) if share.size else 0.5

    @cached_property
    def forward_share(self) -> float:
        """The least share of the forward pass in a layer's time, with the recompute that takes longest."""
        table = self.table
        total = table.forward_s + table.backward_input_s + table.backward_weight_s + table.recompute_s.max(axis=0)
        busy = total > 0
        share = table.forward_s[busy] / total[busy]
        return float(share.min()) if share.size else 0.0

    @cached_property
    def most_update(self) -> float:
        """The update of the whole chain on one stage."""
        return float(self.update.max())

    @cached_property
    def least_update(self) -> float:
        """The least update of any piece."""
        return float(self.update.min())

    def whole_exchanges(self) -> list[tuple[int, int, int]]:
        """(kind, policy before, policy after) of the exchanges, cheapest second per byte first."""
        return [(e.kind, e.source, e.target) for e in self._exchanges]

    @cached_property
    def exchanges_on_chip(self) -> list[tuple[int, int, int]]:
        """The same without policies that take host memory; empty where there are none."""
        host = self.table.offload
        if host is None:
            return []
        found = self._find_exchanges(host.host_bytes > 0)
        return [(e.kind, e.source, e.target) for e in found]

    def _find_exchanges(self, left_out: NDArray[np.bool_] | None = None) -> list[_Exchange]:
        """Recompute steps along each kind's lower convex hull of (saved bytes, seconds), cheapest second per byte
        first. left_out: (Q, K) policies that are none to change to.
        """
        import numpy as np

        steps: list[_Exchange] = []
        recompute, saved = self._added, self.table.saved_bytes
        for kind in range(recompute.shape[1]):
            first = recompute[:, kind] if left_out is None else np.where(left_out[:, kind], np.inf, recompute[:, kind])
            point = int(first.argmin())
            while True:
                best: tuple[float, int] | None = None
                for q in range(recompute.shape[0]):
                    freed = saved[point, kind] - saved[q, kind]
                    if freed > 0 and (left_out is None or not left_out[q, kind]):
                        slope = (recompute[q, kind] - recompute[point, kind]) / freed
                        if best is None or (slope, -freed) < (best[0], -(saved[point, kind] - saved[best[1], kind])):
                            best = (slope, q)
                if best is None:
                    break
                q = best[1]
                steps.append(
                    _Exchange(
                        kind,
                        point,
                        q,
                        float(recompute[q, kind] - recompute[point, kind]),
                        float(saved[point, kind] - saved[q, kind]),
                    )
                )
                point = q
        return sorted(steps, key=lambda e: (e.seconds / e.saved_bytes, e.kind))

    def _least_recompute_set(self, present: NDArray[np.bool_]) -> Floats:
        """The least working set that recompute brings: some layer runs under another policy than its fastest."""
        import numpy as np

        kinds = np.arange(present.shape[1])
        frees = self.table.saved_bytes < self.table.saved_bytes[self._cheapest, kinds][None, :]
        least = np.where(frees, self.table.transient_bytes, np.inf).min(axis=0)
        smallest: Floats = np.where(present, least[None, :], np.inf).min(axis=1)
        return np.where(np.isfinite(smallest), smallest, 0.0)

    def prepare(self, in_flight: Sequence[int]) -> None:
        """Times for many in-flight counts at once; counts at which memory does not bind share one array."""
        import numpy as np

        wanted = sorted({k for k in in_flight if k not in self._times})
        if not wanted:
            return
        held = np.array(wanted, dtype=float)[:, None]
        missing = (self._counts @ self._saved)[None, :] * held - self._room[None, :]
        free = ~(missing > 0).any(axis=1)
        for k, is_free in zip(wanted, free, strict=True):
            if is_free:
                self._times[k] = self._unbound_times
        tight = held[~free]
        missing = (self._counts @ self._saved)[None, :] * tight - self._tight_room[None, :]
        recomputes = (self._counts @ self._saved)[None, :] * tight > self._room[None, :]
        missing = np.where(recomputes, missing, 0.0)
        times = np.repeat(self._plain_time[None, :], len(tight), axis=0)
        for step in self._exchanges:
            available = self._counts[:, step.kind][None, :] * (step.saved_bytes * tight)
            used = np.clip(missing, 0.0, available)
            times += used * (step.seconds / (step.saved_bytes * tight))
            missing = missing - used
        slack = 1e-9 * max(1.0, self.table.usable_bytes) if np.isfinite(self.table.usable_bytes) else 0.0
        times[missing > slack] = np.inf
        times = np.concatenate([times, np.full((len(tight), 1), np.inf)], axis=1)
        for k, row in zip(tight[:, 0], times, strict=True):
            self._times[int(k)] = row

    def times(self, in_flight: int) -> Floats:
        """(U+1,) least seconds per micro-batch of each piece with `in_flight` micro-batches held; inf where it cannot
        fit; last entry inf.
        """
        if in_flight not in self._times:
            self.prepare((in_flight,))
        return self._times[in_flight]

    def band(self, in_flight: int) -> Floats:
        """(L, L+1) times of the pieces by number of layers and end (`Intervals.band`)."""
        times = self.times(in_flight)
        key = (id(times), 0)
        if key not in self._bands:
            self._bands[key] = times[self.intervals.band]
        return self._bands[key]

    def busy_band(self, in_flight: int, micro_batches: int) -> Floats:
        """(L, L+1) `micro_batches` x time + update of the pieces."""
        key = (id(self.times(in_flight)), micro_batches)
        if key not in self._bands:
            self._bands[key] = micro_batches * self.band(in_flight) + self.update_band()
        return self._bands[key]

    def update_band(self) -> Floats:
        """(L, L+1) update seconds of the pieces."""
        import numpy as np

        if (0, 0) not in self._bands:
            self._bands[0, 0] = np.append(self.update, np.inf)[self.intervals.band]
        return self._bands[0, 0]

    def most_layers(self, in_flight: int, time: float) -> int:
        """Layers of the longest piece within a time: no piece of more layers is faster than the fastest of n."""
        import numpy as np

        times = self.times(in_flight)
        key = id(times)
        if key not in self._fastest:
            fastest = self.band(in_flight).min(axis=1)
            self._fastest[key] = np.minimum.accumulate(fastest[::-1])[::-1]
        return int(np.searchsorted(self._fastest[key], time, side="right"))

    def busy_staircase(self, factor: float) -> Staircase:
        """The most work within `factor` x time + update, memory of one micro-batch in flight."""
        key = (0, factor)
        if key not in self._stairs:
            self._stairs[key] = _staircase(factor * self.times(1)[:-1] + self.update, self.work)
        return self._stairs[key]

    @cached_property
    def least_time_per_work(self) -> float:
        """Seconds per unit of work, at best; inf when nothing fits."""
        import numpy as np

        ratio = self.times(1)[:-1] / np.maximum(self.work, 1e-300)
        return float(ratio.min()) if len(ratio) else float("inf")


class StairTable:
    """Staircases of many in-flight counts behind one look-up: entry i is the staircase of the i-th count."""

    def __init__(self, options: StageOptions, in_flight: Sequence[int]) -> None:
        import numpy as np

        options.prepare(in_flight)
        distinct: dict[int, int] = {}
        arrays: list[Floats] = []
        rows: list[int] = []
        for k in in_flight:
            times = options.times(k)
            if id(times) not in distinct:
                distinct[id(times)] = len(arrays)
                arrays.append(times[:-1])
            rows.append(distinct[id(times)])
        self._row: NDArray[np.int64] = np.array(rows, dtype=np.int64)
        time = np.array(arrays)
        order = np.argsort(time, axis=1, kind="stable")
        sorted_time = np.take_along_axis(time, order, axis=1)
        finite = np.isfinite(sorted_time)
        work = np.where(finite, options.work[order], 0.0)
        most = float(sorted_time[finite].max(initial=0.0)) or 1.0
        self._most = most
        start = np.full((len(arrays), 1), -1.0)
        levels = np.concatenate([start, np.where(finite, sorted_time / most, 1.5)], axis=1)
        self._levels = (levels + _STRIDE * np.arange(len(arrays))[:, None]).ravel()
        self._work = np.concatenate([np.zeros((len(arrays), 1)), np.maximum.accumulate(work, axis=1)], axis=1).ravel()

    def most_work(self, time: Floats, entry: NDArray[np.int64]) -> Floats:
        """Most work within each time on the staircase of each entry (arrays that broadcast). Times are allowed 1e-9 of
        the longest more.
        """
        import numpy as np

        scaled = np.clip(time / self._most + 1e-9, -0.5, 1.25) + _STRIDE * self._row[entry]
        result: Floats = self._work[np.searchsorted(self._levels, scaled, side="right") - 1]
        return result


_ALLOWANCE = 1e-9
"""Relative: sums in another order."""
_STRIDE = 4.0
"""Distance between the staircases of a table on the scaled time axis: levels lie in [-1, 1.5]."""


def _too_much_off_chip(table: LayerTable, counts: Floats) -> NDArray[np.bool_]:
    """(U,) pieces whose optimizer states are more than the host or the drives hold; activations are not counted."""
    import numpy as np

    beyond = np.full(len(counts), table.host_fixed_bytes > table.usable_host_bytes * (1 + _ALLOWANCE))
    if table.host_bytes is not None:
        on_host = counts @ table.host_bytes + table.host_fixed_bytes
        beyond |= on_host > table.usable_host_bytes * (1 + _ALLOWANCE)
    if table.nvme_bytes is not None:
        beyond |= counts @ table.nvme_bytes > table.usable_nvme_bytes * (1 + _ALLOWANCE)
    return beyond


def _staircase(time: Floats, work: Floats) -> Staircase:
    import numpy as np

    finite = np.isfinite(time)
    order = np.argsort(time[finite], kind="stable")
    sorted_time, best = time[finite][order], np.maximum.accumulate(work[finite][order]) if finite.any() else work[:0]
    return Staircase(np.concatenate([[-np.inf], sorted_time]), np.concatenate([[0.0], best]))

"""Where each stage of a leaf can end within a step time: narrows the stage program before it is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.search.leaf import Leaf
    from planner.search.splitting import Splitter

__all__ = ["Windows"]


class Windows:
    """Possible ends of every stage: `ends[s] = (least, most)` position after its last layer."""

    def __init__(self, leaf: Leaf, ends: list[tuple[int, int]]) -> None:
        self.leaf, self.ends = leaf, ends
        self.runs = leaf.root.intervals.runs

    @classmethod
    def within(cls, splitter: Splitter, step_time: float) -> Windows | None:
        """Windows of all splits that pass the rows of `step_time`; None when there is none."""
        ends = splitter.reachable_ends(step_time)
        return None if ends is None else cls(splitter.leaf, ends)

    @classmethod
    def whole(cls, leaf: Leaf) -> Windows:
        """No narrowing: any non-empty stages."""
        layers, p = leaf.root.intervals.num_layers, leaf.num_stages
        return cls(leaf, [(s + 1, layers - (p - 1 - s)) for s in range(p - 1)] + [(layers, layers)])

    def _start(self, s: int) -> tuple[int, int]:
        return self.ends[s - 1] if s else (0, 0)

    def run_bounds(self, s: int, r: int) -> tuple[int, int]:
        """Fewest and most layers of run r on stage s."""
        run = self.runs[r]
        (start_low, start_high), (end_low, end_high) = self._start(s), self.ends[s]
        most = min(end_high, run.first + run.count) - max(start_low, run.first)
        least = min(end_low, run.first + run.count) - max(start_high, run.first)
        return max(0, least), max(0, most)

    def started(self, s: int, r: int) -> int | None:
        """1 or 0 when the window decides whether run r has started by the end of stage s, else None."""
        low, high = self.ends[s]
        first = self.runs[r].first
        if low > first:
            return 1
        return 0 if high <= first else None

    def cut_may_lie_in(self, j: int, r: int) -> bool:
        """Whether the last layer before cut j can belong to run r."""
        low, high = self.ends[j]
        run = self.runs[r]
        return low <= run.first + run.count and high > run.first

    def memory_binds(self, s: int) -> bool:
        """Whether some choice within the windows could exceed the stage's memory without recompute."""
        table, k_s = self.leaf.table(s), self.leaf.in_flight[s]
        if table.offload is not None and self.host_binds(s):
            return True
        total, working = table.fixed_bytes, 0.0
        for r, run in enumerate(self.runs):
            most = self.run_bounds(s, r)[1]
            if most:
                q = int(table.added_s[:, run.kind].argmin())
                total += most * float(table.static_bytes[run.kind] + k_s * table.saved_bytes[q, run.kind])
                working = max(working, float(table.transient_bytes[q, run.kind]))
        return total + working > table.usable_bytes

    def host_binds(self, s: int) -> bool:
        """Whether some layer's fastest policy takes host memory: more than time and the chip's memory counts then."""
        table = self.leaf.table(s)
        fastest = [int(table.added_s[:, run.kind].argmin()) for run in self.runs]
        host = table.offload
        return host is not None and any(host.host_bytes[q, run.kind] for q, run in zip(fastest, self.runs, strict=True))

    def policies(self, s: int, kind: int, recompute: Any) -> tuple[int, ...]:
        """Policies worth having: all when memory may bind, else only the fastest; a policy that costs more time and
        keeps no less is left out.
        """
        if self.leaf.table(s).offload is not None:
            return self._policies_beside_offload(s, kind)
        fastest = int(recompute[:, kind].argmin())
        if not self.memory_binds(s):
            return (fastest,)
        table = self.leaf.table(s)
        keep = []
        for q in range(recompute.shape[0]):
            worse = any(
                recompute[p, kind] <= recompute[q, kind]
                and table.saved_bytes[p, kind] <= table.saved_bytes[q, kind]
                and table.transient_bytes[p, kind] <= table.transient_bytes[q, kind]
                and (
                    p < q
                    or recompute[p, kind] < recompute[q, kind]
                    or table.saved_bytes[p, kind] < table.saved_bytes[q, kind]
                )
                for p in range(recompute.shape[0])
                if p != q
            )
            if not worse:
                keep.append(q)
        return tuple(keep)

    def _policies_beside_offload(self, s: int, kind: int) -> tuple[int, ...]:
        """The same where policies add to the forward pass too, and fill host memory: no other is as good in all."""
        import numpy as np

        table = self.leaf.table(s)
        host = table.offload
        assert host is not None
        costs = [table.recompute_s[:, kind], host.forward_s[:, kind]]
        if self.memory_binds(s):
            costs += [table.saved_bytes[:, kind], table.transient_bytes[:, kind]]
            costs += [host.host_bytes[:, kind], host.staging_bytes[:, kind]]
        rows = np.array(costs).T
        keep = []
        for q, row in enumerate(rows):
            others = ((p, other) for p, other in enumerate(rows) if p != q)
            if not any((other <= row).all() and (p < q or (other < row).any()) for p, other in others):
                keep.append(q)
        return tuple(keep)

"""The step time of stages that feed each other along branches, in a time that does not grow with the micro-batches.

Between the first sweep with every stage's backward and the last one with a forward all sweeps of `run_branches` do the
same, with maxima and sums only: once all ends that later sweeps need lie where they lay some sweeps ago, but for one
shift, they do so for ever (max-plus algebra). Stages that no tensor joins have shifts of their own and are run apart.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from planner.cost.crossings import Pair

__all__ = ["long_step_time"]

_SAME = 1e-13
"""Ends that differ by less than this share of a micro-batch's way are equal: a few units in the last place."""


def long_step_time(
    forward: Sequence[float],
    backward: Sequence[float],
    update: Sequence[float],
    there: Mapping[Pair, float],
    back: Mapping[Pair, float],
    in_flight: Sequence[int],
    micro_batches: int,
) -> float:
    """As `branching_recurrence.branch_step_time`, to rounding."""
    ends = []
    for stages in _joined(len(forward), there):
        place = {s: n for n, s in enumerate(stages)}
        own = [pair for pair in there if pair[0] in place]
        run = _Run(
            [forward[s] for s in stages],
            [backward[s] for s in stages],
            {(place[a], place[b]): there[a, b] for a, b in own},
            {(place[a], place[b]): back[a, b] for a, b in own},
            [in_flight[s] for s in stages],
            micro_batches,
        )
        ends.append(run.step([update[s] for s in stages]))
    return max(ends)


def _joined(num_stages: int, pairs: Mapping[Pair, float]) -> list[list[int]]:
    """Stages that tensors join, in order."""
    label = list(range(num_stages))
    for a, b in pairs:
        old, new = max(label[a], label[b]), min(label[a], label[b])
        label = [new if x == old else x for x in label]
    return [[s for s in range(num_stages) if label[s] == x] for x in sorted(set(label))]


class _Run:
    """The sweeps of `run_branches` without their records, and without those that repeat earlier ones."""

    def __init__(
        self,
        forward: Sequence[float],
        backward: Sequence[float],
        there: Mapping[Pair, float],
        back: Mapping[Pair, float],
        in_flight: Sequence[int],
        micro_batches: int,
    ) -> None:
        self.p, self.m, self.k = len(forward), micro_batches, in_flight
        self.forward, self.backward, self.there, self.back = forward, backward, there, back
        self.feeds = [[b for b in range(s + 1, self.p) if (s, b) in there] for s in range(self.p)]
        self.fed_by = [[a for a in range(s) if (a, s) in there] for s in range(self.p)]
        self.free = [0.0] * self.p
        self.link_f, self.link_b = dict.fromkeys(there, 0.0), dict.fromkeys(there, 0.0)
        self.waiting: dict[Pair, deque[float]] = {pair: deque() for pair in there}
        self.base = 0.0
        """What was taken off all ends, so that they stay small and comparable."""
        self.scale = sum(forward) + sum(backward) + sum(there.values()) + sum(back.values())

    def step(self, update: Sequence[float]) -> float:
        i, at, power, seen_base = 0, 0, 1, 0.0
        seen: list[float] | None = None
        while i < self.m + max(self.k):
            self._sweep(i)
            i += 1
            if i < max(self.k) or i >= self.m or power == 0:
                continue
            ends = self._ends()
            if seen is not None and all(abs(x - y) <= _SAME * self.scale for x, y in zip(ends, seen, strict=True)):
                rounds = (self.m - i) // (i - at)
                self.base += rounds * (self.base - seen_base)
                i, power = i + rounds * (i - at), 0
            elif i - at >= power:
                seen, at, power, seen_base = ends, i, 2 * power, self.base
        return self.base + max(end + own for end, own in zip(self.free, update, strict=True))

    def _sweep(self, i: int) -> None:
        """One sweep, as in `run_branches`."""
        free, link_f, link_b = self.free, self.link_f, self.link_b
        for s in range(self.p - 1, -1, -1):
            if not 0 <= i - self.k[s] < self.m:
                continue
            start = free[s]
            for b in self.feeds[s]:
                start = max(start, self.waiting[s, b].popleft())
            free[s] = start + self.backward[s]
            for a in self.fed_by[s]:
                link_b[a, s] = max(link_b[a, s], free[s]) + self.back[a, s]
                self.waiting[a, s].append(link_b[a, s])
        for s in range(self.p if i < self.m else 0):
            start = free[s]
            for a in self.fed_by[s]:
                start = max(start, link_f[a, s])
            free[s] = start + self.forward[s]
            for b in self.feeds[s]:
                link_f[s, b] = max(link_f[s, b], free[s]) + self.there[s, b]

    def _ends(self) -> list[float]:
        """All ends that later sweeps need, counted from that of the first stage, which moves into `base`."""
        shift = self.free[0]
        self.base += shift
        self.free = [end - shift for end in self.free]
        for link in (self.link_f, self.link_b):
            for pair in link:
                link[pair] -= shift
        for queue in self.waiting.values():
            for n in range(len(queue)):
                queue[n] -= shift
        queued = [end for queue in self.waiting.values() for end in queue]
        return [*self.free, *self.link_f.values(), *self.link_b.values(), *queued]

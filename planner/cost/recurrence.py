"""The exact step time of a chain of stages, action by action, and its critical path.

A stage runs its actions in the order of its schedule (cost/schedule.py). A forward waits for the activations of the
stage
before, a backward for the gradients of the stage after; each direction of a link carries one transfer at a time, in the
order of the micro-batches. Sending does not occupy the stage.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

__all__ = ["ChainTimes", "Path", "StepRun", "critical_path", "run_chain", "stage_ends", "step_time"]

_MANY_MICRO_BATCHES = 4096
"""From here on `step_time` looks for what repeats."""
_SAME = 1e-13
"""Ends that differ by less than this share of a micro-batch's way are equal: a few units in the last place."""


@dataclass(frozen=True)
class ChainTimes:
    """Seconds (or any one unit) of p stages and their p-1 boundaries.

    backward: input and weight part and recompute.  update: after the stage's last action (reduction and optimizer).
    send_forward[j], send_backward[j]: the boundary between stages j and j+1.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    send_forward: Sequence[float]
    send_backward: Sequence[float]

    @property
    def num_stages(self) -> int:
        return len(self.forward)


@dataclass(frozen=True)
class StepRun:
    """When every action ends: `forward_end[s][i]`, `backward_end[s][i]`; transfers into stage s+1 and out of it
    likewise.

    step: the maximum over stages of the end of the last action plus the stage's update; `last_stage` attains it.
    """

    step: float
    last_stage: int
    forward_end: list[list[float]]
    backward_end: list[list[float]]
    arrive_forward: list[list[float]]
    arrive_backward: list[list[float]]


@dataclass(frozen=True)
class Path:
    """How often each duration lies on a path through the schedule.

    The sum is a lower bound of the step time for *every* set of stage times with the same order of actions.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    send_forward: tuple[int, ...]
    send_backward: tuple[int, ...]
    exit_stage: int

    def length(self, times: ChainTimes) -> float:
        """The path's duration under `times`, the exit stage's update included."""
        return (
            sum(n * t for n, t in zip(self.forward, times.forward, strict=True))
            + sum(n * t for n, t in zip(self.backward, times.backward, strict=True))
            + sum(n * t for n, t in zip(self.send_forward, times.send_forward, strict=True))
            + sum(n * t for n, t in zip(self.send_backward, times.send_backward, strict=True))
            + times.update[self.exit_stage]
        )


def run_chain(times: ChainTimes, in_flight: Sequence[int], micro_batches: int) -> StepRun:
    """Run all micro-batches through the chain.

    in_flight: k_s per stage, not increasing along the chain, 1 <= k_s <= micro_batches.
    One sweep a step i: backwards of micro-batch i - k_s from the last stage up, then forwards of i from the first stage
    down;
    every dependency of an action lies in an earlier sweep or earlier in the same one.
    """
    p, m = times.num_stages, micro_batches
    forward_end: list[list[float]] = [[] for _ in range(p)]
    backward_end: list[list[float]] = [[] for _ in range(p)]
    arrive_f: list[list[float]] = [[] for _ in range(p - 1)]
    arrive_b: list[list[float]] = [[] for _ in range(p - 1)]
    free = [0.0] * p
    link_f, link_b = [0.0] * p, [0.0] * p
    f, b, cf, cb = times.forward, times.backward, times.send_forward, times.send_backward
    last = p - 1
    for i in range(m + max(in_flight)):
        for s in range(last, -1, -1):
            j = i - in_flight[s]
            if j < 0 or j >= m:
                continue
            start = free[s]
            if s < last and arrive_b[s][j] > start:
                start = arrive_b[s][j]
            end = start + b[s]
            free[s] = end
            backward_end[s].append(end)
            if s:
                begin = link_b[s - 1]
                link_b[s - 1] = (end if end > begin else begin) + cb[s - 1]
                arrive_b[s - 1].append(link_b[s - 1])
        if i >= m:
            continue
        ready = 0.0
        for s in range(p):
            start = free[s] if free[s] > ready else ready
            end = start + f[s]
            free[s] = end
            forward_end[s].append(end)
            if s < last:
                begin = link_f[s]
                ready = (end if end > begin else begin) + cf[s]
                link_f[s] = ready
                arrive_f[s].append(ready)
    totals = [backward_end[s][-1] + times.update[s] for s in range(p)]
    last_stage = max(range(p), key=lambda s: totals[s])
    return StepRun(totals[last_stage], last_stage, forward_end, backward_end, arrive_f, arrive_b)


def stage_ends(times: ChainTimes, in_flight: Sequence[int], micro_batches: int) -> list[float]:
    """When each stage ends its last backward, as in `run_chain`; updates do not count."""
    p, m = times.num_stages, micro_batches
    waiting: list[deque[float]] = [deque() for _ in range(p)]
    free, link_f, link_b = [0.0] * p, [0.0] * p, [0.0] * p
    f, b, cf, cb = times.forward, times.backward, times.send_forward, times.send_backward
    last = p - 1
    for i in range(m + max(in_flight)):
        for s in range(last, -1, -1):
            if not 0 <= i - in_flight[s] < m:
                continue
            end = free[s]
            if s < last:
                ready = waiting[s].popleft()
                end = ready if ready > end else end
            free[s] = end = end + b[s]
            if s:
                begin = link_b[s - 1]
                link_b[s - 1] = end = (end if end > begin else begin) + cb[s - 1]
                waiting[s - 1].append(end)
        ready = 0.0
        for s in range(p if i < m else 0):
            end = free[s]
            free[s] = end = (end if end > ready else ready) + f[s]
            if s < last:
                begin = link_f[s]
                link_f[s] = ready = (end if end > begin else begin) + cf[s]
    return free


def step_time(times: ChainTimes, in_flight: Sequence[int], micro_batches: int) -> float:
    """The step time alone, in the unit of `times`; with many micro-batches in a time that does not grow with them."""
    if micro_batches <= _MANY_MICRO_BATCHES:
        ends = stage_ends(times, in_flight, micro_batches)
        return max(end + update for end, update in zip(ends, times.update, strict=True))
    if min(in_flight) >= micro_batches:
        return _all_in_flight(times, micro_batches)
    return _LongRun(times, in_flight, micro_batches).step()


def _all_in_flight(times: ChainTimes, micro_batches: int) -> float:
    """GPipe: all forwards, then all backwards. Each pass is a line of servers with room between them:

    end at stage s of micro-batch m = sum of the times on the way + (m - 1) * the longest of them
    The last stage turns round last, so every backward waits for its gradient and not for its stage's forwards.
    """
    p, more = times.num_stages, micro_batches - 1
    way = sum(times.forward) + sum(times.send_forward) + more * max([*times.forward, *times.send_forward])
    longest, ends = 0.0, []
    for s in reversed(range(p)):
        back = [times.backward[s]] if s == p - 1 else [times.send_backward[s], times.backward[s]]
        way, longest = way + sum(back), max(longest, *back)
        ends.append(way + more * longest + times.update[s])
    return max(ends)


class _LongRun:
    """The sweeps of `run_chain` without their records, and without those that repeat earlier ones.

    Between the first sweep with every stage's backward and the last one with a forward all sweeps do the same, with
    maxima and sums only: once all ends that later sweeps need lie where they lay `length` sweeps ago, but for one
    shift, they do so for ever (max-plus algebra: A^length x = shift + x).
    """

    def __init__(self, times: ChainTimes, in_flight: Sequence[int], micro_batches: int) -> None:
        self.times, self.k, self.m, self.p = times, in_flight, micro_batches, times.num_stages
        self.free = [0.0] * self.p
        self.link_f, self.link_b = [0.0] * (self.p - 1), [0.0] * (self.p - 1)
        self.waiting: list[deque[float]] = [deque() for _ in range(self.p - 1)]
        self.base = 0.0
        """What was taken off all ends, so that they stay small and comparable."""

    def step(self) -> float:
        i, seen, at, power = 0, None, 0, 1
        seen_base = 0.0
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
        return self.base + max(end + update for end, update in zip(self.free, self.times.update, strict=True))

    @cached_property
    def scale(self) -> float:
        """The time of one micro-batch through all stages."""
        t = self.times
        return sum(t.forward) + sum(t.backward) + sum(t.send_forward) + sum(t.send_backward)

    def _sweep(self, i: int) -> None:
        """One sweep, as in `run_chain`."""
        f, b, cf, cb, last = *self._seconds, self.p - 1
        for s in range(last, -1, -1):
            if 0 <= i - self.k[s] < self.m:
                ready = self.waiting[s].popleft() if s < last else self.free[s]
                self.free[s] = max(self.free[s], ready) + b[s]
                if s:
                    self.link_b[s - 1] = max(self.link_b[s - 1], self.free[s]) + cb[s - 1]
                    self.waiting[s - 1].append(self.link_b[s - 1])
        ready = self.free[0]
        for s in range(self.p if i < self.m else 0):
            self.free[s] = max(self.free[s], ready) + f[s]
            if s < last:
                ready = self.link_f[s] = max(self.link_f[s], self.free[s]) + cf[s]

    @property
    def _seconds(self) -> tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]:
        t = self.times
        return t.forward, t.backward, t.send_forward, t.send_backward

    def _ends(self) -> list[float]:
        """All ends that later sweeps need, counted from that of the first stage, which moves into `base`."""
        shift = self.free[0]
        self.base += shift
        for ends in (self.free, self.link_f, self.link_b, *self.waiting):
            for n, end in enumerate(ends):
                ends[n] = end - shift
        return [*self.free, *self.link_f, *self.link_b, *(end for ends in self.waiting for end in ends)]


def critical_path(times: ChainTimes, in_flight: Sequence[int], micro_batches: int, run: StepRun | None = None) -> Path:
    """A longest path through the run, walked backwards from the action that ends last.

    At each action the predecessor that ends latest is followed; its length equals the step time.
    """
    run = run or run_chain(times, in_flight, micro_batches)
    return _Walk(times, in_flight, micro_batches, run).walk()


class _Walk:
    """Walks a run backwards; one method per kind of action."""

    def __init__(self, times: ChainTimes, in_flight: Sequence[int], micro_batches: int, run: StepRun) -> None:
        self.p, self.m, self.k, self.run = times.num_stages, micro_batches, in_flight, run
        self.forward, self.backward = [0] * self.p, [0] * self.p
        self.send_forward, self.send_backward = [0] * (self.p - 1), [0] * (self.p - 1)

    def walk(self) -> Path:
        action, stage, i = "B", self.run.last_stage, self.m - 1
        while i >= 0:
            step = {"F": self._forward, "B": self._backward, "f": self._send_forward, "b": self._send_backward}
            action, stage, i = step[action](stage, i)
        return Path(
            tuple(self.forward),
            tuple(self.backward),
            tuple(self.send_forward),
            tuple(self.send_backward),
            self.run.last_stage,
        )

    def _forward(self, s: int, i: int) -> tuple[str, int, int]:
        self.forward[s] += 1
        before = ("B", s, i - self.k[s]) if i >= self.k[s] else ("F", s, i - 1)
        if s == 0:
            return before
        ends = self.run.backward_end if before[0] == "B" else self.run.forward_end
        if before[2] < 0 or self.run.arrive_forward[s - 1][i] > ends[s][before[2]]:
            return "f", s - 1, i
        return before

    def _backward(self, s: int, i: int) -> tuple[str, int, int]:
        self.backward[s] += 1
        nxt = i + self.k[s] - 1
        before = ("F", s, nxt) if nxt < self.m else ("B", s, i - 1)
        if s == self.p - 1:
            return before
        ends = self.run.backward_end if before[0] == "B" else self.run.forward_end
        if before[2] < 0 or self.run.arrive_backward[s][i] > ends[s][before[2]]:
            return "b", s, i
        return before

    def _send_forward(self, j: int, i: int) -> tuple[str, int, int]:
        self.send_forward[j] += 1
        if i > 0 and self.run.arrive_forward[j][i - 1] > self.run.forward_end[j][i]:
            return "f", j, i - 1
        return "F", j, i

    def _send_backward(self, j: int, i: int) -> tuple[str, int, int]:
        self.send_backward[j] += 1
        if i > 0 and self.run.arrive_backward[j][i - 1] > self.run.backward_end[j + 1][i]:
            return "b", j, i - 1
        return "B", j + 1, i

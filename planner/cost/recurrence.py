"""The exact step time of a chain of stages, action by action, and its critical path.

A stage runs its actions in the order of its schedule (cost/schedule.py). A forward waits for the activations of the
stage
before, a backward for the gradients of the stage after; each direction of a link carries one transfer at a time, in the
order of the micro-batches. Sending does not occupy the stage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["ChainTimes", "Path", "StepRun", "critical_path", "run_chain", "step_time"]


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


def step_time(times: ChainTimes, in_flight: Sequence[int], micro_batches: int) -> float:
    """The step time alone, in the unit of `times`."""
    return run_chain(times, in_flight, micro_batches).step


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

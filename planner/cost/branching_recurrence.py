"""The exact step time of stages that feed each other along branches, action by action, and its critical path.

As in recurrence.py, but a stage may send to any later one: a tensor that skips stages goes directly from the stage that
makes it to each stage that needs it. Per micro-batch, all that stage a sends to stage b is one transfer. Each pair of
stages has a link of its own, each direction of which carries one transfer at a time, in the order of the micro-batches.
A forward waits for the transfers of *all* stages that feed it, a backward for the gradients of all stages it fed.
Where every stage feeds just the next one this is the recurrence of a chain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.cost.branching_long import long_step_time
from planner.cost.crossings import Pair
from planner.cost.recurrence import ChainTimes, step_time

__all__ = [
    "BranchPath",
    "BranchRun",
    "BranchTimes",
    "branch_critical_path",
    "branch_step_time",
    "pairs_step_time",
    "run_branches",
]

_MANY_MICRO_BATCHES = 200
"""From here on `branch_step_time` looks for what repeats."""


@dataclass(frozen=True)
class BranchTimes:
    """Seconds (or any one unit) of p stages and of the pairs of them that feed each other.

    backward: input and weight part and recompute.  update: after the stage's last action (reduction and optimizer).
    send_forward[a, b]: activations of one micro-batch from a to b.  send_backward[a, b]: their gradients from b to a.
    A pair that is absent sends nothing and waits for nothing; a pair with time 0 does wait.
    """

    forward: Sequence[float]
    backward: Sequence[float]
    update: Sequence[float]
    send_forward: Mapping[Pair, float]
    send_backward: Mapping[Pair, float]

    @property
    def num_stages(self) -> int:
        return len(self.forward)


@dataclass(frozen=True)
class BranchRun:
    """When every action ends: `forward_end[s][i]`, `backward_end[s][i]`; transfers of a pair likewise.

    step: the maximum over stages of the end of the last action plus the stage's update; `last_stage` attains it.
    """

    step: float
    last_stage: int
    forward_end: list[list[float]]
    backward_end: list[list[float]]
    arrive_forward: dict[Pair, list[float]]
    arrive_backward: dict[Pair, list[float]]


@dataclass(frozen=True)
class BranchPath:
    """How often each duration lies on a path through the schedule.

    The sum is a lower bound of the step time for every set of stage times with the same order of actions in which the
    pairs that the path uses feed each other.  pairs: those, in order; send_forward, send_backward: their counts.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    pairs: tuple[Pair, ...]
    send_forward: tuple[int, ...]
    send_backward: tuple[int, ...]
    exit_stage: int

    def length(self, times: BranchTimes) -> float:
        """The path's duration under `times`, the exit stage's update included."""
        return (
            sum(n * t for n, t in zip(self.forward, times.forward, strict=True))
            + sum(n * t for n, t in zip(self.backward, times.backward, strict=True))
            + sum(n * times.send_forward[pair] for n, pair in zip(self.send_forward, self.pairs, strict=True))
            + sum(n * times.send_backward[pair] for n, pair in zip(self.send_backward, self.pairs, strict=True))
            + times.update[self.exit_stage]
        )


def run_branches(times: BranchTimes, in_flight: Sequence[int], micro_batches: int) -> BranchRun:
    """Run all micro-batches through the stages.

    in_flight: k_s per stage, not increasing along the stages, 1 <= k_s <= micro_batches.
    One sweep a step i: backwards of micro-batch i - k_s from the last stage up, then forwards of i from the first stage
    down. A backward of stage s waits for stages b > s, whose backward of the same micro-batch lies k_s - k_b sweeps
    before, or earlier in the same one; so every dependency is known when it is needed.
    """
    p, m = times.num_stages, micro_batches
    fed_by = [[a for a in range(s) if (a, s) in times.send_forward] for s in range(p)]
    feeds = [[b for b in range(s + 1, p) if (s, b) in times.send_forward] for s in range(p)]
    forward_end: list[list[float]] = [[] for _ in range(p)]
    backward_end: list[list[float]] = [[] for _ in range(p)]
    arrive_f: dict[Pair, list[float]] = {pair: [] for pair in sorted(times.send_forward)}
    arrive_b: dict[Pair, list[float]] = {pair: [] for pair in arrive_f}
    free = [0.0] * p
    for i in range(m + max(in_flight)):
        for s in range(p - 1, -1, -1):
            j = i - in_flight[s]
            if 0 <= j < m:
                free[s] = max([free[s], *(arrive_b[s, b][j] for b in feeds[s])]) + times.backward[s]
                backward_end[s].append(free[s])
                for a in fed_by[s]:
                    _send(arrive_b[a, s], free[s], times.send_backward[a, s])
        for s in range(p if i < m else 0):
            free[s] = max([free[s], *(arrive_f[a, s][i] for a in fed_by[s])]) + times.forward[s]
            forward_end[s].append(free[s])
            for b in feeds[s]:
                _send(arrive_f[s, b], free[s], times.send_forward[s, b])
    totals = [backward_end[s][-1] + times.update[s] for s in range(p)]
    last_stage = max(range(p), key=lambda s: totals[s])
    return BranchRun(totals[last_stage], last_stage, forward_end, backward_end, arrive_f, arrive_b)


def _send(arrivals: list[float], ready: float, time: float) -> None:
    """One more transfer on a link: after the one before it."""
    arrivals.append(max(ready, arrivals[-1] if arrivals else 0.0) + time)


def branch_step_time(times: BranchTimes, in_flight: Sequence[int], micro_batches: int) -> float:
    """The step time alone, in the unit of `times`; with many micro-batches in a time that does not grow with them."""
    if micro_batches <= _MANY_MICRO_BATCHES or min(in_flight) >= micro_batches:
        return run_branches(times, in_flight, micro_batches).step
    sends = times.send_forward, times.send_backward
    return long_step_time(times.forward, times.backward, times.update, *sends, in_flight, micro_batches)


def pairs_step_time(times: BranchTimes, in_flight: Sequence[int], micro_batches: int) -> float:
    """The same; by the recurrence of a chain where every stage feeds the next one and no other."""
    pairs = [(s, s + 1) for s in range(times.num_stages - 1)]
    if set(times.send_forward) != set(pairs):
        return branch_step_time(times, in_flight, micro_batches)
    forward, backward = [times.send_forward[p] for p in pairs], [times.send_backward[p] for p in pairs]
    chain = ChainTimes(times.forward, times.backward, times.update, forward, backward)
    return step_time(chain, in_flight, micro_batches)


def branch_critical_path(times: BranchTimes, in_flight: Sequence[int], micro_batches: int) -> BranchPath:
    """A longest path through the run, walked backwards from the action that ends last; its length is the step time."""
    run = run_branches(times, in_flight, micro_batches)
    return _Walk(times, in_flight, micro_batches, run).walk()


Action = tuple[str, int, int, int]
"""(kind, a, b, micro-batch): F and B of stage a = b, f and b transfers of the pair (a, b)."""


class _Walk:
    """Walks a run backwards: at each action to the one before it that ends latest."""

    def __init__(self, times: BranchTimes, in_flight: Sequence[int], micro_batches: int, run: BranchRun) -> None:
        self.times, self.m, self.k, self.run = times, micro_batches, in_flight, run
        self.count: dict[tuple[str, int, int], int] = {}

    def walk(self) -> BranchPath:
        exit_stage = self.run.last_stage
        action: Action | None = ("B", exit_stage, exit_stage, self.m - 1)
        while action:
            self.count[action[:3]] = self.count.get(action[:3], 0) + 1
            action = max(self._before(action), key=self._end, default=None)
        stages = range(self.times.num_stages)
        pairs = sorted({(a, b) for kind, a, b in self.count if kind in "fb"})
        return BranchPath(
            tuple(self.count.get(("F", s, s), 0) for s in stages),
            tuple(self.count.get(("B", s, s), 0) for s in stages),
            tuple(pairs),
            tuple(self.count.get(("f", *pair), 0) for pair in pairs),
            tuple(self.count.get(("b", *pair), 0) for pair in pairs),
            exit_stage,
        )

    def _end(self, action: Action) -> float:
        kind, a, b, i = action
        if kind in "FB":
            return (self.run.forward_end if kind == "F" else self.run.backward_end)[a][i]
        return (self.run.arrive_forward if kind == "f" else self.run.arrive_backward)[a, b][i]

    def _before(self, action: Action) -> list[Action]:
        """What an action waits for, the chip's or the link's own order first."""
        kind, a, b, i = action
        if kind in "fb":
            made: Action = ("F", a, a, i) if kind == "f" else ("B", b, b, i)
            return [made, *([(kind, a, b, i - 1)] if i else [])]
        pairs = [pair for pair in self.run.arrive_forward if a in pair]
        if kind == "F":
            j = i - self.k[a]
            own: list[Action] = [("B", a, a, j)] if j >= 0 else [("F", a, a, i - 1)] if i else []
            return own + [("f", *pair, i) for pair in pairs if pair[1] == a]
        following = i + self.k[a] - 1
        own = [("F", a, a, following)] if following < self.m else [("B", a, a, i - 1)] if i else []
        return own + [("b", *pair, i) for pair in pairs if pair[0] == a]

"""What a stage may hold at a distance from the pipeline's end, as thresholds on what lies behind it.

For stage s with k micro-batches in flight, t = F + B its time, x the round trip behind it, A the way in and out,
Z = S + C one micro-batch's way through the whole pipeline (cost/rows.py, window s = e; q = m - k):

    m > k:   A + (q+1) t + max((k-1) F, x) + max((k-1) B, x) + u <= T      exit at the first stage
             way in + the same + u_s <= T                                  exit at s
             way in + F + q t + max((k-1) F, x) + min(k B, f) + v <= T     exit where the longest update v is
    m = k:   A + m t + max(0, x - (m-1) min(F, B)) + u <= T                and so on

A is at least the time of the layers in front on the fastest chips, and at least Z - t - x. After its last forward
stage s has k backwards to do before any exit in front of it; behind it the last micro-batch still has all forwards f
to go. Each row rises with x, so that all of them together say: x <= limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode
    from planner.search.candidates import Root
    from planner.search.stage_options import StageOptions

    Floats = NDArray[np.float64]

__all__ = ["Choice", "Front", "StageLimits", "longest_update"]

_UPDATE_STEPS = 8


@dataclass(frozen=True)
class Choice:
    """A node group in a mode, with at most `most` stages, at least `least`."""

    group: int
    mode: Mode
    least: int
    most: int
    options: StageOptions


class Front:
    """The least that the layers in front of a position cost, on the fastest chips of the root.

    time: (L+1,) seconds of one micro-batch both ways.  forward: (L+1,) one way.  work: (L+1,) in the yardstick's unit.
    """

    def __init__(self, root: Root, choices: list[Choice]) -> None:
        import numpy as np

        prefix = root.intervals.prefix
        self.time: Floats = prefix @ np.min([c.options.layer_time for c in choices], axis=0)
        self.forward: Floats = prefix @ np.min([c.options.table.forward_s for c in choices], axis=0)
        self.work: Floats = prefix @ root.work(choices[0].group, choices[0].mode)


@dataclass(frozen=True)
class Asked:
    """What the rows are asked for.

    step_time: T.  way: no shape has a shorter way of one micro-batch.  least_update: of any stage.  most: distances
    from the end.
    """

    root: Root
    front: Front
    step_time: float
    way: float
    least_update: float
    most: int


class StageLimits:
    """Times and thresholds of every piece for one choice, within one step time.

    time[n-1, k-1, a]: seconds of the piece of n layers that starts at a, k stages from the end (1: the last stage).
    limit[n-1, k-1, a]: the most that may lie behind it; -inf where it cannot be at all.
    """

    def __init__(self, choice: Choice, asked: Asked) -> None:
        import numpy as np

        self.choice, self.asked = choice, asked
        root, options = asked.root, choice.options
        in_flight = [root.stages_in_flight(k) for k in range(1, asked.most + 1)]
        options.prepare(in_flight)
        self.longest = self._longest(in_flight)
        self._pieces = root.intervals.pieces_by_start[:, : self.longest].T[:, None, :]
        times = np.array([options.times(k) for k in in_flight])
        self.time: Floats = times[np.arange(len(in_flight))[None, :, None], self._pieces]
        self.forward: Floats = np.append(options.forward, 0.0)[self._pieces]
        self.spread: Floats | float = 0.0
        """The forward pass of a piece takes at most so much longer than `forward`, the rest of its time backward."""
        if options.waits is not None:
            wait, least = (np.append(values, 0.0)[self._pieces] for values in options.waits)
            slower = np.where(np.isfinite(self.time), self.time - least, 0.0)
            self.spread = np.clip(slower, 0.0, wait)
        self.update: Floats = np.append(options.update, np.inf)[self._pieces]
        self.in_flight: Floats = np.array(in_flight, dtype=float)[None, :, None]
        self.limit: Floats = self._limits()
        self.limit[~np.isfinite(self.time)] = -np.inf
        self._pin()

    @cached_property
    def work(self) -> Floats:
        """(n, 1, a) work of the pieces."""
        import numpy as np

        work: Floats = np.append(self.choice.options.work, 0.0)[self._pieces]
        return work

    def most_work(self, most_update: float = float("inf")) -> float:
        """Work that all stages of the choice together can hold with no longer update; the j-th from the group's end
        lies at least j stages from the pipeline's end.
        """
        import numpy as np

        possible = (self.limit >= 0) & (self.update <= most_update)
        held = np.where(possible, self.work, 0.0).max(axis=(0, 2), initial=0.0)
        farther = np.maximum.accumulate(held[::-1])[::-1]
        stages = np.minimum(np.arange(self.choice.most), len(farther) - 1)
        return float(farther[stages].sum())

    def _longest(self, in_flight: list[int]) -> int:
        """Layers of the longest piece that any stage can hold, by the rows without what lies behind."""
        asked, options, longest = self.asked, self.choice.options, 0
        m, room = asked.root.micro_batches, asked.step_time - asked.way - asked.least_update
        for k in sorted(set(in_flight)):
            factor = (m - k) + (k - 1) * options.backward_share
            allowed = min(room / factor if factor > 0 else asked.step_time, asked.step_time / m)
            longest = max(longest, options.most_layers(k, allowed * (1 + 1e-9)) if room >= 0 else 0)
        return longest

    def _limits(self) -> Floats:
        """The most that may lie behind each piece: the least of the thresholds of all rows but the last.

        They are loosest where forward and backward are as equal as they can be.
        """
        import numpy as np

        asked, k, time = self.asked, self.in_flight, self.time
        forward = np.clip(time / 2, self.forward, self.forward + self.spread)
        m, room = asked.root.micro_batches, asked.step_time - asked.least_update
        with np.errstate(invalid="ignore"):
            backward = time - forward
            long, short = np.maximum(forward, backward), np.minimum(forward, backward)
            ends = np.minimum(room - asked.front.time[:-1], asked.step_time - self.update - asked.front.forward[:-1])
            steady = ends - (m - k + 1) * time
            high = (k - 1) * long
            behind = np.where(steady <= 2 * high, steady - high, steady / 2)
            behind = np.where(steady < (k - 1) * time, -np.inf, behind)
            rest = room - asked.way - (m - k) * time
            behind = np.where(rest < high, -np.inf, np.minimum(behind, rest))
            full = ends - m * time
            few = np.where(full < 0, -np.inf, full + (m - 1) * short)
            few = np.where(room - asked.way < (m - 1) * long, -np.inf, few)
            result: Floats = np.minimum(np.where(m > k, behind, few), room - asked.front.time[:-1] - time)
        return result

    def add_update(self, longest: float) -> None:
        """Some stage's update takes at least `longest`, wherever it is."""
        import numpy as np

        asked, k, forward = self.asked, self.in_flight, self.forward
        m, layers = asked.root.micro_batches, asked.front.forward
        ends = np.minimum(np.arange(len(layers) - 1) + np.arange(1, self.longest + 1)[:, None, None], len(layers) - 1)
        with np.errstate(invalid="ignore"):
            backward = self.time - forward - self.spread
            after = np.minimum(np.where(m > k, k, m) * backward, layers[-1] - layers[ends])
            left = asked.step_time - longest - asked.front.forward[:-1] - forward - after
            rest = left - (m - k) * self.time
            behind = np.where(m > k, np.where(rest < (k - 1) * forward, -np.inf, rest), np.inf)
            behind[np.broadcast_to((m <= k) & (left < (m - 1) * forward), behind.shape)] = -np.inf
            self.limit = np.minimum(self.limit, np.where(np.isnan(behind), -np.inf, behind))

    @cached_property
    def closer(self) -> CloserLimits:
        """What the second look needs."""
        return CloserLimits(self)

    def _pin(self) -> None:
        """With pinned layers every stage has one piece."""
        import numpy as np

        pinned = self.asked.root.limits.layers_per_stage
        if pinned is None:
            return
        keep = np.zeros_like(self.limit, dtype=bool)
        longest, most, _ = keep.shape
        start = 0
        for s, layers in enumerate(pinned):
            k = len(pinned) - s
            if k <= most and layers <= longest:
                keep[layers - 1, k - 1, start] = True
            start += layers
        self.limit[~keep] = -np.inf


class CloserLimits:
    """What follows from two more numbers of the stages behind: `span`, the time from the first micro-batch's arrival to
    the last one's return, and `tail`, from the last one's arrival to the end of all updates.

    For stage s in front of them, boundary included (`long`: k micro-batches are fewer than all):
        span' = max(t + span, busy + max(low, x) + [long] max(high, x)),   way in + t + span + u_s <= T
        tail' = max(F + tail, t + x + u_s),   way in + last + [long] max(low, x) + tail <= T
    with busy, low and high of the rows above: the last forward ends `last` after s begins, or later.
    """

    def __init__(self, of: StageLimits) -> None:
        import numpy as np

        asked, k, time, forward = of.asked, of.in_flight, of.time, of.forward
        m, room = asked.root.micro_batches, asked.step_time - asked.front.forward[:-1]
        backward = time - forward
        steady = m > k
        self.long: Floats = steady[0].astype(float)
        self.forward: Floats = forward
        with np.errstate(invalid="ignore"):
            ends = np.minimum(room - of.update, asked.step_time - asked.least_update - asked.front.time[:-1])
            nearest = np.clip(time / 2, forward, forward + of.spread)
            short, backward = np.minimum(nearest, time - nearest), backward - of.spread
            self.span_limit: Floats = ends - time
            self.low: Floats = np.where(steady, (k - 1) * forward, (m - 1) * short)
            self.high: Floats = np.where(steady, (k - 1) * backward, 0.0)
            self.busy: Floats = np.where(steady, (m - k + 1) * time, m * time - (m - 1) * short)
            self.last: Floats = np.where(steady, (k - 1) * forward, 0.0)
            self.tail_limit: Floats = room - np.where(steady, forward + (m - k) * time, m * forward)
            self.ended: Floats = time + of.update


def most_held(limits: list[StageLimits], most_update: float = float("inf")) -> dict[int, float]:
    """Most work of every group, in the best of its modes."""
    held: dict[int, float] = {}
    for of in limits:
        group = of.choice.group
        held[group] = max(held.get(group, 0.0), of.most_work(most_update))
    return held


def longest_update(limits: list[StageLimits], total: float) -> float:
    """A lower bound of the longest update of a stage in any shape: with all updates below it the stages do not hold the
    total work.
    """
    low, high = 0.0, max(of.choice.options.most_update for of in limits)
    for _ in range(_UPDATE_STEPS):
        middle = (low + high) / 2
        if sum(most_held(limits, middle).values()) < total * (1 - 1e-9):
            low = middle
        else:
            high = middle
    return low

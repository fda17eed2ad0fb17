"""Moving single layers of a split from the stages that hold the step up to others, while that helps."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.recurrence import critical_path, run_chain
from planner.search.leaf import Leaf, Split
from planner.search.splitting import choose_policies

__all__ = ["polish"]

_MOST_ACTIONS = 600_000
"""Actions that all tries of one call may run; a try runs every action of a step."""
_SLOWEST = 3


def polish(leaf: Leaf, split: Split) -> Split:
    """A split of the same stages that is at least as fast."""
    step = leaf.step_time(split)
    left = _MOST_ACTIONS // max(1, 2 * leaf.num_stages * leaf.micro_batches)
    improved = left > 0
    while improved:
        improved = False
        for ends in _moves(leaf, split):
            left -= 1
            if left < 0:
                return split
            other = _changed(leaf, split, ends)
            if other is not None and leaf.step_time(other) < step * (1 - 1e-9):
                split, step, improved = other, leaf.step_time(other), True
                break
    return split


def _moves(leaf: Leaf, split: Split) -> Iterator[tuple[int, ...]]:
    """Stage ends with one layer less on a stage that is busy for long on the critical path, one more on another.

    The stages between hand a layer on, so that they keep their numbers.
    """
    times = leaf.chain_times(split)
    run = run_chain(times, leaf.in_flight, leaf.micro_batches)
    path = critical_path(times, leaf.in_flight, leaf.micro_batches, run)
    seconds = [
        n * f + m * b + (times.update[s] if s == path.exit_stage else 0.0)
        for s, (n, f, m, b) in enumerate(zip(path.forward, times.forward, path.backward, times.backward, strict=True))
    ]
    slow = sorted(range(leaf.num_stages), key=lambda s: (-seconds[s], s))[:_SLOWEST]
    for giver in slow:
        first, end = split.bounds(giver)
        if end - first < 2:
            continue
        for taker in sorted(range(leaf.num_stages), key=lambda s: (abs(s - giver), s)):
            if taker > giver:
                yield tuple(e - (giver <= s < taker) for s, e in enumerate(split.ends))
            elif taker < giver:
                yield tuple(e + (taker <= s < giver) for s, e in enumerate(split.ends))


def _changed(leaf: Leaf, split: Split, ends: tuple[int, ...]) -> Split | None:
    """The split with other ends; None when a stage does not fit any more."""
    policies, prefix = [], leaf.root.intervals.prefix
    received = leaf.received(ends)
    for s, end in enumerate(ends):
        first = ends[s - 1] if s else 0
        if (first, end) == split.bounds(s) and (not received[s] or leaf.fits(s, split.policies[s], received[s])):
            policies.append(split.policies[s])
            continue
        chosen = choose_policies(leaf, s, tuple(int(n) for n in prefix[end] - prefix[first]), received[s])
        if chosen is None:
            return None
        policies.append(chosen)
    return Split(ends, tuple(policies))

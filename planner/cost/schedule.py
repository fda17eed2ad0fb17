"""Pipeline schedules in closed form: how many micro-batches a stage holds, and the order of its actions."""

from __future__ import annotations

__all__ = ["SCHEDULES", "in_flight", "in_flight_counts", "stage_actions"]

SCHEDULES: tuple[str, ...] = ("gpipe", "1f1b", "eager_1f1b")


def in_flight(schedule: str, distance_from_end: int, micro_batches: int) -> int:
    """Micro-batches whose activations a stage holds at its peak.

    distance_from_end: p - s for stage s (0-based) of p; 1 for the last stage.
    gpipe: m.  1f1b: min(m, p-s).  eager_1f1b: min(m, 2(p-s)-1), twice the warm-up, so that a slow link is hidden.
    Source of 1F1B: Narayanan et al., arXiv 2104.04473, section 2.2.
    """
    if schedule == "gpipe":
        return micro_batches
    if schedule == "1f1b":
        return min(micro_batches, distance_from_end)
    if schedule == "eager_1f1b":
        return min(micro_batches, 2 * distance_from_end - 1)
    raise AssertionError(f"unknown schedule {schedule!r}")


def in_flight_counts(schedule: str, num_stages: int, micro_batches: int) -> tuple[int, ...]:
    """The in-flight count of every stage, first stage first."""
    return tuple(in_flight(schedule, num_stages - s, micro_batches) for s in range(num_stages))


def stage_actions(in_flight_count: int, micro_batches: int) -> list[str]:
    """The order of a stage's actions: k forwards, then backward and forward in turn, then the remaining backwards.

    All three schedules are this order with their own k; `F3` is the forward of micro-batch 3.
    """
    k = in_flight_count
    actions = [f"F{i}" for i in range(k)]
    for i in range(micro_batches):
        actions.append(f"B{i}")
        if i + k < micro_batches:
            actions.append(f"F{i + k}")
    return actions

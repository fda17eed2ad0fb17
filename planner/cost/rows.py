"""Lower bounds of the step time that are linear in the stage times, for fixed in-flight counts (design: "the step time
as linear bounds").
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.cost.recurrence import Path

__all__ = ["link_rows", "window_row_choices", "window_rows"]


class _Row:
    """A row under construction: how often each duration counts."""

    def __init__(self, num_stages: int) -> None:
        self.forward, self.backward = [0] * num_stages, [0] * num_stages
        self.send_forward, self.send_backward = [0] * (num_stages - 1), [0] * (num_stages - 1)

    def path(self, exit_stage: int) -> Path:
        return Path(
            tuple(self.forward), tuple(self.backward), tuple(self.send_forward), tuple(self.send_backward), exit_stage
        )


def _add_way(row: _Row, first: int, last: int, *, way_in: bool, way_out: bool) -> None:
    """The way of one micro-batch over stages first..last-1 and the boundaries after them."""
    for j in range(first, last):
        row.forward[j] += way_in
        row.send_forward[j] += way_in
        row.backward[j] += way_out
        row.send_backward[j] += way_out


def window_row_choices(
    micro_batches: int, in_flight: Sequence[int], first: int, last: int
) -> tuple[tuple[int, int, int], ...]:
    """Every (forward, backward, remainder) choice of the maxima in the row of the window first..last; see
    `window_rows`.
    """
    if micro_batches > in_flight[first]:
        rem = (micro_batches - in_flight[last]) % (in_flight[first] - in_flight[last] + 1)
        return tuple((a, b, r) for a in (0, 1) for b in (0, 1) for r in ((0, 1) if rem else (0,)))
    return ((0, 0, 0), (1, 0, 0), (1, 1, 0)) if first == last else ()


def window_rows(micro_batches: int, in_flight: Sequence[int], first: int, last: int) -> list[Path]:
    """Rows for the window of stages s=first..e=last, one per choice of the maxima, with the exit at stage 0 and at
    stage s.

    for m > k_s:  d = k_s - k_e + 1, W = sum_{s..e} t_j + sum_{s..e-1} (c_j + c'_j), x = R_e - t_e,
                  q = 1 + (m-k_e) // d, rem = (m-k_e) % d
        T >= A_s + q W + max((k_e-1) F_e, x) + max((k_e-1) B_e, x) + rem max(F_s, B_s)
    for m <= k_s (s = e):  T >= A_s + m t_s + max(0, x - (m-1) F_s, x - (m-1) B_s)
    A_s: the way in to stage s and out of it; R_e: the round trip from stage e to the end and back; c, c' the transfers
    onward and back.
    With the exit at stage s the way out is left out and stage s's update counts instead of stage 0's.
    """
    rows = []
    for choice in window_row_choices(micro_batches, in_flight, first, last):
        for exit_stage in {0, first}:
            row = _Row(len(in_flight))
            _add_way(row, 0, first, way_in=True, way_out=exit_stage == 0)
            if micro_batches > in_flight[first]:
                _add_steady(row, micro_batches, in_flight, first, last, choice)
            else:
                _add_short(row, micro_batches, len(in_flight), first, choice)
            rows.append(row.path(exit_stage))
    return rows


def _add_round_trip_after(row: _Row, stage: int, num_stages: int) -> None:
    """x = R_e - t_e: from the end of stage e's forward to the last stage and back to e."""
    _add_way(row, stage, num_stages - 1, way_in=True, way_out=True)
    row.forward[stage] -= stage < num_stages - 1
    row.backward[stage] -= stage < num_stages - 1
    if stage < num_stages - 1:
        row.forward[-1] += 1
        row.backward[-1] += 1


def _add_steady(row: _Row, m: int, k: Sequence[int], s: int, e: int, choice: tuple[int, int, int]) -> None:
    d = k[s] - k[e] + 1
    q, rem = 1 + (m - k[e]) // d, (m - k[e]) % d
    for j in range(s, e + 1):
        row.forward[j] += q
        row.backward[j] += q
    for j in range(s, e):
        row.send_forward[j] += q
        row.send_backward[j] += q
    if choice[0]:
        _add_round_trip_after(row, e, len(k))
    else:
        row.forward[e] += k[e] - 1
    if choice[1]:
        _add_round_trip_after(row, e, len(k))
    else:
        row.backward[e] += k[e] - 1
    if choice[2]:
        row.backward[s] += rem
    else:
        row.forward[s] += rem


def _add_short(row: _Row, m: int, num_stages: int, s: int, choice: tuple[int, int, int]) -> None:
    row.forward[s] += m
    row.backward[s] += m
    if choice[0]:
        _add_round_trip_after(row, s, num_stages)
        if choice[1]:
            row.backward[s] -= m - 1
        else:
            row.forward[s] -= m - 1


def link_rows(micro_batches: int, num_stages: int, boundary: int) -> list[Path]:
    """A link carries m transfers each way, one at a time.

    Onward: way in, m transfers, then the last micro-batch goes to the end and comes back.
    Back: the first micro-batch goes to the end and back to the boundary, then m transfers, then the way out.
    """
    rows = []
    for onward in (True, False):
        row = _Row(num_stages)
        _add_way(row, 0, num_stages - 1, way_in=True, way_out=True)
        row.forward[-1] += 1
        row.backward[-1] += 1
        (row.send_forward if onward else row.send_backward)[boundary] += micro_batches - 1
        rows.append(row.path(0))
    return rows

"""Linear lower bounds of the step time: valid for every chain, exact where the design says so."""

from __future__ import annotations

import random
import statistics

import pytest

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.rows import link_rows, window_rows
from planner.cost.schedule import in_flight_counts
from tests.cost.test_recurrence import equal_stages, random_chain


def best_row(times: ChainTimes, counts: tuple[int, ...], m: int) -> float:
    """The largest row over all windows and links."""
    p = times.num_stages
    rows = [row for s in range(p) for e in range(s, p) for row in window_rows(m, counts, s, e)]
    rows += [row for j in range(p - 1) for row in link_rows(m, p, j)]
    return max(row.length(times) for row in rows)


@pytest.mark.parametrize("first_seed", range(0, 2000, 200))
def test_no_row_is_above_the_simulated_time(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 200):
        times, counts, m = random_chain(random.Random(seed))
        assert best_row(times, counts, m) <= step_time(times, counts, m) * (1 + 1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "eager_1f1b"])
def test_in_the_median_the_rows_reach_the_simulated_time(schedule: str) -> None:
    ratios = []
    for seed in range(300):
        times, _, m = random_chain(random.Random(seed))
        counts = in_flight_counts(schedule, times.num_stages, m)
        ratios.append(best_row(times, counts, m) / step_time(times, counts, m))
    assert statistics.median(ratios) == pytest.approx(1.0)


def test_equal_stages_reach_their_row_exactly() -> None:
    counts = in_flight_counts("1f1b", 4, 16)
    assert best_row(equal_stages(4), counts, 16) == 3 * (16 + 3)

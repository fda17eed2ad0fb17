"""A yardstick for the speed of a machine: a fixed piece of work like the search's own."""

from __future__ import annotations

import time

__all__ = ["calibrate"]

_ROUNDS = 34_000
"""About a second on a core of 2024's servers."""


def calibrate() -> float:
    """Seconds of a fixed mix of interpreter and small-array work."""
    import numpy as np

    begin = time.perf_counter()
    values = np.linspace(0.0, 1.0, 4000)
    total = 0.0
    for i in range(_ROUNDS):
        order = np.searchsorted(values, values[::7] * (i % 13) / 13)
        total += float(values[np.minimum(order, 3999)].sum()) + sum(range(60))
    assert total > 0
    return time.perf_counter() - begin

"""The 1,024-chip, four-type, 100B case: certificate, time and memory of the whole command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
MOST_CALIBRATIONS = 30.0
"""The solve may take this many times the calibration loop, which takes about a second on a core of 2024's servers."""
MOST_BYTES = 2 * 2**30


def calibrate() -> float:
    """Seconds of a fixed mix of interpreter and small-array work, like the search's own."""
    begin = time.perf_counter()
    values = np.linspace(0.0, 1.0, 4000)
    total = 0.0
    for i in range(34000):
        order = np.searchsorted(values, values[::7] * (i % 13) / 13)
        total += float(values[np.minimum(order, 3999)].sum()) + sum(range(60))
    assert total > 0
    return time.perf_counter() - begin


@pytest.mark.slow
@pytest.mark.benchmarks
def test_1024_chips_of_four_types_are_planned_to_one_percent(tmp_path: Path) -> None:
    before = calibrate()
    begin = time.perf_counter()
    model = (ROOT / "configs" / "models" / "h2-100b.yaml").read_text() + "constraints: {shapes: identical}\n"
    (tmp_path / "model.yaml").write_text(model)
    command = [sys.executable, "-m", "planner", "solve", "h2-1024-reconstructed", "model.yaml", "--time-limit", "3 min"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    elapsed = time.perf_counter() - begin
    calibration = (before + calibrate()) / 2
    certificate = json.loads((tmp_path / "plan.json").read_text())["certificate"]
    peak_gib = usage.ru_maxrss / 2**20
    print(f"{elapsed:.1f} s, {elapsed / calibration:.1f} calibrations of {calibration:.2f} s, {peak_gib:.2f} GiB")
    assert process.returncode == 0
    assert certificate["why_stopped"] == "gap"
    assert certificate["gap"] <= 0.01 * (1 + 1e-9)
    assert usage.ru_maxrss * 1024 <= MOST_BYTES
    assert elapsed <= MOST_CALIBRATIONS * calibration

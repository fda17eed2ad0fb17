"""Worker processes: a program that starts them the wrong way is told so and does not hang."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planner.search.workers import PoolOfWorkers
from tests.plan.small import CLUSTER, MODEL

ROOT = Path(__file__).parents[2]
GUARD = 'if __name__ == "__main__":\n    '
ASKED = f"""
from planner import SolveOptions, solve
from planner.spec import parse_cluster, parse_model
cluster = parse_cluster({CLUSTER!r}, "c.yaml")
model = parse_model({MODEL!r} + "constraints: {{shapes: identical}}", "m.yaml")
"""
SOLVED = "print(solve(cluster, model, SolveOptions(jobs=2, gap=0.0)).why_stopped)\n"


def test_all_processes_of_a_pool_start_at_once() -> None:
    pool = PoolOfWorkers(3, abs, -1)
    try:
        assert len(pool._pool._processes) == 3
        assert [*pool.each(abs, [(-2,), (3,)], lambda: False, int)] == [2, 3]
    finally:
        pool.close()


def test_after_a_worker_was_killed_the_rest_is_done_here() -> None:
    """As when the system is short of memory; the others end with it."""
    pool = PoolOfWorkers(2, abs, -1)
    try:
        assert [*pool.each(abs, [(-2,)], lambda: False, int)] == [2]
        pool._pool._processes[0].kill()
        asked = [(-n,) for n in range(6)]
        deadline, answers = time.monotonic() + 60, list[int | None]()
        while answers != [10 + n for n in range(6)]:
            assert time.monotonic() < deadline, answers
            answers = [*pool.each(abs, asked, lambda: False, lambda n: 10 - n)]
            assert all(answer in (n, 10 + n) for n, answer in enumerate(answers)), answers
    finally:
        pool.close()


def test_workers_end_when_the_search_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    text = "import os, signal\nfrom planner.search.workers import PoolOfWorkers\n" + GUARD
    text += "pool = PoolOfWorkers(2, abs, -1); [*pool.each(abs, [(-2,), (3,)], lambda: False, abs)]; "
    text += "print(*(p.pid for p in pool._pool._processes), flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    path.write_text(text)
    ran = run(path, "")  # returns once nobody holds its standard output any more
    assert ran.returncode == -9
    assert len(ran.stdout.split()) == 2


def run(program: Path | None, text: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-" if program is None else str(program)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    given = text if program is None else None
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=120, env=environment)


@pytest.mark.parametrize("from_a_file", [True, False])
def test_workers_that_cannot_start_are_an_error_with_a_remedy(tmp_path: Path, from_a_file: bool) -> None:
    text, path = ASKED + SOLVED, tmp_path / "program.py"
    path.write_text(text)
    ran = run(path if from_a_file else None, text)
    assert ran.returncode == 1
    lines = [
        line for line in ran.stderr.splitlines() if "resource_tracker" not in line
    ]  # of the other, ended meanwhile
    assert 'below `if __name__ == "__main__":`' in lines[-1]


def test_a_guarded_program_solves_in_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(ASKED + GUARD + SOLVED)
    ran = run(path, "")
    assert (ran.returncode, ran.stdout) == (0, "gap\n"), ran.stderr

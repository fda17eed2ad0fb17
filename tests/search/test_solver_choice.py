"""The solver that is asked for solves the master program of mixes too, and its logs are in the one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.search.candidates import Limits
from planner.search.driver import SearchSettings, search
from planner.search.highs import SolverChoice, start_log
from planner.search.mixed import driver
from planner.search.mixed.driver import Start, search_mixes
from tests.search.mixed_problems import best_mix_by_enumeration, random_mixed_problem


def test_the_master_program_of_mixes_is_solved_by_the_solver_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(driver, "is_small", lambda pool: False)
    log = tmp_path / "solver.log"
    start_log(str(log), "cbc")
    problem = random_mixed_problem(1)
    found = search(problem, SearchSettings(gap=0.0, solver="cbc", solver_log=str(log)))
    start = Start(found.leaf, found.split, found.step_time)
    outcome = search_mixes(problem, Limits(), None, start, 0.0, lambda: False, solver=SolverChoice("cbc", str(log)))
    best = best_mix_by_enumeration(problem)
    assert outcome.bound <= best * (1 + 1e-9)
    assert best <= outcome.step_time * (1 + 1e-9) <= found.step_time * (1 + 2e-9)
    headings = [line for line in log.read_text().splitlines() if line.startswith("====")]
    assert {"==== prices", "==== master"} <= {line.split(":")[0] for line in headings}
    assert all(line.endswith(", cbc ====") for line in headings)

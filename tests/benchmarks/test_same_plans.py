"""Results are byte-equal for one and two worker processes, other hash seeds, with and without an older plan."""

from __future__ import annotations

import pytest

from planner.bench.cases import CASES
from tests.benchmarks.same_plans import DECIDED, GIVEN, MORE_TIME, Case, cases, compare, main

QUICK = [Case("plan", c.cluster, c.model, c.pipelines) for c in CASES if c.quick and c.name != "16-rtx"]
"""The full run (docs/bench.md) has the others."""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_quick_benchmarks_give_the_same_bytes_however_they_are_run() -> None:
    outside = [Case("peer", "opt350_8_8"), Case("graph", "bert24_training")] if GIVEN.exists() else []
    for found in compare([*QUICK, *outside], 60.0):
        assert found.first in DECIDED, str(found)
        assert (found.different, found.left_out) == ((), ()), str(found)


def test_the_family_has_all_benchmarks_both_sorts_of_pipelines_and_each_case_once() -> None:
    found = cases()
    assert len(set(found)) == len(found) > 600
    assert set(QUICK) < set(found)
    assert {case.shapes for case in found if case.kind == "plan"} == {"identical", "mixed"}


class Fake:
    """Answers in place of a process; `text` depends on what it is asked."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def ask(self, case: Case, time_limit_s: float, jobs: int = 1, older: str | None = None) -> dict[str, str]:
        assert time_limit_s in (0.5, 20.0, 20.0 * MORE_TIME)
        if case.model == "slow":
            return {"why": "time", "text": "{}"}
        return {"why": "gap", "text": f"{{{jobs if case.model == 'broken' else ''}}}"}


def test_a_difference_is_named_and_is_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    family = [Case("plan", "lab", model, "identical") for model in ("sound", "slow", "broken")]
    monkeypatch.setattr("tests.benchmarks.same_plans.cases", lambda: family)
    monkeypatch.setattr("tests.benchmarks.same_plans.Solver", Fake)
    assert main(["sound", "slow"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "same       plan lab sound identical",
        "time       plan lab slow identical",
        "1 same, 0 different, 1 not compared",
    ]
    assert main([]) == 1
    ran = capsys.readouterr()
    assert "DIFFERENT  plan lab broken identical: two processes\n" in ran.out
    assert "sha256" in ran.err

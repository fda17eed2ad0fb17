"""`dplan solve --baselines`: the plan is written first, then it is compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import planner.search.baselines
from planner import Plan, SolveResult
from planner.cli.baselines import BaselineLine, line_text
from planner.errors import InterruptedSolve
from planner.search import Progress
from planner.search.baselines import BaselineProgress, BaselineReport
from tests.cli.running import dplan
from tests.plan.small import CLUSTER, MODEL, small_plan
from tests.search.test_baselines import lab, measured


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cluster.yaml and model.yaml in the current directory."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.yaml").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, answer: Any, mixed: SolveResult | None = None) -> None:
    """Let search and comparison answer at once."""
    mixed = mixed or SolveResult(small_plan(), "gap")

    def compare(*arguments: Any, mixed: SolveResult) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(planner.search, "solve", lambda *arguments: mixed)
    monkeypatch.setattr(planner.search.baselines, "compare_baselines", compare)


def test_a_comparison_is_printed_below_the_plan(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    (files / "cluster.yaml").write_text(lab())
    (files / "model.yaml").write_text(measured())
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--baselines")
    assert ran.code == 0, ran.err
    plan, comparison = ran.out.split("\nwrote plan.json\n")
    assert plan.startswith("model on lab\n")
    assert comparison.startswith("\nwhat the plan is worth")
    for words in ("apple", "pear", "even split", "split by FLOPs", "largest memory first", "HeteroSpeedupRatio"):
        assert words in comparison
    assert max(len(line) for line in ran.out.splitlines()) <= 80
    assert Plan.load("plan.json").certificate.gap <= 0.01 * (1 + 1e-6)


def test_json_is_one_document_with_the_plan_in_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, BaselineReport(small_plan(), 12, (), ()))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--baselines", "--json")
    document = json.loads(ran.out)
    assert (ran.code, document["format"]) == (0, "dplan-baselines")
    assert Plan.model_validate(document["plan"]) == small_plan() == Plan.load("plan.json")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_interrupted_comparison_leaves_the_plan_and_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path, more: list[str]
) -> None:
    pretend(monkeypatch, InterruptedSolve("interrupted"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--baselines", *more)
    assert ran.code == 130
    assert "interrupted: the plan is in plan.json, the comparison was not finished" in ran.err
    assert Plan.load("plan.json") == small_plan()
    if more:
        assert json.loads(ran.out)["error"]["exit_code"] == 130


def test_nothing_is_compared_after_an_interrupted_search(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, AssertionError("compared"), SolveResult(small_plan(), "interrupted"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--baselines", "--json")
    assert ran.code == 130
    assert Plan.model_validate(json.loads(ran.out)) == small_plan()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--objective", "cost"], "--baselines: does not go with --objective cost"),
        (["--ignore-memory"], "--baselines: does not go with --ignore-memory"),
        (["-o", "-"], "--baselines: does not go with -o -"),
    ],
)
def test_options_that_do_not_go_together_are_refused_before_any_work(
    capsys: pytest.CaptureFixture[str], files: Path, more: list[str], words: str
) -> None:
    ran = dplan(capsys, "solve", "no.yaml", "no.yaml", "--baselines", *more)
    assert (ran.code, ran.out) == (2, "")
    assert words in ran.err


def test_the_progress_line_says_which_solve_of_how_many() -> None:
    search = Progress(50, 12, 12.3, 12.1, 0.016, 3.0)
    assert line_text(BaselineProgress("h100 alone", 3, 21)) == "3 of 21: h100 alone"
    told = BaselineProgress("h100 alone", 3, 21, search)
    assert line_text(told).startswith("3 of 21: h100 alone: step 12.3 s, bound 12.1 s, gap 1.60 %, 50 candidates")
    assert line_text(told, 50) == "3 of 21: h100 alone: step 12.3 s, gap 1.60 %, 3 s"


def test_the_progress_line_is_for_terminals_only() -> None:
    import io

    from rich.console import Console

    for terminal in (True, False):
        stream = io.StringIO()
        console = Console(file=stream, force_terminal=terminal, width=100)
        with BaselineLine(console) as line:
            line(BaselineProgress("h100 alone", 3, 21))
        assert bool(stream.getvalue()) == terminal

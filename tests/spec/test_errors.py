"""Failures: their exit codes and how they read."""

from __future__ import annotations

import pickle
from pathlib import Path

from planner import errors
from planner.cli import main
from planner.errors import DplanError, InfeasibleError, InputError, Problem


def test_each_kind_of_failure_has_its_exit_code():
    codes = {
        "DplanError": 1,
        "InputError": 2,
        "InfeasibleError": 3,
        "NoPlanFoundError": 4,
        "CheckError": 5,
        "RegressionFound": 7,
        "InterruptedSolve": 130,
    }
    assert {name: getattr(errors, name).exit_code for name in codes} == codes


def test_a_problem_reads_place_path_what_why_fix():
    problem = Problem("unknown unit 'GiX'", "", "did you mean 'GiB'?", "chips[1].memory", "configs/lab.yaml", 8, 5)
    assert problem.render() == "configs/lab.yaml:8:5: chips[1].memory: unknown unit 'GiX'; did you mean 'GiB'?"


def test_a_problem_without_a_file_is_marked_as_an_error():
    assert InputError.single("is zero", path="--gap").render() == "error: --gap: is zero"


def test_all_problems_are_shown_and_a_flood_is_cut():
    error = InputError([Problem(f"wrong {i}", file="a.yaml") for i in range(150)])
    lines = error.render().splitlines()
    assert lines[0] == "a.yaml: wrong 0"
    assert lines[-1] == "and 50 more problems"
    assert len(lines) == 101


def test_details_are_indented_below_the_message():
    error = InfeasibleError("no plan fits", "stage 1 needs 91.2 GiB")
    assert error.render() == "error: no plan fits\n  stage 1 needs 91.2 GiB"


def test_control_characters_of_a_file_never_reach_the_terminal():
    assert Problem("unknown key '\x1b[31m'", file="a\nb").render() == "a\\nb: unknown key '\\x1b[31m'"
    assert DplanError("bell \x07").render() == "error: bell \\x07"


def test_an_error_can_be_placed_at_an_option():
    assert InputError.single("is zero").at(path="--gap").problems[0].path == "--gap"


def test_errors_survive_the_way_between_processes():
    for error in (InputError.single("a", "b", "c"), InfeasibleError("no plan fits", "detail")):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert copy.render() == error.render()


def test_the_guide_and_the_help_name_the_exit_code_of_every_failure() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    kinds = [kind for name in errors.__all__ if isinstance(kind := getattr(errors, name), type)]
    codes = {kind.exit_code for kind in kinds if issubclass(kind, errors.DplanError)}
    assert {7, 130} < codes
    for code in codes:
        assert f"\n| {code} |" in guide
        assert f" {code} " in (main.root.__doc__ or "")

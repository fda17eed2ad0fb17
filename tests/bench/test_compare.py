"""A run beside a baseline: every ratio can be checked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from planner.bench.compare import compare
from planner.bench.results import Change, Limits
from tests.bench.handmade import GIB, case, failed, results


def change(now: dict[str, Any], base: dict[str, Any], **limits: float) -> Change:
    (only,) = compare(results(now), results(base), Limits(**limits)).changes
    return only


def test_a_machine_of_half_the_speed_is_no_regression() -> None:
    # baseline: 20 s at 2 s a loop = 10 loops; now: 40 s at 4 s a loop = 10 loops
    found = change(case(solve_s=40.0, calibration_s=4.0), case(solve_s=20.0, calibration_s=2.0))
    assert (found.loops_ratio, found.regressions) == (1.0, ())


def test_equal_seconds_on_a_faster_machine_are_a_regression() -> None:
    # 20 s at 1 s a loop = 20 loops, twice the baseline's 10
    found = change(case(solve_s=20.0, calibration_s=1.0), case(solve_s=20.0, calibration_s=2.0))
    assert (found.loops_ratio, found.regressions) == (2.0, ("slower",))


@pytest.mark.parametrize(
    ("field", "allowed", "refused", "regression"),
    [
        ("solve_s", 30.0, 30.2, "slower"),  # 20 s before: 1.5 and 1.51 times
        ("peak_bytes", 3 * GIB // 2, 3 * GIB // 2 + 1000, "memory"),  # 1 GiB before
        ("step_time_s", 50.05, 50.06, "plan"),  # 50 s before: +0.10 % and +0.12 %
        ("gap", 0.02, 0.0201, "gap"),  # 1 % before: 1 and 1.01 points wider
    ],
)
def test_a_limit_itself_is_allowed_and_what_passes_it_is_not(
    field: str, allowed: float, refused: float, regression: str
) -> None:
    assert change(case(**{field: allowed}), case()).regressions == ()
    assert change(case(**{field: refused}), case()).regressions == (regression,)


def test_limits_can_be_set() -> None:
    now = case(solve_s=44.0, step_time_s=51.0, gap=0.04, peak_bytes=2 * GIB)
    assert change(now, case()).regressions == ("slower", "memory", "plan", "gap")
    assert change(now, case(), slower=2.2, memory=2.0, worse=0.02, wider=0.03).regressions == ()


def test_better_is_no_regression() -> None:
    found = change(case(solve_s=10.0, step_time_s=49.0, gap=0.0, peak_bytes=GIB // 2), case())
    assert (found.loops_ratio, found.memory_ratio, found.regressions) == (0.5, 0.5, ())
    assert found.worse == pytest.approx(-0.02) and found.wider == pytest.approx(-0.01)


def test_less_than_one_loop_is_noise_whatever_the_ratio() -> None:
    # 0.5 and 1.4 loops: 2.8 times, but 0.9 loops; 0.5 and 1.6 loops: 1.1 loops
    found = change(case(solve_s=2.8), case(solve_s=1.0))
    assert found.loops_ratio == pytest.approx(2.8)
    assert (found.regressions, found.note) == ((), "slower by less than 1 loop, which is noise")
    assert change(case(solve_s=3.2), case(solve_s=1.0)).regressions == ("slower",)


def test_times_are_not_compared_with_a_baseline_that_ran_into_its_limit() -> None:
    found = change(case(solve_s=100.0, step_time_s=51.0), case(why_stopped="time"))
    assert found.loops_ratio is None and "time limit" in found.note
    assert found.regressions == ("plan",)


def test_a_case_that_now_runs_into_its_limit_is_slower() -> None:
    assert change(case(solve_s=200.0, why_stopped="time", gap=0.3), case()).regressions == ("slower", "gap")


def test_a_plan_that_is_lost_is_a_regression_and_one_that_is_won_is_not() -> None:
    assert change(failed(), case()).regressions == ("no plan",)
    assert change(case(), failed()).regressions == ()
    assert change(failed(), failed()).regressions == ()


@pytest.mark.parametrize(
    "changed",
    [
        {"cluster": "h100-64"},
        {"model": "opt-350m"},
        {"pipelines": "mixed"},
        {"time_limit_s": 60.0},
        {"gap_asked": 0.001},
        {"cluster_sha256": "e" * 64},
        {"model_sha256": "e" * 64},
    ],
)
def test_another_question_is_not_compared(changed: dict[str, Any]) -> None:
    found = change(case(solve_s=900.0, step_time_s=99.0), case(**changed))
    assert found.regressions == () and found.worse is None
    assert "changed since the baseline" in found.note


def test_cases_on_one_side_only_are_named() -> None:
    comparison = compare(results(case("new")), results(case("old")), Limits())
    assert comparison.changes == (Change(name="new", note="not in the baseline"),)
    assert comparison.not_run == ("old",)
    assert comparison.regressed == ()


def test_unknown_memory_is_not_compared() -> None:
    assert change(case(peak_bytes=None), case()).memory_ratio is None

"""The progress line: what it says, that it fits, and when it keeps silent."""

from __future__ import annotations

import io
import signal
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from planner import Progress, SolveOptions, solve
from planner.cli.progress import ProgressLine, progress_text
from planner.spec import parse_cluster, parse_model
from tests.plan.small import CLUSTER, MODEL

HALF_WAY = Progress(candidates=98, programs=113, incumbent_s=12.3456, bound_s=12.1, gap=0.01989, elapsed_s=3.2)
LARGE = Progress(50_736, 11_311, 12_345.67, 12_100.0, 0.0199, 3600.0)
PHASES = ["", "identical pipelines", "every mix", "better mixes", "bound of all mixes", "layers in the model's order"]


def test_it_names_incumbent_bound_gap_and_what_was_looked_at() -> None:
    assert progress_text(HALF_WAY) == "step 12.346 s, bound 12.1 s, gap 1.99 %, 98 candidates, 113 programs, 3 s"


def test_a_candidate_may_take_several_programs_so_that_neither_is_a_share_of_the_other() -> None:
    assert " of " not in progress_text(HALF_WAY)


def test_what_is_not_known_yet_is_left_out() -> None:
    assert progress_text(Progress(0, 0, None, None, None, 0.4)) == "no plan yet, 0 s"
    assert progress_text(Progress(4, 0, None, 2.5, None, 0.4)) == "no plan yet, bound 2.5 s, 4 candidates, 0 s"


def test_a_gap_of_a_part_of_the_plan_space_is_not_taken_for_that_of_the_whole() -> None:
    first = replace(HALF_WAY, phase="identical pipelines", whole=False)
    assert progress_text(first).startswith("identical pipelines: step 12.346 s, bound 12.1 s, gap among these 1.99 %,")
    mixes = Progress(240, 0, 12.3, 12.1, 0.0163, 9.0, "better mixes")
    assert progress_text(mixes) == "better mixes: step 12.3 s, bound 12.1 s, gap among all 1.63 %, 240 mixes, 9 s"


def test_a_search_over_mixed_shapes_says_first_that_it_speaks_of_identical_pipelines() -> None:
    told: list[Progress] = []
    cluster, model = parse_cluster(CLUSTER, "cluster.yaml"), parse_model(MODEL, "model.yaml")
    solve(cluster, model, SolveOptions(gap=0.2, time_limit_s=10), told.append)
    parts = dict.fromkeys((p.phase, p.whole) for p in told)
    assert next(iter(parts)) == ("identical pipelines", False)
    assert {phase for phase, whole in parts if whole} <= set(PHASES[2:5]) and len(parts) > 1
    told.clear()
    solve(cluster, parse_model(MODEL + "constraints: {shapes: identical}\n", "model.yaml"), None, told.append)
    assert {(p.phase, p.whole) for p in told} == {("", True)}


def test_a_small_step_forward_can_be_seen() -> None:
    """A plan that is 0.05 % better, on a step of minutes."""
    assert progress_text(replace(HALF_WAY, incumbent_s=158.76)) != progress_text(replace(HALF_WAY, incumbent_s=158.68))
    assert "step 12,345.7 s" not in progress_text(LARGE) and "step 12,346 s" in progress_text(LARGE)


def test_a_search_for_least_cost_counts_money() -> None:
    assert "step 12.346 USD, bound 12.1 USD" in progress_text(HALF_WAY, "USD")


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("width", [78, 58, 38])
def test_what_does_not_fit_is_left_out_the_counts_first(phase: str, width: int) -> None:
    text = progress_text(replace(LARGE, phase=phase, whole=False), None, width)
    assert len(text) <= width
    assert "step 12,346 s" in text and ("gap 1.99 %" in text or "gap among these 1.99 %" in text)
    assert "programs" not in text or "candidates" in text


def drawn(progress: Progress, terminal: bool = True, width: int = 100, **options: Any) -> str:
    out = io.StringIO()
    with ProgressLine(console=Console(file=out, force_terminal=terminal, width=width, **options)) as line:
        line(progress)
        line.line.draw()
    return out.getvalue()


@pytest.mark.parametrize("moment", ["start", "stop"])
def test_ctrl_c_while_the_terminal_is_changed_leaves_it_as_it_was(monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    out, change = io.StringIO(), getattr(Live, moment)

    def interrupted(live: Live) -> None:
        signal.raise_signal(signal.SIGINT)
        change(live)

    monkeypatch.setattr(Live, moment, interrupted)
    line = ProgressLine(console=Console(file=out, force_terminal=True, width=80))
    with pytest.raises(KeyboardInterrupt), line:
        pass
    assert out.getvalue().startswith("\x1b[?25l") and out.getvalue().rstrip().endswith("\x1b[2K")
    assert "\x1b[?25h" in out.getvalue()  # the cursor is back, the line erased


def test_it_is_silent_without_a_terminal() -> None:
    assert drawn(HALF_WAY, terminal=False) == ""


def test_it_draws_on_a_terminal_and_cleans_up() -> None:
    text = drawn(HALF_WAY)
    assert "\x1b[?25l" in text and text.rstrip().endswith("\x1b[2K")  # cursor hidden, line erased at the end


@pytest.mark.parametrize("soft_wrap", [False, True])
@pytest.mark.parametrize("width", [20, 40, 80])
def test_it_is_one_line_on_any_terminal(width: int, soft_wrap: bool) -> None:
    plain = drawn(replace(LARGE, phase="bound of all mixes"), width=width, color_system=None, soft_wrap=soft_wrap)
    lines = [part for part in plain.replace("\x1b[2K", "").replace("\x1b[?25l", "").split("\r") if "step" in part]
    assert lines and all(len(line.split("\n")[0]) <= width and "\x1b[1A" not in line for line in lines)

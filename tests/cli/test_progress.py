"""The progress line: what it says, and when it keeps silent."""

from __future__ import annotations

import io

from rich.console import Console

from planner import Progress
from planner.cli.progress import ProgressLine, progress_text

HALF_WAY = Progress(candidates=50_736, solved=12, incumbent_s=12.34, bound_s=12.1, gap=0.0194, elapsed_s=3.2)


def test_it_names_candidates_incumbent_bound_and_gap() -> None:
    assert progress_text(HALF_WAY) == ("12 of 50,736 candidates solved, step 12.3 s, bound 12.1 s, gap 1.9 %, 3 s")


def test_what_is_not_known_yet_is_left_out() -> None:
    assert progress_text(Progress(4, 0, None, None, None, 0.4)) == "0 of 4 candidates solved, 0 s"


def test_the_search_for_mixes_names_its_phase() -> None:
    mixes = Progress(240, 240, 12.3, 12.1, 0.0163, 9.0, "better mixes")
    assert progress_text(mixes) == "better mixes, 240 looked at, step 12.3 s, bound 12.1 s, gap 1.6 %, 9 s"


def test_a_search_for_least_cost_counts_money() -> None:
    assert "step 12.34 USD, bound 12.1 USD" in progress_text(HALF_WAY, "USD")


def drawn(terminal: bool) -> str:
    out = io.StringIO()
    with ProgressLine(console=Console(file=out, force_terminal=terminal, width=100)) as line:
        line(HALF_WAY)
    return out.getvalue()


def test_it_is_silent_without_a_terminal() -> None:
    assert drawn(terminal=False) == ""


def test_it_draws_on_a_terminal_and_cleans_up() -> None:
    text = drawn(terminal=True)
    assert "\x1b[?25l" in text and text.rstrip().endswith("\x1b[2K")  # cursor hidden, line erased at the end

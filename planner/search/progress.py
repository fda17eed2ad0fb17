"""What a caller is told while a search goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.outcome import Found, SearchProgress

__all__ = ["PLACING", "Progress", "forward", "say_placing"]

PLACING = "places on the network"
"""The phase in which a plan gets its nodes, on a topology."""


@dataclass(frozen=True)
class Progress:
    """Where a search stands. incumbent_s and bound_s: step times in seconds (with the objective `cost`: currency a
    step).

    candidates: shapes of pipelines that no bound ruled out before they were looked at; while mixes of shapes are
    searched, mixes.  programs: integer programs solved for them, none or several each.
    phase: the part of the search, empty where it has no parts.  whole: bound and gap hold for the whole plan space;
    else for the plans that the phase is named after alone.
    """

    candidates: int
    programs: int
    incumbent_s: float | None
    bound_s: float | None
    gap: float | None
    elapsed_s: float
    phase: str = ""
    whole: bool = True


def forward(progress: Callable[[Progress], None] | None, part: str = "") -> Callable[[SearchProgress], None] | None:
    """Passes on what a search says. part: of the plan space, where the search speaks of no more."""
    if progress is None:
        return None

    def forward(p: SearchProgress) -> None:
        gap = (p.objective - p.bound) / p.objective if p.objective and p.bound is not None else None
        whole = p.whole and not part
        progress(Progress(p.candidates, p.programs, p.objective, p.bound, gap, p.elapsed_s, part or p.phase, whole))

    return forward


def say_placing(progress: Callable[[Progress], None] | None, found: Found, begin: float) -> None:
    """The plan that was found is placed now. begin: of the search, on the monotonic clock."""
    if progress is not None:
        gap = (found.objective - found.bound) / found.objective
        elapsed = time.monotonic() - begin
        progress(Progress(0, 0, found.objective, found.bound, gap, elapsed, PLACING))

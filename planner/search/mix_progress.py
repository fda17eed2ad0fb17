"""What the search for mixes of shapes says on the way: its phase, the best step time, what is proved."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Literal

from planner.search.outcome import SearchProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    from planner.search.mixed.exhaustive import Found

__all__ = ["MixPhase", "MixReporter"]

MixPhase = Literal["every mix", "better mixes", "bound of all mixes"]

_INTERVAL_S = 0.2
"""Between two reports; a person reads no faster."""


class MixReporter:
    """Call `tick` often: it reports a few times a second. Nothing that a search does depends on it.

    since: when the whole search began, `time.monotonic()`.
    """

    def __init__(self, progress: Callable[[SearchProgress], None] | None, since: float) -> None:
        self._progress, self._since = progress, since
        self._step, self._bound = math.inf, 0.0
        self._phase: MixPhase = "better mixes"
        self._found: Found | None = None
        self._mixes, self._last = 0, -math.inf

    @property
    def phase(self) -> MixPhase:
        """The one that was entered last."""
        return self._phase

    def begin(self, step_time: float, bound: float) -> None:
        """The best known before any mix, inf for none; no plan of the whole space is faster than `bound` (s)."""
        self._step, self._bound = step_time, bound

    def enter(self, phase: MixPhase, found: Found | None = None) -> None:
        """A phase begins. found: where it keeps the best mix and counts those it looked at."""
        self._settle()
        self._phase, self._found = phase, found
        self._report()

    def tick(self) -> None:
        """Report if the last report is a while ago."""
        if time.monotonic() - self._last >= _INTERVAL_S:
            self._report()

    def _settle(self) -> None:
        if self._found is not None:
            self._mixes += self._found.mixes
            self._step = min(self._step, self._found.step_time)
            self._found = None

    def _report(self) -> None:
        self._last = time.monotonic()
        if self._progress is None:
            return
        found = self._found
        step = self._step if found is None else min(self._step, found.step_time)
        mixes = self._mixes + (0 if found is None else found.mixes)
        bound = min(self._bound, step)
        self._progress(
            SearchProgress(
                candidates=mixes,
                programs=0,
                objective=step if math.isfinite(step) else None,
                bound=bound if math.isfinite(bound) else None,
                elapsed_s=self._last - self._since,
                phase=self._phase,
            )
        )

"""How the time is shared out between many solves, and what a person is told meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.solve import Progress

__all__ = ["BaselineProgress", "Budget", "Watch"]

_LEAST_S = 0.1
"""Even a late solve gets so long, so that it can say that it found nothing."""


class Budget:
    """Seconds for a number of solves: each may take its part of what is left, so what one leaves the others have.

    What a solve does beyond its time (proving that nothing fits, and what would help) is not taken from the others.
    parts: the sum over all solves of what they count, 1 for a usual one.
    """

    def __init__(self, seconds: float, parts: int) -> None:
        self._seconds, self._left = seconds, parts
        self._given, self._since = 0.0, time.monotonic()

    def next(self, parts: int = 1) -> float:
        """Seconds for the next solve."""
        now = time.monotonic()
        self._seconds -= min(self._given, now - self._since)
        self._given = max(_LEAST_S, self._seconds * min(1.0, parts / max(1, self._left)))
        self._since = now
        self._left -= parts
        return self._given


@dataclass(frozen=True)
class BaselineProgress:
    """Where a comparison stands.  what: the plan that is looked for now, number `number` of `total`.  search: where its
    search stands, None before it says anything.
    """

    what: str
    number: int
    total: int
    search: Progress | None = None


class Watch:
    """Counts the solves and passes on how each of them goes."""

    def __init__(self, tell: Callable[[BaselineProgress], None] | None, total: int) -> None:
        self._tell, self._total, self._number, self._what = tell, total, 0, ""

    def begin(self, what: str) -> None:
        """The next one begins."""
        self._number, self._what = self._number + 1, what
        self._say(None)

    def search(self, progress: Progress) -> None:
        """How the present solve goes."""
        self._say(progress)

    def _say(self, progress: Progress | None) -> None:
        if self._tell is not None:
            self._tell(BaselineProgress(self._what, min(self._number, self._total), self._total, progress))

"""The progress line of a search: on stderr, and only when a person watches."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from planner.search import Progress

__all__ = ["ProgressLine", "progress_text"]


class ProgressLine:
    """Use as a context manager; call it with each Progress. currency: that of a search for least cost, else None."""

    def __init__(self, currency: str | None = None, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True, markup=False, highlight=False)
        self._currency = currency
        self._status: Any = None

    def __enter__(self) -> ProgressLine:
        if self._console.is_terminal:
            self._status = self._console.status("setting up")
            self._status.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def __call__(self, progress: Progress) -> None:
        if self._status is not None:
            self._status.update(progress_text(progress, self._currency))


def progress_text(progress: Progress, currency: str | None = None) -> str:
    """`12 of 50,736 candidates solved, step 12.3 s, bound 12.1 s, gap 1.6 %, 3 s`; with mixes of shapes
    `better mixes, 240 looked at, step ...`.
    """
    from planner.report.words import format_percent
    from planner.spec.units import format_duration

    def amount(value: float) -> str:
        return format_duration(value) if currency is None else f"{value:.4g} {currency}"

    parts = [f"{progress.solved:,} of {progress.candidates:,} candidates solved"]
    if progress.phase:
        parts = [progress.phase, f"{progress.solved:,} looked at"]
    if progress.incumbent_s is not None:
        parts.append(f"step {amount(progress.incumbent_s)}")
    if progress.bound_s is not None:
        parts.append(f"bound {amount(progress.bound_s)}")
    if progress.gap is not None:
        parts.append(f"gap {format_percent(progress.gap)}")
    return ", ".join([*parts, f"{progress.elapsed_s:.0f} s"])

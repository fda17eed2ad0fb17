"""Progress lines: on stderr, only when a person watches, and never wider than the terminal."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, get_args

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement

    from planner.search import Progress

__all__ = ["ProgressLine", "StatusLine", "progress_text"]

_PROGRAMS, _CANDIDATES, _BOUND, _ELAPSED, _PHASE = 1, 2, 3, 4, 5
"""What is left out where there is no room, in this order; what has 0 never is."""


class StatusLine:
    """One line that changes while work goes on; use as a context manager. first: what it says at the beginning."""

    def __init__(self, first: str, console: Console | None = None) -> None:
        from rich.console import Console

        self._console = console or Console(stderr=True, markup=False, emoji=False, highlight=False)
        self._first = first
        self._live: Any = None
        self._spinner: Any = None

    @property
    def is_watched(self) -> bool:
        """Whether a person sees it."""
        return self._live is not None

    def __enter__(self) -> StatusLine:
        if self._console.is_terminal:
            from rich.live import Live
            from rich.spinner import Spinner

            first = self._first
            self._spinner = Spinner("dots", _Fitted(lambda width, later: first), style="status.spinner")
            self._live = Live(self._spinner, console=self._console, refresh_per_second=12.5, transient=True)
            try:
                _whole(self._live.start)
            except BaseException:  # no body, so no exit: the terminal is left as it was
                _whole(self._live.stop)
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            _whole(self._live.stop)

    def show(self, text: Callable[[int, float], str]) -> None:
        """Show `text(width, later)` from now on: columns that there are, seconds since this call."""
        if self._spinner is not None:
            self._spinner.update(text=_Fitted(text))

    def draw(self) -> None:
        """Draw it now; else that happens a few times a second."""
        if self._live is not None:
            self._live.refresh()


def _whole(change: Callable[[], None]) -> None:
    """Change the terminal; Ctrl-C waits until that is done, and comes then."""
    if threading.current_thread() is not threading.main_thread():
        change()
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        change()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    for number in came[:1]:
        signal.raise_signal(number)


class _Fitted:
    """A text that is asked for whenever it is drawn, and cut where the terminal ends."""

    def __init__(self, text: Callable[[int, float], str]) -> None:
        self._text, self._since = text, time.monotonic()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        text = self._text(options.max_width, time.monotonic() - self._since)
        yield Text(text, no_wrap=True, overflow="ellipsis")

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        text = self._text(options.max_width, time.monotonic() - self._since)
        width = min(len(text) + 1, options.max_width)  # and a digit more, as seconds pass; no spaces up to the edge
        return Measurement(width, width)


class ProgressLine:
    """Use as a context manager; call it with each Progress. currency: that of a search for least cost, else None."""

    def __init__(self, currency: str | None = None, console: Console | None = None) -> None:
        self.line, self._currency = StatusLine("setting up", console), currency

    def __enter__(self) -> ProgressLine:
        self.line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.line.__exit__(kind, error, trace)

    def __call__(self, progress: Progress) -> None:
        self.line.show(lambda width, later: progress_text(progress, self._currency, width, later=later))


def progress_text(
    progress: Progress, currency: str | None = None, width: int | None = None, before: str = "", later: float = 0.0
) -> str:
    """`identical pipelines: step 158.81 s, bound 158.32 s, gap among these 0.31 %, 98 candidates, 12 s`.

    What is said of less than the whole plan space is said to be `among these`.  width: what does not fit is left out,
    the counts first.  before: what comes before all.  later: seconds since the progress was reported.
    """
    parts = _parts(progress, currency, later)
    dropped = 0
    while True:
        phase = progress.phase if dropped < _PHASE else ""
        heads = [head for head in (before, phase) if head]
        text = ": ".join([*heads, ", ".join(part for rank, part in parts if rank == 0 or rank > dropped)])
        if width is None or len(text) <= width or dropped >= _PHASE:
            return text
        dropped += 1


def _parts(progress: Progress, currency: str | None, later: float) -> list[tuple[int, str]]:
    """Each with its place in the order in which they are left out."""
    from planner.report.words import format_exact_duration, format_percent, plural
    from planner.search.mix_progress import MixPhase

    def amount(value: float) -> str:
        return format_exact_duration(value, 5) if currency is None else f"{value:.5g} {currency}"

    found = "no plan yet" if progress.incumbent_s is None else f"step {amount(progress.incumbent_s)}"
    parts = [(0, found)]
    if progress.bound_s is not None:
        parts.append((_BOUND, f"bound {amount(progress.bound_s)}"))
    if progress.gap is not None:
        among = "" if not progress.phase else "among all " if progress.whole else "among these "
        parts.append((0, f"gap {among}{format_percent(progress.gap, 2)}"))
    word = "mix" if progress.phase in get_args(MixPhase) else "candidate"
    for rank, what, count in ((_CANDIDATES, word, progress.candidates), (_PROGRAMS, "program", progress.programs)):
        if count:
            parts.append((rank, f"{count:,} {plural(what, count)}"))
    return [*parts, (_ELAPSED, f"{progress.elapsed_s + later:.0f} s")]

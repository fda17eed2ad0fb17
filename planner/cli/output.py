"""Printing: tables and documents on stdout, warnings on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from planner.errors import Notice

__all__ = ["one_place", "print_json", "print_report", "say", "stdout_console", "warn"]


def stdout_console() -> Console:
    """Names from files are shown as they are: no markup, no emoji, no guessing of colours."""
    from rich.console import Console

    return Console(markup=False, emoji=False, highlight=False, soft_wrap=False)


def print_report(report: RenderableType) -> None:
    """A report, without spaces at the ends of lines when nobody watches."""
    console = stdout_console()
    if console.is_terminal:
        console.print(report)
        return
    with console.capture() as capture:
        console.print(report)
    for line in capture.get().splitlines():
        print(line.rstrip())


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    from planner.plan.file import pretty_json

    print(pretty_json(document))


def one_place(report: bool) -> bool:
    """Whether a report on stdout and warnings on stderr reach the same person: what the report says is not said again.

    report: whether there is one.
    """
    return report and stdout_console().is_terminal and sys.stderr.isatty()


def warn(notices: Iterable[Notice]) -> None:
    """Warnings on stderr, each once."""
    for message in dict.fromkeys(notice.message for notice in notices):
        say(f"warning: {message}")


def say(message: str) -> None:
    """A line for people, on stderr."""
    print(message, file=sys.stderr)

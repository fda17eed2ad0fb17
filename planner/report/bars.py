"""Bars and tables that every report uses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.table import Table
from rich.text import Text

__all__ = ["BAR_WIDTH", "Bar", "heading", "indented", "new_table"]

BAR_WIDTH = 14
_SOLID, _ASCII_SOLID = "█▒", "#+"


@dataclass(frozen=True)
class Bar:
    """A horizontal bar of up to two parts of one whole, each with its colour; the second is hatched.

    ASCII where the terminal knows nothing else.
    """

    parts: tuple[tuple[float, str], ...]
    width: int = BAR_WIDTH

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        solid, empty = (_ASCII_SOLID, ".") if options.ascii_only else (_SOLID, "░")
        done, cells = 0.0, 0
        for (share, colour), full in zip(self.parts, solid, strict=False):
            done = min(1.0, done + max(0.0, share))
            end = max(round(done * self.width), 1 if done > 0 else 0)
            if end > cells:
                yield Segment(full * (end - cells), Style.parse(colour))
            cells = max(cells, end)
        yield Segment(empty * (self.width - cells), Style.parse("dim"))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(self.width, self.width)


def heading(text: str) -> Text:
    """The title of a section."""
    return Text(text, style="bold")


def indented(renderable: RenderableType) -> Padding:
    """What stands under a title."""
    return Padding(renderable, (0, 0, 0, 2))


def new_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """A table without lines: headings dim, numbers to the right, unbroken. A column named `bar` has no heading."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim", expand=False)
    for name in columns:
        table.add_column(
            name if name != "bar" else "",
            justify="right" if name in right else "left",
            overflow="fold",
            no_wrap=name in right or name == "bar",
        )
    return table

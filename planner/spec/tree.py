"""A document as a tree of values that remember their lines, whatever format it was written in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from planner.errors import InputError, Problem

__all__ = [
    "LIMITS",
    "Document",
    "Limits",
    "ListNode",
    "MapNode",
    "Path",
    "Position",
    "ScalarNode",
    "TreeNode",
    "has_lone_surrogate",
    "path_text",
]

Path = tuple[str | int, ...]
"""The way to a value: keys of mappings, indices of lists."""


@dataclass(frozen=True)
class Limits:
    """What a file may hold, so that a hostile one cannot exhaust memory or time.

    num_values counts every scalar, list and mapping, with each alias counted as a copy of what it stands for.
    """

    num_bytes: int = 4 * 2**20
    depth: int = 64
    num_values: int = 100_000


LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Position:
    """Line and column, both from 1."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class ScalarNode:
    """One value: text, number, true, false or null; `text` is how it was written."""

    value: Any
    text: str
    position: Position

    @property
    def num_values(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 0

    def data(self) -> Any:
        return self.value


@dataclass(slots=True)
class ListNode:
    """Values in order."""

    position: Position
    items: list[TreeNode] = field(default_factory=list)
    num_values: int = 1
    depth: int = 1

    def data(self) -> list[Any]:
        return [item.data() for item in self.items]


@dataclass(slots=True)
class MapNode:
    """Values by key; keys are text, as written."""

    position: Position
    entries: dict[str, TreeNode] = field(default_factory=dict)
    key_positions: dict[str, Position] = field(default_factory=dict)
    num_values: int = 1
    depth: int = 1

    def data(self) -> dict[str, Any]:
        return {key: item.data() for key, item in self.entries.items()}


TreeNode = ScalarNode | ListNode | MapNode


@dataclass(frozen=True)
class Document:
    """A file that was read: its name for messages, its tree, and what is wrong with it so far (keys given twice)."""

    file: str
    root: MapNode
    problems: tuple[Problem, ...] = ()

    def data(self) -> dict[str, Any]:
        """Plain Python values."""
        return self.root.data()

    def locate(self, path: Sequence[str | int], *, key: bool = False) -> Position:
        """Where the value at `path` stands (with `key`, its key); if it is absent, where its holder stands."""
        here: TreeNode = self.root
        position = here.position
        for step in path:
            child: TreeNode | None = None
            if isinstance(here, MapNode) and isinstance(step, str):
                child = here.entries.get(step)
                if child is not None:
                    position = here.key_positions[step] if key else child.position
            elif isinstance(here, ListNode) and isinstance(step, int) and step < len(here.items):
                child = here.items[step]
                position = child.position
            if child is None:
                return position
            here = child
        return position

    def problem(
        self, path: Sequence[str | int], what: str, why: str = "", fix: str = "", *, key: bool = False
    ) -> Problem:
        """A problem at a place of this document."""
        position = self.locate(path, key=key)
        return Problem(what, why, fix, path_text(path), self.file, position.line, position.column)

    def refuse_duplicates(self) -> Document:
        """The document itself, or an error that names every key given twice."""
        if self.problems:
            raise InputError(self.problems)
        return self


def has_lone_surrogate(text: str) -> bool:
    """Half a character, which escapes such as `\\ud800` can write and no file can hold."""
    return any("\ud800" <= character <= "\udfff" for character in text)


def path_text(path: Sequence[str | int]) -> str:
    """`node_groups[1].chip`; the middle of a very long one is left out."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text if len(text) <= 100 else f"{text[:60]}...{text[-30:]}"

"""JSON under the same limits as YAML: positions, keys given twice, depth, size; no recursion."""

from __future__ import annotations

import json
import math
import re
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NoReturn

from planner.errors import InputError, Problem
from planner.spec.files import read_text
from planner.spec.tree import (
    LIMITS,
    Document,
    ListNode,
    MapNode,
    Position,
    ScalarNode,
    TreeNode,
    has_lone_surrogate,
    path_text,
)

if TYPE_CHECKING:
    from pathlib import Path as FilePath

__all__ = ["parse_json", "read_json"]

_SPACE = re.compile(r"[ \t\n\r]*")


def read_json(path: str | FilePath, noun: str = "the file") -> Document:
    """The document in a JSON file, or in standard input for `-`."""
    text, file = read_text(path, noun)
    return parse_json(text, file)


def parse_json(text: str, file: str) -> Document:
    """The document in a JSON text. NaN and Infinity, which JSON does not have but libraries write, become text."""
    return _Reader(text, file).document()


def _integer(digits: str) -> Any:
    return int(digits) if len(digits) <= 40 else digits


def _float(digits: str) -> Any:
    number = float(digits)
    return number if math.isfinite(number) else digits


_SCALARS = json.JSONDecoder(parse_constant=lambda word: word, parse_int=_integer, parse_float=_float)


class _Reader:
    """One pass with an explicit stack of open lists and objects."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.lines = [0, *(match.end() for match in re.finditer("\n", text))]
        self.open: list[ListNode | MapNode] = []
        self.keys: list[str | None] = []
        self.problems: list[Problem] = []
        self.num_values = 0

    def document(self) -> Document:
        if not self.text.strip():
            raise InputError.single("is empty", "", "", file=self.file)
        root = self._value()
        self._skip()
        if self.at < len(self.text):
            self._refuse("more text follows the end of the document")
        if not isinstance(root, MapNode):
            self.at = 0
            self._refuse("holds no object", "write `{...}`")
        return Document(self.file, root, tuple(self.problems))

    def _value(self) -> TreeNode:
        """Reads one value with everything in it."""
        while True:
            done = self._open_or_scalar()
            while done is not None:
                if not self.open:
                    return done
                self._place(done)
                done = self._after_value()

    def _open_or_scalar(self) -> TreeNode | None:
        """Reads a scalar, an empty list or object, or the opening of one that holds something."""
        self._skip()
        self._count()
        start = self.at
        mark = self.text[start : start + 1]
        position = self._position(start)
        if mark not in ("[", "{"):
            value = self._scalar()
            return ScalarNode(value, self.text[start : self.at], position)
        if len(self.open) >= LIMITS.depth:
            self._refuse("is nested too deeply", f"files may be {LIMITS.depth} levels deep")
        node: ListNode | MapNode = ListNode(position) if mark == "[" else MapNode(position)
        self.at += 1
        self._skip()
        if self.text[self.at : self.at + 1] == ("]" if mark == "[" else "}"):
            self.at += 1
            return node
        self.open.append(node)
        self.keys.append(None)
        if isinstance(node, MapNode):
            self._key(node)
        return None

    def _after_value(self) -> TreeNode | None:
        """After a value inside a holder: the next one follows (None), or the holder ends and is returned."""
        holder = self.open[-1]
        self._skip()
        mark = self.text[self.at : self.at + 1]
        if mark == ",":
            self._pass_comma()
            if isinstance(holder, MapNode):
                self._key(holder)
            return None
        if mark != ("]" if isinstance(holder, ListNode) else "}"):
            self._refuse("a comma or the closing bracket is missing")
        self.at += 1
        self.keys.pop()
        return self.open.pop()

    def _pass_comma(self) -> None:
        comma = self.at
        self.at += 1
        self._skip()
        if self.text[self.at : self.at + 1] in ("]", "}"):
            self.at = comma
            self._refuse("a comma stands before a closing bracket", "JSON has none after the last entry", "remove it")

    def _key(self, holder: MapNode) -> None:
        start = self.at
        if self.text[start : start + 1] != '"':
            self._refuse("a key in double quotes is missing")
        key = self._scalar()
        position = self._position(start)
        if key in holder.key_positions:
            why = f"first on line {holder.key_positions[key].line}"
            where = path_text([*self._path(), key])
            what = f"key {key[:60]!r} is given twice"
            self.problems.append(
                Problem(what, why, "remove one of them", where, self.file, position.line, position.column)
            )
        holder.key_positions.setdefault(key, position)
        self.keys[-1] = key
        self._skip()
        if self.text[self.at : self.at + 1] != ":":
            self._refuse("a colon is missing after the key")
        self.at += 1

    def _place(self, node: TreeNode) -> None:
        holder = self.open[-1]
        if isinstance(holder, ListNode):
            holder.items.append(node)
        else:
            key = self.keys[-1]
            assert key is not None, "a value follows its key"
            holder.entries.setdefault(key, node)

    def _scalar(self) -> Any:
        try:
            value, self.at = _SCALARS.raw_decode(self.text, self.at)
        except json.JSONDecodeError as error:
            self.at = error.pos
            self._refuse(f"is not valid JSON: {error.msg.lower()}")
        if isinstance(value, str) and has_lone_surrogate(value):
            self._refuse("an escape before this place writes half a character")
        return value

    def _path(self) -> list[str | int]:
        steps: list[str | int] = []
        for holder, key in list(zip(self.open, self.keys, strict=True))[:-1]:
            steps.append(len(holder.items) if isinstance(holder, ListNode) else key or "?")
        return steps

    def _skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None, "the pattern matches the empty text"
        self.at = match.end()

    def _position(self, at: int) -> Position:
        line = bisect_right(self.lines, at)
        return Position(line, at - self.lines[line - 1] + 1)

    def _count(self) -> None:
        self.num_values += 1
        if self.num_values > LIMITS.num_values:
            self._refuse("holds too much", f"files may have {LIMITS.num_values} values")

    def _refuse(self, what: str, why: str = "", fix: str = "") -> NoReturn:
        at = self._position(min(self.at, len(self.text)))
        raise InputError.single(what, why, fix, file=self.file, line=at.line, column=at.column)

"""YAML with positions, read from the parser's events so that depth, size and aliases are bounded while reading.

Scalars follow YAML 1.2's core schema: `true`/`false`, `null`, decimal integers and floats (`1e9` is a number) are
typed, everything else is text: `yes`, `no`, `on`, `off`, `1:30`, `0x10`, `010`, dates and `1_000` are what they look
like, and a field that wants a number refuses them with a hint. Keys are always text, as written. Refused: keys given
twice, tags (`!!python/...`), merge keys (`<<`), several documents in a file. Aliases are read; each counts as a copy.
"""

from __future__ import annotations

import re
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

    from yaml.events import Event

__all__ = ["parse_yaml", "read_scalar", "read_yaml"]

_INTEGER = re.compile(r"[+-]?(?:0|[1-9]\d{0,39})", re.ASCII)
_FLOAT = re.compile(r"[+-]?(?:\.\d+|(?:0|[1-9]\d*)(?:\.\d*)?)(?:[eE][+-]?\d+)?", re.ASCII)
_CONSTANTS: dict[str, Any] = {"": None, "~": None, "true": True, "false": False}
_CONSTANTS |= {"null": None, "Null": None, "NULL": None, "True": True, "TRUE": True, "False": False, "FALSE": False}
_FLOATS = {f"{sign}.{word}": f"{sign}inf" for sign in ("", "+", "-") for word in ("inf", "Inf", "INF")}
_FLOATS |= {f".{word}": "nan" for word in ("nan", "NaN", "NAN")}


def read_yaml(path: str | FilePath, noun: str = "the file") -> Document:
    """The document in a file, or in standard input for `-`."""
    text, file = read_text(path, noun)
    return parse_yaml(text, file)


def parse_yaml(text: str, file: str) -> Document:
    """The document in a text; `file` names it in messages."""
    from yaml import YAMLError
    from yaml.loader import SafeLoader

    loader: Any = None
    try:
        loader = SafeLoader(text)
        return _Composer(loader, file).compose()
    except YAMLError as error:
        raise _syntax_error(error, text, file) from None
    finally:
        if loader is not None:
            loader.dispose()


def read_scalar(text: str) -> Any:
    """The value of an unquoted scalar."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if text in _FLOATS:
        return float(_FLOATS[text])
    return float(text) if len(text) <= 64 and _FLOAT.fullmatch(text) else text


class _Composer:
    """Builds the tree with an explicit stack: no recursion, so depth cannot overflow ours."""

    def __init__(self, events: Any, file: str) -> None:
        self.events = events
        self.file = file
        self.anchors: dict[str, TreeNode] = {}
        self.open: list[tuple[ListNode | MapNode, str | None]] = []
        self.keys: list[tuple[str, Position] | None] = []
        self.problems: list[Problem] = []
        self.num_values = 0
        self.root: TreeNode | None = None

    def compose(self) -> Document:
        from yaml import events as kinds

        num_documents = 0
        while self.events.check_event():
            event = self.events.get_event()
            if isinstance(event, kinds.DocumentStartEvent):
                num_documents += 1
                if num_documents > 1:
                    self._refuse(event, "a second document starts here", "", "keep one document in a file")
            elif isinstance(event, kinds.AliasEvent):
                self._add(self._resolve(event), _position(event.start_mark), event)
            elif isinstance(event, kinds.ScalarEvent):
                self._add_scalar(event)
            elif isinstance(event, (kinds.SequenceStartEvent, kinds.MappingStartEvent)):
                self._start(event, MapNode if isinstance(event, kinds.MappingStartEvent) else ListNode)
            elif isinstance(event, (kinds.SequenceEndEvent, kinds.MappingEndEvent)):
                self._end()
        return self._document()

    def _document(self) -> Document:
        if self.root is None or (isinstance(self.root, ScalarNode) and self.root.value is None):
            raise InputError.single("is empty", "", "`dplan init` writes files to start from", file=self.file)
        if not isinstance(self.root, MapNode):
            held = "a list" if isinstance(self.root, ListNode) else "a single value"
            at = self.root.position
            raise InputError.single(
                f"holds {held}",
                "a file is a mapping",
                "write lines like `name: lab`",
                file=self.file,
                line=at.line,
                column=at.column,
            )
        return Document(self.file, self.root, tuple(self.problems))

    def _start(self, event: Any, kind: type[ListNode] | type[MapNode]) -> None:
        self._check_tag(event)
        position = _position(event.start_mark)
        if self._expects_key():
            self._refuse(
                event, "a list or mapping stands where a key is expected", "keys are text", "write `key: value`"
            )
        self._check_depth(event, 1)
        self._count(event, 1)
        self.open.append((kind(position), event.anchor))
        self.keys.append(None)

    def _end(self) -> None:
        node, anchor = self.open.pop()
        self.keys.pop()
        children = node.items if isinstance(node, ListNode) else list(node.entries.values())
        node.num_values = 1 + sum(child.num_values for child in children)
        node.depth = 1 + max((child.depth for child in children), default=0)
        if anchor is not None:
            self.anchors[anchor] = node
        self._place(node)

    def _add_scalar(self, event: Any) -> None:
        self._check_tag(event)
        position = _position(event.start_mark)
        plain = event.style is None
        if has_lone_surrogate(event.value):
            self._refuse(event, "an escape writes half a character", "", "write the character itself")
        if self._expects_key():
            if plain and event.value in ("", "~", "null", "<<"):
                what = "a merge key `<<` is not read" if event.value == "<<" else "a key is empty"
                fix = (
                    "write the keys out, or build a chip on another with `base:`" if event.value == "<<" else "name it"
                )
                self._refuse(event, what, "", fix)
            if event.anchor is not None:
                self._refuse(event, "an anchor stands on a key", "", "remove it")
            self._set_key(event.value, position)
            return
        value = read_scalar(event.value) if plain else event.value
        self._count(event, 1)
        node = ScalarNode(value, event.value, position)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        self._place(node)

    def _set_key(self, key: str, position: Position) -> None:
        holder = self.open[-1][0]
        assert isinstance(holder, MapNode), "only mappings expect keys"
        first = holder.key_positions.get(key)
        if first is not None:
            where = path_text([*self._path(), key])
            what, why = f"key {key[:60]!r} is given twice", f"first on line {first.line}"
            self.problems.append(
                Problem(what, why, "remove one of them", where, self.file, position.line, position.column)
            )
        self.keys[-1] = (key, position)

    def _add(self, node: TreeNode, position: Position, event: Event) -> None:
        if self._expects_key():
            self._refuse(event, "an alias stands where a key is expected", "keys are text", "write the key out")
        self._check_depth(event, node.depth)
        self._count(event, node.num_values)
        self._place(node)

    def _resolve(self, event: Any) -> TreeNode:
        node = self.anchors.get(event.anchor)
        if node is not None:
            return node
        if any(anchor == event.anchor for _, anchor in self.open):
            what = f"alias '*{event.anchor[:60]}' stands inside what it names"
            self._refuse(event, what, "it would never end", "write it out")
        why = "no anchor of that name stands above"
        self._refuse(event, f"unknown alias '*{event.anchor[:60]}'", why, "define it first, or quote the text")

    def _place(self, node: TreeNode) -> None:
        if not self.open:
            self.root = node
            return
        holder = self.open[-1][0]
        if isinstance(holder, ListNode):
            holder.items.append(node)
            return
        entry = self.keys[-1]
        assert entry is not None, "a value follows its key"
        key, position = entry
        holder.entries.setdefault(key, node)
        holder.key_positions.setdefault(key, position)
        self.keys[-1] = None

    def _expects_key(self) -> bool:
        return bool(self.open) and isinstance(self.open[-1][0], MapNode) and self.keys[-1] is None

    def _path(self) -> list[str | int]:
        steps: list[str | int] = []
        for (node, _), key in list(zip(self.open, self.keys, strict=True))[:-1]:
            steps.append(len(node.items) if isinstance(node, ListNode) else key[0] if key else "?")
        return steps

    def _count(self, event: Event, num_values: int) -> None:
        self.num_values += num_values
        if self.num_values > LIMITS.num_values:
            why = f"with aliases written out it has more than {LIMITS.num_values} values"
            self._refuse(event, "holds too much", why, "split it, or use fewer aliases")

    def _check_depth(self, event: Event, depth: int) -> None:
        if len(self.open) + depth > LIMITS.depth:
            self._refuse(event, "is nested too deeply", f"files may be {LIMITS.depth} levels deep", "")

    def _check_tag(self, event: Any) -> None:
        explicit = event.tag is not None and event.tag != "!"
        if explicit:
            self._refuse(event, f"tag '{event.tag[:60]}' is not read", "files hold plain values", "remove the tag")

    def _refuse(self, event: Event, what: str, why: str, fix: str) -> NoReturn:
        at = _position(event.start_mark)
        path = path_text(self._path()) if self.open else ""
        raise InputError.single(what, why, fix, path=path, file=self.file, line=at.line, column=at.column)


def _position(mark: Any) -> Position:
    return Position(mark.line + 1, mark.column + 1)


def _syntax_error(error: Any, text: str, file: str) -> InputError:
    """The parser's complaint in our words, at its place."""
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error)
    if mark is None:
        return InputError.single("is not valid YAML", problem, "", file=file)
    line_text = (text.splitlines() or [""])[mark.line] if mark.line < len(text.splitlines()) else ""
    what, fix = f"is not valid YAML: {problem}", "check quotes, brackets and indentation around here"
    if "\t" in line_text[: mark.column + 1]:
        what, fix = "a tab stands where YAML wants spaces", "replace it with spaces"
        return InputError.single(what, "", fix, file=file, line=mark.line + 1, column=line_text.index("\t") + 1)
    if "cannot start any token" in problem:
        what, fix = f"a value cannot start with {line_text[mark.column : mark.column + 1]!r}", "put it in quotes"
    elif "mapping values are not allowed" in problem:
        what, fix = "a second `:` stands on this line", "put the value in quotes, or start a new line"
    return InputError.single(what, "", fix, file=file, line=mark.line + 1, column=mark.column + 1)

"""From a document to a model, with every problem of the document in one error.

Each problem reads `file:line:col: path: what; why; what to do`.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from planner.errors import InputError, Problem
from planner.spec.base import WRITTEN
from planner.spec.suggest import closest, did_you_mean
from planner.spec.tree import Document, ListNode, MapNode, Path, ScalarNode, TreeNode

__all__ = ["Collector", "node_at"]

M = TypeVar("M", bound=BaseModel)

_ENOUGH = 500
"""Problems after which no more are looked for."""


class Collector:
    """Collects the problems of one document, and of the files it names."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = list(document.problems)
        self._known = {(problem.path, problem.what) for problem in self.problems}

    @property
    def full(self) -> bool:
        """There are more problems than anyone reads: looking for more can stop."""
        return len(self.problems) >= _ENOUGH

    def add(self, path: Sequence[str | int], what: str, why: str = "", fix: str = "", *, key: bool = False) -> None:
        """One problem at a place of the document; the same complaint about the same place counts once."""
        problem = self.document.problem(path, what, why, fix, key=key)
        if (problem.path, problem.what) not in self._known:
            self._known.add((problem.path, problem.what))
            self.problems.append(problem)

    def extend(self, problems: Iterable[Problem]) -> None:
        """Problems of another file."""
        self.problems.extend(problem for problem in problems if problem not in self.problems)

    def finish(self) -> None:
        """Raises everything that was found, in the order of the file."""
        if self.problems:
            own = self.document.file
            order = sorted(self.problems, key=lambda p: (p.file != own, p.file or "", p.line or 0, p.column or 0))
            raise InputError(order)

    def validate(self, model: type[M], data: Any, path: Path = ()) -> M | None:
        """The model, or None with its problems collected."""
        try:
            return model.model_validate(data, context=WRITTEN, by_alias=True, by_name=False)
        except ValidationError as error:
            self._translate(model, error.errors(include_url=False), path)
            return None

    def valid(self, model: type[M], path: Path) -> M | None:
        """The model at a place when it is in order; its problems are reported elsewhere."""
        node = node_at(self.document, path)
        if node is None:
            return None
        try:
            return model.model_validate(node.data(), context=WRITTEN, by_alias=True, by_name=False)
        except ValidationError:
            return None

    def entries(self, model: type[M], path: Path) -> list[tuple[int, M]]:
        """The entries of a list that are in order, with their indices."""
        node = node_at(self.document, path)
        if not isinstance(node, ListNode):
            return []
        found = ((index, self.valid(model, (*path, index))) for index in range(len(node.items)))
        return [(index, entry) for index, entry in found if entry is not None]

    def texts(self, path: Path, field: str) -> list[tuple[int, str]]:
        """A text field of every entry of a list, whatever else is wrong with the entry."""
        node = node_at(self.document, path)
        found: list[tuple[int, str]] = []
        for index, item in enumerate(node.items if isinstance(node, ListNode) else []):
            value = item.entries.get(field) if isinstance(item, MapNode) else None
            if isinstance(value, ScalarNode) and isinstance(value.value, str):
                found.append((index, value.value))
        return found

    def keys(self, path: Path) -> list[str]:
        """The keys of a mapping."""
        node = node_at(self.document, path)
        return list(node.entries) if isinstance(node, MapNode) else []

    def _translate(self, model: type[BaseModel], errors: list[ErrorDetails], base: Path) -> None:
        misspelt: set[Path] = set()
        for error in errors[:_ENOUGH]:
            if error["type"] == "extra_forbidden":
                loc = self._real_path(base, error["loc"])
                known = _keys_of(_holder(model, error["loc"]))
                fix = did_you_mean(str(loc[-1]), known, "known keys")
                meant = closest(str(loc[-1]), known)
                misspelt.add((*loc[:-1], meant or ""))
                self.add(loc, f"unknown key {str(loc[-1])[:60]!r}", "", fix, key=True)
        for error in errors[:_ENOUGH]:
            if error["type"] == "extra_forbidden":
                continue
            loc = self._real_path(base, error["loc"])
            if error["type"] == "missing" and loc in misspelt:
                continue
            what, why, fix = _explain(error, model)
            self.add(loc, what, why, fix, key=error["loc"][-1:] == ("[key]",))

    def _real_path(self, base: Path, loc: tuple[int | str, ...]) -> Path:
        """The error's place without the steps that only the model knows."""
        path: list[str | int] = list(base)
        node = node_at(self.document, base)
        for step in loc:
            given = isinstance(node, MapNode) and step in node.entries
            own = step == "[key]" or (isinstance(step, str) and step.startswith("~"))
            if isinstance(node, ScalarNode) or (own and not given):
                continue
            if isinstance(step, int) and isinstance(node, MapNode):
                continue
            path.append(step)
            node = node_at(self.document, path) if node is not None else None
        return tuple(path)


def node_at(document: Document, path: Sequence[str | int]) -> TreeNode | None:
    """What stands at a place of a document, if anything does."""
    node: TreeNode | None = document.root
    for step in path:
        if isinstance(node, MapNode) and isinstance(step, str):
            node = node.entries.get(step)
        elif isinstance(node, ListNode) and isinstance(step, int) and 0 <= step < len(node.items):
            node = node.items[step]
        else:
            return None
    return node


def _explain(error: ErrorDetails, model: type[BaseModel]) -> tuple[str, str, str]:
    """What, why and what to do for one of pydantic's errors."""
    kind, given = error["type"], error["input"]
    context = error.get("ctx", {})
    if kind == "dplan":
        return context["what"], context["why"], context["fix"]
    if kind == "missing":
        return "is missing", "", _example(model, error["loc"])
    if kind in ("literal_error", "enum"):
        choices = re.findall(r"'([^']*)'|(\d+)", context["expected"])
        known = [text or digits for text, digits in choices]
        return f"{_shown(given)} is no choice here", f"known: {', '.join(known)}", _close_choice(given, known)
    shapes = {
        "bool_type": ("true or false", "write `true` or `false`"),
        "tuple_type": ("a list", f"write `[{given}]`" if isinstance(given, (str, int, float)) else "write `[...]`"),
        "dict_type": ("a mapping", "write `key: value` lines"),
        "model_type": ("a mapping", "write `key: value` lines"),
        "model_attributes_type": ("a mapping", "write `key: value` lines"),
    }
    shapes["list_type"], shapes["bool_parsing"] = shapes["tuple_type"], shapes["bool_type"]
    if kind in shapes:
        wanted, fix = shapes[kind]
        return ("is empty" if given is None else f"{_shown(given)} is not {wanted}"), "", fix
    return error["msg"], "", ""


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value[:60]) if isinstance(value, str) else f"'{value}'"


def _close_choice(given: Any, known: list[str]) -> str:
    close = closest(given, known) if isinstance(given, str) else None
    return f"did you mean '{close}'?" if close else "choose one of them"


def _example(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """`add 'nodes: 4'`, from the field's example."""
    holder = _holder(model, loc)
    for name, field in holder.model_fields.items() if holder is not None else ():
        if loc[-1] in (name, field.alias):
            example = field.examples[0] if field.examples else "..."
            return f"add `{field.alias or name}: {example}`"
    return f"add `{loc[-1]}: ...`"


def _keys_of(model: type[BaseModel] | None) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()] if model is not None else []


def _holder(model: type[BaseModel], loc: tuple[int | str, ...]) -> type[BaseModel] | None:
    """The model that holds the last step of an error's place."""
    here: Any = model
    for step in loc[:-1]:
        if isinstance(here, type) and issubclass(here, BaseModel):
            fields = here.model_fields.items()
            here = next((f.annotation for name, f in fields if step in (name, f.alias)), None)
            here = _unwrapped(here, mapping=None)
        else:
            here = _unwrapped(here, mapping=step)
    return _model_in(here)


def _unwrapped(annotation: Any, mapping: int | str | None) -> Any:
    """What an annotation holds, without None; for a step into a list or mapping, what that holds."""
    if get_origin(annotation) in (Union, types.UnionType):
        choices = [choice for choice in get_args(annotation) if choice is not type(None)]
        annotation = choices[0] if len(choices) == 1 else annotation
    if mapping is None or get_origin(annotation) not in (dict, list, tuple):
        return annotation
    arguments = get_args(annotation)
    held = arguments[1] if get_origin(annotation) is dict else arguments[0]
    return _unwrapped(held, mapping=None)


def _model_in(annotation: Any) -> type[BaseModel] | None:
    annotation = _unwrapped(annotation, mapping=None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None

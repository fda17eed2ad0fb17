"""Reads a configuration's fields by name:

refuses what is absent or of the wrong type, and remembers what it has read.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, NoReturn

from planner.errors import InputError, Problem

__all__ = ["ConfigFields", "refuse"]

LARGEST = 10**9
"""No width, vocabulary or head count comes near;
a larger number is a mistake, and would only cost time and memory here.
"""


def refuse(file: str, path: str, what: str, why: str, fix: str) -> NoReturn:
    """Stop with one problem."""
    raise InputError.single(what, why, fix, path=path, file=file)


class ConfigFields:
    """A configuration whose fields are asked for by name, the newest spelling first.

    A problem does not stop the reading: a stand-in is returned, and `stop_on_problems` raises all of them at once.
    """

    def __init__(self, data: Mapping[str, Any], file: str, path: str) -> None:
        self.data = data
        self.file = file
        self.path = path
        self.read: set[str] = set()
        self.problems: list[Problem] = []

    def add(self, name: str, what: str, why: str, fix: str) -> None:
        """Note a problem of a field."""
        self.problems.append(Problem(what, why, fix, path=f"{self.path}.{name}", file=self.file))

    def stop_on_problems(self) -> None:
        """Raise everything noted so far."""
        if self.problems:
            raise InputError(self.problems)

    def raw(self, *names: str) -> Any:
        """The first of the names that is present and not null, or None. All of them count as read."""
        self.read.update(names)
        return next((self.data[name] for name in names if self.data.get(name) is not None), None)

    def spelling(self, *names: str) -> str:
        """Which of the names the file uses (the first one when none)."""
        return next((name for name in names if name in self.data), names[0])

    def optional_whole(self, *names: str, minimum: int = 1) -> int | None:
        """A whole number, or None when it is absent or null."""
        value = self.raw(*names)
        if value is None:
            return None
        return self._checked_whole(value, self.spelling(*names), minimum)

    def whole(self, *names: str, default: int | None = None, minimum: int = 1) -> int:
        """A whole number. Without a default it must be there: a class default is not a fact about this model."""
        value = self.raw(*names)
        if value is not None:
            return self._checked_whole(value, self.spelling(*names), minimum)
        if default is not None:
            return default
        self._absent(names)
        return max(minimum, 1)

    def per_layer(self, *names: str, num_layers: int, default: int | None = None) -> tuple[int, ...]:
        """A whole number for all layers, or a list of one a layer."""
        value = self.raw(*names)
        name = self.spelling(*names)
        if not isinstance(value, list):
            return (self.whole(*names, default=default),) * num_layers
        if len(value) != num_layers:
            self.add(
                name,
                f"has {len(value)} entries",
                f"the model has {num_layers} layers (num_hidden_layers), and a list holds one entry a layer",
                f"give {num_layers} entries, or one number for all layers",
            )
            return (1,) * num_layers
        return tuple(self._checked_whole(entry, f"{name}[{i}]", 1) for i, entry in enumerate(value))

    def flag(self, *names: str, default: bool) -> bool:
        """True or false."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, bool):
            self.add(
                self.spelling(*names),
                f"must be true or false, not {_shown(value)}",
                "it is a switch",
                "write true or false",
            )
            return default
        return value

    def nonzero(self, *names: str, default: bool) -> bool:
        """Whether a probability (dropout) is above zero."""
        value = self.raw(*names)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
            self.add(
                self.spelling(*names),
                f"must be a probability, not {_shown(value)}",
                "it is a dropout rate",
                "write e.g. 0.1",
            )
            return default
        return value > 0

    def text(self, *names: str, default: str) -> str:
        """A word."""
        value = self.raw(*names)
        if value is None:
            return default
        if not isinstance(value, str):
            self.add(
                self.spelling(*names),
                f"must be a word, not {_shown(value)}",
                "it names a choice",
                f"write e.g. {default}",
            )
            return default
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """A list of layer numbers, empty when absent."""
        value = self.raw(name)
        if value is None:
            return ()
        if not isinstance(value, list):
            self.add(name, f"must be a list, not {_shown(value)}", "it names layers by number", "write e.g. [0, 1]")
            return ()
        return tuple(self._checked_whole(entry, f"{name}[{i}]", 0) for i, entry in enumerate(value))

    def section(self, name: str) -> ConfigFields:
        """A nested object; empty when absent."""
        value = self.raw(name)
        if value is not None and not isinstance(value, dict):
            self.add(
                name,
                f"must be an object, not {_shown(value)}",
                "its fields describe a part of the model",
                "write {...}",
            )
        nested = ConfigFields(value if isinstance(value, dict) else {}, self.file, f"{self.path}.{name}")
        nested.problems = self.problems
        return nested

    def _absent(self, names: tuple[str, ...]) -> None:
        other = f" (or {', '.join(names[1:])})" if len(names) > 1 else ""
        close = get_close_matches(names[0], [name for name in self.data if name not in self.read], n=1, cutoff=0.75)
        self.add(
            names[0],
            "is absent" if names[0] not in self.data else "is null",
            "the layer sizes follow from it, and a library's default would be a guess",
            f"add {names[0]}{other}" + (f"; the file has {close[0]!r}" if close else ""),
        )

    def _checked_whole(self, value: Any, name: str, minimum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            self.add(name, f"must be a whole number, not {_shown(value)}", "it counts something", "write e.g. 4096")
            return max(minimum, 1)
        if not minimum <= value <= LARGEST:
            self.add(name, f"is {_shown(value)}", f"it must be from {minimum} to {LARGEST:,}", "correct the number")
            return max(minimum, 1)
        return value


def _shown(value: Any) -> str:
    """A value in a message, shortened: a hostile file may hold megabytes."""
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a number of more than 30 digits"
    return text if len(text) <= 60 else f"{text[:57]}..."

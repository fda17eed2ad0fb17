"""Every way dplan can fail, one class each with its exit code, and the notices that are no failure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "CheckError",
    "DplanError",
    "InfeasibleError",
    "InputError",
    "InterruptedSolve",
    "NoPlanFoundError",
    "Notice",
    "Problem",
    "RegressionFound",
]

_MAX_PROBLEMS_SHOWN = 100


@dataclass(frozen=True)
class Notice:
    """Something a reader of the result must know that is no error; only the command line prints it."""

    code: str
    message: str


@dataclass(frozen=True)
class Problem:
    """One wrong thing in an input: where, what, why, what to do.

    Lines and columns count from 1; `path` is the place inside the document, e.g. `node_groups[1].chip`.
    """

    what: str
    why: str = ""
    fix: str = ""
    path: str = ""
    file: str | None = None
    line: int | None = None
    column: int | None = None

    def render(self) -> str:
        """`file:line:col: path: what; why; what to do`, without the parts that are not known."""
        place = self.file or ""
        if self.file is not None and self.line is not None:
            place += f":{self.line}:{self.column or 1}"
        sentence = "; ".join(part for part in (self.what, self.why, self.fix) if part)
        return _printable(": ".join(part for part in (place, self.path, sentence) if part))


class DplanError(Exception):
    """A failure that dplan explains. Without a subclass: our own bug.

    `message` is one line; each detail becomes an indented line below it.
    """

    exit_code = 1

    def __init__(self, message: str, *details: str) -> None:
        super().__init__(message, *details)
        self.message = message
        self.details = details

    def render(self) -> str:
        """The text a person reads."""
        lines = [f"error: {self.message}", *(f"  {detail}" for detail in self.details)]
        return "\n".join(_printable(line) for line in lines)

    def __str__(self) -> str:
        return self.render()


class InputError(DplanError):
    """A file or an option is wrong. Carries every problem found in one run."""

    exit_code = 2

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        assert self.problems, "an InputError names at least one problem"
        super().__init__(self.problems[0].what)
        self.args = (self.problems,)  # what pickling hands back to this constructor

    @classmethod
    def single(
        cls,
        what: str,
        why: str = "",
        fix: str = "",
        *,
        path: str = "",
        file: str | None = None,
        line: int | None = None,
        column: int | None = None,
    ) -> InputError:
        """An error of one problem."""
        return InputError([Problem(what=what, why=why, fix=fix, path=path, file=file, line=line, column=column)])

    def at(self, *, path: str | None = None, file: str | None = None) -> InputError:
        """The same problems, placed: for a command line option pass `path='--time-limit'`."""
        placed = [
            replace(problem, path=problem.path if path is None else path, file=problem.file if file is None else file)
            for problem in self.problems
        ]
        return InputError(placed)

    def render(self) -> str:
        """One line a problem, in the order of the file."""
        shown = self.problems[:_MAX_PROBLEMS_SHOWN]
        lines = [problem.render() if problem.file else f"error: {problem.render()}" for problem in shown]
        if len(self.problems) > len(shown):
            lines.append(f"and {len(self.problems) - len(shown)} more problems")
        return "\n".join(lines)


class InfeasibleError(DplanError):
    """Proved: no plan fits."""

    exit_code = 3


class NoPlanFoundError(DplanError):
    """Stopped before any plan was found; nothing is proved."""

    exit_code = 4


class CheckError(DplanError):
    """A check failed: the plan does not fit its inputs."""

    exit_code = 5


class RegressionFound(DplanError):
    """A limit that was set on a comparison is passed."""

    exit_code = 7


class InterruptedSolve(DplanError):
    """The person stopped the search; the best plan so far, if any, is written."""

    exit_code = 130


def _printable(text: str) -> str:
    """Control characters as escapes, so that a hostile file cannot steer the terminal."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

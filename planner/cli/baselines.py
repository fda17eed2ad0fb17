"""The `--baselines` part of `dplan solve`: compare the plan that was found, and print the comparison."""

from __future__ import annotations

from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING

from planner.errors import InputError, InterruptedSolve

if TYPE_CHECKING:
    from rich.console import Console

    from planner.search import SolveOptions, SolveResult
    from planner.search.baselines import BaselineProgress
    from planner.spec import Cluster, ModelSpec

__all__ = ["BaselineLine", "compare", "refuse_options"]


def refuse_options(objective: str, ignore_memory: bool, output: str) -> None:
    """Options with which there is nothing to compare, or no place to print it; before any work."""
    clashes = {
        "--objective cost": (objective == "cost", "baselines are compared by their step times"),
        "--ignore-memory": (ignore_memory, "its plan may not run; --baselines says what memory is worth"),
        "-o -": (output == "-", "standard output holds the plan then, and nothing else"),
    }
    for option, (given, why) in clashes.items():
        if given:
            raise InputError.single(
                path="--baselines", what=f"does not go with {option}", why=why, fix="leave one of the two out"
            )


def compare(
    cluster: Cluster, model: ModelSpec, options: SolveOptions, mixed: SolveResult, output: str, json: bool
) -> None:
    """Solve the baselines and print the comparison. The plan has been written to `output` before."""
    from planner.cli.output import print_json, print_report
    from planner.search.baselines import compare_baselines

    try:
        with BaselineLine() as progress:
            report = compare_baselines(
                cluster, model, replace(options, solver_log=None, warm_start=None), progress, mixed=mixed
            )
    except InterruptedSolve:
        raise InterruptedSolve(f"interrupted: the plan is in {output}, the comparison was not finished") from None
    document = report.document()
    if json:
        print_json(document)
        return
    from planner.report.baselines import baseline_report

    print()
    print_report(baseline_report(document))


class BaselineLine:
    """The progress line of a comparison; use as a context manager."""

    def __init__(self, console: Console | None = None) -> None:
        from planner.cli.progress import StatusLine

        self._line = StatusLine("comparing", console)

    def __enter__(self) -> BaselineLine:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)

    def __call__(self, progress: BaselineProgress) -> None:
        self._line.show(lambda width, later: line_text(progress, width, later))


def line_text(progress: BaselineProgress, width: int | None = None, later: float = 0.0) -> str:
    """`3 of 21: h100 alone: step 12.3 s, bound 12.1 s, gap 1.60 %, 50 candidates, 3 s`."""
    from planner.cli.progress import progress_text

    line = f"{progress.number} of {progress.total}: {progress.what}"
    return line if progress.search is None else progress_text(progress.search, None, width, line, later)

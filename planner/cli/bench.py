"""`dplan bench`: time, memory, gap and plan quality over a fixed family of cases."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import DebugOption, JsonOption
from planner.errors import InputError, InterruptedSolve, RegressionFound

if TYPE_CHECKING:
    from rich.console import Console

    from planner.bench.cases import Case
    from planner.bench.results import BenchResults, Limits
    from planner.bench.run import BenchProgress

__all__ = ["BenchLine", "bench"]


def bench(
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Run this case; may be given several times.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Run only the cases that take a few seconds.")] = False,
    list_cases: Annotated[bool, typer.Option("--list", help="List the cases, and run none.")] = False,
    output: Annotated[
        str | None, typer.Option("--output", "-o", metavar="FILE", help="Write the results here; - is stdout.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Compare with these results of an earlier run, on any machine; - is stdin."),
    ] = None,
    max_time: Annotated[
        float, typer.Option(metavar="RATIO", min=1, help="Time over the baseline's, both in calibration loops.")
    ] = 1.5,
    max_memory: Annotated[float, typer.Option(metavar="RATIO", min=1, help="Peak memory over the baseline's.")] = 1.5,
    max_step: Annotated[
        str, typer.Option(metavar="PERCENT", help="How much longer than the baseline's a step may be; a percentage.")
    ] = "0.1 %",
    max_gap: Annotated[
        str, typer.Option(metavar="PERCENT", help="How much wider than the baseline's a gap may be; percentage points.")
    ] = "1 %",
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Measure time, memory and plans over a family of cases.

    The family is fixed: shipped clusters of 8 to 131,072 chips, of one to eight chip types. Each case runs in a
    process of its own. With --baseline it leaves with 7 when a case passes one of the limits. Ctrl-C keeps the cases
    that are done, exit code 130.

    \b
    Examples:
      dplan bench --quick
      dplan bench --only 1024-mixed --only 16384 -o results.json
      dplan bench --baseline results.json --max-time 2
      dplan bench --list
    """
    from planner.bench.cases import select

    cases = select(only or (), quick)
    if list_cases:
        _list(cases, json)
        return
    limits = _limits(max_time, max_memory, max_step, max_gap)
    earlier = None if baseline is None else _baseline(baseline, cases)
    if output is not None and output != "-":
        from planner.plan.file import refuse_unwritable

        refuse_unwritable(output)
    _deliver(_run(cases, earlier, limits), output, json)


def _list(cases: tuple[Case, ...], json: bool) -> None:
    from planner.cli.output import print_json, print_report

    if json:
        from dataclasses import asdict

        print_json([asdict(case) for case in cases])
        return
    from planner.report.bench import cases_table

    print_report(cases_table(cases))


def _limits(max_time: float, max_memory: float, max_step: str, max_gap: str) -> Limits:
    """What is still no regression; every option that is wrong is named."""
    import math

    from planner.bench.results import Limits
    from planner.errors import Problem
    from planner.spec.units import parse_fraction

    problems: list[Problem] = []
    for option, ratio in (("--max-time", max_time), ("--max-memory", max_memory)):
        if not math.isfinite(ratio):
            problems.append(Problem(f"{ratio} is no ratio", "a limit is a number", "write 1.5", option))
    shares = []
    for option, text in (("--max-step", max_step), ("--max-gap", max_gap)):
        try:
            shares.append(parse_fraction(text))
        except InputError as error:
            problems += error.at(path=option).problems
    if problems:
        raise InputError(problems)
    return Limits(slower=max_time, memory=max_memory, worse=shares[0], wider=shares[1])


def _baseline(path: str, cases: tuple[Case, ...]) -> BenchResults:
    """Earlier results; those without any of the cases are refused before any work."""
    from planner.bench.file import load_results

    earlier = load_results(path)
    if not any(earlier.case(case.name) for case in cases):
        raise InputError.single(
            file="standard input" if path == "-" else path,
            path="cases",
            what="has none of the cases that would run",
            why="there would be nothing to compare",
            fix="name a run of the same cases, or leave --baseline out",
        )
    return earlier


def _run(cases: tuple[Case, ...], earlier: BenchResults | None, limits: Limits) -> BenchResults:
    from planner.bench.compare import compare
    from planner.bench.run import run_cases

    with BenchLine() as progress:
        results = run_cases(cases, earlier, progress)
    if earlier is not None:
        results = results.model_copy(update={"comparison": compare(results, earlier, limits)})
    return results


def _deliver(results: BenchResults, output: str | None, json: bool) -> None:
    """Write and print the results, and leave with the right code."""
    from planner.bench.file import dump_results
    from planner.cli.output import print_report, say

    if output is not None and output != "-":
        from planner.plan.file import write_atomic

        write_atomic(output, dump_results(results))
    if json or output == "-":
        print(dump_results(results), end="")
    else:
        from planner.report.bench import bench_report

        print_report(bench_report(results))
        if output is not None:
            print(f"\nwrote {output}")
    if not results.complete:
        kept = "" if output is None or output == "-" else f", {output} holds them"
        say(f"interrupted: {len(results.cases)} {'case is' if len(results.cases) == 1 else 'cases are'} done{kept}")
        raise typer.Exit(InterruptedSolve.exit_code)
    _refuse_regressions(results)


def _refuse_regressions(results: BenchResults) -> None:
    from planner.cli.output import say
    from planner.report.bench import regression_lines

    if results.comparison is None or not results.comparison.regressed:
        return
    lines = regression_lines(results.comparison)
    count = f"{len(lines)} of {len(results.cases)} cases"
    say(RegressionFound(f"{count} passed a limit beside the baseline", *lines).render())
    raise typer.Exit(RegressionFound.exit_code)


class BenchLine:
    """Which case runs, on stderr: a line when one begins and ends, and between them how the search stands where a
    person watches.
    """

    def __init__(self, console: Console | None = None) -> None:
        from rich.console import Console

        from planner.cli.progress import StatusLine

        self._console = console or Console(stderr=True, markup=False, emoji=False, highlight=False, soft_wrap=True)
        self._line = StatusLine("calibrating", self._console)

    def __enter__(self) -> BenchLine:
        self._line.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._line.__exit__(kind, error, trace)

    def __call__(self, progress: BenchProgress) -> None:
        if progress.search is None and (progress.result is not None or not self._line.is_watched):
            self._console.print(line_text(progress))
        else:
            self._line.show(lambda width, later: line_text(progress, width, later))


def line_text(progress: BenchProgress, width: int | None = None, later: float = 0.0) -> str:
    """`3 of 17: 16-rtx: step 12.3 s, ...`, at the end `3 of 17: 16-rtx: 4.2 s, gap 0.98 %`."""
    from planner.cli.progress import progress_text
    from planner.report.bench import case_line

    line = f"{progress.number} of {progress.total}: {progress.case.name}"
    if progress.result is not None:
        return f"{line}: {case_line(progress.result)}"
    if progress.search is not None:
        return progress_text(progress.search, None, width, line, later)
    return f"{line}: {progress.case.model} on {progress.case.cluster}"

"""Benchmarks in a terminal: what each case took, what it found, and how that compares with a baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.bars import heading, indented, new_table
from planner.report.words import format_exact_duration, format_number, format_percent
from planner.spec.units import format_bytes

if TYPE_CHECKING:
    from planner.bench.cases import Case
    from planner.bench.results import BenchResults, CaseResult, Change, Comparison, Limits

__all__ = ["bench_report", "case_line", "cases_table", "limits_line", "regression_lines"]

_NONE = "-"
_STOPS = {"gap": "gap", "time": "time", "exhausted": "end"}
"""Why a search stopped, in a narrow column."""


def cases_table(cases: Sequence[Case]) -> RenderableType:
    """The family, one line a case."""
    table = new_table("case", "cluster", "model", "pipelines", "limit", right=("limit",))
    for case in cases:
        table.add_row(
            case.name + (" *" if case.quick else ""),
            case.cluster,
            case.model,
            case.pipelines,
            f"{case.time_limit_s:,.0f} s",
        )
    return Group(table, Text(""), Text("*: runs with --quick", style="dim"))


def bench_report(results: BenchResults) -> RenderableType:
    """A run for 80 columns."""
    parts: list[RenderableType] = [*_cost_section(results), Text(""), *_plan_section(results.cases)]
    if results.comparison is not None:
        parts += [Text(""), *_comparison_section(results.comparison)]
    return Group(*parts)


def case_line(case: CaseResult) -> str:
    """`12.3 s, gap 0.98 %`, or why there is no plan."""
    if case.found is None:
        return f"no plan: {_reason(case)}"
    return f"{_seconds(case.found.solve_s)}, gap {format_percent(case.found.gap, 2)}"


def _reason(case: CaseResult) -> str:
    assert case.failure is not None, "a case without a plan has a failure"
    return case.failure.message.partition("\n")[0]


def _case_table(*columns: str, right: tuple[str, ...]) -> Table:
    """One line a case; its name stays whole."""
    table = new_table("case", *columns, right=right)
    table.columns[0].no_wrap = True
    return table


def _cost_section(results: BenchResults) -> Iterator[RenderableType]:
    yield heading("what it took")
    right = ("chips", "types", "first", "time", "loops", "memory")
    table = _case_table(*right, "stop", right=right)
    for case in results.cases:
        table.add_row(case.name, *_cost(case))
    yield indented(table)
    if results.calibration_s is not None:
        loop = format_exact_duration(results.calibration_s)
        legend = f"first: until a first plan; loops: time over a calibration loop, {loop} here"
        yield indented(Text(legend, style="dim"))
    yield from _items([f"{case.name}: {_reason(case)}" for case in results.cases if case.found is None])


def _cost(case: CaseResult) -> tuple[str, ...]:
    """Chips, chip types, time of the first plan and of the search, loops, peak memory, why it stopped."""
    memory = _NONE if case.peak_bytes is None else format_bytes(case.peak_bytes)
    found = case.found
    if found is None:
        return (_NONE, _NONE, _NONE, _NONE, _NONE, memory, "no plan")
    first = _NONE if found.first_plan_s is None else _seconds(found.first_plan_s)
    return (
        f"{found.chips:,}",
        str(found.chip_types),
        first,
        _seconds(found.solve_s),
        f"{found.loops:,.1f}",
        memory,
        _STOPS[found.why_stopped],
    )


def _seconds(duration_s: float) -> str:
    """`12.3 s`: one unit, so that a column can be compared."""
    return f"{duration_s:,.1f} s"


def _plan_section(cases: Sequence[CaseResult]) -> Iterator[RenderableType]:
    yield heading("what it found")
    right = ("step", "bound", "gap", "chips used", "TGS", "programs")
    table = _case_table(*right, right=right)
    for case in cases:
        found = case.found
        if found is None:
            table.add_row(case.name, *[_NONE] * len(right))
            continue
        table.add_row(
            case.name,
            format_exact_duration(found.step_time_s),
            format_exact_duration(found.bound_s),
            format_percent(found.gap, 2),
            f"{found.chips_used:,}",
            format_number(found.tokens_per_s_per_chip),
            f"{found.programs:,}",
        )
    yield indented(table)
    yield indented(Text("TGS: tokens a second and chip", style="dim"))


def _comparison_section(comparison: Comparison) -> Iterator[RenderableType]:
    yield heading("beside the baseline")
    right = ("time", "memory", "step", "gap")
    table = _case_table(*right, "", right=right)
    for change in comparison.changes:
        table.add_row(change.name, *_change(change), _verdict(change))
    yield indented(table)
    yield indented(Text(limits_line(comparison.limits), style="dim"))
    notes = [f"{change.name}: {change.note}" for change in comparison.changes if change.note]
    if comparison.not_run:
        notes.append(f"of the baseline did not run: {', '.join(comparison.not_run)}")
    yield from _items(notes)


def limits_line(limits: Limits) -> str:
    """What is still no regression, in the order of the columns."""
    worse, wider = f"{100 * limits.worse:g} %", f"{100 * limits.wider:g} points"
    return f"limits: time {limits.slower:g}x, memory {limits.memory:g}x, step +{worse}, gap +{wider}"


def _change(change: Change) -> tuple[str, str, str, str]:
    """Time and memory as ratios, step time in percent, gap in percentage points."""
    return (
        _NONE if change.loops_ratio is None else f"{change.loops_ratio:.2f}x",
        _NONE if change.memory_ratio is None else f"{change.memory_ratio:.2f}x",
        _NONE if change.worse is None else f"{100 * change.worse:+.2f} %",
        _NONE if change.wider is None else f"{100 * change.wider:+.2f}",
    )


def _verdict(change: Change) -> Text:
    words = {
        "slower": "slower",
        "memory": "more memory",
        "plan": "worse plan",
        "gap": "wider gap",
        "no plan": "no plan",
    }
    if change.regressions:
        return Text(", ".join(words[name] for name in change.regressions), style="red")
    compared = change.worse is not None
    return Text("ok" if compared else "not compared", style="green" if compared else "dim")


def regression_lines(comparison: Comparison) -> list[str]:
    """One line a case that passes a limit, with the numbers: `8-h100: 1.80x slower (limit 1.5x)`."""
    lines = []
    for change in comparison.regressed:
        said = ", ".join(_said(name, change, comparison.limits) for name in change.regressions)
        lines.append(f"{change.name}: {said}")
    return lines


def _said(name: str, change: Change, limits: Limits) -> str:
    if name == "slower":
        return f"takes {change.loops_ratio:.2f}x the time (limit {limits.slower:g}x)"
    if name == "memory":
        return f"takes {change.memory_ratio:.2f}x the memory (limit {limits.memory:g}x)"
    if name == "plan":
        return f"step {100 * (change.worse or 0):.2f} % longer (limit {100 * limits.worse:g} %)"
    if name == "gap":
        return f"gap {100 * (change.wider or 0):.2f} points wider (limit {100 * limits.wider:g})"
    return "no plan any more"


def _items(lines: Sequence[str]) -> Iterator[Padding]:
    """A bullet a line; further lines are indented."""
    for line in lines:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column()
        table.add_column(overflow="fold")
        table.add_row("-", line)
        yield indented(table)

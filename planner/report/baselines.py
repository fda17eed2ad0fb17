"""What a plan is worth, in a terminal: beside each chip type alone and beside rules of thumb, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.report.bars import heading, indented, new_table
from planner.report.words import format_number, format_percent
from planner.spec.units import format_bytes, format_duration

__all__ = ["baseline_report"]

_COLOURS = {"confirmed": "green", "not confirmed": "red", "undecided": "yellow"}


def baseline_report(document: Mapping[str, Any]) -> RenderableType:
    """A comparison for 80 columns. document: the JSON form of a BaselineReport (docs/baselines.md)."""
    parts: list[RenderableType] = [
        heading("what the plan is worth, all plans judged by one cost model"),
        indented(_plans_table(document)),
        *_misfits(document),
        Text(""),
        *_ratio_section(document),
    ]
    if document["chip_time"] is not None:
        parts += [Text(""), *_why_section(document)]
    if document["notes"]:
        parts += [Text(""), heading("how these numbers were made"), *_items(document["notes"])]
    return Group(*parts)


def _plans_table(document: Mapping[str, Any]) -> Table:
    """This plan, every chip type alone with their sum, and the rules of thumb."""
    mixed, separate = document["mixed"], document["separate_tokens_per_s"]
    table = new_table(
        "", "chips", "step", "tokens/s", "TGS", "of this plan", right=("chips", "step", "tokens/s", "TGS")
    )
    table.add_row("this plan", *_numbers(mixed, mixed["chips"]), "")
    if separate:
        rate = format_number(separate)
        per_chip = format_number(separate / mixed["chips"])
        share = format_percent(separate / mixed["tokens_per_s"])
        table.add_row("each chip type alone", f"{mixed['chips']:,}", "", rate, per_chip, share)
    for baseline in document["homogeneous"]:
        note = "" if baseline["status"] == "planned" else baseline["status"]
        table.add_row(f"  {baseline['chip']}", *_numbers(baseline, baseline["chips"]), note)
    for rule in document["rules"]:
        share = rule["status"]
        if rule["tokens_per_s"]:
            share = format_percent(rule["tokens_per_s"] / mixed["tokens_per_s"])
        table.add_row(rule["title"], *_numbers(rule, mixed["chips"]), share)
    return table


def _numbers(plan: Mapping[str, Any], chips: int) -> tuple[str, str, str, str]:
    """Chips, step time, tokens per second, tokens per second and chip."""
    if plan["step_time_s"] is None:
        return f"{chips:,}", "-", "-", "-"
    rates = format_number(plan["tokens_per_s"]), format_number(plan["tokens_per_s_per_chip"])
    return f"{chips:,}", format_duration(plan["step_time_s"]), *rates


def _misfits(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Why a baseline has no plan; rules of thumb with the same reason share a line."""
    lines = []
    for baseline in document["homogeneous"]:
        if baseline["status"] != "planned":
            lines.append(f"{baseline['chip']} alone {_why_not(baseline)}")
    titles: dict[str, list[str]] = {}
    for rule in document["rules"]:
        if rule["status"] != "planned":
            titles.setdefault(_why_not(rule), []).append(rule["title"])
    yield from _items([*lines, *(f"{', '.join(rules)} {why}" for why, rules in titles.items())])


def _why_not(baseline: Mapping[str, Any]) -> str:
    """`does not fit, 1.7 GiB missing: at best stage 0 ...`."""
    status = {"not found": "was not found in time", "impossible": "is impossible"}.get(
        baseline["status"], baseline["status"]
    )
    missing = baseline.get("missing_bytes") or 0
    return f"{status}{f', {format_bytes(missing)} missing' if missing else ''}: {baseline['reason']}"


def _ratio_section(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    ratio = document["hetero_speedup_ratio"]
    if ratio["value"] is None:
        yield heading("HeteroSpeedupRatio: not known")
        none = all(baseline["status"] in ("does not fit", "impossible") for baseline in document["homogeneous"])
        why = "no chip type can train this model alone" if none else "a chip type was not planned in time"
        yield indented(Text(f"{why}, so there is nothing to compare with"))
        return
    yield heading(f"HeteroSpeedupRatio {format_percent(ratio['value'])}")
    together = format_number(document["mixed"]["tokens_per_s"])
    apart = format_number(document["separate_tokens_per_s"])
    yield indented(Text(f"{together} tokens/s together, {apart} when each chip type trains alone"))
    yield indented(Text(_proved(ratio)))


def _proved(ratio: Mapping[str, Any]) -> str:
    least, most = (None if ratio[key] is None else format_percent(ratio[key]) for key in ("least", "most"))
    if least is None:
        return "nothing is proved yet" if most is None else f"proved: that of the best plans is at most {most}"
    if most is None:
        return f"proved: that of the best plans is at least {least}"
    return f"proved: that of the best plans lies between {least} and {most}"


def _why_section(document: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Shares of the chips' time on both sides, and the ratio when a cause is taken away."""
    time = document["chip_time"]
    yield heading("where the chips' time goes, each chip counted by its speed")
    right = ("together", "alone", "points", "ratio without")
    table = new_table("", *right, "", right=right)
    mixed, separate = time["mixed"]["compute"], time["separate"]["compute"]
    table.add_row("computing", format_percent(mixed), format_percent(separate), _points(mixed - separate), "", "")
    for statement in document["statements"]:
        table.add_row(*_cause(statement))
    yield indented(table)
    changed = format_percent(time["yield_ratio"])
    yield indented(Text(f"a second of computing together yields {changed} of what it yields alone"))
    asked = [s for s in document["statements"] if s["ablation"] is not None]
    if asked:
        yield Text("")
        yield heading("solved again to confirm it")
        yield from _items([f"{s['title']}: {s['what']}; solved as if {s['ablation']['change']}" for s in asked])


def _cause(statement: Mapping[str, Any]) -> tuple[RenderableType, ...]:
    again, verdict = statement["ablation"], statement["verdict"]
    ratio = None if again is None else again["hetero_speedup_ratio"]["value"]
    word = f"{verdict}, proved" if statement["proved"] else verdict
    return (
        statement["title"],
        format_percent(statement["mixed_share"]),
        format_percent(statement["separate_share"]),
        _points(statement["gain"]),
        "" if ratio is None else format_percent(ratio),
        Text(word, style=_COLOURS.get(verdict, "dim")),
    )


def _points(gain: float) -> str:
    """`+2.4`: percentage points that the mixed plan gains."""
    return f"{100 * gain:+.1f}"


def _items(lines: Sequence[str]) -> Iterator[RenderableType]:
    """A bullet a line; further lines are indented."""
    for line in lines:
        table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        table.add_column()
        table.add_column(overflow="fold")
        table.add_row("-", line)
        yield indented(table)

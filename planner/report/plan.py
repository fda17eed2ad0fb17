"""What a plan looks like in a terminal: who runs which layers, how full and how busy each stage is, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from shlex import quote
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.plan.idle import number_runs
from planner.plan.ranks import ChipMap
from planner.plan.schema import TIGHT_FRACTION
from planner.report.bars import heading, indented, new_table
from planner.report.certificate import certificate_section, space_section
from planner.report.pipelines import pipelines_section
from planner.report.placement import placement_section
from planner.report.training import trained_line, training_section
from planner.report.words import format_number, format_percent, plural
from planner.spec.units import format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Plan, Stage

__all__ = ["full_hint", "merged_warnings", "plan_headline", "plan_report"]


def full_hint(name: str) -> str:
    """How to see what the short report leaves out; a command, so on one line however long the file's name is."""
    return f"plan space and assumptions: dplan show {quote(name)} --full"


def plan_report(plan: Plan, *, full: bool = False) -> RenderableType:
    """A plan for 80 columns. full: every transfer and warning, plan space and assumptions too."""
    groups = [group for group, *_ in ChipMap(plan.inputs.cluster.document).groups]
    parts: list[RenderableType] = [*_title(plan), plan_headline(plan), Text(""), *_group_section(plan)]
    parts += pipelines_section(plan, full)
    parts += placement_section(plan, full)
    if plan.training is not None:
        parts += [Text(""), *training_section(plan.training, len(plan.used_ranks))]
    parts += [Text(""), *certificate_section(plan.certificate)]
    if full:
        parts += [*space_section(plan.certificate.plan_space, groups), *_list_section("assumptions", plan.assumptions)]
        parts += _list_section("warnings", [notice.message for notice in plan.warnings])
    else:
        parts += _list_section("warnings", merged_warnings(plan))
    return Group(*parts)


def _title(plan: Plan) -> Iterator[RenderableType]:
    yield Text.assemble((plan.inputs.model.name, "bold"), " on ", (plan.inputs.cluster.name, "bold"))
    if plan.ignored_constraints:
        ignored = ", ".join(plan.ignored_constraints)
        yield Text(f"MADE WITHOUT REGARD TO {ignored.upper()}: IT MAY NOT RUN", style="bold red")
    trained = trained_line(plan)
    if trained is not None:
        yield indented(Text(trained))


def _group_section(plan: Plan) -> Iterator[RenderableType]:
    """Every node group of the cluster: its chip, and how many of them work."""
    idle = {item.node_group: item.chips for item in plan.idle}
    used = Counter[str]()
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            used[stage.node_group] += sum(len(replica) for replica in stage.ranks)
    yield heading("node groups")
    table = new_table("", "chip", "used", "idle", right=("used", "idle"))
    for name, chip, _, _ in ChipMap(plan.inputs.cluster.document).groups:
        table.add_row(name, chip, f"{used[name]:,}", f"{idle.get(name, 0):,}")
    yield indented(table)


def plan_headline(plan: Plan) -> RenderableType:
    """The few numbers that people ask for first."""
    prediction, used = plan.prediction, len(plan.used_ranks)
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 3, 0, 0))
    for _ in range(3):
        table.add_column()
    table.add_row(
        _labelled("step", format_duration(prediction.step_time_s)),
        _labelled("tokens/s", format_number(prediction.tokens_per_s)),
        _labelled("per chip (TGS)", format_number(prediction.tokens_per_s_per_chip)),
    )
    table.add_row(
        _labelled("MFU", "not known" if prediction.mfu is None else format_percent(prediction.mfu)),
        _labelled("bubble", format_percent(prediction.bubble_fraction)),
        _labelled("chips", _chips(plan, used)),
    )
    return indented(table)


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label} ", "dim"), value)


def _chips(plan: Plan, used: int) -> str:
    idle = sum(item.chips for item in plan.idle)
    return f"{used:,}" if idle == 0 else f"{used:,} of {used + idle:,}"


def merged_warnings(plan: Plan) -> list[str]:
    """One line for all tight stages; idle chips stand in the table of node groups already."""
    tight = [[s for s, stage in enumerate(p.stages) if _is_tight(stage)] for p in plan.pipelines]
    count, total = sum(map(len, tight)), sum(len(p.stages) for p in plan.pipelines)
    kept = [n for n in plan.warnings if n.code != "idle" and not (count and n.code == "tight")]
    lines = [notice.message for notice in kept]
    if len(kept) < sum(notice.code != "idle" for notice in plan.warnings):
        runs = [number_runs(tight[0])]
        if len(tight) > 1:
            runs = [f"{number_runs(stages)} in pipeline {j + 1}" for j, stages in enumerate(tight) if stages]
        have, stages = "has" if count == 1 else "have", plural("stage", total)
        least, named = format_percent(TIGHT_FRACTION, 0), "; ".join(runs)
        lines.append(f"{count} of {total} {stages} {have} less than {least} memory left: {named}")
    return lines


def _is_tight(stage: Stage) -> bool:
    return stage.memory.is_tight and stage.memory.peak_bytes <= stage.memory.usable_bytes


def _list_section(title: str, lines: Sequence[str]) -> Iterator[RenderableType]:
    if lines:
        yield Text("")
        yield heading(title)
        for line in lines:
            yield indented(_item(line))


def _item(line: str) -> Table:
    """A bullet whose further lines are indented."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("-", line)
    return table

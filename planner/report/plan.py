"""What a plan looks like in a terminal: who runs which layers, how full and how busy each stage is, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from planner.plan.idle import number_runs
from planner.plan.ranks import ChipMap
from planner.plan.schema import TIGHT_FRACTION
from planner.report.bars import Bar, heading, indented, new_table
from planner.report.certificate import certificate_section, space_section
from planner.report.training import trained_line, training_section
from planner.report.transfers import transfer_table
from planner.report.words import format_number, format_percent, layer_ranges, plural
from planner.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Plan, Stage

__all__ = ["full_hint", "merged_warnings", "plan_headline", "plan_report"]

_KEEPS_ALL = ("embedding", "norm", "head")
"""Layers that are never recomputed; in a stack of two, with its name in front."""
_SHORT_POLICY = {"full": "full", "selective": "sel."}


def full_hint(name: str) -> str:
    """How to see what the short report leaves out; a command, so on one line however long the file's name is."""
    return f"plan space and assumptions: dplan show {quote(name)} --full"


def plan_report(plan: Plan, *, full: bool = False) -> RenderableType:
    """A plan for 80 columns. full: every transfer and warning, plan space and assumptions too."""
    document = plan.inputs.cluster.document
    groups = [group for group, *_ in ChipMap(document).groups]
    parts: list[RenderableType] = [*_title(plan), plan_headline(plan), Text(""), *_group_section(plan)]
    pipelines = plan.pipelines
    for index, pipeline in enumerate(pipelines):
        title = f"pipeline {index + 1}" if len(pipelines) > 1 else "pipeline"
        parts += [Text(""), *_pipeline_section(pipeline, title, document, full)]
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


def _pipeline_section(
    pipeline: Pipeline, name: str, cluster: Mapping[str, Any], full: bool
) -> Iterator[RenderableType]:
    replicas, sequences = pipeline.replicas, pipeline.micro_batch_size
    yield heading(
        f"{name}: {replicas} {plural('replica', replicas)} x {pipeline.micro_batches} "
        f"{plural('micro-batch', pipeline.micro_batches)} of {sequences} {plural('sequence', sequences)}, "
        f"{pipeline.schedule.name}"
    )
    yield indented(_placement_table(pipeline))
    yield Text("")
    yield heading("memory of one chip, time of one micro-batch, micro-batches held in flight")
    yield indented(_load_table(pipeline))
    if pipeline.transfers:
        yield Text("")
        yield heading("between stages, one micro-batch")
        yield indented(transfer_table(pipeline, cluster, full))
    yield Text("")
    reduction, optimizer = _up_to(pipeline.reduction_s), _up_to(pipeline.optimizer_s)
    yield indented(Text(f"then, once a step: gradient reduction {reduction}, optimizer {optimizer}"))


def _up_to(seconds: float) -> str:
    return f"up to {format_duration(seconds)}" if seconds > 0 else "none"


def _placement_table(pipeline: Pipeline) -> Table:
    """Who holds what; chips of all replicas. Degrees of context and expert parallelism are shown when one is not 1."""
    context = any(stage.context_parallel > 1 for stage in pipeline.stages)
    expert = any(stage.expert_parallel > 1 for stage in pipeline.stages)
    columns = ["", "node group", "chips", "tp", *(["cp"] if context else []), *(["ep"] if expert else [])]
    table = new_table(*columns, "layers", "recompute", right=("", "chips", "tp", "cp", "ep"))
    for index, stage in enumerate(pipeline.stages):
        degrees = [str(stage.tensor_parallel)]
        degrees += [str(stage.context_parallel)] if context else []
        degrees += [str(stage.expert_parallel)] if expert else []
        chips = f"{sum(len(replica) for replica in stage.ranks):,}"
        table.add_row(str(index), stage.node_group, chips, *degrees, layer_ranges(stage.layers), _recompute(stage))
    return table


def _recompute(stage: Stage) -> str:
    """`3/12 full`: how many of the stage's layers run again in the backward pass, of those that can."""
    counts = dict.fromkeys(_SHORT_POLICY, 0)
    for policy in stage.recompute.values():
        counts[policy] += 1
    able = sum(name in stage.recompute or name.rpartition(".")[2] not in _KEEPS_ALL for name in stage.layers)
    parts = [f"{count}/{able} {_SHORT_POLICY[policy]}" for policy, count in counts.items() if count]
    return ", ".join(parts) or "none"


def _load_table(pipeline: Pipeline) -> Table:
    """A bar for memory against what is usable, and one for time against the slowest stage."""
    table = new_table("", "bar", "memory", "", "bar", "time", "held", right=("", "memory", "time", "held"))
    slowest = max(_micro_batch_s(stage) for stage in pipeline.stages)
    for index, stage in enumerate(pipeline.stages):
        table.add_row(str(index), *_memory_cells(stage), *_time_cells(stage, slowest), str(stage.in_flight))
    return table


def _micro_batch_s(stage: Stage) -> float:
    time = stage.time
    return time.forward_s + time.backward_input_s + time.backward_weight_s + time.recompute_s


def _memory_cells(stage: Stage) -> tuple[RenderableType, ...]:
    peak, usable = stage.memory.peak_bytes, stage.memory.usable_bytes
    share = peak / usable if usable else 1.0
    if peak > usable:
        mark, colour = "over", "red"
    elif stage.memory.is_tight:
        mark, colour = "tight", "yellow"
    else:
        mark, colour = "", "green"
    used, limit = format_bytes(peak), format_bytes(usable)
    if used.split()[1] == limit.split()[1]:
        used = used.split()[0]
    numbers = f"{used} of {limit}"
    return Bar(((share, colour),)), numbers, Text(mark, style=colour)


def _time_cells(stage: Stage, slowest: float) -> tuple[RenderableType, ...]:
    time, total = stage.time, _micro_batch_s(stage)
    scale = slowest or 1.0
    work = (time.forward_s + time.backward_input_s + time.backward_weight_s) / scale
    return Bar(((work, "cyan"), (time.recompute_s / scale, "magenta"))), format_duration(total)


def merged_warnings(plan: Plan) -> list[str]:
    """One line for all tight stages; idle chips stand in the table of node groups already."""
    stages = [stage for pipeline in plan.pipelines for stage in pipeline.stages]
    tight = [i for i, s in enumerate(stages) if s.memory.is_tight and s.memory.peak_bytes <= s.memory.usable_bytes]
    merges = bool(tight) and len(plan.pipelines) == 1
    kept = [n for n in plan.warnings if n.code != "idle" and not (merges and n.code == "tight")]
    lines = [notice.message for notice in kept]
    if merges and len(kept) < sum(notice.code != "idle" for notice in plan.warnings):
        have = "has" if len(tight) == 1 else "have"
        total = f"{len(stages)} {plural('stage', len(stages))}"
        least = format_percent(TIGHT_FRACTION, 0)
        lines.append(f"{len(tight)} of {total} {have} less than {least} memory left: {number_runs(tight)}")
    return lines


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

"""What a plan looks like in a terminal: who runs which layers, how full and how busy each stage is, and the proof."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.plan.ranks import ChipMap
from planner.report.bars import Bar, new_table
from planner.report.words import (
    format_count,
    format_exact_duration,
    format_number,
    format_percent,
    layer_ranges,
    plural,
)
from planner.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Certificate, Pipeline, Plan, Stage, TrainingEstimate

__all__ = ["plan_headline", "plan_report"]

_TRANSPORTS = {"rdma": "chip to chip (rdma)", "host": "through host memory"}
_SHORT_POLICY = {"full": "full", "selective": "sel."}


def plan_report(plan: Plan) -> RenderableType:
    """Everything about a plan, for 80 columns."""
    parts: list[RenderableType] = [*_title(plan), plan_headline(plan), Text(""), *_group_section(plan)]
    pipelines = plan.pipelines
    for index, pipeline in enumerate(pipelines):
        name = f"pipeline {index + 1}" if len(pipelines) > 1 else "pipeline"
        parts += [Text(""), *_pipeline_section(pipeline, name)]
    if plan.training is not None:
        parts += [Text(""), *_training_section(plan.training)]
    parts += [Text(""), *_certificate_section(plan.certificate)]
    parts += _notes_section(plan)
    return Group(*parts)


def _heading(text: str) -> Text:
    return Text(text, style="bold")


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2))


def _title(plan: Plan) -> Iterator[RenderableType]:
    yield Text.assemble((plan.inputs.model.name, "bold"), " on ", (plan.inputs.cluster.name, "bold"))
    if plan.ignored_constraints:
        ignored = ", ".join(plan.ignored_constraints)
        yield Text(f"MADE WITHOUT REGARD TO {ignored.upper()}: IT MAY NOT RUN", style="bold red")


def _group_section(plan: Plan) -> Iterator[RenderableType]:
    """Every node group of the cluster: its chip, and how many of them work."""
    idle = {item.node_group: item.chips for item in plan.idle}
    used = Counter[str]()
    for pipeline in plan.pipelines:
        for stage in pipeline.stages:
            used[stage.node_group] += sum(len(replica) for replica in stage.ranks)
    yield _heading("node groups")
    table = new_table("", "chip", "used", "idle", right=("used", "idle"))
    for name, chip, _, _ in ChipMap(plan.inputs.cluster.document).groups:
        table.add_row(name, chip, f"{used[name]:,}", f"{idle.get(name, 0):,}")
    yield _indented(table)


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
    return _indented(table)


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label} ", "dim"), value)


def _chips(plan: Plan, used: int) -> str:
    idle = sum(item.chips for item in plan.idle)
    return f"{used:,}" if idle == 0 else f"{used:,} of {used + idle:,}"


def _pipeline_section(pipeline: Pipeline, name: str) -> Iterator[RenderableType]:
    replicas, sequences = pipeline.replicas, pipeline.micro_batch_size
    yield _heading(
        f"{name}: {replicas} {plural('replica', replicas)} x {pipeline.micro_batches} "
        f"{plural('micro-batch', pipeline.micro_batches)} of {sequences} {plural('sequence', sequences)}, "
        f"{pipeline.schedule.name}"
    )
    yield _indented(_placement_table(pipeline))
    yield Text("")
    yield _heading("memory of one chip, time of one micro-batch, micro-batches held in flight")
    yield _indented(_load_table(pipeline))
    if pipeline.transfers:
        yield Text("")
        yield _heading("between stages, one micro-batch")
        yield _indented(_transfer_table(pipeline))
    yield Text("")
    reduction, optimizer = format_duration(pipeline.reduction_s), format_duration(pipeline.optimizer_s)
    yield _indented(Text(f"then, once a step: gradient reduction up to {reduction}, optimizer up to {optimizer}"))


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
    """`3/12 full`: how many of the stage's layers run again in the backward pass."""
    counts = dict.fromkeys(_SHORT_POLICY, 0)
    for policy in stage.recompute.values():
        counts[policy] += 1
    parts = [f"{count}/{len(stage.layers)} {_SHORT_POLICY[policy]}" for policy, count in counts.items() if count]
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


def _transfer_table(pipeline: Pipeline) -> Table:
    table = new_table("", "size", "onward", "back", "transport", right=("size", "onward", "back"))
    for transfer in pipeline.transfers:
        table.add_row(
            f"{transfer.from_stage} -> {transfer.to_stage}",
            format_bytes(transfer.bytes),
            format_duration(transfer.time_s),
            format_duration(transfer.backward_time_s),
            "inside a node" if transfer.same_node else _TRANSPORTS[transfer.transport],
        )
    return table


def _training_section(training: TrainingEstimate) -> Iterator[RenderableType]:
    if training.tokens is not None and training.steps is not None and training.days is not None:
        yield _heading(f"training on {format_count(training.tokens)} tokens")
        length = (
            f"{format_number(training.days)} days" if training.days >= 2 else format_duration(training.days * 86400)
        )
        line = f"{training.steps:,} {plural('step', training.steps)}, {length} without interruptions"
        if training.cost is not None:
            line += f", {format_number(training.cost)} {training.currency}"
        yield _indented(Text(line))
    if training.price_per_hour is not None and training.price_per_million_tokens is not None:
        if training.tokens is None:
            yield _heading("price")
        hour, million = format_number(training.price_per_hour), format_number(training.price_per_million_tokens)
        yield _indented(Text(f"{hour} {training.currency} an hour, {million} {training.currency} a million tokens"))


def _certificate_section(certificate: Certificate) -> Iterator[RenderableType]:
    yield _heading("certificate")
    if certificate.unit == "s":
        objective, bound = format_exact_duration(certificate.objective), format_exact_duration(certificate.bound)
        numbers = f"step {objective}, proved lower bound {bound}"
    else:
        unit = certificate.unit
        numbers = f"{certificate.objective:.4g} {unit}, proved lower bound {certificate.bound:.4g} {unit}"
    yield _indented(Text(f"{numbers}: gap {format_percent(certificate.gap, 2)}"))
    yield _indented(Text(_verdict(certificate)))
    if certificate.plan_space:
        yield _indented(_space_table(certificate.plan_space))


def _verdict(certificate: Certificate) -> str:
    space = f"no plan of this space is more than {format_percent(certificate.gap, 2)} better"
    if certificate.gap == 0:
        space = "no plan of this space is better"
    if certificate.why_stopped in ("gap", "exhausted"):
        return space
    why = {"time": "the time limit came first", "interrupted": "the search was interrupted"}[certificate.why_stopped]
    asked = "" if certificate.gap_asked is None else f" (asked: {format_percent(certificate.gap_asked, 2)})"
    return f"{space}; {why}{asked}"


def _space_table(space: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in sorted(space.items()):
        table.add_row(name.replace("_", " "), _space_value(value))
    return table


def _space_value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_space_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        items = [_space_value(item) for item in value]
        return ("; " if any(" " in item for item in items) else ", ").join(items) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def _notes_section(plan: Plan) -> Iterator[RenderableType]:
    for title, lines in (("assumptions", plan.assumptions), ("warnings", [n.message for n in plan.warnings])):
        if lines:
            yield Text("")
            yield _heading(title)
            for line in lines:
                yield _indented(_item(line))


def _item(line: str) -> Table:
    """A bullet whose further lines are indented."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("-", line)
    return table

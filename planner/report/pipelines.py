"""The pipelines of a plan: who holds what, how full and how busy each stage is, what crosses between stages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.cost.branching_recurrence import BranchTimes, pairs_step_time
from planner.report.bars import Bar, heading, indented, new_table
from planner.report.entries import Shape, shapes_of
from planner.report.legend import SHORT_POLICY, legend
from planner.report.transfers import transfer_table
from planner.report.words import format_percent, layer_ranges, plural
from planner.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Plan, Stage

__all__ = ["pipelines_section"]

_KEEPS_ALL = ("embedding", "norm", "head")
"""Layers that are never recomputed; in a stack of two, with its name in front."""
_MOST_WHOLE, _MOST_ROWS = 8, 16
"""With more pipelines than this only the slowest is shown stage by stage, and only the largest have a row, unless
everything is asked for."""
_LOAD = "memory of one chip, time of one micro-batch, micro-batches held in flight"
"""What the bars of a pipeline's stages show."""


def pipelines_section(plan: Plan, full: bool) -> Iterator[RenderableType]:
    """One shape with all its tables; of several first what each does, then the tables of each without titles; then what
    the abbreviations mean.

    full: every transfer, and every pipeline of the plan apart, however many there are.
    """
    document, pipelines = plan.inputs.cluster.document, plan.pipelines
    shapes = shapes_of(pipelines, [_own_step_s(pipeline) for pipeline in pipelines], merge=not full)
    yield Text("")
    if len(shapes) == 1:
        yield from _only_section(shapes[0], document, full)
        shown = shapes
    else:
        slowest = max(range(len(shapes)), key=lambda i: (shapes[i].step_s, -i))
        yield from _overview(shapes, slowest, full)
        yield Text("")
        shown = shapes
        if len(shapes) > _MOST_WHOLE and not full:
            shown = [shapes[slowest]]
            yield Text("the slowest of them; --full shows all")
        yield Text(f"{_LOAD}:")
        for shape in shown:
            yield Text("")
            yield from _one_of_several(shape, len(pipelines), document, full)
    yield Text("")
    yield indented(Text(legend([shape.first for shape in shown]), style="dim"))


def _only_section(shape: Shape, cluster: Mapping[str, Any], full: bool) -> Iterator[RenderableType]:
    pipeline = shape.first
    name = "pipeline" if len(shape.pipelines) == 1 else f"pipelines {shape.label}"
    yield heading(f"{name}: {shape.title}")
    yield indented(_placement_table(shape))
    yield Text("")
    yield heading(_LOAD)
    yield indented(_load_table(pipeline))
    yield from _host_lines(pipeline)
    if pipeline.transfers:
        yield Text("")
        yield heading("between stages, one micro-batch")
        yield indented(transfer_table(pipeline, cluster, full))
    yield Text("")
    yield indented(Text(f"then, once a step: {_updates(pipeline)}"))


def _one_of_several(shape: Shape, total: int, cluster: Mapping[str, Any], full: bool) -> Iterator[RenderableType]:
    pipeline = shape.first
    yield heading(f"{plural('pipeline', len(shape.pipelines))} {shape.label} of {total}: {shape.title}")
    yield indented(_placement_table(shape))
    yield indented(_load_table(pipeline))
    yield from _host_lines(pipeline)
    if pipeline.transfers:
        yield indented(transfer_table(pipeline, cluster, full))
    yield indented(Text(f"once a step: {_updates(pipeline)}"))


def _overview(shapes: Sequence[Shape], slowest: int, full: bool) -> Iterator[RenderableType]:
    """A row a shape: its replicas, its share of the global batch, and how long its own step takes."""
    sequences = [shape.sequences for shape in shapes]
    yield heading(f"{len(shapes)} shapes of pipeline, {sum(shape.replicas for shape in shapes)} replicas in all")
    columns = ("", "replicas", "stages", "chips", "micro-batches", "size", "of the batch", "step")
    table = new_table(*columns, right=columns)
    rows = range(len(shapes)) if full else _largest(sequences, slowest)
    for index in rows:
        shape, share = shapes[index], sequences[index] / sum(sequences)
        counts = (
            shape.replicas,
            len(shape.first.stages),
            sum(_chips(shape, s) for s in range(len(shape.first.stages))),
        )
        numbers = [*(f"{count:,}" for count in counts), shape.micro_batches, f"{shape.first.micro_batch_size:,}"]
        table.add_row(shape.label, *numbers, format_percent(share), format_duration(shape.step_s))
    yield indented(table)
    left = set(range(len(shapes))) - set(rows)
    if left:
        share = sum(sequences[index] for index in left) / sum(sequences)
        replicas = sum(shapes[index].replicas for index in left)
        counted = f"{len(left)} more shapes, {replicas:,} {plural('replica', replicas)}"
        yield indented(Text(f"and {counted}, {format_percent(share)} of the batch"))


def _chips(shape: Shape, stage: int) -> int:
    """Of all replicas of a stage."""
    return sum(len(replica) for pipeline in shape.pipelines for replica in pipeline.stages[stage].ranks)


def _largest(sequences: Sequence[int], slowest: int) -> Sequence[int]:
    """Those with the largest shares of the batch and the slowest, in the plan's order; all when they are few."""
    if len(sequences) <= _MOST_ROWS:
        return range(len(sequences))
    order = sorted(range(len(sequences)), key=lambda j: (j != slowest, -sequences[j], j))
    return sorted(order[: _MOST_ROWS - 1])


def _own_step_s(pipeline: Pipeline) -> float:
    """Step time of the pipeline's own stages; the slowest pipeline's is the plan's."""
    times = [stage.time for stage in pipeline.stages]
    chain = BranchTimes(
        forward=[t.forward_s for t in times],
        backward=[t.backward_input_s + t.backward_weight_s + t.recompute_s for t in times],
        update=[t.reduction_s + t.optimizer_s for t in times],
        send_forward={(t.from_stage, t.to_stage): t.time_s for t in pipeline.transfers},
        send_backward={(t.from_stage, t.to_stage): t.backward_time_s for t in pipeline.transfers},
    )
    return pairs_step_time(chain, [stage.in_flight for stage in pipeline.stages], pipeline.micro_batches)


def _updates(pipeline: Pipeline) -> str:
    return f"gradient reduction {_up_to(pipeline.reduction_s)}, optimizer {_up_to(pipeline.optimizer_s)}"


def _up_to(seconds: float) -> str:
    return f"up to {format_duration(seconds)}" if seconds > 0 else "none"


def _placement_table(shape: Shape) -> Table:
    """Who holds what; chips of all replicas. Degrees of context and expert parallelism are shown when one is not 1,
    ZeRO levels where they were chosen, where optimizer states are where some are not on the chips, and the share of a
    micro-batch that a chip group has where that is not always all.
    """
    pipeline = shape.first
    context = any(stage.context_parallel > 1 for stage in pipeline.stages)
    expert = any(stage.expert_parallel > 1 for stage in pipeline.stages)
    zero = any(stage.zero is not None for stage in pipeline.stages)
    offload = any(stage.offload_optimizer for stage in pipeline.stages)
    shares = any(stage.num_replicas > 1 for stage in pipeline.stages)
    marks = ("cp", context), ("ep", expert), ("ZeRO", zero), ("states", offload), ("share", shares)
    shown = [name for name, any_of in marks if any_of]
    columns = ["", "node group", "chips", "tp", *shown]
    table = new_table(*columns, "layers", "recompute", right=("", "chips", "tp", "cp", "ep", "ZeRO"))
    for index, stage in enumerate(pipeline.stages):
        degrees = [str(stage.tensor_parallel)]
        degrees += [str(stage.context_parallel)] if context else []
        degrees += [str(stage.expert_parallel)] if expert else []
        degrees += [str(stage.zero)] if zero else []
        degrees += [stage.offload_optimizer or "chip"] if offload else []
        degrees += [f"1/{stage.num_replicas}" if stage.num_replicas > 1 else "1"] if shares else []
        chips = f"{_chips(shape, index):,}"
        table.add_row(str(index), stage.node_group, chips, *degrees, layer_ranges(stage.layers), _recompute(stage))
    return table


def _recompute(stage: Stage) -> str:
    """`3/12 full`: how many of the stage's layers run again in the backward pass, of those that can."""
    counts = dict.fromkeys(SHORT_POLICY, 0)
    for policy in stage.recompute.values():
        counts[policy] += 1
    able = sum(name in stage.recompute or name.rpartition(".")[2] not in _KEEPS_ALL for name in stage.layers)
    parts = [f"{count}/{able} {SHORT_POLICY[policy]}" for policy, count in counts.items() if count]
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
    waiting = time.offload_forward_s + time.offload_backward_s
    work = (time.forward_s + time.backward_input_s + time.backward_weight_s - waiting) / scale
    return Bar(((work, "cyan"), ((time.recompute_s + waiting) / scale, "magenta"))), format_duration(total)


def _host_lines(pipeline: Pipeline) -> Iterator[RenderableType]:
    """What a chip of each stage has in host memory, and what a micro-batch waits for it; what it has on drives."""
    parts, on_drives = [], []
    for index, stage in enumerate(pipeline.stages):
        if stage.memory.host_bytes:
            waiting = stage.time.offload_forward_s + stage.time.offload_backward_s
            waits = f", waits {format_duration(waiting)}" if waiting else ""
            parts.append(f"{index}: {format_bytes(stage.memory.host_bytes)}{waits}")
        if stage.memory.nvme_bytes:
            on_drives.append(f"{index}: {format_bytes(stage.memory.nvme_bytes)}")
    if parts:
        yield indented(Text(f"in host memory, a chip of stage {'; '.join(parts)}"))
    if on_drives:
        yield indented(Text(f"on drives, a chip of stage {'; '.join(on_drives)}"))

"""Pipelines of a plan that differ in their micro-batches alone: one shape for a reader, entries of their own in the
file, since their replicas run unequal numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.plan.idle import number_runs
from planner.report.words import joined, plural
from planner.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Stage

__all__ = ["Shape", "shapes_of"]

_MOST_RUNS = 4
"""Numbers of micro-batches that a title lists one by one."""


@dataclass(frozen=True)
class Shape:
    """Entries that are shown as one. numbers: theirs in the plan, from 1.  step_s: the longest of their steps."""

    pipelines: tuple[Pipeline, ...]
    numbers: tuple[int, ...]
    step_s: float

    @property
    def first(self) -> Pipeline:
        """The one whose tables are shown: those of the others are equal."""
        return self.pipelines[0]

    @property
    def replicas(self) -> int:
        """Of all entries."""
        return sum(pipeline.replicas for pipeline in self.pipelines)

    @property
    def sequences(self) -> int:
        """Of the global batch."""
        return sum(p.replicas * p.micro_batches * p.micro_batch_size for p in self.pipelines)

    @property
    def label(self) -> str:
        """`3`, `3-4`, `1, 3`."""
        return number_runs(self.numbers)

    @property
    def micro_batches(self) -> str:
        """Of a replica: `2`, `1-2` where they differ."""
        counts = sorted({pipeline.micro_batches for pipeline in self.pipelines})
        return f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,}-{counts[-1]:,}"

    @property
    def title(self) -> str:
        """`2 replicas x 8 micro-batches of 2 sequences, 1f1b`; of several `11 replicas x 1 and 28 x 2 ...`.

        Of many numbers of micro-batches only the range is said.
        """
        runs = Counter[int]()
        for pipeline in self.pipelines:
            runs[pipeline.micro_batches] += pipeline.replicas
        counted = [(replicas, f"{count:,}") for count, replicas in sorted(runs.items())]
        if len(runs) > _MOST_RUNS:
            counted = [(self.replicas, self.micro_batches)]
        (most, count), *others = counted
        words = [f"{most:,} {plural('replica', most)} x {count}", *(f"{n:,} x {count}" for n, count in others)]
        size, micro_batches = self.first.micro_batch_size, plural("micro-batch", max(runs))
        sequences = f"{size} {plural('sequence', size)}, {self.first.schedule.name}"
        return f"{joined(words)} {micro_batches} of {sequences}"


def shapes_of(pipelines: Sequence[Pipeline], steps_s: Sequence[float], merge: bool) -> list[Shape]:
    """Shapes in the order of their first entries. steps_s: of each pipeline.  merge: else every entry is one."""
    groups: dict[Any, list[int]] = {}
    for index, pipeline in enumerate(pipelines):
        groups.setdefault(_shown(pipeline) if merge else index, []).append(index)
    return [
        Shape(
            tuple(pipelines[i] for i in indices),
            tuple(i + 1 for i in indices),
            max(steps_s[i] for i in indices),
        )
        for indices in groups.values()
    ]


def _shown(pipeline: Pipeline) -> Any:
    """All that its tables show beside its chips, replicas and micro-batches."""
    transfers = tuple(
        (
            *(t.from_stage, t.to_stage, t.transport, t.same_node, format_bytes(t.bytes)),
            *(format_duration(t.time_s), format_duration(t.backward_time_s)),
        )
        for t in pipeline.transfers
    )
    updates = format_duration(pipeline.reduction_s), format_duration(pipeline.optimizer_s)
    stages = tuple(_stage_shown(stage) for stage in pipeline.stages)
    return pipeline.schedule.name, pipeline.schedule.chunks, pipeline.micro_batch_size, stages, transfers, updates


def _stage_shown(stage: Stage) -> Any:
    time, memory = stage.time, stage.memory
    degrees = stage.tensor_parallel, stage.context_parallel, stage.expert_parallel, stage.num_replicas
    chosen = stage.zero, stage.offload_optimizer, tuple(sorted(stage.recompute.items()))
    seconds = (
        time.forward_s + time.backward_input_s + time.backward_weight_s + time.recompute_s,
        time.recompute_s,
        time.offload_forward_s + time.offload_backward_s,
    )
    held = stage.in_flight, format_bytes(memory.peak_bytes), memory.host_bytes and format_bytes(memory.host_bytes)
    return stage.node_group, stage.layers, degrees, chosen, held, tuple(map(format_duration, seconds))

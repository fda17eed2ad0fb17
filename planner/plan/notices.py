"""What a plan itself has that its reader should know: nearly full stages, pipelines that never fill, idle chips."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.plan.evaluate import bubble_fraction
from planner.plan.idle import idle_sentences
from planner.plan.schema import PlanNotice

if TYPE_CHECKING:
    from planner.plan.evaluate import PipelineNumbers, PipelineShape
    from planner.plan.schema import Pipeline
    from planner.spec import Cluster

__all__ = ["MIX_ASSUMPTION", "plan_notices", "stage_name"]

MIX_ASSUMPTION = (
    "gradients of a layer are summed in one ring over the stages of all pipelines that hold it, at the rate of the"
    " slowest replica; rings share a line's `total` as if all stages of the longest pipeline reduced at once"
)
"""What a plan of several pipelines takes for granted beside the rest."""


def stage_name(pipelines: Sequence[object], index: int, stage: int) -> str:
    """`stage 3`, or `stage 3 of pipeline 2` where there are several; stages count from 0 and pipelines from 1."""
    return f"stage {stage}" if len(pipelines) == 1 else f"stage {stage} of pipeline {index + 1}"


def plan_notices(
    cluster: Cluster,
    pipelines: Sequence[Pipeline],
    shapes: Sequence[PipelineShape],
    numbers: Sequence[PipelineNumbers],
    step_s: float,
) -> tuple[list[PlanNotice], list[PlanNotice]]:
    """Of stages and pipelines; of idle chips."""
    of_pipelines: list[PlanNotice] = []
    for index, (pipeline, shape, n) in enumerate(zip(pipelines, shapes, numbers, strict=True)):
        which = f"pipeline {index + 1}: " if len(pipelines) > 1 else ""
        of_pipelines += _bubble(pipeline, bubble_fraction([shape], [n], step_s), which)
        of_pipelines += _tight(pipelines, index)
    return of_pipelines, [*_idle(cluster, pipelines)]


def _bubble(pipeline: Pipeline, bubble: float, which: str) -> Iterator[PlanNotice]:
    stages, micro_batches = len(pipeline.stages), pipeline.micro_batches
    if micro_batches >= stages:
        return
    if which:
        message = f"{which}{stages} stages share {micro_batches} micro-batches, so it never fills:"
        yield PlanNotice(code="bubble", message=f"{message} {100 * bubble:.1f} % of its chips' time is bubble")
        return
    batch = stages * pipeline.micro_batch_size * pipeline.replicas
    yield PlanNotice(
        code="bubble",
        message=f"{stages} stages share {micro_batches} micro-batches, so the pipeline never fills:"
        f" {100 * bubble:.1f} % of the chips' time is bubble; a global batch of {batch} would fill it",
    )


def _tight(pipelines: Sequence[Pipeline], index: int) -> Iterator[PlanNotice]:
    for s, stage in enumerate(pipelines[index].stages):
        if stage.memory.is_tight and stage.memory.peak_bytes <= stage.memory.usable_bytes:
            left = 100 * (1 - stage.memory.peak_bytes / stage.memory.usable_bytes)
            name = stage_name(pipelines, index, s)
            yield PlanNotice(
                code="tight",
                message=f"{name} on {stage.node_group} is tight: {left:.1f} % of its usable memory is left",
            )


def _idle(cluster: Cluster, pipelines: Sequence[Pipeline]) -> Iterator[PlanNotice]:
    used = {rank for p in pipelines for stage in p.stages for replica in stage.ranks for rank in replica}
    for sentence in idle_sentences(cluster, used):
        yield PlanNotice(code="idle", message=sentence)

"""What the abbreviations in the tables of a plan's stages mean: those that appear, and no others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.plan.schema import TIGHT_FRACTION
from planner.report.words import format_percent

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Stage

__all__ = ["SHORT_POLICY", "legend"]

SHORT_POLICY = {
    "full": "full",
    "selective": "sel.",
    "offload": "off.",
    "selective_offload": "sel. off.",
    "full_offload": "full off.",
}
_POLICIES = {
    "full": "the whole layer runs again",
    "selective": "what is cheap runs again",
    "offload": "activations are in host memory",
    "selective_offload": "what is cheap runs again, the rest is in host memory",
    "full_offload": "the layer runs again, its input is in host memory",
}


def legend(pipelines: Sequence[Pipeline]) -> str:
    """`tp: tensor parallel degree; n/m: ...; sel.: ...` for the tables of these pipelines."""
    return "; ".join(f"{name}: {meaning}" for name, meaning in _entries(pipelines))


def _entries(pipelines: Sequence[Pipeline]) -> Iterator[tuple[str, str]]:
    stages = [stage for pipeline in pipelines for stage in pipeline.stages]
    yield "tp", "tensor parallel degree"
    yield from _columns(stages)
    policies = {policy for stage in stages for policy in stage.recompute.values()}
    if policies:
        yield "n/m", "n of the m layers that have a choice"
    for policy, meaning in _POLICIES.items():
        if policy in policies:
            yield SHORT_POLICY[policy], meaning
    if any(stage.memory.peak_bytes > stage.memory.usable_bytes for stage in stages):
        yield "over", "more memory than there is"
    if any(stage.memory.is_tight and stage.memory.peak_bytes <= stage.memory.usable_bytes for stage in stages):
        yield "tight", f"less than {format_percent(TIGHT_FRACTION, 0)} of the memory left"
    waits = any(stage.time.offload_forward_s + stage.time.offload_backward_s > 0 for stage in stages)
    again = any(stage.time.recompute_s > 0 for stage in stages)
    if waits or again:
        yield "hatched", " and ".join(["recompute"] * again + ["waiting for host memory"] * waits)
    if waits and any(stage.memory.host_bytes for stage in stages):
        yield "waits", "its part of a micro-batch's time"


def _columns(stages: Sequence[Stage]) -> Iterator[tuple[str, str]]:
    """Those that stand in the table only where there is something to say."""
    if any(stage.context_parallel > 1 for stage in stages):
        yield "cp", "context parallel degree"
    if any(stage.expert_parallel > 1 for stage in stages):
        yield "ep", "expert parallel degree"
    if any(stage.zero is not None for stage in stages):
        yield "ZeRO", "level of the stage"
    if any(stage.offload_optimizer for stage in stages):
        yield "states", "where those of the optimizer are"
    if any(stage.num_replicas > 1 for stage in stages):
        yield "share", "of each micro-batch that one chip group has"

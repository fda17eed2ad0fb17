"""What the search found, in the words of the plan room: choices for `assemble_plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from planner.cost.tables import Setting
from planner.plan.assemble import PipelineChoice, StageChoice, recompute_by_name, recompute_of

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import Mode
    from planner.search.branching.placed import Placed
    from planner.search.leaf import Leaf, Split
    from planner.search.mixed.shapes import Entry

__all__ = ["choice_of_leaf", "choice_of_sets", "choices_of_mix"]


def choice_of_leaf(cost: CostModel, leaf: Leaf, split: Split) -> PipelineChoice:
    """A plan of identical pipelines."""
    kinds = [(stage.group, stage.mode) for stage in leaf.stages]
    return PipelineChoice(leaf.root.schedule, leaf.setting, leaf.micro_batches, _stages(cost, kinds, split))


def choice_of_sets(cost: CostModel, placed: Placed) -> PipelineChoice:
    """A plan of identical pipelines over contiguous sets of layers."""
    leaf, stages = placed.leaf, []
    for s, stage in enumerate(leaf.stages):
        held = placed.held(s)
        recompute = recompute_of(cost.chain, held, placed.policies[s], cost.policies)
        stages.append(StageChoice.of(stage.group, stage.mode, held, recompute))
    return PipelineChoice(leaf.root.schedule, leaf.setting, leaf.micro_batches, tuple(stages))


def choices_of_mix(cost: CostModel, entries: Sequence[Entry], context: int) -> tuple[PipelineChoice, ...]:
    """A choice an entry; all replicas together in each setting."""
    replicas = sum(e.replicas for e in entries)
    return tuple(
        PipelineChoice(
            e.shape.schedule,
            Setting(e.shape.micro_batch_size, replicas, context),
            e.micro_batches,
            _stages(cost, e.shape.stages, e.shape.split),
            e.replicas,
        )
        for e in entries
    )


def _stages(cost: CostModel, kinds: Sequence[tuple[int, Mode]], split: Split) -> tuple[StageChoice, ...]:
    stages = []
    for s, (group, mode) in enumerate(kinds):
        first, end = split.bounds(s)
        recompute = recompute_by_name(cost.chain, first, end, split.policies[s], cost.policies)
        stages.append(StageChoice(group, mode, first, end, recompute))
    return tuple(stages)

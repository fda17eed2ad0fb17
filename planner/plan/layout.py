"""From choices to shapes: where every replica of every stage sits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.cost.placement import Block, chips_of_slot, place_blocks, slot_of
from planner.cost.tables import Mode
from planner.cost.tiers import Tier
from planner.plan.evaluate import PipelineShape, Place, StageChoice

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.cost.model import CostModel
    from planner.cost.tables import ChipGroup, Setting
    from planner.plan.schema import Stage

__all__ = ["PipelineChoice", "mode_of", "places_of", "setting_of_shape", "shapes_of"]


@dataclass(frozen=True)
class PipelineChoice:
    """What the search decides; everything else in a plan follows.

    replicas: None means the setting's data_parallel. Where there are several choices each says its own, and the
    setting's data_parallel counts those of all.
    """

    schedule: str
    setting: Setting
    micro_batches: int
    stages: tuple[StageChoice, ...]
    replicas: int | None = None

    @property
    def num_replicas(self) -> int:
        """How many pipelines there are of this shape."""
        return self.setting.data_parallel if self.replicas is None else self.replicas


def shapes_of(cost: CostModel, choices: Sequence[PipelineChoice]) -> tuple[PipelineShape, ...]:
    """The choices with their places. Choices that do not fit the chips are the caller's mistake."""
    counts = [choice.num_replicas for choice in choices]
    blocks = [
        [Block(s.group, s.tensor * choice.setting.context_parallel, n * s.mode.replicas) for s in choice.stages]
        for choice, n in zip(choices, counts, strict=True)
    ]
    places = places_of(cost.groups, blocks)
    assert places is not None, "the stages have no room on their chips"
    return tuple(
        PipelineShape(
            choice.schedule,
            setting_of_shape(choice.setting, counts, len(choice.stages)),
            choice.micro_batches,
            choice.stages,
            n,
            own,
        )
        for choice, n, own in zip(choices, counts, places, strict=True)
    )


def mode_of(cost: CostModel, stage: Stage) -> Mode:
    """How a stage of a plan runs. Where the model file leaves one ZeRO level, saying it and not saying it are one."""
    only = cost.zero_levels[0] if len(cost.zero_levels) == 1 else None
    return Mode(
        stage.tensor_parallel,
        None if stage.zero == only else stage.zero,
        Tier.of(stage.offload_optimizer),
        stage.num_replicas,
    )


def setting_of_shape(setting: Setting, replicas: Sequence[int], num_stages: int) -> Setting:
    """A shape's setting: data_parallel counts the replicas of all shapes, `mixed` says that there are several."""
    return replace(setting, data_parallel=sum(replicas), single_stage=num_stages == 1, mixed=len(replicas) > 1)


def places_of(
    groups: Sequence[ChipGroup], blocks: Sequence[Sequence[Block]]
) -> tuple[tuple[tuple[Place, ...], ...], ...] | None:
    """Places of every replica of blocks[j][s], stage s of shape j; None when they do not fit.

    One shape: slots in the order of the stages. Several: `place_blocks`, over all shapes in their order.
    """
    if len(blocks) == 1:
        return (_slots(groups, blocks[0]),)
    placed = place_blocks(groups, [block for own in blocks for block in own])
    if placed is None:
        return None
    rest = iter(placed)
    return tuple(tuple(tuple(next(rest)) for _ in own) for own in blocks)


def _slots(groups: Sequence[ChipGroup], blocks: Sequence[Block]) -> tuple[tuple[Place, ...], ...]:
    """Stage j of a group takes slots j*d to j*d + d-1."""
    seen: dict[int, int] = {}
    places = []
    for block in blocks:
        index = seen.get(block.group, 0)
        seen[block.group] = index + 1
        per_node = groups[block.group].chips_per_node
        first = [
            chips_of_slot(slot_of(index, i, block.replicas), per_node, block.width)[0] for i in range(block.replicas)
        ]
        places.append(tuple(divmod(chip, per_node) for chip in first))
    return tuple(places)

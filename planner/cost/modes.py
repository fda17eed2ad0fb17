"""What node groups may choose for themselves beside a tensor parallel degree, and why not more."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from planner.cost.precision import zero_levels
from planner.errors import Notice, Problem

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.cost.tables import ChipGroup, Mode, Setting
    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec
    from planner.spec.model import Training

__all__ = ["Refusal", "mode_refusal", "mode_space", "stage_replicas"]


class Refusal(NamedTuple):
    """Why a choice is impossible: the input that rules it out, and a sentence."""

    path: str
    sentence: str


def stage_replicas(
    cluster: Cluster, model: ModelSpec, graph: LayerGraph, notices: list[Notice], problems: list[Problem]
) -> tuple[int, ...]:
    """How many replicas a stage may have; one where layers branch or a topology has to know who sits where."""
    asked = model.training.stage_replicas
    if asked == (1,) or (graph.is_chain and cluster.topology is None):
        return asked
    why = "the layers of this model branch" if not graph.is_chain else "the cluster has a topology"
    if 1 in asked:
        notices.append(Notice("stage_replicas", f"stages are not replicated inside a pipeline: {why}"))
    else:
        what = f"stages cannot have {', '.join(map(str, asked))} replicas"
        problems.append(Problem(what, why, "allow 1", path="training.stage_replicas"))
    return (1,)


def mode_refusal(group: ChipGroup, mode: Mode, setting: Setting, training: Training) -> Refusal | None:
    """What of a mode, beside its tensor parallel degree, a group or a setting does not allow; None for nothing."""
    if mode.zero not in group.zero_levels:
        said = "not given" if mode.zero is None else f"{mode.zero}"
        levels = ", ".join(map(str, zero_levels(training)))
        return Refusal("training.zero", f"ZeRO level {said}: {group.name!r} can have {levels}")
    if mode.offload not in group.offloads:
        where = " or ".join(tier.place for tier in group.offloads)
        return Refusal("training.offload_optimizer", f"the optimizer states of {group.name!r} have to be {where}")
    path, replicas = "training.stage_replicas", f"{mode.replicas} replicas of a stage"
    if mode.replicas not in group.stage_replicas:
        possible = ", ".join(map(str, group.stage_replicas))
        return Refusal(path, f"{replicas} are no choice on {group.name!r} (possible: {possible})")
    if setting.micro_batch_size % mode.replicas:
        return Refusal(path, f"{replicas} do not share micro-batches of {setting.micro_batch_size} evenly")
    return None


def mode_space(groups: Sequence[ChipGroup], training: Training) -> dict[str, object]:
    """The dimensions of the plan space that modes add, for the plan's `plan_space`; nothing where nobody asks."""
    space: dict[str, object] = {}
    levels = zero_levels(training)
    if len(levels) > 1:
        space["zero"] = list(levels)
    if training.offload_optimizer != "never":
        space["offload_optimizer"] = {group.name: [tier.word for tier in group.offloads] for group in groups}
    if any(group.stage_replicas != (1,) for group in groups):
        space["stage_replicas"] = {group.name: list(group.stage_replicas) for group in groups}
    return space

"""The plan space that a certificate speaks of, dimension by dimension."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.search.candidates import Limits
    from planner.search.outcome import Found
    from planner.spec import Cluster, ModelSpec

__all__ = ["plan_space_of"]

_IDENTICAL = "identical replicas of one shape"
_MIXED = (
    "replicas of any number of shapes, each with its own micro-batches, micro-batch size, schedule and stages in any"
)
_MIXED += " order; expert_parallel and zero as in one shape: mixes only at expert_parallel 1"


def plan_space_of(
    cost: CostModel, model: ModelSpec, limits: Limits, cluster: Cluster, found: Found, why_identical: str | None
) -> dict[str, Any]:
    """Each dimension of the space that the certificate speaks of.

    why_identical: why pipelines are of one shape; said unless the model file asks for that in so many words.
    """
    names = [g.name for g in cluster.node_groups]
    space = dict(cost.space)
    order: Any = "every order of the node groups"
    if limits.order is not None:
        order = [names[g] for g in limits.order]
    elif limits.fixed_order:
        order = "the cluster file's"
    free = [n for g, n in enumerate(names) if g not in limits.idle and g not in limits.use]
    space |= {
        "pipelines": _MIXED if found.mixed else _IDENTICAL,
        "group_order": order,
        "may_stay_idle": free,
        "must_stay_idle": [names[g] for g in sorted(limits.idle)],
        "must_be_used": [names[g] for g in sorted(limits.use)],
        "stages_per_group": {names[g]: n for g, n in limits.stages.items()}
        or "any number that the chips allow, none empty",
        "pipeline_parallel": limits.total_stages or "any",
        "layers_per_stage": list(limits.layers_per_stage) if limits.layers_per_stage else "any contiguous split",
        "recompute_choice": "per stage, any number of layers of each kind",
    }
    if why_identical is not None and not found.mixed and model.constraints.shapes != "identical":
        space["why_identical"] = why_identical
    if found.layer_order is not None:
        space["layer_order"] = found.layer_order
        if not limits.layers_per_stage:
            space["layers_per_stage"] = "any contiguous sets, as layer_order says"
    return space

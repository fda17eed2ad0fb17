"""From what the search chose to a whole plan: ranks, numbers, prediction, certificate."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from planner.cost.placement import ranks_of_place
from planner.plan.evaluate import PipelineNumbers, PipelineShape, StageChoice, evaluate_plan, predict
from planner.plan.file import sha256_of
from planner.plan.layout import PipelineChoice, shapes_of
from planner.plan.notices import MIX_ASSUMPTION, plan_notices
from planner.plan.placing import Placed, place_well
from planner.plan.prices import chips_of_groups, price_per_hour, price_warnings, training_estimate
from planner.plan.schema import (
    Certificate,
    IdleChips,
    InputDocument,
    Inputs,
    Island,
    Pipeline,
    Plan,
    PlanNotice,
    Prediction,
    Schedule,
    Stage,
    StageMemory,
    StageTime,
    Transfer,
)

if TYPE_CHECKING:
    from planner.cost.breakdown import StageBreakdown
    from planner.cost.model import CostModel
    from planner.cost.tables import Chain
    from planner.errors import Notice
    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec

__all__ = [
    "PipelineChoice",
    "Proved",
    "StageChoice",
    "assemble_plan",
    "recompute_by_name",
    "recompute_of",
    "tied_layers",
]


_NAMED = ("full_offload", "selective_offload", "offload", "full", "selective")
"""Policies that a plan names, in the order in which the layers of a stage get them."""


@dataclass(frozen=True)
class Proved:
    """What the search proved. bound: no plan of the space is below it; s a step or, for `cost`, currency a step.

    identical_bound: no plan of identical pipelines is below it; None where the space has no others.
    shares_used_up: parts of the search whose shares of the time limit ended them, where the limit itself did not come.
    """

    bound: float
    gap_asked: float
    why_stopped: Literal["gap", "time", "interrupted", "exhausted"]
    plan_space: Mapping[str, Any]
    objective: Literal["throughput", "cost"] = "throughput"
    solver: Mapping[str, Any] = field(default_factory=dict)
    identical_bound: float | None = None
    shares_used_up: tuple[str, ...] = ()


def recompute_by_name(
    chain: Chain, first: int, end: int, counts: Sequence[Sequence[int]], policies: Sequence[str]
) -> dict[str, str]:
    """Name the layers first..end-1 that are recomputed, from counts[kind][policy]."""
    return recompute_of(chain, range(first, end), counts, policies)


def recompute_of(
    chain: Chain, layers: Sequence[int], counts: Sequence[Sequence[int]], policies: Sequence[str]
) -> dict[str, str]:
    """Name those of the layers that are recomputed or offloaded, from counts[kind][policy]: of a kind the earliest.

    Offloaded layers come first, since the backward pass needs the earliest last; then `full`.
    """
    order = [q for name in _NAMED for q, policy in enumerate(policies) if policy == name]
    left = {(k, q): per_policy[q] for k, per_policy in enumerate(counts) for q in order}
    named: dict[str, str] = {}
    for layer in layers:
        kind = chain.kinds[layer]
        for q in order:
            if left[kind, q] > 0:
                left[kind, q] -= 1
                named[chain.names[layer]] = policies[q]
                break
    return named


def assemble_plan(
    cluster: Cluster,
    model: ModelSpec,
    graph: LayerGraph,
    cost: CostModel,
    choices: PipelineChoice | Sequence[PipelineChoice],
    proved: Proved,
    *,
    notices: Sequence[Notice] = (),
    ignored_constraints: Sequence[Literal["memory"]] = (),
    placed: Placed | None = None,
) -> Plan:
    """A plan of one island, every number asked of the cost model. choices: one for each shape, in the plan's order.

    placed: the nodes of these choices on a topology, if they are known already.
    """
    shapes = shapes_of(cost, (choices,) if isinstance(choices, PipelineChoice) else choices)
    placed = place_well(cost, shapes) if placed is None else placed
    shapes = shapes if placed is None else placed.shapes
    numbers = evaluate_plan(cost, shapes)
    tokens = model.training.global_batch * model.training.sequence_length
    prediction = predict(cost, shapes, numbers, tokens)
    pipelines = tuple(_pipeline(cost, shape, n) for shape, n in zip(shapes, numbers, strict=True))
    price = price_per_hour(cluster, shapes)
    own, idle = plan_notices(cluster, pipelines, shapes, numbers, prediction.step_time_s)
    return Plan(
        inputs=Inputs(cluster=_document(cluster.name, cluster), model=_document(model.name, model)),
        islands=(Island(name=cluster.name, pipelines=pipelines),),
        tied_layers=tied_layers(graph),
        idle=_idle(cluster, shapes),
        prediction=prediction,
        training=training_estimate(model, prediction, price, cluster.currency),
        certificate=_certificate(_with_placement(proved, placed), prediction, price, cluster.currency, tokens),
        ignored_constraints=tuple(ignored_constraints),
        assumptions=tuple(dict.fromkeys((*cost.notes, *((MIX_ASSUMPTION,) if len(pipelines) > 1 else ())))),
        warnings=(
            *(PlanNotice(code=n.code, message=n.message) for n in dict.fromkeys(notices)),
            *own,
            *price_warnings(cluster, shapes),
            *idle,
        ),
    )


def _with_placement(proved: Proved, placed: Placed | None) -> Proved:
    """What ran, with how the nodes were chosen and the step time without that choice."""
    if placed is None:
        return proved
    ran = {"placement": placed.rule, "file_order_step_s": placed.file_order_step_s}
    return replace(proved, solver={**proved.solver, **ran})


def _document(name: str, spec: Cluster | ModelSpec) -> InputDocument:
    document = spec.model_dump(mode="json")
    return InputDocument(name=name, sha256=sha256_of(document), document=document)


def _pipeline(cost: CostModel, shape: PipelineShape, numbers: PipelineNumbers) -> Pipeline:
    stages = tuple(
        _stage(cost, shape, index, breakdown, held)
        for index, (breakdown, held) in enumerate(zip(numbers.stages, numbers.in_flight, strict=True))
    )
    transfers = tuple(
        Transfer(
            from_stage=boundary.source,
            to_stage=boundary.target,
            bytes=boundary.num_bytes,
            time_s=boundary.onward_s,
            backward_time_s=boundary.back_s,
            transport=boundary.transport,
            same_node=boundary.same_node,
        )
        for boundary in numbers.boundaries
    )
    return Pipeline(
        replicas=shape.replicas,
        micro_batches=shape.micro_batches,
        micro_batch_size=shape.setting.micro_batch_size,
        schedule=Schedule.model_validate({"name": shape.schedule}),
        stages=stages,
        transfers=transfers,
        reduction_s=max(b.time.reduction_s for b in numbers.stages),
        optimizer_s=max(b.time.optimizer_s for b in numbers.stages),
    )


def _stage(cost: CostModel, shape: PipelineShape, index: int, breakdown: StageBreakdown, held: int) -> Stage:
    stage, setting = shape.stages[index], shape.setting
    group, context = cost.groups[stage.group], setting.context_parallel
    return Stage(
        node_group=group.name,
        chip=group.chip,
        layers=stage.names(cost.chain),
        tensor_parallel=stage.tensor,
        context_parallel=context,
        expert_parallel=setting.expert_parallel,
        zero=stage.mode.zero,
        offload_optimizer=None if stage.mode.offload.word == "none" else stage.mode.offload.word,
        replicas=stage.mode.replicas if stage.mode.replicas > 1 else None,
        recompute={name: policy for name, policy in stage.recompute.items() if policy != "none"},
        in_flight=held,
        ranks=tuple(
            ranks_of_place(cost.groups, stage.group, place, stage.tensor * context) for place in shape.places[index]
        ),
        memory=memory_of(breakdown),
        time=time_of(breakdown),
    )


def memory_of(breakdown: StageBreakdown) -> StageMemory:
    """Whole bytes; the peak is the sum of the rounded parts."""
    parts = {name: round(value) for name, value in breakdown.memory.parts().items()}
    memory = breakdown.memory
    held, share = memory.host_bytes, memory.usable_host_bytes
    on_drives, drives = memory.nvme_bytes, memory.usable_nvme_bytes
    return StageMemory(
        peak_bytes=sum(parts.values()),
        usable_bytes=round(memory.usable_bytes),
        parts=parts,
        host_bytes=None if held is None else round(held),
        usable_host_bytes=None if held is None or math.isinf(share) else round(share),
        nvme_bytes=None if on_drives is None else round(on_drives),
        usable_nvme_bytes=None if on_drives is None else round(drives),
    )


def time_of(breakdown: StageBreakdown) -> StageTime:
    """The seconds as they are."""
    time = breakdown.time
    return StageTime(
        forward_s=time.forward_s,
        backward_input_s=time.backward_input_s,
        backward_weight_s=time.backward_weight_s,
        recompute_s=time.recompute_s,
        reduction_s=time.reduction_s,
        optimizer_s=time.optimizer_s,
        communication_s=time.communication_s,
        offload_forward_s=time.offload_forward_s,
        offload_backward_s=time.offload_backward_s,
    )


def tied_layers(graph: LayerGraph) -> tuple[tuple[str, ...], ...]:
    """Layers that share a matrix, its owner first."""
    holders: dict[str, list[str]] = {}
    for layer in graph.layers:
        for weight in layer.weights:
            if weight.tied_to is not None:
                holders.setdefault(weight.tied_to, [weight.tied_to]).append(layer.name)
    return tuple(tuple(dict.fromkeys(names)) for names in holders.values())


def _idle(cluster: Cluster, shapes: Sequence[PipelineShape]) -> tuple[IdleChips, ...]:
    used = chips_of_groups(shapes)
    left = [
        (group.name, group.nodes * group.chips_per_node - used.get(index, 0))
        for index, group in enumerate(cluster.node_groups)
    ]
    return tuple(IdleChips(node_group=name, chips=chips) for name, chips in left if chips)


def _certificate(
    proved: Proved, prediction: Prediction, price: float | None, currency: str, tokens: int
) -> Certificate:
    """Objective and bound in the unit that people read; the gap is theirs."""
    objective, bound, unit = prediction.step_time_s, proved.bound, "s"
    if proved.objective == "cost":
        assert price is not None, "the search asks for the price of every chip"
        objective = objective * price / 3600 / tokens
        bound, unit = bound / tokens, f"{currency}/token"
    bound = min(max(bound, 0.0), objective)
    return Certificate(
        objective=objective,
        unit=unit,
        bound=bound,
        gap=(objective - bound) / objective,
        gap_asked=proved.gap_asked,
        identical_bound=proved.identical_bound,
        why_stopped=proved.why_stopped,
        shares_used_up=proved.shares_used_up or None,
        plan_space=dict(proved.plan_space),
        solver=dict(proved.solver),
    )

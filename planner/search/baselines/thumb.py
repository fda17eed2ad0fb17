"""From a rule of thumb to a checked plan, or to what it lacks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from planner.errors import InputError
from planner.search.baselines.narrowed import with_free_shape
from planner.search.baselines.results import RuleBaseline
from planner.search.baselines.rules import Rule, RuleSearch, Shape

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.graph.layers import LayerGraph
    from planner.plan import Plan
    from planner.spec import Cluster, ModelSpec

__all__ = ["rule_baseline"]


def rule_baseline(
    rule: Rule, cluster: Cluster, model: ModelSpec, deadline: float, should_stop: Callable[[], bool]
) -> RuleBaseline:
    """The best plan of a rule. cluster: the mixed plan's without node groups that stay idle.

    deadline: by the monotonic clock.
    """
    from planner.cost.model import CostModel
    from planner.graph import build_graph

    spec = with_free_shape(model, [group.name for group in cluster.node_groups])
    graph = build_graph(spec)
    base = RuleBaseline(rule.code, rule.title, rule.sentence, "impossible")
    try:
        cost = CostModel(cluster, spec, graph)
    except InputError as error:
        return replace(base, reason=error.problems[0].render())
    searched = RuleSearch(rule, cluster, cost)
    unknown = searched.unknown_peak()
    if unknown is not None:
        return replace(base, reason=f"no {spec.training.precision} peak is known for {unknown}")
    shape = searched.best(deadline, should_stop)
    base = replace(base, tried=searched.tried, all_tried=searched.all_tried)
    if shape is None and not searched.all_tried:
        return replace(base, status="not found", reason="the time was over before any choice was looked at")
    if shape is None:
        return replace(base, reason="no degrees and replicas give every node group a stage and every stage a layer")
    plan = _plan(rule, cluster, spec, graph, cost, shape)
    if shape.missing_bytes <= 0:
        return replace(base, status="planned", plan=plan)
    missing, why = _missing(plan)
    return replace(base, status="does not fit", plan=plan, missing_bytes=missing, reason=why)


def _plan(rule: Rule, cluster: Cluster, spec: ModelSpec, graph: LayerGraph, cost: CostModel, shape: Shape) -> Plan:
    """The shape as a plan, checked. Its certificate proves nothing: a rule does not search."""
    from planner.plan import check_plan
    from planner.plan.assemble import PipelineChoice, Proved, StageChoice, assemble_plan, recompute_by_name

    leaf, split = shape.leaf, shape.split
    stages = []
    for s, stage in enumerate(leaf.stages):
        first, end = split.bounds(s)
        recompute = recompute_by_name(cost.chain, first, end, split.policies[s], cost.policies)
        stages.append(StageChoice(stage.group, stage.mode, first, end, recompute))
    choice = PipelineChoice(leaf.root.schedule, leaf.setting, leaf.micro_batches, tuple(stages))
    fits = shape.missing_bytes <= 0
    proved = Proved(
        bound=0.0,
        gap_asked=1.0,
        why_stopped="exhausted",
        plan_space={"rule": rule.sentence},
    )
    ignored: tuple[Literal["memory"], ...] = () if fits else ("memory",)
    plan = assemble_plan(cluster, spec, graph, cost, choice, proved, ignored_constraints=ignored)
    wrong = [v for v in check_plan(plan) if fits or v.code != "memory"]
    assert not wrong, wrong[0].render()
    return plan


def _missing(plan: Plan) -> tuple[int, str]:
    """Bytes that the worst stage misses on one chip, and that stage in words."""
    from planner.spec.units import format_bytes

    stages = [(pipeline, stage) for pipeline in plan.pipelines for stage in pipeline.stages]
    over = [(stage.memory.peak_bytes - stage.memory.usable_bytes, i) for i, (_, stage) in enumerate(stages)]
    missing, worst = max(over, key=lambda o: (o[0], -o[1]))
    pipeline, stage = stages[worst]
    need, usable = format_bytes(stage.memory.peak_bytes), format_bytes(stage.memory.usable_bytes)
    return missing, (
        f"at best stage {worst} of {len(stages)} on {stage.node_group} needs {need} a chip, {usable} is usable"
        f" (tensor_parallel {stage.tensor_parallel}, data_parallel {pipeline.replicas}, everything recomputed)"
    )

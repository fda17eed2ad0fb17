"""An older plan as a start: its choices under the inputs of today, judged by today's cost model, never trusted."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING

from planner.cost.tables import Setting
from planner.cost.tiers import Tier
from planner.errors import Notice
from planner.plan.layout import mode_of
from planner.search.candidates import Root, make_roots
from planner.search.improve import in_space
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf, Split
from planner.search.obvious import plan_of_shape
from planner.search.on_uplinks import placed_choices
from planner.search.one_shape import Best, leaf_weight
from planner.search.outcome import Found
from planner.search.prove import is_valid
from planner.search.tree import Order, Target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.cost.model import CostModel
    from planner.cost.tables import Problem
    from planner.graph.layers import LayerGraph
    from planner.plan import Plan
    from planner.plan.assemble import PipelineChoice
    from planner.plan.placing import Placed
    from planner.plan.schema import Pipeline
    from planner.search.outcome import Outcome, SearchSettings, WhyStopped
    from planner.search.solve import SolveOptions
    from planner.spec import Cluster, ModelSpec

__all__ = ["Older", "OlderPlan", "no_start", "or_older", "with_older_plan"]

_NOTICE = "warm_start"
_SAME = 1e-9


@dataclass(frozen=True)
class OlderPlan:
    """What the older plan is worth now. objective: in the search's unit.  best: as the search of identical pipelines
    holds it; None for pipelines that only a search of mixes knows.  placed: its nodes on a topology, chosen anew; then
    the objective is the exact one there, and that of `best` still the search's.
    """

    choices: tuple[PipelineChoice, ...]
    objective: float
    best: Best | None
    placed: Placed | None = None


@dataclass(frozen=True)
class Older:
    """plan: None when there is none, or none that fits.  said: why, or what had to change."""

    plan: OlderPlan | None = None
    said: tuple[Notice, ...] = ()

    def notices(
        self, choices: Sequence[PipelineChoice], objective: float, why_stopped: WhyStopped
    ) -> tuple[Notice, ...]:
        """What to say beside the plan that was found."""
        if self.plan is None:
            return self.said
        if why_stopped != "gap" and self.plan.choices == choices:
            when = "" if why_stopped == "exhausted" else " in time"
            return (*self.said, Notice(_NOTICE, f"nothing better than the older plan was found{when}"))
        if why_stopped == "gap" and self.plan.objective < objective * (1 - _SAME):
            share = 100 * (1 - self.plan.objective / objective)
            message = (
                f"the older plan is {share:.2g} % better than the one that was found; the gap ended the search, and its"
                " result does not depend on older plans; ask for a smaller --gap to tell them apart"
            )
            return (*self.said, Notice(_NOTICE, message))
        return self.said


def or_older(found: Found | None, older: Older, outcome: Outcome) -> Found | None:
    """The older plan where it is better, unless the gap ended the search."""
    plan = older.plan
    if plan is None or (found is not None and (found.why_stopped == "gap" or found.objective <= plan.objective)):
        return found
    bound, known = (0.0, None) if found is None else (found.bound, found.identical_bound)
    if found is not None and plan.best is None and not found.mixed:  # the search of mixes has not begun
        bound, known = 0.0, found.bound
    mixed = plan.best is None or (found is not None and found.mixed)
    why, statistics = (found or outcome).why_stopped, (found or outcome).statistics
    bound = min(bound, plan.objective)
    cut_short = () if found is None else found.cut_short
    return Found(
        plan.choices, plan.objective, bound, why, statistics, mixed, known, placed=plan.placed, cut_short=cut_short
    )


def no_start(options: SolveOptions, why: object) -> Older:
    """No older plan to begin with, and what to say if one was given."""
    message = f"the older plan is no start: {why}; the search begins without it"
    return Older(None, () if options.warm_start is None else (Notice(_NOTICE, message),))


class _UnfitError(Exception):
    """Why an older plan is no start."""


def with_older_plan(
    cluster: Cluster,
    model: ModelSpec,
    graph: LayerGraph,
    problem: Problem,
    cost: CostModel,
    settings: SearchSettings,
    options: SolveOptions,
    why_identical: str | None,
) -> tuple[Older, SearchSettings]:
    """The plan of `options.warm_start` under these inputs, and the search's settings with it.

    why_identical: why shapes may not be mixed; None when they may.
    """
    older, begin = options.warm_start, time.monotonic()
    if older is None:
        return Older(), settings
    try:
        pipelines = _pipelines(older, cost)
        if len(pipelines) == 1 and _is_in_blocks(pipelines[0], cost):
            plan, said = _identical(pipelines[0], problem, cost, settings)
        else:
            if why_identical is not None:
                raise _UnfitError(f"only a search of mixed shapes knows its pipelines, and {why_identical}")
            choices = _mix(pipelines, cost)
            step = _checked(cluster, model, graph, cost, choices, options.ignore_memory)
            plan, said = OlderPlan(choices, step, None), ()
    except _UnfitError as unfit:
        return no_start(options, unfit), settings
    if cost.uplinks is not None:
        there = placed_choices(cost, plan.choices, settings.price_per_chip_s)
        plan = replace(plan, objective=there.objective, placed=there.placed)
    left = max(0.0, settings.time_limit_s - (time.monotonic() - begin))
    return Older(plan, said), replace(settings, warm=plan.best, time_limit_s=left)


def _checked(
    cluster: Cluster,
    model: ModelSpec,
    graph: LayerGraph,
    cost: CostModel,
    choices: tuple[PipelineChoice, ...],
    ignore_memory: bool,
) -> float:
    """The step time of pipelines of several shapes, once the checker has nothing against them."""
    from planner.plan import check_plan
    from planner.plan.assemble import Proved, assemble_plan

    plan = assemble_plan(cluster, model, graph, cost, choices, Proved(0.0, 0.0, "time", {}))
    wrong = [v for v in check_plan(plan) if not (ignore_memory and v.code == "memory")]
    if wrong:
        raise _UnfitError(wrong[0].render())
    return plan.prediction.step_time_s


def _pipelines(older: Plan, cost: CostModel) -> tuple[Pipeline, ...]:
    """The pipelines of the only island, whose groups, degrees and schedules exist."""
    if len(older.islands) != 1:
        raise _UnfitError(f"it has {len(older.islands)} islands")
    groups = {group.name: group for group in cost.groups}
    for pipeline in older.pipelines:
        if len(pipeline.stages) > cost.chain.num_layers:
            raise _UnfitError(f"it has {len(pipeline.stages):,} stages, the model {cost.chain.num_layers:,} layers")
        if pipeline.schedule.name not in cost.schedules or pipeline.schedule.chunks != 1:
            raise _UnfitError(f"its schedule {pipeline.schedule.name} is not among {', '.join(cost.schedules)}")
        for stage in pipeline.stages:
            group = groups.get(stage.node_group)
            if group is None:
                raise _UnfitError(f"the cluster has no node group {stage.node_group[:60]!r}")
            if stage.tensor_parallel not in group.tensor_degrees:
                degrees = ", ".join(str(t) for t in group.tensor_degrees) or "none"
                what = f"tensor parallel degree {stage.tensor_parallel} on {group.name}"
                raise _UnfitError(f"{what} is not possible; possible is {degrees}")
            if mode_of(cost, stage) not in group.modes:
                said = "no ZeRO level of its own" if stage.zero is None else f"ZeRO level {stage.zero}"
                levels = ", ".join(str(level) for level in cost.zero_levels)
                if stage.replicas not in group.stage_replicas or Tier.of(stage.offload_optimizer) not in group.offloads:
                    raise _UnfitError(
                        f"a stage on {group.name} is replicated or offloaded as these inputs do not allow"
                    )
                raise _UnfitError(f"a stage on {group.name} has {said}; possible is {levels}")
    return older.pipelines


def _order(pipeline: Pipeline, cost: CostModel) -> Order:
    """(group, mode, number of stages) along the pipeline."""
    index = {group.name: g for g, group in enumerate(cost.groups)}
    kinds = [(index[stage.node_group], mode_of(cost, stage)) for stage in pipeline.stages]
    return tuple((g, t, len([*run])) for (g, t), run in groupby(kinds))


def _is_in_blocks(pipeline: Pipeline, cost: CostModel) -> bool:
    """Whether each group has one block of stages, of one mode, as in all plans of identical pipelines."""
    blocks = [kind for kind, _ in groupby((stage.node_group, mode_of(cost, stage)) for stage in pipeline.stages)]
    return len({name for name, _ in blocks}) == len(blocks)


# ---- identical pipelines --------------------------------------------------------------------------------------------


def _identical(
    pipeline: Pipeline, problem: Problem, cost: CostModel, settings: SearchSettings
) -> tuple[OlderPlan, tuple[Notice, ...]]:
    """The shape in the search's words. Layers that cannot stay on their stages are divided anew, with a notice."""
    from planner.search.choices import choice_of_leaf

    roots = make_roots(problem, Intervals(problem.chain), settings.limits)
    index, order = _root_of(pipeline, roots), _order(pipeline, cost)
    root = roots[index]
    if not in_space(root, order):
        raise _UnfitError(_why_not(root, order))
    leaf = Leaf(root, order)
    split = _split(pipeline, leaf, cost)
    said: tuple[Notice, ...] = ()
    if split is None:
        found = plan_of_shape(root, index, order)
        if found is None:
            raise _UnfitError("its stages have too little memory for the layers")
        split = found.split
        message = "the older plan's layers cannot stay on their stages: its stages are kept, the layers divided anew"
        said = (Notice(_NOTICE, message),)
    step = leaf.step_time(split)
    best = Best(leaf_weight(leaf, Target(1.0, settings.price_per_chip_s)) * step, step, index, order, split)
    return OlderPlan((choice_of_leaf(cost, leaf, split),), best.objective, best), said


def _root_of(pipeline: Pipeline, roots: Sequence[Root]) -> int:
    first = pipeline.stages[0]
    setting = Setting(pipeline.micro_batch_size, pipeline.replicas, first.context_parallel, first.expert_parallel)
    for i, root in enumerate(roots):
        if root.schedule == pipeline.schedule.name and root.setting == setting:
            return i
    degrees = [("context", setting.context_parallel), ("expert", setting.expert_parallel)]
    more = "".join(f", {name} parallel degree {n}" for name, n in degrees if n > 1)
    what = f"{pipeline.replicas:,} replicas with micro-batches of {pipeline.micro_batch_size}{more}"
    raise _UnfitError(f"{what} are not in the plan space of this model on this cluster")


def _why_not(root: Root, order: Order) -> str:
    """What keeps a shape out of the root's space: chips where they are too few, else what the user pinned."""
    base = root.single_stage() if sum(n for _, _, n in order) == 1 else root
    for g, t, n in order:
        room = base.groups[g].room(t, root.setting)
        name = base.groups[g].name
        if n > room:
            width = t.chips * root.setting.context_parallel
            need = f"{n} stages of {root.setting.data_parallel} x {width} chips"
            return f"{need} do not fit {name}, which has room for {room}"
        if t not in base.modes(g):
            return f"{name} cannot be used at tensor parallel degree {t.tensor}"
    return "its stages are not what `constraints:` and --fixed-order ask for"


def _split(pipeline: Pipeline, leaf: Leaf, cost: CostModel) -> Split | None:
    """The older plan's layers and recompute; None when they are of another model or do not fit."""
    if not _same_layers(pipeline, cost) or not _known_policies(pipeline, cost):
        return None
    counts = tuple(len(stage.layers) for stage in pipeline.stages)
    if leaf.root.limits.layers_per_stage not in (None, counts):
        return None
    by_policy = [cost.kind_counts(stage.layers, stage.recompute) for stage in pipeline.stages]
    policies = tuple(tuple(zip(*rows, strict=True)) for rows in by_policy)
    split = Split(tuple(accumulate(counts)), policies)
    return split if is_valid(leaf, split) else None


def _same_layers(pipeline: Pipeline, cost: CostModel) -> bool:
    return tuple(name for stage in pipeline.stages for name in stage.layers) == cost.chain.names


def _known_policies(pipeline: Pipeline, cost: CostModel) -> bool:
    """Whether all policies are possible, and stages recompute their own layers only."""
    return all(
        policy in cost.policies and name in stage.layers
        for stage in pipeline.stages
        for name, policy in stage.recompute.items()
    )


# ---- pipelines of several shapes ------------------------------------------------------------------------------------


def _mix(pipelines: Sequence[Pipeline], cost: CostModel) -> tuple[PipelineChoice, ...]:
    """The choices, the micro-batches scaled to the batch of today; refused unless there is room for them."""
    from planner.cost.placement import Block
    from planner.plan.assemble import PipelineChoice, StageChoice
    from planner.plan.layout import places_of, setting_of_shape

    index = {group.name: g for g, group in enumerate(cost.groups)}
    context = pipelines[0].stages[0].context_parallel
    for pipeline in pipelines:
        if not _same_layers(pipeline, cost) or not _known_policies(pipeline, cost):
            raise _UnfitError("its layers are not those of this model")
        if any(stage.context_parallel != context or stage.expert_parallel != 1 for stage in pipeline.stages):
            raise _UnfitError("its context or expert parallel degrees differ, or spread experts over chips")
    _refuse_many(pipelines, cost)
    replicas = sum(p.replicas for p in pipelines)
    choices = []
    for pipeline, micro_batches in zip(pipelines, _micro_batches(pipelines, cost.global_batch), strict=True):
        ends = [*accumulate(len(stage.layers) for stage in pipeline.stages)]
        stages = tuple(
            StageChoice(index[s.node_group], mode_of(cost, s), end - len(s.layers), end, dict(s.recompute))
            for s, end in zip(pipeline.stages, ends, strict=True)
        )
        setting = Setting(pipeline.micro_batch_size, replicas, context)
        choices.append(PipelineChoice(pipeline.schedule.name, setting, micro_batches, stages, pipeline.replicas))
    counts = [choice.num_replicas for choice in choices]
    blocks = [[Block(s.group, s.tensor * context, c.num_replicas) for s in c.stages] for c in choices]
    if places_of(cost.groups, blocks) is None:
        raise _UnfitError("its stages have no room in the nodes")
    for choice in choices:
        setting = setting_of_shape(choice.setting, counts, len(choice.stages))
        if any(cost.table(s.group, s.mode, setting) is None for s in choice.stages):
            raise _UnfitError("a stage's chips cannot run its layers at these degrees")
    return tuple(choices)


def _refuse_many(pipelines: Sequence[Pipeline], cost: CostModel) -> None:
    """More chips than there are, before anything counts them one by one."""
    used: Counter[str] = Counter()
    for pipeline in pipelines:
        for stage in pipeline.stages:
            used[stage.node_group] += pipeline.replicas * stage.tensor_parallel * stage.context_parallel
    for group in cost.groups:
        chips = group.nodes * group.chips_per_node
        if used[group.name] > chips:
            raise _UnfitError(f"it uses {used[group.name]:,} chips of {group.name}, which has {chips:,}")


def _micro_batches(pipelines: Sequence[Pipeline], global_batch: int) -> list[int]:
    """Of each replica, in the older plan's proportions."""
    older = sum(p.replicas * p.micro_batches * p.micro_batch_size for p in pipelines)
    scaled = [p.micro_batches * global_batch for p in pipelines]
    if any(n % older for n in scaled):
        raise _UnfitError(f"its {older:,} sequences a step do not scale to {global_batch:,}")
    return [n // older for n in scaled]

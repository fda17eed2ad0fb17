"""When nothing fits: how far the nearest plan is from fitting, and changes that were verified, by solving, to make it
fit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from planner.cost.policies import offloads
from planner.cost.precision import zero_levels
from planner.cost.tiers import Tier, tiers_asked
from planner.errors import DplanError, InfeasibleError
from planner.search.driver import Outcome, search
from planner.search.relaxed import RelaxedProblem

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.search.solve import SolveOptions
    from planner.spec import Cluster, ModelSpec

__all__ = ["explain_infeasible"]

_BUDGET_S, _LEAST_BUDGET_S = 30.0, 4.0
_ONE_SEARCH_S = 6.0
_MOST_MORE_NODES = 64
_STEPS = 6


_NONE: Literal["none"] = "none"
_CUT_SHORT: Literal["cut short"] = "cut short"


@dataclass(frozen=True)
class Found:
    """A plan and the cost model that it was found with."""

    cost: CostModel
    outcome: Outcome


@dataclass(frozen=True)
class _Watch:
    """Until when, and whether at all, to look for remedies."""

    deadline: float
    should_stop: Callable[[], bool]

    @property
    def left(self) -> float:
        """Seconds left; 0 once asked to stop."""
        return 0.0 if self.should_stop() else max(0.0, self.deadline - time.monotonic())


def explain_infeasible(
    cluster: Cluster, model: ModelSpec, options: SolveOptions, should_stop: Callable[[], bool]
) -> InfeasibleError:
    """The error of a proved "no plan fits": which stage misses how much in the nearest plan, and what would help."""
    from planner.cost.model import CostModel
    from planner.graph import build_graph

    watch = _Watch(time.monotonic() + min(_BUDGET_S, max(_LEAST_BUDGET_S, options.time_limit_s)), should_stop)
    cost = CostModel(cluster, model, build_graph(model))
    details = _nearest(cluster, model, cost, options, watch)
    tried = list(_remedies(cluster, model, options, watch))
    helps = [text for text, fits in tried if fits]
    in_order_only = cost.chain.tensors is not None  # sets of layers that branch are not searched here
    fails = [text for text, fits in tried if fits is False and not in_order_only]
    if helps:
        details.append(f"it fits with: {', or '.join(helps)} (each verified by solving)")
    if fails and not helps:
        details.append(f"tried, and it still does not fit with: {', or '.join(fails)}")
    if watch.left <= 0:
        details.append("the time for finding remedies was over before all were tried")
    return InfeasibleError(f"no plan fits: {model.name} on {cluster.name}", *details)


def _find(
    cluster: Cluster, model: ModelSpec, options: SolveOptions, memory_scale: float, watch: _Watch
) -> Found | Literal["none", "cut short"]:
    """A plan, any plan; `none` when it is proved that there is none, `cut short` when the time was over."""
    from planner.cost.model import CostModel
    from planner.graph import build_graph
    from planner.search.solve import search_settings

    left = min(_ONE_SEARCH_S, watch.left)
    if left <= 0:
        return _CUT_SHORT
    try:
        cost = CostModel(cluster, model, build_graph(model))
        settings = replace(
            search_settings(cluster, model, cost, options), time_limit_s=left, first_plan_only=True, jobs=1
        )
    except DplanError:
        return _NONE
    problem = cost if memory_scale == 1 else RelaxedProblem(cost, memory_scale)
    outcome = search(problem, settings, should_stop=watch.should_stop)
    if outcome.leaf is None:
        return _NONE if outcome.why_stopped == "exhausted" else _CUT_SHORT
    return Found(cost, outcome)


def _nearest(cluster: Cluster, model: ModelSpec, cost: CostModel, options: SolveOptions, watch: _Watch) -> list[str]:
    """Scale every chip's memory until a plan fits; name the stage that misses most in it."""
    low, high = 1.0, 2.0
    found = _find(cluster, model, options, high, watch)
    while found == _NONE and high < 4096:
        low, high = high, high * 4
        found = _find(cluster, model, options, high, watch)
    if found == _NONE:
        return ["no plan was found with 4,096 times the memory either: the constraints contradict each other"]
    if not isinstance(found, Found):
        return ["how much is missing was not found in time"]
    for _ in range(_STEPS):
        middle = (low * high) ** 0.5
        closer = _find(cluster, model, options, middle, watch)
        if isinstance(closer, Found):
            found, high = closer, middle
        else:
            low = middle
    return [_worst_stage(cluster, cost, found.outcome)]


def _worst_stage(cluster: Cluster, cost: CostModel, outcome: Outcome) -> str:
    from planner.spec.units import format_bytes

    leaf, split = outcome.leaf, outcome.split
    assert leaf is not None and split is not None
    lacking = []
    received = leaf.received(split.ends)
    for s, stage in enumerate(leaf.stages):
        table = cost.table(stage.group, stage.mode, leaf.setting)
        assert table is not None
        need = leaf.peak_bytes(s, split.policies[s], received[s])
        lacking.append((need - table.usable_bytes, s, need, table.usable_bytes, ""))
        if table.uses_host:
            held = leaf.host_bytes(s, split.policies[s])
            lacking.append((held - table.usable_host_bytes, s, held, table.usable_host_bytes, " of host memory"))
        if table.nvme_bytes is not None:
            on_drives, room = leaf.nvme_bytes(s, split.policies[s]), table.usable_nvme_bytes
            lacking.append((on_drives - room, s, on_drives, room, " on drives"))
    missing, s, need, usable, what = max(lacking)
    first, end = split.bounds(s)
    names = cost.chain.names
    layers = names[first] if end - first == 1 else f"{names[first]} to {names[end - 1]}"
    stage = leaf.stages[s]
    group = cluster.node_groups[stage.group]
    return (
        f"nearest: stage {s} of {leaf.num_stages} on {group.chip} ({group.name}, tensor_parallel {stage.mode.tensor}, "
        f"data_parallel {leaf.setting.data_parallel}, micro_batch_size {leaf.setting.micro_batch_size}) with {layers} "
        f"needs {format_bytes(need)}{what} a chip; {format_bytes(usable)} is usable: {format_bytes(missing)} missing"
        + ("" if what else f"; {_largest_parts(cost, outcome, s)}")
    )


def _largest_parts(cost: CostModel, outcome: Outcome, s: int) -> str:
    """The two largest parts of a stage's memory, e.g. `largest parts: transient 160.0 GiB, weights 1.2 GiB`."""
    from planner.spec.units import format_bytes

    leaf, split = outcome.leaf, outcome.split
    assert leaf is not None and split is not None
    stage = leaf.stages[s]
    counts = [list(row) for row in zip(*split.policies[s], strict=True)]
    held, received = leaf.in_flight[s], leaf.received(split.ends)[s]
    parts = cost.breakdown(stage.group, stage.mode, leaf.setting, counts, held, received).memory.parts()
    largest = sorted(parts.items(), key=lambda part: (-part[1], part[0]))[:2]
    return "largest parts: " + ", ".join(f"{name} {format_bytes(size)}" for name, size in largest)


def _remedies(
    cluster: Cluster, model: ModelSpec, options: SolveOptions, watch: _Watch
) -> Iterator[tuple[str, bool | None]]:
    """Each change in words, and whether a plan was found with it; None where that stayed open."""
    hosts = any(group.host_memory_bytes is not None for group in cluster.node_groups)
    for text, changed in _model_changes(model):
        if (
            changed.training.offload_optimizer == "allowed"
            and model.training.offload_optimizer == "never"
            and not hosts
        ):
            continue  # no figure says what a host would hold
        found = _find(cluster, changed, options, 1.0, watch)
        yield text, True if isinstance(found, Found) else (False if found == _NONE else None)
    for text, larger in _more_off_chip(cluster, model):
        found = _find(larger, model, options, 1.0, watch)
        yield text, True if isinstance(found, Found) else (False if found == _NONE else None)
    for g, group in enumerate(cluster.node_groups):
        more = _nodes_needed(cluster, model, options, g, watch)
        if more is not None:
            chips = more * group.chips_per_node
            yield f"{chips} more {group.chip} ({more} node{'s' if more > 1 else ''} of {group.name})", True


def _more_off_chip(cluster: Cluster, model: ModelSpec) -> Iterator[tuple[str, Cluster]]:
    """Clusters with more of what layers or optimizer states may be offloaded to, where its size is given."""
    groups, tiers = cluster.node_groups, tiers_asked(model.training)
    given = any(group.host_memory_bytes is not None for group in groups)
    if given and (tiers != (Tier.CHIP,) or any(map(offloads, model.training.recompute))):
        free = [g.model_copy(update={"host_memory_bytes": _much(g.host_memory_bytes)}) for g in groups]
        yield "more host_memory", cluster.model_copy(update={"node_groups": tuple(free)})
    if Tier.NVME in tiers and any(group.nvme is not None for group in groups):
        free = [
            g.model_copy(
                update={"nvme": g.nvme and g.nvme.model_copy(update={"capacity_bytes": _much(g.nvme.capacity_bytes)})}
            )
            for g in groups
        ]
        yield "more capacity of nvme", cluster.model_copy(update={"node_groups": tuple(free)})


def _much(size: int | None) -> int | None:
    return None if size is None else 4096 * size


def _model_changes(model: ModelSpec) -> Iterator[tuple[str, ModelSpec]]:
    training = model.training

    def changed(**update: object) -> ModelSpec:
        return model.model_copy(update={"training": training.model_copy(update=update)})

    pinned = model.constraints
    for name, field in type(pinned).model_fields.items():
        if getattr(pinned, name) != field.get_default(call_default_factory=True):
            free = pinned.model_copy(update={name: field.get_default(call_default_factory=True)})
            yield f"constraints.{name} left out", model.model_copy(update={"constraints": free})
    if "full" not in training.recompute:
        yield "recompute: full allowed", changed(recompute=(*training.recompute, "full"))
    if "full_offload" not in training.recompute:
        yield "recompute: full_offload allowed", changed(recompute=_with(training.recompute, "full", "full_offload"))
    if 1 not in training.micro_batch_sizes and model.constraints.micro_batch_size is None:
        yield f"micro-batch size {min(training.micro_batch_sizes)} -> 1", changed(micro_batch_sizes=(1,))
    if training.attention == "math":
        yield "attention: flash", changed(attention="flash")
    if training.loss == "plain":
        yield "loss: fused", changed(loss="fused")
    levels = zero_levels(training)
    for level in range(max(levels) + 1, 4):
        yield f"zero: {', '.join(map(str, levels))} -> {level}", changed(zero=level)
    if training.offload_optimizer != "allowed":
        yield "offload_optimizer: allowed", changed(offload_optimizer="allowed")
    if training.gradients == "fp32" and training.precision != "fp32":
        yield "gradients: compute (changes the training)", changed(gradients="compute")
    if training.optimizer == "adamw":
        yield "optimizer: adafactor (changes the training)", changed(optimizer="adafactor")


def _with(policies: Sequence[str], *more: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*policies, *more)))


def _nodes_needed(cluster: Cluster, model: ModelSpec, options: SolveOptions, group: int, watch: _Watch) -> int | None:
    """The least number of further nodes of a group with which a plan is found: doubled, then bisected."""

    def fits(more: int) -> bool:
        groups = list(cluster.node_groups)
        groups[group] = groups[group].model_copy(update={"nodes": groups[group].nodes + more})
        larger = cluster.model_copy(update={"node_groups": tuple(groups)})
        return isinstance(_find(larger, model, options, 1.0, watch), Found)

    if cluster.node_groups[group].nic is None:
        return None  # nothing says how a second node would be reached
    high = 1
    while not fits(high):
        if high >= _MOST_MORE_NODES or watch.left <= 0:
            return None
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high

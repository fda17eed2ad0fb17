"""The plan that the search returns, and its step time from the problem's own tables, written from the formula alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from planner.search.mixed_stages.tables import MixedProblem, MixedSetting, ReplicaKind

__all__ = ["MixedAnswer", "MixedPlan", "MixedReplica", "MixedStage", "step_time_s"]


@dataclass(frozen=True)
class MixedReplica:
    """One replica of a stage: `degree` chips of a type (index into the problem's chips), in a node of that type."""

    chip: int
    degree: int
    node: int


@dataclass(frozen=True)
class MixedStage:
    """Layers [first, end) and the stage's replicas, one for each data parallel rank."""

    first: int
    end: int
    replicas: tuple[MixedReplica, ...]


@dataclass(frozen=True)
class MixedPlan:
    setting: MixedSetting
    stages: tuple[MixedStage, ...]


@dataclass(frozen=True)
class MixedAnswer:
    """Three separate facts: why it stopped, the plan if there is one, and how good it is.

    stop: `gap` (reached), `infeasible` (proved: no plan fits), `time` (up), `work` (more partial chains than are kept).
    objective_s: the plan's step time, inf without one.  bound_s: no plan of the whole space takes less.
    shapes, searches: (setting, number of stages) pairs of the space, and how many chain searches were run.
    """

    stop: Literal["gap", "infeasible", "time", "work"]
    plan: MixedPlan | None
    objective_s: float
    bound_s: float
    shapes: int
    searches: int

    @property
    def gap(self) -> float:
        """(objective - bound) / objective; inf without a plan."""
        if self.plan is None:
            return float("inf")
        return max(0.0, (self.objective_s - self.bound_s) / self.objective_s) if self.objective_s else 0.0


def step_time_s(problem: MixedProblem, plan: MixedPlan) -> float:
    """Seconds, by the formula in tables.py; inf for a plan that no chip's memory holds or with a link missing."""
    stages, setting = plan.stages, plan.setting
    kinds = [sorted({(r.chip, r.degree) for r in stage.replicas}) for stage in stages]
    x: list[float] = []
    update, sync = 0.0, 0.0
    for i, stage in enumerate(stages):
        compute = 0.0
        for chip, degree in kinds[i]:
            kind = ReplicaKind(chip, degree)
            numbers = problem.layer_numbers(kind, setting.micro_batch_size)
            if numbers is None:
                return float("inf")
            layers = slice(stage.first, stage.end)
            held = problem.in_flight(i, len(stages), setting)
            used = numbers.static_bytes[layers].sum() + held * numbers.saved_bytes[layers].sum() + numbers.fixed_bytes
            if used > problem.chips[chip].usable_bytes:
                return float("inf")
            compute = max(compute, float(numbers.time_s[layers].sum()))
            update = max(update, float(numbers.update_s[stage.first]))
        x.append(compute + _transfers(problem, plan, kinds, i))
        chips = tuple(sorted({chip for chip, _ in kinds[i]}))
        table = problem.sync_s(chips, min(degree for _, degree in kinds[i]), setting)
        if table is None:
            return float("inf")
        sync = max(sync, float(table[stage.first, stage.end]))
    return (setting.num_micro_batches - 1) * max(x) + sum(x) + update + sync


def _transfers(problem: MixedProblem, plan: MixedPlan, kinds: list[list[tuple[int, int]]], stage: int) -> float:
    """Seconds of one micro-batch's transfers that stage `stage` counts, its slowest pairs."""
    mbs = plan.setting.micro_batch_size
    onward_weight, back_weight = problem.transfer_weights(stage, len(kinds))
    total = 0.0
    for step, ask, layer, weight in (
        (1, problem.onward_s, plan.stages[stage].end - 1, onward_weight),
        (-1, problem.back_s, plan.stages[stage].first, back_weight),
    ):
        if 0 <= stage + step < len(kinds):
            slowest = 0.0
            for source in kinds[stage]:
                for target in kinds[stage + step]:
                    seconds = ask(ReplicaKind(*source), ReplicaKind(*target), mbs)
                    slowest = max(slowest, float("inf") if seconds is None else float(seconds[layer]))
            if slowest == float("inf"):
                return slowest
            total += weight * slowest
    return total

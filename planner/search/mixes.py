"""Pipelines of several shapes: whether they may be searched, and the best of all from the best identical ones."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.errors import NoPlanFoundError, Notice
from planner.search.floors import mix_floor
from planner.search.outcome import Found

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import MixedProblem
    from planner.search.candidates import Limits
    from planner.search.mix_progress import MixPhase, MixReporter
    from planner.search.mixed.driver import MixedOutcome
    from planner.search.outcome import Outcome, SearchSettings, WhyStopped
    from planner.search.solve import SolveOptions
    from planner.search.warm import Older
    from planner.spec import ModelSpec

__all__ = [
    "IDENTICAL",
    "AllShapes",
    "before_mixes",
    "best_of_all_shapes",
    "one_shape_notices",
    "search_all_shapes",
    "why_identical",
]

IDENTICAL = "identical pipelines"
"""The phase before all mixes."""
_IDENTICAL_SHARE, _SHARE_WITH_EXPERTS = 0.6, 0.75
"""Of the time limit, for plans of identical pipelines, where mixes may be better; expert groups are never mixed, so
that where there can be some the bound is mostly that of identical pipelines.
"""
_IDENTICAL_GAP = 0.01
"""Plans of identical pipelines are looked for this closely at least, where mixes may be better: a better start costs
less than the bound of all mixes from a worse one.
"""
_IMPROVEMENT_SHARE = 0.45
"""Of the time that identical pipelines left, for better mixes; the rest is for the bound of all mixes."""


_LEVELS = "training.zero leaves a choice of levels"
_REPLICAS = "training.stage_replicas leaves a choice"
_BOTH = "training.zero and training.stage_replicas leave a choice"


@dataclass(frozen=True)
class AllShapes:
    """bound: no plan of any shapes has a shorter step.  late: the clock ended the search for better mixes.
    cut_short: the phases that the clock ended.
    """

    mixed: MixedOutcome
    bound: float
    late: bool
    cut_short: tuple[MixPhase, ...]


def before_mixes(problem: MixedProblem, settings: SearchSettings, limit: float) -> SearchSettings:
    """Of the search for identical pipelines that comes before the one for mixes. limit: seconds for both."""
    gap = min(settings.gap, _IDENTICAL_GAP)
    share = _SHARE_WITH_EXPERTS if _has_expert_groups(problem) else _IDENTICAL_SHARE
    return replace(settings, gap=gap, time_limit_s=share * limit, first_plan_limit_s=limit)


def _has_expert_groups(problem: MixedProblem) -> bool:
    return any(s.expert_parallel > 1 for s in problem.settings)


def why_identical(model: ModelSpec, cost: CostModel, limits: Limits, options: SolveOptions) -> str | None:
    """Why all pipelines must be of one shape; None when they may be mixed."""
    if model.constraints.shapes == "identical":
        return "constraints.shapes asks for one shape"
    if options.objective == "cost":
        return "the objective is cost"
    if limits.stages or limits.order is not None or limits.layers_per_stage is not None or limits.fixed_order:
        return "stages, their order or their layers are pinned"
    if cost.chain.tensors is not None:
        return "the layers branch"
    levels, replicas = len(cost.zero_levels) > 1, any(group.stage_replicas != (1,) for group in cost.groups)
    if levels or replicas:
        return _BOTH if levels and replicas else _LEVELS if levels else _REPLICAS
    if not cost.may_mix:
        return "ZeRO-2 and 3 and expert parallel groups need equal pipelines"
    return None


def search_all_shapes(
    problem: MixedProblem,
    model: ModelSpec,
    settings: SearchSettings,
    outcome: Outcome,
    deadline: float,
    interrupted: Callable[[], bool],
    say: MixReporter | None = None,
) -> AllShapes:
    """Search the mixes of a problem, from the outcome of the search for identical pipelines. deadline: of
    time.monotonic().  say: told how the search goes on.
    """
    from planner.search.mix_progress import MixReporter
    from planner.search.mixed.driver import Start, search_mixes

    now = time.monotonic()
    say = MixReporter(None, now) if say is None else say
    middle = now + _IMPROVEMENT_SHARE * (deadline - now)

    def stop() -> bool:
        say.tick()
        return interrupted() or time.monotonic() >= deadline

    late = False

    def hurry() -> bool:
        nonlocal late
        say.tick()
        late = late or time.monotonic() >= middle
        return late or interrupted()

    pinned = model.constraints.data_parallel
    numbers = None if pinned is None else (pinned if isinstance(pinned, tuple) else (pinned,))
    start = Start(outcome.leaf, outcome.split, outcome.step_time)
    floor = min(outcome.bound, mix_floor(problem, settings.limits))
    say.begin(outcome.step_time, floor)
    solver = settings.program_solver
    mixed = search_mixes(
        problem,
        settings.limits,
        numbers,
        start,
        settings.gap,
        stop,
        hurry,
        solver,
        jobs=settings.jobs,
        deadline=deadline,
        enter=say.enter,
    )
    bound = mixed.bound
    if _has_expert_groups(problem):
        bound = min(bound, outcome.bound)
    bound = max(bound, floor)
    ended: tuple[MixPhase, ...] = ("better mixes",) if late else ()
    if time.monotonic() >= deadline:
        ended = (*ended, say.phase)
    return AllShapes(mixed, bound, late, ended)


def best_of_all_shapes(
    problem: MixedProblem,
    cost: CostModel,
    model: ModelSpec,
    settings: SearchSettings,
    outcome: Outcome,
    single: Found | None,
    deadline: float,
    interrupted: Callable[[], bool],
    older: Older,
    say: MixReporter,
) -> Found | None:
    """The best plan of all, pipelines of several shapes allowed, from the best one of identical pipelines.

    None when it is proved that nothing fits, or there is an older plan. Raises NoPlanFoundError when no identical plan
    fits and no mix was found.
    """
    from planner.search.choices import choices_of_mix

    searched = search_all_shapes(problem, model, settings, outcome, deadline, interrupted, say)
    mixed, bound = searched.mixed, searched.bound
    if single is None and not mixed.entries:
        if math.isinf(mixed.bound) or older.plan is not None:
            return None
        raise NoPlanFoundError(
            "no plan of identical pipelines fits, and no mix of pipeline shapes was found",
            "the first is proved, the second is not: a mix shards its states over more replicas",
            "give each pipeline more chips or memory, or ask why with `constraints: {shapes: identical}`",
        )
    choices = choices_of_mix(cost, mixed.entries, mixed.context_parallel) if mixed.entries else ()
    choices = choices or (single.choices if single is not None else ())
    why: WhyStopped = "exhausted"
    if mixed.step_time - bound <= max(settings.gap, 1e-6) * mixed.step_time * (1 + 1e-6):
        by_clock = outcome.warmed or outcome.why_stopped == "time" or searched.late
        why = "time" if by_clock else "gap"
    elif interrupted():
        why = "interrupted"
    elif searched.cut_short or outcome.why_stopped == "time":
        why = "time"
    statistics = {**outcome.statistics, **mixed.statistics}
    known = None if single is None else single.bound
    parts = (*((IDENTICAL,) if outcome.why_stopped == "time" else ()), *searched.cut_short)
    return Found(choices, mixed.step_time, bound, why, statistics, True, known, cut_short=tuple(dict.fromkeys(parts)))


def one_shape_notices(model: ModelSpec, why: str | None) -> tuple[Notice, ...]:
    """A warning where mixes are asked for and cannot be, or where a choice that looks wider takes them away.

    why: of `why_identical`.
    """
    if why is None or model.constraints.shapes == "identical":
        return ()
    message = f"mixed shapes of pipelines are not searched: {why}"
    if "shapes" in model.constraints.model_fields_set:
        return (Notice("shapes", f"{message}, although constraints.shapes is mixed"),)
    if why in (_LEVELS, _REPLICAS, _BOTH):
        return (Notice("shapes", f"{message}; without a choice there they can be"),)
    return ()

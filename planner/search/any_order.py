"""Models whose layers branch: beyond the model's own order, contiguous sets of layers in any order the graph allows.

The search over the model's order (`driver.search`) speaks of pipelines in which every stage feeds the next one; what it
finds is where the search over sets begins, and which of the two spaces the certificate speaks of is said in the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.cost.crossings import sent_elements
from planner.errors import NoPlanFoundError
from planner.search.branching.ideals import ideals_of
from planner.search.branching.placed import Placed
from planner.search.branching.whole import WholeAnswer, search_sets
from planner.search.branching.whole_bound import cost_bound, rate_bound
from planner.search.candidates import make_roots
from planner.search.driver import search
from planner.search.intervals import Intervals
from planner.search.outcome import SearchProgress

if TYPE_CHECKING:
    from planner.cost.tables import Chain, Problem
    from planner.search.leaf import Leaf, Split
    from planner.search.outcome import Outcome, SearchSettings, WhyStopped

__all__ = ["ANY_ORDER", "MODEL_ORDER", "InAnyOrder", "search_any_order", "share_of_time"]

ANY_ORDER = "every order that the graph allows: the layers of a stage are contiguous in the graph"
MODEL_ORDER = "the model's own, every stage fed by the one before it"
_SHARE, _LARGER_SHARE = 0.5, 0.85
"""Of the time limit that the search over the model's order may take; the larger one where there is hardly another."""
_MODEL_PHASE, _ANY_PHASE = "layers in the model's order", "any order of layers"
_FEW = 24
"""Shapes that the sets of such a model are placed on, where its own order is decided; not seconds, which would give
another plan on another machine.
"""


def leaves_no_choice(chain: Chain) -> bool:
    """Whether the graph is nearly a chain: at most two sets of layers, closed under what feeds them, of every size."""
    edges = sorted({(tensor.source, v) for tensor in chain.tensors or () for v in tensor.consumers})
    return ideals_of(chain.num_layers, edges, 2 * (chain.num_layers + 1)) is not None


def share_of_time(chain: Chain) -> float:
    """Share of the time limit for the search over the model's order."""
    return _LARGER_SHARE if leaves_no_choice(chain) else _SHARE


@dataclass(frozen=True)
class InAnyOrder:
    """placed: the best pipeline, and its objective.  bound: for the space that `layer_order` describes.  cut_short: as
    in `Found`.
    """

    placed: Placed
    objective: float
    bound: float
    layer_order: str
    why_stopped: WhyStopped
    statistics: dict[str, int]
    cut_short: tuple[str, ...] = ()


def search_any_order(
    problem: Problem,
    settings: SearchSettings,
    settled: Callable[[Outcome], Split],
    progress: Callable[[SearchProgress], None] | None,
    should_stop: Callable[[], bool],
) -> tuple[Outcome, InAnyOrder | None]:
    """The outcome of the search over the model's order, and the best pipeline of all; None: none was found.

    settled: the best split of an outcome, ties settled.  Raises NoPlanFoundError where it is proved that no plan in the
    model's order fits, and stays open whether another does.
    """
    begin = time.monotonic()
    deadline = begin + settings.time_limit_s
    sets = settings.price_per_chip_s is None and settings.limits.layers_per_stage is None
    share = share_of_time(problem.chain) if sets else 1.0
    first = replace(settings, time_limit_s=share * settings.time_limit_s)
    outcome = search(problem, first, _in_model_order(progress), should_stop)
    leaf, split = outcome.leaf, None if outcome.leaf is None else settled(outcome)
    start = None if leaf is None or split is None else _placed(leaf, split)
    few = _FEW if outcome.why_stopped == "gap" and leaves_no_choice(problem.chain) else None
    if not sets:
        answer = WholeAnswer(start, _least_bound(problem, settings), {}, outcome.why_stopped != "time")
    else:
        report = _reported(progress, outcome, begin)
        answer = search_sets(problem, settings.limits, start, settings.gap, deadline, should_stop, report, few)
    if answer.placed is None:
        if outcome.why_stopped == "exhausted" and not math.isinf(answer.bound):
            raise _unproved()
        return outcome, None
    parts = {_MODEL_PHASE: outcome.why_stopped != "time", _ANY_PHASE: answer.in_time or not sets}
    found = _concluded(settings, outcome, answer, start is answer.placed and _feeds(answer.placed), should_stop)
    return outcome, replace(found, cut_short=tuple(part for part, in_time in parts.items() if not in_time))


def _concluded(
    settings: SearchSettings, outcome: Outcome, answer: WholeAnswer, in_order: bool, should_stop: Callable[[], bool]
) -> InAnyOrder:
    """Which space the certificate speaks of: all orders where their bound is close enough or no worse.

    in_order: the plan is the best of the search over the model's order, and every stage of it feeds the next one.
    Whatever the clock had a part in ends by `time`, also where the gap is closed.
    """
    placed, statistics = answer.placed, {**outcome.statistics, **answer.statistics}
    assert placed is not None
    weight = outcome.objective / outcome.step_time if outcome.leaf is not None else 1.0
    objective = weight * placed.step_time
    in_time = outcome.why_stopped != "time" and answer.in_time
    ended: WhyStopped = "interrupted" if should_stop() else "time"
    if objective - answer.bound <= max(settings.gap, 1e-6) * objective * (1 + 1e-6):
        return InAnyOrder(placed, objective, answer.bound, ANY_ORDER, "gap" if in_time else ended, statistics)
    why = ended if not in_time else "exhausted"
    if in_order and answer.bound < outcome.bound:
        why = outcome.why_stopped if in_time else ended
        return InAnyOrder(placed, objective, outcome.bound, MODEL_ORDER, why, statistics)
    return InAnyOrder(placed, objective, answer.bound, ANY_ORDER, why, statistics)


def _unproved() -> NoPlanFoundError:
    return NoPlanFoundError(
        "no plan with the layers in the model's order fits, and none in another order was found",
        "the first is proved, the second is not: the layers branch, and stages may hold other sets of them",
        "give each stage more memory, or the search more time with --time-limit",
    )


def _in_model_order(progress: Callable[[SearchProgress], None] | None) -> Callable[[SearchProgress], None] | None:
    """Progress of the first search, which speaks of a part of the plan space."""
    if progress is None:
        return None
    return lambda p: progress(replace(p, phase=_MODEL_PHASE, whole=False))


def _reported(
    progress: Callable[[SearchProgress], None] | None, outcome: Outcome, begin: float
) -> Callable[[int, int, float, float], None]:
    """Progress of the search over sets, after what the first search has counted."""

    def report(shapes: int, programs: int, found: float, bound: float) -> None:
        if progress is not None:
            done = outcome.statistics
            counts = done["leaves"] + shapes, done["programs"] + programs
            best, proved = (x if math.isfinite(x) else None for x in (found, bound))
            progress(SearchProgress(*counts, best, proved, time.monotonic() - begin, _ANY_PHASE))

    return report


def _placed(leaf: Leaf, split: Split) -> Placed:
    stage_of = [s for s in range(leaf.num_stages) for _ in range(*split.bounds(s))]
    step = leaf.branch_step_time(split.policies, leaf.sent(split.ends))
    return Placed(leaf, tuple(stage_of), split.policies, step)


def _feeds(placed: Placed) -> bool:
    """Whether every stage sends something to the next one."""
    sent = sent_elements(placed.leaf.tensors or (), placed.stage_of)
    return all((s, s + 1) in sent for s in range(placed.leaf.num_stages - 1))


def _least_bound(problem: Problem, settings: SearchSettings) -> float:
    """What no pipeline can beat, in the unit of the objective, without a search."""
    prices = settings.price_per_chip_s
    roots = make_roots(problem, Intervals(problem.chain), settings.limits)
    bounds = [rate_bound(root, 5.0) if prices is None else cost_bound(root, prices) for root in roots]
    return min(bounds, default=math.inf)

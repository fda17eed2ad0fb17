"""Models whose layers branch: beyond the model's own order, contiguous sets of layers in any order the graph allows.

The search over the model's order (`driver.search`) speaks of pipelines in which every stage feeds the next one; what it
finds is where the search over sets begins, and which of the two spaces the certificate speaks of is said in the plan.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search.branching.ideals import ideals_of
from planner.search.branching.placed import Placed
from planner.search.branching.whole import WholeAnswer, search_sets
from planner.search.branching.whole_bound import cost_bound, rate_bound
from planner.search.candidates import make_roots
from planner.search.intervals import Intervals

if TYPE_CHECKING:
    from planner.cost.tables import Chain, Problem
    from planner.search.leaf import Leaf, Split
    from planner.search.outcome import Outcome, SearchSettings, WhyStopped

__all__ = ["ANY_ORDER", "MODEL_ORDER", "InAnyOrder", "search_any_order", "share_of_time"]

ANY_ORDER = "every order that the graph allows: the layers of a stage are contiguous in the graph"
MODEL_ORDER = "the model's own, every stage fed by the one before it"
_SHARE, _LARGER_SHARE = 0.5, 0.85
"""Of the time limit that the search over the model's order may take; the larger one where there is hardly another."""
_SHORT_S = 5.0
"""Seconds for the sets of such a model, where its own order is decided."""


def leaves_no_choice(chain: Chain) -> bool:
    """Whether the graph is nearly a chain: at most two sets of layers, closed under what feeds them, of every size."""
    edges = sorted({(tensor.source, v) for tensor in chain.tensors or () for v in tensor.consumers})
    return ideals_of(chain.num_layers, edges, 2 * (chain.num_layers + 1)) is not None


def share_of_time(chain: Chain) -> float:
    """Share of the time limit for the search over the model's order."""
    return _LARGER_SHARE if leaves_no_choice(chain) else _SHARE


@dataclass(frozen=True)
class InAnyOrder:
    """placed: the best pipeline; None: none was found (bound inf: proved that there is none).

    own_order: whether it is the one given, layers in the model's order.  bound: of the objective, for the space that
    `layer_order` describes.
    """

    placed: Placed | None
    own_order: bool
    bound: float
    layer_order: str
    why_stopped: WhyStopped
    statistics: dict[str, int]


def search_any_order(
    problem: Problem,
    settings: SearchSettings,
    outcome: Outcome,
    split: Split | None,
    deadline: float,
    should_stop: Callable[[], bool],
) -> InAnyOrder:
    """The best pipeline from here on. outcome: of the search over the model's order; split: its best, ties settled."""
    start = None if outcome.leaf is None or split is None else _placed(outcome.leaf, split)
    pinned = settings.limits.layers_per_stage is not None
    if outcome.why_stopped == "gap" and leaves_no_choice(problem.chain):
        deadline = min(deadline, time.monotonic() + _SHORT_S)
    if settings.price_per_chip_s is None and not pinned:
        answer = search_sets(problem, settings.limits, start, settings.gap, deadline, should_stop)
    else:
        answer = WholeAnswer(start, _least_bound(problem, settings), {})
    placed, statistics = answer.placed, {**outcome.statistics, **answer.statistics}
    if placed is None or start is None:
        why: WhyStopped = "exhausted" if math.isinf(answer.bound) else _why(outcome, should_stop)
        if placed is not None and _closed(placed.step_time, answer.bound, settings.gap):
            why = "gap"
        return InAnyOrder(placed, False, answer.bound, ANY_ORDER, why, statistics)
    objective = outcome.objective / outcome.step_time * placed.step_time
    own = placed is start
    if _closed(objective, answer.bound, settings.gap):
        return InAnyOrder(placed, own, answer.bound, ANY_ORDER, "gap", statistics)
    if own and _feeds(outcome.leaf, split) and answer.bound < outcome.bound:
        return InAnyOrder(placed, own, outcome.bound, MODEL_ORDER, outcome.why_stopped, statistics)
    return InAnyOrder(placed, own, answer.bound, ANY_ORDER, _why(outcome, should_stop), statistics)


def _placed(leaf: Leaf, split: Split) -> Placed:
    stage_of = [s for s in range(leaf.num_stages) for _ in range(*split.bounds(s))]
    step = leaf.branch_step_time(split.policies, leaf.sent(split.ends))
    return Placed(leaf, tuple(stage_of), split.policies, step)


def _feeds(leaf: Leaf | None, split: Split | None) -> bool:
    """Whether every stage sends something to the next one."""
    assert leaf is not None and split is not None
    sent = leaf.sent(split.ends)
    return all((s, s + 1) in sent for s in range(leaf.num_stages - 1))


def _closed(objective: float, bound: float, gap: float) -> bool:
    return objective - bound <= max(gap, 1e-6) * objective * (1 + 1e-6)


def _why(outcome: Outcome, should_stop: Callable[[], bool]) -> WhyStopped:
    if should_stop():
        return "interrupted"
    return "time" if outcome.why_stopped in ("time", "gap") else outcome.why_stopped


def _least_bound(problem: Problem, settings: SearchSettings) -> float:
    """What no pipeline can beat, in the unit of the objective, without a search."""
    prices = settings.price_per_chip_s
    roots = make_roots(problem, Intervals(problem.chain), settings.limits)
    bounds = [rate_bound(root, 5.0) if prices is None else cost_bound(root, prices) for root in roots]
    return min(bounds, default=math.inf)

"""Plans on a cluster with a topology: the search's tables know only what uplinks leave at the best places; here plans
are placed and judged at their exact step times, and the best of those near the search's is kept.

The search's bound stays a bound: no placement has faster rings or transfers than its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from planner.plan.evaluate import traffic_of
from planner.plan.layout import PipelineChoice, shapes_of
from planner.plan.placing import Placed, place_well
from planner.search.candidates import Root, make_roots
from planner.search.choices import choice_of_leaf
from planner.search.driver import search
from planner.search.improve import in_space, neighbours
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.one_shape import Best, try_order
from planner.search.placed_leaf import PlacedLeaf
from planner.search.polish import polish

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import MixedProblem, Problem
    from planner.search.leaf import Split
    from planner.search.outcome import Found, Outcome, SearchSettings, WhyStopped

__all__ = ["OnUplinks", "best_on_uplinks", "found_on_uplinks", "is_open", "placed_choices", "placed_leaf"]

_MOST_TRIES = 60
_ROUNDS = 3
"""How often nodes are chosen again after layers were moved."""
_SHARPEST, _CLOSER = 16, 0.9
"""Where the topology leaves the asked gap open, the search is asked once more for a bound that closes it, up to so many
times sharper (beyond, no bound of the search closes it), and a little closer, as its best plan may be better then.
"""


@dataclass(frozen=True)
class OnUplinks:
    """The best choices found, placed, and their exact objective.  tried: how many were placed.  bound: of identical
    pipelines, where the search was asked again; 0: it was not.
    """

    choices: tuple[PipelineChoice, ...]
    placed: Placed
    objective: float
    tried: int = 1
    bound: float = 0.0


def placed_choices(
    cost: CostModel, choices: tuple[PipelineChoice, ...], prices: tuple[float, ...] | None = None
) -> OnUplinks:
    """Choices at good places. Objective: step time in seconds; with prices (of a chip and second, by group) money."""
    placed = place_well(cost, shapes_of(cost, choices))
    assert placed is not None
    weight = 1.0
    if prices is not None:
        weight = sum(shape.chips(stage) * prices[stage.group] for shape in placed.shapes for stage in shape.stages)
    return OnUplinks(choices, placed, weight * placed.step_time_s)


def placed_leaf(cost: CostModel, leaf: Leaf, split: Split, prices: tuple[float, ...] | None = None) -> OnUplinks:
    """A plan of identical pipelines at good places, single layers moved while that helps there: away from stages that
    reduce over thin uplinks.
    """
    one = placed_choices(cost, (choice_of_leaf(cost, leaf, split),), prices)
    for _ in range(_ROUNDS if leaf.root.limits.layers_per_stage is None else 0):
        traffic = traffic_of(cost, one.placed.shapes)
        assert traffic is not None
        moved = polish(PlacedLeaf(leaf, cost, traffic), split)
        if moved == split:
            break
        other = placed_choices(cost, (choice_of_leaf(cost, leaf, moved),), prices)
        if other.objective >= one.objective:
            break
        one, split = other, moved
    return one


def found_on_uplinks(
    problem: MixedProblem,
    cost: CostModel,
    settings: SearchSettings,
    outcome: Outcome,
    candidates: tuple[Found, Found],
    deadline: float,
    should_stop: Callable[[], bool],
) -> Found:
    """The best once it is placed. candidates: what was found, and the best of identical pipelines.

    Layers that branch stay on their stages: what was found is placed, and nothing else is tried.
    """
    found, single = candidates
    if cost.chain.tensors is None:
        choices = [found.choices] if single is found else [found.choices, single.choices]
        best = best_on_uplinks(
            cost, problem, settings, outcome, choices, found.bound, not found.mixed, deadline, should_stop
        )
    else:
        best = placed_choices(cost, found.choices, settings.price_per_chip_s)
    bound = min(max(best.bound, found.bound), best.objective)
    why: WhyStopped = "exhausted"
    if not is_open(best.objective, bound, settings.gap):
        why = "time" if outcome.warmed else "gap"
    elif should_stop():
        why = "interrupted"
    elif time.monotonic() >= deadline or found.why_stopped == "time":
        why = "time"
    return replace(
        found,
        choices=best.choices,
        objective=best.objective,
        bound=bound,
        why_stopped=why,
        statistics={**found.statistics, "placed": best.tried},
        placed=best.placed,
    )


def best_on_uplinks(
    cost: CostModel,
    problem: Problem,
    settings: SearchSettings,
    outcome: Outcome,
    found: Sequence[tuple[PipelineChoice, ...]],
    bound: float,
    identical: bool,
    deadline: float,
    should_stop: Callable[[], bool],
) -> OnUplinks:
    """The best of what was found and, while the gap to `bound` is open, of the shapes around the best plan of identical
    pipelines. identical: the bound is of such plans alone; where a sharper one of the search could close the gap, it is
    asked for.
    """
    prices = settings.price_per_chip_s
    best = min((placed_choices(cost, choices, prices) for choices in found), key=lambda one: one.objective)
    best = replace(best, tried=len(found))
    if outcome.leaf is None or outcome.split is None:
        return best
    roots = make_roots(problem, Intervals(problem.chain), settings.limits)
    best = _better_of(best, placed_leaf(cost, outcome.leaf, outcome.split, prices))
    start = _as_best(roots, outcome)
    enough = bound / max(1 - settings.gap, 1e-9)
    best = _look_around(cost, roots, prices, start, best, enough, lambda: should_stop() or time.monotonic() >= deadline)
    left = deadline - time.monotonic()
    if not identical or left <= 0 or should_stop() or not is_open(best.objective, bound, settings.gap):
        return best
    wanted = 1 - best.objective * (1 - settings.gap) / outcome.objective
    if wanted < settings.gap / _SHARPEST:
        return best
    sharper = replace(settings, gap=_CLOSER * wanted, time_limit_s=left, warm=None, first_plan_limit_s=None)
    again = search(problem, sharper, None, should_stop)
    best = replace(best, bound=again.bound)
    if again.leaf is not None and again.split is not None:
        best = _better_of(best, placed_leaf(cost, again.leaf, again.split, prices))
    return best


def _better_of(best: OnUplinks, other: OnUplinks) -> OnUplinks:
    """The first unless the other is better; what was done for both."""
    kept = other if other.objective < best.objective * (1 - 1e-9) else best
    return replace(kept, tried=best.tried + 1, bound=best.bound)


def is_open(objective: float, bound: float, gap: float) -> bool:
    """Whether more than the asked gap is left."""
    return objective - bound > max(gap, 1e-6) * objective * (1 + 1e-6)


def _as_best(roots: Sequence[Root], outcome: Outcome) -> Best:
    leaf, split = outcome.leaf, outcome.split
    assert leaf is not None and split is not None
    home = (leaf.root.schedule, replace(leaf.root.setting, single_stage=False))
    index = next(i for i, root in enumerate(roots) if (root.schedule, root.setting) == home)
    return Best(outcome.objective, outcome.step_time, index, leaf.order, split)


def _look_around(
    cost: CostModel,
    roots: list[Root],
    prices: tuple[float, ...] | None,
    start: Best,
    best: OnUplinks,
    enough: float,
    should_stop: Callable[[], bool],
) -> OnUplinks:
    """The neighbours of the best shapes placed so far, best first, until an objective is good enough. Only those can
    help whose bound is better too.
    """
    waiting, seen, tries = [(best.objective, 0, start)], {(start.root_index, start.order)}, 0
    while waiting:
        _, _, centre = heappop(waiting)
        for index, order in neighbours(roots, centre):
            if (index, order) in seen or not in_space(roots[index], order):
                continue
            if tries >= _MOST_TRIES or best.objective <= enough or should_stop():
                return best
            seen.add((index, order))
            near = try_order(roots[index], index, order, best.objective, prices)
            if near is None:
                continue
            tries += 1
            one = placed_leaf(cost, Leaf(roots[index], order), near.split, prices)
            best = _better_of(best, one)
            heappush(waiting, (one.objective, tries, near))
    return best

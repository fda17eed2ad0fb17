"""Plans on a cluster with a topology: the search's tables know only what uplinks leave at the best places; here plans
are placed and judged at their exact step times, and the best of those near the search's is kept.

The search's bound stays a bound: no placement has faster rings or transfers than its tables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.plan.layout import PipelineChoice, shapes_of
from planner.plan.placing import Placed, place_well
from planner.search.candidates import Root, make_roots
from planner.search.choices import choice_of_leaf
from planner.search.driver import search
from planner.search.improve import in_space, neighbours
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.one_shape import Best, try_order

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import Problem
    from planner.search.outcome import Outcome, SearchSettings

__all__ = ["OnUplinks", "best_on_uplinks", "is_open", "placed_choices"]

_MOST_TRIES = 60
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


def best_on_uplinks(
    cost: CostModel,
    problem: Problem,
    settings: SearchSettings,
    outcome: Outcome,
    found: Sequence[tuple[PipelineChoice, ...]],
    known_bound: float | None,
    deadline: float,
    should_stop: Callable[[], bool],
) -> OnUplinks:
    """The best of what was found, and of the shapes around the best plan of identical pipelines.

    known_bound: of identical pipelines, if it may be sharpened; the search then goes on where it leaves the gap open.
    """
    prices = settings.price_per_chip_s
    best = min((placed_choices(cost, choices, prices) for choices in found), key=lambda one: one.objective)
    best = replace(best, tried=len(found))
    if outcome.leaf is None or outcome.split is None:
        return best
    roots = make_roots(problem, Intervals(problem.chain), settings.limits)
    start = _as_best(roots, outcome)
    best = _look_around(cost, roots, prices, start, best, lambda: should_stop() or time.monotonic() >= deadline)
    left = deadline - time.monotonic()
    if known_bound is None or left <= 0 or should_stop() or not is_open(best.objective, known_bound, settings.gap):
        return best
    wanted = 1 - best.objective * (1 - settings.gap) / outcome.objective
    if wanted < settings.gap / _SHARPEST:
        return best
    again = search(problem, replace(settings, gap=_CLOSER * wanted, time_limit_s=left), None, should_stop)
    best = replace(best, bound=again.bound)
    if again.leaf is not None and again.split is not None:
        best = _better_of(best, placed_choices(cost, (choice_of_leaf(cost, again.leaf, again.split),), prices))
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
    should_stop: Callable[[], bool],
) -> OnUplinks:
    """Follow neighbours that are better at their exact step time. Only those can be whose bound is better too."""
    centre, seen, tries = start, {(start.root_index, start.order)}, 0
    improved = True
    while improved:
        improved = False
        for index, order in neighbours(roots, centre):
            if (index, order) in seen or not in_space(roots[index], order):
                continue
            if tries >= _MOST_TRIES or should_stop():
                return best
            seen.add((index, order))
            tries += 1
            near = try_order(roots[index], index, order, best.objective, prices)
            if near is None:
                continue
            choices = (choice_of_leaf(cost, Leaf(roots[index], order), near.split),)
            before, best = best.objective, _better_of(best, placed_choices(cost, choices, prices))
            if best.objective < before:
                centre, improved = near, True
                break
    return best

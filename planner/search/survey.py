"""Surveying one root: which leaves can reach the target, and the best split the dynamic programme finds on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

from planner.search.bounds import Refuter
from planner.search.candidates import Node, Root
from planner.search.leaf import Leaf, Split
from planner.search.splitting import Splitter
from planner.search.tree import Order, Target, single_stage_orders, surviving_nodes, surviving_orders

__all__ = ["Best", "Survey", "leaf_weight", "survey_root"]

_UNLIMITED = 1e30
_FINE, _COARSE = 2e-3, 2e-2
"""Tolerance of a leaf's bound: in a survey that proves, and in one that only looks for a plan."""
_SHORT_SURVEY_ENDS = 60
_SHORT_SURVEY_ORDERS = 2
"""Ends of the pipeline, and whole orders, tried a node in a survey that only looks for a plan."""


@dataclass(frozen=True)
class Best:
    """A plan found: `objective` = weight x exact step time."""

    objective: float
    step_time: float
    root_index: int
    order: Order
    split: Split


@dataclass
class Survey:
    """What a survey of one root leaves to prove.

    leaves: (bound of the objective, order) of leaves that the dynamic programme does not refute.  complete: the whole
    root was seen.
    """

    leaves: list[tuple[float, Order]] = field(default_factory=list)
    best: Best | None = None
    complete: bool = True
    nodes: int = 0
    num_leaves: int = 0


def leaf_weight(leaf: Leaf, target: Target) -> float:
    """Objective per second of step time of a leaf."""
    tensor, stages = [0] * len(leaf.root.groups), [0] * len(leaf.root.groups)
    for g, t, n in leaf.order:
        tensor[g], stages[g] = t, n
    return target.weight(leaf.root, tuple(tensor), tuple(stages))


def survey_root(
    root: Root,
    root_index: int,
    target: Target,
    gap: float,
    *,
    deadline: float,
    floor: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    max_leaves: int | None = None,
    max_nodes: int | None = None,
    any_plan: bool = False,
) -> Survey:
    """Walk the root's tree at (1 - gap) x the best objective known (falling as better splits are found).

    floor: a bound of the root's objective.  To find a first plan only: any_plan stops at the first one; max_leaves and
    max_nodes stop after that many leaves, or nodes with fixed counts.
    """
    survey = Survey()
    best_objective = target.objective
    refuter = Refuter(root)

    def goal() -> Target:
        return Target(best_objective * (1 - gap), target.price_per_chip_s)

    def stop() -> bool:
        return should_stop() or time.monotonic() > deadline

    def floor_of(weight: float) -> float:
        return floor / weight if weight > 0 else 0.0

    def visit(leaf: Leaf) -> None:
        nonlocal best_objective
        survey.num_leaves += 1
        weight = leaf_weight(leaf, target)
        splitter = Splitter(leaf)
        limit = min(best_objective * (1 - gap) / weight if weight > 0 else best_objective, _UNLIMITED)
        ends = splitter.split_within(limit)
        if ends is None:
            return
        floor = min(floor_of(weight), limit)
        tolerance = _FINE if max_leaves is None else _COARSE
        if limit < _UNLIMITED:
            lower, ends = splitter.bound(floor, limit, tolerance)
        else:
            lower, ends = _first_bound(splitter, root, tolerance)
        split = splitter.find_split(limit, ends) if ends else None
        if split is not None:
            step = leaf.step_time(split)
            if weight * step < best_objective:
                best_objective = weight * step
                survey.best = Best(best_objective, step, root_index, leaf.order, split)
        survey.leaves.append((weight * lower, leaf.order))

    for order in single_stage_orders(root):
        visit(Leaf(root, order))
    singles = survey.num_leaves
    for batch in surviving_nodes(root, refuter, goal, stop):
        if batch is None:
            survey.complete = False
            break
        for node in batch:
            survey.nodes += 1
            if max_nodes is not None and survey.nodes > max_nodes:
                survey.complete = False
                return survey
            ends = _Budget(stop, None if max_nodes is None else _SHORT_SURVEY_ENDS)
            limit = partial(_step_limit, goal, root, node)
            orders = surviving_orders(root, refuter, node, limit, ends.spent)
            for groups in orders if max_leaves is None else islice(orders, _SHORT_SURVEY_ORDERS):
                if (any_plan and survey.best) or (max_leaves is not None and survey.num_leaves - singles >= max_leaves):
                    survey.complete = False
                    return survey
                visit(Leaf(root, tuple((g, node.tensor[g], node.low[g]) for g in groups)))
            if stop():
                survey.complete = False
                return survey
    survey.leaves = [(b, o) for b, o in survey.leaves if b < best_objective * (1 - gap)]
    return survey


class _Budget:
    """Says stop when asked to, or after a number of questions."""

    def __init__(self, stop: Callable[[], bool], most: int | None) -> None:
        self._stop, self._left = stop, most

    def spent(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._stop() or (self._left is not None and self._left < 0)


def _step_limit(goal: Callable[[], Target], root: Root, node: Node) -> float:
    return goal().step_limit(root, node)


def _first_bound(splitter: Splitter, root: Root, tolerance: float) -> tuple[float, tuple[int, ...] | None]:
    """Bound and split of a leaf when no plan is known yet: double the step time until a split passes, then bisect."""
    high = max(root.total_work() * root.micro_batches, 1e-30)
    low = 0.0
    while splitter.split_within(high) is None:
        low, high = high, high * 4
    return splitter.bound(low, high, tolerance)

"""Surveying one root: which leaves can reach the target, and the best split the dynamic programme finds on the way."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Literal

from planner.search.bounds import Refuter
from planner.search.candidates import Node, Root
from planner.search.leaf import Leaf
from planner.search.one_shape import Best, leaf_weight, polished_order
from planner.search.sieve import MOST_GROUPS, ShapeSieve, ShapeTable, SieveStopped
from planner.search.sieve_walks import all_shapes
from planner.search.splitting import Splitter
from planner.search.tree import Order, Target, single_stage_orders, surviving_nodes, surviving_orders

__all__ = [
    "CAUTIOUS",
    "SHORT",
    "THOROUGH",
    "Best",
    "Effort",
    "Survey",
    "leaf_weight",
    "sieve_helps",
    "survey_root",
]

_UNLIMITED = 1e30
_FINE, _COARSE = 2e-3, 2e-2
"""Tolerance of a leaf's bound: in a survey that proves, and in one that only looks for a plan."""
_End = Literal["all", "fell", "too many", "stopped"]
_FELL = 2e-3
"""Share that the target must fall before a root's shapes are sieved again."""
_NEAR, _MOST_NEAR = 1.0075, 6000
"""Step time over a root's bound within which shapes are looked at first, and how many of them."""
_SHORT_SURVEY_ENDS = 60
_SHORT_SURVEY_ORDERS = 2
"""Ends of the pipeline, and whole orders, tried a node in a survey that only looks for a plan."""


@dataclass
class Survey:
    """What a survey of one root leaves to prove.

    leaves: (bound of the objective, order) of leaves that the dynamic programme does not refute.  complete: the whole
    root was seen.  too_many: it was given up because the sieve keeps more shapes than asked for.
    """

    leaves: list[tuple[float, Order]] = field(default_factory=list)
    best: Best | None = None
    complete: bool = True
    too_many: bool = False
    nodes: int = 0
    num_leaves: int = 0


def sieve_helps(root: Root) -> bool:
    """Whether a root's groups are few enough for the sieve over all shapes."""
    return sum(1 for g in range(len(root.groups)) if root.modes(g)) <= MOST_GROUPS


@dataclass(frozen=True)
class Effort:
    """How thorough a survey is. The default proves; a short one only looks for a plan.

    any_plan: stop at the first plan.  most_leaves, most_nodes: stop after that many shapes, or fixed stage counts.
    most_shapes: give a survey that proves up when the sieve keeps more.
    """

    any_plan: bool = False
    most_leaves: int | None = None
    most_nodes: int | None = None
    most_shapes: int | None = None

    @property
    def short(self) -> bool:
        """Proves nothing."""
        return self.any_plan or self.most_leaves is not None or self.most_nodes is not None


THOROUGH = Effort()
CAUTIOUS = Effort(most_shapes=1000)
SHORT = Effort(most_leaves=12, most_nodes=24)


def survey_root(
    root: Root,
    root_index: int,
    target: Target,
    gap: float,
    *,
    deadline: float,
    floor: float = 0.0,
    should_stop: Callable[[], bool] = lambda: False,
    effort: Effort = THOROUGH,
) -> Survey:
    """Walk the root's tree at (1 - gap) x the best objective known (falling as better splits are found).

    floor: a bound of the root's objective.
    """
    surveyor = _Surveyor(root, root_index, target, gap, floor, effort)
    return surveyor.run(lambda: should_stop() or time.monotonic() > deadline)


class _Surveyor:
    """One survey under way."""

    def __init__(self, root: Root, root_index: int, target: Target, gap: float, floor: float, effort: Effort) -> None:
        self.root, self.root_index, self.gap, self.floor, self.effort = root, root_index, gap, floor, effort
        self.prices = target.price_per_chip_s
        self.best_objective = target.objective
        self.survey = Survey()

    @cached_property
    def refuter(self) -> Refuter:
        """The sieve of the tree."""
        return Refuter(self.root)

    def goal(self) -> Target:
        """What a leaf must reach to matter."""
        return Target(self.best_objective * (1 - self.gap), self.prices)

    def run(self, stop: Callable[[], bool]) -> Survey:
        """Single stages, then the shapes that the sieve keeps, or the tree where there is no sieve."""
        for order in single_stage_orders(self.root):
            self.visit(Leaf(self.root, order))
        survey = self.survey
        if self.effort.short or self.prices is not None or not sieve_helps(self.root):
            self._walk_tree(stop)
        else:
            self._walk_sieve(stop)
        survey.complete &= not stop()
        survey.leaves = [(b, o) for b, o in survey.leaves if b < self.best_objective * (1 - self.gap)]
        return survey

    def _walk_sieve(self, stop: Callable[[], bool]) -> None:
        """Every shape of two or more stages that the sieve keeps; once the target has fallen it is asked again.

        Those that pass just above the root's bound come first: the best plan is likely among them.
        """
        sieve, done, asked = ShapeSieve(self.root), set[Order](), self.goal().objective
        self.survey.complete = False
        try:
            if self.floor * _NEAR < asked:
                self._polish_shapes(sieve.within(self.floor * _NEAR, stop), stop)
            end: _End = "all" if self._settled() else "fell"
            while end == "fell":
                asked = self.goal().objective
                end = self._visit_shapes(sieve.within(asked, stop), asked, done, stop, self.effort.most_shapes)
            self.survey.too_many, self.survey.complete = end == "too many", end == "all"
        except SieveStopped:
            pass

    def _settled(self) -> bool:
        """The target has fallen to the root's bound: nothing in it can matter."""
        return self.goal().objective <= self.floor

    def _polish_shapes(self, table: ShapeTable | None, stop: Callable[[], bool]) -> None:
        """A plan for the first few shapes of a table that pass alone."""
        for order in islice(all_shapes(table) if table is not None else (), _MOST_NEAR):
            if stop() or self._settled():
                return
            if table is not None and table.passes(order):
                found = polished_order(self.root, self.root_index, order, self.best_objective)
                if found is not None:
                    self.best_objective, self.survey.best = found.objective, found

    def _visit_shapes(
        self, table: ShapeTable | None, asked: float, done: set[Order], stop: Callable[[], bool], most: int | None
    ) -> _End:
        """Visit the shapes of a table that pass alone and are not done; why it ended: the target fell, ..."""
        for number, order in enumerate(all_shapes(table) if table is not None else ()):
            if stop():
                return "stopped"
            if most is not None and number >= most:
                return "too many"
            if table is not None and order not in done and table.passes(order):
                done.add(order)
                self.visit(Leaf(self.root, order))
            if self.goal().objective < asked * (1 - _FELL):
                return "fell"
        return "all"

    def _walk_tree(self, stop: Callable[[], bool]) -> None:
        """The tree of degrees, boxes of stage counts and orders, as far as the effort goes."""
        singles, survey = self.survey.num_leaves, self.survey
        for batch in surviving_nodes(self.root, self.refuter, self.goal, stop):
            for node in batch or ():
                survey.nodes += 1
                if self._spent(survey.num_leaves - singles) or stop():
                    survey.complete = False
                    return
                self.visit_orders(node, stop)
            survey.complete &= batch is not None

    def _spent(self, leaves: int) -> bool:
        effort, survey = self.effort, self.survey
        return (
            (effort.any_plan and survey.best is not None)
            or (effort.most_leaves is not None and leaves >= effort.most_leaves)
            or (effort.most_nodes is not None and survey.nodes > effort.most_nodes)
        )

    def visit_orders(self, node: Node, stop: Callable[[], bool]) -> None:
        """Every order of a node's groups that the bounds leave; a few in a short survey."""
        short = self.effort.short
        ends = _Budget(stop, _SHORT_SURVEY_ENDS if short else None)
        orders = surviving_orders(
            self.root, self.refuter, node, lambda: self.goal().step_limit(self.root, node), ends.spent
        )
        for groups in islice(orders, _SHORT_SURVEY_ORDERS) if short else orders:
            self.visit(Leaf(self.root, tuple((g, node.modes[g], node.low[g]) for g in groups)))

    def visit(self, leaf: Leaf) -> None:
        """The dynamic programme's word on a leaf: refuted, or a bound and perhaps a better plan."""
        self.survey.num_leaves += 1
        weight = leaf_weight(leaf, self.goal())
        splitter = Splitter(leaf)
        limit = min(self.goal().objective / weight if weight > 0 else self.goal().objective, _UNLIMITED)
        if splitter.split_within(limit) is None:
            return
        tolerance = _COARSE if self.effort.short else max(_FINE, self.gap / 5)
        if limit < _UNLIMITED:
            floor = min(self.floor / weight if weight > 0 else 0.0, limit)
            lower, ends = splitter.bound(floor, limit, tolerance)
        else:
            lower, ends = _first_bound(splitter, self.root, tolerance)
        split = splitter.find_split(limit, ends) if ends else None
        if split is not None:
            step = leaf.step_time(split)
            if weight * step < self.best_objective:
                self.best_objective = weight * step
                self.survey.best = Best(weight * step, step, self.root_index, leaf.order, split)
        self.survey.leaves.append((weight * lower, leaf.order))


class _Budget:
    """Says stop when asked to, or after a number of questions."""

    def __init__(self, stop: Callable[[], bool], most: int | None) -> None:
        self._stop, self._left = stop, most

    def spent(self) -> bool:
        if self._left is not None:
            self._left -= 1
        return self._stop() or (self._left is not None and self._left < 0)


def _first_bound(splitter: Splitter, root: Root, tolerance: float) -> tuple[float, tuple[int, ...] | None]:
    """Bound and split of a leaf when no plan is known yet: double the step time until a split passes, then bisect."""
    high = max(root.total_work() * root.micro_batches, 1e-30)
    low = 0.0
    while splitter.split_within(high) is None:
        low, high = high, high * 4
    return splitter.bound(low, high, tolerance)

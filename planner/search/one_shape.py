"""Plans of one shape: the best that the dynamic programme finds below an objective."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.candidates import IDLE, Root
from planner.search.leaf import Leaf, Split
from planner.search.polish import polish
from planner.search.splitting import Splitter
from planner.search.tree import Order, Target

__all__ = ["Best", "leaf_weight", "polished_order", "try_order"]


_ROUGH = 1.05
"""How much slower than asked a split may be before it is polished."""
_BETTER = 1e-5
"""Relative: what counts as a better plan."""


@dataclass(frozen=True)
class Best:
    """A plan found: `objective` = weight x exact step time."""

    objective: float
    step_time: float
    root_index: int
    order: Order
    split: Split


def leaf_weight(leaf: Leaf, target: Target) -> float:
    """Objective per second of step time of a leaf."""
    modes, stages = [IDLE] * len(leaf.root.groups), [0] * len(leaf.root.groups)
    for g, mode, n in leaf.order:
        modes[g], stages[g] = mode, n
    return target.weight(leaf.root, tuple(modes), tuple(stages))


def polished_order(
    root: Root, index: int, order: Order, objective: float, ends: tuple[int, ...] | None = None
) -> Best | None:
    """A plan of a shape with a step time below `objective`, single layers moved while that helps: also from a split
    that is a little slower.
    """
    if root.limits.layers_per_stage is not None:
        return try_order(root, index, order, objective, None, ends)
    found = try_order(root, index, order, objective * _ROUGH, None, ends)
    if found is None:
        return None
    leaf = Leaf(root, order)
    split = polish(leaf, found.split)
    step = leaf.step_time(split)
    return Best(step, step, index, order, split) if step < objective * (1 - _BETTER) else None


def try_order(
    root: Root,
    index: int,
    order: Order,
    objective: float,
    prices: tuple[float, ...] | None,
    ends: tuple[int, ...] | None = None,
) -> Best | None:
    """A plan of a shape that is better than `objective`, if the dynamic programme finds one; `ends` is tried too."""
    leaf = Leaf(root, order)
    weight = leaf_weight(leaf, Target(objective, prices))
    limit = objective * (1 - _BETTER) / weight if weight > 0 else objective
    splitter = Splitter(leaf)
    widest = splitter.split_within(limit)
    if widest is None:
        return None
    _, closer = splitter.bound(limit * 0.9, limit, 2e-3)
    best: Best | None = None
    for candidate in dict.fromkeys((widest, closer or widest, ends or widest)):
        split = splitter.find_split(limit, candidate)
        if split is not None:
            step = leaf.step_time(split)
            if weight * step < objective:
                objective = weight * step
                best = Best(objective, step, index, order, split)
    return best

"""Shapes that come to mind at once, for a plan to begin with: each group in one block, those with much memory first."""

from __future__ import annotations

from collections.abc import Iterator

from planner.cost.tables import Mode
from planner.search.candidates import Root
from planner.search.improve import in_space
from planner.search.leaf import Leaf
from planner.search.one_shape import Best
from planner.search.quick_bounds import rate_bound
from planner.search.splitting import Splitter
from planner.search.tree import Order

__all__ = ["obvious_plan", "obvious_shapes", "plan_of_shape"]

_NO_LIMIT, _INSTANT = 1e30, 1e-12
_BEGIN, _STRIDE, _MOST_STEPS = 1.5, 1.5, 12
"""Step times that are tried, as multiples of the root's quick bound."""


def obvious_shapes(root: Root) -> Iterator[Order]:
    """At each mode as a ceiling: all chips, or as many stages of each group as the layers allow."""
    groups = [g for g in range(len(root.groups)) if root.modes(g)]
    for ceiling in sorted({mode for g in groups for mode in root.modes(g)}, reverse=True):
        chosen = {g: max((mode for mode in root.modes(g) if mode <= ceiling), default=root.modes(g)[0]) for g in groups}
        stages = {g: root.max_stages(g, chosen[g]) for g in groups}
        total, layers = sum(stages.values()), root.limits.total_stages or root.intervals.num_layers
        if total > layers:
            stages = {g: n * layers // total for g, n in stages.items()}
        by_memory = sorted(groups, key=lambda g: (-_usable(root, g, chosen[g]), g))
        order = tuple((g, chosen[g], stages[g]) for g in by_memory if stages[g])
        if order and in_space(root, order):
            yield order


def _usable(root: Root, group: int, mode: Mode) -> float:
    options = root.options(group, mode)
    return options.table.usable_bytes if options is not None else 0.0


def obvious_plan(root: Root, index: int) -> Best | None:
    """A plan of the first of the obvious shapes that fits; None when none does."""
    found = (plan_of_shape(root, index, order) for order in obvious_shapes(root))
    return next((best for best in found if best is not None), None)


def plan_of_shape(root: Root, index: int, order: Order) -> Best | None:
    """A plan of one shape at about the least step time that passes; None when it does not fit. Its objective is the
    step time.
    """
    leaf = Leaf(root, order)
    splitter, limit = Splitter(leaf), _BEGIN * max(rate_bound(root), _INSTANT)
    ends = splitter.split_within(_NO_LIMIT)
    for _ in range(_MOST_STEPS if ends is not None else 0):
        closer = splitter.split_within(limit)
        if closer is not None:
            ends = closer
            break
        limit *= _STRIDE
    split = splitter.find_split(_NO_LIMIT, ends) if ends is not None else None
    if split is None:
        return None
    step = leaf.step_time(split)
    return Best(step, step, index, order, split)

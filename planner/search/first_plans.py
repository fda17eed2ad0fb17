"""Plans to begin with, before anything is bounded: where to look, and what fits at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from planner.search.candidates import Root
from planner.search.leaf import Leaf
from planner.search.obvious import obvious_plan
from planner.search.one_shape import Best, leaf_weight
from planner.search.splitting import Splitter
from planner.search.tree import Target, single_stage_orders

__all__ = ["obvious_best", "single_stage_plan", "spread_roots"]

_FIRST_ROOTS = 8


def spread_roots(roots: Sequence[Root]) -> list[int]:
    """A few roots, evenly spread over those with the smallest micro-batch, which fit best.

    A first plan is looked for among them before all roots are bounded.
    """
    smallest = min((root.setting.micro_batch_size for root in roots), default=1)
    small = [i for i, root in enumerate(roots) if root.setting.micro_batch_size == smallest]
    step = max(1, len(small) // _FIRST_ROOTS)
    return small[step // 2 :: step]


def obvious_best(root: Root, index: int, target: Target) -> Best | None:
    """The plan of a root's obvious shapes, its objective that of the target."""
    found = obvious_plan(root, index)
    if found is None:
        return None
    return replace(found, objective=leaf_weight(Leaf(root, found.order), target) * found.step_time)


def single_stage_plan(
    roots: Sequence[Root], indices: Iterable[int], target: Target, should_stop: Callable[[], bool]
) -> Best | None:
    """The first single stage that fits."""
    for i in indices:
        for order in single_stage_orders(roots[i]):
            if should_stop():
                return None
            leaf = Leaf(roots[i], order)
            split = Splitter(leaf).complete((roots[i].intervals.num_layers,))
            if split is not None:
                step = leaf.step_time(split)
                return Best(leaf_weight(leaf, target) * step, step, i, order, split)
    return None

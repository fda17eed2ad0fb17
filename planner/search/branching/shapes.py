"""Every shape of a root: modes and stage counts of the node groups, in every order."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, permutations

from planner.search.candidates import Root
from planner.search.improve import in_space
from planner.search.tree import Order

__all__ = ["neighbours", "shapes_of_root"]

_MOST_ORDERS = 24


def shapes_of_root(root: Root) -> Iterator[Order]:
    """Shapes in the root's space, one after another; there may be very many."""
    for chosen in _choices(root, 0, root.limits.total_stages or root.intervals.num_layers):
        for order in permutations(chosen):
            if order and in_space(root, order):
                yield order


def neighbours(order: Order) -> Iterator[Order]:
    """The shape itself, its groups in other orders, and one stage more or less of a group."""
    yield from islice(permutations(order), _MOST_ORDERS)
    for at, (g, t, n) in enumerate(order):
        for count in (n - 1, n + 1):
            other = tuple(block for block in (*order[:at], (g, t, count), *order[at + 1 :]) if block[2])
            if other:
                yield other


def _choices(root: Root, g: int, left: int) -> Iterator[Order]:
    """What node groups from g on can hold, with at most `left` stages."""
    if g == len(root.groups):
        yield ()
        return
    for rest in _choices(root, g + 1, left):
        yield rest
        used = sum(n for _, _, n in rest)
        for t in dict.fromkeys((*root.modes(g), *root.single_stage().modes(g))):
            for n in range(1, min(root.max_stages(g, t), left - used) + 1):
                yield ((g, t, n), *rest)

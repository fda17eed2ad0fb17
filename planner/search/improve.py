"""Local search around a good plan: other orders, stage counts, modes and roots, each tried by the dynamic programme
at the best step time known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from planner.search.candidates import Root
from planner.search.one_shape import Best, polished_order, try_order
from planner.search.sieve import ShapeSieve
from planner.search.tree import Order

__all__ = ["improve", "improve_shape", "in_space", "neighbours"]

_MOST_TRIES = 250
_MOST_LOOKS = 2000


def improve(roots: list[Root], best: Best, prices: tuple[float, ...] | None, should_stop: Callable[[], bool]) -> Best:
    """Follow improving neighbours until none is left, a number of tries is used up, or the search must stop."""
    tries = 0
    seen: set[tuple[int, Order]] = {(best.root_index, best.order)}
    improved = True
    while improved:
        improved = False
        for index, order in neighbours(roots, best):
            if (index, order) in seen or not in_space(roots[index], order):
                continue
            if tries >= _MOST_TRIES or should_stop():
                return best
            seen.add((index, order))
            tries += 1
            found = try_order(roots[index], index, order, best.objective, prices)
            if found is not None:
                best, improved = found, True
                break
    return best


def improve_shape(root: Root, best: Best, should_stop: Callable[[], bool]) -> Best:
    """The same within one root, for step times: only neighbours that the sieve lets pass are tried."""
    sieve, seen, tries = ShapeSieve(root), {best.order}, 0
    improved = True
    while improved:
        improved, table = False, sieve.empty(best.objective * (1 - 1e-5))
        for order in _neighbours_in_root(root, best.order):
            if order in seen or not in_space(root, order) or sum(n for _, _, n in order) < 2:
                continue
            if tries >= _MOST_LOOKS or should_stop():
                return best
            seen.add(order)
            tries += 1
            found = polished_order(root, best.root_index, order, best.objective) if table.passes(order) else None
            if found is not None:
                best, improved = found, True
                break
    return best


def neighbours(roots: list[Root], best: Best) -> Iterator[tuple[int, Order]]:
    """Orders one step away, then the same shape in roots with another micro-batch size or data parallel degree."""
    order, root = best.order, roots[best.root_index]
    for neighbour in _neighbours_in_root(root, order):
        yield best.root_index, neighbour
    for index, other in enumerate(roots):
        if index != best.root_index and other.schedule == root.schedule:
            scale = root.setting.data_parallel / other.setting.data_parallel
            if 0.5 <= scale <= 2:
                yield index, tuple((g, t, max(1, int(n * scale))) for g, t, n in order)


def _neighbours_in_root(root: Root, order: Order) -> Iterator[Order]:
    """Other stage counts, other orders, a group less, other modes, a group more."""
    for i, (g, t, n) in enumerate(order):
        for change in (1, -1, 2, -2):
            if n + change >= 1:
                yield (*order[:i], (g, t, n + change), *order[i + 1 :])
    for i in range(len(order) - 1):
        yield (*order[:i], order[i + 1], order[i], *order[i + 2 :])
    for i in range(len(order)):
        if len(order) > 1:
            yield order[:i] + order[i + 1 :]
    for i, (g, t, n) in enumerate(order):
        for mode in root.modes(g):
            if mode != t:
                yield (*order[:i], (g, mode, max(1, n * t.chips // mode.chips)), *order[i + 1 :])
    used = {g for g, _, _ in order}
    for g in range(len(root.groups)):
        for mode in root.modes(g) if g not in used else ():
            for place in range(len(order) + 1):
                yield (*order[:place], (g, mode, root.max_stages(g, mode)), *order[place:])


def in_space(root: Root, order: Order) -> bool:
    """Whether the shape is in the root's space."""
    limits = root.limits
    groups = [g for g, _, _ in order]
    total = sum(n for _, _, n in order)
    if len(set(groups)) < len(groups) or not limits.use <= set(groups) or not set(limits.stages) <= set(groups):
        return False
    if limits.total_stages not in (None, total) or total > root.intervals.num_layers:
        return False
    if limits.layers_per_stage is not None and len(limits.layers_per_stage) != total:
        return False
    if limits.order is not None and groups != [g for g in limits.order if g in groups]:
        return False
    if limits.fixed_order and groups != sorted(groups):
        return False
    base = root.single_stage() if total == 1 else root
    for g, t, n in order:
        if t not in base.modes(g) or n > base.max_stages(g, t) or limits.stages.get(g, n) != n:
            return False
    return True

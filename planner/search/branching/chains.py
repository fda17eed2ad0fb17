"""Bounds from chains: along a path inside a part every chip holds an interval, whatever the other layers do."""

from __future__ import annotations

import math
from collections.abc import Sequence

from planner.search.branching.line import cut_row, relaxed_loads
from planner.search.branching.units import Units

__all__ = ["chain_bound", "longest_chain"]

_MOST_CHAINS = 8


def chain_bound(units: Units) -> float:
    """No placement has a smaller largest load (inf: none fits): what the longest chains of each part cost alone."""
    counts = [c.count for c in units.problem.classes]
    if units.num_units and not any(counts):
        return math.inf
    best = 0.0
    for part in sorted(set(units.problem.parts)):
        weights = [min(times) for times in zip(*units.times, strict=True)]
        for _ in range(_MOST_CHAINS):
            row = longest_chain(units, part, weights)
            if not any(weights[u] for u in row):
                break
            best = max(best, cut_row([relaxed_loads(units, row, c) for c in range(len(counts))], counts).value)
            for u in row:
                weights[u] = 0.0
    return best


def longest_chain(units: Units, part: int, weights: Sequence[float]) -> list[int]:
    """The units along the path inside a part that has the largest weight, then the most units."""
    problem, owner = units.problem, units.unit_of
    before: dict[int, list[int]] = {}
    for u, v in problem.edges():
        if problem.parts[u] == part == problem.parts[v]:
            before.setdefault(v, []).append(u)
    longest: dict[int, tuple[float, int, int]] = {}
    for v in units.reach.order:
        if problem.parts[v] != part:
            continue
        longest[v] = (weights[owner[v]], 1, -1)
        for u in before.get(v, ()):
            fresh = owner[u] != owner[v]
            weight = longest[u][0] + (weights[owner[v]] if fresh else 0.0)
            longest[v] = max(longest[v], (weight, longest[u][1] + fresh, u))
    v = max(longest, key=lambda w: longest[w][:2], default=-1)
    row: list[int] = []
    while v >= 0:
        if owner[v] not in row:
            row.append(owner[v])
        v = longest[v][2]
    return row[::-1]

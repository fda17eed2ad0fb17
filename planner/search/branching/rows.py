"""Orders of the units that keep neighbours close, and the acyclic graph that they follow.

These only make good placements likely; nothing is proved from them.
"""

from __future__ import annotations

from collections.abc import Sequence

from planner.search.branching.units import Units, bits

__all__ = ["acyclic_edges", "rows"]


def acyclic_edges(units: Units) -> list[tuple[int, int]]:
    """Edges between units without a cycle: those of part 0 first, then what later parts and crossings allow.

    Backward layers that share chips with forward ones may run against them.
    """
    parts, owner = units.problem.parts, units.unit_of
    edges = sorted(units.problem.edges(), key=lambda e: (max(parts[e[0]], parts[e[1]]), parts[e[0]] != parts[e[1]], e))
    after = [1 << u for u in range(units.num_units)]
    before = [1 << u for u in range(units.num_units)]
    kept = []
    for a, b in dict.fromkeys((owner[a], owner[b]) for a, b in edges):
        if a == b or after[b] >> a & 1:
            continue
        kept.append((a, b))
        if after[a] >> b & 1:
            continue
        for u in bits(before[a]):
            after[u] |= after[b]
        for u in bits(after[b]):
            before[u] |= before[a]
    return kept


def rows(num_units: int, edges: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Orders of all units (or layers) of an acyclic graph along the edges, each unit right after what it waits for.

    Deepest inputs first, shallowest first, and the same seen from the outputs.
    """
    turned = [(b, a) for a, b in edges]
    found = []
    for deepest in (True, False):
        found.append(_depth_first(num_units, edges, deepest))
        found.append(_depth_first(num_units, turned, deepest)[::-1])
    return [list(row) for row in dict.fromkeys(tuple(row) for row in found)]


def _depth_first(num_units: int, edges: Sequence[tuple[int, int]], deepest: bool) -> list[int]:
    """Units in postorder of their inputs."""
    inputs: list[list[int]] = [[] for _ in range(num_units)]
    for a, b in edges:
        inputs[b].append(a)
    depth = _depths(inputs)
    sign = -1 if deepest else 1
    ranked = [sorted(own, key=lambda u: (sign * depth[u], u)) for own in inputs]
    row: list[int] = []
    seen = [False] * num_units
    for root in sorted(range(num_units), key=lambda u: (-depth[u], u)):
        stack = [(root, 0)]
        while stack:
            u, at = stack.pop()
            if at == 0 and seen[u]:
                continue
            seen[u] = True
            if at < len(ranked[u]):
                stack += [(u, at + 1), (ranked[u][at], 0)]
            else:
                row.append(u)
    return row


def _depths(inputs: Sequence[Sequence[int]]) -> list[int]:
    """Edges on the longest way to each unit."""
    depth = [-1] * len(inputs)
    for root in range(len(inputs)):
        stack = [root]
        while stack:
            u = stack[-1]
            missing = [w for w in inputs[u] if depth[w] < 0]
            if depth[u] < 0 and missing:
                stack += missing
                continue
            stack.pop()
            if depth[u] < 0:
                depth[u] = 1 + max((depth[w] for w in inputs[u]), default=-1)
    return depth

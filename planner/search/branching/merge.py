"""Coarsening that loses nothing: layers that share a chip in every placement, or in some best one, become a unit.

A unit U that hangs on one other unit W may move to W's chip when no chip's load grows by it:
  all that U takes in comes from W:  time[U] + out[U] <= only[W, U]   what W sends to U and to nobody else
  all that U sends goes to W:        time[U] + in[U]  <= out[U]
for every class of chips, out and in being the transfer times of what U sends and of what it takes in from others. U's
old chip then pays at most as much as before, W's chip saves what it gains, and others pay the same. The sizes of U must
not matter. Contiguity survives: a path into U comes through W (or leaves through W), so a path that leaves W's chip and
comes back would have done so before.
"""

from __future__ import annotations

from planner.search.branching.problem import BranchingProblem
from planner.search.branching.units import Reach, Units, bits, reach_of

__all__ = ["coarsen"]


def coarsen(problem: BranchingProblem) -> Units:
    """The units of a problem: an optimum of them is an optimum of the layers."""
    reach = reach_of(problem)
    groups = [1 << v for v in range(problem.num_layers)]
    groups = _join(groups, [sum(1 << v for v in set(group)) for group in problem.together])
    while True:
        units = Units.of_groups(problem, reach, _close(reach, groups))
        pairs = _pairs_to_merge(units)
        if not pairs:
            return units
        groups = _join(list(units.layers), [units.layers[u] | units.layers[w] for u, w in pairs])


def _join(groups: list[int], wanted: list[int]) -> list[int]:
    """Groups after every wanted mask has been made part of one group."""
    for mask in wanted:
        touched = [g for g in groups if g & mask]
        groups = [g for g in groups if not g & mask]
        for g in touched:
            mask |= g
        groups.append(mask)
    return groups


def _close(reach: Reach, groups: list[int]) -> list[int]:
    """Whoever lies on a path between two layers of a group belongs to it."""
    while True:
        wanted = [hull for hull, g in ((reach.hull(g), g) for g in groups) if hull != g]
        if not wanted:
            return groups
        groups = _join(groups, wanted)


def _pairs_to_merge(units: Units) -> list[tuple[int, int]]:
    """(U, W) that may share a chip; pairs lie apart, so that each is judged on what holds after the others."""
    pairs: list[tuple[int, int]] = []
    touched = 0
    size_binds = _size_binds(units)
    before, after = [0] * units.num_units, [0] * units.num_units
    for u, v in units.edges:
        before[v] |= 1 << u
        after[u] |= 1 << v
    for u in range(units.num_units):
        if units.sizes[u] > 0 and size_binds:
            continue
        for w, others in ((before[u], after[u]), (after[u], before[u])):
            if w.bit_count() != 1 or (w | 1 << u) & touched or w & others:
                continue
            host = w.bit_length() - 1
            may = _hangs_below(units, u, host) if w is before[u] else _hangs_above(units, u, host)
            if may:
                pairs.append((u, host))
                # tensors of the neighbours change their members: judge them again in the next round
                touched |= before[u] | after[u] | 1 << u | before[host] | after[host]
                break
    return pairs


def _size_binds(units: Units) -> bool:
    """Whether any chip could be too small for some set of layers."""
    return any(sum(units.sizes) > c.size_limit for c in units.problem.classes)


def _hangs_below(units: Units, u: int, host: int) -> bool:
    """U takes in from W alone and may move to W's chip."""
    only = 1 << u | 1 << host
    for c in range(len(units.times)):
        out = sum(t.times[c] for t in units.tensors if t.source == u)
        saved = sum(t.times[c] for t in units.tensors if t.source == host and t.members == only)
        if units.times[c][u] + out > saved:
            return False
    return _attached(units, u, host, units.reach.before, units.reach.after)


def _hangs_above(units: Units, u: int, host: int) -> bool:
    """U sends to W alone and may move to W's chip."""
    for c in range(len(units.times)):
        taken = sum(t.times[c] for t in units.tensors if t.source != u and t.members >> u & 1)
        saved = sum(t.times[c] for t in units.tensors if t.source == u)
        if units.times[c][u] + taken > saved:
            return False
    return _attached(units, u, host, units.reach.after, units.reach.before)


def _attached(units: Units, u: int, host: int, toward: tuple[int, ...], away: tuple[int, ...]) -> bool:
    """Every layer of U from which paths lead away to others has W on the other side of it, in its own part.

    The host is the only neighbour on that side, so a layer there is reached through U's own layers.
    """
    own, near = units.layers[u], units.layers[host]
    return all(toward[v] & near for v in bits(own) if away[v] & ~(own | near))

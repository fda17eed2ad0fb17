"""The exact step time of a mix of pipelines, by the rules that the checker applies to plans."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from planner.cost.holders import holder_of, lines_crossed, shared_layers
from planner.cost.recurrence import ChainTimes, stage_ends, step_time
from planner.cost.tables import Setting
from planner.search.candidates import Limits, Root
from planner.search.leaf import Leaf
from planner.search.mixed.shapes import Ring, merged

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from planner.cost.tables import Holder, Mode, TransferTable
    from planner.search.mixed.shapes import Entry, Family, MixedLeaf, Pool, Stages

__all__ = ["chain_times_of_mix", "identical_leaf", "pipeline_time", "ring_of", "step_time_of_mix"]

Seconds = tuple[float, ...]

_REMEMBERED = 4096
"""Micro-batches up to which runs are remembered; with more, `step_time` finds what repeats."""


def step_time_of_mix(pool: Pool, entries: Sequence[Entry]) -> float:
    """Seconds of a step: the slowest pipeline's, transfers and reductions on the links they really use; inf when the
    entries cannot be placed. One entry alone is a plan of identical pipelines, with their rules.
    """
    if len(entries) == 1:
        leaf = identical_leaf(pool, entries[0])
        return float("inf") if leaf is None else leaf.step_time(entries[0].shape.split)
    times = chain_times_of_mix(pool, entries)
    if times is None:
        return float("inf")
    return max(pipeline_time(t, in_flight, e.micro_batches) for (t, in_flight), e in zip(times, entries, strict=True))


def pipeline_time(times: ChainTimes, in_flight: tuple[int, ...], micro_batches: int) -> float:
    """`step_time`, remembering runs: the pipelines of neighbouring mixes often differ in their updates alone."""
    if micro_batches > _REMEMBERED:
        return step_time(times, in_flight, micro_batches)
    passes = (times.forward, times.backward, times.send_forward, times.send_backward)
    ends = _ends(*(tuple(seconds) for seconds in passes), in_flight, micro_batches)
    return max(end + update for end, update in zip(ends, times.update, strict=True))


@lru_cache(maxsize=20_000)
def _ends(
    forward: Seconds, backward: Seconds, onward: Seconds, back: Seconds, in_flight: tuple[int, ...], micro_batches: int
) -> list[float]:
    return stage_ends(ChainTimes(forward, backward, (), onward, back), in_flight, micro_batches)


def identical_leaf(pool: Pool, entry: Entry) -> Leaf | None:
    """The leaf of a plan of one shape; None when its stages differ in mode in a group, or have no room or numbers."""
    shape, used = entry.shape, pool.problem.groups
    modes: dict[int, Mode] = {}
    counts: dict[int, int] = {}
    for g, mode in shape.stages:
        if modes.setdefault(g, mode) != mode:
            return None
        counts[g] = counts.get(g, 0) + 1
    setting = Setting(shape.micro_batch_size, entry.replicas, pool.context)
    root = Root(pool.problem, pool.intervals, setting, shape.schedule, Limits())
    root.micro_batches = entry.micro_batches
    tables = root.single_stage() if len(shape.stages) == 1 else root
    for g, n in counts.items():
        if n > used[g].max_stages(modes[g].tensor, entry.replicas, pool.context) or tables.options(g, modes[g]) is None:
            return None
    leaf = _indexed(root, shape.stages)
    return leaf if _fits(leaf, entry) else None


def _indexed(root: Root, stages: Stages) -> Leaf:
    """A leaf whose stages are numbered within their group along the whole pipeline."""
    leaf = Leaf(root, merged(stages))
    seen: dict[int, int] = {}
    numbered = []
    for stage in leaf.stages:
        numbered.append(replace(stage, index=seen.get(stage.group, 0)))
        seen[stage.group] = seen.get(stage.group, 0) + 1
    leaf.stages = tuple(numbered)
    return leaf


def _fits(leaf: Leaf, entry: Entry) -> bool:
    return all(leaf.fits(s, policies) for s, policies in enumerate(entry.shape.split.policies))


def chain_times_of_mix(pool: Pool, entries: Sequence[Entry]) -> list[tuple[ChainTimes, tuple[int, ...]]] | None:
    """Times and in-flight counts of every entry's pipeline; None when the entries cannot be placed."""
    places = pool.places(entries)
    if places is None:
        return None
    replicas = sum(e.replicas for e in entries)
    crossed = lines_crossed([(e.replicas, [g for g, _ in e.shape.stages]) for e in entries])
    holders = [
        [holder_of(kind.group, kind.tensor, spots) for kind, spots in zip(e.shape.stages, own, strict=True)]
        for e, own in zip(entries, places, strict=True)
    ]
    result = []
    for j, entry in enumerate(entries):
        shape = entry.shape
        family = pool.family(shape.schedule, shape.micro_batch_size, replicas)
        leaf = family.leaf(shape.stages, entry.micro_batches)
        passes = family.passes(leaf, shape.split)
        tables = [_transfer(family, shape.stages, s, places[j], crossed) for s in range(leaf.num_stages - 1)]
        kinds = [pool.intervals.chain.kinds[end - 1] for end in shape.split.ends[:-1]]
        times = ChainTimes(
            passes[0],
            passes[1],
            _updates(pool, entries, j, family, leaf, holders),
            [float(t.forward_s[k]) for t, k in zip(tables, kinds, strict=True)],
            [float(t.backward_s[k]) for t, k in zip(tables, kinds, strict=True)],
        )
        result.append((times, leaf.in_flight))
    return result


def ring_of(pool: Pool, entries: Sequence[Entry]) -> Ring | None:
    """The stages that hold the layer in the middle of the chain; None when the entries cannot be placed."""
    places = pool.places(entries)
    if places is None:
        return None
    middle, holders = pool.intervals.num_layers // 2, []
    for entry, own in zip(entries, places, strict=True):
        s = sum(1 for end in entry.shape.split.ends if end <= middle)
        kind = entry.shape.stages[s]
        holders.append(holder_of(kind.group, kind.tensor, own[s]))
    return Ring(tuple(sorted(holders)), max(len(e.shape.stages) for e in entries))


def _transfer(
    family: Family,
    stages: Stages,
    s: int,
    places: Sequence[Sequence[tuple[int, int]]],
    crossed: Counter[tuple[int, int]],
) -> TransferTable:
    """The boundary after stage s where its replicas really sit; pipelines that cross two groups share their line."""
    a, b = stages[s], stages[s + 1]
    same = a.group == b.group and all(x[0] == y[0] for x, y in zip(places[s], places[s + 1], strict=True))
    sharing = crossed[min(a.group, b.group), max(a.group, b.group)] if a.group != b.group else 1
    return family.transfer(a, b, same, sharing)


def _updates(
    pool: Pool,
    entries: Sequence[Entry],
    j: int,
    family: Family,
    leaf: MixedLeaf,
    holders: Sequence[Sequence[Holder]],
) -> list[float]:
    """Reduction and optimizer seconds of every stage of entry j."""
    kinds = pool.intervals.chain.kinds
    sharing = max(len(e.shape.stages) for e in entries)
    updates = [0.0] * leaf.num_stages
    for piece in shared_layers([e.shape.split.ends for e in entries]):
        own = piece.stages[j]
        held = tuple(holders[i][s] for i, s in enumerate(piece.stages))
        fixed, seconds = family.update(leaf, own, j, held, sharing)
        updates[own] += fixed
        for layer in range(piece.first, piece.end):
            updates[own] += seconds[kinds[layer]]
    return updates

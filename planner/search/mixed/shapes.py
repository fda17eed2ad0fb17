"""What plans of several shapes are made of: families (what tables depend on), shapes (stages and layers), entries."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.placement import Block, place_blocks
from planner.cost.tables import Mode, Setting
from planner.search.candidates import Limits, Root
from planner.search.highs import SolverChoice
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf, Split
from planner.search.mixed.altered import Likely, Ranged, Ring
from planner.search.mixed.packing import Room, rooms_of, taken
from planner.search.mixed.rows import PieceRows
from planner.search.splitting import choose_policies

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Holder, LayerTable, MixedProblem, TransferTable

    Floats = NDArray[np.float64]

__all__ = ["Entry", "Family", "Kind", "MixedLeaf", "Pool", "Ring", "Shape", "policies_of"]

_MOST_CHOICES = 5000
"""Recompute choices of a stage that are all tried; beyond, the cheapest exchanges are taken."""
_MANY_CHIPS = 512
"""Pools with more are searched in the short way."""
_MOST_UPDATES = 50_000
"""Updates that a family remembers."""


class Kind(NamedTuple):
    """What a stage runs on: a node group in a mode."""

    group: int
    mode: Mode

    @property
    def tensor(self) -> int:
        """Its tensor parallel degree."""
        return self.mode.tensor


Stages = tuple[Kind, ...]
Policies = tuple[tuple[tuple[int, ...], ...], ...]


@dataclass(frozen=True)
class Shape:
    """A pipeline: what each stage runs on and holds."""

    schedule: str
    micro_batch_size: int
    stages: Stages
    split: Split


@dataclass(frozen=True)
class Entry:
    """Replicas of a shape that run equally many micro-batches."""

    shape: Shape
    replicas: int
    micro_batches: int


class MixedLeaf(Leaf):
    """A leaf whose neighbours of one group share a node whenever they fit in one: no placement has faster transfers."""

    def _transfer(self, s: int) -> TransferTable:
        a, b = self.stages[s], self.stages[s + 1]
        fits = (
            self.setting.context_parallel * (a.mode.tensor + b.mode.tensor) <= self.root.groups[a.group].chips_per_node
        )
        return self.root.transfer(a.group, a.mode, b.group, b.mode, a.group == b.group and fits)


class Family:
    """One (schedule, micro-batch size, replicas in all): its tables, for any number of micro-batches.

    fewest: with fewer than `replicas`, tables are lower bounds for every number of replicas between the two.
    ring: reductions are those of a pipeline in this ring, not the least of any.
    """

    def __init__(
        self,
        pool: Pool,
        schedule: str,
        micro_batch_size: int,
        replicas: int,
        fewest: int | None = None,
        ring: Ring | None = None,
    ) -> None:
        self.pool, self.schedule, self.micro_batch_size, self.replicas = pool, schedule, micro_batch_size, replicas
        setting = Setting(micro_batch_size, replicas, pool.context, mixed=True)
        problem: object = pool.problem
        if ring is not None:
            problem = Likely(pool.problem, ring)
        elif fewest not in (None, replicas):
            problem = Ranged(pool.problem, fewest or 1)
        self.root = Root(problem, pool.intervals, setting, schedule, Limits())  # type: ignore[arg-type]
        self.root.single_stage()
        self._passes: dict[tuple[Stages, Policies], tuple[list[float], list[float]]] = {}
        self._transfers: dict[tuple[Kind, Kind, bool, int], TransferTable] = {}
        self._updates: dict[object, tuple[float, list[float]]] = {}

    def passes(self, leaf: MixedLeaf, split: Split) -> tuple[list[float], list[float]]:
        """Forward and backward seconds of every stage of a leaf of this family; remembered."""
        key = tuple(Kind(s.group, s.mode) for s in leaf.stages), split.policies
        if key not in self._passes:
            self._passes[key] = leaf.stage_times(split.policies)[:2]
        return self._passes[key]

    def transfer(self, source: Kind, target: Kind, same_node: bool, sharing: int) -> TransferTable:
        """A boundary whose line so many pipelines share; remembered."""
        key = source, target, same_node, sharing
        if key not in self._transfers:
            setting = replace(self.root.setting, data_parallel=sharing, mixed=False, single_stage=False)
            self._transfers[key] = self.root.problem.transfer(*source, *target, same_node, setting)
        return self._transfers[key]

    def update(
        self, leaf: MixedLeaf, stage: int, own: int, holders: tuple[Holder, ...], sharing: int
    ) -> tuple[float, list[float]]:
        """Update seconds of layers that a stage of a leaf holds together with others (it is `holders[own]`): once, and
        of a layer of each kind; remembered.
        """
        spot = leaf.stages[stage]
        key = own, holders, sharing, spot.group, spot.mode, leaf.num_stages == 1
        if key not in self._updates:
            if len(self._updates) >= _MOST_UPDATES:
                self._updates.clear()
            reduced = self.pool.problem.reduction(own, holders, leaf.setting, sharing)
            each = reduced.seconds + leaf.table(stage).optimizer_s
            self._updates[key] = reduced.fixed_s, [float(s) for s in each]
        return self._updates[key]

    @cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """Every group and mode that has numbers here."""
        return tuple(kind for kind in self.pool.kinds if self.root.options(kind.group, kind.mode) is not None)

    @cached_property
    def rows(self) -> PieceRows:
        """What stages can hold."""
        return PieceRows(self)

    def leaf(self, stages: Stages, micro_batches: int) -> MixedLeaf:
        """The leaf of a pipeline with these stages."""
        root = copy(self.root)
        root.micro_batches = micro_batches
        return MixedLeaf(root, tuple((g, mode, 1) for g, mode in stages))


class Pool:
    """A problem's chips and layers at one context parallel degree; families are made once."""

    def __init__(self, problem: MixedProblem, intervals: Intervals, limits: Limits, context: int) -> None:
        self.problem, self.intervals, self.limits, self.context = problem, intervals, limits, context
        self.solver = SolverChoice()
        self._families: dict[tuple[str, int, int, Ring | None], Family] = {}
        self._taken: dict[Stages, tuple[int, ...]] = {}
        self.micro_batch_sizes = [b for b in problem.micro_batch_sizes if b <= problem.global_batch]
        self.kinds: tuple[Kind, ...] = tuple(
            Kind(g, mode)
            for g, group in enumerate(problem.groups)
            for mode in (() if g in limits.idle else group.modes)
            if mode.tensor * context <= group.chips_per_node
        )

    def family(self, schedule: str, micro_batch_size: int, replicas: int, ring: Ring | None = None) -> Family:
        """The family, with its caches."""
        key = (schedule, micro_batch_size, replicas, ring)
        if key not in self._families:
            self._families[key] = Family(self, schedule, micro_batch_size, replicas, ring=ring)
        return self._families[key]

    def families(self, replicas: int, ring: Ring | None = None) -> list[Family]:
        """Every schedule and micro-batch size, at a number of replicas."""
        sizes = self.micro_batch_sizes
        return [self.family(s, b, replicas, ring) for s in self.problem.schedules for b in sizes]

    def allows(self, stages: Stages) -> bool:
        """Whether the limits allow so many stages."""
        return self.limits.total_stages in (None, len(stages))

    def release(self) -> None:
        """Forget all families."""
        self._families.clear()

    @cached_property
    def num_chips(self) -> tuple[int, ...]:
        """Chips of each group that may be used."""
        return tuple(
            0 if g in self.limits.idle else x.nodes * x.chips_per_node for g, x in enumerate(self.problem.groups)
        )

    def chips_of(self, stages: Iterable[Kind]) -> tuple[int, ...]:
        """Chips of each group that one pipeline with these stages takes."""
        used = [0] * len(self.problem.groups)
        for g, mode in stages:
            used[g] += mode.tensor * self.context
        return tuple(used)

    @cached_property
    def rooms(self) -> tuple[Room, ...]:
        """What the groups have room for: one room a group where nodes hold stages of every width without loss."""
        return rooms_of(self.problem.groups, ((k.group, k.tensor * self.context) for k in self.kinds))

    def taken(self, stages: Stages) -> tuple[int, ...]:
        """Chips of each room that one pipeline with these stages takes."""
        if stages not in self._taken:
            self._taken[stages] = taken(self.rooms, [(k.group, k.tensor * self.context) for k in stages])
        return self._taken[stages]

    @property
    def is_large(self) -> bool:
        """Whether whole pipelines waste little of it, and searching it takes long."""
        return sum(self.num_chips) > _MANY_CHIPS

    def parts(self) -> list[Pool]:
        """The pool with one micro-batch size each, and with one tensor parallel degree each, where there are several; a
        group that lacks the degree keeps its own.
        """
        found = []
        for size in self.micro_batch_sizes if len(self.micro_batch_sizes) > 1 else ():
            part = copy(self)
            part.micro_batch_sizes = [size]
            found.append(part)
        degrees = sorted({k.tensor for k in self.kinds})
        for degree in degrees if len(degrees) > 1 else ():
            have = {k.group for k in self.kinds if k.tensor == degree}
            part = copy(self)
            part.kinds = tuple(k for k in self.kinds if k.tensor == degree or k.group not in have)
            found.append(part)
        for part in found:
            part._families, part._taken = {}, {}
            part.__dict__.pop("rooms", None)
        return found

    def has_room(self, stages: Stages) -> bool:
        """Whether one pipeline with these stages has room, and layers for every stage."""
        fits = all(n <= room.chips for n, room in zip(self.taken(stages), self.rooms, strict=True))
        return fits and len(stages) <= self.intervals.num_layers

    def price(self, prices: Sequence[float], kind: Kind) -> float:
        """What a slot costs at prices of a chip of each room."""
        return sum(p * n for p, n in zip(prices, self.taken((kind,)), strict=True))

    def places(self, entries: Iterable[Entry]) -> list[list[list[tuple[int, int]]]] | None:
        """(node, first chip) of every replica of every stage of every entry; None when they do not fit."""
        listed = [*entries]
        blocks = [Block(g, mode.tensor * self.context, e.replicas) for e in listed for g, mode in e.shape.stages]
        placed = place_blocks(self.problem.groups, blocks)
        if placed is None:
            return None
        rest = iter(placed)
        return [[next(rest) for _ in e.shape.stages] for e in listed]


def merged(stages: Stages) -> tuple[tuple[int, Mode, int], ...]:
    """(group, mode, number of stages) along the pipeline, equal neighbours together."""
    return tuple((kind.group, kind.mode, len([*run])) for kind, run in groupby(stages))


def policies_of(leaf: Leaf, stage: int, counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    """The whole-layer recompute choice of a stage that adds the least time and fits; None when none fits.

    All choices are tried where there are few, else `choose_policies` decides. Answers are remembered.
    """
    known, key = leaf.options(stage).chosen, (leaf.in_flight[stage], counts)
    if key not in known:
        known[key] = _best_policies(leaf, stage, counts)
    return known[key]


def _best_policies(leaf: Leaf, stage: int, counts: tuple[int, ...]) -> tuple[tuple[int, ...], ...] | None:
    table = leaf.table(stage)
    num_policies = table.recompute_s.shape[0]
    per_kind = [[*_divisions(n, num_policies)] for n in counts]
    total = 1
    for choices in per_kind:
        total *= len(choices)
    fastest = choose_policies(leaf, stage, counts)
    if total == 1 or total > _MOST_CHOICES or (fastest is not None and _cost(table, fastest) == 0):
        return fastest
    best, least = None, float("inf")
    for chosen in product(*per_kind):
        cost = _cost(table, chosen)
        if cost < least and leaf.fits(stage, chosen):
            best, least = chosen, cost
    return best


def _cost(table: LayerTable, chosen: tuple[tuple[int, ...], ...]) -> float:
    added = table.added_s
    return sum(n * float(added[q, k]) for k, row in enumerate(chosen) for q, n in enumerate(row))


def _divisions(total: int, parts: int) -> Iterable[tuple[int, ...]]:
    """All ways to divide `total` over `parts` in order."""
    if parts == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _divisions(total - first, parts - 1):
            yield (first, *rest)

"""What plans of several shapes are made of: families (what tables depend on), shapes (stages and layers), entries."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.placement import Block, place_blocks
from planner.cost.tables import Holder, Mode, Setting
from planner.search.candidates import Limits, Root
from planner.search.highs import SolverChoice
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf, Split
from planner.search.mixed.rows import PieceRows
from planner.search.splitting import choose_policies

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import ChipGroup, LayerTable, MixedProblem, TransferTable

    Floats = NDArray[np.float64]

__all__ = ["Entry", "Family", "Kind", "MixedLeaf", "Pool", "Shape", "policies_of"]

_MOST_CHOICES = 5000
"""Recompute choices of a stage that are all tried; beyond, the cheapest exchanges are taken."""


class Kind(NamedTuple):
    """What a stage runs on: a node group in a mode."""

    group: int
    mode: Mode

    @property
    def tensor(self) -> int:
        """Its tensor parallel degree."""
        return self.mode.tensor


Stages = tuple[Kind, ...]


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


@dataclass(frozen=True)
class _Ranged:
    """A problem whose tables hold for every number of replicas from `low` to `high`: the least of both ends, as states
    divide by the replicas and reductions grow with them.
    """

    base: MixedProblem
    low: int

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        import numpy as np

        many = self.base.table(group, mode, setting)
        few = self.base.table(group, mode, replace(setting, data_parallel=self.low))
        if many is None or few is None:
            return many or few
        return replace(
            many,
            static_bytes=np.minimum(many.static_bytes, few.static_bytes),
            host_bytes=_least(many.host_bytes, few.host_bytes),
            host_fixed_bytes=min(many.host_fixed_bytes, few.host_fixed_bytes),
            nvme_bytes=_least(many.nvme_bytes, few.nvme_bytes),
            reduction_s=np.minimum(many.reduction_s, few.reduction_s),
            optimizer_s=np.minimum(many.optimizer_s, few.optimizer_s),
            fixed_update_s=min(many.fixed_update_s, few.fixed_update_s),
        )

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)


def _least(one: Floats | None, other: Floats | None) -> Floats | None:
    import numpy as np

    return None if one is None or other is None else np.minimum(one, other)


@dataclass(frozen=True)
class _Cautious:
    """A problem whose reductions are those of a mix with one wide replica of another group: no bound, but nearer to
    what a mix will really take than the least.
    """

    base: MixedProblem

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        replicas = setting.data_parallel
        if table is None or replicas < 2:
            return table
        other = next((g for g, x in enumerate(self.groups) if g != group and x.tensor_degrees), None)
        slots = self.groups[group].slots_per_node(mode.tensor, setting.context_parallel)
        together = max(1, min(slots, replicas - 1))
        holders = [Holder(group, mode.tensor, replicas, min(2, self.groups[group].nodes), together, 0)]
        if other is not None:
            wide = max(self.groups[other].tensor_degrees)
            holders = [holders[0]._replace(replicas=replicas - 1), Holder(other, wide, 1, 1, 1, 0)]
        reduced = self.base.reduction(0, tuple(holders), setting)
        return replace(table, reduction_s=reduced.seconds, fixed_update_s=reduced.fixed_s)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)


class Family:
    """One (schedule, micro-batch size, replicas in all): its tables, for any number of micro-batches.

    fewest: with fewer than `replicas`, tables are lower bounds for every number of replicas between the two.
    cautious: reductions are those of a likely mix, not the least of any.
    """

    def __init__(
        self,
        pool: Pool,
        schedule: str,
        micro_batch_size: int,
        replicas: int,
        fewest: int | None = None,
        cautious: bool = False,
    ) -> None:
        self.pool, self.schedule, self.micro_batch_size, self.replicas = pool, schedule, micro_batch_size, replicas
        setting = Setting(micro_batch_size, replicas, pool.context, mixed=True)
        problem: object = pool.problem
        if cautious:
            problem = _Cautious(pool.problem)
        elif fewest not in (None, replicas):
            problem = _Ranged(pool.problem, fewest or 1)
        self.root = Root(problem, pool.intervals, setting, schedule, Limits())  # type: ignore[arg-type]
        self.root.single_stage()

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
        self._families: dict[tuple[str, int, int, bool], Family] = {}
        self.micro_batch_sizes = [b for b in problem.micro_batch_sizes if b <= problem.global_batch]
        self.kinds: tuple[Kind, ...] = tuple(
            Kind(g, mode)
            for g, group in enumerate(problem.groups)
            for mode in (() if g in limits.idle else group.modes)
            if mode.tensor * context <= group.chips_per_node
        )

    def family(self, schedule: str, micro_batch_size: int, replicas: int, cautious: bool = False) -> Family:
        """The family, with its caches."""
        key = (schedule, micro_batch_size, replicas, cautious)
        if key not in self._families:
            self._families[key] = Family(self, schedule, micro_batch_size, replicas, cautious=cautious)
        return self._families[key]

    def families(self, replicas: int, cautious: bool = False) -> list[Family]:
        """Every schedule and micro-batch size, at a number of replicas."""
        sizes = self.micro_batch_sizes
        return [self.family(s, b, replicas, cautious) for s in self.problem.schedules for b in sizes]

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

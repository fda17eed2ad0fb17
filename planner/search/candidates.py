"""Candidates: a *root* fixes what is equal for all stages; below it a tree of choices a node group at a time.

A `Node` says for every node group: open (mode not chosen yet), idle, or a mode with a box [low, high] of stage counts.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.schedule import in_flight
from planner.cost.tables import Mode
from planner.search.intervals import Intervals
from planner.search.stage_options import StageOptions

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import ChipGroup, Problem, Setting, TransferTable

    Floats = NDArray[np.float64]

__all__ = ["IDLE", "OPEN", "LeastTransfer", "Limits", "Node", "Root", "least_transfer", "make_roots"]

OPEN, IDLE = Mode(-1), Mode(0)
"""No modes of a stage: not chosen yet, and no stage."""


class LeastTransfer(NamedTuple):
    """Seconds that no cut at a boundary undercuts: onward, back, and both together."""

    onward: float
    back: float
    both: float


@dataclass(frozen=True)
class Limits:
    """What the user pins: stage counts, order, idle and required groups, layers of each stage. Empty means free."""

    stages: dict[int, int] = field(default_factory=dict)
    total_stages: int | None = None
    order: tuple[int, ...] | None = None
    idle: frozenset[int] = frozenset()
    use: frozenset[int] = frozenset()
    layers_per_stage: tuple[int, ...] | None = None
    fixed_order: bool = False


@dataclass(frozen=True)
class Node:
    """One node of the tree: `modes[g]` is OPEN, IDLE or a mode; `low[g]`, `high[g]` bound the group's stages (0, 0 when
    idle).
    """

    modes: tuple[Mode, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]

    @property
    def fixed(self) -> bool:
        """Every choice but the order is made."""
        return OPEN not in self.modes and self.low == self.high

    @property
    def active(self) -> list[int]:
        """Groups that have a mode."""
        return [g for g, mode in enumerate(self.modes) if mode not in (OPEN, IDLE)]


class Root:
    """One (schedule, micro-batch size, data, context and expert degree), with the options of every group cached."""

    def __init__(self, problem: Problem, intervals: Intervals, setting: Setting, schedule: str, limits: Limits) -> None:
        self.problem, self.intervals, self.setting, self.schedule, self.limits = (
            problem,
            intervals,
            setting,
            schedule,
            limits,
        )
        self.micro_batches = problem.global_batch // (setting.micro_batch_size * setting.data_parallel)
        self.groups: tuple[ChipGroup, ...] = problem.groups
        self._options: dict[tuple[int, Mode], StageOptions | None] = {}
        self._transfers: dict[tuple[int, Mode, int, Mode, bool], TransferTable] = {}
        self._least_transfers: dict[tuple[int, Mode, int, Mode, bool], LeastTransfer] = {}
        self._modes: dict[int, tuple[Mode, ...]] = {}
        self._work: Floats | None = None
        self._single: Root | None = None
        self.bound = 0.0

    def stages_in_flight(self, distance_from_end: int) -> int:
        """In-flight micro-batches at a distance from the end of the pipeline (1 = last stage)."""
        return in_flight(self.schedule, distance_from_end, self.micro_batches)

    def max_stages(self, group: int, mode: Mode) -> int:
        """Stages that the group's chips can hold in this mode, at most one a layer, as the limits allow."""
        chips = self.groups[group].room(mode, self.setting)
        return min(chips, self.intervals.num_layers, self.limits.stages.get(group, chips))

    @cached_property
    def most_stages(self) -> int:
        """Stages of the longest pipeline that the chips and the layers allow."""
        longest = sum(
            max((self.max_stages(g, mode) for mode in group.modes), default=0) for g, group in enumerate(self.groups)
        )
        return max(1, min(longest, self.intervals.num_layers))

    def modes(self, group: int) -> tuple[Mode, ...]:
        """Modes with at least one possible stage."""
        if group not in self._modes:
            least = max(1, self.limits.stages.get(group, 1))
            possible = [
                mode
                for mode in (() if group in self.limits.idle else self.groups[group].modes)
                if self.max_stages(group, mode) >= least and self.options(group, mode) is not None
            ]
            self._modes[group] = self._worth_having(group, possible)
        return self._modes[group]

    def _worth_having(self, group: int, modes: list[Mode]) -> tuple[Mode, ...]:
        """The modes without those that another one of equal chips is never worse than: equal ones keep their first."""
        if len(modes) == len({(mode.tensor, mode.replicas) for mode in modes}):
            return tuple(modes)
        kept: list[Mode] = []
        tables = {mode: self.problem.table(group, mode, self.setting) for mode in modes}

        def covers(one: Mode, other: Mode) -> bool:
            a, b = tables[one], tables[other]
            alike = (one.tensor, one.replicas) == (other.tensor, other.replicas)
            return alike and a is not None and b is not None and a.is_never_worse(b)

        for i, mode in enumerate(modes):
            later = (other for other in modes[i + 1 :] if not covers(mode, other))
            if not any(covers(other, mode) for other in (*kept, *later)):
                kept.append(mode)
        return tuple(kept)

    def options(self, group: int, mode: Mode) -> StageOptions | None:
        """Piece times of a group in a mode; None when the cost model rules the mode out."""
        key = (group, mode)
        if key not in self._options:
            table = self.problem.table(group, mode, self.setting)
            self._options[key] = None if table is None else StageOptions(table, self.intervals, self.work(group, mode))
        return self._options[key]

    def work(self, group: int, mode: Mode) -> Floats:
        """The yardstick: seconds per layer kind on the first chip asked for."""
        if self._work is None:
            table = self.problem.table(group, mode, self.setting)
            assert table is not None
            self._work = table.forward_s + table.backward_input_s + table.backward_weight_s + 1e-12
        return self._work

    def single_stage(self) -> Root:
        """The same root with the tables of a pipeline of one stage."""
        if self._single is None:
            setting = replace(self.setting, single_stage=True)
            self._single = Root(self.problem, self.intervals, setting, self.schedule, self.limits)
        return self._single

    def without(self, group: int) -> Root:
        """The same root with a group idle."""
        limits = replace(self.limits, idle=self.limits.idle | {group})
        return Root(self.problem, self.intervals, self.setting, self.schedule, limits)

    def release(self) -> None:
        """Forget cached numbers, so that memory does not grow with the number of roots."""
        self._options.clear()
        self._transfers.clear()
        self._least_transfers.clear()
        self._single = None

    def total_work(self) -> float:
        """Work of the whole chain in the yardstick's unit."""
        if self._work is None:
            return 0.0
        return float(self.intervals.prefix[-1] @ self._work)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool
    ) -> TransferTable:
        """Cached transfer seconds across a boundary."""
        key = (source, source_mode, target, target_mode, same_node)
        if key not in self._transfers:
            self._transfers[key] = self.problem.transfer(*key, self.setting)
        return self._transfers[key]

    def least_transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool
    ) -> LeastTransfer:
        """The cheapest cut for a boundary: over the kinds of layers that a cut can come after (the last layer is not
        one).
        """
        key = (source, source_mode, target, target_mode, same_node)
        if key not in self._least_transfers:
            self._least_transfers[key] = least_transfer(self.transfer(*key), self.intervals)
        return self._least_transfers[key]

    def start(self) -> Node | None:
        """The top of the tree: every group open; None when nothing can be placed."""
        modes = [self.modes(g) for g in range(len(self.groups))]
        if not any(modes) or any(not modes[g] for g in self.limits.use | set(self.limits.stages)):
            return None
        chosen = tuple(OPEN if own else IDLE for own in modes)
        high = tuple(max((self.max_stages(g, mode) for mode in own), default=0) for g, own in enumerate(modes))
        return Node(chosen, tuple(0 for _ in chosen), high)


def least_transfer(table: TransferTable, intervals: Intervals) -> LeastTransfer:
    """Least seconds onward, back and both together over the kinds that a cut can come after."""
    kinds = intervals.cut_kinds
    if not kinds:
        return LeastTransfer(0.0, 0.0, 0.0)
    onward, back = table.forward_s[kinds], table.backward_s[kinds]
    return LeastTransfer(float(onward.min()), float(back.min()), float((onward + back).min()))


def make_roots(problem: Problem, intervals: Intervals, limits: Limits) -> list[Root]:
    """Every root of the plan space, in the problem's order."""
    return [
        Root(problem, intervals, setting, schedule, limits)
        for schedule in problem.schedules
        for setting in problem.settings
        if problem.global_batch % (setting.micro_batch_size * setting.data_parallel) == 0
    ]

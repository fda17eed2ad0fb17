"""A leaf: every choice made but the layers. Exact evaluation of a split with the action recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from planner.cost.placement import crosses_node
from planner.cost.recurrence import ChainTimes, step_time

if TYPE_CHECKING:
    from planner.cost.tables import LayerTable, Setting, TransferTable
    from planner.search.candidates import Root
    from planner.search.stage_options import StageOptions

__all__ = ["Leaf", "Split", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One stage of a leaf: node group, tensor parallel degree, and its index within the group along the pipeline."""

    group: int
    tensor: int
    index: int


@dataclass(frozen=True)
class Split:
    """Layers and recompute of every stage.

    ends: chain position after each stage's last layer.  policies[s][k][q]: layers of kind k on stage s under recompute
    policy q.
    """

    ends: tuple[int, ...]
    policies: tuple[tuple[tuple[int, ...], ...], ...]

    def bounds(self, stage: int) -> tuple[int, int]:
        """First layer and the position after the last."""
        return (self.ends[stage - 1] if stage else 0), self.ends[stage]


class Leaf:
    """A pipeline shape without its layers. `order`: (group, degree, number of stages) along the pipeline."""

    def __init__(self, root: Root, order: tuple[tuple[int, int, int], ...]) -> None:
        self.root, self.order = root, order
        self.stages = tuple(Stage(g, t, j) for g, t, count in order for j in range(count))
        self.num_stages = len(self.stages)
        self.micro_batches = root.micro_batches
        self.in_flight = tuple(root.stages_in_flight(self.num_stages - s) for s in range(self.num_stages))

    @cached_property
    def setting(self) -> Setting:
        """The root's setting, marked when there is a single stage."""
        from dataclasses import replace

        return replace(self.root.setting, single_stage=self.num_stages == 1)

    @cached_property
    def root_for_tables(self) -> Root:
        """A single-stage pipeline has its own tables (tied matrices need no copy)."""
        if self.num_stages > 1:
            return self.root
        return self.root.single_stage()

    def options(self, stage: int) -> StageOptions:
        """Piece times of a stage."""
        options = self.root_for_tables.options(self.stages[stage].group, self.stages[stage].tensor)
        assert options is not None
        return options

    def table(self, stage: int) -> LayerTable:
        """The layer table of a stage."""
        return self.options(stage).table

    @cached_property
    def transfers(self) -> tuple[TransferTable, ...]:
        """The boundary after each stage but the last."""
        return tuple(self._transfer(s) for s in range(self.num_stages - 1))

    def same_node(self, s: int) -> bool:
        """Whether the boundary after a stage stays in a node in every replica."""
        a, b = self.stages[s], self.stages[s + 1]
        if a.group != b.group:
            return False
        slots = self.root.groups[a.group].slots_per_node(a.tensor, self.setting.context_parallel)
        return not crosses_node(a.index, self.setting.data_parallel, slots)

    def _transfer(self, s: int) -> TransferTable:
        a, b = self.stages[s], self.stages[s + 1]
        return self.root.transfer(a.group, a.tensor, b.group, b.tensor, self.same_node(s))

    def chain_times(self, split: Split) -> ChainTimes:
        """Stage and transfer seconds of a split."""
        forward, backward, update = [], [], []
        for s in range(self.num_stages):
            table = self.table(s)
            f = b = u = 0.0
            for k, per_policy in enumerate(split.policies[s]):
                n = sum(per_policy)
                f += n * float(table.forward_s[k])
                b += n * float(table.backward_input_s[k] + table.backward_weight_s[k])
                b += sum(r * float(table.recompute_s[q, k]) for q, r in enumerate(per_policy))
                u += n * float(table.reduction_s[k] + table.optimizer_s[k])
            forward.append(f)
            backward.append(b)
            update.append(u + table.fixed_update_s)
        last_kinds = [self.root.intervals.chain.kinds[e - 1] for e in split.ends[:-1]]
        send_forward = [float(t.forward_s[k]) for t, k in zip(self.transfers, last_kinds, strict=True)]
        send_backward = [float(t.backward_s[k]) for t, k in zip(self.transfers, last_kinds, strict=True)]
        return ChainTimes(forward, backward, update, send_forward, send_backward)

    def step_time(self, split: Split) -> float:
        """Exact step time of a split."""
        return step_time(self.chain_times(split), self.in_flight, self.micro_batches)

    def peak_bytes(self, stage: int, policies: tuple[tuple[int, ...], ...]) -> float:
        """Memory of a stage at its peak."""
        table, k_s = self.table(stage), self.in_flight[stage]
        total, working = table.fixed_bytes, 0.0
        for k, per_policy in enumerate(policies):
            total += sum(per_policy) * float(table.static_bytes[k])
            for q, r in enumerate(per_policy):
                if r:
                    total += r * k_s * float(table.saved_bytes[q, k])
                    working = max(working, float(table.transient_bytes[q, k]))
        return total + working

    def fits(self, stage: int, policies: tuple[tuple[int, ...], ...]) -> bool:
        """Whether a stage's memory suffices."""
        return self.peak_bytes(stage, policies) <= self.table(stage).usable_bytes

"""A leaf: every choice made but the layers. Exact evaluation of a split with the action recurrence."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.cost.branching_recurrence import BranchTimes, pairs_step_time
from planner.cost.crossings import Pair, received_elements, sent_elements
from planner.cost.placement import stays_in_node
from planner.cost.recurrence import ChainTimes, step_time

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from planner.cost.tables import LayerTable, Mode, Setting, TransferTable
    from planner.search.candidates import Root
    from planner.search.stage_options import StageOptions

__all__ = ["Leaf", "Split", "Stage"]


@dataclass(frozen=True)
class Stage:
    """One stage of a leaf: node group, mode, and its index within the group along the pipeline."""

    group: int
    mode: Mode
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
    """A pipeline shape without its layers. `order`: (group, mode, number of stages) along the pipeline."""

    def __init__(self, root: Root, order: tuple[tuple[int, Mode, int], ...]) -> None:
        self.root, self.order = root, order
        self.stages = tuple(Stage(g, mode, j) for g, mode, count in order for j in range(count))
        self.num_stages = len(self.stages)
        self.micro_batches = root.micro_batches
        self.in_flight = tuple(root.stages_in_flight(self.num_stages - s) for s in range(self.num_stages))
        self.tensors = root.intervals.chain.tensors
        self._pairs: dict[Pair, TransferTable] = {}

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
        options = self.root_for_tables.options(self.stages[stage].group, self.stages[stage].mode)
        assert options is not None
        return options

    def table(self, stage: int) -> LayerTable:
        """The layer table of a stage."""
        return self.options(stage).table

    @cached_property
    def transfers(self) -> tuple[TransferTable, ...]:
        """The boundary after each stage but the last."""
        return tuple(self.transfer_of((s, s + 1)) for s in range(self.num_stages - 1))

    def transfer_of(self, pair: Pair) -> TransferTable:
        """What one stage of a pair sends to the other."""
        if pair not in self._pairs:
            a, b = (self.stages[s] for s in pair)
            self._pairs[pair] = self.root.transfer(a.group, a.mode, b.group, b.mode, self.same_node(pair))
        return self._pairs[pair]

    def same_node(self, pair: Pair) -> bool:
        """Whether two stages sit in the same node in every replica."""
        a, b = (self.stages[s] for s in pair)
        if a.group != b.group:
            return False
        slots = self.root.groups[a.group].slots_per_node(a.mode.tensor, self.setting.context_parallel)
        return stays_in_node(a.index, b.index, self.setting.data_parallel * a.mode.replicas, slots)

    def chain_times(self, split: Split) -> ChainTimes:
        """Stage and transfer seconds of a split; where the graph branches, of what neighbours send each other at least.

        There no split whose stages each feed the next one is faster than these times are.
        """
        forward, backward, update = self.stage_times(split.policies)
        last_kinds = [self.root.intervals.chain.kinds[e - 1] for e in split.ends[:-1]]
        send_forward = [float(t.forward_s[k]) for t, k in zip(self.transfers, last_kinds, strict=True)]
        send_backward = [float(t.backward_s[k]) for t, k in zip(self.transfers, last_kinds, strict=True)]
        return ChainTimes(forward, backward, update, send_forward, send_backward)

    def stage_times(
        self, policies: tuple[tuple[tuple[int, ...], ...], ...]
    ) -> tuple[list[float], list[float], list[float]]:
        """Forward, backward and update seconds of every stage; policies as in a split."""
        forward, backward, update = [], [], []
        for s, per_kind in enumerate(policies):
            table = self.table(s)
            f = b = u = 0.0
            for k, per_policy in enumerate(per_kind):
                n = sum(per_policy)
                f += n * float(table.forward_s[k])
                if table.offload is not None:
                    f += sum(r * float(table.offload.forward_s[q, k]) for q, r in enumerate(per_policy))
                b += n * float(table.backward_input_s[k] + table.backward_weight_s[k])
                b += sum(r * float(table.recompute_s[q, k]) for q, r in enumerate(per_policy))
                u += n * float(table.reduction_s[k] + table.optimizer_s[k])
            forward.append(f)
            backward.append(b)
            update.append(u + table.fixed_update_s)
        return forward, backward, update

    def step_time(self, split: Split) -> float:
        """Exact step time of a split.

        Where the graph branches, of a pipeline whose stages all wait for the one before, also where that sends them
        nothing: the bounds of this search are for such pipelines.
        """
        if self.tensors is None:
            return step_time(self.chain_times(split), self.in_flight, self.micro_batches)
        waits = {(s, s + 1): 0.0 for s in range(self.num_stages - 1)}
        return self.branch_step_time(split.policies, waits | self.sent(split.ends), waits)

    def branch_step_time(
        self,
        policies: tuple[tuple[tuple[int, ...], ...], ...],
        sent: Mapping[Pair, float],
        waits: Collection[Pair] = (),
    ) -> float:
        """Exact step time of stages that send each other so many elements. waits: pairs that wait, sent or not."""
        onward, back = {}, {}
        for pair, elements in sent.items():
            seconds = (0.0, 0.0) if pair in waits and not elements else self.transfer_of(pair).seconds(elements)
            onward[pair], back[pair] = seconds
        times = BranchTimes(*self.stage_times(policies), onward, back)
        return pairs_step_time(times, self.in_flight, self.micro_batches)

    def sent(self, ends: tuple[int, ...]) -> dict[Pair, float]:
        """Elements per sequence from stage to stage, where the graph branches."""
        sizes = [end - first for first, end in pairwise((0, *ends))]
        return sent_elements(self.tensors or (), [s for s, size in enumerate(sizes) for _ in range(size)])

    def received(self, ends: tuple[int, ...]) -> list[float]:
        """Elements per sequence that each stage receives, where the graph branches; else 0: its table knows."""
        return received_elements({} if self.tensors is None else self.sent(ends), self.num_stages)

    def peak_bytes(self, stage: int, policies: tuple[tuple[int, ...], ...], received: float = 0.0) -> float:
        """Memory of a stage at its peak."""
        table, k_s = self.table(stage), self.in_flight[stage]
        total, working, staging = table.fixed_bytes + received * table.buffer_bytes, 0.0, 0.0
        for k, per_policy in enumerate(policies):
            total += sum(per_policy) * float(table.static_bytes[k])
            for q, r in enumerate(per_policy):
                if r:
                    total += r * k_s * float(table.saved_bytes[q, k])
                    working = max(working, float(table.transient_bytes[q, k]))
                    if table.offload is not None:
                        staging = max(staging, float(table.offload.staging_bytes[q, k]))
        return total + working + staging

    def host_bytes(self, stage: int, policies: tuple[tuple[int, ...], ...]) -> float:
        """What one chip of a stage keeps in host memory: optimizer states, or buffers for them, and activations."""
        table = self.table(stage)
        states, host, total = table.host_bytes, table.offload, table.host_fixed_bytes
        if states is not None:
            total += sum(sum(row) * float(states[k]) for k, row in enumerate(policies))
        if host is not None:
            rows = (r * float(host.host_bytes[q, k]) for k, row in enumerate(policies) for q, r in enumerate(row) if r)
            total += self.in_flight[stage] * sum(rows)
        return total

    def nvme_bytes(self, stage: int, policies: tuple[tuple[int, ...], ...]) -> float:
        """What one chip of a stage keeps on drives: optimizer states."""
        states = self.table(stage).nvme_bytes
        return 0.0 if states is None else sum(sum(row) * float(states[k]) for k, row in enumerate(policies))

    def fits_off_chip(self, stage: int, policies: tuple[tuple[int, ...], ...]) -> bool:
        """Whether what a stage offloads fits its share of the host's memory and of the drives."""
        table = self.table(stage)
        on_host = self.host_bytes(stage, policies) <= table.usable_host_bytes
        return on_host and self.nvme_bytes(stage, policies) <= table.usable_nvme_bytes

    def fits(self, stage: int, policies: tuple[tuple[int, ...], ...], received: float = 0.0) -> bool:
        """Whether a stage's memory suffices. received: elements per sequence that it receives (`received`)."""
        fits = self.peak_bytes(stage, policies, received) <= self.table(stage).usable_bytes
        return fits and self.fits_off_chip(stage, policies)

"""The cost model: one object that answers the search, the checker and the report with numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost.assumptions import assumptions
from planner.cost.breakdown import StageBreakdown, stage_breakdown
from planner.cost.communication import RingPath, limited
from planner.cost.figures import require_figures, usable_groups
from planner.cost.host_copies import offload_notices
from planner.cost.links import line_bytes_per_s, replica_ring
from planner.cost.modes import mode_space
from planner.cost.policies import POLICIES, offloads
from planner.cost.precision import zero_levels
from planner.cost.space import micro_batch_sizes, plan_space, refusal
from planner.cost.stage_maker import StageMaker
from planner.cost.tables import LayerTable, Reduction, TransferTable
from planner.cost.tiers import Tier
from planner.cost.traffic import StageTraffic, StageWays, best_detour
from planner.cost.transfers import Ends, transfer_table
from planner.cost.update import Rings, reduction
from planner.cost.uplinks import FREE, Detour, Uplinks

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.links import Hop
    from planner.cost.tables import Chain, ChipGroup, Holder, Mode, Setting
    from planner.errors import Notice
    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec

    Floats = NDArray[np.float64]

__all__ = ["POLICIES", "CostModel"]

_MOST_REDUCTIONS = 20_000
"""Reductions between shapes that are remembered."""


class CostModel:
    """Times, bytes and transfers of a model's layers on a cluster's chips. Implements `tables.Problem`.

    Refuses with InputError what planning needs and the inputs lack, and what they pin and cannot be.
    """

    def __init__(self, cluster: Cluster, model: ModelSpec, graph: LayerGraph) -> None:
        self._cluster, self._model, self._graph = cluster, model, graph
        self.zero_levels: tuple[int, ...] = zero_levels(model.training)
        self.policies: tuple[str, ...] = tuple(p for p in POLICIES if p in model.training.recompute)
        self.schedules: tuple[str, ...] = tuple(model.training.schedules)
        self.global_batch: int = model.training.global_batch
        usable, left_out = usable_groups(cluster, model, graph)
        require_figures(cluster, model, graph, usable)
        space = plan_space(cluster, model, graph, usable)
        self.groups: tuple[ChipGroup, ...] = space.groups
        self.settings: tuple[Setting, ...] = space.settings
        self._left_out: tuple[Notice, ...] = (*left_out, *space.notices)
        on_hosts = offload_notices(cluster, usable, self.policies)
        self.excluded: tuple[Notice, ...] = (*self._left_out, *graph.notices, *on_hosts)
        self.uplinks: Uplinks | None = None if cluster.topology is None else Uplinks(cluster, cluster.topology)
        self._stages = StageMaker(cluster, model, graph, self.groups, self.policies, self.uplinks)
        self._recipe, self._kinds = self._stages.recipe, self._stages.kinds
        self.chain: Chain = self._kinds.chain
        self._least: dict[int, Floats] = {}
        self._transfers: dict[tuple[int, int, tuple[int, ...], bool, int, int, int, Detour], TransferTable] = {}
        self._lines: dict[tuple[int, int], bool] = {}
        self._hops: dict[Hop, RingPath] = {}
        self._replica_rings: dict[tuple[tuple[Holder, ...], int, int], RingPath] = {}
        self._reductions: dict[tuple[int, tuple[Holder, ...], Setting, int, Detour], Reduction] = {}

    # --- what the search asks --------------------------------------------------------------------------------------

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        """Numbers of every layer kind; None when the mode is no choice there (`why_not` says why)."""
        numbers = self._stages.numbers(group, mode, setting)
        return None if numbers is None else numbers.table

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> Floats | None:
        """(K,) seconds forward and backward that `table` never goes below, and far sooner; None where it is None.

        Uplinks only take away, so they are left out.
        """
        if refusal(self.groups[group], mode, setting, self._model, self._graph) is not None:
            return None
        setting = mode.setting(setting)
        times = self._stages.layer_times(group, setting, self._stages.degrees(mode.tensor, setting), FREE)
        key = id(times)
        if key not in self._least:
            both = times[0] + times[1]
            self._least[key] = both.forward_s + both.backward_input_s + both.backward_weight_s
        return self._least[key]

    def placed_table(self, group: int, mode: Mode, setting: Setting, ways: StageWays) -> LayerTable:
        """The same as `table` for a stage to which the uplinks leave so much, in a mode that is a choice."""
        numbers = self._stages.numbers(group, mode, setting, ways)
        assert numbers is not None, self.why_not(group, mode, setting)
        return numbers.table

    def why_not(self, group: int, mode: Mode, setting: Setting) -> str | None:
        """The sentence behind a `table` that is None."""
        reason = refusal(self.groups[group], mode, setting, self._model, self._graph)
        return None if reason is None else reason.sentence

    def transfer(
        self,
        source: int,
        source_mode: Mode,
        target: int,
        target_mode: Mode,
        same_node: bool,
        setting: Setting,
        detour: Detour | None = None,
    ) -> TransferTable:
        """Seconds to move one micro-batch across a boundary, by the kind of the last layer before it.

        detour: what the uplinks leave of the way where the replicas sit; None: at the best places that there are.
        """
        if setting.mixed:
            setting = replace(setting, data_parallel=1, mixed=False)
        size, context = setting.micro_batch_size, setting.context_parallel
        ways = source_mode.tensor, source_mode.replicas, target_mode.tensor, target_mode.replicas
        sharing = setting.data_parallel if self._share_a_line(source, target) else 1
        if detour is None:
            detour = best_detour(self.uplinks, source, target, setting.data_parallel)
        key = (source, target, ways, same_node, size, context, sharing, detour)
        if key not in self._transfers:
            if len(self._transfers) >= _MOST_REDUCTIONS:
                self._transfers.clear()
            links = {g: self._stages.links_of(g) for g in (source, target)}
            inside = self._stays_inside(source, target, same_node)
            ends = Ends(source, source_mode.tensor, target, target_mode.tensor, inside, *ways[1::2])
            self._transfers[key] = transfer_table(
                self._cluster, self._model, links, self._kinds, self._recipe.weight, ends, setting, detour
            )
        return self._transfers[key]

    @property
    def may_mix(self) -> bool:
        """ZeRO-2 and 3 reduce and gather in every micro-batch, of which mixed shapes run unequal numbers; levels that
        differ would divide the states of one layer in two ways; expert parallel groups would span shapes. Replicas
        inside a pipeline are equal sequences for all, which mixed shapes are not.
        """
        alone = all(group.stage_replicas == (1,) for group in self.groups)
        return alone and self.zero_levels in ((0,), (1,)) and any(s.expert_parallel == 1 for s in self.settings)

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Sequences a micro-batch, also those that do not divide the batch: other shapes may make up for it."""
        return tuple(micro_batch_sizes(self._model))

    def reduction(
        self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1, detour: Detour = FREE
    ) -> Reduction:
        """Gradient reduction of layers that stages of several shapes hold, as the stage `holders[own]` sees it.

        sharing: stages of the longest pipeline, whose rings use a line of limited total at the same time.
        detour: what the uplinks leave to each of its rings.
        """
        key = (own, holders, setting, sharing, detour)
        if key not in self._reductions:
            if len(self._reductions) >= _MOST_REDUCTIONS:
                self._reductions.clear()
            self._reductions[key] = self._reduction(*key)
        return self._reductions[key]

    def _reduction(
        self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int, detour: Detour
    ) -> Reduction:
        holder = holders[own]
        links = {h.group: self._stages.links_of(h.group) for h in holders}
        key = holders, setting.context_parallel, sharing
        if key not in self._replica_rings:
            if len(self._replica_rings) >= _MOST_REDUCTIONS:
                self._replica_rings.clear()
            self._replica_rings[key] = replica_ring(self._cluster, links, *key, self._hops)
        ring = self._replica_rings[key]
        path = limited(RingPath(ring.bytes_per_s / holder.tensor, ring.latency_s), *detour)
        degrees = self._stages.degrees(holder.tensor, setting)
        rings = Rings(path, path, links[holder.group].tied)
        padding = self._stages.padding(holder.tensor)
        reduced = reduction(self._kinds, self._recipe, degrees, rings, setting.single_stage, padding)
        return Reduction(reduced.reduction_s, reduced.fixed_s)

    # --- what the checker and the report ask -----------------------------------------------------------------------

    def breakdown(
        self,
        group: int,
        mode: Mode,
        setting: Setting,
        counts: Sequence[Sequence[int]],
        in_flight: int,
        received: float = 0.0,
        ways: StageWays | None = None,
    ) -> StageBreakdown:
        """Memory and time of a stage, part by part.

        counts[q][k]: layers of kind k under recompute policy q (`kind_counts`); in_flight: micro-batches whose
        activations it holds; received: elements per sequence that arrive from other stages (`received_elements`), for
        graphs that branch; ways: what the uplinks leave it where it sits (None: at the best places that there are).
        """
        numbers = self._stages.numbers(group, mode, setting, ways)
        assert numbers is not None, self.why_not(group, mode, setting)
        return stage_breakdown(numbers, counts, in_flight, received)

    def kind_counts(self, layers: Sequence[str], recompute: Mapping[str, str]) -> list[list[int]]:
        """Counts for `breakdown` from layer names and their recompute policies (`none` where nothing is said)."""
        position = {name: i for i, name in enumerate(self.chain.names)}
        counts = [[0] * self._kinds.num_kinds for _ in self.policies]
        default = "none" if "none" in self.policies else self.policies[0]
        for name in layers:
            policy = recompute.get(name, default)
            counts[self.policies.index(policy)][self.chain.kinds[position[name]]] += 1
        return counts

    def boundary_bytes(self, layer: int, setting: Setting) -> float:
        """Bytes of one micro-batch that a replica's chips together send across the cut after a layer of the chain."""
        elements = self._kinds.boundary_elements[self.chain.kinds[layer]]
        return float(elements) * setting.micro_batch_size * self._recipe.weight

    def sent_bytes(self, elements: float, setting: Setting) -> float:
        """Bytes of one micro-batch that a replica's chips together send, for so many elements per sequence."""
        return elements * setting.micro_batch_size * self._recipe.weight

    def stage_traffic(self, group: int, mode: Mode, setting: Setting, nodes: Sequence[int]) -> StageTraffic:
        """A stage whose replicas sit in these nodes of its group, for `Traffic`; only where there are uplinks."""
        assert self.uplinks is not None
        homes = tuple(self.uplinks.homes[group][node] for node in nodes)
        degrees, always = self._stages.degrees(mode.tensor, setting), self._stages.recipe_in(mode).zero >= 2
        return StageTraffic(homes, mode.tensor, setting.context_parallel, degrees.expert, always)

    def transport(self, source: int, target: int, same_node: bool) -> str:
        """How bytes travel between two stages: `rdma`, or `host` (through host memory); inside a node always `rdma`."""
        return "rdma" if same_node else str(self._cluster.path(source, target).transport)

    def peak_flops_per_s(self, group: int) -> float | None:
        """The chip's dense peak in the asked precision, the denominator of MFU; None where the profile has none."""
        return self._cluster.chip_of(group).peak_flops_per_s.get(self._model.training.precision)

    @property
    def model_flops_per_step(self) -> float:
        """FLOPs that the mathematics needs for one step:  3 * batch * useful matmul and attention FLOPs of all layers.

        Three passes: forward, and twice that backward; less where frozen layers need less. Recompute does not count,
        inside a kernel or outside (model FLOPs of MFU, Chowdhery et al., arXiv 2204.02311, appendix B), nor does the
        padding of the vocabulary.
        """
        total = 0.0
        for layer in self._graph.layers:
            for op in layer.operations:
                if op.operation_class in {"matmul", "attention"}:
                    useful = op.flops if op.useful_flops is None else op.useful_flops
                    total += useful * (1 + min(2.0, op.backward_flops_ratio))
        return self.global_batch * total

    @property
    def notes(self) -> tuple[str, ...]:
        """Assumptions that a reader of the plan must know: the graph's and the cost model's."""
        degrees = sorted({tensor for group in self.groups for tensor in group.tensor_degrees})
        warned = {notice.message for notice in self._graph.notices}
        notes = (note for note in self._graph.notes if note not in warned)
        return (*notes, *assumptions(self._cluster, self._model, self._graph, degrees))

    @property
    def space(self) -> dict[str, object]:
        """The dimensions of the plan space that the cost model spans, for the plan's `plan_space`."""
        modes = mode_space(self.groups, self._model.training)
        return {
            "micro_batch_size": sorted({s.micro_batch_size for s in self.settings}),
            "data_parallel": sorted({s.data_parallel for s in self.settings}),
            "context_parallel": sorted({s.context_parallel for s in self.settings}),
            "expert_parallel": sorted({s.expert_parallel for s in self.settings}),
            "tensor_parallel": {group.name: list(group.tensor_degrees) for group in self.groups},
            "recompute": list(self.policies),
            "schedules": list(self.schedules),
            **modes,
            "restrictions": [
                "tensor_parallel x context_parallel chips of a replica's stage share a node",
                "all replicas of a stage sit in one node group",
                *(("in pipelines of one shape a node group has one mode for all its stages",) if modes else ()),
                *(() if self.uplinks is None else ("stages fill nodes one after another; which nodes, is free",)),
                *(("each chip has an equal share of its host's memory",) if self._uses_hosts else ()),
                *(("each chip has an equal share of its node's drives",) if self._uses_drives else ()),
                *(notice.message for notice in self._left_out),
            ],
        }

    # --- what is asked along the way -------------------------------------------------------------------------------

    def _share_a_line(self, source: int, target: int) -> bool:
        """Whether replicas that cross between two groups share a line of known rate."""
        if (source, target) not in self._lines:
            limited = source != target and line_bytes_per_s(self._cluster, source, target) < float("inf")
            self._lines[source, target] = limited
        return self._lines[source, target]

    def _stays_inside(self, source: int, target: int, same_node: bool) -> bool:
        """Whether a boundary has the link inside a node: in one, or in a group of one node (bounds ask; there is no
        other way).
        """
        only_node = source == target and self.groups[source].nodes == 1
        return only_node or (same_node and self.groups[source].chips_per_node > 1)

    @property
    def _uses_hosts(self) -> bool:
        """Whether anything may be in host memory."""
        return self._model.training.offload_optimizer != "never" or any(map(offloads, self.policies))

    @property
    def _uses_drives(self) -> bool:
        """Whether anything may be on drives."""
        return any(Tier.NVME in group.offloads for group in self.groups)

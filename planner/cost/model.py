"""The cost model: one object that answers the search, the checker and the report with numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost.assumptions import assumptions
from planner.cost.breakdown import StageBreakdown, StageNumbers, stage_breakdown
from planner.cost.communication import RingPath, limited
from planner.cost.compute import chip_rates
from planner.cost.figures import require_figures, usable_groups, wholly_measured
from planner.cost.host_copies import host_copies, host_share_bytes, offload_notices
from planner.cost.kinds import kind_arrays
from planner.cost.layer_time import chosen_times, collective_times, compute_times, measured_times
from planner.cost.links import (
    expert_path,
    gradient_rings,
    group_links,
    least_ring,
    line_bytes_per_s,
    replica_ring,
)
from planner.cost.memory import (
    boundary_buffers_bytes,
    element_buffer_bytes,
    moved_bytes,
    saved_bytes,
    static_memory,
    transient_bytes,
)
from planner.cost.modes import mode_space
from planner.cost.offload import host_share, on_host
from planner.cost.policies import POLICIES, offloads
from planner.cost.precision import recipe_of, zero_levels
from planner.cost.sharding import Degrees
from planner.cost.space import layout_of, micro_batch_sizes, plan_space, refusal
from planner.cost.tables import LayerTable, Reduction, TransferTable
from planner.cost.traffic import StageTraffic, StageWays, best_detour, best_ways
from planner.cost.transfers import Ends, transfer_table
from planner.cost.update import Rings, optimizer_s, reduction
from planner.cost.uplinks import FREE, Detour, Uplinks
from planner.graph.limits import padded_vocabulary

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.compute import ChipRates
    from planner.cost.host_copies import HostCopies
    from planner.cost.layer_time import LayerTimes
    from planner.cost.links import GroupLinks, Hop
    from planner.cost.precision import Recipe
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
        self._recipe = recipe_of(model.training)
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
        self._kinds = kind_arrays(graph, self.policies)
        self.chain: Chain = self._kinds.chain
        self.uplinks: Uplinks | None = None if cluster.topology is None else Uplinks(cluster, cluster.topology)
        self._links: dict[int, GroupLinks] = {}
        self._times: dict[tuple[int, int, int, int, int, bool, Detour], tuple[LayerTimes, LayerTimes]] = {}
        self._least: dict[int, Floats] = {}
        self._numbers: dict[tuple[int, Mode, Setting, StageWays | None], StageNumbers | None] = {}
        self._transfers: dict[tuple[int, int, tuple[int, ...], bool, int, int, int, Detour], TransferTable] = {}
        self._lines: dict[tuple[int, int], bool] = {}
        self._hops: dict[Hop, RingPath] = {}
        self._replica_rings: dict[tuple[tuple[Holder, ...], int, int], RingPath] = {}
        self._reductions: dict[tuple[int, tuple[Holder, ...], Setting, int, Detour], Reduction] = {}

    # --- what the search asks --------------------------------------------------------------------------------------

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        """Numbers of every layer kind; None when the mode is no choice there (`why_not` says why)."""
        numbers = self._numbers_of(group, mode, setting)
        return None if numbers is None else numbers.table

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> Floats | None:
        """(K,) seconds forward and backward that `table` never goes below, and far sooner; None where it is None.

        Uplinks only take away, so they are left out.
        """
        if refusal(self.groups[group], mode, setting, self._model, self._graph) is not None:
            return None
        setting = mode.setting(setting)
        times = self._layer_times(group, setting, self._degrees(mode.tensor, setting), FREE)
        key = id(times)
        if key not in self._least:
            both = times[0] + times[1]
            self._least[key] = both.forward_s + both.backward_input_s + both.backward_weight_s
        return self._least[key]

    def placed_table(self, group: int, mode: Mode, setting: Setting, ways: StageWays) -> LayerTable:
        """The same as `table` for a stage to which the uplinks leave so much, in a mode that is a choice."""
        numbers = self._numbers_of(group, mode, setting, ways)
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
            links = {g: self._links_of(g) for g in (source, target)}
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
        links = {h.group: self._links_of(h.group) for h in holders}
        key = holders, setting.context_parallel, sharing
        if key not in self._replica_rings:
            if len(self._replica_rings) >= _MOST_REDUCTIONS:
                self._replica_rings.clear()
            self._replica_rings[key] = replica_ring(self._cluster, links, *key, self._hops)
        ring = self._replica_rings[key]
        path = limited(RingPath(ring.bytes_per_s / holder.tensor, ring.latency_s), *detour)
        degrees = self._degrees(holder.tensor, setting)
        rings = Rings(path, path, links[holder.group].tied)
        padding = self._padding(holder.tensor)
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
        numbers = self._numbers_of(group, mode, setting, ways)
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
        degrees, always = self._degrees(mode.tensor, setting), self._recipe_in(mode).zero >= 2
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
                *(notice.message for notice in self._left_out),
            ],
        }

    # --- how the numbers are made ----------------------------------------------------------------------------------

    def _links_of(self, group: int) -> GroupLinks:
        if group not in self._links:
            self._links[group] = group_links(self._cluster, group)
        return self._links[group]

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

    def _rates(self, group: int) -> ChipRates:
        return chip_rates(self._cluster.chip_of(group), self._model.training.precision)

    @property
    def _uses_hosts(self) -> bool:
        """Whether anything may be in host memory."""
        return self._model.training.offload_optimizer != "never" or any(map(offloads, self.policies))

    def _recipe_in(self, mode: Mode) -> Recipe:
        """The recipe with the mode's ZeRO level."""
        return self._recipe if mode.zero is None else replace(self._recipe, zero=mode.zero)

    def _degrees(self, tensor: int, setting: Setting) -> Degrees:
        layout = layout_of(tensor, setting, self._graph)
        assert not isinstance(layout, str), layout
        return Degrees(
            tensor=tensor,
            context=setting.context_parallel,
            data=setting.data_parallel,
            sequence_parallel=self._model.training.sequence_parallel,
            expert=layout,
        )

    def _padding(self, tensor: int) -> float:
        """Padded over real vocabulary size; 1 where the graph knows no vocabulary."""
        vocabulary = self._graph.vocabulary
        return padded_vocabulary(vocabulary, tensor) / vocabulary if vocabulary else 1.0

    def _numbers_of(
        self, group: int, mode: Mode, setting: Setting, ways: StageWays | None = None
    ) -> StageNumbers | None:
        key = (group, mode, setting, ways)
        if key not in self._numbers:
            allowed = refusal(self.groups[group], mode, setting, self._model, self._graph) is None
            self._numbers[key] = self._make_numbers(*key) if allowed else None
        return self._numbers[key]

    def _layer_times(
        self, group: int, setting: Setting, degrees: Degrees, detour: Detour
    ) -> tuple[LayerTimes, LayerTimes]:
        """Arithmetic and collectives; equal for settings that differ in what no layer feels."""
        links, tensor = self._links_of(group), degrees.tensor
        slots = self.groups[group].slots_per_node(tensor, setting.context_parallel)
        experts = expert_path(links, slots, degrees)
        size = setting.micro_batch_size
        crosses = experts is not links.inside
        key = (group, tensor, size, setting.context_parallel, setting.expert_parallel, crosses, detour)
        if key not in self._times:
            chip = self._cluster.chip_of(group)
            measured, known = measured_times(self._kinds, chip.name, degrees, size)
            times = measured
            if not wholly_measured(self._graph, chip.name):
                padding = self._padding(tensor)
                roofline = compute_times(self._kinds, self._rates(group), degrees, self._recipe, size, padding)
                times = chosen_times(roofline, measured, known)
            experts = limited(experts, *detour)
            collectives = collective_times(self._kinds, degrees, self._recipe.weight, size, links.inside, experts)
            self._times[key] = (times, collectives)
        return self._times[key]

    def _make_numbers(self, group: int, mode: Mode, setting: Setting, ways: StageWays | None) -> StageNumbers:
        tensor, setting = mode.tensor, mode.setting(setting)
        degrees, recipe, kinds = self._degrees(tensor, setting), self._recipe_in(mode), self._kinds
        size, single, padding = setting.micro_batch_size, setting.single_stage, self._padding(tensor)
        slots = self.groups[group].slots_per_node(tensor, setting.context_parallel)
        ways = best_ways(self.uplinks, group, slots, degrees, mixed=setting.mixed) if ways is None else ways
        rings = self._rings(group, slots, degrees, setting, ways)
        arithmetic, collectives = self._layer_times(group, setting, degrees, ways.all_to_all)
        reduced = reduction(kinds, recipe, degrees, rings, single, padding)
        static = static_memory(kinds, recipe, degrees, single, padding)
        times = arithmetic + collectives
        host = self._host_copies(group, degrees, size, padding, arithmetic)
        table = LayerTable(
            forward_s=times.forward_s + reduced.forward_s,
            backward_input_s=times.backward_input_s + reduced.backward_input_s,
            backward_weight_s=times.backward_weight_s + reduced.backward_weight_s,
            recompute_s=times.recompute_s if host is None else times.recompute_s + host.back_s,
            static_bytes=static.total,
            saved_bytes=saved_bytes(kinds, degrees, recipe.weight, size, padding),
            transient_bytes=transient_bytes(kinds, recipe, degrees, size, padding),
            reduction_s=reduced.reduction_s,
            optimizer_s=optimizer_s(kinds, recipe, degrees, self._rates(group), single, padding),
            fixed_bytes=0.0 if single else boundary_buffers_bytes(kinds, degrees, recipe.weight, size),
            usable_bytes=self._usable_bytes(group),
            fixed_update_s=reduced.fixed_s,
            buffer_bytes=0.0 if single else element_buffer_bytes(kinds, degrees, recipe.weight, size),
            offload=None if host is None else host.offload,
            usable_host_bytes=host_share_bytes(self._cluster.chip_of(group), self._cluster.node_groups[group]),
        )
        if mode.offload:
            static = replace(static, optimizer=0.0 * static.optimizer)
            table = on_host(table, static, host_share(self._cluster, group), (kinds, recipe, degrees, single, padding))
        return StageNumbers(table, static, collectives, times.recompute_s, host)

    def _host_copies(
        self, group: int, degrees: Degrees, size: int, padding: float, arithmetic: LayerTimes
    ) -> HostCopies | None:
        """Copies to and from host memory; None where no policy makes any."""
        if not any(map(offloads, self.policies)):
            return None
        moved = moved_bytes(self._kinds, degrees, self._recipe.weight, size, padding)
        return host_copies(moved, arithmetic, self._cluster.chip_of(group), self._cluster.node_groups[group])

    def _rings(self, group: int, slots: int, degrees: Degrees, setting: Setting, ways: StageWays) -> Rings:
        """Rings of identical replicas; the fastest possible ones where the shapes may be mixed."""
        links = self._links_of(group)
        if not setting.mixed:
            rings = gradient_rings(links, slots, degrees)
            return Rings(limited(rings.dense, *ways.dense), limited(rings.expert, *ways.expert), rings.tied)
        path = least_ring(self._cluster, {group: links}, group, slots, degrees)
        return Rings(path, path, links.tied)

    def _usable_bytes(self, group: int) -> float:
        """What a stage may use on one chip:  reported memory (else nominal) - reserve."""
        chip = self._cluster.chip_of(group)
        memory = chip.reported_memory_bytes or chip.memory_bytes
        assert memory is not None, chip.name
        return float(memory - self._cluster.node_groups[group].reserve_bytes)

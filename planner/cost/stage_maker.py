"""How the numbers of a stage's layers are made: arithmetic, collectives, reductions, memory, copies to the host, each
once, and what the settings have in common shared.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.cost.breakdown import StageNumbers
from planner.cost.communication import limited
from planner.cost.compute import chip_rates
from planner.cost.figures import wholly_measured
from planner.cost.host_copies import host_copies, host_share_bytes
from planner.cost.kinds import kind_arrays
from planner.cost.layer_time import chosen_times, collective_times, compute_times, measured_times
from planner.cost.links import expert_path, gradient_rings, group_links, least_ring
from planner.cost.memory import (
    boundary_buffers_bytes,
    element_buffer_bytes,
    moved_bytes,
    saved_bytes,
    static_memory,
    transient_bytes,
)
from planner.cost.offload import off_chip
from planner.cost.policies import offloads
from planner.cost.precision import recipe_of
from planner.cost.sharding import Degrees
from planner.cost.space import layout_of, refusal
from planner.cost.tables import LayerTable
from planner.cost.traffic import best_ways
from planner.cost.update import Rings, optimizer_s, reduction
from planner.graph.limits import padded_vocabulary

if TYPE_CHECKING:
    from planner.cost.compute import ChipRates
    from planner.cost.host_copies import HostCopies
    from planner.cost.layer_time import LayerTimes
    from planner.cost.links import GroupLinks
    from planner.cost.precision import Recipe
    from planner.cost.tables import ChipGroup, Mode, Setting
    from planner.cost.traffic import StageWays
    from planner.cost.uplinks import Detour, Uplinks
    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec

__all__ = ["StageMaker"]


class StageMaker:
    """The numbers of stages on a cluster's node groups, by group, mode and setting.

    groups: with the degrees that are possible.  policies: of recompute, in the order of `POLICIES`.
    """

    def __init__(
        self,
        cluster: Cluster,
        model: ModelSpec,
        graph: LayerGraph,
        groups: tuple[ChipGroup, ...],
        policies: tuple[str, ...],
        uplinks: Uplinks | None,
    ) -> None:
        self._cluster, self._model, self._graph = cluster, model, graph
        self._groups, self._policies, self._uplinks = groups, policies, uplinks
        self.recipe = recipe_of(model.training)
        self.kinds = kind_arrays(graph, policies)
        self._links: dict[int, GroupLinks] = {}
        self._times: dict[tuple[int, int, int, int, int, bool, Detour], tuple[LayerTimes, LayerTimes]] = {}
        self._numbers: dict[tuple[int, Mode, Setting, StageWays | None], StageNumbers | None] = {}

    def numbers(self, group: int, mode: Mode, setting: Setting, ways: StageWays | None = None) -> StageNumbers | None:
        """None when the mode is no choice there.  ways: what uplinks leave; None: at the best places that there are."""
        key = (group, mode, setting, ways)
        if key not in self._numbers:
            allowed = refusal(self._groups[group], mode, setting, self._model, self._graph) is None
            self._numbers[key] = self._make_numbers(*key) if allowed else None
        return self._numbers[key]

    def links_of(self, group: int) -> GroupLinks:
        """The links inside a group."""
        if group not in self._links:
            self._links[group] = group_links(self._cluster, group)
        return self._links[group]

    def recipe_in(self, mode: Mode) -> Recipe:
        """The recipe with the mode's ZeRO level."""
        return self.recipe if mode.zero is None else replace(self.recipe, zero=mode.zero)

    def degrees(self, tensor: int, setting: Setting) -> Degrees:
        """What layers are divided by."""
        layout = layout_of(tensor, setting, self._graph)
        assert not isinstance(layout, str), layout
        return Degrees(
            tensor=tensor,
            context=setting.context_parallel,
            data=setting.data_parallel,
            sequence_parallel=self._model.training.sequence_parallel,
            expert=layout,
        )

    def padding(self, tensor: int) -> float:
        """Padded over real vocabulary size; 1 where the graph knows no vocabulary."""
        vocabulary = self._graph.vocabulary
        return padded_vocabulary(vocabulary, tensor) / vocabulary if vocabulary else 1.0

    def layer_times(
        self, group: int, setting: Setting, degrees: Degrees, detour: Detour
    ) -> tuple[LayerTimes, LayerTimes]:
        """Arithmetic and collectives; equal for settings that differ in what no layer feels."""
        links, tensor = self.links_of(group), degrees.tensor
        slots = self._groups[group].slots_per_node(tensor, setting.context_parallel)
        experts = expert_path(links, slots, degrees)
        size = setting.micro_batch_size
        crosses = experts is not links.inside
        key = (group, tensor, size, setting.context_parallel, setting.expert_parallel, crosses, detour)
        if key not in self._times:
            chip = self._cluster.chip_of(group)
            measured, known = measured_times(self.kinds, chip.name, degrees, size)
            times = measured
            if not wholly_measured(self._graph, chip.name):
                padding = self.padding(tensor)
                roofline = compute_times(self.kinds, self._rates(group), degrees, self.recipe, size, padding)
                times = chosen_times(roofline, measured, known)
            experts = limited(experts, *detour)
            collectives = collective_times(self.kinds, degrees, self.recipe.weight, size, links.inside, experts)
            self._times[key] = (times, collectives)
        return self._times[key]

    def _make_numbers(self, group: int, mode: Mode, setting: Setting, ways: StageWays | None) -> StageNumbers:
        tensor, setting = mode.tensor, mode.setting(setting)
        degrees, recipe, kinds = self.degrees(tensor, setting), self.recipe_in(mode), self.kinds
        size, single, padding = setting.micro_batch_size, setting.single_stage, self.padding(tensor)
        slots = self._groups[group].slots_per_node(tensor, setting.context_parallel)
        ways = best_ways(self._uplinks, group, slots, degrees, mixed=setting.mixed) if ways is None else ways
        rings = self._rings(group, slots, degrees, setting, ways)
        arithmetic, collectives = self.layer_times(group, setting, degrees, ways.all_to_all)
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
            held = kinds, recipe, degrees, single, padding
            table = off_chip(table, static, mode.offload, self._cluster, group, held)
        return StageNumbers(table, static, collectives, times.recompute_s, host)

    def _host_copies(
        self, group: int, degrees: Degrees, size: int, padding: float, arithmetic: LayerTimes
    ) -> HostCopies | None:
        """Copies to and from host memory; None where no policy makes any."""
        if not any(map(offloads, self._policies)):
            return None
        moved = moved_bytes(self.kinds, degrees, self.recipe.weight, size, padding)
        return host_copies(moved, arithmetic, self._cluster.chip_of(group), self._cluster.node_groups[group])

    def _rings(self, group: int, slots: int, degrees: Degrees, setting: Setting, ways: StageWays) -> Rings:
        """Rings of identical replicas; the fastest possible ones where the shapes may be mixed."""
        links = self.links_of(group)
        if not setting.mixed:
            rings = gradient_rings(links, slots, degrees)
            return Rings(limited(rings.dense, *ways.dense), limited(rings.expert, *ways.expert), rings.tied)
        path = least_ring(self._cluster, {group: links}, group, slots, degrees)
        return Rings(path, path, links.tied)

    def _rates(self, group: int) -> ChipRates:
        return chip_rates(self._cluster.chip_of(group), self._model.training.precision)

    def _usable_bytes(self, group: int) -> float:
        """What a stage may use on one chip:  reported memory (else nominal) - reserve."""
        chip = self._cluster.chip_of(group)
        memory = chip.reported_memory_bytes or chip.memory_bytes
        assert memory is not None, chip.name
        return float(memory - self._cluster.node_groups[group].reserve_bytes)

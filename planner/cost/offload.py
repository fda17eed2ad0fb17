"""Optimizer states off the chip: who may keep them where, what host and drives hold, how long an update takes.

The chip keeps weights and gradients. After the last micro-batch and its reduction a chip copies its gradients to the
host, the optimizer runs there on its states and master weights, and the new weights come back: the three steps of
Megatron-LM's `--optimizer-cpu-offload` (megatron/core/optimizer/cpu_offloading/README.md), without the overlap that it
offers. In ZeRO-Offload (Ren et al., arXiv 2101.06840) the optimizer runs on the host likewise, but gradients go there
while the backward pass makes them; here they are summed over micro-batches on the chip and copied once.

The optimizer touches each state once, so the host's memory bandwidth bounds it (an assumption: a host whose cores
cannot keep up is slower). All chips of a node update at once and share memory and its bandwidth evenly.

On drives lies what host memory would hold, gradients included, in fp32, as DeepSpeed's swapper has it (ZeRO-Infinity,
Rajbhandari et al., arXiv 2104.07857; deepspeed/runtime/swap_tensor/optimizer_utils.py and its callers in
runtime/zero/stage3.py): gradients are written in the last backward pass, and the step reads a tile's states and
gradients, updates it, and writes the states. Each byte is read once and written once. Nothing overlaps: DeepSpeed's
`pipeline_read` and `pipeline_write` are off unless asked for, and drives that read and write at once do both slower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.cost.host_copies import copy_rate, host_share_bytes
from planner.cost.kinds import SHARDINGS
from planner.cost.memory import held_parameters, weight_classes
from planner.cost.policies import offloads
from planner.cost.tiers import Tier, tiers_asked
from planner.errors import Notice, Problem
from planner.spec.cluster import DEFAULT_HOST_STAGING_BYTES_PER_S
from planner.spec.printing import format_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.kinds import KindArrays
    from planner.cost.memory import StaticMemory
    from planner.cost.precision import Recipe, WeightClass
    from planner.cost.sharding import Degrees
    from planner.cost.tables import LayerTable
    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec, NodeGroup

    Floats = NDArray[np.float64]

__all__ = ["TILES_IN_HOST_MEMORY", "DriveShare", "drive_share", "host_share", "off_chip", "offload_choices"]

TILES_IN_HOST_MEMORY = 2
"""Buffers for states on drives, each the size of a tile: one in the optimizer's hands, one on its way. A tile is what
the largest layer of the model has on one chip: DeepSpeed's sub-groups hold whole parameters (`sub_group_size`), and its
`buffer_count` of 4 is one such tile of AdamW: master weight, gradient, two moments."""


@dataclass(frozen=True)
class HostShare:
    """What the host of a node gives to each of its chips.

    copy_bytes_per_s: between chip and host, one direction (`copy_rate`).
    memory_bytes_per_s, usable_bytes: of host memory.
    """

    copy_bytes_per_s: float
    memory_bytes_per_s: float
    usable_bytes: float


def host_share(cluster: Cluster, group: int) -> HostShare:
    """A chip's share of its host:  memory and bandwidth / chips of a node."""
    node, chip = cluster.node_groups[group], cluster.chip_of(group)
    assert node.host_memory_bytes is not None and node.host_memory_bandwidth_bytes_per_s is not None
    memory = node.host_memory_bandwidth_bytes_per_s / node.chips_per_node
    return HostShare(copy_rate(chip, node), memory, host_share_bytes(chip, node))


@dataclass(frozen=True)
class DriveShare:
    """What the drives of a node give to each of its chips: bytes, and bytes/s while the other direction rests."""

    usable_bytes: float
    read_bytes_per_s: float
    write_bytes_per_s: float


def drive_share(cluster: Cluster, group: int) -> DriveShare:
    """A chip's share of the node's drives:  capacity and rates / chips of a node.

    What is read and written passes through host memory: at most the chip's share of that bandwidth.
    """
    node = cluster.node_groups[group]
    assert node.nvme is not None and node.host_memory_bandwidth_bytes_per_s is not None
    chips, memory = node.chips_per_node, node.host_memory_bandwidth_bytes_per_s
    rates = (min(rate, memory) / chips for rate in (node.nvme.read_bytes_per_s, node.nvme.write_bytes_per_s))
    return DriveShare(node.nvme.capacity_bytes / chips, *rates)


def offload_choices(
    cluster: Cluster, model: ModelSpec, graph: LayerGraph, group: int, notices: list[Notice], problems: list[Problem]
) -> tuple[Tier, ...]:
    """Where a node group may keep optimizer states, nearest first: what the model file asks for and the group has."""
    asked = tiers_asked(model.training)
    if asked == (Tier.CHIP,):
        return asked
    node, reason = cluster.node_groups[group], _obstacle(cluster, model, graph, group)
    possible = tuple(tier for tier in asked if tier is Tier.CHIP or (reason is None and _has(node, tier)))
    reason = reason or "the group does not say its nvme"
    if not possible:
        what = f"optimizer states cannot be offloaded on node group {node.name!r}"
        fix = "allow chips to keep them (`allowed`, or `none` in a list), or leave the group idle"
        problems.append(Problem(what, reason, fix, path="training.offload_optimizer"))
        return ()
    if possible == (Tier.CHIP,):
        message = f"node group {node.name!r} keeps its optimizer states on the chips: {reason}"
        notices.append(Notice("offload_optimizer", message))
        return possible
    _warn_of_copies(cluster, model, group, notices)
    return possible


def _has(node: NodeGroup, tier: Tier) -> bool:
    """Whether a group whose host is known has a tier."""
    return tier is Tier.HOST or node.nvme is not None


def _warn_of_copies(cluster: Cluster, model: ModelSpec, group: int, notices: list[Notice]) -> None:
    """What is assumed of a chip's link to its host."""
    node, chip = cluster.node_groups[group], cluster.chip_of(group)
    if chip.host_staging_bytes_per_s is None:
        rate = format_rate(DEFAULT_HOST_STAGING_BYTES_PER_S)
        message = f"{chip.name} has no host_staging; offloaded states are copied at {rate}, which errs on the slow side"
        notices.append(Notice("host_staging", message))
    said = any(map(offloads, model.training.recompute))  # `offload_notices` does
    if chip.chips_per_host_link is None and node.chips_per_node > 1 and not said:
        message = f"chips_per_host_link of {chip.name} is not known; each chip is taken to have a host link alone"
        notices.append(Notice("host_link", message))


def _obstacle(cluster: Cluster, model: ModelSpec, graph: LayerGraph, group: int) -> str | None:
    """Why a group's chips have to keep their optimizer states: the host updates them, wherever else they are."""
    node, chip = cluster.node_groups[group], cluster.chip_of(group)
    if not graph.is_chain:
        return "the layers of this model branch"
    if model.training.optimizer == "muon":
        return "Muon's matrix products take arithmetic that no figure of the host gives"
    if chip.unified_memory:
        return f"{chip.name} shares its memory with the host"
    figures = {"host_memory": node.host_memory_bytes, "host_memory_bandwidth": node.host_memory_bandwidth_bytes_per_s}
    missing = [name for name, figure in figures.items() if figure is None]
    return f"the group does not say its {' and '.join(missing)}" if missing else None


_Held = tuple["KindArrays", "Recipe", "Degrees", bool, float]
"""What a chip holds: kinds, recipe, degrees, single_stage, padding (see `held_parameters`)."""


def off_chip(
    table: LayerTable, static: StaticMemory, tier: Tier, cluster: Cluster, group: int, held: _Held
) -> LayerTable:
    """The table of a stage whose optimizer states are in host memory or on drives. static: what stays on the chip.

    optimizer_s:  gradients to the host, the optimizer there, weights back:
    copied / copy rate + bytes touched / the chip's share of the host's memory bandwidth
    on drives beside that:  kept / share of the drives' read rate + kept / share of their write rate
    host_bytes, or nvme_bytes: what is kept for the update.
    host_fixed_bytes with drives:  TILES_IN_HOST_MEMORY * most that a layer of the model keeps
    """
    recipe, host = held[1], host_share(cluster, group)

    def seconds(weight_class: WeightClass, replicas: int) -> float:
        copied, touched = recipe.copied_bytes(replicas), recipe.update_traffic(weight_class, replicas)
        return copied / host.copy_bytes_per_s + touched / host.memory_bytes_per_s

    update = _of_trained(held, seconds)
    table = replace(table, static_bytes=static.total, usable_host_bytes=host.usable_bytes)
    if tier is Tier.HOST:
        return replace(table, optimizer_s=update, host_bytes=_of_trained(held, recipe.host_bytes))
    drives, kept = drive_share(cluster, group), _of_trained(held, recipe.drive_bytes)
    return replace(
        table,
        optimizer_s=update + kept / drives.read_bytes_per_s + kept / drives.write_bytes_per_s,
        host_fixed_bytes=TILES_IN_HOST_MEMORY * float(kept.max(initial=0.0)),
        nvme_bytes=kept,
        usable_nvme_bytes=drives.usable_bytes,
    )


def _of_trained(held: _Held, per_parameter: Callable[[WeightClass, int], float]) -> Floats:
    """(K,) sums over the trained parameters on a chip of what one takes, by its class and its weight's replicas."""
    import numpy as np

    kinds, _, degrees, single_stage, padding = held
    rows = kinds.weights
    parameters = held_parameters(kinds, degrees, single_stage, padding) * rows.trained
    each = [
        per_parameter(weight_class, degrees.weight_replicas(SHARDINGS[sharding]))
        for weight_class, sharding in zip(weight_classes(rows), rows.sharding, strict=True)
    ]
    return kinds.per_kind(rows.kind, parameters * np.array(each))

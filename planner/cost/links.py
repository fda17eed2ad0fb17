"""Achievable rates of a cluster's links: inside a node, between nodes of a group, between groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.communication import RingPath, StageLink, ring_path, staged_rate
from planner.cost.compute import INTRA_NODE_EFFICIENCY, NETWORK_EFFICIENCY
from planner.cost.update import Rings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.cost.sharding import Degrees
    from planner.cost.tables import Holder
    from planner.spec import Chip, Cluster

__all__ = [
    "GroupLinks",
    "Hop",
    "expert_path",
    "gradient_rings",
    "group_links",
    "least_ring",
    "line_bytes_per_s",
    "link_between",
    "link_inside",
    "network_efficiency",
    "replica_ring",
    "shared_ring",
]


@dataclass(frozen=True)
class GroupLinks:
    """Links of one node group, per chip and direction.

    inside: collectives in a node.  inside_link: one pair of chips of a node.  across: between two nodes, through a
    chip's own NIC.  tied: between two stages that hold the same matrix.
    """

    inside: RingPath
    inside_link: RingPath
    across: RingPath
    tied: RingPath


def network_efficiency(chip: Chip) -> float:
    """Achieved over nominal rate of a chip's NIC: the profile's, else NETWORK_EFFICIENCY."""
    known = None if chip.efficiency is None else chip.efficiency.network
    return NETWORK_EFFICIENCY if known is None else known


def group_links(cluster: Cluster, group: int) -> GroupLinks:
    """Links of a group.

    inside:  link * chip.efficiency.intra_node; else the measured all-reduce bus bandwidth (unless the group has
             another link than the profile); else link * INTRA_NODE_EFFICIENCY.
    across:  the slower of the chip's NIC and the group's node-to-node link, * network efficiency; staged through host
             memory if the link says so.
    tied:    `inside` in a cluster of one node, else `across`.
    A group of one-chip nodes has no link inside; its figures are then those of the network and are never used.
    """
    node_group, chip = cluster.node_groups[group], cluster.chip_of(group)
    across = _across(cluster, group)
    link = node_group.intra_node
    if link is None:
        return GroupLinks(across, across, across, across)
    stated = None if chip.efficiency is None else chip.efficiency.intra_node
    share = INTRA_NODE_EFFICIENCY if stated is None else stated
    one_pair = RingPath(link.bandwidth_bytes_per_s * share, link.latency_s)
    inside = one_pair
    if stated is None and chip.measured is not None and link == chip.intra_node:
        inside = RingPath(chip.measured.allreduce_bytes_per_s or one_pair.bytes_per_s, link.latency_s)
    one_node = len(cluster.node_groups) == 1 and node_group.nodes == 1
    return GroupLinks(inside, one_pair, across, inside if one_node else across)


def _across(cluster: Cluster, group: int) -> RingPath:
    """From a chip to another node of its group.

    In a group of one node (which asks for tied matrices only): through its NIC, or without one along the slowest link
    to another group. Unlimited in a cluster of one node, which never asks.
    """
    node_group = cluster.node_groups[group]
    nic, efficiency = node_group.reached_nic, network_efficiency(cluster.chip_of(group))
    if node_group.nodes > 1:
        return _way(cluster, group, group, efficiency)
    if nic is not None:
        return RingPath(nic.bandwidth_bytes_per_s * efficiency, nic.latency_s)
    ways = [_way(cluster, group, other, efficiency) for other in range(len(cluster.node_groups)) if other != group]
    return min(ways, key=lambda way: way.bytes_per_s, default=RingPath(float("inf"), 0.0))


def _way(cluster: Cluster, source: int, target: int, efficiency: float) -> RingPath:
    """One chip's rate along a link, bounded by its own NIC and the whole line.

    Staged through host memory if the link says so.
    """
    path, nic = cluster.path(source, target), cluster.node_groups[source].reached_nic
    known = (path.bandwidth_bytes_per_s, path.total_bytes_per_s, None if nic is None else nic.bandwidth_bytes_per_s)
    nominal = min(rate for rate in known if rate is not None)
    staging = path.staging_bytes_per_s if path.transport == "host" else None
    return RingPath(staged_rate(nominal * efficiency, staging), path.latency_s)


def gradient_rings(links: GroupLinks, slots_per_node: int, degrees: Degrees) -> Rings:
    """The slowest hops of a stage's gradient rings: one ring a tensor parallel chip, and one a shard of the experts."""
    width = degrees.tensor * degrees.context
    dense = ring_path(links.inside, links.across, slots_per_node, degrees.data, width, degrees.tensor)
    expert = ring_path(links.inside, links.across, slots_per_node, degrees.data, width, degrees.expert.shards)
    return Rings(dense, expert, links.tied)


def shared_ring(
    cluster: Cluster, links: Mapping[int, GroupLinks], holders: Sequence[Holder], own: int, context: int, sharing: int
) -> RingPath:
    """The ring of layers that stages of several shapes hold, as one tensor parallel chip of `holders[own]` sees it:
    its share of `replica_ring`.
    """
    ring = replica_ring(cluster, links, holders, context, sharing)
    return RingPath(ring.bytes_per_s / holders[own].tensor, ring.latency_s)


def replica_ring(
    cluster: Cluster,
    links: Mapping[int, GroupLinks],
    holders: Sequence[Holder],
    context: int,
    sharing: int,
    known: dict[Hop, RingPath] | None = None,
) -> RingPath:
    """The ring of layers that stages of several shapes hold, as a whole replica carries it.

    All replicas form one ring, group by group in the order of the cluster. A replica of t chips has t rings, and
    carries the whole layer at t times the rate of its slowest hop; the slowest replica decides for all:

        rate of an own chip = min over holders h of (t_h * rate_h) / t_own

    sharing: stages of a pipeline, whose rings use a line of limited total at the same time.
    known: hops of the same cluster and links, from earlier calls; new ones are added.
    """
    known = {} if known is None else known
    hops = []
    for holder in holders:
        hop = Hop(holder.group, holder.tensor, holder.per_node, _ends(holders, holder), context, sharing)
        if hop not in known:
            known[hop] = _slowest_hop(cluster, links, hop)
        hops.append(known[hop])
    replica = min(h.tensor * hop.bytes_per_s for h, hop in zip(holders, hops, strict=True))
    return RingPath(replica, max(hop.latency_s for hop in hops))


class Hop(NamedTuple):
    """What the slowest hop of one holder depends on.

    per_node: the least number of its replicas in a node.  ends: groups that its part of the ring is joined with, its
    own where it leaves a node inside the group.  context, sharing: as in `replica_ring`.
    """

    group: int
    tensor: int
    per_node: int
    ends: tuple[int, ...]
    context: int
    sharing: int


def _ends(holders: Sequence[Holder], holder: Holder) -> tuple[int, ...]:
    """The groups before and after a holder's in the ring, and its own when its replicas, or others there, are in
    several nodes.
    """
    group = holder.group
    groups = sorted({h.group for h in holders})
    others = [h for h in holders if h.group == group and h is not holder]
    ends = {groups[(groups.index(group) + step) % len(groups)] for step in (1, -1)} - {group}
    if holder.nodes > 1 or any(h.nodes > 1 or h.node != holder.node for h in others):
        ends.add(group)
    return tuple(sorted(ends))


def _slowest_hop(cluster: Cluster, links: Mapping[int, GroupLinks], hop: Hop) -> RingPath:
    """A chip's slowest hop in the part of the ring that one holder makes up.

    Inside, when nothing leaves the node; else as `ring_path`, with the holder's own counts, across its group's nodes
    and to the groups before and after it in the ring:

        rate = min(inside, replicas in a node * c * slowest way, line / (t * sharing))
    """
    group = hop.group
    if not hop.ends:
        return links[group].inside
    efficiency, inside = network_efficiency(cluster.chip_of(group)), _inside(cluster, links, group)
    ways = [_way(cluster, group, other, efficiency) for other in hop.ends]
    line = min(line_bytes_per_s(cluster, group, other) for other in hop.ends)
    rate = min(hop.per_node * hop.context * min(way.bytes_per_s for way in ways), line / (hop.tensor * hop.sharing))
    return RingPath(min(inside.bytes_per_s, rate), max(inside.latency_s, *(way.latency_s for way in ways)))


def _inside(cluster: Cluster, links: Mapping[int, GroupLinks], group: int) -> RingPath:
    """What bounds a ring inside a node; nothing does in a node of one chip."""
    return RingPath(float("inf"), 0.0) if cluster.node_groups[group].intra_node is None else links[group].inside


def least_ring(
    cluster: Cluster, links: Mapping[int, GroupLinks], group: int, slots_per_node: int, degrees: Degrees
) -> RingPath:
    """At least as fast as the ring of any stage of the group in any mix with R = degrees.data replicas in all: the
    better of two cases.

    In one node: its n chips hold t c chips of this stage and t' c of each other replica, the least of which decides:
        rate = inside * t' / t,   t' = floor((n / c - t) / (R - 1)), at most t
    In several: as many replicas in each as it holds, and the best way to other nodes and groups:
        rate = min(inside, min(R - 1, slots) * c * best way)
    """
    inside = links[group].inside
    if degrees.data <= slots_per_node:
        return inside
    node_group, tensor = cluster.node_groups[group], degrees.tensor
    narrowest = (node_group.chips_per_node // degrees.context - tensor) // (degrees.data - 1)
    cases = []
    if narrowest >= 1:
        cases.append(RingPath(inside.bytes_per_s * min(1.0, narrowest / tensor), inside.latency_s))
    efficiency, within = network_efficiency(cluster.chip_of(group)), _inside(cluster, links, group)
    ends = [g for g, other in enumerate(cluster.node_groups) if g != group or other.nodes > 1]
    if ends:
        ways = [_way(cluster, group, other, efficiency) for other in ends]
        nics = min(degrees.data - 1, slots_per_node) * degrees.context
        rate = min(within.bytes_per_s, nics * max(way.bytes_per_s for way in ways))
        cases.append(RingPath(rate, max(within.latency_s, min(way.latency_s for way in ways))))
    if not cases:
        return inside
    return RingPath(max(case.bytes_per_s for case in cases), min(case.latency_s for case in cases))


def expert_path(links: GroupLinks, slots_per_node: int, degrees: Degrees) -> RingPath:
    """What each chip of an all-to-all has: the link inside when its chips always share a node, else its own NIC.

    A set of e chips with all experts (e x t when experts are divided over the tensor group) spans `span` neighbouring
    slots. It never leaves a node when span is 1, when the whole stage sits in one node, or when span divides both the
    slots of a node and the replicas.
    """
    layout = degrees.expert
    chips = layout.all_to_all if layout.tensor == 1 else layout.all_to_all * degrees.tensor
    span = -(-chips // (degrees.tensor * degrees.context))
    whole_stage = degrees.data <= slots_per_node and slots_per_node % degrees.data == 0
    if span == 1 or whole_stage or (slots_per_node % span == 0 and degrees.data % span == 0):
        return links.inside
    return RingPath(
        min(links.inside.bytes_per_s, links.across.bytes_per_s), max(links.inside.latency_s, links.across.latency_s)
    )


def line_bytes_per_s(cluster: Cluster, source: int, target: int) -> float:
    """Achievable rate of the line between two groups, each way and for all pairs of chips together.

    total * the lower network efficiency of the two chips; unlimited where the cluster file states no total.
    """
    total = cluster.path(source, target).total_bytes_per_s
    efficiency = min(network_efficiency(cluster.chip_of(group)) for group in (source, target))
    return float("inf") if total is None else total * efficiency


def link_between(cluster: Cluster, source: int, target: int, data: int = 1) -> StageLink:
    """The way between stages on two nodes (of two groups, or of one); `data` replicas share the line."""
    path = cluster.path(source, target)
    efficiency = [network_efficiency(cluster.chip_of(g)) for g in (source, target)]
    nics = [
        float("inf") if nic is None else nic.bandwidth_bytes_per_s * share
        for nic, share in zip((cluster.node_groups[g].reached_nic for g in (source, target)), efficiency, strict=True)
    ]
    staging = None
    if path.transport == "host":
        assert path.staging_bytes_per_s is not None, (source, target)
        staging = (path.staging_bytes_per_s, path.staging_bytes_per_s)
    replica = line_bytes_per_s(cluster, source, target) / data
    return StageLink(path.bandwidth_bytes_per_s * min(efficiency), path.latency_s, nics[0], nics[1], staging, replica)


def link_inside(links: GroupLinks) -> StageLink:
    """The way between two stages of one node."""
    inside = links.inside_link
    return StageLink(inside.bytes_per_s, inside.latency_s, inside.bytes_per_s, inside.bytes_per_s)

"""The switches above the nodes as a tree: which uplinks a way takes, what they carry, what no place beats.

A way between two nodes climbs from the switch of the one to the lowest switch that both hang below, and down again:
its uplinks are those above one of the two nodes but not above both.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.links import network_efficiency

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from planner.spec import Cluster
    from planner.spec.topology import Topology

__all__ = ["CORE", "FREE", "Detour", "Uplinks"]

CORE = -1
"""What the topmost switches hang at; it limits nothing."""


class Detour(NamedTuple):
    """What uplinks leave of a way, and what they add to it."""

    bytes_per_s: float = float("inf")
    latency_s: float = 0.0


FREE = Detour()
"""No uplink on the way."""


class Uplinks:
    """The uplinks of a cluster with a topology; an uplink has the index of the switch below it.

    homes[g][n]: the switch that node n of group g hangs at, CORE for none.  rate: achievable bytes a second each way,
    nominal * the lowest network efficiency of the chips below.  latency: seconds.  order: of a walk that finishes a
    switch with all below it before the next one.
    """

    def __init__(self, cluster: Cluster, topology: Topology) -> None:
        import networkx as nx

        switches = topology.switches
        self.names = tuple(switch.name for switch in switches)
        self.homes = tuple(topology.homes(group.name, group.nodes) for group in cluster.node_groups)
        tree: nx.DiGraph[int] = nx.DiGraph()
        tree.add_node(CORE)
        tree.add_edges_from((CORE if s.parent is None else s.parent, i) for i, s in enumerate(switches))
        ways = nx.single_source_shortest_path(tree, CORE)
        self._chains = {switch: frozenset(way) - {CORE} for switch, way in ways.items()}
        self._below = {switch: tuple(tree.successors(switch)) for switch in tree}
        self.order = {switch: place for place, switch in enumerate(nx.dfs_preorder_nodes(tree, CORE))}
        self.nodes_below = tuple(self._count_below(homes) for homes in self.homes)
        self.latency = tuple(switch.latency_s for switch in switches)
        self.rate = tuple(
            switch.uplink_bytes_per_s * self._efficiency(cluster, index) for index, switch in enumerate(switches)
        )
        self._ways: dict[tuple[int, int], frozenset[int]] = {}
        self._added: dict[tuple[int, int], float] = {}
        self._best: dict[tuple[int, int], float] = {}
        self._leaving: dict[tuple[int, int], float] = {}

    def _count_below(self, homes: Sequence[int]) -> Counter[int]:
        """Nodes of a group under every switch, and all of them under CORE."""
        counts: Counter[int] = Counter()
        for home, nodes in Counter(homes).items():
            for switch in (CORE, *self._chains[home]):
                counts[switch] += nodes
        return counts

    def _efficiency(self, cluster: Cluster, switch: int) -> float:
        below = [g for g, counts in enumerate(self.nodes_below) if counts[switch]]
        return min((network_efficiency(cluster.chip_of(g)) for g in below), default=1.0)

    def above(self, switch: int) -> frozenset[int]:
        """Uplinks between a switch and the core, its own included."""
        return self._chains[switch]

    def between(self, a: int, b: int) -> frozenset[int]:
        """Uplinks on the way from a node at switch `a` to one at switch `b`."""
        if (a, b) not in self._ways:
            self._ways[a, b] = self._chains[a] ^ self._chains[b]
        return self._ways[a, b]

    def added_latency_s(self, a: int, b: int) -> float:
        """What the uplinks between two switches add."""
        if (a, b) not in self._added:
            self._added[a, b] = sum(self.latency[uplink] for uplink in sorted(self.between(a, b)))
        return self._added[a, b]

    def ring_latency_s(self, switches: Iterable[int]) -> float:
        """What the slowest hop of a ring adds that takes its nodes switch by switch, in the order of the tree."""
        stops = sorted(set(switches), key=self.order.__getitem__)
        hops = zip(stops, (*stops[1:], *stops[:1]), strict=True)
        return max((self.added_latency_s(a, b) for a, b in hops), default=0.0)

    # --- what no placement beats -----------------------------------------------------------------------------------

    def best_ring_bytes_per_s(self, group: int, nodes: int) -> float:
        """What the slowest uplink of a ring over so many nodes of a group carries at most, wherever they are.

        With w the lowest switch above all of them, the ring takes the uplinks of at least two switches right below w
        (nodes at w itself have none); those with the fastest uplinks that together have the nodes bound it:
            max over w of   min over the fewest fastest children of w with enough nodes   of rate
        """
        key = (group, nodes)
        if key not in self._best:
            counts = self.nodes_below[group]
            wide = [w for w, count in counts.items() if count >= nodes]
            self._best[key] = max((self._best_under(group, w, nodes) for w in wide), default=float("inf"))
        return self._best[key]

    def _best_under(self, group: int, w: int, nodes: int) -> float:
        counts = self.nodes_below[group]
        below = [(self.rate[child], counts[child]) for child in self._below[w] if counts[child]]
        held = counts[w] - sum(count for _, count in below)
        slowest = float("inf")
        for rate, count in sorted(below, reverse=True):
            if held >= nodes:
                break
            held, slowest = held + count, rate
        return slowest

    def best_transfer_bytes_per_s(self, source: int, target: int, ways: int) -> float:
        """What the slowest of so many ways at once between two groups gets at most, wherever their ends are.

        All ways out of a group leave through the topmost switches that have nodes of it and none of the other:
            sum of their rates / ways,   for both groups; unlimited where a node of the group hangs at no such switch
        """
        out = min(self._most_leaving(source, target), self._most_leaving(target, source))
        return out / ways

    def _most_leaving(self, group: int, other: int) -> float:
        key = (group, other)
        if key not in self._leaving:
            tops = {self._alone(home, other) for home in set(self.homes[group])}
            self._leaving[key] = float("inf") if CORE in tops else sum(self.rate[top] for top in tops)
        return self._leaving[key]

    def _alone(self, switch: int, other: int) -> int:
        """The topmost switch on the way to the core that has no node of the other group below; CORE: none."""
        alone = [s for s in self._chains[switch] if not self.nodes_below[other][s]]
        return min(alone, key=self.order.__getitem__, default=CORE)

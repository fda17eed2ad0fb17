"""From the switches of a cluster file to a topology: repetitions written out, nodes handed out, every mistake named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.spec.suggest import did_you_mean
from planner.spec.topology import MAX_NODES, MAX_SWITCHES, NodeRange, Switch, SwitchEntry, Topology

if TYPE_CHECKING:
    from planner.spec.cluster import NodeGroup
    from planner.spec.reading import Collector

__all__ = ["read_topology"]

_Path = tuple[str | int, ...]
_DEEPEST = 8


def read_topology(
    collector: Collector, entries: Sequence[SwitchEntry], names: Sequence[str], groups: Sequence[NodeGroup]
) -> Topology | None:
    """The topology of a cluster; None without one. names: of all node groups; groups: those that are in order."""
    reader = _Reader(collector, tuple(names), {group.name: group for group in groups})
    for path, entry, copies in reader.walk(entries, ("topology",), 1, 1):
        reader.check(path, entry, copies)
    if not entries or reader.wrong:
        return None
    for entry in entries:
        reader.expand(entry, None, "")
    reader.check_all_placed()
    return Topology(switches=tuple(switch for switch in reader.switches if switch is not None))


@dataclass
class _Reader:
    collector: Collector
    names: tuple[str, ...]
    groups: dict[str, NodeGroup]
    switches: list[Switch | None] = field(default_factory=list)
    wrong: bool = False
    _total: int = 0
    _counted: dict[str, int] = field(default_factory=dict)
    """Nodes that counts take, by group."""
    _named: dict[str, set[int]] = field(default_factory=dict)
    """Nodes that ranges name, by group."""
    _next: dict[str, int] = field(default_factory=dict)
    _last_place: dict[str, _Path] = field(default_factory=dict)

    def add(self, path: _Path, what: str, why: str, fix: str, *, key: bool = False) -> None:
        self.wrong = True
        self.collector.add(path, what, why, fix, key=key)

    def walk(
        self, entries: Sequence[SwitchEntry], here: _Path, above: int, depth: int
    ) -> Iterator[tuple[_Path, SwitchEntry, int]]:
        """Every entry with its place and how often it occurs; those above first."""
        seen: dict[str, int] = {}
        for index, entry in enumerate(entries):
            path = (*here, index)
            if entry.name in seen:
                line = self.collector.document.locate((*here, seen[entry.name], "name")).line
                what = f"switch name {entry.name!r} is given twice"
                self.add((*path, "name"), what, f"first on line {line}", "rename one of them")
            seen.setdefault(entry.name, index)
            copies = min(above * entry.count, MAX_SWITCHES + 1)
            self._total += copies
            if self._total > MAX_SWITCHES:
                what, why = "has too many switches", f"at most {MAX_SWITCHES:,} are read, repetitions counted"
                self.add(path, what, why, "leave the lowest level out")
                return
            yield path, entry, copies
            if depth >= _DEEPEST and entry.switches:
                self.add((*path, "switches"), "is nested too deeply", f"at most {_DEEPEST} levels are read", "")
                continue
            yield from self.walk(entry.switches, (*path, "switches"), copies, depth + 1)

    def check(self, path: _Path, entry: SwitchEntry, copies: int) -> None:
        if (entry.uplink_bytes_per_s is None) == (entry.oversubscription is None):
            both = entry.uplink_bytes_per_s is not None
            what = "has an uplink and an oversubscription" if both else "has no uplink"
            why = "one follows from the other" if both else "what its nodes share would be a guess"
            fix = (
                "remove one"
                if both
                else "add `uplink: 1.6 Tbps` (each direction, all chips below) or `oversubscription: 4`"
            )
            self.add(path, what, why, fix)
        if not entry.nodes and not entry.switches:
            self.add(path, "holds nothing", "", "add `nodes: {GROUP: 4}` or `switches: [...]`, or remove it")
        for name, nodes in entry.nodes.items():
            place = (*path, "nodes", name)
            if name not in self.names:
                fix = did_you_mean(name, self.names, "node groups here", f"node groups here: {', '.join(self.names)}")
                self.add(place, f"unknown node group {name[:60]!r}", "", fix, key=True)
                continue
            self._last_place[name] = place
            if name not in self.groups:
                self.wrong = True  # what is wrong with the group is reported there
            elif isinstance(nodes, int):
                self._count(place, self.groups[name], nodes, copies)
            else:
                self._name(place, self.groups[name], nodes, copies)
        self._check_nics(path, entry)
        self._check_sites(path, entry)

    def _count(self, place: _Path, group: NodeGroup, nodes: int, copies: int) -> None:
        if group.name in self._named:
            self._mixed(place, group)
            return
        before = self._counted.get(group.name, 0)
        self._counted[group.name] = before + nodes * copies
        if before + nodes * copies > group.nodes:
            taken = f"{copies:,} x {nodes:,}" if copies > 1 else f"{nodes:,}"
            more = f" after {before:,} that others take" if before else ""
            what = f"takes {taken} nodes of {group.name!r}{more}, which has {group.nodes:,}"
            self.add(place, what, "a node hangs at one switch", "take fewer, or correct `nodes` of the group")

    def _name(self, place: _Path, group: NodeGroup, ranges: Sequence[NodeRange], copies: int) -> None:
        if group.name in self._counted:
            self._mixed(place, group)
        elif copies > 1:
            what = f"names its nodes but occurs {copies:,} times"
            self.add(place, what, "a node hangs at one switch", "write how many each takes: `4`")
        elif max(last for _, last, _ in ranges) >= group.nodes:
            last = max(last for _, last, _ in ranges)
            why = f"the {group.nodes:,} nodes of {group.name!r} are numbered from 0 to {group.nodes - 1:,}"
            self.add(place, f"there is no node {last:,}", why, "correct the range")
        else:
            self._take(place, group, ranges)

    def _take(self, place: _Path, group: NodeGroup, ranges: Sequence[NodeRange]) -> None:
        taken = self._named.setdefault(group.name, set())
        for first, last, step in ranges:
            nodes = range(first, last + 1, step)
            twice = next((node for node in nodes if node in taken), None)
            if twice is not None:
                what = f"node {twice:,} of {group.name!r} is named a second time"
                self.add(place, what, "a node hangs at one switch", "correct the ranges")
                return
            taken.update(nodes)

    def _mixed(self, place: _Path, group: NodeGroup) -> None:
        what = f"nodes of {group.name!r} are given by counts and by ranges"
        self.add(place, what, "which node is the next one is not clear then", "use one of the two for a group")

    def _check_nics(self, path: _Path, entry: SwitchEntry) -> None:
        if entry.oversubscription is None:
            return
        for name in entry.nodes:
            if name in self.groups and self.groups[name].nic is None:
                why = f"the NIC of {name!r}, what enters from below, is not known"
                self.add((*path, "oversubscription"), "says nothing", why, "add the group's `nic`, or write `uplink`")

    def _check_sites(self, path: _Path, entry: SwitchEntry) -> None:
        sites = sorted({self.groups[name].site for name in _groups_below(entry) if name in self.groups})
        if len(sites) > 1:
            what = f"holds nodes at different sites: {', '.join(sites)}"
            fix = "give each site switches of its own; `sites` joins them"
            self.add(path, what, "what joins two sites is no uplink", fix)

    def expand(self, entry: SwitchEntry, parent: int | None, above: str) -> float:
        """Write an entry out; the bytes a second of all its uplinks together."""
        total = 0.0
        for number in range(entry.count):
            name = f"{above}{entry.name}" + (f"-{number}" if entry.count > 1 else "")
            index = len(self.switches)
            nodes = {group: self._ranges(group, wanted) for group, wanted in entry.nodes.items()}
            self.switches.append(None)
            below = sum(self.expand(child, index, f"{name}/") for child in entry.switches)
            below += sum(_entering(self.groups[group], ranges) for group, ranges in nodes.items())
            uplink = entry.uplink_bytes_per_s or below / (entry.oversubscription or 1.0)
            self.switches[index] = Switch(
                name=name[-200:], parent=parent, uplink_bytes_per_s=uplink, latency_s=entry.latency_s, nodes=nodes
            )
            total += uplink
        return total

    def _ranges(self, group: str, wanted: int | tuple[NodeRange, ...]) -> tuple[NodeRange, ...]:
        if not isinstance(wanted, int):
            return wanted
        first = self._next.get(group, 0)
        self._next[group] = first + wanted
        return ((first, first + wanted - 1, 1),)

    def check_all_placed(self) -> None:
        """A group hangs at switches with all of its nodes or with none: the others would share nothing."""
        total = sum(self.groups[name].nodes for name in self._last_place)
        if total > MAX_NODES:
            what, why = f"holds {total:,} nodes", f"at most {MAX_NODES:,} hang at switches"
            self.add(("topology",), what, why, "plan a part of the cluster")
        for name, place in self._last_place.items():
            group = self.groups[name]
            placed = self._counted.get(name, 0) or len(self._named.get(name, ()))
            if placed < group.nodes:
                what = f"{group.nodes - placed:,} of the {group.nodes:,} nodes of {name!r} hang at no switch"
                self.add(place, what, "what they share would be a guess", "add the others")


def _groups_below(entry: SwitchEntry) -> Iterator[str]:
    yield from entry.nodes
    for child in entry.switches:
        yield from _groups_below(child)


def _entering(group: NodeGroup, ranges: Sequence[NodeRange]) -> float:
    """Bytes a second that the NICs of these nodes send at most."""
    nodes = sum((last - first) // step + 1 for first, last, step in ranges)
    return 0.0 if group.nic is None else nodes * group.chips_per_node * group.nic.bandwidth_bytes_per_s

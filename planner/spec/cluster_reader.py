"""From a cluster file to a `Cluster`: chips found, groups resolved, every cross-reference checked."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from planner.errors import Notice
from planner.spec.cluster import Cluster, NodeGroup
from planner.spec.cluster_checks import check_links, check_paths, check_prices, check_sites, notices_of, used_prices
from planner.spec.cluster_chips import ChipFinder
from planner.spec.cluster_file import DEFAULT_RESERVE, ClusterFile, NodeGroupEntry, Reserve
from planner.spec.files import STDIN, read_text
from planner.spec.json_reader import parse_json
from planner.spec.links import Sites
from planner.spec.nic_affinity import NicAffinity
from planner.spec.printing import format_bytes
from planner.spec.profile import Chip, Interconnect, InterconnectEntry
from planner.spec.reading import Collector, node_at
from planner.spec.shipped import find_document
from planner.spec.topology import SwitchEntry, Topology
from planner.spec.topology_checks import read_topology
from planner.spec.tree import ListNode
from planner.spec.yaml_reader import parse_yaml

if TYPE_CHECKING:
    from planner.spec.tree import Document

__all__ = ["load_cluster", "parse_cluster", "parse_document"]


def load_cluster(path_or_name: str | Path) -> Cluster:
    """The cluster in a file, in standard input (`-`), or shipped under that bare name."""
    path = find_document(path_or_name, "clusters")
    text, file = read_text(path, "the cluster file")
    near = Path() if str(path) == STDIN else Path(path).parent
    return _resolve(parse_document(text, file), near)


def parse_cluster(text: str, file_name: str) -> Cluster:
    """The same from a text; profiles are also looked for beside `file_name`."""
    return _resolve(parse_document(text, file_name), Path(file_name).parent)


def parse_document(text: str, file: str) -> Document:
    """A document in YAML, or in JSON where the file's name ends so."""
    return parse_json(text, file) if file.endswith(".json") else parse_yaml(text, file)


@dataclass
class _Reader:
    """One cluster file on its way to a cluster."""

    collector: Collector
    chips: ChipFinder
    reserve: Reserve | None
    notices: list[Notice] = field(default_factory=list)

    def group(self, index: int, entry: NodeGroupEntry, chip: Chip) -> NodeGroup | None:
        """The group with everything its chip's profile says."""
        here = ("node_groups", index)
        chips_per_node = entry.chips_per_node or chip.chips_per_node
        if chips_per_node is None:
            why = f"the profile of {chip.name} does not say"
            self.collector.add((*here, "chips_per_node"), "is not known", why, "add `chips_per_node: 8` to the group")
        nic = self._link(here, "nic", entry.nic, chip)
        intra_node = self._link(here, "intra_node", entry.intra_node, chip)
        if intra_node is None and (chips_per_node or 1) > 1 and not (entry.intra_node or chip.intra_node):
            fix = "add `intra_node: {bandwidth: ..., latency: ...}` to the group or chip"
            self.collector.add((*here, "intra_node"), "is not known", f"the profile of {chip.name} does not say", fix)
        affinity = self._affinity(here, entry, chips_per_node)
        reserve = self._reserve_bytes(here, entry, chip)
        if chips_per_node is None or reserve is None:
            return None
        return NodeGroup(
            name=entry.name,
            chip=chip.name,
            nodes=entry.nodes,
            site=entry.site,
            chips_per_node=chips_per_node,
            nic=nic,
            nic_affinity=affinity,
            intra_node=intra_node,
            reserve_bytes=reserve,
            host_memory_bytes=entry.host_memory_bytes,
            host_memory_bandwidth_bytes_per_s=entry.host_memory_bandwidth_bytes_per_s,
            nvme=entry.nvme,
        )

    def _link(
        self, here: tuple[str, int], key: str, changes: InterconnectEntry | None, chip: Chip
    ) -> Interconnect | None:
        """The profile's link with the group's changes."""
        base: Interconnect | None = getattr(chip, key)
        if changes is None:
            return base
        bandwidth = changes.bandwidth_bytes_per_s or (base.bandwidth_bytes_per_s if base else None)
        latency = changes.latency_s if changes.latency_s is not None else (base.latency_s if base else None)
        for name, value in (("bandwidth", bandwidth), ("latency", latency)):
            if value is None:
                fix = f"add `{name}` to `{key}`"
                self.collector.add((*here, key, name), "is not known", f"the profile of {chip.name} has no {key}", fix)
        if bandwidth is None or latency is None:
            return None
        return Interconnect(bandwidth_bytes_per_s=bandwidth, latency_s=latency)

    def _affinity(self, here: tuple[str, int], entry: NodeGroupEntry, chips: int | None) -> NicAffinity | None:
        """The NIC that each chip is near, and the one it uses."""
        written, path = entry.nic_affinity, (*here, "nic_affinity")
        if written is None or chips is None:
            return None
        if (written.nics is None) == (written.near is None):
            why = "`nics` divides the chips evenly over so many NICs, `near` names the NIC of each chip"
            self.collector.add(path, "needs one of `nics` and `near`", why, "write `nic_affinity: {nics: 4}`")
            return None
        if written.nics is not None and max(written.nics, chips) % min(written.nics, chips):
            why = f"{chips} chips of a node do not divide over {written.nics} NICs evenly"
            self.collector.add((*path, "nics"), "is not clear", why, "name the NIC of each chip with `near`")
            return None
        near = written.near or tuple(chip * (written.nics or 1) // chips for chip in range(chips))
        use = written.use or near
        for name, indices in (("near", near), ("use", use)):
            if len(indices) != chips:
                what, why = f"names the NICs of {len(indices)} chips", f"a node of {entry.name!r} has {chips}"
                self.collector.add((*path, name), what, why, "write one number for each chip")
                return None
        return NicAffinity(near=near, use=use)

    def _reserve_bytes(self, here: tuple[str, int], entry: NodeGroupEntry, chip: Chip) -> int | None:
        """Bytes of each chip that stay free."""
        capacity = chip.capacity_bytes
        if capacity is None:
            fix = f"add `memory` to its profile, or here: `chips: {{{chip.name}: {{memory: ...}}}}`"
            self.collector.add((*here, "chip"), f"the memory of {chip.name} is not known", "every plan needs it", fix)
            return None
        share, size = entry.reserve or self.reserve or DEFAULT_RESERVE
        reserve = round(share * capacity) + size
        if reserve >= capacity:
            why = f"{chip.name} has {format_bytes(capacity)}"
            path = (*here, "reserve") if entry.reserve else ("reserve",)
            self.collector.add(path, f"{format_bytes(reserve)} leaves nothing to use", why, "reserve less")
        if chip.unified_memory and entry.reserve is None and self.reserve is None:
            what = f"{chip.name} shares its memory with the host, which needs more than the default reserve of 6 %"
            self.notices.append(Notice("unified-memory", f"{what}; set `reserve` on group {entry.name}"))
        return reserve


def _resolve(document: Document, near: Path) -> Cluster:
    collector = Collector(document)
    file = collector.validate(ClusterFile, document.data())
    finder = ChipFinder(collector, near)
    entries = collector.entries(NodeGroupEntry, ("node_groups",))
    _check_groups(collector, finder)
    reader = _Reader(collector, finder, file.reserve if file else None)
    resolved: list[tuple[int, NodeGroup]] = []
    for index, entry in entries:
        chip = finder.chip(entry.chip)
        group = reader.group(index, entry, chip) if chip is not None else None
        if group is not None:
            resolved.append((index, group))
    check_links(collector)
    check_sites(collector)
    check_prices(collector, finder)
    check_paths(collector, resolved)
    topology = _topology(collector, [group for _, group in resolved])
    collector.finish()
    assert file is not None, "a file that is not valid has problems"
    prices, currency = used_prices(file, finder)
    groups = tuple(
        group.model_copy(update={"price_per_chip_hour": prices.get(group.chip, 0.0)}) for _, group in resolved
    )
    cluster = Cluster(
        name=file.name or Path(document.file).stem.strip("<>"),
        node_groups=groups,
        chips={group.chip: finder.known(group.chip) for group in groups},
        links=file.links,
        sites=file.sites or Sites(),
        topology=topology,
        prices=prices,
        currency=currency,
    )
    notices = (*finder.notices, *reader.notices, *notices_of(cluster, file))
    return cluster.model_copy(update={"notices": tuple(dict.fromkeys(notices))})


def _topology(collector: Collector, groups: list[NodeGroup]) -> Topology | None:
    """The switches, where what stands there is in order; else what is wrong is reported by entry already."""
    node = node_at(collector.document, ("topology",))
    entries = [entry for _, entry in collector.entries(SwitchEntry, ("topology",))]
    if not isinstance(node, ListNode) or len(entries) < len(node.items):
        return None
    names = [name for _, name in collector.texts(("node_groups",), "name")]
    return read_topology(collector, entries, names, groups)


def _check_groups(collector: Collector, finder: ChipFinder) -> None:
    """Group names differ; every chip is known."""
    first: dict[str, int] = {}
    for index, name in collector.texts(("node_groups",), "name"):
        if name in first:
            line = collector.document.locate(("node_groups", first[name], "name")).line
            path = ("node_groups", index, "name")
            collector.add(path, f"group name {name!r} is given twice", f"first on line {line}", "rename one of them")
        first.setdefault(name, index)
    for index, chip in collector.texts(("node_groups",), "chip"):
        if collector.full:
            return
        finder.require(chip, ("node_groups", index, "chip"))

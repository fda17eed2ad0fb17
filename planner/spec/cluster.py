"""A cluster, resolved: node groups of chips, the paths between them, prices. Everything in base units."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from planner.errors import Notice
from planner.spec.base import Bandwidth, Count, Latency, MemoryBytes, Name, SpecModel
from planner.spec.drives import Drives
from planner.spec.links import Link, LinkFigures, Sites, Transport
from planner.spec.nic_affinity import NicAffinity
from planner.spec.profile import Chip, Interconnect
from planner.spec.topology import Topology

__all__ = ["DEFAULT_HOST_STAGING_BYTES_PER_S", "Cluster", "LinkPath", "NodeGroup"]

DEFAULT_HOST_STAGING_BYTES_PER_S: Final = 12e9
"""Copy rate between chip and host memory where the profile has none (a notice says so): what PCIe 3.0 x16 gives.

The bus moves 16 lanes x 8 GT/s x 128/130 / 8 = 15.75 GB/s (PCI Express Base Specification 3.0); packets of 128 bytes
with 26 bytes of framing and headers leave 13.1 GB/s, and copies reach about nine tenths of that. Newer buses are
faster, so the default errs on the slow side."""


class NodeGroup(SpecModel):
    """Identical nodes of one chip at one site."""

    name: Name
    """The group's name."""

    chip: Name
    """The chip's name."""

    nodes: Count
    """Number of nodes."""

    site: Name = "site"
    """Where the nodes stand."""

    chips_per_node: Count
    """Chips in one node."""

    nic: Interconnect | None = None
    """A chip's share of the node's network cards, as stated. None only where nothing needs it: one node, alone or with
    links of its own (bandwidth and latency) to every other group."""

    nic_affinity: NicAffinity | None = None
    """Which NIC each chip is near and uses. None: each uses its own."""

    intra_node: Interconnect | None = None
    """The link between chips of a node. None only with one chip a node."""

    reserve_bytes: Annotated[int, Field(ge=0)]
    """Memory of each chip that the planner leaves free."""

    host_memory_bytes: MemoryBytes | None = None
    """Memory of one node's host that training may use. None: not known."""

    host_memory_bandwidth_bytes_per_s: Bandwidth | None = None
    """What one node's host reads and writes of its memory in a second. None: not known."""

    nvme: Drives | None = None
    """The drives of one node, all together. None: there are none to use."""

    price_per_chip_hour: Annotated[float, Field(ge=0)] = 0.0
    """Price in the cluster's currency; 0 where none is given."""

    @property
    def num_chips(self) -> int:
        """Chips in the group."""
        return self.nodes * self.chips_per_node

    @property
    def reached_nic(self) -> Interconnect | None:
        """The NIC as the slowest chip of a node reaches it: less where chips use NICs that are not near them."""
        if self.nic is None or self.nic_affinity is None or self.nic_affinity.share == 1:
            return self.nic
        rate = self.nic.bandwidth_bytes_per_s * self.nic_affinity.share
        return Interconnect(bandwidth_bytes_per_s=rate, latency_s=self.nic.latency_s)

    @model_validator(mode="after")
    def _has_a_nic_for_every_chip(self) -> NodeGroup:
        affinity = self.nic_affinity
        if affinity and not len(affinity.near) == len(affinity.use) == self.chips_per_node:
            raise ValueError(f"nic_affinity is not for the {self.chips_per_node} chips of a node")
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        absent = "nic_affinity", "host_memory_bytes", "host_memory_bandwidth_bytes_per_s", "nvme"
        return _without(handler(self), *absent)


class LinkPath(SpecModel):
    """How a chip of one node group reaches a chip of another (or of another node of its own group)."""

    bandwidth_bytes_per_s: Bandwidth
    """Per pair of communicating chips, one direction. The nodes' NICs and `total_bytes_per_s` bound all pairs."""

    total_bytes_per_s: Bandwidth | None = None
    """What the line carries in each direction for all pairs together; None where only pairs and NICs bound it."""

    latency_s: Latency
    """Time until the first byte arrives."""

    transport: Transport
    """`rdma`: chip to chip. `host`: staged through host memory on both sides."""

    staging_bytes_per_s: Bandwidth | None = None
    """Copy rate between chip and host memory, the slower side's; None with `rdma`."""


class Cluster(SpecModel):
    """The chips there are. Group indices count in the order of the file."""

    name: str
    """The cluster's name."""

    node_groups: tuple[NodeGroup, ...]
    """The node groups, in the order of the file."""

    chips: dict[str, Chip]
    """The chips that the groups have."""

    links: tuple[Link, ...] = ()
    """Links between two node groups, where the file says more than the default."""

    sites: Sites = Sites()
    """Links between sites."""

    topology: Topology | None = None
    """Racks, pods and their uplinks; None where the file has none."""

    prices: dict[str, float] = Field(default_factory=dict)
    """Price per chip-hour by chip, in `currency`."""

    currency: str = ""
    """Three-letter code; empty without prices."""

    notices: tuple[Notice, ...] = Field(default=(), exclude=True, repr=False)
    """What a reader of a plan for this cluster must know. Not part of the cluster's identity."""

    @property
    def num_chips(self) -> int:
        """Chips in the cluster."""
        return sum(group.num_chips for group in self.node_groups)

    def chip_of(self, group_index: int) -> Chip:
        """The chip of a node group."""
        return self.chips[self.node_groups[group_index].chip]

    def group_index(self, name: str) -> int | None:
        """The index of a node group, or None."""
        return next((index for index, group in enumerate(self.node_groups) if group.name == name), None)

    def path(self, a: int, b: int) -> LinkPath:
        """From a chip of group `a` to one of group `b`, by index; `a == b`: between two nodes of the group.

        What the file's link between the groups says counts first, then the link between their sites, then the default:
        the slower of the two NICs (where none is known, all that the line carries), the larger of their latencies,
        `rdma` inside a vendor and `host` between vendors.
        """
        figures = self._figures(a, b)
        nics = [group.reached_nic for group in (self.node_groups[a], self.node_groups[b])]
        slower = min((nic.bandwidth_bytes_per_s for nic in nics if nic is not None), default=None)
        later = max((nic.latency_s for nic in nics if nic is not None), default=None)
        total = _first([f.total_bytes_per_s for f in figures], None)
        bandwidth = _first([f.bandwidth_bytes_per_s for f in figures], total if slower is None else slower)
        latency = _first([f.latency_s for f in figures], later)
        assert bandwidth is not None and latency is not None, "reading a cluster refuses groups that nothing joins"
        transport = _first([f.transport for f in figures], self._default_transport(a, b))
        staging = None if transport == "rdma" else self._staging(a, b, figures)
        return LinkPath(
            bandwidth_bytes_per_s=bandwidth,
            total_bytes_per_s=total,
            latency_s=latency,
            transport=transport,
            staging_bytes_per_s=staging,
        )

    def uses_default_staging(self, a: int, b: int) -> bool:
        """Whether the path is staged through host memory at a rate that the file does not state."""
        figures = self._figures(a, b)
        transport = _first([f.transport for f in figures], self._default_transport(a, b))
        return bool(transport == "host" and all(f.staging_bytes_per_s is None for f in figures))

    def _figures(self, a: int, b: int) -> list[LinkFigures]:
        """What the file says about a pair of groups, the most specific first."""
        if a == b:
            return []
        first, second = self.node_groups[a], self.node_groups[b]
        found: list[LinkFigures | None] = [self._links.get(frozenset((first.name, second.name)))]
        if first.site != second.site:
            found += [self._site_links.get(frozenset((first.site, second.site))), self.sites]
        return [figures for figures in found if figures is not None]

    def _default_transport(self, a: int, b: int) -> Literal["rdma", "host"]:
        one, other = self.chip_of(a), self.chip_of(b)
        same_vendor = one.vendor.casefold() == other.vendor.casefold() and one.vendor.casefold() != "custom"
        return "rdma" if same_vendor or one.name == other.name else "host"

    def _staging(self, a: int, b: int, figures: list[LinkFigures]) -> float:
        known = [self.chip_of(index).host_staging_bytes_per_s for index in (a, b)]
        rates = [DEFAULT_HOST_STAGING_BYTES_PER_S if rate is None else rate for rate in known]
        stated: float | None = _first([f.staging_bytes_per_s for f in figures], None)
        return min(rates) if stated is None else stated

    @cached_property
    def _links(self) -> dict[frozenset[str], Link]:
        return {frozenset(link.between): link for link in self.links}

    @cached_property
    def _site_links(self) -> dict[frozenset[str], Link]:
        return {frozenset(link.between): link for link in self.sites.links}

    @model_validator(mode="after")
    def _is_consistent(self) -> Cluster:
        names = [group.name for group in self.node_groups]
        if not names or len(set(names)) < len(names):
            raise ValueError("a cluster has node groups, and their names differ")
        unknown = {group.chip for group in self.node_groups} - set(self.chips)
        if unknown:
            raise ValueError(f"chips without a profile: {', '.join(sorted(unknown))}")
        nodes = {group.name: group.nodes for group in self.node_groups}
        problem = None if self.topology is None else self.topology.problem(nodes)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return _without(handler(self), "topology")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cluster) and self.model_dump() == other.model_dump()

    __hash__ = None  # type: ignore[assignment]


def _without(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """A document in which each key only stands when there is something: what says nothing stays as it always was."""
    for key in keys:
        if document.get(key) is None:
            document.pop(key, None)
    return document


def _first(stated: list[Any], default: Any) -> Any:
    """The first that is not None."""
    return next((value for value in stated if value is not None), default)

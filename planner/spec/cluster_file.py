"""The cluster file as people write it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.spec.base import Bandwidth, MemoryBytes, Name, Price, SpecModel, Text, Title, filled, refusal, whole_number
from planner.spec.drives import Drives
from planner.spec.kinds import QuantityError
from planner.spec.links import Link, Sites
from planner.spec.nic_affinity import NicAffinityEntry
from planner.spec.profile import ChipEntry, InterconnectEntry
from planner.spec.topology import SwitchEntry
from planner.spec.units import parse_bytes, parse_fraction

__all__ = ["DEFAULT_RESERVE", "MAX_CHIPS", "ClusterFile", "NodeGroupEntry", "Reserve"]

Reserve = tuple[float, int]
"""A share of the memory and a number of bytes; one of them is zero."""

DEFAULT_RESERVE: Reserve = (0.06, 0)

_RESERVE_HELP = "write a share like '6 %' or a size like '4 GiB'"
MAX_CHIPS = 1000
_MAX_GROUPS = 256
_MAX_LINKS = 10_000
_MAX_SWITCHES = 1000


def _read_reserve(value: Any) -> Reserve:
    """`6 %` or `4 GiB`; a plain 0 keeps nothing free."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = parse_fraction(value)
            if share >= 1:
                raise QuantityError(f"'{value}' leaves nothing to use", "", _RESERVE_HELP)
            return share, 0
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value != 0:
            raise QuantityError(f"'{value}' has no unit", "a reserve is a share or a size", _RESERVE_HELP)
        return 0.0, parse_bytes(value, zero=True)
    except QuantityError as error:
        raise refusal(error) from None


_Reserve = Annotated[
    Reserve,
    BeforeValidator(_read_reserve),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"const": 0}], "examples": ["6 %", "4 GiB"]}),
]
_Nodes = Annotated[
    int, whole_number("the number of nodes", 1, 1_000_000), WithJsonSchema({"type": "integer", "minimum": 1})
]
_ChipsPerNode = Annotated[
    int, whole_number("the number of chips in a node", 1, 4096), WithJsonSchema({"type": "integer", "minimum": 1})
]


class NodeGroupEntry(SpecModel):
    """Identical nodes of one chip at one site."""

    name: Name = Field(examples=["a100"])
    """The group's name, for links, constraints and plans."""

    chip: Name = Field(examples=["nvidia-a100-80gb-sxm"])
    """A shipped profile's name (`dplan chips` lists them), or one from `chips:` or a file beside this one."""

    nodes: _Nodes = Field(examples=["4"])
    """Number of nodes."""

    site: Name = "site"
    """Where the nodes stand. Groups at different sites need a link between the sites."""

    chips_per_node: _ChipsPerNode | None = None
    """Chips in one node. Absent: as the profile has it."""

    nic: InterconnectEntry | None = None
    """A chip's share of the node's network cards. Absent: as the profile has it."""

    nic_affinity: NicAffinityEntry | None = Field(default=None, examples=["{nics: 4}"])
    """Which NIC each chip of a node is near, and uses. Absent: each chip uses its own share of the node's NICs."""

    intra_node: InterconnectEntry | None = None
    """The link between the chips of a node. Absent: as the profile has it."""

    reserve: _Reserve | None = Field(default=None, examples=["6 %"])
    """Memory of each chip that stays free: `6 %` or `4 GiB`. Absent: the cluster's reserve."""

    host_memory_bytes: MemoryBytes | None = Field(default=None, alias="host_memory", examples=["1.5 TiB"])
    """Memory of one node's host that training may use, all its chips together, each an equal share: for activations and
    optimizer states that are offloaded. Absent: activations are not limited, and a plan that may offload them says so;
    optimizer states stay on the chips."""

    host_memory_bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, alias="host_memory_bandwidth", examples=["300 GB/s"]
    )
    """What one node's host reads and writes of its memory in a second, all sockets together, as a stream benchmark
    reaches it: for `training.offload_optimizer`."""

    nvme: Drives | None = Field(default=None, examples=["{capacity: 7 TiB, read: 12 GB/s, write: 6 GB/s}"])
    """The drives of one node that training may use, all together; each chip has an equal share of their capacity and
    rates. For optimizer states that are offloaded further than host memory. Absent: none are."""


class ClusterFile(SpecModel):
    """A cluster file."""

    name: Title | None = None
    """The cluster's name. Absent: the file's name."""

    notes: Text | None = None
    """Free text: where the figures come from, what is assumed."""

    node_groups: Annotated[tuple[NodeGroupEntry, ...], filled("node group", _MAX_GROUPS)] = Field(
        examples=["[{name: a100, chip: nvidia-a100-80gb-sxm, nodes: 4}]"]
    )
    """The node groups. Ranks are numbered in this order."""

    links: Annotated[tuple[Link, ...], filled("link", _MAX_LINKS, empty=True)] = ()
    """Links between two node groups. A pair without one has the default: the slower of the two NICs."""

    sites: Sites | None = None
    """Links between sites; needed when groups stand at different ones."""

    topology: Annotated[tuple[SwitchEntry, ...], filled("switch", _MAX_SWITCHES, empty=True)] = Field(
        default=(), examples=["[{name: rack, count: 8, nodes: {a100: 4}, oversubscription: 2}]"]
    )
    """Racks, pods and the uplinks that their nodes share. Absent: only NICs and links bound."""

    chips: Annotated[dict[Name, ChipEntry], filled("chip", MAX_CHIPS, empty=True)] = Field(default_factory=dict)
    """Your own chips by name, or changes to shipped profiles."""

    prices: Annotated[dict[Name, Price], filled("price", MAX_CHIPS, empty=True)] = Field(default_factory=dict)
    """Price per chip-hour by chip, e.g. `nvidia-a100-80gb-sxm: 1.80 USD/h`; one currency in a file."""

    reserve: _Reserve | None = Field(default=None, examples=["6 %"])
    """Memory of every chip that stays free: `6 %` or `4 GiB`. Absent: 6 %."""

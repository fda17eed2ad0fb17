"""Switches above the nodes: racks, pods and their uplinks, as people write them and as a cluster holds them."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.spec.base import Bandwidth, Latency, Name, SpecModel, Title, filled, refusal, whole_number
from planner.spec.kinds import QuantityError
from planner.spec.units import parse_count

__all__ = ["MAX_NODES", "MAX_SWITCHES", "NodeRange", "Switch", "SwitchEntry", "Topology"]

MAX_SWITCHES = 100_000
"""Switches of a cluster, repetitions counted."""
MAX_NODES = 1_000_000
"""Nodes that hang at switches."""
_MAX_ENTRIES = 1000
_MAX_RANGES = 1000
_MOST_OVERSUBSCRIBED = 1000
_NODES_HELP = "write a count (`4`: the next four), a range (`0-3`), or every other node (`0-6:2`)"
_RATIO_HELP = "write `4` or `4:1`: what enters from below over what the uplink carries"
_RANGE = re.compile(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?")

NodeRange = tuple[int, int, int]
"""First node, last node, step."""


def _read_nodes(value: Any) -> int | tuple[NodeRange, ...]:
    """`4` is a count; `0-3`, `0-6:2` and `0-3,8-11` name nodes, numbered from 0 in their group."""
    if not isinstance(value, str) or re.fullmatch(r"\s*[+-]?\d+\s*", value):
        if str(value).strip() == "0":
            raise refusal(QuantityError("'0' is a count of no nodes", "", "write `0-0` for node 0 alone"))
        try:
            return parse_count(value, noun="the number of nodes", largest=1_000_000)
        except QuantityError as error:
            raise refusal(error) from None
    parts = value.split(",")
    if len(parts) > _MAX_RANGES:
        raise refusal(QuantityError(f"has {len(parts)} ranges", f"at most {_MAX_RANGES} are read", _NODES_HELP))
    return tuple(_read_range(part.strip()) for part in parts)


def _read_range(text: str) -> NodeRange:
    match = _RANGE.fullmatch(text)
    if match is None:
        raise refusal(QuantityError(f"{text[:40]!r} is no range of nodes", "", _NODES_HELP))
    first = int(match[1])
    last, step = int(match[2] or first), int(match[3] or 1)
    if last < first or step < 1:
        why = "its last node comes before its first" if last < first else "its step is zero"
        raise refusal(QuantityError(f"{text!r} is no range of nodes", why, _NODES_HELP))
    return first, last - (last - first) % step, step


def _read_ratio(value: Any) -> float:
    text = str(value).strip()
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(?:\s*:\s*1)?", text)
    if isinstance(value, bool) or match is None:
        raise refusal(QuantityError(f"{text[:40]!r} is no ratio", "", _RATIO_HELP))
    ratio = float(match[1])
    if not 1 <= ratio <= _MOST_OVERSUBSCRIBED:
        why = f"a ratio lies between 1 (nothing lost) and {_MOST_OVERSUBSCRIBED}"
        raise refusal(QuantityError(f"{text!r} is no oversubscription", why, _RATIO_HELP))
    return ratio


_Nodes = Annotated[
    int | tuple[NodeRange, ...],
    BeforeValidator(_read_nodes),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[\d\s,:-]+$"}],
            "examples": [4, "0-3", "0-6:2"],
        }
    ),
]
_Ratio = Annotated[
    float,
    BeforeValidator(_read_ratio),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "minimum": 1, "maximum": _MOST_OVERSUBSCRIBED},
                {"type": "string", "pattern": r"^\d+(\.\d+)?\s*:\s*1$"},
            ]
        }
    ),
]
_Repeats = Annotated[
    int,
    whole_number("the number of switches", 1, MAX_SWITCHES),
    WithJsonSchema({"type": "integer", "minimum": 1}),
]


class SwitchEntry(SpecModel):
    """A switch, or several alike (a rack, a pod): what is below it, and its uplink to the switch above.

    The switches listed under `topology` itself hang at the core, which limits nothing.
    """

    name: Name = Field(examples=["rack"])
    """What it is called; with `count`, `rack-0`, `rack-1` and so on."""

    count: _Repeats = 1
    """How many there are alike."""

    uplink_bytes_per_s: Bandwidth | None = Field(default=None, alias="uplink", examples=["1.6 Tbps"])
    """What the uplink carries in each direction for all chips below together, e.g. `1.6 Tbps`. Either this or
    `oversubscription`."""

    oversubscription: _Ratio | None = Field(default=None, examples=["4"])
    """What enters from below (the NICs of its nodes, the uplinks of its switches) over what the uplink carries: `4`,
    or `4:1`. 1 loses nothing."""

    latency_s: Latency = Field(default=0.0, alias="latency", examples=["1 us"])
    """What each passage through the uplink adds, e.g. `1 us`. Absent: nothing."""

    nodes: Annotated[dict[Name, _Nodes], filled("node group", 256, empty=True)] = Field(
        default_factory=dict, examples=["{h100: 4}"]
    )
    """Nodes that hang at it, by node group: a count takes the next ones in each of the switches (`{h100: 4}`), a range
    names them (`{h100: 0-3}`, `0-6:2` for every other one). Nodes are numbered from 0 in their group."""

    switches: Annotated[tuple[SwitchEntry, ...], filled("switch", _MAX_ENTRIES, empty=True)] = ()
    """Switches that hang at it."""


class Switch(SpecModel):
    """One switch of a cluster."""

    name: Title
    """Its name, with those of the switches above it: `pod-0/rack-3`."""

    parent: Annotated[int, Field(ge=0)] | None = None
    """Index of the switch above it, an earlier one; None at the core."""

    uplink_bytes_per_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    """What the uplink carries in each direction for all chips below together."""

    latency_s: Latency = 0.0
    """What each passage through the uplink adds."""

    nodes: dict[Name, tuple[NodeRange, ...]] = Field(default_factory=dict)
    """Nodes that hang at it itself, by node group: first, last, step."""


class Topology(SpecModel):
    """The switches, those above before those below. Nodes of groups that none names hang at the core."""

    switches: tuple[Switch, ...]
    """All of them."""

    def homes(self, group: str, nodes: int) -> tuple[int, ...]:
        """The switch that each node of a group hangs at; -1: the core."""
        found = [-1] * nodes
        for index, switch in enumerate(self.switches):
            for first, last, step in switch.nodes.get(group, ()):
                for node in range(first, last + 1, step):
                    found[node] = index
        return tuple(found)

    def only(self, groups: Collection[str]) -> Topology:
        """The same switches with the nodes of these groups alone."""
        kept = [
            switch.model_copy(update={"nodes": {g: r for g, r in switch.nodes.items() if g in groups}})
            for switch in self.switches
        ]
        return Topology(switches=tuple(kept))

    def problem(self, nodes: dict[str, int]) -> str | None:
        """What is wrong with it on a cluster with so many nodes in each group; None when it is in order."""
        named = {group for switch in self.switches for group in switch.nodes}
        if sum(nodes.get(group, 0) for group in named) > MAX_NODES:
            return f"more than {MAX_NODES:,} nodes hang at switches"
        taken: set[tuple[str, int]] = set()
        for index, switch in enumerate(self.switches):
            if switch.parent is not None and switch.parent >= index:
                return f"switch {switch.name!r} hangs at one that comes after it"
            for group, ranges in switch.nodes.items():
                for first, last, step in ranges:
                    if group not in nodes or step < 1 or not 0 <= first <= last < nodes[group]:
                        return f"switch {switch.name!r} holds nodes that group {group!r} does not have"
                    held = {(group, node) for node in range(first, last + 1, step)}
                    if held & taken:
                        return f"a node of group {group!r} hangs at two switches"
                    taken |= held
        return None

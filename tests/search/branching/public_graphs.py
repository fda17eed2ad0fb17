"""Public graphs of real networks: their file format turned into a problem, and the rule that judges a placement.

The files are others' data; they lie beside the project and are read there. Their words (accelerator, `fpga`, colour
class) appear in this file only. `judge` is written from the rule alone and shares nothing with the search.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from planner.search.branching import BranchingProblem, ChipClass, Placement, Tensor

GRAPHS = Path(__file__).parents[3].parent / "shared" / "cases" / "graphs"

Chips = dict[int, tuple[str, int]]
"""Node id -> ("fpga" or "cpu", number)."""


def read_graph(name: str) -> dict[str, Any]:
    path = GRAPHS / f"{name}.json"
    if not path.exists():
        pytest.skip(f"the public graph {name} is not beside the project (../shared/cases/graphs)")
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def problem_of(document: dict[str, Any]) -> BranchingProblem:
    """Class 0: accelerators; class 1: CPU cores, whose transfers are free."""
    nodes = document["nodes"]
    index = {node["id"]: i for i, node in enumerate(nodes)}
    consumers: dict[int, list[int]] = {}
    cost: dict[int, float] = {}
    for edge in document["edges"]:
        consumers.setdefault(index[edge["sourceId"]], []).append(index[edge["destId"]])
        assert cost.setdefault(index[edge["sourceId"]], edge["cost"]) == edge["cost"], "one cost a node"
    colours: dict[Any, list[int]] = {}
    for i, node in enumerate(nodes):
        colours.setdefault(node.get("colorClass", ("own", i)), []).append(i)
    accelerators = ChipClass(
        count=document["maxFPGAs"],
        layer_times=tuple(node["fpgaLatency"] if node["supportedOnFpga"] else math.inf for node in nodes),
        transfer_times=tuple(cost[u] for u in consumers),
        size_limit=document["maxSizePerFPGA"],
    )
    cores = ChipClass(
        count=document["maxCPUs"],
        layer_times=tuple(node["cpuLatency"] for node in nodes),
        transfer_times=tuple(0.0 for _ in consumers),
    )
    return BranchingProblem(
        sizes=tuple(node["size"] for node in nodes),
        parts=tuple(int(bool(node["isBackwardNode"])) for node in nodes),
        tensors=tuple(Tensor(u, tuple(after)) for u, after in consumers.items()),
        classes=(accelerators, cores),
        together=tuple(tuple(group) for group in colours.values() if len(group) > 1),
    )


def chips_of(document: dict[str, Any], placement: Placement) -> Chips:
    """A placement in the file's own terms."""
    ids = [node["id"] for node in document["nodes"]]
    return {i: (("fpga", "cpu")[c], number) for i, (c, number) in zip(ids, placement.chips, strict=True)}


def judge(document: dict[str, Any], chips: Chips) -> float:
    """The largest load of a placement; raises ValueError where the rule forbids it."""
    nodes = {node["id"]: node for node in document["nodes"]}
    if chips.keys() != nodes.keys():
        raise ValueError("not every node is placed")
    colours: dict[Any, set[tuple[str, int]]] = {}
    for i, node in nodes.items():
        if "colorClass" in node:
            colours.setdefault(node["colorClass"], set()).add(chips[i])
    if any(len(used) > 1 for used in colours.values()):
        raise ValueError("a colour class is torn apart")
    loads = []
    for kind, number in sorted(set(chips.values())):
        own = {i for i in nodes if chips[i] == (kind, number)}
        if not 0 <= number < document["maxFPGAs" if kind == "fpga" else "maxCPUs"]:
            raise ValueError(f"no {kind} {number}")
        for backward in (False, True):
            if not is_convex(document, {i for i in own if bool(nodes[i]["isBackwardNode"]) == backward}):
                raise ValueError(f"{kind} {number} is not contiguous")
        if kind == "cpu":
            loads.append(sum(nodes[i]["cpuLatency"] for i in own))
            continue
        if sum(nodes[i]["size"] for i in own) > document["maxSizePerFPGA"]:
            raise ValueError(f"{kind} {number} is too small")
        if not all(nodes[i]["supportedOnFpga"] for i in own):
            raise ValueError(f"a node cannot run on {kind} {number}")
        crossing = [e for e in document["edges"] if (e["sourceId"] in own) != (e["destId"] in own)]
        paid = {e["sourceId"]: e["cost"] for e in crossing}
        loads.append(sum(nodes[i]["fpgaLatency"] for i in own) + sum(paid.values()))
    return max(loads)


def is_convex(document: dict[str, Any], own: set[int]) -> bool:
    """No path between two nodes of the set has a node outside it."""
    after: dict[int, set[int]] = {}
    for edge in document["edges"]:
        after.setdefault(edge["sourceId"], set()).add(edge["destId"])
    outside: set[int] = set()
    frontier = {v for u in own for v in after.get(u, ())} - own
    while frontier:
        outside |= frontier
        following = {v for u in frontier for v in after.get(u, ())}
        if following & own:
            return False
        frontier = following - outside
    return True

"""Whether an explicit graph hangs together: names, ends, no edge twice, no cycle, no layer without a cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.spec.explicit_graph import GraphEdge
from planner.spec.reading import node_at
from planner.spec.suggest import did_you_mean
from planner.spec.tree import ListNode, MapNode, Path

if TYPE_CHECKING:
    from planner.spec.reading import Collector

__all__ = ["check_graph"]


def check_graph(collector: Collector, path: Path) -> None:
    """Collects every problem of the graph at a place of the document."""
    nodes, edges = (*path, "nodes"), (*path, "edges")
    names = _check_names(collector, nodes)
    _check_costs(collector, nodes)
    sound = _check_edges(collector, edges, names)
    _check_order(collector, edges, names, sound)


def _check_names(collector: Collector, nodes: Path) -> list[str]:
    first: dict[str, int] = {}
    for index, name in collector.texts(nodes, "name"):
        if name in first:
            line = collector.document.locate((*nodes, first[name], "name")).line
            what = f"layer name {name[:60]!r} is given twice"
            collector.add((*nodes, index, "name"), what, f"first on line {line}", "rename one of them")
        first.setdefault(name, index)
    return list(first)


def _check_costs(collector: Collector, nodes: Path) -> None:
    node = node_at(collector.document, nodes)
    for index, item in enumerate(node.items if isinstance(node, ListNode) else []):
        if isinstance(item, MapNode) and not {"forward_flops", "times"} & set(item.entries):
            why = "a layer without work would cost no time"
            fix = "add `forward_flops: 1 TFLOP` (0 for none), or measured `times`"
            collector.add((*nodes, index), "has neither `forward_flops` nor `times`", why, fix)


def _check_edges(collector: Collector, edges: Path, names: list[str]) -> list[tuple[int, str, str]]:
    """Problems of single edges; gives those without any."""
    sound: list[tuple[int, str, str]] = []
    known, seen = set(names), dict[tuple[str, str], int]()
    for index, edge in collector.entries(GraphEdge, edges):
        if collector.full:
            return []
        here = (*edges, index)
        unknown = [end for end in ("source", "target") if getattr(edge, end) not in known]
        for end in unknown:
            name = getattr(edge, end)
            collector.add((*here, end), f"unknown layer {name[:60]!r}", "", did_you_mean(name, names, "layers here"))
        if edge.source == edge.target:
            what = f"joins {edge.source[:60]!r} with itself"
            collector.add(here, what, "a layer cannot wait for its own output", "remove the edge")
        elif (edge.source, edge.target) in seen:
            line = collector.document.locate((*edges, seen[edge.source, edge.target])).line
            what = f"joins {edge.source[:60]!r} to {edge.target[:60]!r} a second time"
            collector.add(here, what, f"first on line {line}", "add their bytes up in one edge")
        elif not unknown:
            sound.append((index, edge.source, edge.target))
        seen.setdefault((edge.source, edge.target), index)
    return sound


def _check_order(collector: Collector, edges: Path, names: list[str], sound: list[tuple[int, str, str]]) -> None:
    """No cycle: layers whose inputs are all placed are placed, until none is left."""
    waiting = dict.fromkeys(names, 0)
    targets: dict[str, list[str]] = {name: [] for name in names}
    for _, source, target in sound:
        waiting[target] += 1
        targets[source].append(target)
    ready = [name for name in names if not waiting[name]]
    while ready:
        for target in targets[ready.pop()]:
            waiting[target] -= 1
            if not waiting[target]:
                ready.append(target)
    stuck = {name for name, count in waiting.items() if count}
    if not stuck:
        return
    cycle = _cycle(stuck, sound)
    index = next(index for index, source, target in sound if (source, target) == (cycle[-2], cycle[-1]))
    shown = " -> ".join(cycle if len(cycle) <= 8 else [*cycle[:4], "...", *cycle[-3:]])
    collector.add(
        (*edges, index), f"closes a cycle: {shown}", "layers run one after another", "remove one of its edges"
    )


def _cycle(stuck: set[str], sound: list[tuple[int, str, str]]) -> list[str]:
    """One cycle: from a stuck layer backwards along stuck sources until a layer comes again."""
    sources: dict[str, str] = {}
    for _, source, target in sound:
        if source in stuck and target in stuck:
            sources.setdefault(target, source)
    here, way = min(stuck), list[str]()
    while here not in way:
        way.append(here)
        here = sources[here]
    loop = [*way[way.index(here) :], here]
    return loop[::-1]

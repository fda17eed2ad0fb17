"""Explicit graphs: nodes and edges as a person wrote them, in a topological order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.errors import InputError, Problem
from planner.graph.frozen import freeze
from planner.graph.kinds import group_kinds
from planner.graph.layers import Edge, Layer, LayerGraph, MeasuredTime, Operation, SavedTensor, Sharding, Weight
from planner.graph.limits import NO_NODE_SPLITS
from planner.graph.recipe import ALWAYS, ONLY_FULL, UNLESS_FULL, compute_width_bytes
from planner.spec.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import networkx as nx

    from planner.spec.explicit_graph import ExplicitGraph, GraphEdge, GraphNode
    from planner.spec.model import ModelSpec

__all__ = ["build_explicit"]


def build_explicit(model: ModelSpec) -> LayerGraph:
    """The layer graph of a model that is given node by node. Bytes are those at the training precision; they become
    elements of its width.

    Nodes keep their names. The order is topological, and the file's order where that leaves a choice.
    """
    written = model.graph
    assert written is not None, "a model with source 'graph' has a graph"
    file = model.file or model.name
    _check_names(written, file)
    names, notes = _in_order(written, file)
    width = compute_width_bytes(model.training.precision)
    nodes = {node.name: node for node in written.nodes}
    edges = tuple(Edge(edge.source, edge.target, _edge_bytes(edge, nodes) / width) for edge in written.edges)
    arriving = dict.fromkeys(names, 0.0)
    for edge in edges:
        arriving[edge.target] += edge.elements
    layers = tuple(_layer(nodes[name], arriving[name], width) for name in names)
    return LayerGraph(
        name=model.name,
        layers=group_kinds(freeze(layers, edges, model.frozen, file)),
        edges=edges,
        sequence_length=model.training.sequence_length,
        vocabulary=0,
        num_heads=0,
        num_kv_heads=0,
        tensor_divisors=() if any(node.tensor_parallel for node in written.nodes) else (NO_NODE_SPLITS,),
        notes=notes,
    )


def _edge_bytes(edge: GraphEdge, nodes: Mapping[str, GraphNode]) -> int:
    return nodes[edge.source].output_bytes if edge.bytes is None else edge.bytes


def _layer(node: GraphNode, arriving: float, width: int) -> Layer:
    """One node as a layer: one operation, and what it keeps, of which full recomputation leaves the tensors that
    arrive.
    """
    sharding: Sharding = "tensor" if node.tensor_parallel else "replicated"
    flops = float(node.forward_flops or 0.0)
    operation = Operation(
        name="forward",
        operation_class="matmul" if flops else "elementwise",
        flops=flops,
        sharding=sharding,
        weight_elements=float(node.parameters),
        activation_elements=node.bytes_moved / width,
        weight_gradient=node.parameters > 0 and flops > 0,
        rerun=ONLY_FULL,
    )
    saved = node.saved_bytes / width
    inputs = min(saved, arriving)
    tensors = (
        SavedTensor("input", inputs, sharding, kept=ALWAYS),
        SavedTensor("inside", saved - inputs, sharding, kept=UNLESS_FULL),
    )
    measured = {chip: MeasuredTime(time.forward_s, time.backward_s) for chip, time in sorted(node.times.items())}
    return Layer(
        name=node.name,
        kind=node.kind or "",
        weights=(Weight("parameters", node.parameters, sharding),) if node.parameters else (),
        operations=(operation,),
        saved=tuple(tensor for tensor in tensors if tensor.elements > 0),
        transient_elements=node.transient_bytes / width,
        transient_sharding=sharding,
        measured_only=node.forward_flops is None,
        measured=measured,
    )


def _check_names(graph: ExplicitGraph, file: str) -> None:
    """Every problem of the names at once: one name twice, links to nowhere, to oneself or twice, nodes without work."""
    first: dict[str, int] = {}
    for i, node in enumerate(graph.nodes):
        first.setdefault(node.name, i)
    problems = [*_node_problems(graph, first), *_edge_problems(graph, first)]
    if problems:
        raise InputError(
            [Problem(what, why, fix, path=f"graph.{path}", file=file) for path, what, why, fix in problems]
        )


def _node_problems(graph: ExplicitGraph, first: Mapping[str, int]) -> Iterator[tuple[str, str, str, str]]:
    if not graph.nodes:
        yield "nodes", "is empty", "there is nothing to plan", "add a node"
    for i, node in enumerate(graph.nodes):
        if first[node.name] != i:
            what = f"{node.name!r} names nodes[{first[node.name]}] too"
            yield f"nodes[{i}].name", what, "names are unique", "rename one"
        if node.forward_flops is None and not node.times:
            yield f"nodes[{i}]", "has no forward_flops and no times", "its time would be unknown", "add one of them"


def _edge_problems(graph: ExplicitGraph, first: Mapping[str, int]) -> Iterator[tuple[str, str, str, str]]:
    seen: dict[tuple[str, str], int] = {}
    for i, edge in enumerate(graph.edges):
        for end, name in (("source", edge.source), ("target", edge.target)):
            if name not in first:
                fix = did_you_mean(name, first, noun="nodes")
                yield f"edges[{i}].{end}", f"{name!r} is no node", "an edge joins two nodes", fix
        if edge.source == edge.target:
            what = f"links {edge.source!r} to itself"
            yield f"edges[{i}]", what, "no layer waits for its own output", "remove the edge"
        earlier = seen.setdefault((edge.source, edge.target), i)
        if earlier != i:
            why = f"edges[{earlier}] joins {edge.source!r} and {edge.target!r} already"
            yield f"edges[{i}]", "is there twice", why, "keep one, with the bytes of both if they are two tensors"


def _in_order(graph: ExplicitGraph, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names in a stable topological order, and what is remarkable about the graph. A cycle is refused, and named."""
    import networkx as nx

    digraph: nx.DiGraph[str] = nx.DiGraph()
    digraph.add_nodes_from(node.name for node in graph.nodes)
    digraph.add_edges_from((edge.source, edge.target) for edge in graph.edges)
    if not nx.is_directed_acyclic_graph(digraph):
        cycle = [source for source, _ in nx.find_cycle(digraph)]
        shown = " -> ".join([*cycle[:12], "..."] if len(cycle) > 12 else [*cycle, cycle[0]])
        raise InputError.single(
            f"the graph has a cycle: {shown}",
            "layers run in an order that respects every edge",
            "remove an edge of it",
            path="graph.edges",
            file=file,
        )
    position = {node.name: i for i, node in enumerate(graph.nodes)}
    names = tuple(nx.lexicographical_topological_sort(digraph, key=position.__getitem__))
    pieces = sorted(nx.weakly_connected_components(digraph), key=lambda piece: min(position[name] for name in piece))
    if len(pieces) == 1:
        return names, ()
    heads = ", ".join(min(piece, key=position.__getitem__) for piece in pieces[:5])
    return names, (
        f"the graph has {len(pieces)} pieces that no edge joins (they start at {heads}): nothing is sent between them",
    )

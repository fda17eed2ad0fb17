"""Explicit graphs: any layers, written out."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from planner.errors import InputError
from planner.graph import tensor_parallel_refusal

if TYPE_CHECKING:
    from tests.graph.conftest import GraphOf


def refusal(explicit_graph: GraphOf, nodes: object, edges: list[object]) -> str:
    with pytest.raises(InputError) as caught:
        explicit_graph(nodes, edges)
    return caught.value.render()


def test_nodes_keep_their_names_and_run_in_topological_order(explicit_graph: GraphOf) -> None:
    graph = explicit_graph({"d": {}, "b": {}, "c": {}, "a": {}}, [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    assert [layer.name for layer in graph.layers] == ["a", "b", "c", "d"]


def test_the_files_order_decides_where_the_graph_does_not(explicit_graph: GraphOf) -> None:
    nodes = {"start": {}, "z": {}, "y": {}, "x": {}, "end": {}}
    edges = [(("start"), n) for n in "xyz"] + [(n, "end") for n in "xyz"]
    assert [layer.name for layer in explicit_graph(nodes, edges).layers] == ["start", "z", "y", "x", "end"]


def test_bytes_are_elements_of_the_training_precision(explicit_graph: GraphOf) -> None:
    nodes = {"a": {"saved_bytes": 80, "transient_bytes": 160, "bytes_moved": 240}, "b": {}}
    for precision, width in (("bf16", 2), ("fp32", 4), ("fp8", 2)):
        graph = explicit_graph(nodes, [("a", "b", {"bytes": 400})], precision=precision)
        layer = graph.layers[0]
        assert sum(tensor.elements for tensor in layer.saved) == 80 / width
        assert layer.transient_elements == 160 / width
        assert layer.operations[0].activation_elements == 240 / width
        assert graph.edges[0].elements == 400 / width


def test_an_edge_without_bytes_carries_the_output_of_its_source(explicit_graph: GraphOf) -> None:
    graph = explicit_graph({"a": {"output_bytes": 64}, "b": {}}, [("a", "b")])
    assert graph.edges[0].elements == 32


def test_full_recomputation_keeps_what_arrives(explicit_graph: GraphOf) -> None:
    # b saves 80 bytes; 24 bytes arrive: 12 elements stay, 28 are made again
    graph = explicit_graph({"a": {}, "b": {}}, [("a", "b", {"bytes": 24})])
    kept = {policy: sum(t.elements for t in graph.layers[1].saved if policy in t.kept) for policy in ("none", "full")}
    assert kept == {"none": 40, "full": 12}


def test_equal_nodes_share_a_kind_and_unequal_ones_never_do(explicit_graph: GraphOf) -> None:
    nodes = {"a": {}, "b": {}, "c": {"parameters": 7}, "d": {"kind": "conv"}, "e": {"kind": "conv", "parameters": 8}}
    graph = explicit_graph(nodes, [])
    assert [layer.kind for layer in graph.layers] == ["a", "a", "c", "conv", "conv_2"]


def test_measured_times_go_to_their_layer(explicit_graph: GraphOf) -> None:
    times = {"v100": {"forward_s": 0.002, "backward_s": 0.004}, "a100": {"forward_s": 0.001, "backward_s": 0.002}}
    graph = explicit_graph({"a": {"times": times, "forward_flops": None}, "b": {}}, [("a", "b")])
    layer = graph.layers[0]
    assert list(layer.measured) == ["a100", "v100"]
    assert (layer.measured["v100"].forward_s, layer.measured["v100"].backward_s) == (0.002, 0.004)
    assert (layer.measured_only, graph.layers[1].measured_only) == (True, False)


def test_a_node_is_split_only_where_it_says_so(explicit_graph: GraphOf) -> None:
    whole = explicit_graph({"a": {}, "b": {}}, [("a", "b")])
    some = explicit_graph({"a": {"tensor_parallel": True}, "b": {}}, [("a", "b")])
    assert tensor_parallel_refusal(whole, 1) is None
    assert tensor_parallel_refusal(whole, 2) == (
        "tensor_parallel 2 is not possible: no node of the graph has tensor_parallel: true"
    )
    assert tensor_parallel_refusal(some, 2) is None
    assert [layer.weights[0].sharding for layer in some.layers] == ["tensor", "replicated"]


def test_a_cycle_is_refused_and_named(explicit_graph: GraphOf) -> None:
    text = refusal(explicit_graph, {"a": {}, "b": {}, "c": {}}, [("a", "b"), ("b", "c"), ("c", "a")])
    assert "the graph has a cycle: a -> b -> c -> a" in text


def test_a_link_to_itself_is_refused(explicit_graph: GraphOf) -> None:
    assert "links 'a' to itself" in refusal(explicit_graph, {"a": {}}, [("a", "a")])


def test_every_wrong_name_is_told_in_one_run(explicit_graph: GraphOf) -> None:
    nodes = [("conv1", {}), ("conv2", {}), ("conv1", {}), ("idle", {"forward_flops": None})]
    text = refusal(explicit_graph, nodes, [("conv1", "covn2"), ("conv1", "conv2"), ("conv1", "conv2")])
    assert "graph.nodes[2].name: 'conv1' names nodes[0] too" in text
    assert "graph.edges[0].target: 'covn2' is no node" in text
    assert "did you mean 'conv2'?" in text
    assert "graph.edges[2]: is there twice" in text
    assert "graph.nodes[3]: has no forward_flops and no times" in text


def test_pieces_without_an_edge_between_them_are_told(explicit_graph: GraphOf) -> None:
    joined = explicit_graph({"a": {}, "b": {}}, [("a", "b")])
    apart = explicit_graph({"a": {}, "b": {}}, [])
    assert joined.notes == ()
    assert "2 pieces" in apart.notes[0]


def test_a_node_can_be_frozen(explicit_graph: GraphOf) -> None:
    graph = explicit_graph({"a": {}, "b": {}}, [("a", "b")], frozen=("a",))
    assert [layer.weights[0].trained for layer in graph.layers] == [False, True]
    assert [layer.kind for layer in graph.layers] == ["a", "b"]


def test_a_long_chain_is_read_quickly(explicit_graph: GraphOf) -> None:
    names = [f"n{i}" for i in range(2000)]
    graph = explicit_graph({name: {} for name in names}, list(pairwise(names)))
    assert [layer.kind for layer in graph.layers] == ["n0", *["n1"] * 1999]  # nothing arrives at the first
    assert len(graph.boundary_elements()) == 1999

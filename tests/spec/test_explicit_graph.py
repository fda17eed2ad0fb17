"""Explicit graphs: layers with sizes and work or times, joined without cycles."""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.spec import ExplicitGraph
from tests.spec.written import model, problems


def layer(name: str, work: str = "forward_flops: 1 TFLOP") -> str:
    return f"{{name: {name}, parameters: 10, {work}, saved: 1 MB, output: 2 MB}}"


def graph_text(nodes: list[str], *edges: str) -> str:
    lines = ["model:", "  graph:", "    nodes:", *(f"      - {node}" for node in nodes)]
    if edges:
        lines += ["    edges:", *(f"      - {{source: {edge[0]}, target: {edge[1]}}}" for edge in edges)]
    return "\n".join(lines)


def graph(nodes: list[str], *edges: str) -> ExplicitGraph:
    found = model(rest=graph_text(nodes, *edges)).graph
    assert found is not None
    return found


def refused(nodes: list[str], *edges: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        graph(nodes, *edges)
    return problems(caught.value)


def test_a_layer_has_parameters_work_and_sizes_in_base_units():
    node = graph([layer("a")]).nodes[0]
    assert (node.parameters, node.forward_flops, node.saved_bytes, node.output_bytes) == (10, 1e12, 10**6, 2 * 10**6)


def test_a_layer_may_have_measured_times_instead_of_work():
    node = graph([layer("a", "times: {my-chip: {forward: 2 ms, backward: 4 ms}}")]).nodes[0]
    assert node.forward_flops is None
    assert (node.times["my-chip"].forward_s, node.times["my-chip"].backward_s) == (2e-3, 4e-3)


def test_a_layer_with_neither_would_cost_nothing_and_is_refused():
    assert "has neither `forward_flops` nor `times`" in refused(["{name: a, parameters: 1, saved: 0, output: 0}"])[0]


def test_work_is_an_amount_not_a_rate():
    assert "it is a rate; an amount of work is asked" in refused([layer("a", "forward_flops: 1 TFLOPS")])[0]


def test_every_layer_has_its_own_name_and_edges_join_known_ones():
    lines = refused([layer("a"), layer("a"), layer("b")], "ax", "ab")
    assert "layer name 'a' is given twice; first on line 7" in lines[0]
    assert "model.graph.edges[0].target: unknown layer 'x'; layers here: a, b" in lines[1]


def test_an_edge_joins_two_layers_once():
    lines = refused([layer("a"), layer("b")], "aa", "ab", "ab")
    assert "joins 'a' with itself; a layer cannot wait for its own output" in lines[0]
    assert "joins 'a' to 'b' a second time" in lines[1]


def test_a_cycle_is_shown():
    lines = refused([layer(name) for name in "abcd"], "ab", "bc", "cd", "db")
    assert len(lines) == 1
    assert "closes a cycle: b -> c -> d -> b" in lines[0]


def test_branches_that_meet_again_are_no_cycle():
    assert len(graph([layer(name) for name in "abcd"], "ab", "ac", "bd", "cd").edges) == 4


def test_a_graph_without_layers_is_refused():
    assert "model.graph.nodes: is empty; at least one layer is needed" in "\n".join(
        refused_text("model: {graph: {nodes: []}}")
    )


def refused_text(rest: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        model(rest=rest)
    return problems(caught.value)


def test_a_cycle_of_ten_thousand_layers_is_found_and_shown_short():
    names = [f"n{i}" for i in range(5_000)]
    lines = ["model:", "  graph:", "    nodes:", *(f"      - {layer(name)}" for name in names), "    edges:"]
    lines += [f"      - {{source: {a}, target: {b}}}" for a, b in zip(names, names[1:] + names[:1], strict=True)]
    found = refused_text("\n".join(lines))
    assert len(found) == 1
    assert "closes a cycle: " in found[0]
    assert len(found[0]) < 300

"""A model's layers: how many of each kind, and what one computes and keeps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.bars import new_table
from planner.report.words import format_count, layer_ranges, plural
from planner.spec.units import format_bytes, format_work

if TYPE_CHECKING:
    from planner.cost.kinds import KindArrays
    from planner.graph.layers import LayerGraph
    from planner.spec import ModelSpec

__all__ = ["model_numbers", "model_report"]

_POLICIES = ("none", "selective", "full")


def model_numbers(model: ModelSpec, graph: LayerGraph) -> dict[str, Any]:
    """What `dplan model` says, as data: numbers of one sequence, undivided."""
    from planner.cost.kinds import kind_arrays
    from planner.cost.memory import saved_bytes
    from planner.cost.precision import COMPUTE_BYTES
    from planner.cost.sharding import Degrees, expert_layout

    alone = expert_layout(1, 1, 1, 1, graph.num_experts)
    assert not isinstance(alone, str), alone
    width = COMPUTE_BYTES[model.training.precision]
    kinds = kind_arrays(graph, _POLICIES)
    saved = saved_bytes(kinds, Degrees(1, 1, 1, False, alone), width, 1, 1.0)
    sent = _sent_elements(graph, kinds)
    names_of: dict[int, list[str]] = {}
    for name, kind in zip(kinds.chain.names, kinds.chain.kinds, strict=True):
        names_of.setdefault(kind, []).append(name)
    return {
        "name": model.name,
        "precision": model.training.precision,
        "sequence_length": graph.sequence_length,
        "vocabulary": graph.vocabulary,
        "parameters": graph.parameters,
        "active_parameters": graph.active_parameters,
        "forward_flops": float(sum(op.flops for layer in graph.layers for op in layer.operations)),
        "layers": [
            {
                "kind": layer.kind,
                "names": names_of[k],
                "parameters": layer.parameters,
                "tied_parameters": sum(w.parameters for w in layer.weights if w.tied_to is not None),
                "forward_flops": float(sum(op.flops for op in layer.operations)),
                "saved_bytes": {policy: round(float(saved[q, k])) for q, policy in enumerate(_POLICIES)},
                "output_bytes": round(sent[k] * width),
            }
            for k, layer in enumerate(kinds.layers)
        ],
        "notes": list(graph.notes),
    }


def _sent_elements(graph: LayerGraph, kinds: KindArrays) -> list[float]:
    """Elements per sequence of all tensors that a layer makes, for each kind; the largest where they differ."""
    if kinds.chain.tensors is None:
        return [float(elements) for elements in kinds.boundary_elements]
    made, most = [0.0] * len(graph.layers), [0.0] * kinds.num_kinds
    for tensor in kinds.chain.tensors:
        made[tensor.source] += tensor.elements
    for kind, elements in zip(kinds.chain.kinds, made, strict=True):
        most[kind] = max(most[kind], elements)
    return most


def model_report(numbers: dict[str, Any]) -> RenderableType:
    """The numbers as a table for 80 columns."""
    parts: list[RenderableType] = [Text(numbers["name"], style="bold"), _indented(_totals(numbers)), Text("")]
    parts += [Text("layers: one of each kind, and what it keeps by recompute policy", style="bold")]
    parts += [_indented(_layer_table(numbers["layers"]))]
    if numbers["notes"]:
        parts += [Text(""), Text("assumptions", style="bold")]
        parts += [_indented(Text(note)) for note in numbers["notes"]]
    return Group(*parts)


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2))


def _totals(numbers: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column()
    parameters = f"{numbers['parameters']:,} ({format_count(numbers['parameters'])})"
    active = numbers["active_parameters"]
    if active is not None and active != numbers["parameters"]:
        parameters += f", {format_count(active)} of them work on a token"
    count = sum(len(layer["names"]) for layer in numbers["layers"])
    table.add_row("parameters", parameters)
    table.add_row("layers", f"{count} {plural('layer', count)} of {len(numbers['layers'])} kinds")
    table.add_row("sequence", f"{numbers['sequence_length']:,} tokens, {numbers['precision']}")
    table.add_row("forward pass", format_work(numbers["forward_flops"]) + " for one sequence")
    return table


def _layer_table(layers: list[dict[str, Any]]) -> Table:
    """The last three columns: what stays in memory from the forward to the backward pass."""
    right = ("parameters", "forward", *_POLICIES)
    table = new_table("layers", *right, right=right)
    for layer in layers:
        saved = layer["saved_bytes"]
        parameters = format_count(layer["parameters"])
        if layer["tied_parameters"]:
            parameters += " tied" if not layer["parameters"] else " + tied"
        table.add_row(
            layer_ranges(layer["names"]),
            parameters,
            format_work(layer["forward_flops"]) if layer["forward_flops"] else "-",
            *(format_bytes(saved[policy]) for policy in _POLICIES),
        )
    return table

"""`frozen:` layers: their parameters are not trained, and what no gradient needs is not computed backward."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from planner.errors import InputError, Problem
from planner.spec.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.graph.layers import Edge, Layer

__all__ = ["freeze"]


def freeze(layers: Sequence[Layer], edges: Sequence[Edge], patterns: Sequence[str], file: str) -> tuple[Layer, ...]:
    """Mark the layers that match a pattern (`embedding`, `layers.1`, `layers.*`) as not trained.

    A frozen layer passes gradients on but has no weight gradients, gradients or optimizer states. Where a frozen layer
    and all before it are
    frozen, no backward pass runs at all and nothing is kept for it. A tied copy is frozen with its owner.
    """
    if not patterns:
        return tuple(layers)
    frozen = _matching(layers, patterns, file)
    needed = _needs_gradient(layers, edges, frozen)
    return tuple(_freeze_layer(layer, frozen, passes=needed[layer.name]) for layer in layers)


def _matching(layers: Sequence[Layer], patterns: Sequence[str], file: str) -> frozenset[str]:
    names = [layer.name for layer in layers]
    problems, found = [], set()
    for i, pattern in enumerate(patterns):
        matches = [name for name in names if fnmatchcase(name, pattern)]
        if not matches:
            why = "it must match the name of a layer (`*` stands for any characters)"
            examples = f"layers are named {names[0]}, {names[len(names) // 2]}, ..., {names[-1]}"
            fix = did_you_mean(pattern, names, more=examples)
            problems.append(Problem(f"{pattern[:60]!r} matches no layer", why, fix, path=f"frozen[{i}]", file=file))
        found.update(matches)
    if problems:
        raise InputError(problems)
    return frozenset(found)


def _needs_gradient(layers: Sequence[Layer], edges: Sequence[Edge], frozen: frozenset[str]) -> dict[str, bool]:
    """Whether a layer, or any layer before it, has something to train."""
    sources: dict[str, list[str]] = {layer.name: [] for layer in layers}
    for edge in edges:
        sources[edge.target].append(edge.source)
    needed: dict[str, bool] = {}
    for layer in layers:
        own = any(weight.trained and (weight.tied_to or layer.name) not in frozen for weight in layer.weights)
        needed[layer.name] = own or any(needed[source] for source in sources[layer.name])
    return needed


def _freeze_layer(layer: Layer, frozen: frozenset[str], passes: bool) -> Layer:
    """The layer without what its frozen weights do not need."""
    weights = tuple(
        replace(weight, trained=weight.trained and (weight.tied_to or layer.name) not in frozen)
        for weight in layer.weights
    )
    if weights == layer.weights and passes:
        return layer
    operations = layer.operations
    if not passes:
        operations = tuple(
            replace(op, weight_gradient=False, backward_flops_ratio=0.0, rerun=frozenset()) for op in operations
        )
        collectives = tuple(replace(collective, backward=0, rerun=frozenset()) for collective in layer.collectives)
        kind = layer.kind and f"{layer.kind}_forward_only"
        return replace(layer, kind=kind, weights=weights, operations=operations, saved=(), collectives=collectives)
    if not any(weight.trained for weight in weights):
        operations = tuple(
            replace(op, weight_gradient=False, backward_flops_ratio=max(0.0, op.backward_flops_ratio - 1.0))
            if op.weight_gradient
            else op
            for op in operations
        )
    return replace(layer, kind=layer.kind and f"{layer.kind}_frozen", weights=weights, operations=operations)

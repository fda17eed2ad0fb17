"""Names for layers that are equal in every number, so that the search treats them as one kind."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planner.graph.layers import Layer

__all__ = ["group_kinds"]


def group_kinds(layers: Iterable[Layer]) -> tuple[Layer, ...]:
    """Give equal layers one kind and unequal ones different kinds.

    A layer comes in with the kind it would like, or "" for the name of the first layer of its kind; a later, unequal
    one gets a number.
    """
    names: dict[tuple[object, ...], str] = {}
    taken: set[str] = set()
    result = []
    for layer in layers:
        key = _numbers(layer)
        if key not in names:
            names[key] = _free_name(layer.kind or layer.name, taken)
            taken.add(names[key])
        result.append(replace(layer, kind=names[key]))
    return tuple(result)


def _numbers(layer: Layer) -> tuple[object, ...]:
    """Everything but the names."""
    measured = tuple(sorted((chip, time.forward_s, time.backward_s) for chip, time in layer.measured.items()))
    work = (layer.weights, layer.operations, layer.saved, layer.collectives)
    transient = (layer.transient_elements, layer.transient_fp32_elements, layer.transient_sharding)
    flags = (layer.transient_vocabulary, layer.measured_only)
    return (layer.kind, *work, *transient, *flags, measured)


def _free_name(wish: str, taken: set[str]) -> str:
    if wish not in taken:
        return wish
    number = 2
    while f"{wish}_{number}" in taken:
        number += 1
    return f"{wish}_{number}"

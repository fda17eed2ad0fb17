"""What goes from which stage to which: every tensor once, directly, however many stages lie between."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from planner.cost.tables import Tensor

__all__ = ["Pair", "received_elements", "sent_elements", "stages_of"]

Pair = tuple[int, int]
"""(a, b), a < b: stage a feeds stage b."""


def stages_of(held: Sequence[Iterable[int]]) -> list[int]:
    """(layers,) the stage of each layer. held: the layers of each stage; together they are all layers."""
    stage_of = {layer: s for s, layers in enumerate(held) for layer in layers}
    return [stage_of[layer] for layer in range(len(stage_of))]


def sent_elements(tensors: Iterable[Tensor], stage_of: Sequence[int]) -> dict[Pair, float]:
    """Elements per sequence from stage to stage, for every pair of stages that feed each other, in order.

    A tensor goes once to each other stage that has a layer which needs it; its gradients come back the same ways.
    """
    sent: dict[Pair, float] = {}
    for tensor in tensors:
        a = stage_of[tensor.source]
        for b in sorted({stage_of[layer] for layer in tensor.consumers} - {a}):
            sent[a, b] = sent.get((a, b), 0.0) + tensor.elements
    return dict(sorted(sent.items()))


def received_elements(sent: Mapping[Pair, float], num_stages: int) -> list[float]:
    """Elements per sequence that each stage receives: activations from stages before, gradients from stages after."""
    received = [0.0] * num_stages
    for (a, b), elements in sent.items():
        received[a] += elements
        received[b] += elements
    return received

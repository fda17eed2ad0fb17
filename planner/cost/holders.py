"""Plans of several pipeline shapes: which stages hold a layer together, and where they sit. Pure."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.tables import Holder

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["SharedLayers", "holder_of", "lines_crossed", "shared_layers"]


class SharedLayers(NamedTuple):
    """Layers first..end-1 of the chain that the same stages hold: `stages[j]` is the stage of shape j."""

    first: int
    end: int
    stages: tuple[int, ...]


def shared_layers(ends: Sequence[Sequence[int]]) -> list[SharedLayers]:
    """The chain cut wherever a stage of any shape ends. ends[j][s]: position after stage s of shape j.

    Layers that the same stages hold are reduced together, in one buffer.
    """
    cuts = sorted({end for shape in ends for end in shape})
    pieces, first = [], 0
    for cut in cuts:
        stages = tuple(sum(1 for end in shape if end <= first) for shape in ends)
        pieces.append(SharedLayers(first, cut, stages))
        first = cut
    return pieces


def holder_of(group: int, tensor: int, places: Sequence[tuple[int, int]]) -> Holder:
    """The holder whose replicas sit at `places`, (node, first chip) each."""
    nodes = Counter(node for node, _ in places)
    return Holder(group, tensor, len(places), len(nodes), min(nodes.values()), min(nodes))


def lines_crossed(shapes: Sequence[tuple[int, Sequence[int]]]) -> Counter[tuple[int, int]]:
    """How many pipelines cross from a group to another, by (lower, higher) group index; each once a boundary.

    shapes: (replicas, the group of every stage) of each shape.
    """
    crossed: Counter[tuple[int, int]] = Counter()
    for replicas, groups in shapes:
        for a, b in pairwise(groups):
            if a != b:
                crossed[min(a, b), max(a, b)] += replicas
    return crossed

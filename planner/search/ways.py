"""The ways of a micro-batch through a layer graph, whatever stages hold the layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cost.tables import Chain

__all__ = ["ways_through"]


def ways_through(chain: Chain, seconds: Sequence[float]) -> tuple[float, float]:
    """Seconds of the longest path through a layer, for the layer where that is shortest; and of the longest path.

    seconds: forward and backward of one micro-batch, by kind of layer.
    """
    up = [seconds[kind] for kind in chain.kinds]
    own, down = up[:], up[:]
    edges = sorted({(tensor.source, v) for tensor in chain.tensors or () for v in tensor.consumers})
    for u, v in sorted(edges, key=lambda edge: edge[1]):
        up[v] = max(up[v], up[u] + own[v])
    for u, v in sorted(edges, key=lambda edge: -edge[0]):
        down[u] = max(down[u], down[v] + own[u])
    through = [a + b - c for a, b, c in zip(up, down, own, strict=True)]
    return min(through), max(through)

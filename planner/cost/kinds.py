"""The layer graph as arrays: one row an operation, saved tensor, weight or collective of each layer kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.policies import base_of, offloads
from planner.cost.tables import Chain, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.sharding import Degrees
    from planner.graph.layers import Layer, LayerGraph

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Flags = NDArray[np.bool_]

__all__ = [
    "SHARDINGS",
    "CollectiveRow",
    "KindArrays",
    "OperationRows",
    "SavedRows",
    "WeightRows",
    "divisors",
    "kind_arrays",
    "weight_divisors",
    "work_divisors",
]

SHARDINGS: tuple[str, ...] = ("tensor", "sequence", "replicated", "expert")


class OperationRows(NamedTuple):
    """One row an operation.

    kind: its layer kind.  sharding: index into SHARDINGS.  vocabulary: grows with a padded vocabulary.
    rerun: (Q, rows).
    """

    kind: Ints
    sharding: Ints
    vocabulary: Flags
    flops: Floats
    weight_elements: Floats
    activation_elements: Floats
    attention: Flags
    weight_gradient: Flags
    backward_ratio: Floats
    rerun: Flags


class SavedRows(NamedTuple):
    """One row a saved tensor; `width` is bytes an element, 0 for the compute dtype's.

    kept, moved: (Q, rows) whether it stays on the chip, and whether it goes to host memory.
    """

    kind: Ints
    sharding: Ints
    vocabulary: Flags
    elements: Floats
    width: Ints
    kept: Flags
    moved: Flags


class WeightRows(NamedTuple):
    """One row a weight.

    holders: stages that keep the matrix when it is tied, else 1.  copy: this row is not the owner.
    matrices: one an expert for routed weights, else 1.
    """

    kind: Ints
    sharding: Ints
    vocabulary: Flags
    parameters: Floats
    trained: Flags
    matmul: Flags
    copy: Flags
    holders: Ints
    matrices: Ints


class CollectiveRow(NamedTuple):
    """One collective of a layer kind; `rerun` has an entry a policy."""

    kind: int
    name: str
    operation: str
    axis: str
    elements: float
    forward: int
    backward: int
    rerun: tuple[bool, ...]


@dataclass(frozen=True)
class KindArrays:
    """All layer kinds of a model.

    layers: one layer of each kind.  boundary_elements: (K,) elements per sequence that cross a cut after it; where the
    graph branches, those that it sends to the next layer.
    transient_elements, transient_fp32_elements: (K,) per sequence.
    """

    chain: Chain
    layers: tuple[Layer, ...]
    boundary_elements: Floats
    operations: OperationRows
    saved: SavedRows
    weights: WeightRows
    collectives: tuple[CollectiveRow, ...]
    transient_elements: Floats
    transient_fp32_elements: Floats
    transient_sharding: Ints
    transient_vocabulary: Flags

    @property
    def num_kinds(self) -> int:
        return len(self.layers)

    def per_kind(self, kind: Ints, values: Floats) -> Floats:
        """Sum the rows of every kind."""
        import numpy as np

        return np.bincount(kind, weights=values, minlength=self.num_kinds).astype(float)


def divisors(sharding: Ints, divisor_of: Callable[[str], int]) -> Floats:
    """The divisor of every row, from the divisor of every kind of sharding."""
    import numpy as np

    return np.array([divisor_of(name) for name in SHARDINGS], dtype=float)[sharding]


def work_divisors(sharding: Ints, degrees: Degrees) -> Floats:
    """Chips that share each row's work or activation."""
    return divisors(sharding, degrees.work_divisor)


def weight_divisors(sharding: Ints, degrees: Degrees) -> Floats:
    """Chips that share each row's weight."""
    return divisors(sharding, degrees.weight_divisor)


def kind_arrays(graph: LayerGraph, policies: Sequence[str]) -> KindArrays:
    """Compress the chain of layers into kinds and lay their numbers out as arrays.

    Layers are of one kind here when they are of one kind in the graph and what they send on is of one size.
    """
    import numpy as np

    chain, layers, boundary = _compress(graph)
    return KindArrays(
        chain=chain,
        layers=layers,
        boundary_elements=np.array(boundary),
        operations=_operation_rows(layers, policies),
        saved=_saved_rows(layers, policies),
        weights=_weight_rows(graph, layers),
        collectives=tuple(_collective_rows(layers, policies)),
        transient_elements=np.array([layer.transient_elements for layer in layers], dtype=float),
        transient_fp32_elements=np.array([layer.transient_fp32_elements for layer in layers], dtype=float),
        transient_sharding=np.array([SHARDINGS.index(layer.transient_sharding) for layer in layers]),
        transient_vocabulary=np.array([layer.transient_vocabulary for layer in layers]),
    )


def _compress(graph: LayerGraph) -> tuple[Chain, tuple[Layer, ...], list[float]]:
    tensors = None if graph.is_chain else tuple(Tensor(*tensor) for tensor in graph.tensors())
    boundaries = list(graph.boundary_elements()) if tensors is None else _sent_to_next(graph, tensors)
    last = graph.layers[-1].kind
    same_as_last = [b for layer, b in zip(graph.layers, boundaries, strict=False) if layer.kind == last]
    boundaries.append(same_as_last[-1] if same_as_last else 0.0)
    index: dict[tuple[str, float], int] = {}
    layers: list[Layer] = []
    kinds: list[int] = []
    for layer, boundary in zip(graph.layers, boundaries, strict=True):
        key = (layer.kind, boundary)
        if key not in index:
            index[key] = len(layers)
            layers.append(layer)
        kinds.append(index[key])
    names = tuple(layer.name for layer in graph.layers)
    chain = Chain(names, tuple(kinds), tuple(layer.kind for layer in layers), tensors)
    return chain, tuple(layers), [boundary for _, boundary in index]


def _sent_to_next(graph: LayerGraph, tensors: Sequence[Tensor]) -> list[float]:
    """Elements that each layer but the last sends to the next one."""
    onward = [0.0] * (len(graph.layers) - 1)
    for tensor in tensors:
        if tensor.source + 1 in tensor.consumers:
            onward[tensor.source] += tensor.elements
    return onward


def _masks(sets: Iterable[frozenset[str]], policies: Sequence[str]) -> Flags:
    import numpy as np

    rows = list(sets)
    return np.array([[base_of(policy) in row for row in rows] for policy in policies], dtype=bool).reshape(
        len(policies), len(rows)
    )


def _operation_rows(layers: Sequence[Layer], policies: Sequence[str]) -> OperationRows:
    import numpy as np

    rows = [(k, op) for k, layer in enumerate(layers) for op in layer.operations]
    kind = np.array([k for k, _ in rows], dtype=int)
    return OperationRows(
        kind=kind,
        sharding=np.array([SHARDINGS.index(op.sharding) for _, op in rows], dtype=int),
        vocabulary=np.array([op.vocabulary for _, op in rows], dtype=bool),
        flops=np.array([op.flops for _, op in rows], dtype=float),
        weight_elements=np.array([op.weight_elements for _, op in rows], dtype=float),
        activation_elements=np.array([op.activation_elements for _, op in rows], dtype=float),
        attention=np.array([op.operation_class == "attention" for _, op in rows], dtype=bool),
        weight_gradient=np.array([op.weight_gradient for _, op in rows], dtype=bool),
        backward_ratio=np.array([op.backward_flops_ratio for _, op in rows], dtype=float),
        rerun=_masks((op.rerun for _, op in rows), policies),
    )


def _saved_rows(layers: Sequence[Layer], policies: Sequence[str]) -> SavedRows:
    import numpy as np

    rows = [(k, tensor) for k, layer in enumerate(layers) for tensor in layer.saved]
    kind = np.array([k for k, _ in rows], dtype=int)
    width = {"compute": 0, "mask": 1, "fp32": 4}
    kept = _masks((tensor.kept for _, tensor in rows), policies)
    offloaded = np.array([offloads(policy) for policy in policies], dtype=bool)[:, None]
    return SavedRows(
        kind=kind,
        sharding=np.array([SHARDINGS.index(tensor.sharding) for _, tensor in rows], dtype=int),
        vocabulary=np.array([tensor.vocabulary for _, tensor in rows], dtype=bool),
        elements=np.array([tensor.elements for _, tensor in rows], dtype=float),
        width=np.array([width[tensor.width] for _, tensor in rows], dtype=int),
        kept=kept & ~offloaded,
        moved=kept & offloaded,
    )


def _weight_rows(graph: LayerGraph, layers: Sequence[Layer]) -> WeightRows:
    import numpy as np

    copies: dict[tuple[str, int], int] = {}
    for layer in graph.layers:
        for weight in layer.weights:
            if weight.tied_to is not None:
                copies[weight.tied_to, weight.parameters] = copies.get((weight.tied_to, weight.parameters), 0) + 1
    rows = [(k, layer, weight) for k, layer in enumerate(layers) for weight in layer.weights]
    kind = np.array([k for k, _, _ in rows], dtype=int)
    with_matmul = np.array([any(op.operation_class == "matmul" for op in layer.operations) for layer in layers])
    sharding = np.array([SHARDINGS.index(weight.sharding) for _, _, weight in rows], dtype=int)
    divided = (sharding == SHARDINGS.index("tensor")) | (sharding == SHARDINGS.index("expert"))
    return WeightRows(
        kind=kind,
        sharding=sharding,
        vocabulary=np.array([weight.vocabulary for _, _, weight in rows], dtype=bool),
        parameters=np.array([weight.parameters for _, _, weight in rows], dtype=float),
        trained=np.array([weight.trained for _, _, weight in rows], dtype=bool),
        matmul=with_matmul[kind] & divided,
        copy=np.array([weight.tied_to is not None for _, _, weight in rows], dtype=bool),
        holders=np.array(
            [1 + copies.get((w.tied_to or layer.name, w.parameters), 0) for _, layer, w in rows], dtype=int
        ),
        matrices=np.array([max(1, graph.num_experts) if w.sharding == "expert" else 1 for _, _, w in rows], dtype=int),
    )


def _collective_rows(layers: Sequence[Layer], policies: Sequence[str]) -> Iterable[CollectiveRow]:
    for k, layer in enumerate(layers):
        for c in layer.collectives:
            rerun = tuple(base_of(policy) in c.rerun for policy in policies)
            yield CollectiveRow(k, c.name, c.kind, c.axis, c.elements, c.forward, c.backward, rerun)

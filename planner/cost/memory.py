"""Memory of every layer kind on one chip: static bytes, saved activations, working sets, communication buffers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.kinds import SHARDINGS, divisors, weight_divisors, work_divisors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.kinds import KindArrays, WeightRows
    from planner.cost.precision import Recipe, WeightClass
    from planner.cost.sharding import Degrees

    Floats = NDArray[np.float64]

__all__ = [
    "StaticMemory",
    "boundary_buffers_bytes",
    "element_buffer_bytes",
    "held_parameters",
    "moved_bytes",
    "saved_bytes",
    "static_memory",
    "transient_bytes",
    "weight_classes",
]

_VECTOR_PARAMETERS = 1 << 16


@dataclass(frozen=True)
class StaticMemory:
    """(K,) bytes that a layer keeps for the whole step."""

    weights: Floats
    gradients: Floats
    optimizer: Floats

    @property
    def total(self) -> Floats:
        return self.weights + self.gradients + self.optimizer


def weight_classes(weights: WeightRows) -> list[WeightClass]:
    """How the optimizer treats each weight: a vocabulary table, a vector (below 65,536 parameters), else a matrix."""
    return [
        "table" if vocabulary else ("vector" if parameters < _VECTOR_PARAMETERS else "matrix")
        for vocabulary, parameters in zip(weights.vocabulary, weights.parameters, strict=True)
    ]


def held_parameters(kinds: KindArrays, degrees: Degrees, single_stage: bool, padding: float) -> Floats:
    """Parameters of every weight row on one chip, with the padded vocabulary.

    Copies of tied matrices count only when their owner may be on another stage.
    """
    import numpy as np

    rows = kinds.weights
    held = rows.parameters * np.where(rows.vocabulary, padding, 1.0) / weight_divisors(rows.sharding, degrees)
    return np.where(rows.copy & single_stage, 0.0, held)


def static_memory(
    kinds: KindArrays, recipe: Recipe, degrees: Degrees, single_stage: bool, padding: float
) -> StaticMemory:
    """Weights, gradients and optimizer states of every layer kind:  parameters on the chip * bytes per parameter."""
    import numpy as np

    rows = kinds.weights
    held = held_parameters(kinds, degrees, single_stage, padding)
    per_parameter = [
        recipe.static(weight_class, bool(trained), degrees.weight_replicas(SHARDINGS[sharding]), bool(matmul))
        for weight_class, trained, sharding, matmul in zip(
            weight_classes(rows), rows.trained, rows.sharding, rows.matmul, strict=True
        )
    ]
    return StaticMemory(
        kinds.per_kind(rows.kind, held * np.array([p.weights for p in per_parameter])),
        kinds.per_kind(rows.kind, held * np.array([p.gradients for p in per_parameter])),
        kinds.per_kind(rows.kind, held * np.array([p.optimizer for p in per_parameter])),
    )


def saved_bytes(kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int, padding: float) -> Floats:
    """(Q, K) bytes that a micro-batch in flight keeps on one chip:  sum of kept elements * width * b / (t c).

    For a GPT layer: s b h (34 + 5 a s / h) / t with sequence parallelism, less 5 a s / h under `selective`, 2 s b h / t
    under `full` (Korthikanti et al., arXiv 2205.05198, table 2).
    """
    import numpy as np

    size = _saved_sizes(kinds, degrees, width, micro_batch_size, padding)
    return np.array([kinds.per_kind(kinds.saved.kind, size * kept) for kept in kinds.saved.kept])


def moved_bytes(kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int, padding: float) -> Floats:
    """(Q, K) bytes that one chip sends to host memory for a micro-batch:  the same sum, of what a policy offloads."""
    import numpy as np

    size = _saved_sizes(kinds, degrees, width, micro_batch_size, padding)
    return np.array([kinds.per_kind(kinds.saved.kind, size * moved) for moved in kinds.saved.moved])


def _saved_sizes(kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int, padding: float) -> Floats:
    """Bytes of every saved tensor on one chip:  elements * width * b / (t c)."""
    import numpy as np

    rows = kinds.saved
    padded = np.where(rows.vocabulary, padding, 1.0)
    size = padded * rows.elements * np.where(rows.width == 0, width, rows.width)
    result: Floats = size * micro_batch_size / work_divisors(rows.sharding, degrees)
    return result


def transient_bytes(
    kinds: KindArrays, recipe: Recipe, degrees: Degrees, micro_batch_size: int, padding: float
) -> Floats:
    """(Q, K) bytes of a layer's working set on one chip, at the worst moment of its forward or backward pass.

    the layer's own working set (logits!)
    + what its policy threw away and the backward pass makes again, or brings back from host memory:
      saved under `none` - kept on the chip under the policy
    + ZeRO-2: its whole gradient before it is scattered;  ZeRO-3: that and its gathered weights (one layer at a time)
    """
    import numpy as np

    width = recipe.weight
    padded = np.where(kinds.transient_vocabulary, padding, 1.0)
    own = padded * (width * kinds.transient_elements + 4 * kinds.transient_fp32_elements)
    own = own * micro_batch_size / work_divisors(kinds.transient_sharding, degrees)
    rows = kinds.saved
    size = _saved_sizes(kinds, degrees, width, micro_batch_size, padding)
    remade = np.array([kinds.per_kind(rows.kind, size * ~kept) for kept in rows.kept])
    result: Floats = remade + (own + _gathered_bytes(kinds, recipe, degrees, padding))[None, :]
    return result


def _gathered_bytes(kinds: KindArrays, recipe: Recipe, degrees: Degrees, padding: float) -> Floats:
    """(K,) bytes of a layer's whole gradient (from ZeRO-2) and whole weights (ZeRO-3), beside the shares that stay."""
    import numpy as np

    rows = kinds.weights
    if recipe.zero < 2 or rows.kind.size == 0:
        return np.zeros(kinds.num_kinds)
    held = held_parameters(kinds, degrees, False, padding)
    sharded = divisors(rows.sharding, degrees.weight_replicas) > 1
    width = recipe.gradient * rows.trained + (recipe.weight if recipe.zero == 3 else 0)
    return kinds.per_kind(rows.kind, held * width * sharded)


def boundary_buffers_bytes(kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int) -> float:
    """Receive buffers of a stage (bytes): the activation from the stage before, the gradient from the stage after.

        2 * largest boundary tensor * width * b / (t c)      t with sequence parallelism only
    Sizes are those of the largest boundary in the chain, so that they hold for any cut.
    Zero where the graph branches: there a stage has a buffer for each tensor and gradient that it really receives.
    """
    if kinds.chain.tensors is not None:
        return 0.0
    largest = float(kinds.boundary_elements.max(initial=0.0))
    return 2 * largest * width * micro_batch_size / degrees.work_divisor("sequence")


def element_buffer_bytes(kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int) -> float:
    """Bytes of a receive buffer for each element per sequence, where the graph branches:  width * b / (t c)."""
    if kinds.chain.tensors is None:
        return 0.0
    return width * micro_batch_size / degrees.work_divisor("sequence")

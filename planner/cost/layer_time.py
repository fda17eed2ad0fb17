"""Seconds of one layer of every kind for one micro-batch: arithmetic, by roofline or measurement, and collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.communication import all_gather_s, all_reduce_s, all_to_all_s, ring_exchange_s
from planner.cost.compute import roofline_s
from planner.cost.kinds import weight_divisors, work_divisors

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.communication import RingPath
    from planner.cost.compute import ChipRates
    from planner.cost.kinds import CollectiveRow, KindArrays
    from planner.cost.precision import Recipe
    from planner.cost.sharding import Degrees

    Floats = NDArray[np.float64]

__all__ = ["LayerTimes", "chosen_times", "collective_times", "compute_times", "measured_times"]


@dataclass(frozen=True)
class LayerTimes:
    """(K,) seconds for one micro-batch; recompute is (Q, K), what a policy adds to the backward pass."""

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    recompute_s: Floats

    def __add__(self, other: LayerTimes) -> LayerTimes:
        return LayerTimes(
            self.forward_s + other.forward_s,
            self.backward_input_s + other.backward_input_s,
            self.backward_weight_s + other.backward_weight_s,
            self.recompute_s + other.recompute_s,
        )


def compute_times(
    kinds: KindArrays, rates: ChipRates, degrees: Degrees, recipe: Recipe, micro_batch_size: int, padding: float
) -> LayerTimes:
    """Arithmetic of every layer kind on one chip (s), by the roofline. b sequences, t c chips that share an operation:

    forward:          flops * b/(t c);             bytes = width * (weights/t + activations * b/(t c))
    backward, input:  r/2 of the FLOPs (r without a weight part), the forward's bytes (times r without a weight part)
    backward, weight: r/2 of the FLOPs; bytes = width * activations * b/(t c) + 2 * gradient width * weights/t
    recompute:        the forward of every operation that the policy reruns

    r = backward_flops_ratio. Weights are read once per micro-batch, gradients read and written once (accumulation).
    padding: padded over real vocabulary, for embedding and head.
    """
    import numpy as np

    ops = kinds.operations
    padded = np.where(ops.vocabulary, padding, 1.0)
    share = micro_batch_size / work_divisors(ops.sharding, degrees)
    weights = padded * ops.weight_elements / weight_divisors(ops.sharding, degrees)
    activations = recipe.weight * padded * ops.activation_elements * share
    flops = padded * ops.flops * share
    num_bytes = recipe.weight * weights + activations
    half = ops.backward_ratio / 2
    input_ratio = np.where(ops.weight_gradient, half, ops.backward_ratio)
    byte_ratio = np.where(ops.weight_gradient, 1.0, ops.backward_ratio)
    weight_ratio = np.where(ops.weight_gradient, half, 0.0)
    weight_bytes = np.where(ops.weight_gradient, activations + 2 * recipe.gradient * weights, 0.0)
    rate = np.where(ops.attention, rates.attention_flops_per_s, rates.matmul_flops_per_s)
    memory = rates.memory_bytes_per_s
    forward = roofline_s(flops, num_bytes, rate, memory)
    return LayerTimes(
        kinds.per_kind(ops.kind, forward),
        kinds.per_kind(ops.kind, roofline_s(flops * input_ratio, num_bytes * byte_ratio, rate, memory)),
        kinds.per_kind(ops.kind, roofline_s(flops * weight_ratio, weight_bytes, rate, memory)),
        np.array([kinds.per_kind(ops.kind, forward * rerun) for rerun in ops.rerun]),
    )


def measured_times(kinds: KindArrays, chip: str, degrees: Degrees, micro_batch_size: int) -> tuple[LayerTimes, Floats]:
    """Measured layer times of a chip (s), and which kinds have them (1 or 0).

    A measurement is of one sequence on one chip with everything trained and nothing recomputed. An operation weighs w:
    its FLOPs, or the bytes it moves in a layer without FLOPs; r = backward_flops_ratio; sums over a layer's operations:

        forward    measured * b * (sum w / (t c)) / (sum w)                   (s)
        backward   measured * b * (sum w min(r, 2) / (t c)) / (sum 2 w)       (s), half weight part where it has one
        recompute  the forward's share of w that the policy reruns            (s)
    """
    import numpy as np

    zeros = np.zeros(kinds.num_kinds)
    known, forward, backward = zeros.copy(), zeros.copy(), zeros.copy()
    for k, layer in enumerate(kinds.layers):
        if chip in layer.measured:
            measured = layer.measured[chip]
            known[k], forward[k], backward[k] = 1.0, measured.forward_s, measured.backward_s
    ops = kinds.operations
    weight = _operation_weights(kinds)
    share = micro_batch_size * weight / work_divisors(ops.sharding, degrees)
    back = share * np.minimum(ops.backward_ratio, 2.0) / 2
    weight_part = np.where(ops.weight_gradient, back / 2, 0.0)
    none_given = np.bincount(ops.kind, minlength=kinds.num_kinds) == 0
    whole = none_given * micro_batch_size / degrees.context
    times = LayerTimes(
        forward * (kinds.per_kind(ops.kind, share) + whole),
        backward * (kinds.per_kind(ops.kind, back - weight_part) + whole),
        backward * kinds.per_kind(ops.kind, weight_part),
        forward * np.array([kinds.per_kind(ops.kind, share * rerun) for rerun in ops.rerun]),
    )
    return times, known


def _operation_weights(kinds: KindArrays) -> Floats:
    """What share of its layer each operation is: by FLOPs, else by bytes moved, else equal shares."""
    import numpy as np

    ops = kinds.operations
    weight = np.ones_like(ops.flops)
    for amount in (ops.activation_elements + ops.weight_elements, ops.flops):
        given = kinds.per_kind(ops.kind, amount) > 0
        weight = np.where(given[ops.kind], amount, weight)
    total = kinds.per_kind(ops.kind, weight)
    shares: Floats = weight / np.where(total > 0, total, 1.0)[ops.kind]
    return shares


def collective_times(
    kinds: KindArrays, degrees: Degrees, width: int, micro_batch_size: int, inside: RingPath, experts: RingPath
) -> LayerTimes:
    """Collectives of every layer kind (s), those of the backward pass in its input part; no overlap (an assumption)."""
    import numpy as np

    forward, backward = np.zeros(kinds.num_kinds), np.zeros(kinds.num_kinds)
    recompute = np.zeros((kinds.operations.rerun.shape[0], kinds.num_kinds))
    for row in kinds.collectives:
        seconds = _collective_s(row, degrees, width * micro_batch_size, inside, experts)
        forward[row.kind] += row.forward * seconds
        backward[row.kind] += row.backward * seconds
        recompute[:, row.kind] += np.array(row.rerun) * (row.forward * seconds)
    return LayerTimes(forward, backward, np.zeros(kinds.num_kinds), recompute)


def _collective_s(
    row: CollectiveRow, degrees: Degrees, bytes_per_element: int, inside: RingPath, experts: RingPath
) -> float:
    """One collective of one micro-batch (s).

    tensor:  ring all-reduce of elements / c over t chips of a node; with sequence parallelism its two halves
    context: ring exchange among c chips of a node, each with elements / (c t)
    expert:  all-to-all among e chips, each with elements / (c t); experts that are divided over the tensor group also
             gather their tokens there (or scatter the results), elements / c over t chips
    """
    num_bytes = row.elements * bytes_per_element / degrees.context
    if row.axis == "tensor":
        return all_reduce_s(num_bytes, degrees.tensor, inside.bytes_per_s, inside.latency_s)
    own = num_bytes / degrees.tensor
    if row.axis == "context":
        return ring_exchange_s(own, degrees.context, inside.bytes_per_s, inside.latency_s)
    layout = degrees.expert
    if layout.all_to_all == 1:
        return 0.0
    seconds = all_to_all_s(own, layout.all_to_all, experts.bytes_per_s, experts.latency_s)
    return seconds + all_gather_s(num_bytes, layout.tensor, inside.bytes_per_s, inside.latency_s)


def chosen_times(roofline: LayerTimes, measured: LayerTimes, known: Floats) -> LayerTimes:
    """Measured times where they are known, the roofline's elsewhere."""
    import numpy as np

    return LayerTimes(
        np.where(known, measured.forward_s, roofline.forward_s),
        np.where(known, measured.backward_input_s, roofline.backward_input_s),
        np.where(known, measured.backward_weight_s, roofline.backward_weight_s),
        np.where(known, measured.recompute_s, roofline.recompute_s),
    )

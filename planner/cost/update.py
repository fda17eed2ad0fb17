"""Gradient reduction and optimizer step after the last micro-batch, and what ZeRO-2 and ZeRO-3 send in every one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.communication import all_gather_s, all_reduce_s, reduce_scatter_s
from planner.cost.compute import newton_schulz_flops
from planner.cost.kinds import SHARDINGS
from planner.cost.memory import held_parameters, weight_classes

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.communication import RingPath
    from planner.cost.compute import ChipRates
    from planner.cost.kinds import KindArrays
    from planner.cost.precision import Recipe
    from planner.cost.sharding import Degrees

    Floats = NDArray[np.float64]
    Flags = NDArray[np.bool_]

__all__ = ["Reduction", "Rings", "optimizer_s", "reduction"]


@dataclass(frozen=True)
class Rings:
    """Slowest hops among replicas of dense weights, of routed experts, and between the stages of a tied matrix."""

    dense: RingPath
    expert: RingPath
    tied: RingPath


@dataclass(frozen=True)
class Reduction:
    """Seconds of communication for a stage's replicas, (K,) but for the last.

    In every micro-batch (ZeRO-2 and 3): forward_s, backward_input_s, backward_weight_s.
    Once a step: reduction_s, fixed_s.
    """

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    reduction_s: Floats
    fixed_s: float


def reduction(
    kinds: KindArrays, recipe: Recipe, degrees: Degrees, rings: Rings, single_stage: bool, padding: float
) -> Reduction:
    """Sum a stage's gradients over its replicas, exposed in full (no overlap with the backward pass: an assumption).

    ZeRO-0: all-reduce of gradients.
    ZeRO-1: reduce-scatter of gradients, all-gather of updated weights.
    ZeRO-2: the reduce-scatter in every micro-batch's weight part, as the whole gradient is never kept; one all-gather.
    ZeRO-3: all-gather of weights in every forward and backward pass, reduce-scatter in every backward pass; none after.
    Latency of what happens once a step is `fixed_s` (one buffer for all layers); in a micro-batch it counts per layer.
    """
    import numpy as np

    zero = np.zeros(kinds.num_kinds)
    result = Reduction(zero, zero, zero, _tied_s(kinds, recipe, degrees, rings.tied, single_stage, padding), 0.0)
    rows = kinds.weights
    held = held_parameters(kinds, degrees, single_stage, padding)
    expert = rows.sharding == SHARDINGS.index("expert")
    for path, members, chips in (
        (rings.dense, ~expert, degrees.replicas),
        (rings.expert, expert, degrees.expert.replicas),
    ):
        if chips > 1 and members.any():
            weights = kinds.per_kind(rows.kind, held * members)
            trained = kinds.per_kind(rows.kind, held * (members & rows.trained))
            result = _with_ring(result, recipe, weights, trained, chips, path)
    return result


def _with_ring(
    sums: Reduction, recipe: Recipe, weights: Floats, trained: Floats, chips: int, path: RingPath
) -> Reduction:
    """Add one ring's terms. weights, trained: (K,) parameters on the chip, of all weights and of trained ones."""
    gradients, updated = recipe.gradient * trained, recipe.weight * trained
    rate, alpha = path.bytes_per_s, path.latency_s
    if recipe.zero == 3:
        gather = all_gather_s(recipe.weight * weights, chips, rate, alpha) * (weights > 0)
        scatter = reduce_scatter_s(gradients, chips, rate, alpha) * (trained > 0)
        return Reduction(
            sums.forward_s + gather,
            sums.backward_input_s + gather,
            sums.backward_weight_s + scatter,
            sums.reduction_s,
            sums.fixed_s,
        )
    scatter_latency = (chips - 1) * alpha
    gather = all_gather_s(updated, chips, rate, 0.0)
    if recipe.zero == 2:
        scatter = reduce_scatter_s(gradients, chips, rate, alpha) * (trained > 0)
        return Reduction(
            sums.forward_s,
            sums.backward_input_s,
            sums.backward_weight_s + scatter,
            sums.reduction_s + gather,
            sums.fixed_s + scatter_latency,
        )
    whole = all_reduce_s(gradients, chips, rate, 0.0)
    if recipe.zero == 1:
        whole = reduce_scatter_s(gradients, chips, rate, 0.0) + gather
    return Reduction(
        sums.forward_s,
        sums.backward_input_s,
        sums.backward_weight_s,
        sums.reduction_s + whole,
        sums.fixed_s + 2 * scatter_latency,
    )


def _tied_s(
    kinds: KindArrays, recipe: Recipe, degrees: Degrees, path: RingPath, single_stage: bool, padding: float
) -> Floats:
    """(K,) seconds of the all-reduce of a tied matrix's gradient between the stages that hold it; none with one stage.

    Each stage counts it at its own NIC; the step is the maximum over stages, so the slower end decides. The link
    between the two stages is not known here and not counted (an assumption, stated).
    """
    import numpy as np

    rows = kinds.weights
    total = np.zeros(kinds.num_kinds)
    if single_stage:
        return total
    num_bytes = recipe.gradient * held_parameters(kinds, degrees, False, padding)
    for i in np.flatnonzero((rows.holders > 1) & rows.trained):
        total[rows.kind[i]] += all_reduce_s(float(num_bytes[i]), int(rows.holders[i]), path.bytes_per_s, path.latency_s)
    return total


def optimizer_s(
    kinds: KindArrays, recipe: Recipe, degrees: Degrees, rates: ChipRates, single_stage: bool, padding: float
) -> Floats:
    """(K,) seconds of the optimizer step: bytes touched / memory bandwidth, for this chip's share of the states.

    Muon adds Newton-Schulz steps on hidden matrices, each taken as square (one matrix an expert for routed weights),
    divided over the chips that share the weight and, from ZeRO-1, over replicas.
    """
    import numpy as np

    rows = kinds.weights
    held = held_parameters(kinds, degrees, single_stage, padding) * rows.trained
    classes = weight_classes(rows)
    replicas = [degrees.weight_replicas(SHARDINGS[s]) for s in rows.sharding]
    traffic = np.array([recipe.update_traffic(c, r) for c, r in zip(classes, replicas, strict=True)])
    seconds = held * traffic / rates.memory_bytes_per_s
    if recipe.optimizer == "muon":
        matrix = np.array([c == "matrix" for c in classes], dtype=bool)
        shards = np.array(replicas, dtype=float) if recipe.zero >= 1 else np.ones(len(replicas))
        flops = np.array([n * newton_schulz_flops(p / n) for p, n in zip(rows.parameters, rows.matrices, strict=True)])
        divided = held / np.where(rows.parameters > 0, rows.parameters, 1.0)
        seconds = seconds + flops * divided * matrix / shards / rates.matmul_flops_per_s
    return kinds.per_kind(rows.kind, seconds)

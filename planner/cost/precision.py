"""Bytes per parameter: what a precision recipe, an optimizer and a ZeRO level keep in memory and touch in an update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from planner.spec import Training

__all__ = [
    "COMPUTE_BYTES",
    "FP8_COPIES_BYTES",
    "Recipe",
    "StaticBytes",
    "WeightClass",
    "compute_precision",
    "recipe_of",
    "zero_levels",
]

WeightClass = Literal["matrix", "table", "vector"]
"""How an optimizer treats a weight: a hidden matrix, a vocabulary table (embedding, head), or a vector (norm, bias)."""

COMPUTE_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 2}
"""Width of weights and activations in the compute dtype. With fp8 only the matmuls run in eight bits; tensors between
them stay bf16, which is what a trainer keeps unless every layer around them is fp8 too."""

FP8_COPIES_BYTES = 2
"""Bytes per matmul weight that fp8 compute adds: an eight-bit copy and its transpose, kept from the first micro-batch
to the last. Hopper's fp8 matmuls take one layout only, hence the transpose (NVIDIA/TransformerEngine 1261 and 2168)."""

_FACTORED_BYTES = 4 * 2 / 1024
"""Adafactor's row and column sums of an n x m matrix: 4 (n + m) bytes, that is 4/m + 4/n per parameter. Stated for
1024 x 1024; larger matrices need less, and it is 0.04 % of the weights' own bytes either way."""


@dataclass(frozen=True)
class StaticBytes:
    """Bytes per parameter on one chip that stay for the whole step."""

    weights: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.weights + self.gradients + self.optimizer


def compute_precision(precision: str) -> str:
    """The dtype of everything that is not a matmul: fp8 compute keeps attention, norms and the loss in bf16."""
    return "bf16" if precision == "fp8" else precision


def _state_bytes(optimizer: str, weight_class: WeightClass) -> float:
    """fp32 optimizer states, bytes per parameter.

    adamw: two moments, 8.  sgd: momentum, 4.  adafactor: row and column sums of a matrix, 4 for a vector, no momentum.
    muon: momentum of hidden matrices, 4; tables and vectors are trained by adamw, 8 (Jordan 2024).
    """
    if optimizer == "adamw":
        return 8
    if optimizer == "sgd":
        return 4
    if optimizer == "adafactor":
        return 4 if weight_class == "vector" else _FACTORED_BYTES
    if optimizer == "muon":
        return 4 if weight_class == "matrix" else 8
    raise AssertionError(f"unknown optimizer {optimizer!r}")


@dataclass(frozen=True)
class Recipe:
    """Bytes of one trained parameter: compute copy, gradient, fp32 copy of the gradient, fp32 master weight."""

    precision: str
    optimizer: str
    zero: int
    weight: int
    gradient: int
    gradient_copy: int
    master: int

    def static(self, weight_class: WeightClass, trained: bool, replicas: int, fp8_matmul: bool = False) -> StaticBytes:
        """Bytes per parameter on one of `replicas` chips that hold the same weight.

        weights:   w (+ 2 for a matmul weight under fp8)              divided by d from ZeRO-3
        gradients: g                                                 divided by d from ZeRO-2
        optimizer: fp32 gradient copy + master + states              divided by d from ZeRO-1
        A frozen weight keeps its compute copy only.
        Source: Rajbhandari et al., arXiv 1910.02054; Megatron-LM, docs/user-guide/features/dist_optimizer.md
        (18 -> 6 + 12/d, 20 -> 4 + 16/d, 16 -> 8 + 8/d).
        """
        copies = FP8_COPIES_BYTES if fp8_matmul and self.precision == "fp8" else 0
        weights = (self.weight + copies) / self._shards(3, replicas)
        if not trained:
            return StaticBytes(weights, 0.0, 0.0)
        optimizer = self.gradient_copy + self.master + _state_bytes(self.optimizer, weight_class)
        return StaticBytes(weights, self.gradient / self._shards(2, replicas), optimizer / self._shards(1, replicas))

    def update_traffic(self, weight_class: WeightClass, replicas: int) -> float:
        """Bytes per parameter that one chip reads and writes in an optimizer step.

        gradient read + 2 * fp32 gradient copy + 2 * (master, or the weight itself without one) + 2 * states
        + compute copy written;  all divided by d from ZeRO-1: each replica updates its own share.
        """
        updated = 2 * self.master + self.weight if self.master else 2 * self.weight
        touched = self.gradient + 2 * self.gradient_copy + updated + 2 * _state_bytes(self.optimizer, weight_class)
        return touched / self._shards(1, replicas)

    def host_bytes(self, weight_class: WeightClass, replicas: int) -> float:
        """Bytes of host memory per trained parameter whose optimizer states one chip keeps there.

        gradient that arrives + fp32 gradient copy + master (or a copy of the weight) + states
        divided by d from ZeRO-1: each replica's host has the share that it updates.
        """
        kept = self.gradient + self.gradient_copy + (self.master or self.weight)
        return (kept + _state_bytes(self.optimizer, weight_class)) / self._shards(1, replicas)

    def drive_bytes(self, weight_class: WeightClass, replicas: int) -> float:
        """Bytes on drives per trained parameter whose optimizer states are there:  the same, with a gradient in fp32 at
        least, as DeepSpeed swaps it (`grad_buffer.float()` in deepspeed/runtime/zero/stage3.py).
        """
        wider = max(0, 4 - self.gradient - self.gradient_copy)
        return self.host_bytes(weight_class, replicas) + wider / self._shards(1, replicas)

    def copied_bytes(self, replicas: int) -> float:
        """Bytes per trained parameter that go to the host (gradient) and come back (weight) in an update there."""
        return (self.gradient + self.weight) / self._shards(1, replicas)

    def _shards(self, level: int, replicas: int) -> int:
        return replicas if self.zero >= level else 1


def zero_levels(training: Training) -> tuple[int, ...]:
    """The ZeRO levels that a model file leaves to choose from, ascending."""
    return (training.zero,) if isinstance(training.zero, int) else tuple(training.zero)


def recipe_of(training: Training, zero: int | None = None) -> Recipe:
    """The recipe that a model file asks for. zero: the ZeRO level; None: the least that it allows.

    bf16, fp8: 2 + gradient (4 in fp32, 2 in compute dtype) + master 4 + states.
    fp16: the same with fp32 gradients; with fp16 gradients an fp32 copy (4) is made before the update, to undo the
    loss scale (Megatron-LM's 20 bytes). bf16 has no loss scale, so bf16 gradients need no copy (16 bytes).
    fp32: weights are their own master: 4 + 4 + states.
    `master_weights: none`: the optimizer updates the compute copy.
    """
    weight = COMPUTE_BYTES[training.precision]
    gradient = 4 if training.gradients == "fp32" else weight
    own_master = weight == 4
    master = 0 if own_master or training.master_weights == "none" else 4
    unscaled = training.precision == "fp16" and gradient == 2 and master == 4
    return Recipe(
        precision=training.precision,
        optimizer=training.optimizer,
        zero=zero_levels(training)[0] if zero is None else zero,
        weight=weight,
        gradient=gradient,
        gradient_copy=4 if unscaled else 0,
        master=master,
    )

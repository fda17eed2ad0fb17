"""Collects what one layer computes, keeps and sends, while the layer is put together from attention, MLP, norms."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from planner.graph.layers import Collective, Layer, Operation, SavedTensor, Weight
from planner.graph.recipe import ALWAYS, NEVER, ONLY_FULL, UNLESS_FULL
from planner.graph.shapes import norm_parameters

if TYPE_CHECKING:
    from planner.graph.layers import OperationClass, Sharding
    from planner.graph.recipe import Recipe
    from planner.graph.shapes import NormKind

__all__ = ["Parts"]


class Parts:
    """A layer under construction.

    recomputed False: the layer's recompute policies change nothing (embedding, final norm, head).
    """

    def __init__(self, recipe: Recipe, *, recomputed: bool = True) -> None:
        self.recipe = recipe
        self.recomputed = recomputed
        self.weights: list[Weight] = []
        self.operations: list[Operation] = []
        self.saved: list[SavedTensor] = []
        self.collectives: list[Collective] = []
        self.transient_elements = 0.0
        self.transient_fp32_elements = 0.0
        self.transient_vocabulary = False

    def weight(
        self,
        name: str,
        parameters: int,
        sharding: Sharding = "tensor",
        *,
        trained: bool = True,
        tied_to: str | None = None,
        vocabulary: bool = False,
    ) -> None:
        """Parameters; none are added when the count is zero."""
        if parameters:
            self.weights.append(Weight(name, parameters, sharding, trained, tied_to, vocabulary))

    def matmul(
        self,
        name: str,
        width_in: int,
        width_out: int,
        *,
        sharding: Sharding = "tensor",
        bias: Sharding | None = None,
        rows: float = 1.0,
    ) -> None:
        """A weight matrix and its multiplication with every token. bias: how its bias vector is divided; rows:

        tokens per token of the sequence.
        """
        weight_sharding: Sharding = "replicated" if sharding == "sequence" else sharding
        self.weight(name, width_in * width_out, weight_sharding)
        if bias is not None:
            self.weight(f"{name}_bias", width_out, bias)
        self.multiply(name, width_in, width_out, width_in * width_out, sharding=sharding, rows=rows)

    def multiply(
        self,
        name: str,
        width_in: int,
        width_out: int,
        weight_elements: float,
        *,
        sharding: Sharding = "tensor",
        rows: float = 1.0,
        backward_flops_ratio: float = 2.0,
        operation_class: OperationClass = "matmul",
        vocabulary: bool = False,
    ) -> None:
        """Multiplication of every token with weights that are counted elsewhere."""
        tokens = rows * self.recipe.tokens
        self._run(
            Operation(
                name=name,
                operation_class=operation_class,
                flops=2.0 * tokens * width_in * width_out,
                sharding=sharding,
                weight_elements=weight_elements,
                activation_elements=tokens * (width_in + width_out),
                weight_gradient=True,
                backward_flops_ratio=backward_flops_ratio,
                rerun=ONLY_FULL,
                vocabulary=vocabulary,
            )
        )

    def attention_core(
        self,
        name: str,
        flops: float,
        useful_flops: float,
        elements: float,
        backward_flops_ratio: float,
    ) -> None:
        """Scores, softmax and values, or one of them."""
        self._run(
            Operation(
                name=name,
                operation_class="attention",
                flops=flops,
                sharding="tensor",
                activation_elements=elements,
                backward_flops_ratio=backward_flops_ratio,
                rerun=self.recipe.core_rerun,
                useful_flops=None if useful_flops == flops else useful_flops,
            )
        )

    def elementwise(
        self,
        name: str,
        elements: float,
        sharding: Sharding,
        *,
        backward_ratio: float,
        rerun: frozenset[str] = ONLY_FULL,
        vocabulary: bool = False,
    ) -> None:
        """Arithmetic that is bound by memory bandwidth:

        elements read and written, and how many more (or fewer) the backward pass moves.
        """
        self._run(
            Operation(
                name=name,
                operation_class="elementwise",
                flops=0.0,
                sharding=sharding,
                activation_elements=elements,
                backward_flops_ratio=backward_ratio,
                rerun=rerun,
                vocabulary=vocabulary,
            )
        )

    def norm(
        self, name: str, kind: NormKind, width: int, *, count: float = 1.0, rerun: frozenset[str] | None = None
    ) -> None:
        """A norm over `width`; reads and writes every token once, and reads the gradient too on the way back."""
        self.weight(name, norm_parameters(kind, width), "replicated")
        elements = 2.0 * count * self.recipe.tokens * width
        rerun = self.recipe.cheap_rerun if rerun is None else rerun
        self.elementwise(name, elements, "sequence", backward_ratio=1.5, rerun=rerun)

    def save(
        self,
        name: str,
        elements: float,
        sharding: Sharding = "sequence",
        *,
        width: Literal["compute", "mask", "fp32"] = "compute",
        kept: frozenset[str] = UNLESS_FULL,
        vocabulary: bool = False,
    ) -> None:
        """A tensor that stays until the backward pass."""
        if elements:
            kept = kept if self.recomputed else ALWAYS
            self.saved.append(SavedTensor(name, elements, sharding, width, kept, vocabulary))

    def exchange(
        self,
        name: str,
        kind: Literal["all_reduce", "all_to_all", "ring"],
        axis: Literal["tensor", "expert", "context"],
        elements: float,
        *,
        forward: int = 1,
        backward: int = 1,
        rerun: frozenset[str] = ONLY_FULL,
    ) -> None:
        """Communication inside the layer."""
        rerun = rerun if self.recomputed else NEVER
        self.collectives.append(Collective(name, kind, axis, elements, forward, backward, rerun))

    def need(self, elements: float, fp32_elements: float = 0.0, *, vocabulary: bool = False) -> None:
        """A working set; the largest one stays. vocabulary: it is logits."""
        widths = self.recipe.fp32_widths
        if elements + widths * fp32_elements > self.transient_elements + widths * self.transient_fp32_elements:
            self.transient_elements, self.transient_fp32_elements = elements, fp32_elements
            self.transient_vocabulary = vocabulary

    def layer(self, name: str, kind: str) -> Layer:
        """The finished layer."""
        return Layer(
            name=name,
            kind=kind,
            weights=tuple(self.weights),
            operations=tuple(self.operations),
            saved=tuple(self.saved),
            collectives=tuple(self.collectives),
            transient_elements=self.transient_elements,
            transient_fp32_elements=self.transient_fp32_elements,
            transient_vocabulary=self.transient_vocabulary,
        )

    def _run(self, operation: Operation) -> None:
        self.operations.append(operation if self.recomputed else replace(operation, rerun=NEVER))

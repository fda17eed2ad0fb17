"""The layer graph: what each layer computes, keeps in memory and sends on.

Numbers are for one whole sequence, unsharded.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from planner.errors import Notice

__all__ = [
    "Collective",
    "Edge",
    "Layer",
    "LayerGraph",
    "MeasuredTime",
    "OperationClass",
    "Operation",
    "RecomputePolicy",
    "SavedTensor",
    "Sharding",
    "Weight",
]

RecomputePolicy = Literal["none", "selective", "full"]

OperationClass = Literal["matmul", "attention", "elementwise", "embedding"]
"""Which efficiency applies: dense matmul, attention core, bandwidth-bound arithmetic (norms, activations, loss), table
look-up.
"""

Sharding = Literal["tensor", "sequence", "replicated", "expert"]
"""How tensor parallelism divides a quantity: `tensor` by t always; `sequence` by t only with sequence parallelism;
`replicated` never; `expert` belongs to routed experts: weights by the expert shards, work and activations by t.
Context parallelism divides everything per sequence (not the weights) by c."""


@dataclass(frozen=True)
class Weight:
    """Parameters of one kind in a layer.

    `tied_to` names the layer that owns the same matrix: this layer keeps a copy when it sits on another stage, and its
    parameters do not count again in the model's total.
    vocabulary: the matrix has one row a vocabulary entry, so tensor parallelism pads it (`limits.padded_vocabulary`).
    """

    name: str
    parameters: int
    sharding: Sharding
    trained: bool = True
    tied_to: str | None = None
    vocabulary: bool = False


@dataclass(frozen=True)
class Operation:
    """One operation of a layer's forward pass, for one sequence.

    flops: multiply and add count as two.  weight_elements: weights read once per micro-batch.
    activation_elements: elements read and written per sequence (bandwidth side of the roofline).
    weight_gradient: the backward pass has a weight part of the same FLOPs (matmul with weights); otherwise the whole
    backward is input part.
    backward_flops_ratio: backward FLOPs over forward FLOPs, input and weight parts together (2 for matmuls and
    attention; 2.5 for flash attention, which recomputes scores).
    For elementwise operations the ratio is of bytes moved, because they are priced by their bytes (their FLOPs are
    given as zero).
    rerun: the recompute policies under which the operation runs again in the backward pass.
    useful_flops: what the mathematics needs when the kernel does more (a `math` attention kernel computes masked
    scores too); None: all of `flops`.
    vocabulary: FLOPs, weights and bytes grow with the vocabulary.
    """

    name: str
    operation_class: OperationClass
    flops: float
    sharding: Sharding
    weight_elements: float = 0.0
    activation_elements: float = 0.0
    weight_gradient: bool = False
    backward_flops_ratio: float = 2.0
    rerun: frozenset[str] = frozenset({"full"})
    useful_flops: float | None = None
    vocabulary: bool = False


@dataclass(frozen=True)
class SavedTensor:
    """A tensor kept from forward to backward, for one sequence.

    width: `compute` is the compute dtype's width (2 bytes for bf16, 4 for fp32), `mask` one byte, `fp32` four bytes.
    kept: the recompute policies under which it stays in memory (always contains "none").
    vocabulary: elements grow with the vocabulary (kept logits).
    """

    name: str
    elements: float
    sharding: Sharding
    width: Literal["compute", "mask", "fp32"] = "compute"
    kept: frozenset[str] = frozenset({"none", "selective"})
    vocabulary: bool = False


@dataclass(frozen=True)
class Collective:
    """Communication inside a layer, for one sequence.

    axis `tensor`: `all_reduce` of `elements` over the tensor group (with sequence parallelism its two halves,
    reduce-scatter and all-gather: the same volume).
    axis `expert`: `all_to_all` of `elements` (tokens x top_k x hidden) over the expert group, dispatch or combine.
    axis `context`: `ring` exchange of `elements` (keys and values) over the context group.
    forward, backward: how often it runs in each pass; `rerun` as in Operation.
    """

    name: str
    kind: Literal["all_reduce", "all_to_all", "ring"]
    axis: Literal["tensor", "expert", "context"]
    elements: float
    forward: int = 1
    backward: int = 1
    rerun: frozenset[str] = frozenset({"full"})


@dataclass(frozen=True)
class MeasuredTime:
    """Measured seconds of one layer for one sequence on one chip (tensor parallel 1), overriding the roofline."""

    forward_s: float
    backward_s: float


@dataclass(frozen=True)
class Layer:
    """One node of the layer graph. Layers with equal `kind` are equal in every number.

    transient_elements: largest working set of the layer beside what it saves, per sequence, in `compute` width
    (e.g. logits); transient_fp32_elements: the same in four-byte width.  transient_sharding: how these divide.
    transient_vocabulary: they are logits, and grow with the vocabulary.
    measured_only: its FLOPs are not known (an explicit node with times only): a chip that is not in `measured` cannot
    run it.
    What a recompute policy freed is in memory again while its layer runs backward; that is `saved`, not counted here.
    """

    name: str
    kind: str
    weights: tuple[Weight, ...] = ()
    operations: tuple[Operation, ...] = ()
    saved: tuple[SavedTensor, ...] = ()
    collectives: tuple[Collective, ...] = ()
    transient_elements: float = 0.0
    transient_fp32_elements: float = 0.0
    transient_sharding: Sharding = "tensor"
    transient_vocabulary: bool = False
    measured_only: bool = False
    measured: dict[str, MeasuredTime] = field(default_factory=dict, hash=False)

    @property
    def parameters(self) -> int:
        """Parameters the layer owns (tied copies belong to their owner)."""
        return sum(w.parameters for w in self.weights if w.tied_to is None)


@dataclass(frozen=True)
class Edge:
    """A tensor from one layer to another: elements per sequence in `compute` width."""

    source: str
    target: str
    elements: float


@dataclass(frozen=True)
class LayerGraph:
    """All layers, in a topological order (the chain order the search splits), and the tensors between them.

    tensor_divisors: (Hugging Face field, number) pairs that a tensor parallel degree must divide
    (`limits.tensor_parallel_refusal` says which one it breaks);
    `num_experts` bounds expert parallelism.  num_heads and num_kv_heads are 0, vocabulary is 0 where the graph does
    not know them (explicit graphs).
    active_parameters: parameters that one token meets: routed experts count top_k of num_experts; prediction heads for
    later tokens (`mtp.N`) and
    the router's balancing bias do not count, as in published figures.
    """

    name: str
    layers: tuple[Layer, ...]
    edges: tuple[Edge, ...]
    sequence_length: int
    vocabulary: int
    num_heads: int
    num_kv_heads: int
    num_experts: int = 0
    active_parameters: int | None = None
    tensor_divisors: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()
    """Assumptions a reader of the plan must know, one sentence each (e.g. 'the vision tower is not planned')."""
    notices: tuple[Notice, ...] = ()
    """Notes that deserve a warning; each one's sentence is among `notes` too."""

    @property
    def parameters(self) -> int:
        """Exact parameter count; tied matrices count once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def is_chain(self) -> bool:
        """Whether every layer feeds the next one and no other."""
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        fed = {(position[edge.source], position[edge.target]) for edge in self.edges}
        return fed == {(i, i + 1) for i in range(len(self.layers) - 1)}

    def tensors(self) -> tuple[tuple[int, tuple[int, ...], float], ...]:
        """(layer that makes it, layers that need it, elements per sequence) of every tensor, by position.

        Edges of one source with one size are one tensor.
        """
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        needed: dict[tuple[int, float], set[int]] = {}
        for edge in self.edges:
            needed.setdefault((position[edge.source], edge.elements), set()).add(position[edge.target])
        return tuple((source, tuple(sorted(users)), size) for (source, size), users in sorted(needed.items()))

    def boundary_elements(self) -> tuple[float, ...]:
        """Elements per sequence that cross the cut after each layer but the last:

        every tensor made before and used after it, once.
        """
        position = {layer.name: i for i, layer in enumerate(self.layers)}
        last_use: dict[tuple[str, float], int] = {}
        for edge in self.edges:
            key = (edge.source, edge.elements)
            last_use[key] = max(last_use.get(key, 0), position[edge.target])
        steps = [0.0] * len(self.layers)
        for (source, elements), last in last_use.items():
            steps[position[source]] += elements
            steps[last] -= elements
        return tuple(accumulate(steps[:-1]))

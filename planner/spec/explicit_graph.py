"""A layer graph written out: for models that no configuration describes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, WithJsonSchema

from planner.spec.base import Duration, Name, SizeBytes, SpecModel, Title, Work, filled, whole_number

__all__ = ["ExplicitGraph", "GraphEdge", "GraphNode", "LayerTimes"]

_Parameters = Annotated[
    int, whole_number("the number of parameters", 0, 10**15), WithJsonSchema({"type": "integer", "minimum": 0})
]


class LayerTimes(SpecModel):
    """Measured times of one layer for one sequence on one chip, without tensor parallelism."""

    forward_s: Duration = Field(alias="forward", examples=["2 ms"])
    """Forward pass, e.g. `2 ms`."""

    backward_s: Duration = Field(alias="backward", examples=["4 ms"])
    """Backward pass, both parts."""


class GraphNode(SpecModel):
    """One layer; all sizes and times are for one sequence."""

    name: Name = Field(examples=["conv1"])
    """The layer's name."""

    kind: Title | None = None
    """Layers of one kind are equal in every number. Absent: found out from the numbers."""

    parameters: _Parameters = Field(examples=["1048576"])
    """Number of parameters."""

    forward_flops: Work | None = Field(default=None, examples=["1.5 TFLOP"])
    """Work of the forward pass; multiply and add count as two. Absent (with `times`): only chips
    whose times are given can run the layer."""

    bytes_moved: SizeBytes = Field(default=0, alias="moved", examples=["200 MB"])
    """Bytes read and written by the forward pass, beside the weights. 0: memory bandwidth does not limit the layer."""

    saved_bytes: SizeBytes = Field(alias="saved", examples=["80 MiB"])
    """What stays in memory from the forward to the backward pass."""

    output_bytes: SizeBytes = Field(alias="output", examples=["16 MiB"])
    """What goes on to the next layers, on every edge that gives no `bytes` of its own."""

    transient_bytes: SizeBytes = Field(default=0, alias="transient", examples=["80 MiB"])
    """Largest working set beside what is saved."""

    tensor_parallel: Annotated[bool, Field(strict=True)] = False
    """Whether the layer may be split over the chips of a stage; if not, they all compute the whole of it."""

    times: dict[Name, LayerTimes] = Field(default_factory=dict)
    """Measured times by chip; they take the place of the roofline on that chip."""


class GraphEdge(SpecModel):
    """A tensor that goes from one layer to another."""

    source: Name = Field(examples=["conv1"])
    """The layer that makes it."""

    target: Name = Field(examples=["conv2"])
    """The layer that needs it."""

    bytes: SizeBytes | None = Field(default=None, examples=["16 MiB"])
    """Bytes per sequence. Absent: the source's `output`."""


class ExplicitGraph(SpecModel):
    """Layers and the tensors between them."""

    nodes: Annotated[tuple[GraphNode, ...], filled("layer", 20_000)] = Field(
        examples=["[{name: a, parameters: 1000, forward_flops: 1 TFLOP, saved: 1 MB, output: 1 MB}]"]
    )
    """The layers."""

    edges: tuple[GraphEdge, ...] = ()
    """The tensors."""

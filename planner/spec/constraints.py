"""What a user pins: degrees, stages, layers, groups."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, WithJsonSchema

from planner.spec.base import Name, SpecModel, distinct, filled, whole_number

__all__ = ["Constraints"]

_Degree = Annotated[
    int, whole_number("a parallel degree", 1, 1_000_000), WithJsonSchema({"type": "integer", "minimum": 1})
]
_NumStages = Annotated[
    int, whole_number("a number of stages", 1, 100_000), WithJsonSchema({"type": "integer", "minimum": 1})
]
_NumLayers = Annotated[
    int, whole_number("a number of layers", 1, 100_000), WithJsonSchema({"type": "integer", "minimum": 1})
]


def _shape(value: Any) -> str:
    """Which of the forms a value has; tags start with `~` so that messages leave them out."""
    if isinstance(value, dict):
        return "~each"
    return "~some" if isinstance(value, (list, tuple)) else "~one"


def _one_or_some(value: Any) -> str:
    return "~some" if _shape(value) == "~some" else "~one"


def _one_or_each(value: Any) -> str:
    return "~each" if _shape(value) == "~each" else "~one"


_DegreeList = Annotated[tuple[_Degree, ...], filled("degree", 64), AfterValidator(distinct)]
_Degrees = Annotated[
    Annotated[_Degree, Tag("~one")] | Annotated[_DegreeList, Tag("~some")], Discriminator(_one_or_some)
]
_GroupNames = Annotated[tuple[Name, ...], filled("node group", 256, empty=True), AfterValidator(distinct)]
_Order = Annotated[tuple[Name, ...], filled("node group", 256), AfterValidator(distinct)]
_TensorDegrees = Annotated[
    Annotated[dict[Name, _Degrees], Tag("~each")] | Annotated[_Degree, Tag("~one")], Discriminator(_one_or_each)
]


class Constraints(SpecModel):
    """What the search must keep to. Everything else stays free."""

    tensor_parallel: _TensorDegrees | None = Field(default=None, examples=["{a100: 8, v100: [4, 8]}"])
    """Tensor parallel degree: one number for all node groups, or by group a number or a list to choose from."""

    pipeline_parallel: _NumStages | None = None
    """Number of stages of a pipeline, all groups together."""

    data_parallel: _Degrees | None = Field(default=None, examples=["4"])
    """Data parallel degree: a number, or a list to choose from."""

    stages: dict[Name, _NumStages] | None = Field(default=None, examples=["{a100: 6}"])
    """Number of stages on a node group."""

    order: _Order | None = Field(default=None, examples=["[a100, v100]"])
    """Order of the node groups along the pipeline. Groups that it does not name stay idle."""

    layers_per_stage: tuple[_NumLayers, ...] | None = Field(default=None, examples=["[10, 12, 12, 10]"])
    """Layers of each stage, first to last, as the graph counts them (embedding, norm and head are layers)."""

    idle: _GroupNames = ()
    """Node groups that stay idle."""

    use: _GroupNames = ()
    """Node groups that must be used."""

    micro_batch_size: Annotated[int, whole_number("a micro-batch size", 1, 1_000_000)] | None = None
    """The micro-batch size."""

    shapes: Literal["mixed", "identical"] | None = None
    """`mixed`: pipelines of several shapes may train together, each with its own stages, micro-batches and micro-batch
    size. `identical`: all pipelines are replicas of one shape. Absent: `mixed`, where that is possible."""

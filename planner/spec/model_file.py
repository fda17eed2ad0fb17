"""The model file as people write it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, ConfigDict, Field

from planner.spec.base import SpecModel, Text, Title, refusal
from planner.spec.constraints import Constraints
from planner.spec.explicit_graph import ExplicitGraph
from planner.spec.kinds import QuantityError
from planner.spec.model import Training

__all__ = ["SOURCES", "ModelFile", "ModelSource"]

SOURCES = ("config", "preset", "dimensions", "graph")


def _read_source(value: Any) -> Any:
    if isinstance(value, str) and value.strip():
        key = "config" if value.endswith(".json") or "/" in value else "preset"
        why = "a model is a config, a preset, dimensions or a graph"
        raise refusal(QuantityError("does not say what it is", why, f"write `model: {{{key}: {value[:80]}}}`"))
    return value


def _read_dimensions(value: Any) -> Any:
    if isinstance(value, dict) and not value:
        fix = "write `num_hidden_layers: 32`, `hidden_size: 4096`, ..."
        raise refusal(QuantityError("is empty", "Hugging Face's field names are expected", fix))
    return value


class ModelSource(SpecModel):
    """Where the layers come from: exactly one of the four."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})

    config: Title | None = Field(default=None, examples=["./config.json"])
    """Path of a Hugging Face config.json, or of the folder that holds it, relative to this file."""

    preset: Title | None = Field(default=None, examples=["llama-3.1-70b"])
    """Name of a shipped model."""

    dimensions: Annotated[dict[str, Any], BeforeValidator(_read_dimensions)] | None = Field(
        default=None,
        examples=["{num_hidden_layers: 32, hidden_size: 4096, vocab_size: 32000}"],
    )
    """Hugging Face's field names and values. Without `model_type`: a Llama-like model."""

    graph: ExplicitGraph | None = None
    """The layers themselves, with sizes and work or measured times."""


class ModelFile(SpecModel):
    """A model file."""

    name: Title | None = None
    """The model's name. Absent: the file's name."""

    notes: Text | None = None
    """Free text."""

    model: Annotated[ModelSource, BeforeValidator(_read_source)] = Field(examples=["{preset: llama-3.1-8b}"])
    """What is trained."""

    training: Training = Field(examples=["{sequence_length: 4096, global_batch: 1024}"])
    """How it is trained."""

    constraints: Constraints | None = None
    """What the search must keep to."""

    frozen: tuple[Title, ...] = Field(default=(), examples=["[embedding, layers.0]"])
    """Layers that are not trained: names, or patterns such as `layers.1?` or `encoder.*`."""

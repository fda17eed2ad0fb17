"""JSON Schemas of the files people write, made from the models, so that editors complete and check."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from planner.spec.cluster_file import ClusterFile
from planner.spec.model_file import ModelFile
from planner.spec.profile import ProfileFile
from planner.spec.yaml_reader import parse_yaml

__all__ = ["SchemaKind", "schema_for"]

SchemaKind = Literal["cluster", "model", "profile"]

_FILES: dict[str, tuple[type[BaseModel], str]] = {
    "cluster": (ClusterFile, "dplan cluster file"),
    "model": (ModelFile, "dplan model file"),
    "profile": (ProfileFile, "dplan chip profile"),
}


def schema_for(kind: SchemaKind) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a kind of file."""
    model, title = _FILES[kind]
    schema = model.model_json_schema(by_alias=True, mode="validation")
    _tidy(schema)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema, "title": title}


def _tidy(schema: Any) -> None:
    """Leaves `default: null` and generated titles out (an absent key says the same) and types the examples."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
    if not isinstance(schema, dict):
        return
    if schema.get("default", ...) is None:
        del schema["default"]
    if isinstance(schema.get("title"), str):
        del schema["title"]
    if isinstance(schema.get("examples"), list):
        schema["examples"] = [
            parse_yaml(f"example: {text}", "example").data()["example"] for text in schema["examples"]
        ]
    for item in schema.values():
        _tidy(item)

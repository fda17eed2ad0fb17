"""Layer graphs from a line of a test."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planner.graph import LayerGraph, build_graph
from planner.spec.explicit_graph import ExplicitGraph
from planner.spec.model import ModelSpec, Training

GraphOf = Callable[..., LayerGraph]

_DEFAULTS: dict[str, Any] = {"sequence_length": 512, "global_batch": 8}


def _model(
    source: str, *, frozen: tuple[str, ...] = (), graph: Any = None, architecture: Any = None, **training: Any
) -> ModelSpec:
    return ModelSpec(
        name="test",
        source=source,  # type: ignore[arg-type]
        architecture=architecture or {},
        graph=graph,
        frozen=frozen,
        training=Training(**{**_DEFAULTS, **training}),
    )


@pytest.fixture
def graph_of() -> GraphOf:
    """The graph of a Hugging Face configuration; keywords are training settings, or `frozen`."""
    return lambda config, **settings: build_graph(_model("config", architecture=config, **settings))


@pytest.fixture
def preset_graph() -> GraphOf:
    """The graph of a preset."""
    return lambda name, **settings: build_graph(_model("preset", architecture={"preset": name}, **settings))


@pytest.fixture
def dimensions_graph() -> GraphOf:
    """The graph of `dimensions`."""
    return lambda fields, **settings: build_graph(_model("dimensions", architecture=fields, **settings))


@pytest.fixture
def explicit_graph() -> GraphOf:
    """The graph of nodes and edges, as in `explicit_graph({"a": {}, "b": {}}, [("a", "b")])`.

    A node's fields default to small numbers.
    """

    def build(nodes: Any, edges: list[Any], **settings: Any) -> LayerGraph:
        plain = {"parameters": 100, "forward_flops": 1000.0, "saved_bytes": 80, "output_bytes": 40}
        entries = nodes.items() if isinstance(nodes, dict) else nodes
        written = [{**plain, "name": name, **fields} for name, fields in entries]
        links = [{"source": edge[0], "target": edge[1], **(edge[2] if len(edge) > 2 else {})} for edge in edges]
        graph = ExplicitGraph.model_validate({"nodes": written, "edges": links})
        return build_graph(_model("graph", graph=graph, **settings))

    return build


@pytest.fixture(scope="session")
def reference_models() -> list[dict[str, Any]]:
    """The configurations and exact counts of 58 public models, kept beside the project."""
    path = Path(__file__).parents[2].parent / "shared" / "reference" / "models.json"
    if not path.exists():
        pytest.skip(f"{path} is not here: it is kept beside the project, not in it")
    models: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return models

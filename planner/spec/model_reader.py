"""From a model file to a `ModelSpec`: one source of layers, a graph that hangs together, a batch that divides."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from planner.errors import InputError, Notice
from planner.spec.cluster_reader import parse_document
from planner.spec.constraints import Constraints
from planner.spec.files import STDIN, read_text
from planner.spec.graph_checks import check_graph
from planner.spec.json_reader import read_json
from planner.spec.model import ModelSpec, Training
from planner.spec.model_file import SOURCES, ModelFile
from planner.spec.reading import Collector, node_at
from planner.spec.shipped import find_document
from planner.spec.tree import Document, MapNode, ScalarNode

__all__ = ["load_model", "parse_model"]

_Source = Literal["config", "preset", "dimensions", "graph"]


def load_model(path_or_name: str | Path) -> ModelSpec:
    """The model in a file, in standard input (`-`), or shipped under that bare name."""
    path = find_document(path_or_name, "models")
    text, file = read_text(path, "the model file")
    near = Path() if str(path) == STDIN else Path(path).parent
    return _resolve(parse_document(text, file), near)


def parse_model(text: str, file_name: str) -> ModelSpec:
    """The same from a text; a config's path is relative to `file_name`'s folder."""
    return _resolve(parse_document(text, file_name), Path(file_name).parent)


def _resolve(document: Document, near: Path) -> ModelSpec:
    collector = Collector(document)
    _refuse_a_bare_config(document)
    file = collector.validate(ModelFile, document.data())
    source = _source(collector)
    if source == "graph":
        check_graph(collector, ("model", "graph"))
    config, config_file = _config(collector, near) if source == "config" else ({}, "")
    collector.finish()
    assert file is not None and source is not None, "a file that is not valid has problems"
    architecture: dict[str, Any] = {
        "config": config,
        "preset": {"preset": file.model.preset},
        "dimensions": file.model.dimensions or {},
        "graph": {},
    }[source]
    return ModelSpec(
        name=file.name or Path(document.file).stem.strip("<>"),
        source=source,
        architecture=architecture,
        graph=file.model.graph,
        training=file.training,
        constraints=file.constraints or Constraints(),
        frozen=file.frozen,
        notices=tuple(_notices(file.training)),
        file=document.file,
        config_file=config_file,
    )


def _refuse_a_bare_config(document: Document) -> None:
    """A Hugging Face config.json given where a model file is expected."""
    keys = document.root.entries
    if "model" not in keys and ("model_type" in keys or "hidden_size" in keys):
        fix = f"write a model file with `model: {{config: {document.file}}}` and `training:`"
        raise InputError.single("is a model configuration, not a model file", "", fix, file=document.file)


def _source(collector: Collector) -> _Source | None:
    """The one source of layers that the file names."""
    node = node_at(collector.document, ("model",))
    if not isinstance(node, MapNode):
        return None
    named = [key for key in SOURCES if not _is_null(node.entries.get(key))]
    if len(named) > 1:
        collector.add(("model",), f"has {' and '.join(named)}", "layers come from one of them", "remove the others")
    elif not named:
        fix = "add `config: ./config.json`, `preset: llama-3.1-8b`, `dimensions: {...}` or `graph: {...}`"
        collector.add(("model",), "names no model", "", fix)
    found: dict[str, _Source] = {"config": "config", "preset": "preset", "dimensions": "dimensions", "graph": "graph"}
    return found[named[0]] if len(named) == 1 else None


def _is_null(node: Any) -> bool:
    return node is None or (isinstance(node, ScalarNode) and node.value is None)


def _config(collector: Collector, near: Path) -> tuple[dict[str, Any], str]:
    """The Hugging Face configuration that the file names, and the name of its file."""
    place = ("model", "config")
    node = node_at(collector.document, place)
    if not isinstance(node, ScalarNode) or not isinstance(node.value, str):
        return {}, ""
    path = near / node.value
    try:
        if path.is_dir() and (path / "config.json").is_file():
            path /= "config.json"
        return read_json(path, "the configuration").refuse_duplicates().data(), str(path)
    except InputError as error:
        for problem in error.problems:
            if problem.line is not None:
                collector.extend([problem])
            else:
                collector.add(place, f"{problem.file}: {problem.what}", problem.why, problem.fix)
    except ValueError as error:
        collector.add(place, f"is no path: {error}")
    return {}, ""


def _notices(training: Training) -> list[Notice]:
    """Settings that cannot have an effect."""
    if "micro_batch_sizes" not in training.model_fields_set:
        return []
    batch = training.global_batch
    idle = [size for size in training.micro_batch_sizes if batch % size]
    if not idle or len(idle) == len(training.micro_batch_sizes):
        return []
    sizes = ", ".join(str(size) for size in idle)
    return [Notice("unused", f"micro-batch size {sizes} is not used: it does not divide the global batch of {batch}")]

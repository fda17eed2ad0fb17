"""Two inputs in the wrong order: one sentence instead of all that is wrong with a model as a cluster."""

from __future__ import annotations

from planner.errors import InputError, Problem

__all__ = ["swapped_inputs"]

_CLUSTER_KEYS, _MODEL_KEYS = {"node_groups"}, {"model", "training"}


def swapped_inputs(cluster: str, model: str) -> list[Problem]:
    """What is to be said when CLUSTER is a model or MODEL a cluster, by the keys at the top of the files."""
    if _kind(cluster, "models") == "model":
        return [Problem(f"{cluster} is a model{_file(cluster)}", "the cluster comes first")]
    if _kind(model, "clusters") == "cluster":
        return [Problem(f"{model} is a cluster{_file(model)}", "the model comes second")]
    return []


def _file(name: str) -> str:
    return " file" if _is_file(name) else ""


def _is_file(name: str) -> bool:
    """Only a regular file can be read twice."""
    from pathlib import Path

    try:
        return Path(name).is_file()
    except (OSError, ValueError):
        return False


def _kind(name: str, wrong: str) -> str:
    """`cluster`, `model` or nothing; wrong: where a shipped name would be out of place."""
    from planner.spec import shipped_names

    if not _is_file(name):
        if wrong == "models":
            return "model" if name in shipped_names("models") else ""
        return "cluster" if name in shipped_names("clusters") else ""
    keys = _top_keys(name)
    if keys & _CLUSTER_KEYS:
        return "cluster"
    return "model" if keys & _MODEL_KEYS else ""


def _top_keys(name: str) -> set[str]:
    """Keys at the top of a file; none when it cannot be read."""
    from planner.spec.cluster_reader import parse_document
    from planner.spec.files import read_text

    try:
        text, file = read_text(name, "the file")
        return set(parse_document(text, file).data())
    except InputError:
        return set()

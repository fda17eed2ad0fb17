"""Where the shipped profiles, clusters and models are: inside the installed package, or beside it in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from planner.errors import InputError
from planner.spec.files import STDIN
from planner.spec.suggest import closest

__all__ = ["ShippedKind", "find_document", "shipped_dir", "shipped_names"]

ShippedKind = Literal["profiles", "clusters", "models"]

_FOLDERS = {"profiles": "profiles", "clusters": "configs/clusters", "models": "configs/models"}
_SUFFIXES = (".yaml", ".yml", ".json")


def shipped_dir(kind: ShippedKind) -> Path:
    """The folder of the shipped files of a kind."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_data"
    return (installed if installed.is_dir() else package.parent) / _FOLDERS[kind]


def shipped_names(kind: ShippedKind) -> tuple[str, ...]:
    """Names of the shipped files of a kind, sorted."""
    folder = shipped_dir(kind)
    return tuple(sorted(file.stem for file in folder.glob("*.yaml"))) if folder.is_dir() else ()


def find_document(path_or_name: str | Path, kind: Literal["clusters", "models"]) -> str | Path:
    """The file that a user means: a path, `-`, or the bare name of a shipped file."""
    text = str(path_or_name)
    bare = isinstance(path_or_name, str) and "/" not in text and "\\" not in text
    if text == STDIN or not bare or text.endswith(_SUFFIXES):
        return path_or_name
    names = shipped_names(kind)
    if text in names:
        return shipped_dir(kind) / f"{text}.yaml"
    path = Path(text)
    try:
        exists = path.exists()
    except (OSError, ValueError):
        exists = False
    if exists:
        return path
    raise InputError.single(
        f"no shipped {kind[:-1]} has the name {text[:60]!r}",
        "a name without a folder or ending is looked up among the shipped ones",
        _advice(text, names),
    )


def _advice(text: str, names: tuple[str, ...]) -> str:
    here = [Path(text + suffix) for suffix in _SUFFIXES if len(text) < 200 and Path(text + suffix).is_file()]
    if here:
        return f"did you mean the file '{here[0]}'?"
    close = closest(text, names)
    listed = f"shipped: {', '.join(names)}" if names else "none is shipped"
    return f"did you mean '{close}'? {listed}" if close else listed

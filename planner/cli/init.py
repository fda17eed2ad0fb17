"""`dplan init`: files to start from."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import DebugOption

__all__ = ["init"]


def init(
    directory: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where the two files go.")] = ".",
    force: Annotated[bool, typer.Option("--force", help="Overwrite files that are there.")] = False,
    debug: DebugOption = False,
) -> None:
    """Write a cluster.yaml and a model.yaml to start from.

    \b
    Examples:
      dplan init
      dplan init lab && dplan solve lab/cluster.yaml lab/model.yaml
    """
    import os
    from pathlib import Path

    from planner.errors import InputError, Problem
    from planner.plan.file import write_atomic
    from planner.spec import CLUSTER_TEMPLATE, MODEL_TEMPLATE

    files = {
        str(Path(directory) / "cluster.yaml"): CLUSTER_TEMPLATE,
        str(Path(directory) / "model.yaml"): MODEL_TEMPLATE,
    }
    there = [name for name in files if os.path.lexists(name)]
    if there and not force:
        fix = "choose another directory, or overwrite it with --force"
        raise InputError(
            Problem(file=name, what="is there already", why="your work may be in it", fix=fix) for name in there
        )
    _make_directory(directory)
    for name, text in files.items():
        write_atomic(name, text)
        print(f"wrote {name}")
    cluster, model = files
    print(f"next: dplan solve {cluster} {model}")


def _make_directory(directory: str) -> None:
    from pathlib import Path

    from planner.errors import InputError

    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        why = str(getattr(error, "strerror", None) or error).lower()
        raise InputError.single(
            file=directory, what="cannot be made", why=why, fix="choose another directory"
        ) from error

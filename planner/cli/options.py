"""Options that several commands share, and the reading of options with a unit."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["BaselinesOption", "ClusterArgument", "DebugOption", "JsonOption", "ModelArgument", "PlanArgument"]

ClusterArgument = Annotated[
    str, typer.Argument(metavar="CLUSTER", help="A cluster file, the name of a shipped cluster, or - for stdin.")
]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A model file, the name of a shipped model, or - for stdin.")
]
PlanArgument = Annotated[str, typer.Argument(metavar="PLAN", help="A plan file, or - for stdin.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout instead of tables.")]
DebugOption = Annotated[bool, typer.Option("--debug", help="On a failure print the traceback too.")]
BaselinesOption = Annotated[
    bool,
    typer.Option(
        "--baselines",
        help="Also compare with each chip type alone and with rules of thumb, and say why; takes up to eight times"
        " --time-limit.",
    ),
]

"""`dplan schema`: JSON Schemas of the files."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

import typer

from planner.cli.options import DebugOption

__all__ = ["Kind", "schema"]


class Kind(StrEnum):
    """The kinds of file that have a schema."""

    cluster = "cluster"
    model = "model"
    profile = "profile"
    plan = "plan"


def schema(
    kind: Annotated[
        Kind, typer.Argument(metavar="FILE", help="Which file: cluster, model, profile or plan.", show_choices=True)
    ],
    debug: DebugOption = False,
) -> None:
    """Print the JSON Schema of a file.

    Editors use it to complete and check what you write.

    \b
    Examples:
      dplan schema cluster > cluster.schema.json
      then, as the first line of cluster.yaml:
      # yaml-language-server: $schema=./cluster.schema.json
    """
    from planner.cli.output import print_json

    if kind is Kind.plan:
        from planner.plan import plan_schema

        print_json(plan_schema())
        return
    from planner.spec import schema_for

    name: Literal["cluster", "model", "profile"] = "profile"
    if kind is not Kind.profile:
        name = "cluster" if kind is Kind.cluster else "model"
    print_json(schema_for(name))

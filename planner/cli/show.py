"""`dplan show`: a plan as tables."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.cli.options import DebugOption, JsonOption, PlanArgument

__all__ = ["show"]


def show(
    plan: PlanArgument = "plan.json",
    full: Annotated[
        bool,
        typer.Option("--full", help="Also the plan space, the assumptions, every transfer and every warning."),
    ] = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Show a plan: stages, memory, time, proof.

    \b
    Examples:
      dplan show
      dplan show plan.json --full
      dplan show plan.json --json | jq .prediction
      dplan solve mi300x-h100 llama-3.1-8b -o - | dplan show -
    """
    from planner.cli.output import print_json, print_report
    from planner.plan import Plan

    loaded = Plan.load(plan)
    if json:
        print_json(loaded.model_dump(mode="json"))
        return
    from planner.report.plan import full_hint, plan_report

    print_report(plan_report(loaded, full=full))
    if not full:
        print(f"\n{full_hint(plan)}")

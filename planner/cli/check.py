"""`dplan check`: a plan against its own inputs."""

from __future__ import annotations

import typer

from planner.cli.options import DebugOption, JsonOption, PlanArgument

__all__ = ["check"]


def check(plan: PlanArgument = "plan.json", json: JsonOption = False, debug: DebugOption = False) -> None:
    """Check a plan without the search.

    Every layer placed once, every chip used once, memory and times as the cost model says: all of it is computed again
    from the cluster and the model inside the plan. Leaves with 0 when the plan holds and with 5 when it does not.

    \b
    Examples:
      dplan check
      dplan check plan.json --json
    """
    from planner.cli.output import print_json, say
    from planner.errors import CheckError
    from planner.plan import Plan, check_plan

    violations = check_plan(Plan.load(plan))
    name = "standard input" if plan == "-" else plan
    if json:
        print_json({"violations": [{"code": v.code, "where": v.where, "message": v.message} for v in violations]})
    elif not violations:
        print(f"{name}: the plan holds")
    if violations:
        say(CheckError(f"{name}: the plan does not hold", *(v.render() for v in violations)).render())
        raise typer.Exit(CheckError.exit_code)

"""`dplan solve`: from a cluster and a model to a plan with its proof."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.baselines import compare, refuse_options
from planner.cli.options import BaselinesOption, ClusterArgument, DebugOption, JsonOption, ModelArgument
from planner.errors import CheckError, InputError, InterruptedSolve, Problem
from planner.report.words import format_percent

if TYPE_CHECKING:
    from planner.plan import Plan, Violation
    from planner.search import SolveOptions, SolveResult
    from planner.search.highs import SolverName
    from planner.spec import Cluster, ModelSpec

__all__ = ["Objective", "Solver", "solve"]

_OUTPUT, _UNFIT_OUTPUT = "plan.json", "plan.ignore-memory.json"
"""Where the plan goes unless told otherwise. One that may not run leaves one that does alone."""


_JOBS = (
    "Processes that search the parts of the plan space side by side, and bound the mixes of shapes; a count. What ends"
    " by the gap is the same for any number."
)


class Objective(StrEnum):
    """What the best plan is best at."""

    throughput = "throughput"
    cost = "cost"


class Solver(StrEnum):
    """Who solves the integer programs."""

    highs = "highs"
    cbc = "cbc"
    gurobi = "gurobi"
    cplex = "cplex"
    scip = "scip"
    copt = "copt"


def solve(
    cluster: ClusterArgument,
    model: ModelArgument,
    output: Annotated[
        str | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Where the plan goes; - is stdout.",
            show_default=f"{_OUTPUT}, or {_UNFIT_OUTPUT} with --ignore-memory",
        ),
    ] = None,
    objective: Annotated[
        Objective,
        typer.Option(help="Least step time, or least money per token for the chips used (needs prices)."),
    ] = Objective.throughput,
    time_limit: Annotated[
        str, typer.Option(metavar="TIME", help="Stop after this time with the best plan so far; a time with its unit.")
    ] = "25 s",
    gap: Annotated[
        str,
        typer.Option(
            metavar="PERCENT", help="Stop when the plan is proved to be this close to the best; a percentage."
        ),
    ] = "1 %",
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help=_JOBS)] = 1,
    ignore_memory: Annotated[
        bool,
        typer.Option(
            "--ignore-memory", help="Plan as if memory had no end; the plan is marked, exit 5 if it does not fit."
        ),
    ] = False,
    fixed_order: Annotated[
        bool, typer.Option("--fixed-order", help="Keep the node groups in the order of the cluster file.")
    ] = False,
    solver: Annotated[
        Solver,
        typer.Option(
            help="Who solves the integer programs; all but highs must be installed. Ties are settled by highs."
        ),
    ] = Solver.highs,
    solver_log: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Where the solver's logs of all programs go, one after another; the file is made anew.",
            show_default="no log",
        ),
    ] = None,
    warm_start: Annotated[
        str | None,
        typer.Option(
            metavar="PLAN",
            help="An older plan to fall back on: what the time limit ends is never worse. - is stdin.",
            show_default="none",
        ),
    ] = None,
    baselines: BaselinesOption = False,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Find the best plan, and prove how good it is.

    Reads a cluster and a model, checks the plan that was found, and writes it. A plan whose gap was missed in time is
    written all the same, and dplan says so. Ctrl-C stops with the best plan so far.

    \b
    Examples:
      dplan solve cluster.yaml model.yaml
      dplan solve mi300x-h100 llama-3.1-8b --time-limit '2 min' --gap '0.5 %'
      dplan solve cluster.yaml model.yaml --objective cost -o cheap.json
      dplan solve memory-tight llama-3.1-70b --baselines
      dplan solve cluster.yaml model.yaml --solver cbc --solver-log cbc.log
      dplan solve cluster.yaml model.yaml --warm-start plan.json -o new.json
      dplan solve cluster.yaml model.yaml --json | jq .prediction.step_time_s
    """
    from planner.cli.output import one_place, warn
    from planner.plan.file import refuse_unwritable

    options = _options(objective.value, time_limit, gap, jobs, ignore_memory, fixed_order, solver.value, solver_log)
    output = output or (_UNFIT_OUTPUT if ignore_memory else _OUTPUT)
    _refuse_to_replace(output, {"CLUSTER": cluster, "MODEL": model})
    if solver_log is not None:
        _refuse_log(solver_log, {"CLUSTER": cluster, "MODEL": model, "--output": output, "--warm-start": warm_start})
    if baselines:
        refuse_options(objective.value, ignore_memory, output)
    loaded_cluster, loaded_model, older = _load(cluster, model, warm_start)
    options = replace(options, warm_start=older)
    if output != "-":
        refuse_unwritable(output)
    held_back = one_place(output != "-" and not json)
    early = (*loaded_cluster.notices, *loaded_model.notices)
    warn(() if held_back else early)
    try:
        result = _search(loaded_cluster, loaded_model, options)
    except BaseException:
        warn(early if held_back else ())
        raise
    compares = baselines and result.why_stopped != "interrupted"
    _deliver(result, output, options, json and not compares, quiet=json)
    if compares:
        compare(loaded_cluster, loaded_model, options, result, output, json)


def _options(
    objective: str,
    time_limit: str,
    gap: str,
    jobs: int,
    ignore_memory: bool,
    fixed_order: bool,
    solver: SolverName,
    solver_log: str | None,
) -> SolveOptions:
    from planner.search import SolveOptions
    from planner.spec.units import parse_duration, parse_fraction

    return SolveOptions(
        objective="cost" if objective == "cost" else "throughput",
        time_limit_s=_parsed("--time-limit", time_limit, parse_duration),
        gap=_parsed("--gap", gap, parse_fraction),
        jobs=jobs,
        ignore_memory=ignore_memory,
        fixed_order=fixed_order,
        solver=solver,
        solver_log=solver_log,
    )


def _refuse_to_replace(output: str, inputs: dict[str, str]) -> None:
    """The plan must not take the place of what it was made from; an older plan it may."""
    for name, path in inputs.items():
        if Path(path).exists() and os.path.realpath(output) == os.path.realpath(path):
            raise InputError.single(
                path="--output",
                what=f"{output} is also {name}",
                why="the plan would take the place of what it is made from",
                fix="name a file of its own, such as plan.json",
            )


def _refuse_log(path: str, others: dict[str, str | None]) -> None:
    """A log must not take the place of what is read or written; before any work."""
    from planner.plan.file import refuse_unwritable

    for name, other in others.items():
        if path == "-" or (other and os.path.realpath(path) == os.path.realpath(other)):
            raise InputError.single(
                path="--solver-log",
                what=f"{path} is {'no file' if path == '-' else 'also ' + name}",
                why="the file is made anew for the solver's logs",
                fix="name a file of its own, such as solver.log",
            )
    refuse_unwritable(path)


def _parsed(option: str, text: str, parse: Callable[[object], float]) -> float:
    """An option's value in its base unit; what is wrong with it names the option."""
    try:
        return parse(text)
    except InputError as error:
        raise error.at(path=option) from None


def _load(cluster: str, model: str, older: str | None) -> tuple[Cluster, ModelSpec, Plan | None]:
    """All inputs; their problems are reported in one run."""
    from planner.cli.swapped import swapped_inputs
    from planner.plan.file import load_plan
    from planner.spec import load_cluster, load_model

    given = {"CLUSTER": cluster, "MODEL": model, "--warm-start": older}
    from_stdin = [name for name, path in given.items() if path == "-"]
    if len(from_stdin) > 1:
        raise InputError.single(
            path=", ".join(from_stdin),
            what=f"are {'both' if len(from_stdin) == 2 else 'all'} `-`",
            why="there is one standard input",
            fix="name a file for one of them",
        )
    problems: list[Problem] = []
    loaded_cluster, loaded_model, loaded_plan = None, None, None
    try:
        loaded_cluster = load_cluster(cluster)
    except InputError as error:
        problems += error.problems
    try:
        loaded_model = load_model(model)
    except InputError as error:
        problems += error.problems
    try:
        loaded_plan = None if older is None else load_plan(older)
    except InputError as error:
        problems += error.problems
    if loaded_cluster is None or loaded_model is None or problems:
        raise InputError(swapped_inputs(cluster, model) or problems)
    return loaded_cluster, loaded_model, loaded_plan


def _search(cluster: Cluster, model: ModelSpec, options: SolveOptions) -> SolveResult:
    from planner.cli.progress import ProgressLine
    from planner.search import solve as search

    with ProgressLine(cluster.currency if options.objective == "cost" else None) as progress:
        return search(cluster, model, options, progress)


def _deliver(result: SolveResult, output: str, options: SolveOptions, json: bool, quiet: bool) -> None:
    """Check, write, say what was found, and leave with the right code. quiet: no tables."""
    from planner.cli.output import one_place, print_json, print_report, say, warn
    from planner.plan import check_plan
    from planner.report.certificate import narrower_space, why_stopped_line
    from planner.report.plan import full_hint, plan_report

    plan = result.plan
    assert plan is not None, "the search returns a plan or raises"
    held_back = one_place(output != "-" and not quiet)
    written = {notice.message for notice in plan.warnings} if held_back else set()
    warn(notice for notice in result.notices if notice.message not in written)
    misfits = _sorted_out(check_plan(plan), options)
    plan.save(output)
    if json and output != "-":
        print_json(plan.model_dump(mode="json"))
    elif output != "-" and not quiet:
        print_report(plan_report(plan))
        print(f"\n{full_hint(output)}\n\nwrote {output}")
    place = "standard output" if output == "-" else output
    if result.why_stopped == "interrupted":
        say(f"interrupted: the best plan so far is in {place}, {_gap(plan)}")
        raise typer.Exit(InterruptedSolve.exit_code)
    stopped = why_stopped_line(plan.certificate)
    if stopped is not None and not plan.certificate.is_as_close_as_asked and not held_back:
        say("; ".join(filter(None, (f"warning: {_gap(plan)}", stopped, narrower_space(plan.certificate)))))
    if misfits:
        say(CheckError(f"{place}: planned without regard to memory, and it does not fit", *misfits).render())
        raise typer.Exit(CheckError.exit_code)


def _gap(plan: Plan) -> str:
    return f"proved to be within {format_percent(plan.certificate.gap, 2)} of the best"


def _sorted_out(violations: tuple[Violation, ...], options: SolveOptions) -> list[str]:
    """What does not fit when memory was ignored; anything else means that the search is wrong: nothing is written."""
    expected = [v for v in violations if options.ignore_memory and v.code == "memory"]
    wrong = [v for v in violations if v not in expected]
    if wrong:
        lines = [violation.render() for violation in wrong]
        raise CheckError("our bug: the plan that was found does not pass the check; nothing was written", *lines)
    return [violation.message for violation in expected]

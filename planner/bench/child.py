"""One case in a process of its own: `python -m planner.bench.child`, a Request as JSON on standard input.

Standard output carries one JSON object a line: `progress` while the search runs, at the end `found` or `failure`.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from planner.errors import CheckError, DplanError

if TYPE_CHECKING:
    from planner.bench.cases import Pipelines
    from planner.search import Progress, SolveResult
    from planner.spec import Cluster, ModelSpec

__all__ = ["Request", "peak_bytes", "run"]

_TELL_EVERY_S = 0.2


@dataclass(frozen=True)
class Request:
    """What a case is asked. cluster, model: shipped names or paths of files."""

    cluster: str
    model: str
    pipelines: Pipelines
    limit_s: float
    gap: float


class _Teller:
    """Passes progress on, not too often, and keeps the time of the first plan."""

    def __init__(self, out: TextIO) -> None:
        self.begin = time.perf_counter()
        self.first_plan_s: float | None = None
        self._out = out
        self._told = -1.0

    def __call__(self, progress: Progress) -> None:
        now = time.perf_counter()
        if self.first_plan_s is None and progress.incumbent_s is not None:
            self.first_plan_s = now - self.begin
        if now - self._told >= _TELL_EVERY_S:
            self._told = now
            _say(self._out, {"progress": asdict(progress)})


def run(request: Request, out: TextIO) -> None:
    """Plan a case, check the plan, tell what was found or why not."""
    try:
        answer: dict[str, Any] = {"found": _solve(request, out)}
    except DplanError as error:
        message = error.render().removeprefix("error: ")
        answer = {"failure": {"kind": type(error).__name__, "message": message}}
    _say(out, {**answer, "peak_bytes": peak_bytes()})


def _solve(request: Request, out: TextIO) -> dict[str, Any]:
    from planner.plan import check_plan
    from planner.search import SolveOptions, solve
    from planner.spec import load_cluster, load_model

    cluster = load_cluster(request.cluster)
    model = _with_shapes(load_model(request.model), request.pipelines)
    options = SolveOptions(time_limit_s=request.limit_s, gap=request.gap)
    teller = _Teller(out)
    result = solve(cluster, model, options, teller)
    solve_s = time.perf_counter() - teller.begin
    wrong = check_plan(result.plan)
    if wrong:
        raise CheckError("the plan does not pass the check", *(violation.render() for violation in wrong))
    return {"first_plan_s": teller.first_plan_s, "solve_s": solve_s, **_numbers(cluster, result)}


def _with_shapes(model: ModelSpec, pipelines: Pipelines) -> ModelSpec:
    """The model with `constraints.shapes` as the case wants it."""
    constraints = model.constraints.model_copy(update={"shapes": pipelines})
    return model.model_copy(update={"constraints": constraints})


def _numbers(cluster: Cluster, result: SolveResult) -> dict[str, Any]:
    """How good the plan is: the fields of `Found` that are no times."""
    plan, certificate = result.plan, result.plan.certificate
    return {
        "why_stopped": result.why_stopped,
        "step_time_s": plan.prediction.step_time_s,
        "bound_s": certificate.bound,
        "identical_bound_s": certificate.identical_bound,
        "gap": certificate.gap,
        "programs": result.solver.get("programs", 0),
        "solver": result.solver,
        "chips": cluster.num_chips,
        "chips_used": len(plan.used_ranks),
        "chip_types": len({cluster.chip_of(group).name for group in range(len(cluster.node_groups))}),
        "tokens_per_s": plan.prediction.tokens_per_s,
        "tokens_per_s_per_chip": plan.prediction.tokens_per_s_per_chip,
        "cluster_sha256": plan.inputs.cluster.sha256,
        "model_sha256": plan.inputs.model.sha256,
    }


def peak_bytes() -> int | None:
    """Most memory that this process has held at a time; None where the system does not tell.

    Linux counts it for each program anew (`VmHWM`); `ru_maxrss` there keeps what the parent held before it started us.
    """
    try:
        high = re.search(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        if high is not None:
            return int(high[1]) * 1024
    except OSError:
        pass
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _say(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()


def main() -> None:
    """Standard output is ours alone: what libraries print goes to standard error."""
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    run(Request(**json.load(sys.stdin)), out)


if __name__ == "__main__":
    main()

"""The one place where a solver is called. It reports three separate facts: why it stopped, whether there is a solution,
how good it is.
"""

from __future__ import annotations

import math
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal, NamedTuple

from planner.errors import InputError

if TYPE_CHECKING:
    import pulp

__all__ = ["SOLVERS", "SolverAnswer", "SolverChoice", "SolverName", "require_solver", "solve_program", "start_log"]

SolverName = Literal["highs", "cbc", "gurobi", "cplex", "scip", "copt"]

SOLVERS: dict[SolverName, tuple[str, str]] = {
    "highs": ("HiGHS", "highspy"),
    "cbc": ("COIN_CMD", "'pulp[cbc]'"),
    "gurobi": ("GUROBI", "gurobipy"),
    "cplex": ("CPLEX_PY", "cplex"),
    "scip": ("SCIP_PY", "pyscipopt"),
    "copt": ("COPT", "coptpy"),
}
"""PuLP's class for each solver, and the Python package that brings it."""


class SolverChoice(NamedTuple):
    """Which solver, and the file that its logs are appended to."""

    name: SolverName = "highs"
    log: str | None = None


Stop = Literal["optimal", "infeasible", "time", "interrupted", "error"]

_HIGHS_OPTIONS = frozenset(
    {"presolve", "random_seed", "mip_feasibility_tolerance", "primal_feasibility_tolerance", "mip_max_nodes"}
)


@dataclass(frozen=True)
class SolverAnswer:
    """What a solver run says.

    stop: why it ended; `error` is not `infeasible` and proves nothing.  values: variable name -> value, None when there
    is no solution.
    objective: of the values.  bound: no solution is below it (-inf when unknown).
    """

    stop: Stop
    values: Mapping[str, float] | None
    objective: float
    bound: float

    @property
    def gap(self) -> float:
        """(objective - bound) / objective, inf without a solution."""
        if self.values is None or self.objective == 0:
            return math.inf
        return (self.objective - self.bound) / abs(self.objective)


def solve_program(
    program: pulp.LpProblem,
    *,
    time_limit_s: float,
    start: Mapping[str, float] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    solver: SolverName = "highs",
    options: Mapping[str, Any] | None = None,
    log_path: str | None = None,
) -> SolverAnswer:
    """Minimise `program` to optimality, from `start` if given.

    HiGHS runs without presolve: with it, HiGHS 1.16.0 called feasible small programs infeasible, and gave an objective
    below what its own solution costs (tests/search/branching keeps such programs). A run that ends with an error or an
    unclear status is repeated with presolve; if that fails too the answer is `error` with bound -inf.
    Of any other solver only an answer to optimality or a proof that there is none counts, and a solution only once it
    is checked here. log_path: the solver's own log is appended to this file, below a heading.
    """
    unknown = set(options or {}) - _HIGHS_OPTIONS
    if unknown:
        raise AssertionError(f"unknown solver options: {sorted(unknown)}")
    with _logged(log_path, _heading(program, solver)) as log:
        if solver != "highs":
            return _solve_with_other(program, solver, time_limit_s, log)
        asked = {"presolve": "off", **({} if log is None else {"log_file": log}), **(options or {})}
        answer = _solve_with_highs(program, time_limit_s, start, should_stop, asked)
        if answer.stop == "error":
            other = "on" if asked["presolve"] == "off" else "off"
            answer = _solve_with_highs(program, time_limit_s, start, should_stop, {**asked, "presolve": other})
        return answer


def _write_log(path: str, mode: Literal["ab", "wb"], text: bytes) -> None:
    """A whole log at a time: worker processes write to the same file."""
    try:
        with Path(path).open(mode) as file, _locked(file):
            file.write(text)
            file.flush()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise InputError.single(
            path="--solver-log",
            what=f"{path} cannot be written",
            why=(reason or str(error)).lower(),
            fix="name a file in a place you may write to, with room left",
        ) from error


@contextmanager
def _locked(file: IO[bytes]) -> Iterator[None]:
    """No other process that asks for the lock writes meanwhile; without locks on systems that have none."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with suppress(OSError):  # a pipe, or a file system without locks
        fcntl.flock(file, fcntl.LOCK_EX)
    yield  # closing the file gives the lock back


def require_solver(name: SolverName) -> None:
    """Raises InputError when a solver cannot be called here."""
    import pulp

    kind, package = SOLVERS[name]
    if name == "highs":
        with suppress(ImportError):  # PuLP takes a Ctrl-C while it is loaded for a missing package
            import highspy  # noqa: F401
    with _quiet_stdout():
        try:
            found = bool(pulp.getSolver(kind, msg=False).available())
        except Exception:  # a solver without a licence raises an error of its own
            found = False
    if not found:
        raise InputError.single(
            path="--solver",
            what=f"{name} cannot be called here",
            why=f"its package {package} is not installed, or it has no licence",
            fix=f"pip install {package}, or leave --solver out: highs comes with dplan",
        )


def start_log(path: str, solver: SolverName) -> None:
    """Begin a file of logs anew. Raises InputError when it cannot be written."""
    text = f"Logs of {solver}, one a program. With no program below, every bound was proved without one.\n"
    _write_log(path, "wb", text.encode())


def _heading(program: pulp.LpProblem, solver: SolverName) -> str:
    size = f"{program.numVariables()} variables, {program.numConstraints()} constraints"
    return f"\n==== {program.name}: {size}, {solver} ====\n"


@contextmanager
def _logged(path: str | None, heading: str) -> Iterator[str | None]:
    """A fresh file for one run's log, which is appended to `path` afterwards: some solvers overwrite, some append."""
    if path is None:
        yield None
        return
    handle, name = tempfile.mkstemp(prefix="dplan-solver-", suffix=".log")
    os.close(handle)
    try:
        yield name
        _write_log(path, "ab", heading.encode() + Path(name).read_bytes())
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Keep HiGHS' banner, which its constructor writes to file descriptor 1, off our output."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # stdout is closed: nothing to keep clean
        yield
        return
    sink = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(sink, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(sink)


def _highs_class() -> type[Any]:
    import highspy
    import pulp

    class StartedHighs(pulp.HiGHS):  # type: ignore[misc, unused-ignore]
        """PuLP's HiGHS with a starting solution, which PuLP 3.3 does not pass on."""

        start: Mapping[str, float] | None = None

        def createAndConfigureSolver(self, lp: Any) -> None:
            with _quiet_stdout():
                super().createAndConfigureSolver(lp)
            if "log_file" in self.optionsDict:
                lp.solverModel.setOptionValue("log_to_console", False)
                lp.solverModel.setOptionValue("output_flag", True)

        def findSolutionValues(self, lp: Any) -> Any:
            try:
                return super().findSolutionValues(lp)
            except KeyError:  # PuLP knows no limit of nodes; it has read the values before it asks for the status
                return pulp.LpStatusNotSolved, pulp.LpSolutionNoSolutionFound

        def callSolver(self, lp: Any) -> None:
            if self.start:
                solution = highspy.HighsSolution()
                solution.col_value = [float(self.start.get(v.name, 0.0)) for v in lp.variables()]
                lp.solverModel.setSolution(solution)
            super().callSolver(lp)

    return StartedHighs


def _solve_with_highs(
    program: pulp.LpProblem,
    time_limit_s: float,
    start: Mapping[str, float] | None,
    should_stop: Callable[[], bool],
    options: dict[str, Any],
) -> SolverAnswer:
    import highspy

    def on_callback(kind: Any, message: Any, data_out: Any, data_in: Any, user: Any) -> None:
        if data_in is not None and should_stop():
            data_in.user_interrupt = True

    solver = _highs_class()(
        msg=False,
        timeLimit=max(0.01, time_limit_s),
        gapRel=0.0,
        gapAbs=0.0,
        threads=1,
        callbackTuple=(on_callback, None),
        callbacksToActivate=[highspy.cb.HighsCallbackType.kCallbackMipInterrupt],
        random_seed=0,
        primal_feasibility_tolerance=1e-9,
        mip_feasibility_tolerance=1e-9,
        **options,
    )
    solver.start = start
    program.solve(solver)
    model = program.solverModel
    status = model.getModelStatus()
    info = model.getInfo()
    names = highspy.HighsModelStatus
    stops: dict[Any, Stop] = {
        names.kOptimal: "optimal",
        names.kInfeasible: "infeasible",
        names.kTimeLimit: "time",
        names.kSolutionLimit: "time",  # the number of nodes was asked to be limited
        names.kInterrupt: "interrupted",
    }
    stop: Stop = stops.get(status, "error")
    has_solution = info.primal_solution_status == 2  # feasible point
    values = {v.name: float(v.varValue or 0.0) for v in program.variables()} if has_solution else None
    objective = float(info.objective_function_value) if has_solution else math.inf
    is_mip = any(v.cat == "Integer" for v in program.variables())
    bound = float(info.mip_dual_bound) if is_mip else objective
    if stop == "infeasible":
        return SolverAnswer(stop, None, math.inf, math.inf)
    if values is not None and not _costs(program, values, objective):
        stop = "error"
    if stop == "error":
        return SolverAnswer(stop, values, objective, -math.inf)
    return SolverAnswer(stop, values, objective, bound if math.isfinite(bound) else -math.inf)


_WITHIN = 1e-4
_CLOSED = 1e-7
"""Relative: how far below an optimum, as another solver says, its own tolerances may lie."""
_SAME = 1e-6
"""Relative: how far the objective that a solver reports may lie from what its solution costs."""


def _costs(program: pulp.LpProblem, values: Mapping[str, float], objective: float) -> bool:
    """Whether a solution costs what the solver says."""
    cost = sum(float(n) * values[v.name] for v, n in program.objective.items()) + float(program.objective.constant)
    return abs(cost - objective) <= _SAME * max(1.0, abs(cost), abs(objective))


def _solve_with_other(program: pulp.LpProblem, name: SolverName, time_limit_s: float, log: str | None) -> SolverAnswer:
    """One of PuLP's other solvers. What it does not prove is not said, and its solution is checked."""
    import pulp

    options: dict[str, Any] = {"msg": False, "timeLimit": max(0.01, time_limit_s), "gapRel": 0.0}
    if log is not None:
        options["logPath"] = log
    with _quiet_stdout():
        try:
            program.solve(pulp.getSolver(SOLVERS[name][0], **options))
        except pulp.PulpSolverError:
            return SolverAnswer("error", None, math.inf, -math.inf)
    if program.status == pulp.LpStatusInfeasible:
        return SolverAnswer("infeasible", None, math.inf, math.inf)
    if program.status != pulp.LpStatusOptimal or program.sol_status != pulp.LpSolutionOptimal:
        return SolverAnswer("time", None, math.inf, -math.inf)
    values = {v.name: float(v.varValue or 0.0) for v in program.variables()}
    if not _holds(program):
        return SolverAnswer("error", None, math.inf, -math.inf)
    objective = float(pulp.value(program.objective))
    return SolverAnswer("optimal", values, objective, objective - _CLOSED * max(1.0, abs(objective)))


def _holds(program: pulp.LpProblem) -> bool:
    """Whether the values that stand in the program are whole where they must be, and within all limits.

    Some come from text files with eight digits; sizes are GiB and multiples of a layer's time.
    """
    import pulp

    whole = all(abs(v.varValue - round(v.varValue)) <= _SAME for v in program.variables() if v.cat == pulp.LpInteger)
    return bool(whole and program.valid(_WITHIN))

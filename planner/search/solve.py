"""From a cluster and a model to a plan: the search's numbers on one side, names and documents on the other."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from planner.errors import InterruptedSolve, NoPlanFoundError, Notice
from planner.search.candidates import Limits
from planner.search.driver import Outcome, SearchSettings, WhyStopped, search
from planner.search.highs import SolverName, require_solver, start_log
from planner.search.mix_progress import MixReporter
from planner.search.mixes import IDENTICAL, before_mixes, best_of_all_shapes, one_shape_notices, why_identical
from planner.search.on_uplinks import found_on_uplinks
from planner.search.outcome import Found
from planner.search.plan_space import plan_space_of
from planner.search.progress import Progress, forward, say_placing
from planner.search.relaxed import RelaxedProblem
from planner.search.warm import Older, no_start, or_older, with_older_plan

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import MixedProblem
    from planner.graph.layers import LayerGraph
    from planner.plan import Plan
    from planner.search.leaf import Split
    from planner.spec import Cluster, ModelSpec

__all__ = ["Progress", "SolveOptions", "SolveResult", "limits_of", "search_settings", "solve"]


_PLACING_SHARE = 0.15
"""Of the time limit, for nodes and shapes that suit a topology, after mixes."""
_MOST_LAYERS = 1200


@dataclass(frozen=True)
class SolveOptions:
    """How to search. Defaults are the command line's.

    gap: relative; stop when the plan is proved to be this close to the best. 0 asks for the optimum (to one millionth).
    jobs: processes that search the parts of the plan space side by side, and bound the mixes of shapes; what ends by
    the gap is the same for any number.
    solver: solves the integer programs of identical and mixed pipelines, and must be installed. HiGHS settles ties.
    solver_log: a file that is made anew for the logs of all programs.
    warm_start: an older plan to fall back on. What ends by the gap is the same with and without it.
    """

    objective: Literal["throughput", "cost"] = "throughput"
    time_limit_s: float = 25.0
    gap: float = 0.01
    jobs: int = 1
    ignore_memory: bool = False
    fixed_order: bool = False
    solver: SolverName = "highs"
    solver_log: str | None = None
    warm_start: Plan | None = None


@dataclass(frozen=True)
class SolveResult:
    """plan: the best plan found.  why_stopped: `gap` (proved), `time`, `interrupted` or `exhausted`.  solver: counts of
    what was done.
    """

    plan: Plan
    why_stopped: WhyStopped
    notices: tuple[Notice, ...] = ()
    solver: dict[str, int] = field(default_factory=dict)


def solve(
    cluster: Cluster,
    model: ModelSpec,
    options: SolveOptions | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> SolveResult:
    """The best plan for a model on a cluster, with the proof of how good it is.

    Raises InputError (inputs that contradict each other), InfeasibleError (proved: nothing fits; with remedies),
    NoPlanFoundError (the time was too short),
    InterruptedSolve (Ctrl-C before any plan; later the best plan so far is returned).
    """
    from planner.cost.model import CostModel
    from planner.graph import build_graph

    options = options or SolveOptions()
    require_solver(options.solver)
    graph = build_graph(model)
    cost = CostModel(cluster, model, graph)
    _refuse_long_chains(cost)
    settings = search_settings(cluster, model, cost, options)
    problem = RelaxedProblem(cost, math.inf) if options.ignore_memory else cost
    if options.solver_log is not None:
        start_log(options.solver_log, options.solver)
    begin = time.monotonic()
    with interruptible() as interrupted:
        if cost.chain.tensors is not None:
            outcome, found = _in_any_order(problem, cost, options, settings, progress, interrupted)
            older = no_start(options, "the layers of this model branch")
            if found is None:
                _raise_without_plan(cluster, model, options, outcome, interrupted, older.said)
            if cost.uplinks is not None:
                say_placing(progress, found, begin)
                end = begin + options.time_limit_s
                found = found_on_uplinks(problem, cost, settings, outcome, (found, found), end, interrupted)
            return _result(cluster, model, graph, cost, options, settings, found, older, begin)
        identical = why_identical(model, cost, settings.limits, options)
        older, settings = with_older_plan(cluster, model, graph, problem, cost, settings, options, identical)
        limit, mixes = options.time_limit_s, identical is None
        say = forward(progress, IDENTICAL if mixes else "")
        outcome = search(problem, before_mixes(problem, settings, limit) if mixes else settings, say, interrupted)
        if outcome.leaf is None and older.plan is None and not (mixes and outcome.why_stopped == "exhausted"):
            _raise_without_plan(cluster, model, options, outcome, interrupted, older.said)
        found = single = None if outcome.leaf is None else _settled(cost, options, outcome, interrupted, begin)
        if mixes and not interrupted():
            deadline = begin + limit * (1.0 if cost.uplinks is None else 1 - _PLACING_SHARE)
            mixing = MixReporter(forward(progress), begin)
            found = best_of_all_shapes(
                problem, cost, model, settings, outcome, found, deadline, interrupted, older, mixing
            )
        if found is not None and cost.uplinks is not None:
            say_placing(progress, found, begin)
            candidates = found, single or found
            found = found_on_uplinks(problem, cost, settings, outcome, candidates, begin + limit, interrupted)
        found = or_older(found, older, outcome)
        if found is None:
            _raise_without_plan(cluster, model, options, outcome, interrupted, older.said)
        return _result(cluster, model, graph, cost, options, settings, found, older, begin)


def _refuse_long_chains(cost: CostModel) -> None:
    """The search looks at every contiguous piece of the chain."""
    if cost.chain.num_layers > _MOST_LAYERS:
        from planner.errors import InputError

        raise InputError.single(
            path="model.graph.nodes",
            what=f"{cost.chain.num_layers:,} layers",
            why=f"the search looks at every contiguous piece of the chain; at most {_MOST_LAYERS:,} layers are read",
            fix="merge neighbouring nodes into coarser layers",
        )


def search_settings(cluster: Cluster, model: ModelSpec, cost: CostModel, options: SolveOptions) -> SearchSettings:
    """What the search is told: limits from the model file's constraints, prices when money counts."""
    prices = None
    if options.objective == "cost":
        from planner.errors import InputError

        missing = [g.name for g in cluster.node_groups if g.price_per_chip_hour <= 0]
        if missing:
            raise InputError.single(
                path="prices",
                what=f"no price for the chips of {', '.join(missing)}",
                why="the objective cost needs a price per chip-hour for every node group",
                fix="add `prices: {CHIP: 2.50 USD/h}` to the cluster file",
            )
        prices = tuple(g.price_per_chip_hour / 3600 for g in cluster.node_groups)
    return SearchSettings(
        gap=options.gap,
        time_limit_s=options.time_limit_s,
        jobs=options.jobs,
        limits=limits_of(cluster, model, cost, options.fixed_order),
        price_per_chip_s=prices,
        solver=options.solver,
        solver_log=options.solver_log,
    )


def limits_of(cluster: Cluster, model: ModelSpec, cost: CostModel, fixed_order: bool) -> Limits:
    """The search's limits from `constraints:`; names become indices. Contradictions are refused."""
    from planner.errors import InputError

    pinned = model.constraints
    names = [g.name for g in cluster.node_groups]

    def index(name: str, path: str) -> int:
        if name not in names:
            raise InputError.single(
                path=f"constraints.{path}",
                what=f"no node group {name!r} in cluster {cluster.name!r}",
                fix=f"name one of: {', '.join(names)}",
            )
        return names.index(name)

    limits = Limits(
        stages={index(n, "stages"): count for n, count in (pinned.stages or {}).items()},
        total_stages=pinned.pipeline_parallel,
        order=tuple(index(n, "order") for n in pinned.order) if pinned.order else None,
        idle=frozenset(index(n, "idle") for n in pinned.idle),
        use=frozenset(index(n, "use") for n in pinned.use),
        layers_per_stage=tuple(pinned.layers_per_stage) if pinned.layers_per_stage else None,
        fixed_order=fixed_order,
    )
    total = sum(limits.layers_per_stage or ())
    if limits.layers_per_stage is not None and total != cost.chain.num_layers:
        raise InputError.single(
            path="constraints.layers_per_stage",
            what=f"{list(limits.layers_per_stage)} sums to {total}, the model has {cost.chain.num_layers} layers",
            why="every layer is on exactly one stage; embedding, norm and head count",
            fix="see `dplan model` for the layers",
        )
    return limits


def _raise_without_plan(
    cluster: Cluster,
    model: ModelSpec,
    options: SolveOptions,
    outcome: Outcome,
    interrupted: Callable[[], bool],
    said: Sequence[Notice],
) -> NoReturn:
    if outcome.why_stopped == "interrupted":
        raise InterruptedSolve("interrupted before a plan was found; nothing was written")
    if outcome.why_stopped == "time":
        raise NoPlanFoundError(
            f"no plan found within {options.time_limit_s:g} s",
            "that is no proof that none exists",
            "give the search more time with --time-limit, or narrow the space with `constraints:` in the model file",
            *(notice.message for notice in said),
        )
    from planner.search.diagnose import explain_infeasible

    raise explain_infeasible(cluster, model, options, interrupted)


def _result(
    cluster: Cluster,
    model: ModelSpec,
    graph: LayerGraph,
    cost: CostModel,
    options: SolveOptions,
    settings: SearchSettings,
    found: Found,
    older: Older,
    begin: float,
) -> SolveResult:
    """begin: of the search, on the monotonic clock; what is said of the time limit depends on it, nothing else."""
    from planner.plan.assemble import Proved, assemble_plan

    identical = why_identical(model, cost, settings.limits, options)
    limit_came = time.monotonic() >= begin + options.time_limit_s
    proved = Proved(
        bound=found.bound,
        gap_asked=options.gap,
        why_stopped=found.why_stopped,
        plan_space=plan_space_of(cost, model, settings.limits, cluster, found, identical),
        objective=options.objective,
        solver=found.statistics | ({} if options.solver == "highs" else {"name": options.solver}),
        identical_bound=found.identical_bound,
        shares_used_up=found.cut_short if found.why_stopped == "time" and not limit_came else (),
    )
    own = (*cost.excluded, *_unverified_peaks(cluster, model, cost), *one_shape_notices(model, identical))
    plan = assemble_plan(
        cluster,
        model,
        graph,
        cost,
        found.choices,
        proved,
        notices=(*cluster.notices, *model.notices, *own),
        ignored_constraints=("memory",) if options.ignore_memory else (),
        placed=found.placed,
    )
    said = older.notices(found.choices, found.objective, found.why_stopped)
    return SolveResult(plan, found.why_stopped, (*own, *said), found.statistics)


def _settled(
    cost: CostModel, options: SolveOptions, outcome: Outcome, interrupted: Callable[[], bool], begin: float
) -> Found:
    """The best plan of identical pipelines, ties settled."""
    from planner.search.choices import choice_of_leaf

    assert outcome.leaf is not None
    choice = choice_of_leaf(cost, outcome.leaf, _settled_split(options, outcome, interrupted, begin))
    return Found((choice,), outcome.objective, outcome.bound, outcome.why_stopped, outcome.statistics, mixed=False)


def _settled_split(options: SolveOptions, outcome: Outcome, interrupted: Callable[[], bool], begin: float) -> Split:
    from planner.search.settle import settle

    leaf, split = outcome.leaf, outcome.split
    assert leaf is not None and split is not None
    left = begin + options.time_limit_s - time.monotonic()
    if outcome.why_stopped == "gap" and left > 0:
        log = options.solver_log
        split = settle(leaf, split, outcome.step_time, time_limit_s=left, should_stop=interrupted, solver_log=log)
    return split


def _in_any_order(
    problem: MixedProblem,
    cost: CostModel,
    options: SolveOptions,
    settings: SearchSettings,
    progress: Callable[[Progress], None] | None,
    interrupted: Callable[[], bool],
) -> tuple[Outcome, Found | None]:
    """The best plan of a model whose layers branch; None when none was found: the outcome says why."""
    from planner.search.any_order import search_any_order
    from planner.search.choices import choice_of_sets

    begin = time.monotonic()

    def settled(outcome: Outcome) -> Split:
        return _settled_split(options, outcome, interrupted, begin)

    outcome, best = search_any_order(problem, settings, settled, forward(progress), interrupted)
    if best is None:
        return outcome, None
    found = Found(
        (choice_of_sets(cost, best.placed),),
        best.objective,
        best.bound,
        best.why_stopped,
        best.statistics,
        mixed=False,
        layer_order=best.layer_order,
        cut_short=best.cut_short,
    )
    return outcome, found


def _unverified_peaks(cluster: Cluster, model: ModelSpec, cost: CostModel) -> tuple[Notice, ...]:
    """A warning for each chip that takes part and whose peak in the asked precision nobody has checked."""
    key = f"peak.{model.training.precision}"
    chips = {cluster.chip_of(g).name: cluster.chip_of(g) for g, group in enumerate(cost.groups) if group.tensor_degrees}
    return tuple(
        Notice("unverified", f"{name}: its {key} figure is unverified; see `dplan chips {name}`")
        for name, chip in chips.items()
        if chip.sources.get(key, "").startswith("unverified")
    )


@contextmanager
def interruptible() -> Iterator[Callable[[], bool]]:
    """Turns Ctrl-C into a flag while the search runs (main thread only); a second one interrupts as usual."""
    flag = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield flag.is_set
        return
    previous = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: Any) -> None:
        if flag.is_set() and callable(previous):
            previous(number, frame)
        flag.set()

    signal.signal(signal.SIGINT, handle)
    try:
        yield flag.is_set
    finally:
        signal.signal(signal.SIGINT, previous)

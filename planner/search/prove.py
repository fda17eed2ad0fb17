"""Proving one leaf: the stage program with critical-path cuts, until it beats the target or shows that it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from planner.cost.recurrence import Path, critical_path
from planner.cost.rows import link_rows, window_rows
from planner.search.highs import SolverName, solve_program
from planner.search.leaf import Leaf, Split
from planner.search.program import build_program
from planner.search.splitting import Splitter
from planner.search.windows import Windows

__all__ = ["Proof", "critical_cut", "is_valid", "prove_leaf", "starting_rows"]

_MOST_ACTIONS = 500_000
_TOLERANCE = 1e-7
"""Relative: HiGHS' feasibility tolerance on times scaled to about a thousand layer times."""


@dataclass(frozen=True)
class Proof:
    """What is known of a leaf: no plan of it is faster than `bound` seconds; `split` is the best found (`step_time`,
    exact), if any is better than asked.

    closed: the bound has reached the target or the leaf's own best split.
    """

    bound: float
    split: Split | None
    step_time: float
    closed: bool
    programs: int


def starting_rows(leaf: Leaf) -> list[Path]:
    """The rows of single stages and of links; cuts add what matters."""
    rows: list[Path] = []
    for s in range(leaf.num_stages):
        rows += window_rows(leaf.micro_batches, leaf.in_flight, s, s)
    for j in range(leaf.num_stages - 1):
        rows += link_rows(leaf.micro_batches, leaf.num_stages, j)
    return list(dict.fromkeys(rows))


def prove_leaf(
    leaf: Leaf,
    target: float,
    gap: float,
    *,
    time_limit_s: float,
    should_stop: Callable[[], bool] = lambda: False,
    solver: SolverName = "highs",
    solver_log: str | None = None,
) -> Proof:
    """Search a leaf for step times below `target` seconds until none is left that is better than (1 - gap) x the best
    known.

    target: the best step time known so far.  The program is solved for step times up to (1 - gap) x best; infeasible
    means the bound is reached.
    """
    deadline = time.monotonic() + time_limit_s
    splitter = Splitter(leaf)
    rows = starting_rows(leaf)
    best, best_split, bound, programs = target, None, 0.0, 0
    while True:
        limit = best * (1 - gap) * (1 - _TOLERANCE)
        windows = Windows.within(splitter, limit)
        if windows is None or bound >= limit:
            return Proof(max(bound, limit), best_split, best, True, programs)
        left = deadline - time.monotonic()
        if left <= 0 or should_stop():
            return Proof(bound, best_split, best, False, programs)
        program = build_program(leaf, windows, limit, rows)
        answer = solve_program(
            program.lp, time_limit_s=left, should_stop=should_stop, solver=solver, log_path=solver_log
        )
        programs += 1
        if answer.stop == "infeasible":
            return Proof(max(bound, limit), best_split, best, True, programs)
        if answer.bound > 0:
            bound = max(bound, min(answer.bound * program.unit_s * (1 - _TOLERANCE), limit))
        if answer.values is None:
            return Proof(bound, best_split, best, False, programs)
        split = program.split_of(answer.values)
        step = leaf.step_time(split)
        if step < best and is_valid(leaf, split):
            best, best_split = step, split
        cut = critical_cut(leaf, split)
        if answer.stop != "optimal" or cut is None or cut in rows:
            # a known row again: the program already accounts for it, to its tolerance; or no row to be had
            return Proof(bound, best_split, best, bound >= best * (1 - gap) * (1 - 10 * _TOLERANCE), programs)
        rows.append(cut)


def critical_cut(leaf: Leaf, split: Split) -> Path | None:
    """The critical path of a split's step as a row; None for so many actions that recording them all would not pay."""
    if leaf.num_stages * leaf.micro_batches > _MOST_ACTIONS:
        return None
    return critical_path(leaf.chain_times(split), leaf.in_flight, leaf.micro_batches)


def is_valid(leaf: Leaf, split: Split) -> bool:
    """The solver's word is not trusted: every layer once, no empty stage, memory."""
    if split.ends[-1] != leaf.root.intervals.num_layers:
        return False
    for s, received in enumerate(leaf.received(split.ends)):
        first, last = split.bounds(s)
        counts = leaf.root.intervals.prefix[last] - leaf.root.intervals.prefix[first]
        if (
            last <= first
            or [sum(x) for x in split.policies[s]] != counts.tolist()
            or not leaf.fits(s, split.policies[s], received)
        ):
            return False
    return True

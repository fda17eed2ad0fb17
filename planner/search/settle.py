"""Ties: among the splits that are as fast as the best one, the one with the most layers on earlier stages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.search.highs import solve_program
from planner.search.leaf import Leaf, Split
from planner.search.program import StageProgram, build_program
from planner.search.prove import critical_cut, is_valid, starting_rows
from planner.search.splitting import Splitter
from planner.search.windows import Windows

if TYPE_CHECKING:
    from planner.cost.recurrence import Path

__all__ = ["prefer_earlier_stages", "settle"]

_MOST_ROUNDS = 12
_MOST_NODES = 20
"""Of the solver's tree, a round: ties are not worth a long search, and a count, unlike a time, gives equal plans."""
_SLACK = 1e-9
"""Relative: two step times this close count as equal."""


def settle(
    leaf: Leaf,
    split: Split,
    step_time: float,
    *,
    time_limit_s: float,
    should_stop: Callable[[], bool],
    solver_log: str | None = None,
) -> Split:
    """The second pass: the step time is held, the objective is the tie-break. The split given is kept when no other is
    proved to be as fast. Always by HiGHS, whose work is limited by a count of nodes.
    """
    limit = step_time * (1 + _SLACK)
    windows = Windows.within(Splitter(leaf), limit)
    if windows is None or leaf.num_stages == 1:
        return split
    rows: list[Path] = starting_rows(leaf)
    for _ in range(_MOST_ROUNDS):
        program = build_program(leaf, windows, limit, rows)
        prefer_earlier_stages(program)
        options = {"mip_max_nodes": _MOST_NODES}
        answer = solve_program(
            program.lp, time_limit_s=time_limit_s, should_stop=should_stop, options=options, log_path=solver_log
        )
        if answer.stop != "optimal" or answer.values is None:
            return split
        other = program.split_of(answer.values)
        if leaf.step_time(other) <= limit and is_valid(leaf, other):
            return other
        cut = critical_cut(leaf, other)
        if cut is None or cut in rows:
            return split
        rows.append(cut)
    return split


def prefer_earlier_stages(m: StageProgram) -> None:
    """The tie-break replaces the step time as objective, which its upper bound holds.

    minimise   sum_{s,r} s * count[s, r]
    """
    import pulp

    m.lp.setObjective(pulp.lpSum(s * m.count[s, r] for s in m.stages for r in m.runs))

"""The master program: how many replicas of each shape, and its relaxation's prices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from planner.search.highs import SolverChoice, solve_program

if TYPE_CHECKING:
    from planner.search.mixed.columns import Column
    from planner.search.mixed.packing import Room

__all__ = ["chip_prices", "most_sequences", "replica_counts"]

_SECONDS = 10.0
_HIGHS = SolverChoice()


def chip_prices(
    used: Sequence[Sequence[int]], sequences: Sequence[float], chips: Sequence[int], solver: SolverChoice = _HIGHS
) -> list[float] | None:
    """Prices of chips (sequences a step, one a room) at which no column runs more sequences than it costs, and all
    rooms together cost least: the dual of the relaxed master.

    minimise   sum_g chips[g] * price[g]
    for all columns j:   sum_g used[j, g] * price[g] >= sequences[j]

    used: chips of every room, a column each.  sequences: what each column runs.  chips: of every room.
    """
    import pulp

    lp = pulp.LpProblem("prices", pulp.LpMinimize)
    price = [lp.add_variable(f"price__g{g}", 0) for g in range(len(chips))]
    lp += pulp.lpSum(n * p for n, p in zip(chips, price, strict=True) if n)
    for j, (own, runs) in enumerate(zip(used, sequences, strict=True)):
        if runs:
            lp += pulp.lpSum(n * p for n, p in zip(own, price, strict=True) if n) >= runs, f"paid__j{j}"
    answer = solve_program(lp, time_limit_s=_SECONDS, solver=solver.name, log_path=solver.log)
    if answer.values is None:
        return None
    return [max(0.0, float(answer.values.get(p.name, 0.0))) for p in price]


def most_sequences(prices: Sequence[float], chips: Sequence[int]) -> float:
    """What all rooms cost together: the relaxed master's optimum, by duality."""
    return sum(p * n for p, n in zip(prices, chips, strict=True))


def replica_counts(
    columns: Sequence[Column],
    most: Sequence[int],
    rooms: Sequence[Room],
    needed: frozenset[int],
    should_stop: Callable[[], bool],
    solver: SolverChoice = _HIGHS,
) -> list[int] | None:
    """Replicas of every column, so that all run the most sequences; None when nothing is found.

    maximise   sum_j sequences[j] * replicas[j]
    for all rooms i:     sum_j used[j, i] * replicas[j] <= chips[i]
    for needed groups g: sum_j [j uses g] * replicas[j] >= 1
    """
    import pulp

    chips = [room.chips for room in rooms]
    lp = pulp.LpProblem("master", pulp.LpMinimize)
    count = []
    for j, column in enumerate(columns):
        room = min((n // used for n, used in zip(chips, column.taken, strict=True) if used), default=0)
        count.append(lp.add_variable(f"replicas__j{j}", 0, room if most[j] else 0, pulp.LpInteger))
    lp += pulp.lpSum(-m * c.shape.micro_batch_size * x for c, m, x in zip(columns, most, count, strict=True) if m)
    for i, n in enumerate(chips):
        lp += pulp.lpSum(c.taken[i] * x for c, x in zip(columns, count, strict=True) if c.taken[i]) <= n, f"chips__i{i}"
    for g in sorted(needed):
        lp += pulp.lpSum(x for c, x in zip(columns, count, strict=True) if c.uses(g)) >= 1, f"needed__g{g}"
    answer = solve_program(lp, time_limit_s=_SECONDS, should_stop=should_stop, solver=solver.name, log_path=solver.log)
    if answer.values is None:
        return None
    return [round(answer.values.get(x.name, 0.0)) for x in count]

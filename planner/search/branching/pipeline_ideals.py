"""The busiest stage, made least over all assignments: a bound of the step time, and an assignment to start from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search.branching.ideals import ideals_of
from planner.search.branching.pipeline import PipelineProblem
from planner.search.branching.rows import rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["BusiestStage", "least_busiest_stage"]

_MOST_IDEALS = 1500


@dataclass(frozen=True)
class BusiestStage:
    """bound_s: no assignment has a smaller step time (0 where not all sets were looked at; inf: nothing fits).

    stage_of: an assignment with a small busiest stage; None where none was found.
    """

    bound_s: float
    stage_of: tuple[int, ...] | None


def least_busiest_stage(problem: PipelineProblem) -> BusiestStage:
    """Stage by stage along the ideals of the graph (all of them, or where they are too many those along a few rows).

    best[s][J] = min over I in J of max(best[s-1][I], m (F + B) + u of stage s with J less I)
    """
    n, edges = problem.num_layers, problem.edges()
    ideals = ideals_of(n, edges, _MOST_IDEALS)
    complete = ideals is not None
    if ideals is None:
        prefixes = {sum(1 << v for v in row[:k]) for row in rows(n, edges) for k in range(n + 1)}
        ideals = sorted(prefixes, key=lambda mask: (mask.bit_count(), mask))
    groups = [sum(1 << v for v in set(group)) for group in problem.together]
    ideals = [mask for mask in ideals if all(mask & g in (0, g) for g in groups)]
    value, stage_of = _grow(problem, ideals)
    return BusiestStage(value * (1 - 1e-12) if complete else 0.0, stage_of)


def _grow(problem: PipelineProblem, ideals: Sequence[int]) -> tuple[float, tuple[int, ...] | None]:
    import numpy as np

    n = problem.num_layers
    holds = np.array([[mask >> v & 1 for v in range(n)] for mask in ideals], dtype=bool)
    best = np.full(len(ideals), math.inf)
    best[0] = 0.0
    came = []
    for s in range(problem.num_stages):
        values, steps = np.full(len(ideals), math.inf), np.zeros(len(ideals), dtype=np.int64)
        for k in np.flatnonzero(best < math.inf):
            larger = k + 1 + np.flatnonzero((holds[k + 1 :] >= holds[k]).all(1))
            busy = np.maximum(_stage_times(problem, s, holds[larger] & ~holds[k]), best[k])
            better = busy < values[larger]
            values[larger[better]], steps[larger[better]] = busy[better], k
        best = values
        came.append(steps)
    if best[-1] == math.inf:
        return math.inf, None
    stage_of, at = [0] * n, len(ideals) - 1
    for s in reversed(range(problem.num_stages)):
        before = int(came[s][at])
        for v in np.flatnonzero(holds[at] & ~holds[before]):
            stage_of[int(v)] = s
        at = before
    return float(best[-1]), tuple(stage_of)


def _stage_times(problem: PipelineProblem, s: int, pieces: NDArray[np.bool_]) -> NDArray[np.float64]:
    """m (F + B) + u of stage s with each of the pieces (rows over layers); inf where it does not fit."""
    import numpy as np

    table, k_s = problem.stages[s], problem.in_flight[s]
    passes = problem.micro_batches * (np.array(table.forward_s) + np.array(table.backward_s))
    busy = pieces @ (passes + np.array(table.update_s)) + table.fixed_update_s
    kept = pieces @ (np.array(table.static_bytes) + k_s * np.array(table.saved_bytes))
    needed = kept + (pieces * np.array(table.transient_bytes)).max(1, initial=0.0)
    return np.where(needed <= table.usable_bytes * (1 + 1e-9), busy, math.inf)

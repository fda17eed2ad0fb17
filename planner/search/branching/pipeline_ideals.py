"""The busiest stage, made least over all assignments: a bound of the step time, and an assignment to start from."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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


def least_busiest_stage(problem: PipelineProblem, should_stop: Callable[[], bool] = lambda: False) -> BusiestStage:
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
    value, stage_of = _Growth(problem, ideals).grow(should_stop)
    return BusiestStage(value * (1 - 1e-12) if complete else 0.0, stage_of)


class _Growth:
    """The dynamic programme. larger[k]: the ideals that hold ideal k and more."""

    def __init__(self, problem: PipelineProblem, ideals: Sequence[int]) -> None:
        import numpy as np

        self.problem = problem
        self.holds = np.array([[mask >> v & 1 for v in range(problem.num_layers)] for mask in ideals], dtype=bool)
        self.larger = [
            k + 1 + np.flatnonzero((self.holds[k + 1 :] >= self.holds[k]).all(1)) for k in range(len(ideals))
        ]
        self._working: dict[tuple[float, ...], list[NDArray[np.float64]]] = {}

    def grow(self, should_stop: Callable[[], bool]) -> tuple[float, tuple[int, ...] | None]:
        """The least busiest stage and its assignment; 0 and None when it was stopped."""
        import numpy as np

        best = np.full(len(self.holds), math.inf)
        best[0] = 0.0
        came = []
        for s in range(self.problem.num_stages):
            if should_stop():
                return 0.0, None
            values, steps = np.full(len(best), math.inf), np.zeros(len(best), dtype=np.int64)
            times = self._stage_times(s)
            for k in np.flatnonzero(best < math.inf):
                larger = self.larger[k]
                busy = np.maximum(times(int(k)), best[k])
                better = busy < values[larger]
                values[larger[better]], steps[larger[better]] = busy[better], k
            best = values
            came.append(steps)
        if best[-1] == math.inf:
            return math.inf, None
        return float(best[-1]), self._trace(came)

    def _trace(self, came: Sequence[NDArray[np.int64]]) -> tuple[int, ...]:
        import numpy as np

        stage_of, at = [0] * self.problem.num_layers, len(self.holds) - 1
        for s in reversed(range(self.problem.num_stages)):
            before = int(came[s][at])
            for v in np.flatnonzero(self.holds[at] & ~self.holds[before]):
                stage_of[int(v)] = s
            at = before
        return tuple(stage_of)

    def _stage_times(self, s: int) -> Callable[[int], NDArray[np.float64]]:
        """For ideal k: m (F + B) + u of stage s with what each larger one has beside; inf where it does not fit."""
        import numpy as np

        table, k_s = self.problem.stages[s], self.problem.in_flight[s]
        passes = self.problem.micro_batches * (np.array(table.forward_s) + np.array(table.backward_s))
        busy = self.holds @ (passes + np.array(table.update_s))
        kept = self.holds @ (np.array(table.static_bytes) + k_s * np.array(table.saved_bytes))
        working = self._working_sets(table.transient_bytes)
        most = table.usable_bytes * (1 + 1e-9)

        def times(k: int) -> NDArray[np.float64]:
            larger = self.larger[k]
            own: NDArray[np.float64] = busy[larger] - busy[k] + table.fixed_update_s
            return np.where(kept[larger] - kept[k] + working[k] <= most, own, math.inf)

        return times

    def _working_sets(self, transient: tuple[float, ...]) -> list[NDArray[np.float64]]:
        """For every ideal: the largest working set of what each larger one has beside."""
        import numpy as np

        if transient not in self._working:
            bytes_of = np.array(transient)
            self._working[transient] = [
                ((self.holds[larger] & ~self.holds[k]) * bytes_of).max(1, initial=0.0)
                for k, larger in enumerate(self.larger)
            ]
        return self._working[transient]

"""Bounds before anything is searched: what the layers take at least, on all chips together.

They ask for no tables of memory and updates, so thousands of roots have a bound within a second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from planner.cost.tables import Setting
from planner.search.candidates import Limits, Root
from planner.search.ways import ways_through

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import MixedProblem, Mode, Problem

    Floats = NDArray[np.float64]

__all__ = ["LEAST_S", "Floors", "mix_floor"]

LEAST_S = 1.0
"""Seconds that floors may take beyond the time limit; more than a second's worth of them is rare."""
_MOST_YARDSTICKS = 40


class Floors:
    """A bound of the objective of each root at almost no cost; zero where the problem cannot say what layers take at
    least.

    any_order: stages may hold any sets of the layers, so that a micro-batch may pass only some of them one after
    another; else every stage feeds the next one.
    """

    def __init__(self, price_per_chip_s: Sequence[float] | None, any_order: bool = False) -> None:
        self.prices, self.any_order = price_per_chip_s, any_order

    def of(self, root: Root) -> float:
        """Step time: the rows of `rate_bound`, in any order those of `branching/whole_bound.py`; or price per second x
        step time: `least_cost`.
        """
        import numpy as np

        setting, m = root.setting, root.micro_batches
        choices = [
            (g, mode, root.max_stages(g, mode), least)
            for g, group in enumerate(root.groups)
            for mode in (() if g in root.limits.idle else group.modes)
            if root.max_stages(g, mode) and (least := _least_layers(root.problem, g, mode, setting)) is not None
        ]
        if not choices:
            return 0.0
        rows = np.array([least for _, _, _, least in choices])
        work, per_work = _yardsticks(rows, _layers_by_kind(root.problem))
        if self.prices is not None:
            chips = setting.data_parallel * setting.context_parallel * m
            prices = np.array([self.prices[g] * mode.chips * chips for g, mode, _, _ in choices])
            return float(((prices * per_work).min(axis=1) * work).max())
        longest: dict[int, int] = {}
        for g, _, stages, _ in choices:
            longest[g] = max(longest.get(g, 0), stages)
        k = root.stages_in_flight(sum(longest.values()))
        share = work / _rates(per_work, [(g, float(stages)) for g, _, stages, _ in choices])
        busiest = ((m - k) + (k - 1) / 2) * share
        if self.any_order:
            least_way, longest_way = ways_through(root.problem.chain, rows.min(axis=0).tolist())
            return max(float(np.maximum(m * share, least_way + busiest).max()), longest_way)
        once = per_work.min(axis=1) * work
        return float(np.maximum(m * share, once + busiest).max())


def mix_floor(problem: MixedProblem, limits: Limits) -> float:
    """No mix of pipelines is faster, whatever their shapes: all chips work on the layers without a pause.

    T >= B w / sum_g N_g / a_g   with a_g the least chip-seconds per sequence and work w on group g
    """
    import numpy as np

    contexts = sorted({s.context_parallel for s in problem.settings if s.expert_parallel == 1})
    choices: list[tuple[int, Floats]] = []
    for g, group in enumerate(problem.groups):
        for mode in () if g in limits.idle else group.modes:
            for c, b in ((c, b) for c in contexts for b in problem.micro_batch_sizes):
                least = _least_layers(problem, g, mode, Setting(b, 1, c))
                if least is not None:
                    choices.append((g, least * (mode.chips * c / b)))
    if not choices:
        return 0.0
    work, per_work = _yardsticks(np.array([seconds for _, seconds in choices]), _layers_by_kind(problem))
    chips = [float(group.nodes * group.chips_per_node) for group in problem.groups]
    return float((problem.global_batch * work / _rates(per_work, [(g, chips[g]) for g, _ in choices])).max())


def _yardsticks(rows: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """The choices' own seconds by kind of layer as yardsticks of work: the whole chain's work by each, and the least
    seconds of each choice per unit of it: row >= seconds x yardstick, kind by kind.

    Any yardstick gives a bound; the best one is not known before. With very many choices only some are tried.
    """
    import numpy as np

    sticks = rows[:: -(-len(rows) // _MOST_YARDSTICKS)]
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = rows[None, :, :] / sticks[:, None, :]
    per_work: Floats = np.where(sticks[:, None, :] > 0, ratios, np.inf).min(axis=2)
    work: Floats = np.maximum(sticks @ counts, 1e-300)
    return work, np.where(np.isfinite(per_work), per_work, 0.0)


def _rates(per_work: Floats, choices: Sequence[tuple[int, float]]) -> Floats:
    """Work a second of all groups together by every yardstick, each group in its best mode.

    choices: (group, stages or chips) of every column.
    """
    import numpy as np

    each = np.array([count for _, count in choices])[None, :] / np.maximum(per_work, 1e-300)
    groups = np.array([g for g, _ in choices])
    rates: Floats = np.sum([each[:, groups == g].max(axis=1) for g in dict.fromkeys(groups.tolist())], axis=0)
    return rates


def _least_layers(problem: Problem, group: int, mode: Mode, setting: Setting) -> Floats | None:
    least = getattr(problem, "least_layer_s", None)
    return None if least is None else least(group, mode, setting)


def _layers_by_kind(problem: Problem) -> Floats:
    import numpy as np

    kinds: Iterable[int] = problem.chain.kinds
    return np.bincount(np.array([*kinds]), minlength=len(problem.chain.kind_names)).astype(float)

"""How many replicas of each kind the stages of a plan get: exact, on the chips and nodes there are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations
from math import comb, prod
from typing import TYPE_CHECKING, Any

from planner.search.highs import solve_program
from planner.search.mixed_stages.numbers import Mixes
from planner.search.mixed_stages.packing import Packing

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Floats, Ints

__all__ = ["Composer", "Unsettled"]

_CHUNK = 400
_MOST_SUMS = 30_000
"""Sums of replica counts that are listed one by one; beyond, an integer program decides."""
_PROGRAM_S = 5.0


class Unsettled(Exception):
    """Neither counts nor a proof that there are none; the chain stays open. Never leaves this package."""


class Composer:
    """Finds replica counts for a list of mixes, one a stage, with d replicas in each and `least` (0 or 1) at least of
    every kind.

    Stages on equal mixes are taken together: q of them hold q*d replicas, and any totals of at least q*least a kind can
    be dealt to the q stages.
    """

    def __init__(self, packing: Packing, mixes: Mixes, data_parallel: int, least: int) -> None:
        self.packing, self.mixes, self.data_parallel, self.least = packing, mixes, data_parallel, least
        self._known: dict[tuple[int, ...], dict[int, list[Ints]] | None] = {}

    def compose(self, chain: Sequence[int]) -> list[Ints] | None:
        """(K,) counts for each stage of the chain of mixes, or None. Raises `Unsettled` when that stays unknown."""
        key = tuple(sorted(chain))
        if key not in self._known:
            self._known[key] = self._solve(Counter(key))
        solved = self._known[key]
        if solved is None:
            return None
        left = {mix: list(stages) for mix, stages in solved.items()}
        return [left[mix].pop(0) for mix in chain]

    def _solve(self, groups: Counter[int]) -> dict[int, list[Ints]] | None:
        import numpy as np

        sizes = [comb(groups[mix] * self.data_parallel, int(self.mixes.has[mix].sum()) - 1) for mix in groups]
        if prod(sizes) > _MOST_SUMS:
            return self._program(groups)
        uses, caps = self.packing.uses, self.packing.use_caps
        used: Floats = np.zeros((1, uses.shape[1]))
        picked: list[Ints] = [np.zeros((1, 0), dtype=np.int64)]
        order = sorted(groups, key=lambda mix: (int(self.mixes.has[mix].sum()), mix))
        choices = []
        for mix in order:
            kinds = np.flatnonzero(self.mixes.has[mix])
            totals = _totals(groups[mix] * self.data_parallel, len(kinds), groups[mix] * self.least)
            choices.append((kinds, totals))
            used, index = _add(used, totals @ uses[kinds], caps)
            if not len(used):
                return None
            picked.append(index)
        for row in np.argsort(used.sum(axis=1), kind="stable").tolist():
            dealt = self._trace(row, order, choices, picked, groups)
            if not self.packing.loose or self.packing.assign(np.sum([s for g in dealt.values() for s in g], axis=0)):
                return dealt
        return None

    def _program(self, groups: Counter[int]) -> dict[int, list[Ints]] | None:
        """The same by an integer program: whole totals R[g, k], in as few chips as possible.

        for all groups g:  sum_k R[g,k] = stages_g * d,  R[g,k] >= stages_g * least
        for all rows r:    sum_g sum_k row[r,k] * R[g,k] <= cap[r]        (chips)
        """
        import numpy as np
        import pulp

        order = sorted(groups)
        lp = pulp.LpProblem("replicas", pulp.LpMinimize)
        total: dict[tuple[int, int], Any] = {}
        for mix in order:
            stages = groups[mix]
            kinds = np.flatnonzero(self.mixes.has[mix]).tolist()
            for k in kinds:
                total[mix, k] = lp.add_variable(f"total__g{mix}__k{k}", stages * self.least, None, "Integer")
            lp += pulp.lpSum(total[mix, k] for k in kinds) == stages * self.data_parallel, f"replicas__g{mix}"
        for r, (row, cap) in enumerate(zip(self.packing.rows, self.packing.caps, strict=True)):
            lp += pulp.lpSum(float(row[k]) * value for (_, k), value in total.items()) <= float(cap), f"room__r{r}"
        lp.setObjective(pulp.lpSum(self.packing.kinds[k].degree * value for (_, k), value in total.items()))
        answer = solve_program(lp, time_limit_s=_PROGRAM_S)
        if answer.stop == "infeasible":
            return None
        if answer.values is None:
            raise Unsettled
        dealt: dict[int, list[Ints]] = {}
        for mix in order:
            held: Ints = np.flatnonzero(self.mixes.has[mix])
            totals: Ints = np.array([round(answer.values[total[mix, k].name]) for k in held.tolist()])
            dealt[mix] = self._deal(held, totals, groups[mix])
        if self.packing.assign(np.sum([s for g in dealt.values() for s in g], axis=0)) is None:
            raise Unsettled  # degrees that do not divide one another: another answer of the program might fit the nodes
        return dealt

    def _trace(
        self, row: int, order: list[int], choices: list[tuple[Ints, Ints]], picked: list[Ints], groups: Counter[int]
    ) -> dict[int, list[Ints]]:
        dealt: dict[int, list[Ints]] = {}
        for mix, (kinds, totals), index in reversed(list(zip(order, choices, picked[1:], strict=True))):
            row, choice = (int(v) for v in index[row])
            dealt[mix] = self._deal(kinds, totals[choice], groups[mix])
        return dealt

    def _deal(self, kinds: Ints, totals: Ints, stages: int) -> list[Ints]:
        """Totals of a group over its stages: the least of each kind to every stage, then kind after kind."""
        import numpy as np

        left = [
            k
            for k, total in zip(kinds.tolist(), totals.tolist(), strict=True)
            for _ in range(total - stages * self.least)
        ]
        spare = self.data_parallel - len(kinds) * self.least
        dealt = []
        for s in range(stages):
            counts = np.zeros(len(self.packing.kinds), dtype=np.int64)
            counts[kinds] = self.least
            for k in left[s * spare : (s + 1) * spare]:
                counts[k] += 1
            dealt.append(counts)
        return dealt


def _totals(replicas: int, kinds: int, least: int) -> Ints:
    """(N, kinds) all ways to write `replicas` as a sum of `kinds` numbers of at least `least`."""
    import numpy as np

    free = replicas - kinds * least
    if free < 0:
        return np.zeros((0, kinds), dtype=np.int64)
    if kinds == 1:
        return np.array([[replicas]], dtype=np.int64)
    bars = np.array(list(combinations(range(free + kinds - 1), kinds - 1)), dtype=np.int64).reshape(-1, kinds - 1)
    edges = np.concatenate([np.full((len(bars), 1), -1), bars, np.full((len(bars), 1), free + kinds - 1)], axis=1)
    return np.diff(edges, axis=1) - 1 + least


def _add(used: Floats, more: Floats, caps: Floats) -> tuple[Floats, Ints]:
    """Every sum of a row of `used` and a row of `more` within `caps` that no other is below; with the two rows."""
    import numpy as np

    sums = (used[:, None, :] + more[None, :, :]).reshape(-1, used.shape[1])
    rows = np.flatnonzero((sums <= caps + 1e-9).all(axis=1))
    sums = sums[rows]
    order = np.lexsort((*sums.T[::-1], sums.sum(axis=1)))
    sums, rows = sums[order], rows[order]
    if len(sums) > 1:
        keep = np.concatenate([[True], (np.diff(sums, axis=0) != 0).any(axis=1)])
        sums, rows = sums[keep], rows[keep]
        kept = _undominated(sums)
        sums, rows = sums[kept], rows[kept]
    count = max(1, len(more))
    return sums, np.stack([rows // count, rows % count], axis=1)


def _undominated(sums: Floats) -> Ints:
    """Indices of rows that no other row is below; rows come in order of their sums, without repetition."""
    import numpy as np

    alive = np.ones(len(sums), dtype=bool)
    for start in range(0, len(sums), _CHUNK):
        block = np.flatnonzero(alive[start : start + _CHUNK]) + start
        if not len(block):
            continue
        later = np.flatnonzero(alive[start:]) + start
        below = (sums[block][None, :, :] <= sums[later][:, None, :]).all(axis=2)
        below &= block[None, :] != later[:, None]
        # Equal rows are gone, so a row below another one has the smaller sum and is never below it in turn.
        alive[later[below.any(axis=1)]] = False
    return np.flatnonzero(alive)

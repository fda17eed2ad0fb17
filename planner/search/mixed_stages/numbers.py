"""The tables of one micro-batch size as arrays over replica kinds (K), layers (L) and intervals [a, b) of layers."""

from __future__ import annotations

from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from planner.search.mixed_stages.packing import Packing
from planner.search.mixed_stages.tables import MixedProblem, MixedSetting

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Bools, Floats, Ints

__all__ = ["Mixes", "Numbers", "Synchronisation", "chain_max", "chain_sum", "weighted"]


class Mixes:
    """What a stage can stand on: for each chip, absent or one degree.

    Two degrees of one chip in a stage are never needed: replicas of the higher degree can take the stage's lower one.
    The slowest replica, the slowest pair at each boundary, the update and the synchronisation are maxima over, or
    functions of, what the stage stands on, and so do not grow; the replicas need fewer chips in the same nodes.

    members: (M, C) kind indices, K where there is none.  has: (M, K) bool.  pure: (M,) one kind only.
    keys: chip sets with a least degree, all that synchronisation depends on; key_of: (M,) each mix's.
    covers: (M, M) whether the first mix has, for each kind of the second, that chip with at most that degree.
    """

    def __init__(self, problem: MixedProblem) -> None:
        import numpy as np

        kinds, chips = problem.replica_kinds, len(problem.chips)
        none = len(kinds)
        of_chip = [[none] + [i for i, kind in enumerate(kinds) if kind.chip == c] for c in range(chips)]
        # Few chips first, so that ties go to stages without a mixture.
        rows = sorted((r for r in product(*of_chip) if min(r) < none), key=lambda r: (sum(k < none for k in r), r))
        self.members: Ints = np.array(rows, dtype=np.int64).reshape(len(rows), chips)
        self.has: Bools = np.asarray(np.any(self.members[:, :, None] == np.arange(none), axis=1))
        chip_sets = [tuple(c for c in range(chips) if r[c] < none) for r in rows]
        of_mix = [(s, min(kinds[k].degree for k in r if k < none)) for r, s in zip(rows, chip_sets, strict=True)]
        self.keys = sorted(set(of_mix), key=lambda key: (len(key[0]), key))
        index = {key: i for i, key in enumerate(self.keys)}
        self.key_of: Ints = np.array([index[key] for key in of_mix], dtype=np.int64)
        self.keys_of_kind: list[Ints] = [np.unique(self.key_of[self.has[:, k]]) for k in range(none)]
        self.key_pairs = [
            (t, u)
            for t, (few, high) in enumerate(self.keys)
            for u, (many, low) in enumerate(self.keys)
            if t != u and set(few) <= set(many) and high >= low
        ]
        self.covers: Bools = self._covers(problem)
        self.pure: Bools = (self.members < none).sum(axis=1) == 1

    def _covers(self, problem: MixedProblem) -> Bools:
        import numpy as np

        degrees = np.array([*(float(kind.degree) for kind in problem.replica_kinds), np.inf])[self.members]
        covers: Bools = np.asarray(np.all(degrees[:, None, :] <= degrees[None, :, :], axis=2))
        return covers

    def greatest(self, by_kind: Floats) -> Floats:
        """(M, ...) the largest value over each mix's kinds, from (K, ...)."""
        import numpy as np

        padded = np.concatenate([by_kind, np.full((1, *by_kind.shape[1:]), -np.inf)])
        result: Floats = padded[self.members[:, 0]]
        for column in self.members.T[1:]:
            result = np.maximum(result, padded[column])
        return result


class Numbers:
    """Seconds and bytes for one micro-batch size.

    time: (K, L+1, L+1) seconds of layers [a, b), inf where a >= b or the kind is not possible.  update: (K, L).
    static, saved: (K, L+1, L+1) bytes, fixed and usable: (K,).
    onward, back: (K, K, L) seconds, inf where there is no link; least_onward, least_back: (K, L) over the other side.
    """

    def __init__(self, problem: MixedProblem, mixes: Mixes, packing: Packing, micro_batch_size: int) -> None:
        import numpy as np

        self.problem, self.mixes, self.micro_batch_size = problem, mixes, micro_batch_size
        kinds, layers = problem.replica_kinds, problem.num_layers
        self.num_layers = layers
        self.update: Floats = np.full((len(kinds), layers), np.inf)
        times, static, saved = (np.full((len(kinds), layers), np.inf) for _ in range(3))
        self.fixed: Floats = np.full(len(kinds), np.inf)
        for i, kind in enumerate(kinds):
            numbers = problem.layer_numbers(kind, micro_batch_size)
            if numbers is not None and packing.most(i):
                times[i], self.update[i] = numbers.time_s, numbers.update_s
                static[i], saved[i], self.fixed[i] = numbers.static_bytes, numbers.saved_bytes, numbers.fixed_bytes
        self.usable: Floats = np.array([problem.chips[kind.chip].usable_bytes for kind in kinds])
        self.time, self.static, self.saved = (_interval_sums(values) for values in (times, static, saved))
        self.onward = self._links(problem.onward_s)
        self.back = self._links(problem.back_s)
        self.least_onward: Floats = self.onward.min(axis=1)
        self.least_back: Floats = self.back.min(axis=1)

    def _links(self, ask: object) -> Floats:
        import numpy as np

        kinds = self.problem.replica_kinds
        result: Floats = np.full((len(kinds), len(kinds), self.num_layers), np.inf)
        for i, source in enumerate(kinds):
            for j, target in enumerate(kinds):
                seconds = ask(source, target, self.micro_batch_size)  # type: ignore[operator]
                if seconds is not None:
                    result[i, j] = seconds
        return result

    def fits(self, in_flight: float) -> Bools:
        """(K, L+1, L+1) whether the interval fits the chip's memory with so many micro-batches in flight."""
        import numpy as np

        if in_flight not in self._fits:
            with np.errstate(invalid="ignore"):
                used = self.static + in_flight * self.saved + self.fixed[:, None, None]
                self._fits[in_flight] = np.isfinite(self.time) & (used <= self.usable[:, None, None])
        return self._fits[in_flight]

    @cached_property
    def _fits(self) -> dict[float, Bools]:
        return {}

    def stage_times(
        self, in_flight: float, onward: float, back: float, is_first: bool, is_last: bool
    ) -> tuple[Floats, Floats, Floats]:
        """Seconds x of a stage with these transfer weights, inf where it cannot stand: with its back transfer at its
        best (K, L+1, L+1), with both at their best (K, L+1, L+1), and the least of the latter over kinds (L+1, L+1).
        """
        import numpy as np

        key = (in_flight, onward, back, is_first, is_last)
        if key not in self._stages:
            layers = self.num_layers
            floor = np.where(self.fits(in_flight), self.time, np.inf)
            if is_first:
                floor[:, 1:, :] = np.inf
            else:
                floor[:, 0, :] = np.inf
                floor[:, :layers, :] += weighted(back, self.least_back)[:, :, None]
            if is_last:
                floor[:, :, :layers] = np.inf
            else:
                floor[:, :, layers] = np.inf
            whole = floor.copy()
            if not is_last:
                whole[:, :, 1:] += weighted(onward, self.least_onward)[:, None, :]
            self._stages[key] = floor, whole, whole.min(axis=0)
        return self._stages[key]

    @cached_property
    def _stages(self) -> dict[tuple[float, ...], tuple[Floats, Floats, Floats]]:
        return {}

    def chain_lows(self, places: tuple[tuple[float, ...], ...], least: list[Floats]) -> tuple[float, float]:
        """Seconds: least sum and least maximum of x over chains; `places` are the stages' keys, to remember it by."""
        if places not in self._lows:
            self._lows[places] = chain_sum(least), chain_max(least)
        return self._lows[places]

    @cached_property
    def _lows(self) -> dict[tuple[tuple[float, ...], ...], tuple[float, float]]:
        return {}

    def boundary(self, onward: float, back: float) -> tuple[Floats, Floats]:
        """(K, K, L-1) seconds of both transfers at each boundary from a kind to the next one, the back transfer beyond
        its best; and 0, or inf where there is no link (the seconds are 0 there).
        """
        import numpy as np

        if (onward, back) not in self._boundaries:
            layers = self.num_layers
            least = weighted(back, self.least_back)
            beyond = weighted(back, self.back.transpose(1, 0, 2)) - np.where(np.isfinite(least), least, 0.0)[None]
            seconds = weighted(onward, self.onward)[:, :, : layers - 1] + beyond[:, :, 1:]
            linked = np.isfinite(seconds)
            self._boundaries[onward, back] = np.where(linked, seconds, 0.0), np.where(linked, 0.0, np.inf)
        return self._boundaries[onward, back]

    @cached_property
    def _boundaries(self) -> dict[tuple[float, float], tuple[Floats, Floats]]:
        return {}

    @cached_property
    def mix_time(self) -> Floats:
        """(M, L+1, L+1) seconds of the slowest replica."""
        return self.mixes.greatest(self.time)

    @cached_property
    def mix_update(self) -> Floats:
        """(M, L) seconds."""
        return self.mixes.greatest(self.update)

    @cached_property
    def mix_least_onward(self) -> Floats:
        """(M, L) seconds onward, to the best next stage."""
        return self.mixes.greatest(self.least_onward)

    @cached_property
    def mix_least_back(self) -> Floats:
        return self.mixes.greatest(self.least_back)

    def mix_links(self, table: Floats, layer: int) -> Floats:
        """(M, M) seconds of the slowest pair at this layer, from `onward` or `back`; cached for equal layers."""
        values = table[:, :, layer]
        key = (table is self.onward, values.tobytes())
        if key not in self._pairs:
            self._pairs[key] = self.mixes.greatest(self.mixes.greatest(values).T.copy()).T.copy()
        return self._pairs[key]

    @cached_property
    def boundary_kind(self) -> Ints:
        """(L+1,) number of the kind of boundary before each layer: equal numbers, equal links."""
        import numpy as np

        links = np.concatenate([self.onward[:, :, :-1], self.back[:, :, 1:]]).reshape(-1, self.num_layers - 1).T
        kinds = np.unique(links, axis=0, return_inverse=True)[1].reshape(-1)
        return np.concatenate([[0], kinds, [0]])

    @cached_property
    def link_covers(self) -> Bools:
        """(B, M, M) for each kind of boundary, whether the first mix is never slower than the second in a transfer
        across it, in either direction and on either side.
        """
        import numpy as np

        results = []
        for position in np.unique(self.boundary_kind[1:-1], return_index=True)[1] + 1:
            covers = np.ones_like(self.mixes.covers)
            for table, layer in ((self.onward, int(position) - 1), (self.back, int(position))):
                pairs = self.mix_links(table, layer)
                for rows in (pairs, pairs.T):
                    # The slowest pair of two mixes is a maximum over kinds, so that unmixed partners decide.
                    alone = rows[:, self.mixes.pure]
                    covers &= np.all(alone[:, None, :] <= alone[None, :, :], axis=2)
            results.append(covers)
        return np.array(results)

    @cached_property
    def _pairs(self) -> dict[tuple[bool, bytes], Floats]:
        return {}


class Synchronisation:
    """Seconds to synchronise a stage, for one setting.

    tables: (T, L+1, L+1) for the chip sets and least degrees of `Mixes.keys`, inf where not possible.
    least: (K, L+1, L+1) over all mixes with that kind.
    grows: whether fewer chips or a higher least degree never take longer. Then a stage that leaves out some kinds of
    its mix is covered by the mix.
    """

    def __init__(self, problem: MixedProblem, mixes: Mixes, setting: MixedSetting) -> None:
        import numpy as np

        size = problem.num_layers + 1
        self.tables: Floats = np.full((len(mixes.keys), size, size), np.inf)
        for t, (chips, degree) in enumerate(mixes.keys):
            seconds = problem.sync_s(chips, degree, setting)
            if seconds is not None:
                self.tables[t] = seconds
        a, b = np.triu_indices(size, 1)
        upper = self.tables[:, a, b]
        self.grows = all(bool((upper[t] <= upper[u]).all()) for t, u in mixes.key_pairs)
        self.least: Floats = np.full((len(problem.replica_kinds), size, size), np.inf)
        for k, keys in enumerate(mixes.keys_of_kind):
            if len(keys):
                self.least[k] = self.tables[keys].min(axis=0)


def _interval_sums(values: Floats) -> Floats:
    """(K, L+1, L+1) sums over [a, b) from (K, L); inf where a >= b or a value is inf."""
    import numpy as np

    kinds, layers = values.shape
    known = np.isfinite(values).all(axis=1)
    result: Floats = np.full((kinds, layers + 1, layers + 1), np.inf)
    for a in range(layers):
        # Summed from a, not as a difference of prefix sums: the same additions as a person or a checker makes.
        result[known, a, a + 1 :] = np.cumsum(values[known, a:], axis=1)
    return result


def weighted(weight: float, seconds: Floats) -> Floats:
    """weight * seconds; a missing link (inf) stays missing at weight zero: neighbours must be able to talk."""
    import numpy as np

    if weight > 0:
        return weight * seconds
    return np.where(np.isfinite(seconds), 0.0, np.inf)


def chain_sum(times: list[Floats]) -> float:
    """Least sum over chains of intervals that cover all layers; times: for each stage (L+1, L+1)."""
    import numpy as np

    best = np.full(len(times[0]), np.inf)
    best[0] = 0.0
    for table in times:
        best = (best[:, None] + table).min(axis=0)
    return float(best[-1])


def chain_max(times: list[Floats]) -> float:
    """Least maximum over chains of intervals that cover all layers."""
    import numpy as np

    best = np.full(len(times[0]), np.inf)
    best[0] = 0.0
    for table in times:
        best = np.maximum(best[:, None], table).min(axis=0)
    return float(best[-1])

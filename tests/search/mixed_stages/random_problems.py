"""Small problems with random tables: links that are slower one way or missing, tight memory, odd nodes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from planner.search.mixed_stages import ChipPool, LayerNumbers, MixedSetting, ReplicaKind

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class TableProblem:
    """A problem from dictionaries; what is not in them is not possible."""

    num_layers: int
    chips: tuple[ChipPool, ...]
    replica_kinds: tuple[ReplicaKind, ...]
    settings: tuple[MixedSetting, ...]
    layers: dict[tuple[ReplicaKind, int], LayerNumbers]
    onward: dict[tuple[ReplicaKind, ReplicaKind, int], Floats]
    back: dict[tuple[ReplicaKind, ReplicaKind, int], Floats]
    sync: dict[tuple[tuple[int, ...], int, MixedSetting], Floats]
    ends: dict[int, list[tuple[float, float]]] = field(default_factory=dict)

    def layer_numbers(self, kind: ReplicaKind, micro_batch_size: int) -> LayerNumbers | None:
        return self.layers.get((kind, micro_batch_size))

    def onward_s(self, source: ReplicaKind, target: ReplicaKind, micro_batch_size: int) -> Floats | None:
        return self.onward.get((source, target, micro_batch_size))

    def back_s(self, source: ReplicaKind, target: ReplicaKind, micro_batch_size: int) -> Floats | None:
        return self.back.get((source, target, micro_batch_size))

    def sync_s(self, chips: tuple[int, ...], degree: int, setting: MixedSetting) -> Floats | None:
        return self.sync.get((chips, degree, setting))

    def transfer_weights(self, stage: int, num_stages: int) -> tuple[float, float]:
        return self.ends[num_stages][stage]

    def in_flight(self, stage: int, num_stages: int, setting: MixedSetting) -> float:
        return float(min(setting.num_micro_batches, num_stages - stage))


def random_problem(seed: int) -> TableProblem:
    """At most 6 layers and 6 chips of 2 or 3 types."""
    rng = np.random.default_rng(seed)
    layers = int(rng.integers(2, 7))
    types = int(rng.integers(2, 4))
    counts = [1] * types
    for _ in range(int(rng.integers(0, 7 - types))):
        counts[int(rng.integers(types))] += 1
    per_node = [int(rng.choice([1, 2, 4] if rng.random() < 0.7 else [3, 6])) for _ in range(types)]
    room = float(rng.choice([2.0, 4.0, 8.0, 40.0]))
    chips = tuple(
        ChipPool(f"chip{c}", counts[c], per_node[c], room * float(rng.uniform(0.6, 1.4))) for c in range(types)
    )
    kinds = tuple(
        ReplicaKind(c, d)
        for c in range(types)
        for d in range(1, per_node[c] + 1)
        if per_node[c] % d == 0 and d <= counts[c] and (d == 1 or rng.random() < 0.7)
    )
    sizes = (1,) if rng.random() < 0.5 else (1, 2)
    batch = int(rng.integers(1, 13))
    settings = tuple(
        MixedSetting(m, d, math.ceil(batch / (m * d))) for m in sizes for d in range(1, min(batch, sum(counts)) + 1)
    )
    return TableProblem(
        layers,
        chips,
        kinds,
        settings,
        _layers(rng, layers, kinds, sizes),
        _links(rng, layers, kinds, sizes),
        _links(rng, layers, kinds, sizes),
        _syncs(rng, layers, types, kinds, settings),
        {p: _ends(rng, p) for p in range(1, layers + 1)},
    )


def _layers(
    rng: np.random.Generator, layers: int, kinds: tuple[ReplicaKind, ...], sizes: tuple[int, ...]
) -> dict[tuple[ReplicaKind, int], LayerNumbers]:
    speed = {kind.chip: float(rng.uniform(0.5, 3.0)) for kind in kinds}
    base = rng.uniform(0.2, 1.5, layers)
    size = rng.uniform(0.5, 1.5, layers)
    return {
        (kind, m): LayerNumbers(
            base * m / speed[kind.chip] / kind.degree ** rng.uniform(0.4, 1.0) * rng.uniform(0.9, 1.1, layers),
            rng.uniform(0.0, 0.5, layers),
            size / kind.degree,
            size * m * 0.6 / kind.degree,
            float(rng.uniform(0.0, 1.0)),
        )
        for kind in kinds
        for m in sizes
        if rng.random() < 0.93
    }


def _links(
    rng: np.random.Generator, layers: int, kinds: tuple[ReplicaKind, ...], sizes: tuple[int, ...]
) -> dict[tuple[ReplicaKind, ReplicaKind, int], Floats]:
    """Half of them as slow as the slower side allows, the other half without any order."""
    missing = 0.25 if rng.random() < 0.5 else 0.0
    pairs = [(a, b) for a in kinds for b in kinds if rng.random() >= missing]
    if rng.random() < 0.5:
        side = {kind: float(rng.uniform(0.0, 0.4)) for kind in kinds}
        size = rng.uniform(0.5, 1.5, layers)
        return {(a, b, m): max(side[a], side[b]) * size * m for a, b in pairs for m in sizes}
    return {(a, b, m): rng.uniform(0.0, 0.4, layers) * m for a, b in pairs for m in sizes}


def _syncs(
    rng: np.random.Generator,
    layers: int,
    types: int,
    kinds: tuple[ReplicaKind, ...],
    settings: tuple[MixedSetting, ...],
) -> dict[tuple[tuple[int, ...], int, MixedSetting], Floats]:
    sets = [tuple(c for c in range(types) if mask >> c & 1) for mask in range(1, 1 << types)]
    degrees = sorted({kind.degree for kind in kinds})
    if rng.random() < 0.6:
        return _growing_syncs(rng, layers, types, sets, degrees, settings)
    missing = 0.15 if rng.random() < 0.5 else 0.0
    return {
        (chips, degree, setting): rng.uniform(0.0, 1.0, (layers + 1, layers + 1)) * (setting.data_parallel > 1)
        for chips in sets
        for degree in degrees
        for setting in settings
        if rng.random() >= missing
    }


def _growing_syncs(
    rng: np.random.Generator,
    layers: int,
    types: int,
    sets: list[tuple[int, ...]],
    degrees: list[int],
    settings: tuple[MixedSetting, ...],
) -> dict[tuple[tuple[int, ...], int, MixedSetting], Floats]:
    """By size over the slowest chip's link: more chips or a lower degree never take less; a chip may have no link."""
    link = [float(rng.uniform(0.1, 1.0)) for _ in range(types)]
    missing = int(rng.integers(types)) if rng.random() < 0.2 else -1
    upto = np.concatenate([[0.0], np.cumsum(rng.uniform(0.1, 0.5, layers))])
    size = np.maximum(upto[None, :] - upto[:, None], 0.0)
    return {
        (chips, degree, setting): size * max(link[c] for c in chips) / degree * (1 - 1 / setting.data_parallel)
        for chips in sets
        for degree in degrees
        for setting in settings
        if missing not in chips or setting.data_parallel == 1
    }


def _ends(rng: np.random.Generator, stages: int) -> list[tuple[float, float]]:
    """Whole numbers, and zero at the outer sides; a rule of its own for every number of stages."""
    if stages == 1:
        return [(0.0, 0.0)]
    inner = [(float(rng.integers(0, 3)), float(rng.integers(0, 3))) for _ in range(stages - 2)]
    return [(float(rng.integers(1, 3)), 0.0), *inner, (0.0, float(rng.integers(1, 3)))]

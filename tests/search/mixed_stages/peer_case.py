"""Measured profiles of the peers' cases as a problem for the search: the one place that knows their fields."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from planner.search.mixed_stages import ChipPool, LayerNumbers, MixedSetting, ReplicaKind

Floats = NDArray[np.float64]

_STATE_BYTES = 24
"""Bytes of weights, gradients and optimizer states, by parameter."""
_BUCKET_BYTES = 5e8


def read_case(path: Path) -> PeerCase:
    return PeerCase(json.loads(path.read_text()))


class PeerCase:
    """A case's document as chips, replica kinds, settings and tables."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.names = list(document["chips"])
        self._times = [document["chips"][name]["times_s"] for name in self.names]
        self._layers = document["layers"]
        self.element_bytes = document["bytes_per_elem"]
        self.num_layers = len(self._layers)
        self.chips = tuple(
            ChipPool(name, chip["count"], chip["per_node"], chip["mem_bytes"])
            for name, chip in document["chips"].items()
        )
        self.replica_kinds = tuple(
            ReplicaKind(c, degree)
            for c, pool in enumerate(self.chips)
            for degree in sorted({int(d) for by_degree in self._times[c].values() for d in by_degree})
            if pool.chips_per_node % degree == 0
        )
        batch, chips = document["global_batch"], sum(pool.count for pool in self.chips)
        sizes = sorted({int(size) for times in self._times for size in times})
        self.settings = tuple(
            MixedSetting(size, dp, math.ceil(batch / (size * dp)))
            for size in sizes
            for dp in range(1, min(chips, math.ceil(batch / size)) + 1)
        )
        self._links = {
            (link["from"], int(link["from_tp"]), link["to"], int(link["to_tp"])): link["poly_log2MB"]
            for link in document["links"]
        }
        self._out_elements = np.array([layer["act_out_elems_per_sample"] for layer in self._layers], dtype=np.float64)
        upto = np.concatenate([[0.0], np.cumsum(self._by_degree("params", 1) * self.element_bytes)])
        self._stage_bytes: Floats = np.maximum(upto[None, :] - upto[:, None], 0.0)

    def _by_degree(self, field: str, degree: int) -> Floats:
        return np.array([layer[field][str(degree)] for layer in self._layers], dtype=np.float64)

    def layer_numbers(self, kind: ReplicaKind, micro_batch_size: int) -> LayerNumbers | None:
        times = self._times[kind.chip].get(str(micro_batch_size), {}).get(str(kind.degree))
        if times is None:
            return None
        forward, backward, update = np.array(times, dtype=np.float64).T
        saved = self._by_degree("act_mem_elems_per_sample", kind.degree) * self.element_bytes * micro_batch_size
        static = self._by_degree("params", kind.degree) * _STATE_BYTES
        return LayerNumbers(forward + backward, update, static, saved, 2e9 if kind.degree == 1 else 3e9)

    def _send_s(self, source: ReplicaKind, target: ReplicaKind, micro_batch_size: int) -> Floats | None:
        link = (self.names[source.chip], source.degree, self.names[target.chip], target.degree)
        if link not in self._links:
            return None
        return _seconds(self._links[link], micro_batch_size * self.element_bytes * self._out_elements)

    onward_s = _send_s
    """The last layer's output, to the next stage."""
    back_s = _send_s
    """As many bytes as the stage's own first layer puts out, to the stage before."""

    def sync_s(self, chips: tuple[int, ...], degree: int, setting: MixedSetting) -> Floats | None:
        """Ring all-reduce in buckets over the slowest link between two of the chips, at tensor degree 1."""
        dp = setting.data_parallel
        if dp == 1:
            return np.zeros_like(self._stage_bytes)
        total = self._stage_bytes / degree
        slowest = np.zeros_like(total)
        for a in chips:
            for b in chips:
                link = (self.names[a], 1, self.names[b], 1)
                if link not in self._links:
                    return None
                full = np.floor(total / _BUCKET_BYTES)
                rest = total - full * _BUCKET_BYTES
                last = np.where(rest > 0, _seconds(self._links[link], np.maximum(rest, 1.0) / dp), 0.0)
                bucket = _seconds(self._links[link], np.array([_BUCKET_BYTES / dp]))
                slowest = np.maximum(slowest, 2 * (dp - 1) * (full * bucket + last))
        return slowest

    def transfer_weights(self, stage: int, num_stages: int) -> tuple[float, float]:
        if num_stages == 1:
            return 0.0, 0.0
        if stage == 0:
            return (2.0 if num_stages > 3 else 1.0), 0.0
        if stage == num_stages - 1:
            return 0.0, 2.0
        return 1.0, 1.0

    def in_flight(self, stage: int, num_stages: int, setting: MixedSetting) -> float:
        return float(num_stages - stage)


def _seconds(link: list[float], size_bytes: Floats) -> Floats:
    """Bytes over a bandwidth in GB/s that is a polynomial of log2 of the megabytes."""
    log = np.log2(size_bytes / 1e6)
    bandwidth = link[0] * log**2 + link[1] * log + link[2]
    result: Floats = size_bytes / 1e9 / bandwidth
    return result

"""What one stage needs and takes, part by part: the numbers behind a plan's memory and time bars, and the checker's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from planner.cost.host_copies import NOTHING_OFFLOADED

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.host_copies import HostCopies, OnHost
    from planner.cost.layer_time import LayerTimes
    from planner.cost.memory import StaticMemory
    from planner.cost.tables import LayerTable

    Floats = NDArray[np.float64]

__all__ = ["StageBreakdown", "StageMemory", "StageNumbers", "StageTime", "stage_breakdown"]


_NO_PARTS = ("usable_bytes", "host_bytes", "usable_host_bytes", "nvme_bytes", "usable_nvme_bytes")


@dataclass(frozen=True)
class StageMemory:
    """Peak memory of a stage on one chip, in bytes.

    activations: saved tensors of all micro-batches in flight.  transient: the largest working set of its layers.
    buffers: what the stage receives from its neighbours.  usable_bytes is the limit, not a part.
    staging: buffers on the way to host memory and back, None where no layer is offloaded.  host_bytes: what it takes of
    host memory for one chip, offloaded activations, optimizer states and buffers of drives together (None: nothing),
    and usable_host_bytes the limit of that.  nvme_bytes, usable_nvme_bytes: the same of drives.
    """

    weights: float
    gradients: float
    optimizer: float
    activations: float
    transient: float
    buffers: float
    usable_bytes: float
    staging: float | None = None
    host_bytes: float | None = None
    usable_host_bytes: float = math.inf
    nvme_bytes: float | None = None
    usable_nvme_bytes: float = math.inf

    def parts(self) -> dict[str, float]:
        """The parts by name; their sum is the peak."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_PARTS}
        return {name: value for name, value in parts.items() if value is not None}

    @property
    def peak_bytes(self) -> float:
        return sum(self.parts().values())

    @property
    def fits(self) -> bool:
        off_chip = (self.host_bytes or 0.0) <= self.usable_host_bytes and (
            (self.nvme_bytes or 0.0) <= self.usable_nvme_bytes
        )
        return self.peak_bytes <= self.usable_bytes and off_chip


@dataclass(frozen=True)
class StageTime:
    """Seconds of a stage.

    For one micro-batch: forward, backward (input part and weight part), recompute.  Once a step: reduction, optimizer.
    communication_s: collectives inside the layers for one micro-batch, both ways; already in the parts before.
    offload_forward_s, offload_backward_s: waiting for copies to and from host memory; already in forward and in the
    backward's input part.
    """

    forward_s: float
    backward_input_s: float
    backward_weight_s: float
    recompute_s: float
    reduction_s: float
    optimizer_s: float
    communication_s: float
    offload_forward_s: float = 0.0
    offload_backward_s: float = 0.0

    @property
    def backward_s(self) -> float:
        """The whole backward action: input part, weight part and recompute."""
        return self.backward_input_s + self.backward_weight_s + self.recompute_s

    @property
    def micro_batch_s(self) -> float:
        """Forward and backward of one micro-batch."""
        return self.forward_s + self.backward_s

    @property
    def update_s(self) -> float:
        """After the last action."""
        return self.reduction_s + self.optimizer_s


@dataclass(frozen=True)
class StageBreakdown:
    """Memory and time of one stage."""

    memory: StageMemory
    time: StageTime


@dataclass(frozen=True)
class StageNumbers:
    """A layer table and the parts that it sums up."""

    table: LayerTable
    static: StaticMemory
    collectives: LayerTimes
    recompute_s: Floats
    host: HostCopies | None


def stage_breakdown(
    numbers: StageNumbers, counts: Sequence[Sequence[int]], in_flight: int, received: float
) -> StageBreakdown:
    """Memory and time of a stage.

    counts[q][k]: layers of kind k under recompute policy q; in_flight: micro-batches whose activations it holds;
    received: elements per sequence that arrive from other stages.
    """
    import numpy as np

    table, held = numbers.table, np.asarray(counts, dtype=float)
    layers = held.sum(axis=0)
    host = NOTHING_OFFLOADED if numbers.host is None else numbers.host.of_stage(held, in_flight)
    memory = StageMemory(
        weights=float(layers @ numbers.static.weights),
        gradients=float(layers @ numbers.static.gradients),
        optimizer=float(layers @ numbers.static.optimizer),
        activations=in_flight * float((held * table.saved_bytes).sum()),
        transient=float(np.where(held > 0, table.transient_bytes, 0.0).max()),
        buffers=table.fixed_bytes + received * table.buffer_bytes,
        usable_bytes=table.usable_bytes,
        staging=host.staging_bytes,
        host_bytes=_host_bytes(table, layers, host),
        usable_host_bytes=table.usable_host_bytes,
        nvme_bytes=None if table.nvme_bytes is None else float(layers @ table.nvme_bytes),
        usable_nvme_bytes=table.usable_nvme_bytes,
    )
    collectives = numbers.collectives
    both_ways = layers @ (collectives.forward_s + collectives.backward_input_s + collectives.backward_weight_s)
    time = StageTime(
        forward_s=float(layers @ table.forward_s) + host.out_s,
        backward_input_s=float(layers @ table.backward_input_s) + host.back_s,
        backward_weight_s=float(layers @ table.backward_weight_s),
        recompute_s=float((held * numbers.recompute_s).sum()),
        reduction_s=float(layers @ table.reduction_s) + table.fixed_update_s,
        optimizer_s=float(layers @ table.optimizer_s),
        communication_s=float(both_ways + (held * collectives.recompute_s).sum()),
        offload_forward_s=host.out_s,
        offload_backward_s=host.back_s,
    )
    return StageBreakdown(memory, time)


def _host_bytes(table: LayerTable, layers: Floats, activations: OnHost) -> float | None:
    """Bytes of host memory for one chip of a stage, states or buffers and activations; None where there are none."""
    if table.host_bytes is None and not table.host_fixed_bytes:
        return activations.host_bytes
    states = 0.0 if table.host_bytes is None else float(layers @ table.host_bytes)
    return states + table.host_fixed_bytes + (activations.host_bytes or 0.0)

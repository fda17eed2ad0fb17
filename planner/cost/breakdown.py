"""What one stage needs and takes, part by part: the numbers behind a plan's memory and time bars, and the checker's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

__all__ = ["StageBreakdown", "StageMemory", "StageTime"]


_NO_PARTS = ("usable_bytes", "host_bytes", "usable_host_bytes")


@dataclass(frozen=True)
class StageMemory:
    """Peak memory of a stage on one chip, in bytes.

    activations: saved tensors of all micro-batches in flight.  transient: the largest working set of its layers.
    buffers: what the stage receives from its neighbours.  usable_bytes is the limit, not a part.
    staging: buffers on the way to host memory and back, None where no layer is offloaded.  host_bytes: what it takes of
    host memory for one chip, offloaded activations and optimizer states together (None: nothing), and
    usable_host_bytes the limit of that.
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

    def parts(self) -> dict[str, float]:
        """The parts by name; their sum is the peak."""
        parts = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _NO_PARTS}
        return {name: value for name, value in parts.items() if value is not None}

    @property
    def peak_bytes(self) -> float:
        return sum(self.parts().values())

    @property
    def fits(self) -> bool:
        return self.peak_bytes <= self.usable_bytes and (self.host_bytes or 0.0) <= self.usable_host_bytes


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

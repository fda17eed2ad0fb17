"""What the search for mixed stages takes: plain numbers, whatever made them, and the form of the step time.

A *mixed stage* has data-parallel replicas on different chips, or with different tensor parallel degrees. For a plan
with p stages, data parallel degree d and n micro-batches for each replica, with stage i holding layers [a_i, b_i) on
the replica kinds K_i:

    x_i  = max_{k in K_i} sum_{a_i <= l < b_i} time[k, l]
           + onward_weight_i * max_{k in K_i, j in K_{i+1}} onward[k, j, b_i - 1]
           + back_weight_i   * max_{k in K_i, j in K_{i-1}} back[k, j, a_i]
    step = (n - 1) * max_i x_i + sum_i x_i + max_i max_{k in K_i} update[k, a_i] + max_i sync_i            (seconds)

with sync_i a function of the stage's layers, of the set of its chips, and of its least tensor parallel degree.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]
    Bools = NDArray[np.bool_]

__all__ = ["ChipPool", "LayerNumbers", "MixedProblem", "MixedSetting", "ReplicaKind"]


@dataclass(frozen=True)
class ChipPool:
    """All chips of one type: full nodes of `chips_per_node`, and one smaller node when the count leaves a rest.

    usable_bytes: what the layers of a stage may take on each chip.
    """

    name: str
    count: int
    chips_per_node: int
    usable_bytes: float

    @property
    def node_sizes(self) -> tuple[int, ...]:
        """Chips in each node, the full ones first."""
        full, rest = divmod(self.count, self.chips_per_node)
        return (self.chips_per_node,) * full + ((rest,) if rest else ())


@dataclass(frozen=True)
class ReplicaKind:
    """One replica of a stage: `degree` chips of one type (an index into the problem's chips) inside a node."""

    chip: int
    degree: int


@dataclass(frozen=True)
class MixedSetting:
    """What is equal for all stages of a plan; `num_micro_batches` is what every replica works through in a step."""

    micro_batch_size: int
    data_parallel: int
    num_micro_batches: int


@dataclass(frozen=True)
class LayerNumbers:
    """Numbers of the L layers for one (replica kind, micro-batch size), each for one chip of the replica.

    time_s: (L,) seconds, forward and backward of one micro-batch.  update_s: (L,) seconds of the update of a stage
    whose first layer this is.
    static_bytes: (L,) whatever is in flight.  saved_bytes: (L,) for each micro-batch in flight.
    fixed_bytes: once a stage.
    """

    time_s: Floats
    update_s: Floats
    static_bytes: Floats
    saved_bytes: Floats
    fixed_bytes: float


class MixedProblem(Protocol):
    """What the search needs, whatever made the numbers. A `None` says: not possible."""

    @property
    def num_layers(self) -> int: ...
    @property
    def chips(self) -> tuple[ChipPool, ...]: ...
    @property
    def replica_kinds(self) -> tuple[ReplicaKind, ...]:
        """Every (chip, tensor parallel degree) of the plan space; a degree divides its chip's `chips_per_node`."""
        ...

    @property
    def settings(self) -> tuple[MixedSetting, ...]: ...

    def layer_numbers(self, kind: ReplicaKind, micro_batch_size: int) -> LayerNumbers | None: ...

    def onward_s(self, source: ReplicaKind, target: ReplicaKind, micro_batch_size: int) -> Floats | None:
        """(L,) seconds to send what layer l puts out from a stage that ends with it to the next stage."""
        ...

    def back_s(self, source: ReplicaKind, target: ReplicaKind, micro_batch_size: int) -> Floats | None:
        """(L,) seconds to send gradients from a stage that starts with layer l to the stage before it."""
        ...

    def sync_s(self, chips: tuple[int, ...], degree: int, setting: MixedSetting) -> Floats | None:
        """(L+1, L+1) seconds to synchronise a stage of layers [a, b), at [a, b], for the chips it stands on (indices in
        order) and its least tensor parallel degree.
        """
        ...

    def transfer_weights(self, stage: int, num_stages: int) -> tuple[float, float]:
        """How often x_i counts the stage's (onward, back) transfer; at the ends of the chain the outer one is zero."""
        ...

    def in_flight(self, stage: int, num_stages: int, setting: MixedSetting) -> float:
        """Micro-batches whose saved tensors a stage holds at once."""
        ...

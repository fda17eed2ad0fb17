"""Numbers that search, checker and simulator share: tables per layer kind, and the shape of a pipeline."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, NamedTuple, Protocol

from planner.cost.tiers import Tier

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = [
    "Chain",
    "ChipGroup",
    "Holder",
    "LayerTable",
    "MixedProblem",
    "Mode",
    "Offload",
    "Problem",
    "Reduction",
    "Setting",
    "Tensor",
    "TransferTable",
]


@dataclass(frozen=True)
class Setting:
    """What is equal for all stages of a candidate and changes a layer's numbers."""

    micro_batch_size: int
    data_parallel: int
    context_parallel: int = 1
    expert_parallel: int = 1
    single_stage: bool = False
    """The pipeline has one stage: tied matrices need no second copy and no all-reduce."""
    mixed: bool = field(default=False, repr=False)
    """`data_parallel` counts the replicas of all shapes together; a stage has those of its own shape. Tables then have
    the least reduction that any mix can reach, and transfers share no line: both are lower bounds."""


class Mode(NamedTuple):
    """How a node group runs its stages: what it may choose for itself, beside how many stages and which layers.

    tensor: chips that share each matrix of a stage.
    zero: its ZeRO level; None where there is no choice, and all stages have that of the model file.
    offload: where its optimizer states are; the host updates those that are not on the chips.
    replicas: chip groups that share each micro-batch of one pipeline, each with its part of the sequences.
    """

    tensor: int
    zero: int | None = None
    offload: Tier = Tier.CHIP
    replicas: int = 1

    @property
    def chips(self) -> int:
        """Chips of a stage of one pipeline, at one chip for each sequence."""
        return self.tensor * self.replicas

    def setting(self, setting: Setting) -> Setting:
        """What one replica of a stage in this mode sees of a setting:  b / r sequences, d r data parallel replicas."""
        if self.replicas == 1:
            return setting
        size, rest = divmod(setting.micro_batch_size, self.replicas)
        assert not rest, "replicas of a stage share whole sequences"
        return replace(setting, micro_batch_size=size, data_parallel=setting.data_parallel * self.replicas)


@dataclass(frozen=True)
class Offload:
    """What policies that keep activations in host memory change in a table: (Q, K), zero under the other policies.

    forward_s: seconds that a policy adds to the forward pass (to the backward pass: in `recompute_s`).
    host_bytes: in host memory for each micro-batch in flight, from one chip; beside the optimizer states there
    (`LayerTable.host_bytes`), under the one limit of `LayerTable.usable_host_bytes`.
    staging_bytes: buffers on the chip; a stage has those of its largest offloaded layer.
    """

    forward_s: Floats
    host_bytes: Floats
    staging_bytes: Floats

    def is_never_worse(self, other: Offload) -> bool:
        """Whether no policy of any layer waits longer or needs more."""
        names = ("forward_s", "host_bytes", "staging_bytes")
        return all(bool((getattr(self, n) <= getattr(other, n)).all()) for n in names)


@dataclass(frozen=True)
class LayerTable:
    """Numbers per layer kind (K) for one (node group, mode, setting), on one chip; Q recompute policies in the
    problem's order.

    forward_s, backward_input_s, backward_weight_s: (K,) seconds for one micro-batch, collectives included.
    recompute_s: (Q, K) seconds that a policy adds to the backward pass; zero for `none`.
    offload: what beside differs between the policies, where some of them keep activations in host memory.
    static_bytes: (K,) weights, gradients, optimizer states.  saved_bytes: (Q, K) per micro-batch in flight.
    transient_bytes: (Q, K) largest working set.
    reduction_s, optimizer_s: (K,) seconds after the last micro-batch: exposed gradient reduction and optimizer step.
    fixed_bytes: communication buffers and the like, once a stage.  usable_bytes: what a stage may use in all.
    buffer_bytes: where the graph branches, bytes beside for each element that the stage receives (`Chain.tensors`).
    fixed_update_s: latency part of the reduction, once a stage.
    host_bytes: (K,) bytes of optimizer states in host memory, None for none.  host_fixed_bytes: buffers there, once a
    stage, for states on drives.  usable_host_bytes: what a stage may use of host memory for one chip, for these and the
    activations of `offload` together.
    nvme_bytes: (K,) bytes of optimizer states on drives, None for none.  usable_nvme_bytes: the limit of that.
    """

    forward_s: Floats
    backward_input_s: Floats
    backward_weight_s: Floats
    recompute_s: Floats
    static_bytes: Floats
    saved_bytes: Floats
    transient_bytes: Floats
    reduction_s: Floats
    optimizer_s: Floats
    fixed_bytes: float
    usable_bytes: float
    fixed_update_s: float = 0.0
    buffer_bytes: float = 0.0
    offload: Offload | None = None
    host_bytes: Floats | None = None
    usable_host_bytes: float = math.inf
    host_fixed_bytes: float = 0.0
    nvme_bytes: Floats | None = None
    usable_nvme_bytes: float = math.inf

    @property
    def added_s(self) -> Floats:
        """(Q, K) seconds that a policy adds to both passes together."""
        return self.recompute_s if self.offload is None else self.recompute_s + self.offload.forward_s

    @property
    def uses_host(self) -> bool:
        """Whether a stage may have anything in host memory."""
        return self.host_bytes is not None or self.offload is not None or self.host_fixed_bytes > 0

    def is_never_worse(self, other: LayerTable) -> bool:
        """Whether no stage takes longer or needs more of what it may use."""
        room = self.usable_bytes >= other.usable_bytes and self._host_is_no_worse(other)
        room = room and self._drives_are_no_worse(other)
        return (
            room
            and all(bool((getattr(self, n) <= getattr(other, n)).all()) for n in _ARRAYS)
            and all(getattr(self, n) <= getattr(other, n) for n in _NUMBERS)
        )

    def _host_is_no_worse(self, other: LayerTable) -> bool:
        if not self.uses_host:
            return other.offload is None
        if self.usable_host_bytes < other.usable_host_bytes or (self.offload is None) != (other.offload is None):
            return False
        if self.offload is not None and other.offload is not None and not self.offload.is_never_worse(other.offload):
            return False
        if self.host_bytes is None or other.host_bytes is None:
            return self.host_bytes is None
        return bool((self.host_bytes <= other.host_bytes).all())

    def _drives_are_no_worse(self, other: LayerTable) -> bool:
        if self.nvme_bytes is None:
            return True
        if other.nvme_bytes is None or self.usable_nvme_bytes < other.usable_nvme_bytes:
            return False
        return bool((self.nvme_bytes <= other.nvme_bytes).all())


_ARRAYS = (
    *("forward_s", "backward_input_s", "backward_weight_s", "recompute_s", "reduction_s", "optimizer_s"),
    *("static_bytes", "saved_bytes", "transient_bytes"),
)
_NUMBERS = ("fixed_bytes", "fixed_update_s", "buffer_bytes", "host_fixed_bytes")


@dataclass(frozen=True)
class TransferTable:
    """Seconds to move one micro-batch across a stage boundary, by the kind (K) of the last layer before it.

    forward_s: activations onward.  backward_s: their gradients back.  Latency included.
    Where the graph branches these are lower bounds: what the last layer before the boundary sends to the next one.
    fixed_s, per_element_s: (onward, back) seconds of any transfer between the two stages:  fixed + elements * rate.
    """

    forward_s: Floats
    backward_s: Floats
    fixed_s: tuple[float, float] = (0.0, 0.0)
    per_element_s: tuple[float, float] = (0.0, 0.0)

    def seconds(self, elements: float) -> tuple[float, float]:
        """Onward and back, for so many elements per sequence."""
        return (
            self.fixed_s[0] + elements * self.per_element_s[0],
            self.fixed_s[1] + elements * self.per_element_s[1],
        )


class Holder(NamedTuple):
    """A stage that holds a layer, in a plan of several pipeline shapes: its chips, how many replicas, and where.

    nodes: how many nodes the replicas sit in, `node` the first of them.  per_node: the least number of replicas in one
    of these nodes.
    """

    group: int
    tensor: int
    replicas: int
    nodes: int
    per_node: int
    node: int


@dataclass(frozen=True)
class Reduction:
    """Gradient reduction of layers that the same stages hold: seconds (K,) a layer of each kind, and once."""

    seconds: Floats
    fixed_s: float


class Tensor(NamedTuple):
    """What a layer sends to the layers `consumers`, by position; elements per sequence."""

    source: int
    consumers: tuple[int, ...]
    elements: float


@dataclass(frozen=True)
class Chain:
    """The layers in order: `kinds[i]` is the kind index of layer i; names are for people.

    tensors: None where every layer feeds the next one and no other; else everything that layers send.
    """

    names: tuple[str, ...]
    kinds: tuple[int, ...]
    kind_names: tuple[str, ...]
    tensors: tuple[Tensor, ...] | None = None

    @property
    def num_layers(self) -> int:
        return len(self.kinds)


@dataclass(frozen=True)
class ChipGroup:
    """A node group as the search sees it. price: currency per chip-hour (0 when none is given).  zero_levels, offloads,
    stage_replicas: to choose from, as a mode has them.
    """

    name: str
    chip: str
    nodes: int
    chips_per_node: int
    tensor_degrees: tuple[int, ...]
    price: float = 0.0
    zero_levels: tuple[int | None, ...] = (None,)
    offloads: tuple[Tier, ...] = (Tier.CHIP,)
    stage_replicas: tuple[int, ...] = (1,)

    @property
    def modes(self) -> tuple[Mode, ...]:
        """Every way to run a stage on these chips."""
        choices = product(self.tensor_degrees, self.zero_levels, self.offloads, self.stage_replicas)
        return tuple(Mode(*choice) for choice in choices)

    def slots_per_node(self, tensor: int, context: int = 1) -> int:
        """Stage replicas that fit one node: a replica's (tensor x context) chips never leave a node unless context
        parallelism is larger than the node.
        """
        return self.chips_per_node // (tensor * context)

    def room(self, mode: Mode, setting: Setting) -> int:
        """Stages in a mode that the group's chips can hold."""
        return self.max_stages(mode.tensor, setting.data_parallel * mode.replicas, setting.context_parallel)

    def max_stages(self, tensor: int, data: int, context: int = 1) -> int:
        """Stages of `data` replicas that the group's chips can hold."""
        return self.nodes * self.slots_per_node(tensor, context) // data


class Problem(Protocol):
    """What the search needs, whatever made the numbers."""

    @property
    def chain(self) -> Chain: ...
    @property
    def groups(self) -> tuple[ChipGroup, ...]: ...
    @property
    def policies(self) -> tuple[str, ...]: ...
    @property
    def global_batch(self) -> int: ...
    @property
    def settings(self) -> tuple[Setting, ...]:
        """Every (micro-batch size, data, context, expert degree) of the plan space, `single_stage` False."""
        ...

    @property
    def schedules(self) -> tuple[str, ...]: ...

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        """None when the mode is not possible there (the reason is kept by the cost model)."""
        ...

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable: ...


class MixedProblem(Problem, Protocol):
    """What a search over several pipeline shapes needs beside: settings with `mixed`, and reductions between shapes."""

    @property
    def may_mix(self) -> bool:
        """Whether pipelines of several shapes can train together at all."""
        ...

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        """Sequences a micro-batch, also those that do not divide the batch: other shapes may make up for it."""
        ...

    def reduction(self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1) -> Reduction:
        """Seconds for the stage `holders[own]`; the replicas of all holders are setting.data_parallel.

        sharing: stages of the longest pipeline, which reduce at the same time.
        """
        ...

"""What it costs to keep saved activations in the host's memory until the backward pass.

`offload`, `selective_offload` and `full_offload` free and rerun what `none`, `selective` and `full` do, and copy what
these keep to host memory: out after the layer's forward, back before its backward. The mechanism is that of Megatron's
fine-grained activation offloading (`--fine-grained-activation-offloading`): copies on streams of their own, one layer
ahead of the backward pass. `full_offload` is checkpointing with its checkpoints on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from planner.cost.policies import offloads
from planner.cost.tables import Offload
from planner.errors import Notice
from planner.spec.cluster import DEFAULT_HOST_STAGING_BYTES_PER_S
from planner.spec.units import format_rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.layer_time import LayerTimes
    from planner.spec import Chip, Cluster, NodeGroup

    Floats = NDArray[np.float64]

__all__ = [
    "NOTHING_OFFLOADED",
    "HostCopies",
    "OnHost",
    "copy_rate",
    "copy_waits",
    "host_copies",
    "host_share_bytes",
    "offload_assumptions",
    "offload_notices",
]


def copy_rate(chip: Chip, group: NodeGroup) -> float:
    """Bytes/s of a copy between one chip and host memory, one direction, while every chip of the node copies:

    host_staging / chips on one host link, of those that the node has
    at most the chip's share of what the host's memory reads and writes, where that is given:
    host_memory_bandwidth / chips of the node
    """
    rate = chip.host_staging_bytes_per_s
    rate = DEFAULT_HOST_STAGING_BYTES_PER_S if rate is None else rate
    memory = group.host_memory_bandwidth_bytes_per_s
    share = float("inf") if memory is None else memory / group.chips_per_node
    return min(rate / min(chip.chips_per_host_link or 1, group.chips_per_node), share)


def copy_waits(moved: Floats, arithmetic: LayerTimes, bytes_per_s: float) -> tuple[Floats, Floats]:
    """(Q, K) seconds that the forward and the backward pass of a layer wait for its copies, for one micro-batch:

    out:   max(0, moved / rate - forward arithmetic)
    back:  max(0, moved / rate - backward arithmetic, recompute included)

    A layer's copies run beside its own arithmetic and no other layer's, never beside collectives. moved: (Q, K) bytes.
    """
    import numpy as np

    copy = moved / bytes_per_s
    backward = arithmetic.backward_input_s + arithmetic.backward_weight_s + arithmetic.recompute_s
    out = np.where(moved > 0, np.maximum(0.0, copy - arithmetic.forward_s), 0.0)
    back = np.where(moved > 0, np.maximum(0.0, copy - backward), 0.0)
    return out, back


class OnHost(NamedTuple):
    """What a stage does with host memory.

    out_s, back_s: seconds that a micro-batch's forward and backward pass wait.  host_bytes, staging_bytes: of one chip,
    in host memory and on the chip; None where nothing is offloaded.
    """

    out_s: float
    back_s: float
    host_bytes: float | None
    staging_bytes: float | None


NOTHING_OFFLOADED = OnHost(0.0, 0.0, None, None)


class HostCopies(NamedTuple):
    """Copies between chips and host memory under each policy (Q) of each layer kind (K).

    out_s, back_s: (Q, K) seconds that the forward and the backward pass wait for them.
    """

    out_s: Floats
    back_s: Floats
    offload: Offload

    def of_stage(self, held: Floats, in_flight: int) -> OnHost:
        """The numbers of a stage. held: (Q, K) its layers."""
        import numpy as np

        stored = float((held * self.offload.host_bytes).sum())
        if not stored:
            return NOTHING_OFFLOADED
        staging = float(np.where(held > 0, self.offload.staging_bytes, 0.0).max())
        waits = float((held * self.out_s).sum()), float((held * self.back_s).sum())
        return OnHost(*waits, in_flight * stored, staging)


def host_share_bytes(chip: Chip, group: NodeGroup) -> float:
    """Host memory that each chip of a group may fill:  host_memory / chips of the node; inf where it is not given.

    Nothing where the chip's memory is the host's: moving bytes inside it frees none.
    """
    if chip.unified_memory:
        return 0.0
    memory = group.host_memory_bytes
    return float("inf") if memory is None else memory / group.chips_per_node


def host_copies(moved: Floats, arithmetic: LayerTimes, chip: Chip, group: NodeGroup) -> HostCopies:
    """What moving (Q, K) bytes of each micro-batch to host memory and back means for stages of a group.

    staging: a layer's bytes once each way, since in 1F1B the copy out of one micro-batch may still run while that of
    the next backward comes in.
    """
    out, back = copy_waits(moved, arithmetic, copy_rate(chip, group))
    return HostCopies(out, back, Offload(out, moved, 2 * moved))


def offload_assumptions(policies: Sequence[str]) -> Iterable[str]:
    """Sentences for the reader of a plan whose layers may be offloaded."""
    if any(map(offloads, policies)):
        yield (
            "an offloaded layer's saved activations go to host memory beside its own forward arithmetic and come back"
            " beside its own backward arithmetic, each way at the host link's full rate; what takes longer is waited"
            " for. They never overlap with collectives, and compete with no other traffic on the host link"
        )
        yield (
            "a stage that offloads keeps two staging buffers of its largest offloaded layer's activations, and counts"
            " the activations of every micro-batch in flight in host memory; each chip has an equal share of"
            " `host_memory`"
        )


def offload_notices(cluster: Cluster, used: Sequence[bool], policies: Sequence[str]) -> list[Notice]:
    """What is assumed about the hosts of groups that may offload. used: which groups take part."""
    if not any(map(offloads, policies)):
        return []
    groups = [group for group, wanted in zip(cluster.node_groups, used, strict=True) if wanted]
    notices = []
    unified = sorted({group.chip for group in groups if cluster.chips[group.chip].unified_memory})
    if unified:
        message = f"{', '.join(unified)}: memory is shared with the host, so that nothing is offloaded there"
        notices.append(Notice("unified-memory", message))
        groups = [group for group in groups if group.chip not in unified]
    chips = {group.chip: cluster.chips[group.chip] for group in groups}
    unknown = sorted(name for name, chip in chips.items() if chip.host_staging_bytes_per_s is None)
    if unknown:
        rate = format_rate(DEFAULT_HOST_STAGING_BYTES_PER_S)
        message = (
            f"host_staging of {', '.join(unknown)} is not known; activations are offloaded at {rate} (PCIe 3.0 x16)"
        )
        notices.append(Notice("host-staging", message))
    alone = sorted(n for n, c in chips.items() if c.chips_per_host_link is None and _shares_a_node(groups, n))
    if alone:
        message = (
            f"chips_per_host_link of {', '.join(alone)} is not known; each chip is taken to have a host link alone"
        )
        notices.append(Notice("host-link", message))
    unlimited = [group.name for group in groups if group.host_memory_bytes is None]
    if unlimited:
        message = f"host_memory of {', '.join(unlimited)} is not given; what is offloaded is taken to fit there"
        notices.append(Notice("host-memory", message))
    return notices


def _shares_a_node(groups: Sequence[NodeGroup], chip: str) -> bool:
    return any(group.chip == chip and group.chips_per_node > 1 for group in groups)

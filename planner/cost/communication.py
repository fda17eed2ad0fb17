"""Alpha-beta times of collectives and of transfers between stages. Rates are achievable ones, not nominal."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import gcd
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Amount = TypeVar("Amount", float, NDArray[np.float64])
    """One number of bytes, or one a layer kind."""

__all__ = [
    "RingPath",
    "StageLink",
    "all_gather_s",
    "all_reduce_s",
    "all_to_all_s",
    "gather_after_transfer_s",
    "limited",
    "reduce_scatter_s",
    "ring_exchange_s",
    "ring_path",
    "staged_rate",
    "transfer_s",
]


def all_reduce_s(num_bytes: Amount, chips: int, bytes_per_s: float, latency_s: float) -> Amount:
    """Ring all-reduce of `num_bytes` held by every chip:  2(n-1)/n * bytes / bw + 2(n-1) * alpha  (s).

    Source: Patarasu and Yuan 2009; NCCL's ring.
    """
    return 2 * reduce_scatter_s(num_bytes, chips, bytes_per_s, latency_s)


def reduce_scatter_s(num_bytes: Amount, chips: int, bytes_per_s: float, latency_s: float) -> Amount:
    """Half a ring all-reduce:  (n-1)/n * bytes / bw + (n-1) * alpha  (s); `num_bytes` is the whole tensor."""
    return num_bytes * ((chips - 1) / chips / bytes_per_s) + (chips - 1) * latency_s


def all_gather_s(num_bytes: Amount, chips: int, bytes_per_s: float, latency_s: float) -> Amount:
    """The other half:  (n-1)/n * bytes / bw + (n-1) * alpha  (s); `num_bytes` is the whole gathered tensor."""
    return reduce_scatter_s(num_bytes, chips, bytes_per_s, latency_s)


def all_to_all_s(num_bytes: Amount, chips: int, bytes_per_s: float, latency_s: float) -> Amount:
    """Every chip sends all but its own share to the others:  (n-1)/n * bytes / bw + (n-1) * alpha  (s)."""
    return reduce_scatter_s(num_bytes, chips, bytes_per_s, latency_s)


def ring_exchange_s(num_bytes: Amount, chips: int, bytes_per_s: float, latency_s: float) -> Amount:
    """Every chip's keys and values pass by every other chip:  (n-1) * (bytes / bw + alpha)  (s); bytes of one slice.

    Source: ring attention, Liu et al., arXiv 2310.01889. Counted in full: no overlap with attention is assumed.
    """
    return num_bytes * ((chips - 1) / bytes_per_s) + (chips - 1) * latency_s


@dataclass(frozen=True)
class RingPath:
    """What the slowest hop of a ring offers."""

    bytes_per_s: float
    latency_s: float


def limited(path: RingPath, bytes_per_s: float, latency_s: float) -> RingPath:
    """A ring or an all-to-all through uplinks that leave it so much and add so many seconds to a hop."""
    return RingPath(min(path.bytes_per_s, bytes_per_s), path.latency_s + latency_s)


def ring_path(
    inside: RingPath, across: RingPath, slots_per_node: int, data: int, chips_per_slot: int, rings: int
) -> RingPath:
    """The slowest hop of each of a stage's `rings` gradient rings over its `data` replicas.

    Stage j's replicas sit in slots j*d .. j*d+d-1. If d divides the slots of a node, all of them sit in one node,
    whatever j, and the ring stays inside. Else every ring enters and leaves each of its nodes once, and the NICs of the
    stage's chips there (one a chip) serve the rings that pass:

        bandwidth = min(inside, NIC * chips / min(rings, chips)),   chips = gcd(d, slots per node) * chips of a slot

    gcd(d, slots): the least number of the stage's replicas that a node of theirs can hold, so it holds for every j.
    NICs beside the ring's own carry it too (a collective library opens a channel a NIC): an assumption, stated.
    """
    if data <= slots_per_node and slots_per_node % data == 0:
        return inside
    chips = gcd(data, slots_per_node) * chips_per_slot
    nics_per_ring = chips / min(rings, chips)
    return RingPath(
        min(inside.bytes_per_s, nics_per_ring * across.bytes_per_s), max(inside.latency_s, across.latency_s)
    )


@dataclass(frozen=True)
class StageLink:
    """The way from one stage to the next: the link of one pair of chips, and the NICs of the chips at both ends.

    staging_bytes_per_s: (source, target) rate into and out of host memory, for transport `host`.
    replica_bytes_per_s: a replica's share of what the line carries for all pairs of chips together.
    """

    bytes_per_s: float
    latency_s: float
    source_chip_bytes_per_s: float
    target_chip_bytes_per_s: float
    staging_bytes_per_s: tuple[float, float] | None = None
    replica_bytes_per_s: float = float("inf")

    def through(self, bytes_per_s: float, latency_s: float) -> StageLink:
        """The same way through uplinks that leave each replica so much and add so many seconds."""
        replica = min(self.replica_bytes_per_s, bytes_per_s)
        return replace(self, replica_bytes_per_s=replica, latency_s=self.latency_s + latency_s)


def staged_rate(bytes_per_s: float, staging_bytes_per_s: float | None) -> float:
    """Rate of a link whose traffic passes host memory on both ends, store and forward:  1 / (1/bw + 2/staging)."""
    return bytes_per_s if staging_bytes_per_s is None else 1 / (1 / bytes_per_s + 2 / staging_bytes_per_s)


def transfer_s(num_bytes: float, source_tensor: int, target_tensor: int, context: int, link: StageLink) -> float:
    """A tensor of `num_bytes` crosses from one stage's replica to the next, every byte once.

        bytes / min(c * min(max(t_a, t_b) * link, t_a * nic_a, t_b * nic_b), replica) + latency           (s)
        transport host:  + bytes / (c * t_a * staging_a) + bytes / (c * t_b * staging_b)                  (s)

    t_a, t_b: tensor parallel degrees; each sending chip sends a slice; c context parallel chips share the load c times.
    replica: its share of the line, total / d: the d replicas of a stage cross at once and share it evenly.
    Host staging is store and forward: chip to host, host to host, host to chip, one after the other.
    """
    rate = min(
        max(source_tensor, target_tensor) * link.bytes_per_s,
        source_tensor * link.source_chip_bytes_per_s,
        target_tensor * link.target_chip_bytes_per_s,
    )
    seconds = num_bytes / min(context * rate, link.replica_bytes_per_s) + link.latency_s
    if link.staging_bytes_per_s is not None:
        source_staging, target_staging = link.staging_bytes_per_s
        seconds += num_bytes / (context * source_tensor * source_staging)
        seconds += num_bytes / (context * target_tensor * target_staging)
    return seconds


def gather_after_transfer_s(
    num_bytes: float, sender_tensor: int, receiver_tensor: int, context: int, sequence_parallel: bool, inside: RingPath
) -> float:
    """The all-gather that follows a transfer on the receiving node's tensor parallel chips (s).

    None with equal degrees and sequence parallelism: each chip receives exactly the slice it works on.
    """
    if sender_tensor == receiver_tensor and sequence_parallel:
        return 0.0
    return all_gather_s(num_bytes / context, receiver_tensor, inside.bytes_per_s, inside.latency_s)

"""Seconds to move one micro-batch across the boundary between two stages, for every kind of layer before it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from planner.cost.communication import gather_after_transfer_s, transfer_s
from planner.cost.links import link_between, link_inside
from planner.cost.tables import TransferTable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.cost.kinds import KindArrays
    from planner.cost.links import GroupLinks
    from planner.cost.tables import Setting
    from planner.cost.uplinks import Detour
    from planner.spec import Cluster, ModelSpec

__all__ = ["Ends", "transfer_table"]

_MANY_ELEMENTS = 2.0**40
"""A tensor so large that a transfer's latency is lost in its time."""


class Ends(NamedTuple):
    """The two stages of a boundary. inside: it has the link inside a node. replicas: that share a micro-batch."""

    source: int
    source_tensor: int
    target: int
    target_tensor: int
    inside: bool
    source_replicas: int = 1
    target_replicas: int = 1


def transfer_table(
    cluster: Cluster,
    model: ModelSpec,
    links: Mapping[int, GroupLinks],
    kinds: KindArrays,
    element_bytes: float,
    ends: Ends,
    setting: Setting,
    detour: Detour,
) -> TransferTable:
    """Both ways across a boundary. detour: what the uplinks leave of the way between nodes.

    Stages with r and q replicas exchange a micro-batch in min(r, q) parts at once, each between max(r, q) / min(r, q)
    replicas on one side and one on the other; every replica sends or receives its own sequences, every byte once.
    """
    import numpy as np

    source, source_tensor, target, target_tensor, inside, r, q = ends
    parts = min(r, q)
    assert not max(r, q) % parts, "replicas of neighbouring stages divide each other"
    data = setting.data_parallel * parts
    senders, receivers = r // parts, q // parts
    forward = link_inside(links[source]) if inside else link_between(cluster, source, target, data)
    backward = forward if inside else link_between(cluster, target, source, data)
    if not inside:
        forward, backward = forward.through(*detour), backward.through(*detour)
    context, sequence_parallel = setting.context_parallel, model.training.sequence_parallel

    def seconds(elements: float) -> tuple[float, float]:
        num_bytes = elements * setting.micro_batch_size * element_bytes / parts
        sides = source_tensor * senders, target_tensor * receivers
        onward = transfer_s(num_bytes, *sides, context, forward)
        back = transfer_s(num_bytes, *sides[::-1], context, backward)
        here, there = links[source].inside, links[target].inside
        degrees = source_tensor, target_tensor
        onward += gather_after_transfer_s(num_bytes / receivers, *degrees, context, sequence_parallel, there)
        back += gather_after_transfer_s(num_bytes / senders, *degrees[::-1], context, sequence_parallel, here)
        return onward, back

    both = np.array([seconds(float(elements)) for elements in kinds.boundary_elements])
    if kinds.chain.tensors is None:
        return TransferTable(both[:, 0], both[:, 1])
    waits = both * (kinds.boundary_elements > 0)[:, None]  # who is sent nothing waits for nothing
    fixed, many = seconds(0.0), seconds(_MANY_ELEMENTS)
    rates = (many[0] - fixed[0]) / _MANY_ELEMENTS, (many[1] - fixed[1]) / _MANY_ELEMENTS
    return TransferTable(waits[:, 0], waits[:, 1], fixed, rates)

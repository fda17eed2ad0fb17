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


class Ends(NamedTuple):
    """The two stages of a boundary. inside: it has the link inside a node."""

    source: int
    source_tensor: int
    target: int
    target_tensor: int
    inside: bool


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
    """Both ways across a boundary. detour: what the uplinks leave of the way between nodes."""
    import numpy as np

    source, source_tensor, target, target_tensor, inside = ends
    data = setting.data_parallel
    forward = link_inside(links[source]) if inside else link_between(cluster, source, target, data)
    backward = forward if inside else link_between(cluster, target, source, data)
    if not inside:
        forward, backward = forward.through(*detour), backward.through(*detour)
    context, sequence_parallel = setting.context_parallel, model.training.sequence_parallel
    onward, back = [], []
    for elements in kinds.boundary_elements:
        num_bytes = float(elements) * setting.micro_batch_size * element_bytes
        onward.append(
            transfer_s(num_bytes, source_tensor, target_tensor, context, forward)
            + gather_after_transfer_s(
                num_bytes, source_tensor, target_tensor, context, sequence_parallel, links[target].inside
            )
        )
        back.append(
            transfer_s(num_bytes, target_tensor, source_tensor, context, backward)
            + gather_after_transfer_s(
                num_bytes, target_tensor, source_tensor, context, sequence_parallel, links[source].inside
            )
        )
    return TransferTable(np.array(onward), np.array(back))

"""One chip type of a cluster as a cluster of its own, with its share of the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.spec import Cluster, Constraints, ModelSpec

__all__ = ["ChipType", "batch_for", "batch_share", "chip_types", "only_groups", "with_batch", "with_free_shape"]

_MOST_MORE = Fraction(1, 8)
"""A share of the batch is rounded up by at most this much, unless nothing possible is so near."""
_OF_THE_WHOLE = ("pipeline_parallel", "data_parallel", "stages", "order", "layers_per_stage", "idle", "use")
"""Constraints that describe a pipeline over all node groups, or choose among them."""


@dataclass(frozen=True)
class ChipType:
    """All node groups of one chip.  groups: their indices in the cluster.  chips: how many there are in all of them."""

    chip: str
    groups: tuple[int, ...]
    node_groups: tuple[str, ...]
    chips: int


def chip_types(cluster: Cluster, model: ModelSpec) -> tuple[ChipType, ...]:
    """The chip types in the order of the cluster file, without node groups that `constraints.idle` rules out."""
    found: dict[str, list[int]] = {}
    for index, group in enumerate(cluster.node_groups):
        if group.name not in model.constraints.idle:
            found.setdefault(group.chip, []).append(index)
    groups = cluster.node_groups
    return tuple(
        ChipType(chip, tuple(held), tuple(groups[g].name for g in held), sum(groups[g].num_chips for g in held))
        for chip, held in found.items()
    )


def only_groups(cluster: Cluster, groups: Collection[int], name: str) -> Cluster:
    """The cluster with these node groups alone, and what the file says about them."""
    from planner.spec import Cluster

    kept = [group for index, group in enumerate(cluster.node_groups) if index in groups]
    names, chips = {group.name for group in kept}, {group.chip for group in kept}
    return Cluster(
        name=name,
        node_groups=tuple(kept),
        chips={chip: profile for chip, profile in cluster.chips.items() if chip in chips},
        links=tuple(link for link in cluster.links if names.issuperset(link.between)),
        sites=cluster.sites,
        topology=None if cluster.topology is None else cluster.topology.only(names),
        prices={chip: price for chip, price in cluster.prices.items() if chip in chips},
        currency=cluster.currency,
    )


def with_free_shape(model: ModelSpec, node_groups: Collection[str]) -> ModelSpec:
    """The model with those of its constraints that also hold for other pipelines on these node groups.

    Kept are tensor parallel degrees and the micro-batch size; what pins the mixed pipeline itself (its order, stages,
    replicas, idle groups) says nothing about a baseline.
    """
    pinned = model.constraints
    free: dict[str, object] = {name: _default(pinned, name) for name in _OF_THE_WHOLE}
    if isinstance(pinned.tensor_parallel, dict):
        kept = {group: degrees for group, degrees in pinned.tensor_parallel.items() if group in node_groups}
        free["tensor_parallel"] = kept or None
    return model.model_copy(update={"constraints": pinned.model_copy(update=free)})


def _default(pinned: Constraints, name: str) -> object:
    return type(pinned).model_fields[name].get_default(call_default_factory=True)


def with_batch(model: ModelSpec, global_batch: int) -> ModelSpec:
    """The model with another number of sequences in a step."""
    return model.model_copy(update={"training": model.training.model_copy(update={"global_batch": global_batch})})


def batch_for(model: ModelSpec, chips: int, all_chips: int) -> tuple[Fraction, int]:
    """A chip type's share of the global batch in sequences: exact, and as it can be trained (`batch_share`)."""
    pinned = model.constraints.micro_batch_size
    sizes = model.training.micro_batch_sizes if pinned is None else (pinned,)
    share = Fraction(model.training.global_batch * chips, all_chips)
    return share, batch_share(share, chips, sizes)


def batch_share(share: Fraction, chips: int, micro_batch_sizes: Sequence[int]) -> int:
    """The number of sequences that stands for `share`: never fewer, so that rounding never counts against a baseline.

    Of the whole numbers from the share to an eighth more, that one which has the most divisors in common with the
    number of chips (replicas must divide both), and of several the least. Numbers that no micro-batch size divides do
    not count; where there is none so near, the next larger one is taken.
    """

    def possible(number: int) -> bool:
        return number > 0 and any(number % size == 0 for size in micro_batch_sizes)

    near = [n for n in range(math.ceil(share), math.floor(share * (1 + _MOST_MORE)) + 1) if possible(n)]
    if near:
        return max(near, key=_by_common_divisors(chips))
    return min(max(1, math.ceil(share / size)) * size for size in micro_batch_sizes)


def _by_common_divisors(chips: int) -> Callable[[int], tuple[int, int]]:
    def rank(number: int) -> tuple[int, int]:
        common = math.gcd(number, chips)
        return sum(common % i == 0 for i in range(1, common + 1)), -number

    return rank

"""What one trainer process needs to know: its chip, its stage, its neighbours, whom it averages gradients with."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Plan, Stage
    from planner.spec.model import StateTier

__all__ = ["ChipMap", "ChipPlace", "Peer", "RankView", "ReductionGroup", "view_of_rank"]

_DEFAULT_ZERO = 1
"""Of a model document that does not say."""


@dataclass(frozen=True)
class ChipPlace:
    """Where a chip of the cluster sits. node: index in its group; slot: index in its node."""

    group: int
    node_group: str
    chip: str
    node: int
    slot: int


@dataclass(frozen=True)
class ReductionGroup:
    """Processes that average the gradients of the same part of the same layers, this one included, ascending."""

    layers: tuple[str, ...]
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class Peer:
    """Another stage of this replica that this one exchanges tensors with: its index, and all its processes."""

    stage: int
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RankView:
    """A plan as one process sees it. All ranks here are process ranks: used chips renumbered from 0.

    chip_rank: the chip's number in the whole cluster, idle chips included.
    local_rank: index among the used chips of its node.
    nic: the NIC of its node that it is to use; None where the cluster does not say.
    tensor_group, context_group: this process included, in order of tensor_rank, context_rank.
    previous, next: all chips of the neighbouring stages of this replica; empty at the ends.
    receives_from, sends_to: the stages that send activations here and those that get them, by stage: the neighbours
    where layers form a chain, else whoever makes or needs a tensor. Gradients go the same ways back.
    expert_group: chips over which the stage's routed experts are spread, in order of expert_rank; else just this one.
    expert_reduction_group: chips that hold the same routed experts and average their gradients; empty in an island of
    several pipelines, where that differs from layer to layer: reduction_groups then speak for routed experts too.
    reduction_groups: for every other weight of the stage's layers.
    tied_groups: for matrices that two layers share and that, in some pipeline of the island, two stages hold.
    zero: ZeRO level of the stage.
    offload_optimizer: where its optimizer states are: `none` (on the chips), `host` (host memory), `nvme` (drives).
    stage_replicas, stage_replica: chip groups that share each micro-batch of this pipeline at this stage, and which of
    them this is: it works on that part of the sequences of every micro-batch.
    first_sequence, num_sequences: this replica's share of each global batch.
    """

    rank: int
    num_ranks: int
    chip_rank: int
    node_group: str
    chip: str
    node: int
    local_rank: int
    island: int
    pipeline: int
    replica: int
    stage: int
    num_stages: int
    schedule: str
    micro_batches: int
    micro_batch_size: int
    first_sequence: int
    num_sequences: int
    layers: tuple[str, ...]
    recompute: Mapping[str, str]
    tensor_parallel: int
    tensor_rank: int
    tensor_group: tuple[int, ...]
    context_parallel: int
    context_rank: int
    context_group: tuple[int, ...]
    expert_parallel: int
    expert_rank: int
    expert_group: tuple[int, ...]
    expert_reduction_group: tuple[int, ...]
    zero: int
    offload_optimizer: StateTier
    stage_replicas: int
    stage_replica: int
    previous: tuple[int, ...]
    next: tuple[int, ...]
    receives_from: tuple[Peer, ...]
    sends_to: tuple[Peer, ...]
    reduction_groups: tuple[ReductionGroup, ...]
    tied_groups: tuple[ReductionGroup, ...]
    nic: int | None = None


class ChipMap:
    """Finds chips of a cluster document by rank: node groups as in the file, then nodes, then chips."""

    def __init__(self, cluster: Mapping[str, Any]) -> None:
        try:
            self.groups = [
                (str(g["name"]), str(g["chip"]), int(g["nodes"]), int(g["chips_per_node"]))
                for g in cluster["node_groups"]
            ]
            self._nics = [_nics(g, group[3]) for g, group in zip(cluster["node_groups"], self.groups, strict=True)]
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise InputError.single(
                path="inputs.cluster.document.node_groups",
                what="is not a list of node groups",
                why="each has a name, a chip, nodes and chips_per_node",
                fix="solve again",
            ) from error
        self.starts = [0]
        for _, _, nodes, chips_per_node in self.groups:
            self.starts.append(self.starts[-1] + nodes * chips_per_node)

    @property
    def num_chips(self) -> int:
        """All chips, idle ones included."""
        return self.starts[-1]

    def nic(self, place: ChipPlace) -> int | None:
        """The NIC of its node that a chip uses; None where the cluster does not say."""
        used = self._nics[place.group]
        return None if used is None else used[place.slot]

    def place(self, rank: int) -> ChipPlace:
        """Where a chip sits. Raises InputError when the cluster has no such chip."""
        if not 0 <= rank < self.num_chips:
            raise InputError.single(
                path="ranks",
                what=f"there is no chip {rank}",
                why=f"the cluster has {self.num_chips} chips, numbered from 0",
                fix="solve again",
            )
        group = bisect_right(self.starts, rank) - 1
        name, chip, _, chips_per_node = self.groups[group]
        node, slot = divmod(rank - self.starts[group], chips_per_node)
        return ChipPlace(group, name, chip, node, slot)


def _nics(group: Mapping[str, Any], chips: int) -> tuple[int, ...] | None:
    """The NIC that each chip of a node uses; None where the group does not say."""
    affinity = group.get("nic_affinity")
    if affinity is None:
        return None
    used = tuple(int(nic) for nic in affinity["use"])
    if len(used) != chips:
        raise ValueError("nic_affinity")
    return used


def view_of_rank(plan: Plan, rank: int) -> RankView:
    """What process `rank` of the plan needs."""
    used = plan.used_ranks
    if not 0 <= rank < len(used):
        raise InputError.single(
            path="rank",
            what=f"there is no process {rank}",
            why=f"the plan uses {len(used)} chips, one process each",
            fix=f"choose a rank from 0 to {len(used) - 1}",
        )
    process_of = {chip: index for index, chip in enumerate(used)}
    for seat in _seats(plan):
        if used[rank] in seat.chips:
            return _view(plan, seat, used[rank], process_of)
    raise AssertionError(f"rank {rank} is used by no stage")


@dataclass(frozen=True)
class _Seat:
    """One replica of one stage. share: which of the stage's own replicas it is."""

    island: int
    pipeline_index: int
    pipeline: Pipeline
    replica: int
    stage_index: int
    stage: Stage
    first_sequence: int
    share: int = 0

    @property
    def row(self) -> int:
        """Its place in the stage's ranks."""
        return self.replica * self.stage.num_replicas + self.share

    @property
    def chips(self) -> tuple[int, ...]:
        """Its chips."""
        return self.stage.ranks[self.row]


def _seats(plan: Plan) -> Iterator[_Seat]:
    sequence = 0
    for i, island in enumerate(plan.islands):
        for j, pipeline in enumerate(island.pipelines):
            for replica in range(pipeline.replicas):
                for s, stage in enumerate(pipeline.stages):
                    for share in range(stage.num_replicas):
                        yield _Seat(i, j, pipeline, replica, s, stage, sequence, share)
                sequence += pipeline.micro_batches * pipeline.micro_batch_size


def _view(plan: Plan, seat: _Seat, chip_rank: int, process_of: Mapping[int, int]) -> RankView:
    chip_map = ChipMap(plan.inputs.cluster.document)
    place = chip_map.place(chip_rank)
    pipeline, stage = seat.pipeline, seat.stage
    chips = seat.chips
    position = chips.index(chip_rank)
    context_rank, tensor_rank = divmod(position, stage.tensor_parallel)
    group = [process_of[chip] for chip in chips]
    tensor = slice(context_rank * stage.tensor_parallel, (context_rank + 1) * stage.tensor_parallel)
    experts, same_experts = _expert_groups(seat, position, process_of)
    if len(plan.islands[seat.island].pipelines) > 1 and stage.expert_parallel == 1:
        same_experts = ()
    same_node = [chip for chip in process_of if _node(chip_map.place(chip)) == _node(place)]
    return RankView(
        rank=process_of[chip_rank],
        num_ranks=len(process_of),
        chip_rank=chip_rank,
        node_group=place.node_group,
        chip=place.chip,
        node=place.node,
        local_rank=sorted(same_node).index(chip_rank),
        island=seat.island,
        pipeline=seat.pipeline_index,
        replica=seat.replica,
        stage=seat.stage_index,
        num_stages=len(pipeline.stages),
        schedule=pipeline.schedule.name,
        micro_batches=pipeline.micro_batches,
        micro_batch_size=pipeline.micro_batch_size,
        first_sequence=seat.first_sequence,
        num_sequences=pipeline.micro_batches * pipeline.micro_batch_size,
        layers=stage.layers,
        recompute=dict(stage.recompute),
        tensor_parallel=stage.tensor_parallel,
        tensor_rank=tensor_rank,
        tensor_group=tuple(group[tensor]),
        context_parallel=stage.context_parallel,
        context_rank=context_rank,
        context_group=tuple(group[tensor_rank :: stage.tensor_parallel]),
        expert_parallel=stage.expert_parallel,
        expert_rank=experts.index(process_of[chip_rank]),
        expert_group=experts,
        expert_reduction_group=same_experts,
        zero=_zero_of(plan, stage),
        offload_optimizer=stage.offload_optimizer or "none",
        stage_replicas=stage.num_replicas,
        stage_replica=seat.share,
        previous=_neighbour(seat, -1, process_of),
        next=_neighbour(seat, +1, process_of),
        receives_from=_peers(
            seat, [t.from_stage for t in pipeline.transfers if t.to_stage == seat.stage_index], process_of
        ),
        sends_to=_peers(seat, [t.to_stage for t in pipeline.transfers if t.from_stage == seat.stage_index], process_of),
        reduction_groups=_reduction_groups(plan, seat, tensor_rank, process_of),
        tied_groups=_tied_groups(plan, seat, tensor_rank, process_of),
        nic=chip_map.nic(place),
    )


def _zero_of(plan: Plan, stage: Stage) -> int:
    """The stage's ZeRO level, or the only one of the model."""
    if stage.zero is not None:
        return stage.zero
    training = plan.inputs.model.document.get("training", {})
    level = training.get("zero", _DEFAULT_ZERO) if isinstance(training, Mapping) else _DEFAULT_ZERO
    return level if isinstance(level, int) else _DEFAULT_ZERO


def _node(place: ChipPlace) -> tuple[int, int]:
    return place.group, place.node


def _neighbour(seat: _Seat, step: int, process_of: Mapping[int, int]) -> tuple[int, ...]:
    index = seat.stage_index + step
    if not 0 <= index < len(seat.pipeline.stages):
        return ()
    return _across(seat, index, process_of)


def _across(seat: _Seat, index: int, process_of: Mapping[int, int]) -> tuple[int, ...]:
    """Processes of another stage of this pipeline that have a sequence of a micro-batch in common with this one."""
    stage, own = seat.pipeline.stages[index], seat.stage.num_replicas
    count = stage.num_replicas
    rows = [seat.replica * count + i for i in range(count) if _overlap(seat.share, own, i, count)]
    return tuple(process_of[chip] for row in rows for chip in stage.ranks[row])


def _peers(seat: _Seat, stages: list[int], process_of: Mapping[int, int]) -> tuple[Peer, ...]:
    return tuple(Peer(s, _across(seat, s, process_of)) for s in sorted(set(stages)))


def _expert_groups(
    seat: _Seat, position: int, process_of: Mapping[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Expert group and its reduction group, by the layout of `planner.cost.sharding.expert_layout`.

    e a multiple of t: e chips in a row (replicas one after the other, tensor fastest) share all experts, each whole.
    otherwise: every expert is divided over the tensor group, and e chips with equal tensor rank share them.
    """
    stage, replica = seat.stage, seat.row
    degree = stage.expert_parallel
    chips = [process_of[chip] for ranks in stage.ranks for chip in ranks]
    if degree == 1:
        step = stage.tensor_parallel
        own = replica * len(stage.ranks[replica]) + position
        return (chips[own],), tuple(chips[own % step :: step])
    step = 1 if degree % stage.tensor_parallel == 0 else stage.tensor_parallel
    own = replica * len(stage.ranks[replica]) + position
    lane = chips[own % step :: step]
    index = own // step
    first = index - index % degree
    return tuple(lane[first : first + degree]), tuple(lane[index % degree :: degree])


def _reduction_groups(
    plan: Plan, seat: _Seat, tensor_rank: int, process_of: Mapping[int, int]
) -> tuple[ReductionGroup, ...]:
    """Layers with the same peers share a group; peers hold an overlapping slice of each matrix, in the same island."""
    layers_of: dict[tuple[int, ...], list[str]] = {}
    for layer in seat.stage.layers:
        layers_of.setdefault(_holders(plan, seat, tensor_rank, process_of, {layer}), []).append(layer)
    return tuple(ReductionGroup(tuple(layers), ranks) for ranks, layers in layers_of.items())


def _tied_groups(
    plan: Plan, seat: _Seat, tensor_rank: int, process_of: Mapping[int, int]
) -> tuple[ReductionGroup, ...]:
    """Everybody who holds a tied matrix that this stage holds, when in some pipeline two stages hold it."""
    groups = []
    for tied in plan.tied_layers:
        own = set(seat.stage.layers) & set(tied)
        pipelines = plan.islands[seat.island].pipelines
        holders = [sum(1 for stage in p.stages if set(stage.layers) & set(tied)) for p in pipelines]
        if own and max(holders) > 1:
            groups.append(ReductionGroup(tied, _holders(plan, seat, tensor_rank, process_of, set(tied))))
    return tuple(groups)


def _holders(
    plan: Plan, seat: _Seat, tensor_rank: int, process_of: Mapping[int, int], layers: set[str]
) -> tuple[int, ...]:
    """Processes of the island that hold one of the layers, in a slice that overlaps this process's."""
    degree = seat.stage.tensor_parallel
    ranks: set[int] = set()
    for peer in _seats(plan):
        if peer.island == seat.island and not layers.isdisjoint(peer.stage.layers):
            width = peer.stage.tensor_parallel
            ranks.update(
                process_of[chip]
                for position, chip in enumerate(peer.chips)
                if _overlap(tensor_rank, degree, position % width, width)
            )
    return tuple(sorted(ranks))


def _overlap(shard: int, degree: int, other_shard: int, other_degree: int) -> bool:
    """Whether slice `shard` of `degree` equal ones shares a part with slice `other_shard` of `other_degree`."""
    return shard * other_degree < (other_shard + 1) * degree and other_shard * degree < (shard + 1) * other_degree

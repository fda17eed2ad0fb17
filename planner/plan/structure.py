"""First part of the check: every layer once, every chip at most once, every count adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.cost.placement import Block, ranks_of_place
from planner.cost.schedule import SCHEDULES, in_flight_counts
from planner.plan.evaluate import sent_between
from planner.plan.layout import places_of
from planner.plan.ranks import ChipMap
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.evaluate import Place
    from planner.plan.schema import Pipeline, Stage

__all__ = ["MAX_NAMED", "structure_violations"]

MAX_NAMED = 8


def structure_violations(subject: Subject) -> Iterator[Violation]:
    """Everything about the plan's shape that contradicts its cluster and model."""
    islands = len(subject.plan.islands)
    if islands != 1:
        yield Violation("islands", "islands", f"this version checks plans of one island; the plan has {islands}")
        return
    layers = [v for where, pipeline in subject.entries for v in _layer_violations(subject, pipeline, where)]
    yield from layers
    counts = [*_batch_violations(subject), *_mix_violations(subject)]
    for where, pipeline in subject.entries:
        counts += _count_violations(subject, pipeline, where)
    yield from counts
    for where, pipeline in subject.entries:
        yield from _schedule_violations(pipeline, where)
        if not layers:
            yield from _pair_violations(subject, pipeline, where)
    ranks = [*_rank_violations(subject)]
    yield from ranks
    if not (counts or ranks):
        yield from _placement_violations(subject)
        yield from _idle_violations(subject)


def _named(names: Sequence[object], between: str = ", ") -> str:
    shown = between.join(str(name) for name in names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


def _layer_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Every layer of the model exactly once, along the graph; recompute names layers of the stage."""
    chain = subject.cost.chain.names
    placed = [name for stage in pipeline.stages for name in stage.layers]
    counts = Counter(placed)
    known = set(chain)
    missing = [name for name in chain if name not in counts]
    foreign = [name for name in counts if name not in known]
    twice = [name for name, count in counts.items() if count > 1]
    if missing:
        message = f"{len(placed) - len(foreign)} layers are placed of {len(chain)}; missing: {_named(missing)}"
        yield Violation("layers", f"{where}.stages", message)
    if foreign:
        yield Violation("layers", f"{where}.stages", f"the model has no layer {_named(foreign)}")
    if twice:
        yield Violation("layers", f"{where}.stages", f"placed more than once: {_named(twice)}")
    if not (missing or foreign or twice):
        yield from _order_violations(subject, pipeline, where)
    for index, stage in enumerate(pipeline.stages):
        strangers = [name for name in stage.recompute if name not in stage.layers]
        if strangers:
            message = f"names layers that the stage does not hold: {_named(strangers)}"
            yield Violation("recompute", f"{where}.stages[{index}].recompute", message)


def _order_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """No layer is on a stage before one that feeds it; inside a stage layers are in the order of the model.

    Then no path of the graph leaves a stage and comes back: the layers of every stage are contiguous.
    """
    chain = subject.cost.chain
    place = f"{where}.stages"
    placed = [name for stage in pipeline.stages for name in stage.layers]
    if chain.tensors is None:
        if tuple(placed) != chain.names:
            first = next(i for i, (a, b) in enumerate(zip(placed, chain.names, strict=True)) if a != b)
            message = f"out of order: {placed[first]} stands where {chain.names[first]} belongs"
            yield Violation("layers", place, message)
        return
    stage_of = {name: s for s, stage in enumerate(pipeline.stages) for name in stage.layers}
    for edge in subject.graph.edges:
        a, b = stage_of[edge.source], stage_of[edge.target]
        if a > b:
            message = f"out of order: {edge.target} on stage {b} needs {edge.source}, which is on stage {a}"
            yield Violation("layers", place, message)
    position = {name: i for i, name in enumerate(chain.names)}
    for s, stage in enumerate(pipeline.stages):
        if list(stage.layers) != sorted(stage.layers, key=position.__getitem__):
            yield Violation("layers", f"{place}[{s}].layers", "are not in the order of the model")


def _batch_violations(subject: Subject) -> Iterator[Violation]:
    """Micro-batches x size x replicas of all pipelines is the global batch."""
    batch = subject.model.training.global_batch
    pipelines = [p for _, p in subject.entries]
    total = sum(p.replicas * p.micro_batches * p.micro_batch_size for p in pipelines)
    if total == batch:
        return
    if len(pipelines) == 1:
        (p,) = pipelines
        message = f"{p.replicas} replicas x {p.micro_batches} micro-batches x {p.micro_batch_size} sequences = {total}"
    else:
        terms = [f"{p.replicas} x {p.micro_batches} x {p.micro_batch_size}" for p in pipelines]
        message = f"replicas x micro-batches x sequences: {_named(terms, ' + ')} = {total}"
    yield Violation("batch", subject.whole, f"{message}, the global batch is {batch}")


def _mix_violations(subject: Subject) -> Iterator[Violation]:
    """Several shapes average gradients once a step, layer by layer, over whatever stages hold the layer."""
    if len(subject.entries) == 1:
        return
    if subject.cost.chain.tensors is not None:
        message = "are of several shapes; those of a model whose layers branch are of one"
        yield Violation("pipelines", subject.whole, message)
    levels = subject.cost.zero_levels
    zero = max(levels)
    if len(levels) > 1:
        message = (
            "are of several shapes; the stages of several shapes that hold a layer would have ZeRO levels of their own"
        )
        yield Violation("pipelines", subject.whole, message)
    elif any(stage.num_replicas > 1 for _, pipeline in subject.entries for stage in pipeline.stages):
        yield Violation("pipelines", subject.whole, "are of several shapes; their stages have no replicas of their own")
    elif zero > 1:
        message = f"are of several shapes, which run unequal numbers of micro-batches; ZeRO {zero} reduces in each"
        yield Violation("pipelines", subject.whole, message)
    expert = subject.entries[0][1].stages[0].expert_parallel
    if expert != 1:
        message = f"are of several shapes; experts spread over {expert} chips would span them"
        yield Violation("degrees", subject.whole, message)


def _count_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Every stage has ranks for every replica; degrees agree."""
    first = subject.entries[0][1].stages[0]
    of = "the first stage" if len(subject.entries) == 1 else "the first stage of the first pipeline"
    for index, stage in enumerate(pipeline.stages):
        place = f"{where}.stages[{index}]"
        if len(stage.ranks) != pipeline.replicas * stage.num_replicas:
            own = f" x {stage.num_replicas} of the stage" if stage.num_replicas > 1 else ""
            message = f"has ranks for {len(stage.ranks)} replicas, the pipeline has {pipeline.replicas}{own}"
            yield Violation("replicas", f"{place}.ranks", message)
        width = stage.tensor_parallel * stage.context_parallel
        wrong = [i for i, chips in enumerate(stage.ranks) if len(chips) != width]
        if wrong:
            message = f"replica {_named(wrong)} has not tensor x context = {width} chips"
            yield Violation("ranks", f"{place}.ranks", message)
        for name in ("context_parallel", "expert_parallel"):
            if getattr(stage, name) != getattr(first, name):
                message = f"is {getattr(stage, name)}, on {of} {getattr(first, name)}"
                yield Violation("degrees", f"{place}.{name}", message)


def _schedule_violations(pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Known schedule, one chunk, in-flight counts as the schedule has them."""
    name, stages = pipeline.schedule.name, len(pipeline.stages)
    if name not in SCHEDULES or pipeline.schedule.chunks != 1:
        yield Violation("schedule", f"{where}.schedule", f"{name} with {pipeline.schedule.chunks} chunks is not known")
        return
    for index, held in enumerate(in_flight_counts(name, stages, pipeline.micro_batches)):
        if pipeline.stages[index].in_flight != held:
            message = f"is {pipeline.stages[index].in_flight}; {name} with {stages} stages holds {held}"
            yield Violation("schedule", f"{where}.stages[{index}].in_flight", message)


def _pair_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """One transfer for each pair of stages of which one feeds the other."""
    ends = [(transfer.from_stage, transfer.to_stage) for transfer in pipeline.transfers]
    position = {name: i for i, name in enumerate(subject.cost.chain.names)}
    held = [[position[name] for name in stage.layers] for stage in pipeline.stages]
    expected = [*sent_between(subject.cost.chain, held)]
    if ends != expected:
        of = "boundaries" if subject.cost.chain.tensors is None else "stages that feed each other"
        yield Violation("transfers", f"{where}.transfers", f"run {_named(ends)}; the {of} are {_named(expected)}")


def _rank_violations(subject: Subject) -> Iterator[Violation]:
    """Chips exist, work once, are of the stage's group and chip; the chips of a replica's stage share a node."""
    chips = ChipMap(subject.plan.inputs.cluster.document)
    counts = Counter(
        rank for _, p in subject.entries for stage in p.stages for replica in stage.ranks for rank in replica
    )
    absent = [rank for rank in sorted(counts) if rank >= chips.num_chips]
    if absent:
        message = f"the cluster has {chips.num_chips} chips, numbered from 0; there is no chip {_named(absent)}"
        yield Violation("ranks", subject.whole, message)
    twice = [rank for rank, count in sorted(counts.items()) if count > 1]
    if twice:
        yield Violation("ranks", subject.whole, f"used more than once: chip {_named(twice)}")
    for where, pipeline in subject.entries:
        for index, stage in enumerate(pipeline.stages):
            yield from _home_violations(chips, stage, f"{where}.stages[{index}]")


def _home_violations(chips: ChipMap, stage: Stage, place: str) -> Iterator[Violation]:
    home = next((g for g in chips.groups if g[0] == stage.node_group), None)
    if home is None:
        yield Violation("ranks", f"{place}.node_group", f"the cluster has no node group {stage.node_group!r}")
        return
    if home[1] != stage.chip:
        yield Violation("ranks", f"{place}.chip", f"is {stage.chip}; node group {home[0]} has {home[1]}")
    for replica, ranks in enumerate(stage.ranks):
        where = f"{place}.ranks[{replica}]"
        places = [chips.place(rank) for rank in ranks if rank < chips.num_chips]
        foreign = [rank for rank in ranks if rank < chips.num_chips and chips.place(rank).node_group != home[0]]
        if foreign:
            yield Violation("ranks", where, f"chip {_named(foreign)} is not of node group {home[0]}")
        elif len({p.node for p in places}) > 1:
            nodes = sorted({p.node for p in places})
            yield Violation(
                "ranks", where, f"spreads over nodes {_named(nodes)}; tensor and context groups stay in one"
            )


def _placement_violations(subject: Subject) -> Iterator[Violation]:
    """Ranks are those of the layout that the cost model prices: the stages of a group fill its slots one after another,
    those of several shapes as `place_blocks` has it. With a topology any node of a group may stand for any other.

    A different layout could send gradients over other links, and the predicted times would not be its own.
    """
    groups = subject.cost.groups
    index_of = {group.name: index for index, group in enumerate(groups)}
    blocks = [
        [
            Block(
                index_of[stage.node_group],
                stage.tensor_parallel * stage.context_parallel,
                pipeline.replicas * stage.num_replicas,
            )
            for stage in pipeline.stages
        ]
        for _, pipeline in subject.entries
    ]
    places = places_of(groups, blocks)
    if places is None:
        yield Violation("placement", subject.whole, "have no room in the layout that the times are for")
        return
    nodes = _nodes_taken(subject, blocks, places)
    for (where, pipeline), own, spots in zip(subject.entries, blocks, places, strict=True):
        for index, stage in enumerate(pipeline.stages):
            group, width = own[index].group, own[index].width
            actual = [nodes.get((group, node), node) for node, _ in spots[index]]
            expected = [
                ranks_of_place(groups, group, (node, first), width)
                for node, (_, first) in zip(actual, spots[index], strict=True)
            ]
            wrong = [i for i, (a, b) in enumerate(zip(stage.ranks, expected, strict=False)) if a != b]
            if wrong:
                message = (
                    f"replica {wrong[0]} is on chips {_named(stage.ranks[wrong[0]])};"
                    f" the layout that the times are for has it on {_named(expected[wrong[0]])}"
                )
                yield Violation("placement", f"{where}.stages[{index}].ranks", message)


def _nodes_taken(
    subject: Subject, blocks: Sequence[Sequence[Block]], places: Sequence[Sequence[Sequence[Place]]]
) -> dict[tuple[int, int], int]:
    """The node that stands for each (group, node) of the layout: as its first replica has it; none without a topology.

    Chips work once, so no node can stand for two full ones; what else does not follow is found chip by chip.
    """
    if subject.cost.uplinks is None:
        return {}
    chips = ChipMap(subject.plan.inputs.cluster.document)
    taken: dict[tuple[int, int], int] = {}
    for (_, pipeline), own, stages in zip(subject.entries, blocks, places, strict=True):
        for stage, block, spots in zip(pipeline.stages, own, stages, strict=True):
            for ranks, (node, _) in zip(stage.ranks, spots, strict=True):
                taken.setdefault((block.group, node), chips.place(ranks[0]).node)
    return taken


def _idle_violations(subject: Subject) -> Iterator[Violation]:
    chips = ChipMap(subject.plan.inputs.cluster.document)
    used = Counter(chips.place(rank).node_group for rank in subject.plan.used_ranks)
    expected = {name: nodes * per_node - used[name] for name, _, nodes, per_node in chips.groups}
    expected = {name: count for name, count in expected.items() if count}
    stated = {item.node_group: item.chips for item in subject.plan.idle}
    if stated != expected:
        yield Violation("idle", "idle", f"says {stated or 'none'}; the ranks leave {expected or 'none'}")

"""First part of the check: every layer once, every chip at most once, every count adds up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.cost.placement import ranks_of_replica
from planner.cost.schedule import SCHEDULES, in_flight_counts
from planner.plan.ranks import ChipMap
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline, Stage

__all__ = ["MAX_NAMED", "structure_violations"]

MAX_NAMED = 8


def structure_violations(subject: Subject) -> Iterator[Violation]:
    """Everything about the plan's shape that contradicts its cluster and model."""
    pipelines = subject.plan.pipelines
    if len(pipelines) != 1:
        message = f"this version checks plans of one pipeline shape; the plan has {len(pipelines)}"
        yield Violation("pipelines", "islands", message)
        return
    pipeline, where = pipelines[0], "islands[0].pipelines[0]"
    yield from _layer_violations(subject, pipeline, where)
    counts = [*_count_violations(subject, pipeline, where)]
    yield from counts
    yield from _schedule_violations(pipeline, where)
    ranks = [*_rank_violations(subject, pipeline, where)]
    yield from ranks
    if not (counts or ranks):
        yield from _placement_violations(subject, pipeline, where)
        yield from _idle_violations(subject)


def _named(names: Sequence[object]) -> str:
    shown = ", ".join(str(name) for name in names[:MAX_NAMED])
    return shown if len(names) <= MAX_NAMED else f"{shown} and {len(names) - MAX_NAMED} more"


def _layer_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Every layer of the model exactly once, in the order of the chain; recompute names layers of the stage."""
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
    if not (missing or foreign or twice) and tuple(placed) != chain:
        first = next(i for i, (a, b) in enumerate(zip(placed, chain, strict=True)) if a != b)
        yield Violation(
            "layers", f"{where}.stages", f"out of order: {placed[first]} stands where {chain[first]} belongs"
        )
    for index, stage in enumerate(pipeline.stages):
        strangers = [name for name in stage.recompute if name not in stage.layers]
        if strangers:
            message = f"names layers that the stage does not hold: {_named(strangers)}"
            yield Violation("recompute", f"{where}.stages[{index}].recompute", message)


def _count_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Micro-batches x size x replicas is the global batch; every stage has ranks for every replica; degrees agree."""
    batch = subject.model.training.global_batch
    product = pipeline.replicas * pipeline.micro_batches * pipeline.micro_batch_size
    if product != batch:
        message = (
            f"{pipeline.replicas} replicas x {pipeline.micro_batches} micro-batches x {pipeline.micro_batch_size}"
            f" sequences = {product}, the global batch is {batch}"
        )
        yield Violation("batch", where, message)
    first = pipeline.stages[0]
    for index, stage in enumerate(pipeline.stages):
        place = f"{where}.stages[{index}]"
        if len(stage.ranks) != pipeline.replicas:
            message = f"has ranks for {len(stage.ranks)} replicas, the pipeline has {pipeline.replicas}"
            yield Violation("replicas", f"{place}.ranks", message)
        width = stage.tensor_parallel * stage.context_parallel
        wrong = [i for i, chips in enumerate(stage.ranks) if len(chips) != width]
        if wrong:
            message = f"replica {_named(wrong)} has not tensor x context = {width} chips"
            yield Violation("ranks", f"{place}.ranks", message)
        for name in ("context_parallel", "expert_parallel"):
            if getattr(stage, name) != getattr(first, name):
                message = f"is {getattr(stage, name)}, on the first stage {getattr(first, name)}"
                yield Violation("degrees", f"{place}.{name}", message)


def _schedule_violations(pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Known schedule, one chunk, in-flight counts as the schedule has them, one transfer a boundary."""
    name, stages = pipeline.schedule.name, len(pipeline.stages)
    if name not in SCHEDULES or pipeline.schedule.chunks != 1:
        yield Violation("schedule", f"{where}.schedule", f"{name} with {pipeline.schedule.chunks} chunks is not known")
        return
    for index, held in enumerate(in_flight_counts(name, stages, pipeline.micro_batches)):
        if pipeline.stages[index].in_flight != held:
            message = f"is {pipeline.stages[index].in_flight}; {name} with {stages} stages holds {held}"
            yield Violation("schedule", f"{where}.stages[{index}].in_flight", message)
    ends = [(transfer.from_stage, transfer.to_stage) for transfer in pipeline.transfers]
    expected = [(s, s + 1) for s in range(stages - 1)]
    if ends != expected:
        yield Violation("transfers", f"{where}.transfers", f"run {_named(ends)}; the boundaries are {_named(expected)}")


def _rank_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Chips exist, work once, are of the stage's group and chip; the chips of a replica's stage share a node."""
    chips = ChipMap(subject.plan.inputs.cluster.document)
    counts = Counter(rank for stage in pipeline.stages for replica in stage.ranks for rank in replica)
    absent = [rank for rank in sorted(counts) if rank >= chips.num_chips]
    if absent:
        message = f"the cluster has {chips.num_chips} chips, numbered from 0; there is no chip {_named(absent)}"
        yield Violation("ranks", where, message)
    twice = [rank for rank, count in sorted(counts.items()) if count > 1]
    if twice:
        yield Violation("ranks", where, f"used more than once: chip {_named(twice)}")
    for index, stage in enumerate(pipeline.stages):
        place = f"{where}.stages[{index}]"
        yield from _home_violations(chips, stage, place)


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


def _placement_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Ranks are those of the layout that the cost model prices: the stages of a group fill its slots one after another.

    A different layout could send gradients over other links, and the predicted times would not be its own.
    """
    groups = subject.cost.groups
    index_of = {group.name: index for index, group in enumerate(groups)}
    seen: Counter[str] = Counter()
    for index, stage in enumerate(pipeline.stages):
        group, stage_index = index_of[stage.node_group], seen[stage.node_group]
        seen[stage.node_group] += 1
        degrees = (stage.tensor_parallel, stage.context_parallel)
        expected = [
            ranks_of_replica(groups, group, stage_index, replica, pipeline.replicas, *degrees)
            for replica in range(pipeline.replicas)
        ]
        wrong = [i for i, (a, b) in enumerate(zip(stage.ranks, expected, strict=False)) if a != b]
        if wrong:
            message = (
                f"replica {wrong[0]} is on chips {_named(stage.ranks[wrong[0]])};"
                f" the layout that the times are for has it on {_named(expected[wrong[0]])}"
            )
            yield Violation("placement", f"{where}.stages[{index}].ranks", message)


def _idle_violations(subject: Subject) -> Iterator[Violation]:
    chips = ChipMap(subject.plan.inputs.cluster.document)
    used = Counter(chips.place(rank).node_group for rank in subject.plan.used_ranks)
    expected = {name: nodes * per_node - used[name] for name, _, nodes, per_node in chips.groups}
    expected = {name: count for name, count in expected.items() if count}
    stated = {item.node_group: item.chips for item in subject.plan.idle}
    if stated != expected:
        yield Violation("idle", "idle", f"says {stated or 'none'}; the ranks leave {expected or 'none'}")

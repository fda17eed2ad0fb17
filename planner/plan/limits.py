"""Third part of the check: what the model file allows and pins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.cost.tiers import tiers_asked
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.schema import Pipeline

__all__ = ["limit_violations"]


def limit_violations(subject: Subject) -> Iterator[Violation]:
    """Choices outside `training:` and `constraints:` of the model file."""
    if len(subject.plan.islands) != 1:
        return
    yield from _shape_pins(subject)
    for where, pipeline in subject.entries:
        yield from _training_violations(subject, pipeline, where)
        yield from _degree_pins(subject, pipeline, where)
        yield from _group_pins(subject, pipeline, where)
    yield from _use_pins(subject)


def _shape_pins(subject: Subject) -> Iterator[Violation]:
    """What speaks of all pipelines together: how many shapes, and all their replicas."""
    pins, shapes = subject.model.constraints, len(subject.entries)
    if pins.shapes == "identical" and shapes > 1:
        yield Violation("constraints", subject.whole, f"there are {shapes}; constraints.shapes is identical")
    replicas = sum(pipeline.replicas for _, pipeline in subject.entries)
    if pins.data_parallel is not None and replicas not in _listed(pins.data_parallel):
        said = f"constraints.data_parallel is {pins.data_parallel}"
        if shapes == 1:
            yield Violation("constraints", f"{subject.whole}.replicas", f"is {replicas}; {said}")
        else:
            yield Violation("constraints", subject.whole, f"have {replicas} replicas in all; {said}")


def _training_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    training, pinned = subject.model.training, subject.model.constraints.micro_batch_size
    sizes = training.micro_batch_sizes if pinned is None else (pinned,)
    first = pipeline.stages[0]
    choices: list[tuple[str, object, tuple[object, ...] | None]] = [
        ("micro_batch_size", pipeline.micro_batch_size, sizes),
        ("schedule.name", pipeline.schedule.name, training.schedules),
        ("stages[0].context_parallel", first.context_parallel, training.context_parallel),
        ("stages[0].expert_parallel", first.expert_parallel, training.expert_parallel),
    ]
    levels, tiers = subject.cost.zero_levels, tuple(tier.word for tier in tiers_asked(training))
    for index, stage in enumerate(pipeline.stages):
        choices.append((f"stages[{index}].zero", levels[0] if stage.zero is None else stage.zero, levels))
        choices.append((f"stages[{index}].replicas", stage.num_replicas, training.stage_replicas))
        choices.append((f"stages[{index}].offload_optimizer", stage.offload_optimizer or "none", tiers))
    for name, value, allowed in choices:
        if allowed is not None and value not in allowed:
            message = f"is {value}; the model file allows {', '.join(str(choice) for choice in allowed)}"
            yield Violation("constraints", f"{where}.{name}", message)


def _degree_pins(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    pins = subject.model.constraints
    for index, stage in enumerate(pipeline.stages):
        pinned = pins.tensor_parallel
        degrees = pinned.get(stage.node_group) if isinstance(pinned, dict) else pinned
        if degrees is not None and stage.tensor_parallel not in _listed(degrees):
            message = f"is {stage.tensor_parallel}; constraints.tensor_parallel is {degrees}"
            yield Violation("constraints", f"{where}.stages[{index}].tensor_parallel", message)
    if pins.pipeline_parallel is not None and len(pipeline.stages) != pins.pipeline_parallel:
        message = f"there are {len(pipeline.stages)}; constraints.pipeline_parallel is {pins.pipeline_parallel}"
        yield Violation("constraints", f"{where}.stages", message)


def _listed(value: object) -> tuple[object, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def _group_pins(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    pins = subject.model.constraints
    stages = Counter(stage.node_group for stage in pipeline.stages)
    for group in pins.idle:
        if stages[group]:
            yield Violation("constraints", f"{where}.stages", f"use {group}, which constraints.idle leaves out")
    for group, count in (pins.stages or {}).items():
        if stages[group] != count:
            message = f"{stages[group]} on {group}; constraints.stages says {count}"
            yield Violation("constraints", f"{where}.stages", message)
    if pins.order is not None:
        order = list(dict.fromkeys(stage.node_group for stage in pipeline.stages))
        wanted = [group for group in pins.order if group in stages]
        if [group for group in order if group in wanted] != wanted:
            message = f"run over {', '.join(order)}; constraints.order is {', '.join(pins.order)}"
            yield Violation("constraints", f"{where}.stages", message)
    if pins.layers_per_stage is not None:
        counts = [len(stage.layers) for stage in pipeline.stages]
        if counts != list(pins.layers_per_stage):
            message = f"hold {counts} layers; constraints.layers_per_stage is {list(pins.layers_per_stage)}"
            yield Violation("constraints", f"{where}.stages", message)


def _use_pins(subject: Subject) -> Iterator[Violation]:
    """Groups that must be used are, by a stage of any pipeline."""
    used = {stage.node_group for _, pipeline in subject.entries for stage in pipeline.stages}
    where = f"{subject.whole}.stages" if len(subject.entries) == 1 else subject.whole
    for group in subject.model.constraints.use:
        if group not in used:
            yield Violation("constraints", where, f"do not use {group}, which constraints.use asks for")

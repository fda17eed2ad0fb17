"""Second part of the check: memory, times, transfers, prediction and certificate, computed again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from planner.cost.placement import Block
from planner.cost.tables import Setting
from planner.plan.assemble import memory_of, tied_layers, time_of
from planner.plan.evaluate import PipelineNumbers, PipelineShape, StageChoice, evaluate_plan, predict
from planner.plan.hosts import host_violations
from planner.plan.layout import mode_of, places_of, setting_of_shape
from planner.plan.notices import stage_name
from planner.plan.prices import price_per_hour, training_estimate
from planner.plan.ranks import ChipMap
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.cost.breakdown import StageBreakdown
    from planner.plan.schema import Pipeline, PlanModel, Stage, StageMemory

__all__ = ["number_violations"]

_RELATIVE = 1e-9
"""Times are sums of the same numbers, maybe in another order on another machine."""
_SLACK_BYTES = 1024
"""Parts are rounded to whole bytes, and sums may differ in their last digits."""


def number_violations(subject: Subject) -> Iterator[Violation]:
    """Everything that the plan predicts and the cost model does not."""
    settings = _settings(subject)
    impossible = [
        violation
        for (where, pipeline), setting in zip(subject.entries, settings, strict=True)
        for violation in _degree_violations(subject, pipeline, setting, where)
    ]
    yield from impossible
    if impossible:
        return
    shapes = [_shape(subject, p, setting) for (_, p), setting in zip(subject.entries, settings, strict=True)]
    numbers = evaluate_plan(subject.cost, shapes)
    for j, ((where, pipeline), own) in enumerate(zip(subject.entries, numbers, strict=True)):
        for index, (stage, breakdown) in enumerate(zip(pipeline.stages, own.stages, strict=True)):
            place, name = f"{where}.stages[{index}]", stage_name(subject.entries, j, index)
            yield from _memory_violations(name, stage, breakdown, place)
            yield from _differences(stage.time, time_of(breakdown), f"{place}.time", "time")
        yield from _transfer_violations(pipeline, own, where)
        yield from _pipeline_violations(pipeline, own, where)
    yield from host_violations(subject, shapes, numbers)
    yield from _whole_violations(subject, shapes, numbers)


def _settings(subject: Subject) -> list[Setting]:
    replicas = [pipeline.replicas for _, pipeline in subject.entries]
    settings = []
    for _, pipeline in subject.entries:
        first = pipeline.stages[0]
        own = Setting(
            micro_batch_size=pipeline.micro_batch_size,
            data_parallel=pipeline.replicas,
            context_parallel=first.context_parallel,
            expert_parallel=first.expert_parallel,
        )
        settings.append(setting_of_shape(own, replicas, len(pipeline.stages)))
    return settings


def _degree_violations(subject: Subject, pipeline: Pipeline, setting: Setting, where: str) -> Iterator[Violation]:
    """Degrees that the model's heads, the node or the experts do not allow."""
    index_of = {group.name: index for index, group in enumerate(subject.cost.groups)}
    for index, stage in enumerate(pipeline.stages):
        reason = subject.cost.why_not(index_of[stage.node_group], mode_of(subject.cost, stage), setting)
        if reason is not None:
            yield Violation("degrees", f"{where}.stages[{index}]", reason)
        unknown = sorted(set(stage.recompute.values()) - set(subject.cost.policies))
        if unknown:
            message = f"uses {', '.join(unknown)}; the model file allows {', '.join(subject.cost.policies)}"
            yield Violation("recompute", f"{where}.stages[{index}].recompute", message)


def _shape(subject: Subject, pipeline: Pipeline, setting: Setting) -> PipelineShape:
    """What the plan decides, read from its layers and its ranks."""
    index_of = {group.name: index for index, group in enumerate(subject.cost.groups)}
    position_of = {name: i for i, name in enumerate(subject.cost.chain.names)}
    stages = []
    for stage in pipeline.stages:
        held = tuple(position_of[name] for name in stage.layers)
        stages.append(
            StageChoice.of(index_of[stage.node_group], mode_of(subject.cost, stage), held, dict(stage.recompute))
        )
    chips = ChipMap(subject.plan.inputs.cluster.document)
    homes = [[chips.place(ranks[0]) for ranks in stage.ranks] for stage in pipeline.stages]
    places = tuple(tuple((home.node, home.slot) for home in stage) for stage in homes)
    name, micro_batches = pipeline.schedule.name, pipeline.micro_batches
    return PipelineShape(name, setting, micro_batches, tuple(stages), pipeline.replicas, places)


def _memory_violations(name: str, stage: Stage, breakdown: StageBreakdown, where: str) -> Iterator[Violation]:
    from planner.spec.units import format_bytes

    stated, actual = stage.memory, memory_of(breakdown)
    if stated.peak_bytes != sum(stated.parts.values()):
        message = f"is {stated.peak_bytes}, the parts sum to {sum(stated.parts.values())}"
        yield Violation("memory-numbers", f"{where}.memory.peak_bytes", message)
    if stated.parts.keys() != actual.parts.keys():
        message = f"are {', '.join(sorted(stated.parts))}; they should be {', '.join(sorted(actual.parts))}"
        yield Violation("memory-numbers", f"{where}.memory.parts", message)
    pairs = [
        (f"parts.{part}", stated.parts[part], actual.parts[part]) for part in stated.parts.keys() & actual.parts.keys()
    ]
    pairs.append(("usable_bytes", stated.usable_bytes, actual.usable_bytes))
    for part, says, needs in sorted(pairs):
        if abs(says - needs) > max(_SLACK_BYTES, _RELATIVE * needs):
            yield Violation("memory-numbers", f"{where}.memory.{part}", f"is {says}, the cost model says {needs}")
    yield from _off_chip_violations(stage, actual, where)
    over = actual.peak_bytes - actual.usable_bytes
    if over > _SLACK_BYTES:
        message = (
            f"{name} on {stage.node_group} needs {format_bytes(actual.peak_bytes)} a chip,"
            f" {format_bytes(actual.usable_bytes)} is usable: {format_bytes(over)} too much"
        )
        yield Violation("memory", f"{where}.memory", message)


def _off_chip_violations(stage: Stage, actual: StageMemory, where: str) -> Iterator[Violation]:
    """Host memory and drives: stated where something is offloaded, as the cost model has it (`host_violations` adds up
    nodes)."""
    for part in ("host_bytes", "usable_host_bytes", "nvme_bytes", "usable_nvme_bytes"):
        says, needs = getattr(stage.memory, part), getattr(actual, part)
        if (says is None) != (needs is None) or abs((says or 0) - (needs or 0)) > max(
            _SLACK_BYTES, _RELATIVE * (needs or 0)
        ):
            yield Violation("memory-numbers", f"{where}.memory.{part}", f"is {says}, the cost model says {needs}")


def _close(stated: float, actual: float) -> bool:
    return abs(stated - actual) <= _RELATIVE * max(abs(stated), abs(actual), 1e-12)


def _differences(stated: PlanModel, actual: PlanModel, where: str, code: str) -> Iterator[Violation]:
    """Fields of two objects of one kind that differ; numbers within rounding are equal."""
    for name in type(actual).model_fields:
        says, needs = getattr(stated, name), getattr(actual, name)
        numbers = isinstance(says, float) and isinstance(needs, float)
        if not (_close(says, needs) if numbers else says == needs):
            yield Violation(code, f"{where}.{name}", f"is {says}, the cost model says {needs}")


def _transfer_violations(pipeline: Pipeline, numbers: PipelineNumbers, where: str) -> Iterator[Violation]:
    for index, (stated, actual) in enumerate(zip(pipeline.transfers, numbers.boundaries, strict=True)):
        needed = stated.model_copy(
            update={
                "bytes": actual.num_bytes,
                "time_s": actual.onward_s,
                "backward_time_s": actual.back_s,
                "transport": actual.transport,
                "same_node": actual.same_node,
            }
        )
        yield from _differences(stated, needed, f"{where}.transfers[{index}]", "transfers")


def _pipeline_violations(pipeline: Pipeline, numbers: PipelineNumbers, where: str) -> Iterator[Violation]:
    for name in ("reduction_s", "optimizer_s"):
        says, needs = getattr(pipeline, name), max(getattr(b.time, name) for b in numbers.stages)
        if not _close(says, needs):
            yield Violation("time", f"{where}.{name}", f"is {says}, the longest of its stages is {needs}")


def _whole_violations(
    subject: Subject, shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers]
) -> Iterator[Violation]:
    """Prediction, training, tied layers and certificate."""
    plan, training = subject.plan, subject.model.training
    tokens = training.global_batch * training.sequence_length
    prediction = predict(subject.cost, shapes, numbers, tokens)
    yield from _differences(plan.prediction, prediction, "prediction", "prediction")
    price, currency = price_per_hour(subject.cluster, shapes), subject.cluster.currency
    estimate = training_estimate(subject.model, prediction, price, currency)
    if (plan.training is None) != (estimate is None):
        yield Violation("training", "training", "is there without a length or price" if plan.training else "is missing")
    elif plan.training is not None and estimate is not None:
        yield from _differences(plan.training, estimate, "training", "training")
    yield from _file_order_violations(subject, shapes)
    if plan.tied_layers != tied_layers(subject.graph):
        yield Violation("layers", "tied_layers", "are not those of the model")
    objectives = {"s": prediction.step_time_s}
    if price:
        objectives[f"{currency}/token"] = prediction.step_time_s * price / 3600 / tokens
    yield from _certificate_violations(subject, objectives)


def _file_order_violations(subject: Subject, shapes: Sequence[PipelineShape]) -> Iterator[Violation]:
    """On a topology: what the plan says of the order of the file, and that it is no worse than that."""
    stated = subject.plan.certificate.solver.get("file_order_step_s")
    if subject.cost.uplinks is None or stated is None:
        return
    where, step = "certificate.solver.file_order_step_s", subject.plan.prediction.step_time_s
    blocks = [
        [
            Block(s.group, s.tensor * shape.setting.context_parallel, shape.replicas * s.mode.replicas)
            for s in shape.stages
        ]
        for shape in shapes
    ]
    places = places_of(subject.cost.groups, blocks)
    assert places is not None, "the structure is checked before"
    in_order = [replace(shape, places=own) for shape, own in zip(shapes, places, strict=True)]
    actual = max(numbers.step_time_s for numbers in evaluate_plan(subject.cost, in_order))
    if not isinstance(stated, float) or not _close(stated, actual):
        yield Violation("placement", where, f"is {stated}, the cost model says {actual}")
    if step > actual * (1 + _RELATIVE):
        yield Violation("placement", where, f"is {actual}: better than the plan's {step}")


def _is_in_blocks(pipeline: Pipeline) -> bool:
    """Whether each node group has one block of stages, all of one kind, as in every plan of identical pipelines; those
    that may be mixed have any stages in any order.
    """
    kinds = ((s.node_group, s.tensor_parallel, s.zero, s.offload_optimizer, s.replicas) for s in pipeline.stages)
    blocks = [name for (name, *_), _ in groupby(kinds)]
    return len(blocks) == len(set(blocks))


def _certificate_violations(subject: Subject, objectives: dict[str, float]) -> Iterator[Violation]:
    """objective is the predicted one, bound <= objective, gap = (objective - bound) / objective."""
    certificate = subject.plan.certificate
    expected = objectives.get(certificate.unit)
    if expected is None:
        message = f"is {certificate.unit}; objectives of this plan: {', '.join(objectives)}"
        yield Violation("certificate", "certificate.unit", message)
    elif not _close(certificate.objective, expected):
        yield Violation(
            "certificate", "certificate.objective", f"is {certificate.objective}, the prediction says {expected}"
        )
    if certificate.bound > certificate.objective * (1 + _RELATIVE):
        message = f"is {certificate.bound}, above the objective {certificate.objective}"
        yield Violation("certificate", "certificate.bound", message)
    gap = (certificate.objective - certificate.bound) / certificate.objective
    if abs(certificate.gap - gap) > _RELATIVE:
        yield Violation("certificate", "certificate.gap", f"is {certificate.gap}, objective and bound give {gap}")
    identical = certificate.identical_bound
    alike = len(subject.plan.pipelines) == 1 and _is_in_blocks(subject.plan.pipelines[0])
    if identical is not None and alike and identical > certificate.objective * (1 + _RELATIVE):
        message = f"is {identical}, above the objective {certificate.objective} of a plan of identical pipelines"
        yield Violation("certificate", "certificate.identical_bound", message)
    asked = certificate.gap_asked
    if certificate.why_stopped == "gap" and asked is not None and not certificate.is_as_close_as_asked:
        yield Violation("certificate", "certificate.why_stopped", f"says that the gap {asked} was reached; it is {gap}")

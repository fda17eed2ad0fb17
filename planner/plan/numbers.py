"""Second part of the check: memory, times, transfers, prediction and certificate, computed again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from planner.cost.tables import Setting
from planner.plan.assemble import memory_of, tied_layers, time_of
from planner.plan.evaluate import PipelineNumbers, PipelineShape, StageChoice, evaluate_pipeline, predict
from planner.plan.prices import price_per_hour, training_estimate
from planner.plan.ranks import ChipMap
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.cost.breakdown import StageBreakdown
    from planner.plan.schema import Pipeline, PlanModel, Stage

__all__ = ["number_violations"]

_RELATIVE = 1e-9
"""Times are sums of the same numbers, maybe in another order on another machine."""
_SLACK_BYTES = 1024
"""Parts are rounded to whole bytes, and sums may differ in their last digits."""


def number_violations(subject: Subject) -> Iterator[Violation]:
    """Everything that the plan predicts and the cost model does not."""
    pipeline, where = subject.plan.pipelines[0], "islands[0].pipelines[0]"
    impossible = [*_degree_violations(subject, pipeline, where)]
    yield from impossible
    if impossible:
        return
    shape = _shape(subject, pipeline)
    numbers = evaluate_pipeline(subject.cost, shape)
    for index, (stage, breakdown) in enumerate(zip(pipeline.stages, numbers.stages, strict=True)):
        yield from _memory_violations(index, stage, breakdown, f"{where}.stages[{index}]")
        yield from _differences(stage.time, time_of(breakdown), f"{where}.stages[{index}].time", "time")
    yield from _transfer_violations(pipeline, numbers, shape, where)
    yield from _pipeline_violations(pipeline, numbers, where)
    yield from _whole_violations(subject, shape, numbers)


def _setting(pipeline: Pipeline) -> Setting:
    first = pipeline.stages[0]
    return Setting(
        micro_batch_size=pipeline.micro_batch_size,
        data_parallel=pipeline.replicas,
        context_parallel=first.context_parallel,
        expert_parallel=first.expert_parallel,
        single_stage=len(pipeline.stages) == 1,
    )


def _degree_violations(subject: Subject, pipeline: Pipeline, where: str) -> Iterator[Violation]:
    """Degrees that the model's heads, the node or the experts do not allow."""
    setting = _setting(pipeline)
    index_of = {group.name: index for index, group in enumerate(subject.cost.groups)}
    for index, stage in enumerate(pipeline.stages):
        reason = subject.cost.why_not(index_of[stage.node_group], stage.tensor_parallel, setting)
        if reason is not None:
            yield Violation("degrees", f"{where}.stages[{index}]", reason)
        unknown = sorted(set(stage.recompute.values()) - set(subject.cost.policies))
        if unknown:
            message = f"uses {', '.join(unknown)}; the model file allows {', '.join(subject.cost.policies)}"
            yield Violation("recompute", f"{where}.stages[{index}].recompute", message)


def _shape(subject: Subject, pipeline: Pipeline) -> PipelineShape:
    """What the plan decides, read from its layers and its ranks."""
    index_of = {group.name: index for index, group in enumerate(subject.cost.groups)}
    stages, position = [], 0
    for stage in pipeline.stages:
        end = position + len(stage.layers)
        stages.append(
            StageChoice(index_of[stage.node_group], stage.tensor_parallel, position, end, dict(stage.recompute))
        )
        position = end
    chips = ChipMap(subject.plan.inputs.cluster.document)
    same_node = tuple(
        all(_nodes(chips, a) == _nodes(chips, b) for a, b in zip(before.ranks, after.ranks, strict=True))
        for before, after in zip(pipeline.stages, pipeline.stages[1:], strict=False)
    )
    return PipelineShape(pipeline.schedule.name, _setting(pipeline), pipeline.micro_batches, tuple(stages), same_node)


def _nodes(chips: ChipMap, ranks: tuple[int, ...]) -> set[tuple[int, int]]:
    return {(place.group, place.node) for place in map(chips.place, ranks)}


def _memory_violations(index: int, stage: Stage, breakdown: StageBreakdown, where: str) -> Iterator[Violation]:
    from planner.spec.units import format_bytes

    stated, actual = stage.memory, memory_of(breakdown)
    if stated.peak_bytes != sum(stated.parts.values()):
        message = f"is {stated.peak_bytes}, the parts sum to {sum(stated.parts.values())}"
        yield Violation("memory-numbers", f"{where}.memory.peak_bytes", message)
    if stated.parts.keys() != actual.parts.keys():
        message = f"are {', '.join(sorted(stated.parts))}; they should be {', '.join(sorted(actual.parts))}"
        yield Violation("memory-numbers", f"{where}.memory.parts", message)
    pairs = [
        (f"parts.{name}", stated.parts[name], actual.parts[name]) for name in stated.parts.keys() & actual.parts.keys()
    ]
    pairs.append(("usable_bytes", stated.usable_bytes, actual.usable_bytes))
    for name, says, needs in sorted(pairs):
        if abs(says - needs) > max(_SLACK_BYTES, _RELATIVE * needs):
            yield Violation("memory-numbers", f"{where}.memory.{name}", f"is {says}, the cost model says {needs}")
    over = actual.peak_bytes - actual.usable_bytes
    if over > _SLACK_BYTES:
        message = (
            f"stage {index} on {stage.node_group} needs {format_bytes(actual.peak_bytes)} a chip,"
            f" {format_bytes(actual.usable_bytes)} is usable: {format_bytes(over)} too much"
        )
        yield Violation("memory", f"{where}.memory", message)


def _close(stated: float, actual: float) -> bool:
    return abs(stated - actual) <= _RELATIVE * max(abs(stated), abs(actual), 1e-12)


def _differences(stated: PlanModel, actual: PlanModel, where: str, code: str) -> Iterator[Violation]:
    """Fields of two objects of one kind that differ; numbers within rounding are equal."""
    for name in type(actual).model_fields:
        says, needs = getattr(stated, name), getattr(actual, name)
        numbers = isinstance(says, float) and isinstance(needs, float)
        if not (_close(says, needs) if numbers else says == needs):
            yield Violation(code, f"{where}.{name}", f"is {says}, the cost model says {needs}")


def _transfer_violations(
    pipeline: Pipeline, numbers: PipelineNumbers, shape: PipelineShape, where: str
) -> Iterator[Violation]:
    for index, (stated, actual, same) in enumerate(
        zip(pipeline.transfers, numbers.boundaries, shape.same_node, strict=True)
    ):
        needed = stated.model_copy(
            update={
                "bytes": actual.num_bytes,
                "time_s": actual.onward_s,
                "backward_time_s": actual.back_s,
                "transport": actual.transport,
                "same_node": same,
            }
        )
        yield from _differences(stated, needed, f"{where}.transfers[{index}]", "transfers")


def _pipeline_violations(pipeline: Pipeline, numbers: PipelineNumbers, where: str) -> Iterator[Violation]:
    for name in ("reduction_s", "optimizer_s"):
        says, needs = getattr(pipeline, name), max(getattr(b.time, name) for b in numbers.stages)
        if not _close(says, needs):
            yield Violation("time", f"{where}.{name}", f"is {says}, the longest of its stages is {needs}")


def _whole_violations(subject: Subject, shape: PipelineShape, numbers: PipelineNumbers) -> Iterator[Violation]:
    """Prediction, training, tied layers and certificate."""
    plan, training = subject.plan, subject.model.training
    tokens = training.global_batch * training.sequence_length
    prediction = predict(subject.cost, shape, numbers, tokens)
    yield from _differences(plan.prediction, prediction, "prediction", "prediction")
    price, currency = price_per_hour(subject.cluster, shape), subject.cluster.currency
    estimate = training_estimate(subject.model, prediction, price, currency)
    if (plan.training is None) != (estimate is None):
        yield Violation("training", "training", "is there without a length or price" if plan.training else "is missing")
    elif plan.training is not None and estimate is not None:
        yield from _differences(plan.training, estimate, "training", "training")
    if plan.tied_layers != tied_layers(subject.graph):
        yield Violation("layers", "tied_layers", "are not those of the model")
    objectives = {"s": prediction.step_time_s}
    if price:
        objectives[f"{currency}/token"] = prediction.step_time_s * price / 3600 / tokens
    yield from _certificate_violations(subject, objectives)


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
    asked = certificate.gap_asked
    if certificate.why_stopped == "gap" and asked is not None and gap > max(asked, 1e-6) * (1 + 1e-5):
        yield Violation("certificate", "certificate.why_stopped", f"says that the gap {asked} was reached; it is {gap}")

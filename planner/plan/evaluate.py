"""What a pipeline needs and takes, asked of the cost model: what a new plan gets, and an old one is checked against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.schedule import in_flight_counts

if TYPE_CHECKING:
    from planner.cost.breakdown import StageBreakdown
    from planner.cost.model import CostModel
    from planner.cost.tables import Setting
    from planner.plan.schema import Prediction

__all__ = ["Boundary", "PipelineNumbers", "PipelineShape", "StageChoice", "evaluate_pipeline", "predict"]


@dataclass(frozen=True)
class StageChoice:
    """A stage: index of the node group, tensor parallel degree, layers first..end-1 of the chain, policy of each
    recomputed layer."""

    group: int
    tensor: int
    first: int
    end: int
    recompute: Mapping[str, str]


@dataclass(frozen=True)
class PipelineShape:
    """What decides a pipeline's numbers. same_node: for each boundary whether it stays in a node in every replica."""

    schedule: str
    setting: Setting
    micro_batches: int
    stages: tuple[StageChoice, ...]
    same_node: tuple[bool, ...]


@dataclass(frozen=True)
class Boundary:
    """What crosses between two stages, for one micro-batch."""

    num_bytes: int
    onward_s: float
    back_s: float
    transport: Literal["rdma", "host"]


@dataclass(frozen=True)
class PipelineNumbers:
    """Everything that the cost model says about a pipeline."""

    stages: tuple[StageBreakdown, ...]
    in_flight: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    step_time_s: float


def evaluate_pipeline(cost: CostModel, shape: PipelineShape) -> PipelineNumbers:
    """Ask for every stage and boundary, and run the schedule."""
    held = in_flight_counts(shape.schedule, len(shape.stages), shape.micro_batches)
    names = cost.chain.names
    stages = tuple(
        cost.breakdown(
            stage.group,
            stage.tensor,
            shape.setting,
            cost.kind_counts(names[stage.first : stage.end], stage.recompute),
            in_flight,
        )
        for stage, in_flight in zip(shape.stages, held, strict=True)
    )
    boundaries = tuple(_boundary(cost, shape, index) for index in range(len(shape.stages) - 1))
    times = ChainTimes(
        forward=[s.time.forward_s for s in stages],
        backward=[s.time.backward_s for s in stages],
        update=[s.time.update_s for s in stages],
        send_forward=[b.onward_s for b in boundaries],
        send_backward=[b.back_s for b in boundaries],
    )
    return PipelineNumbers(stages, held, boundaries, step_time(times, held, shape.micro_batches))


def _boundary(cost: CostModel, shape: PipelineShape, index: int) -> Boundary:
    source, target, same = shape.stages[index], shape.stages[index + 1], shape.same_node[index]
    table = cost.transfer(source.group, source.tensor, target.group, target.tensor, same, shape.setting)
    last = source.end - 1
    kind = cost.chain.kinds[last]
    return Boundary(
        num_bytes=round(cost.boundary_bytes(last, shape.setting)),
        onward_s=float(table.forward_s[kind]),
        back_s=float(table.backward_s[kind]),
        transport="host" if cost.transport(source.group, target.group, same) == "host" else "rdma",
    )


def predict(cost: CostModel, shape: PipelineShape, numbers: PipelineNumbers, tokens_per_step: int) -> Prediction:
    """The numbers of the whole, from those of its stages.

    per chip and MFU: over used chips.   MFU = model FLOPs / (T * sum of peaks)
    bubble = 1 - sum over chips of (m * (forward + backward) + update) / (T * chips)
    """
    from planner.plan.schema import Prediction

    step, setting = numbers.step_time_s, shape.setting
    chips = [stage.tensor * setting.context_parallel * setting.data_parallel for stage in shape.stages]
    peaks = [cost.peak_flops_per_s(stage.group) for stage in shape.stages]
    busy = sum(
        n * (shape.micro_batches * stage.time.micro_batch_s + stage.time.update_s)
        for n, stage in zip(chips, numbers.stages, strict=True)
    )
    known = [n * peak for n, peak in zip(chips, peaks, strict=True) if peak is not None]
    return Prediction(
        step_time_s=step,
        tokens_per_s=tokens_per_step / step,
        tokens_per_s_per_chip=tokens_per_step / step / sum(chips),
        mfu=cost.model_flops_per_step / (step * sum(known)) if len(known) == len(chips) else None,
        bubble_fraction=min(1.0, max(0.0, 1 - busy / (step * sum(chips)))),
    )

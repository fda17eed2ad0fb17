"""Where the chips' time goes in one step, and the same for plans of several chip types added up."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.branching_recurrence import BranchTimes, pairs_step_time
from planner.cost.schedule import in_flight_counts
from planner.plan.ranks import ChipMap

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.plan.schema import Pipeline, Stage

__all__ = ["PARTS", "ChipTime", "Replay", "chip_seconds", "chip_time", "speed_of", "tokens_per_step"]

PARTS = ("compute", "recompute", "update", "uneven", "fill", "links", "idle")
"""compute: forward and backward passes, collectives inside the layers included.  recompute: forward work done again,
and waiting for offloaded activations.
update: gradient reduction and optimizer.  uneven: waiting because another stage (or pipeline) takes longer.  fill: the
pipeline fills and drains.  links: how much sooner the step would end if transfers between stages took no time.
idle: chips without work.
"""


@dataclass(frozen=True)
class Replay:
    """A plan's own stages run again with something changed; layers, chips and order stay.

    free_links: transfers between stages take no time.  no_recompute: as if everything could be kept.
    times_batch: so many times the micro-batches.
    """

    free_links: bool = False
    no_recompute: bool = False
    times_batch: int = 1

    def step_time_s(self, plan: Plan) -> float:
        """Seconds; inf when more micro-batches would be held than the plan has memory for."""
        before = max(_run(pipeline, Replay()) for pipeline in plan.pipelines)
        after = max(_run(pipeline, self) for pipeline in plan.pipelines)
        return plan.prediction.step_time_s + (after - before)


def _run(pipeline: Pipeline, change: Replay) -> float:
    stages, micro_batches = pipeline.stages, pipeline.micro_batches * change.times_batch
    held = in_flight_counts(pipeline.schedule.name, len(stages), micro_batches)
    if any(now > stage.in_flight for now, stage in zip(held, stages, strict=True)):
        return float("inf")
    pairs = [(t.from_stage, t.to_stage) for t in pipeline.transfers]
    sends = [(0.0, 0.0) if change.free_links else (t.time_s, t.backward_time_s) for t in pipeline.transfers]
    times = BranchTimes(
        forward=[_forward_s(stage, change.no_recompute) for stage in stages],
        backward=[
            _micro_batch_s(stage, change.no_recompute) - _forward_s(stage, change.no_recompute) for stage in stages
        ],
        update=[stage.time.reduction_s + stage.time.optimizer_s for stage in stages],
        send_forward={pair: onward for pair, (onward, _) in zip(pairs, sends, strict=True)},
        send_backward={pair: back for pair, (_, back) in zip(pairs, sends, strict=True)},
    )
    return pairs_step_time(times, held, micro_batches)


def _micro_batch_s(stage: Stage, no_recompute: bool = False) -> float:
    time = stage.time
    work = time.forward_s + time.backward_input_s + time.backward_weight_s
    if no_recompute:
        return work - time.offload_forward_s - time.offload_backward_s
    return work + time.recompute_s


def _forward_s(stage: Stage, no_recompute: bool) -> float:
    return stage.time.forward_s - (stage.time.offload_forward_s if no_recompute else 0.0)


def chip_seconds(plan: Plan, left_out: Collection[str] = ()) -> dict[str, dict[str, float]]:
    """Seconds of a step by chip type and part (PARTS); over all parts the chips of the type x the step time.

    left_out: idle node groups that do not count.

    for each stage, with T the step time, T' the plan's without transfers, P' that of its own pipeline:
        links = T - T'      uneven = min(T' - busy, T' - P' + m (longest t of the pipeline - t))
        fill = T' - busy - uneven      busy = m t + update
    """
    step, free = plan.prediction.step_time_s, Replay(free_links=True)
    shortest = min(free.step_time_s(plan), step)
    spent: dict[str, dict[str, float]] = {}
    for pipeline in plan.pipelines:
        behind = max(0.0, shortest - _run(pipeline, free))
        longest = max(_micro_batch_s(stage) for stage in pipeline.stages)
        for stage in pipeline.stages:
            parts = _stage_seconds(stage, pipeline.micro_batches, longest, behind, shortest)
            parts["links"] = step - shortest
            chips = sum(len(replica) for replica in stage.ranks)
            _add(spent.setdefault(stage.chip, dict.fromkeys(PARTS, 0.0)), parts, chips)
    chip_of = {name: chip for name, chip, _, _ in ChipMap(plan.inputs.cluster.document).groups}
    for idle in plan.idle:
        if idle.node_group in left_out:
            continue
        held = spent.setdefault(chip_of[idle.node_group], dict.fromkeys(PARTS, 0.0))
        held["idle"] += idle.chips * step
    return spent


def _stage_seconds(stage: Stage, micro_batches: int, longest: float, behind: float, step: float) -> dict[str, float]:
    """Seconds of one chip of a stage; `step` is the step time without transfers."""
    whole, time = _micro_batch_s(stage), stage.time
    recompute = time.recompute_s + time.offload_forward_s + time.offload_backward_s
    update = stage.time.reduction_s + stage.time.optimizer_s
    waiting = max(0.0, step - micro_batches * whole - update)
    uneven = min(waiting, behind + micro_batches * (longest - whole))
    return {
        "compute": micro_batches * (whole - recompute),
        "recompute": micro_batches * recompute,
        "update": update,
        "uneven": uneven,
        "fill": waiting - uneven,
    }


def _add(total: dict[str, float], parts: Mapping[str, float], weight: float) -> None:
    for name, seconds in parts.items():
        total[name] += weight * seconds


def tokens_per_step(plan: Plan) -> float:
    """Tokens of the global batch."""
    return plan.prediction.tokens_per_s * plan.prediction.step_time_s


@dataclass(frozen=True)
class ChipTime:
    """Shares of the chips' time by part (PARTS), each chip counted by its speed; each side sums to 1.

    A chip type's speed is what its separate plan trains in a second in which it only computes. yield_ratio: tokens
    that a second of computing yields in the mixed plan, over the same in the separate plans (other degrees and
    micro-batches, other layers). With these
        ratio = yield_ratio * mixed["compute"] / separate["compute"]
    """

    mixed: Mapping[str, float]
    separate: Mapping[str, float]
    yield_ratio: float

    def document(self) -> dict[str, object]:
        """JSON form."""
        return {"mixed": dict(self.mixed), "separate": dict(self.separate), "yield_ratio": self.yield_ratio}


def chip_time(
    mixed: Plan,
    separate: Sequence[tuple[str, int, Plan | None]],
    speeds: Mapping[str, float],
    left_out: Collection[str] = (),
) -> ChipTime | None:
    """Both sides of a comparison; None when there is nothing to compare with.

    separate: chip, its number, its plan (None: it cannot train alone, so all of its time is idle).
    speeds: tokens per second of computing, by chip (`speed_of`).
    left_out: idle node groups that do not count.
    """
    capacity = sum(chips * speeds.get(chip, 0.0) for chip, chips, _ in separate)
    if capacity <= 0:
        return None
    alone = dict.fromkeys(PARTS, 0.0)
    for chip, chips, plan in separate:
        if plan is None:
            alone["idle"] += chips * speeds.get(chip, 0.0) / capacity
            continue
        _add(alone, chip_seconds(plan)[chip], speeds[chip] / plan.prediction.step_time_s / capacity)
    together = dict.fromkeys(PARTS, 0.0)
    for chip, parts in chip_seconds(mixed, left_out).items():
        _add(together, parts, speeds.get(chip, 0.0) / mixed.prediction.step_time_s / capacity)
    if together["compute"] <= 0 or alone["compute"] <= 0:
        return None
    return ChipTime(together, alone, mixed.prediction.tokens_per_s / capacity / together["compute"])


def speed_of(plan: Plan) -> float:
    """Tokens that a chip of a plan of one chip type trains in a second in which it only computes."""
    return tokens_per_step(plan) / sum(parts["compute"] for parts in chip_seconds(plan).values())

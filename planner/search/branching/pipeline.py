"""A branching graph on the stages of a pipeline: the numbers, and the plain evaluator.

The stages come in a fixed order; every layer is on a stage no earlier than the layers that feed it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from planner.cost.branching_recurrence import BranchTimes, branch_step_time
from planner.search.branching.problem import Tensor

__all__ = ["PipelineProblem", "PipelineVerdict", "StageTable", "evaluate_pipeline", "times_of"]


@dataclass(frozen=True)
class StageTable:
    """Numbers per layer on one stage's chips, for one micro-batch.

    forward_s, backward_s: (layers,) seconds; backward is the whole of it.  update_s: seconds after the last one.
    static_bytes, saved_bytes (per micro-batch in flight), transient_bytes (largest working set): (layers,).
    usable_bytes: for all of these.  fixed_update_s: once a stage.
    buffer_bytes: (tensors,) of one that arrives from another stage, or its gradient; empty: none.
    """

    forward_s: tuple[float, ...]
    backward_s: tuple[float, ...]
    update_s: tuple[float, ...]
    static_bytes: tuple[float, ...]
    saved_bytes: tuple[float, ...]
    transient_bytes: tuple[float, ...]
    usable_bytes: float
    fixed_update_s: float = 0.0
    buffer_bytes: tuple[float, ...] = ()


@dataclass(frozen=True)
class PipelineProblem:
    """Give every stage its layers so that the step time is least; no stage is empty.

    in_flight: k_s per stage, not increasing.  together: sets of layers that share a stage.
    send_forward_s[a, b]: (tensors,) seconds for each tensor made on stage a and needed on stage b, for all a < b;
    send_backward_s[a, b]: its gradient from b to a.  A tensor is sent once to each stage that needs it, directly.
    latency_s[a, b]: (onward, back) seconds beside, once for all that a sends to b; 0 where absent.
    """

    tensors: tuple[Tensor, ...]
    stages: tuple[StageTable, ...]
    in_flight: tuple[int, ...]
    micro_batches: int
    send_forward_s: Mapping[tuple[int, int], tuple[float, ...]]
    send_backward_s: Mapping[tuple[int, int], tuple[float, ...]]
    together: tuple[tuple[int, ...], ...] = field(default=())
    latency_s: Mapping[tuple[int, int], tuple[float, float]] = field(default_factory=dict)

    @property
    def num_layers(self) -> int:
        return len(self.stages[0].forward_s)

    @property
    def num_stages(self) -> int:
        return len(self.stages)

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(a, b) for all stages a < b."""
        return [(a, b) for b in range(self.num_stages) for a in range(b)]

    def edges(self) -> list[tuple[int, int]]:
        """(source, consumer) of every tensor, without repetition, in a fixed order."""
        return sorted({(t.source, v) for t in self.tensors for v in t.consumers})

    def latency(self, pair: tuple[int, int]) -> tuple[float, float]:
        """Onward and back."""
        return self.latency_s.get(pair, (0.0, 0.0))

    def buffers(self, stage_of: Sequence[int]) -> list[float]:
        """Bytes of receive buffers of every stage: for tensors that arrive, and gradients that come back."""
        total = [0.0] * self.num_stages
        for t, tensor in enumerate(self.tensors):
            a = stage_of[tensor.source]
            for b in {stage_of[v] for v in tensor.consumers} - {a}:
                for s in (a, b):
                    total[s] += self.stages[s].buffer_bytes[t] if self.stages[s].buffer_bytes else 0.0
        return total

    def needed_bytes(self, s: int, layers: Sequence[int]) -> float:
        """What stage s needs to hold the layers: static + in flight x saved + the largest working set.

        Without receive buffers, which depend on the other stages.
        """
        table = self.stages[s]
        kept = sum(table.static_bytes[v] + self.in_flight[s] * table.saved_bytes[v] for v in layers)
        return kept + max((table.transient_bytes[v] for v in layers), default=0.0)

    def fits(self, s: int, layers: Sequence[int], buffers: float = 0.0) -> bool:
        """Whether stage s can hold the layers, to a relative 1e-9 for sums in different orders."""
        return self.needed_bytes(s, layers) + buffers <= self.stages[s].usable_bytes * (1 + 1e-9)


@dataclass(frozen=True)
class PipelineVerdict:
    """step_s: exact step time in seconds.  violations: one sentence each; empty for a valid assignment."""

    step_s: float
    violations: tuple[str, ...]


def times_of(problem: PipelineProblem, stage_of: Sequence[int]) -> BranchTimes:
    """Times of the stages and of the transfers between them, when layer v is on stage stage_of[v]."""
    layers = [[v for v, s in enumerate(stage_of) if s == stage] for stage in range(problem.num_stages)]
    forward, backward, update = (
        [sum(getattr(table, name)[v] for v in own) for table, own in zip(problem.stages, layers, strict=True)]
        for name in ("forward_s", "backward_s", "update_s")
    )
    there: dict[tuple[int, int], float] = {}
    back: dict[tuple[int, int], float] = {}
    for t, tensor in enumerate(problem.tensors):
        a = stage_of[tensor.source]
        for b in sorted({stage_of[v] for v in tensor.consumers} - {a}):
            latency = problem.latency((a, b))
            there[a, b] = there.get((a, b), latency[0]) + problem.send_forward_s[a, b][t]
            back[a, b] = back.get((a, b), latency[1]) + problem.send_backward_s[a, b][t]
    update = [x + table.fixed_update_s for x, table in zip(update, problem.stages, strict=True)]
    return BranchTimes(forward, backward, update, there, back)


def evaluate_pipeline(problem: PipelineProblem, stage_of: Sequence[int]) -> PipelineVerdict:
    """Step time and violations of an assignment of layers to stages; inf where the order itself is violated."""
    wrong = []
    for u, v in problem.edges():
        if stage_of[u] > stage_of[v]:
            wrong.append(f"layer {v} is on a stage before layer {u}, which feeds it")
    for group in problem.together:
        if len({stage_of[v] for v in group}) > 1:
            wrong.append(f"layers {group} are not on one stage")
    for s, buffers in enumerate(problem.buffers(stage_of)):
        own = [v for v in range(problem.num_layers) if stage_of[v] == s]
        if not own:
            wrong.append(f"stage {s} is empty")
        if not problem.fits(s, own, buffers):
            needed = problem.needed_bytes(s, own) + buffers
            wrong.append(f"stage {s} needs {needed:g} of {problem.stages[s].usable_bytes:g} bytes")
    if any(stage_of[u] > stage_of[v] for u, v in problem.edges()):
        return PipelineVerdict(float("inf"), tuple(wrong))
    step = branch_step_time(times_of(problem, stage_of), problem.in_flight, problem.micro_batches)
    return PipelineVerdict(step, tuple(wrong))

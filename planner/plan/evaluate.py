"""What pipelines need and take, asked of the cost model: what a new plan gets, and an old one is checked against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from planner.cost.branching_recurrence import BranchTimes, pairs_step_time
from planner.cost.crossings import Pair, received_elements, sent_elements, stages_of
from planner.cost.holders import holder_of, lines_crossed, shared_layers
from planner.cost.schedule import in_flight_counts
from planner.cost.traffic import Traffic
from planner.cost.uplinks import FREE

if TYPE_CHECKING:
    from planner.cost.breakdown import StageBreakdown
    from planner.cost.model import CostModel
    from planner.cost.tables import Chain, Mode, Setting
    from planner.cost.traffic import StageWays
    from planner.cost.uplinks import Detour
    from planner.plan.schema import Prediction

__all__ = [
    "Boundary",
    "PipelineNumbers",
    "PipelineShape",
    "Place",
    "StageChoice",
    "bubble_fraction",
    "evaluate_plan",
    "predict",
    "sent_between",
    "traffic_of",
]

Place = tuple[int, int]
"""Where a replica of a stage sits in its node group: node, and first chip of the node."""


@dataclass(frozen=True)
class StageChoice:
    """A stage: index of the node group, its mode, layers first..end-1 of the chain, policy of each recomputed layer.

    layers: its layers by position, ascending, where they are no such range (then first is theirs, end one beyond the
    last).
    """

    group: int
    mode: Mode
    first: int
    end: int
    recompute: Mapping[str, str]
    layers: tuple[int, ...] | None = None

    @classmethod
    def of(cls, group: int, mode: Mode, held: Sequence[int], recompute: Mapping[str, str]) -> StageChoice:
        """The stage that holds these layers, ascending."""
        first, end = held[0], held[-1] + 1
        layers = None if end - first == len(held) else tuple(held)
        return cls(group, mode, first, end, recompute, layers)

    @property
    def tensor(self) -> int:
        """Its tensor parallel degree."""
        return self.mode.tensor

    @property
    def held(self) -> Sequence[int]:
        """The layers by position."""
        return range(self.first, self.end) if self.layers is None else self.layers

    def names(self, chain: Chain) -> tuple[str, ...]:
        """The layers by name."""
        return tuple(chain.names[layer] for layer in self.held)


@dataclass(frozen=True)
class PipelineShape:
    """What decides a pipeline's numbers.

    setting: its data_parallel counts the replicas of all shapes of the plan; `mixed` when there are several shapes.
    replicas: those of this shape.  places[s][i]: of replica i of stage s; a stage with r replicas of its own in each
    pipeline has r times as many, those of one pipeline together.
    """

    schedule: str
    setting: Setting
    micro_batches: int
    stages: tuple[StageChoice, ...]
    replicas: int
    places: tuple[tuple[Place, ...], ...]

    def chips(self, stage: StageChoice) -> int:
        """Chips of all replicas of a stage."""
        return stage.mode.chips * self.setting.context_parallel * self.replicas

    def same_node(self, a: int, b: int) -> bool:
        """Whether two stages sit in the same node of the same group in every replica."""
        if self.stages[a].group != self.stages[b].group:
            return False
        return all(x[0] == y[0] for x, y in zip(self.places[a], self.places[b], strict=True))


@dataclass(frozen=True)
class Boundary:
    """What goes from one stage to another, for one micro-batch."""

    source: int
    target: int
    num_bytes: int
    onward_s: float
    back_s: float
    transport: Literal["rdma", "host"]
    same_node: bool


@dataclass(frozen=True)
class PipelineNumbers:
    """Everything that the cost model says about a pipeline. boundaries: one for each pair of stages that feed each
    other."""

    stages: tuple[StageBreakdown, ...]
    in_flight: tuple[int, ...]
    boundaries: tuple[Boundary, ...]
    step_time_s: float


def evaluate_plan(cost: CostModel, shapes: Sequence[PipelineShape]) -> tuple[PipelineNumbers, ...]:
    """The numbers of every shape's pipeline; a step takes as long as the slowest.

    Several shapes share what joins them: the lines between groups that their pipelines cross (`lines_crossed`), and the
    gradients of every layer, summed over all stages that hold it (`CostModel.reduction`).
    """
    crossed = lines_crossed([(shape.replicas, [stage.group for stage in shape.stages]) for shape in shapes])
    assert len(shapes) == 1 or cost.chain.tensors is None, "pipelines of a branching graph are of one shape"
    traffic = traffic_of(cost, shapes)
    return tuple(
        _evaluate(cost, shape, _shared_reductions(cost, shapes, j, traffic), crossed, _passages(shapes, j, traffic))
        for j, shape in enumerate(shapes)
    )


def traffic_of(cost: CostModel, shapes: Sequence[PipelineShape]) -> Traffic | None:
    """What the shapes send over the uplinks of the cluster from where they sit; None without a topology."""
    if cost.uplinks is None:
        return None
    chains = [
        tuple(
            cost.stage_traffic(stage.group, stage.mode, shape.setting, [node for node, _ in places])
            for stage, places in zip(shape.stages, shape.places, strict=True)
        )
        for shape in shapes
    ]
    pieces: list[tuple[int, ...]] = [(s,) for s in range(len(chains[0]))]
    if len(shapes) > 1:
        pieces = [piece.stages for piece in shared_layers([[stage.end for stage in h.stages] for h in shapes])]
    pairs = [[*sent_between(cost.chain, [stage.held for stage in shape.stages])] for shape in shapes]
    return Traffic(cost.uplinks, chains, pieces, pairs)


@dataclass(frozen=True)
class _Passages:
    """What uplinks leave to the stages of a shape (None: its reductions are shared) and to its pairs of stages."""

    stages: Sequence[StageWays | None]
    pairs: Mapping[Pair, Detour]


def _passages(shapes: Sequence[PipelineShape], own: int, traffic: Traffic | None) -> _Passages:
    stages = range(len(shapes[own].stages))
    if traffic is None:
        return _Passages([None for _ in stages], {})
    alone = len(shapes) == 1
    ways = [traffic.stage(own, s) if alone else None for s in stages]
    return _Passages(ways, {pair: traffic.boundary(own, pair) for pair in traffic.pairs[own]})


def _evaluate(
    cost: CostModel,
    shape: PipelineShape,
    reductions: Sequence[float] | None,
    crossed: Counter[tuple[int, int]],
    passages: _Passages,
) -> PipelineNumbers:
    """Ask for every stage and boundary, and run the schedule. reductions: of each stage, where they are not its own."""
    held = in_flight_counts(shape.schedule, len(shape.stages), shape.micro_batches)
    sent = sent_between(cost.chain, [stage.held for stage in shape.stages])
    stages = tuple(
        cost.breakdown(
            stage.group,
            stage.mode,
            shape.setting,
            cost.kind_counts(stage.names(cost.chain), stage.recompute),
            in_flight,
            received,
            ways,
        )
        for stage, in_flight, received, ways in zip(
            shape.stages, held, received_elements(sent, len(shape.stages)), passages.stages, strict=True
        )
    )
    if reductions is not None:
        stages = tuple(
            replace(stage, time=replace(stage.time, reduction_s=seconds))
            for stage, seconds in zip(stages, reductions, strict=True)
        )
    boundaries = tuple(
        _boundary(cost, shape, pair, elements, crossed, passages.pairs.get(pair)) for pair, elements in sent.items()
    )
    times = BranchTimes(
        forward=[s.time.forward_s for s in stages],
        backward=[s.time.backward_s for s in stages],
        update=[s.time.update_s for s in stages],
        send_forward={(b.source, b.target): b.onward_s for b in boundaries},
        send_backward={(b.source, b.target): b.back_s for b in boundaries},
    )
    return PipelineNumbers(stages, held, boundaries, pairs_step_time(times, held, shape.micro_batches))


def sent_between(chain: Chain, held: Sequence[Iterable[int]]) -> dict[Pair, float]:
    """Elements per sequence between the stages that hold these layers; 0 without branches, where tables know."""
    if chain.tensors is None:
        return {(s, s + 1): 0.0 for s in range(len(held) - 1)}
    return sent_elements(chain.tensors, stages_of(held))


def _boundary(
    cost: CostModel,
    shape: PipelineShape,
    pair: Pair,
    elements: float,
    crossed: Counter[tuple[int, int]],
    detour: Detour | None,
) -> Boundary:
    source, target, same = shape.stages[pair[0]], shape.stages[pair[1]], shape.same_node(*pair)
    setting = shape.setting
    if setting.mixed:
        groups = min(source.group, target.group), max(source.group, target.group)
        setting = replace(setting, data_parallel=max(1, crossed[groups]), mixed=False)
    table = cost.transfer(source.group, source.mode, target.group, target.mode, same, setting, detour)
    if cost.chain.tensors is None:
        last = source.end - 1
        kind = cost.chain.kinds[last]
        num_bytes, onward, back = cost.boundary_bytes(last, setting), table.forward_s[kind], table.backward_s[kind]
    else:
        num_bytes = cost.sent_bytes(elements, setting)
        onward, back = table.seconds(elements)
    host = cost.transport(source.group, target.group, same) == "host"
    return Boundary(*pair, round(num_bytes), float(onward), float(back), "host" if host else "rdma", same)


def _shared_reductions(
    cost: CostModel, shapes: Sequence[PipelineShape], own: int, traffic: Traffic | None
) -> list[float] | None:
    """Seconds of gradient reduction of each stage of shape `own`; None with one shape, whose tables have them.

    for each run of layers that the same stages hold (one buffer):   sum over its layers of seconds[kind] + fixed
    """
    if len(shapes) == 1:
        return None
    shape, kinds = shapes[own], cost.chain.kinds
    holders = [[holder_of(s.group, s.tensor, p) for s, p in zip(h.stages, h.places, strict=True)] for h in shapes]
    sharing = max(len(h.stages) for h in shapes)
    seconds = [0.0] * len(shape.stages)
    for piece in shared_layers([[stage.end for stage in h.stages] for h in shapes]):
        together = tuple(stages[s] for stages, s in zip(holders, piece.stages, strict=True))
        rings = shape.stages[piece.stages[own]].tensor
        detour = FREE if traffic is None else traffic.reduction(piece.stages, rings)
        reduced = cost.reduction(own, together, shape.setting, sharing, detour)
        layers = sum(float(reduced.seconds[kinds[layer]]) for layer in range(piece.first, piece.end))
        seconds[piece.stages[own]] += layers + reduced.fixed_s
    return seconds


def predict(
    cost: CostModel, shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers], tokens_per_step: int
) -> Prediction:
    """The numbers of the whole, from those of its pipelines.

    T = max over shapes.   per chip and MFU: over used chips.   MFU = model FLOPs / (T * sum of peaks)
    """
    from planner.plan.schema import Prediction

    step = max(n.step_time_s for n in numbers)
    stages = [(shape.chips(stage), stage.group) for shape in shapes for stage in shape.stages]
    chips = sum(n for n, _ in stages)
    peaks = [(n, cost.peak_flops_per_s(group)) for n, group in stages]
    known = [n * peak for n, peak in peaks if peak is not None]
    return Prediction(
        step_time_s=step,
        tokens_per_s=tokens_per_step / step,
        tokens_per_s_per_chip=tokens_per_step / step / chips,
        mfu=cost.model_flops_per_step / (step * sum(known)) if len(known) == len(peaks) else None,
        bubble_fraction=bubble_fraction(shapes, numbers, step),
    )


def bubble_fraction(shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers], step_s: float) -> float:
    """Share of the time of the shapes' chips without work.

    1 - sum over chips of (m * (forward + backward) + update) / (T * chips)
    """
    pairs = [
        (shape.chips(choice), shape.micro_batches, stage.time)
        for shape, n in zip(shapes, numbers, strict=True)
        for choice, stage in zip(shape.stages, n.stages, strict=True)
    ]
    busy = sum(chips * (m * time.micro_batch_s + time.update_s) for chips, m, time in pairs)
    return min(1.0, max(0.0, 1 - busy / (step_s * sum(chips for chips, _, _ in pairs))))

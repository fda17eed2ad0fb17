"""Contiguous sets of layers on the stages of a shape: as a pipeline problem, judged exactly, moved layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.crossings import received_elements, sent_elements
from planner.search.branching.pipeline import PipelineProblem, StageTable
from planner.search.branching.problem import Tensor
from planner.search.leaf import Leaf
from planner.search.splitting import choose_policies

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["Placed", "judge", "pipeline_problem", "polish_sets"]

_MOST_ACTIONS = 400_000
"""Actions that all tries of one call may run; a try runs every action of a step."""
_MANY_MICRO_BATCHES = 200
"""More of them take no longer (`branch_step_time`)."""


@dataclass(frozen=True)
class Placed:
    """Layers and recompute of the stages of a shape.

    stage_of: (layers,).  policies: as in a split.  step_time: exact, in seconds.
    """

    leaf: Leaf
    stage_of: tuple[int, ...]
    policies: tuple[tuple[tuple[int, ...], ...], ...]
    step_time: float

    def held(self, stage: int) -> tuple[int, ...]:
        """Layers of a stage, in the order of the model."""
        return tuple(v for v, s in enumerate(self.stage_of) if s == stage)


def judge(leaf: Leaf, stage_of: Sequence[int]) -> Placed | None:
    """The assignment with the recompute that it needs; None when a stage is empty, comes too early or does not fit."""
    chain, tensors = leaf.root.intervals.chain, leaf.tensors or ()
    if any(stage_of[tensor.source] > stage_of[v] for tensor in tensors for v in tensor.consumers):
        return None
    counts = [[0] * len(chain.kind_names) for _ in leaf.stages]
    for kind, s in zip(chain.kinds, stage_of, strict=True):
        counts[s][kind] += 1
    sent = sent_elements(tensors, stage_of)
    policies = []
    for s, received in enumerate(received_elements(sent, leaf.num_stages)):
        chosen = choose_policies(leaf, s, tuple(counts[s]), received) if any(counts[s]) else None
        if chosen is None:
            return None
        policies.append(chosen)
    return Placed(leaf, tuple(stage_of), tuple(policies), leaf.branch_step_time(tuple(policies), sent))


def pipeline_problem(leaf: Leaf) -> PipelineProblem:
    """The shape's numbers for the stage program of branching graphs.

    Every layer takes the time of its fastest recompute policy and the memory of its most frugal one: where memory does
    not ask for recompute that is exact, else a lower bound.
    """
    kinds, tensors = [*leaf.root.intervals.chain.kinds], leaf.tensors or ()
    tables = []
    for s in range(leaf.num_stages):
        table = leaf.table(s)
        backward = table.backward_input_s + table.backward_weight_s + table.recompute_s.min(axis=0)
        tables.append(
            StageTable(
                forward_s=_of_layers(kinds, table.forward_s),
                backward_s=_of_layers(kinds, backward),
                update_s=_of_layers(kinds, table.reduction_s + table.optimizer_s),
                static_bytes=_of_layers(kinds, table.static_bytes),
                saved_bytes=_of_layers(kinds, table.saved_bytes.min(axis=0)),
                transient_bytes=_of_layers(kinds, table.transient_bytes.min(axis=0)),
                usable_bytes=table.usable_bytes - table.fixed_bytes,
                fixed_update_s=table.fixed_update_s,
                buffer_bytes=tuple(tensor.elements * table.buffer_bytes for tensor in tensors),
            )
        )
    pairs = {(a, b): leaf.transfer_of((a, b)) for b in range(leaf.num_stages) for a in range(b)}
    there, back = (
        {pair: tuple(tensor.elements * t.per_element_s[i] for tensor in tensors) for pair, t in pairs.items()}
        for i in (0, 1)
    )
    return PipelineProblem(
        tuple(Tensor(tensor.source, tensor.consumers) for tensor in tensors),
        tuple(tables),
        leaf.in_flight,
        leaf.micro_batches,
        there,
        back,
        latency_s={pair: t.fixed_s for pair, t in pairs.items()},
    )


def _of_layers(kinds: list[int], per_kind: Floats) -> tuple[float, ...]:
    return tuple(float(x) for x in per_kind[kinds])


def polish_sets(placed: Placed, should_stop: Callable[[], bool] = lambda: False) -> Placed:
    """Single layers moved to other stages while that makes the step shorter."""
    leaf = placed.leaf
    left = _MOST_ACTIONS // (2 * leaf.num_stages * min(leaf.micro_batches, _MANY_MICRO_BATCHES))
    improved = True
    while improved:
        improved = False
        for stage_of in _moves(placed):
            left -= 1
            if left < 0 or should_stop():
                return placed
            other = judge(leaf, stage_of)
            if other is not None and other.step_time < placed.step_time * (1 - 1e-9):
                placed, improved = other, True
                break
    return placed


def _moves(placed: Placed) -> Iterator[list[int]]:
    """Each layer on each other stage where what it needs and what needs it allow it; from the busiest stages first."""
    leaf, stage_of = placed.leaf, placed.stage_of
    least, most = [0] * len(stage_of), [leaf.num_stages - 1] * len(stage_of)
    for tensor in leaf.tensors or ():
        for v in tensor.consumers:
            least[v] = max(least[v], stage_of[tensor.source])
            most[tensor.source] = min(most[tensor.source], stage_of[v])
    forward, backward, _ = leaf.stage_times(placed.policies)
    busy = [f + b for f, b in zip(forward, backward, strict=True)]
    for v in sorted(range(len(stage_of)), key=lambda v: (-busy[stage_of[v]], v)):
        for s in sorted(range(least[v], most[v] + 1), key=lambda s: (busy[s], s)):
            if s != stage_of[v]:
                yield [s if w == v else own for w, own in enumerate(stage_of)]

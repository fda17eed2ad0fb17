"""Which nodes the stages of a plan get where the cluster has a topology: never worse than the order of the file.

The layout (plan/layout.py) numbers the nodes of each group from 0; here each of these gets a node of the group. What
happens inside nodes stays as it is, so only what uplinks leave changes. Tried are the order of the file, orders that
keep blocks of replicas or of stages together, filled in the order of the tree or each block into the tightest switch
that has room; then single exchanges, while one helps. Every place is judged by the exact step time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from planner.plan.evaluate import evaluate_plan, traffic_of

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.uplinks import Uplinks
    from planner.plan.evaluate import PipelineNumbers, PipelineShape

__all__ = ["FILE_ORDER", "Placed", "place_well"]

FILE_ORDER = "the order of the file"
_MOST_STARTS = 8
"""Placements from which exchanges begin: the best of those proposed."""
_MOST_PROPOSED, _MOST_EXCHANGED = 60_000, 60_000
"""Work in all proposals, and in all exchanges: about a second each. Large plans are tried less."""
_ACTIONS = 20
"""Work of judging one placement: its stage replicas, and the actions of its pipelines over this."""
_MOST_PACKED = 1_000_000
"""Blocks x work up to which blocks are packed: each looks at all free nodes."""
_CLOSER = 1e-12
"""Relative: what is less better than this is no better."""

Nodes = tuple[tuple[int, ...], ...]
"""For each group the node that each node of the layout gets; nodes that the layout does not use are left out."""


class Score(NamedTuple):
    """Step time, then what all stages and boundaries lose to uplinks together, seconds."""

    step_time_s: float
    communication_s: float


@dataclass(frozen=True)
class Placed:
    """Shapes with their places. rule: how the nodes were chosen.  file_order_step_s: the step without that choice."""

    shapes: tuple[PipelineShape, ...]
    rule: str
    step_time_s: float
    file_order_step_s: float


def place_well(cost: CostModel, shapes: Sequence[PipelineShape]) -> Placed | None:
    """The shapes, laid out in the order of the file, at good nodes; None without a topology."""
    if cost.uplinks is None:
        return None
    judge = _Judge(cost, cost.uplinks, tuple(shapes))
    first = judge.score(judge.file_order)
    starts = {judge.file_order: _Start(first, FILE_ORDER)}
    for name, nodes in judge.proposals():
        if len(starts) * judge.work > _MOST_PROPOSED:
            break
        if nodes not in starts:
            starts[nodes] = _Start(judge.score(nodes), name)
    best = min(
        starts, key=lambda nodes: starts[nodes].score
    )  # the first of equals: the order of the file before others
    least, rule = starts[best]
    for nodes in sorted(starts, key=lambda nodes: starts[nodes].score)[:_MOST_STARTS]:
        exchanged, score = judge.exchange(nodes, starts[nodes].score)
        if _better(score, least):
            best, least, rule = exchanged, score, f"{starts[nodes].rule}, then exchanged"
    if not _better(least, first):
        best, least, rule = judge.file_order, first, FILE_ORDER
    return Placed(judge.placed(best), rule, least.step_time_s, first.step_time_s)


class _Start(NamedTuple):
    """Where exchanges begin, and how it was made."""

    score: Score
    rule: str


def _better(a: Score, b: Score) -> bool:
    if a.step_time_s != b.step_time_s and abs(a.step_time_s - b.step_time_s) > _CLOSER * b.step_time_s:
        return a.step_time_s < b.step_time_s
    return a.communication_s < b.communication_s * (1 - _CLOSER)


class _Judge:
    """Scores of placements of one plan; equal shares of the uplinks are judged once."""

    def __init__(self, cost: CostModel, uplinks: Uplinks, shapes: tuple[PipelineShape, ...]) -> None:
        self.cost, self.uplinks, self.shapes = cost, uplinks, shapes
        self.roles = self._roles()
        self.file_order: Nodes = tuple(tuple(range(len(roles))) for roles in self.roles)
        self.in_tree = tuple(
            sorted(range(len(homes)), key=lambda node, homes=homes: (uplinks.order[homes[node]], node))  # type: ignore[misc]
            for homes in uplinks.homes
        )
        actions = sum(len(shape.stages) * shape.micro_batches for shape in shapes)
        self.work = sum(len(places) for shape in shapes for places in shape.places) + actions // _ACTIONS
        self.left = _MOST_EXCHANGED
        self._known: dict[object, Score] = {}

    def _roles(self) -> list[list[tuple[int, int]]]:
        """For each group and node of the layout, the first (stage, replica) in it; stages and replicas count over all
        shapes.
        """
        roles: list[dict[int, tuple[int, int]]] = [{} for _ in self.cost.groups]
        replicas = 0
        for shape in self.shapes:
            for s, (stage, places) in enumerate(zip(shape.stages, shape.places, strict=True)):
                for i, (node, _) in enumerate(places):
                    roles[stage.group].setdefault(node, (s, replicas + i))
            replicas += shape.replicas
        return [[known[node] for node in range(len(known))] for known in roles]

    def placed(self, nodes: Nodes) -> tuple[PipelineShape, ...]:
        """The shapes at these nodes."""
        return tuple(
            replace(
                shape,
                places=tuple(
                    tuple((nodes[stage.group][node], chip) for node, chip in places)
                    for stage, places in zip(shape.stages, shape.places, strict=True)
                ),
            )
            for shape in self.shapes
        )

    def score(self, nodes: Nodes) -> Score:
        shapes = self.placed(nodes)
        traffic = traffic_of(self.cost, shapes)
        assert traffic is not None
        key = traffic.left()
        if key not in self._known:
            self._known[key] = _score(shapes, evaluate_plan(self.cost, shapes))
        return self._known[key]

    # --- what is tried ---------------------------------------------------------------------------------------------

    def proposals(self) -> Iterator[tuple[str, Nodes]]:
        """Blocks of so many stages of so many replicas together: one of each keeps a pipeline's neighbours close, all
        replicas a stage's reductions.
        """
        stages = 1 + max(s for roles in self.roles for s, _ in roles)
        replicas = 1 + max(i for roles in self.roles for _, i in roles)
        for j in _sizes(stages):
            for k in _sizes(replicas):
                for outer in ("stages", "replicas"):
                    blocks = [self._blocks(group, j, k, outer) for group in range(len(self.roles))]
                    name = f"blocks of {_count(j, 'stage')} x {_count(k, 'replica')}, {outer} first"
                    yield name, tuple(self._fill(group, own) for group, own in enumerate(blocks))
                    if sum(map(len, blocks)) * self.work <= _MOST_PACKED:
                        yield f"{name}, packed", tuple(self._pack(group, own) for group, own in enumerate(blocks))

    def _blocks(self, group: int, j: int, k: int, outer: str) -> list[list[int]]:
        """Nodes of the layout, block by block, each stage by stage."""
        blocks: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for node, (s, i) in enumerate(self.roles[group]):
            key = (s // j, i // k) if outer == "stages" else (i // k, s // j)
            blocks.setdefault(key, []).append((s, i, node))
        return [[node for _, _, node in sorted(blocks[key])] for key in sorted(blocks)]

    def _fill(self, group: int, blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """One node after the other, in the order of the tree."""
        order = [node for block in blocks for node in block]
        return _inverse(order, self.in_tree[group])

    def _pack(self, group: int, blocks: Sequence[Sequence[int]]) -> tuple[int, ...]:
        """Each block in the switch with the fewest free nodes that has room for it, the largest blocks first."""
        homes, free = self.uplinks.homes[group], list(self.in_tree[group])
        order: list[int] = []
        taken: list[int] = []
        for block in sorted(blocks, key=lambda block: (-len(block), block)):
            room: dict[int, list[int]] = {}
            for node in free:
                for switch in (-1, *self.uplinks.above(homes[node])):
                    room.setdefault(switch, []).append(node)
            wide = [switch for switch, nodes in room.items() if len(nodes) >= len(block)]
            tightest = min(wide, key=lambda switch: (len(room[switch]), -self.uplinks.order[switch]))
            order += block
            taken += room[tightest][: len(block)]
            gone = set(taken)
            free = [node for node in free if node not in gone]
        return _inverse(order, taken)

    def exchange(self, nodes: Nodes, least: Score) -> tuple[Nodes, Score]:
        """Exchange two nodes at different switches, or move one to a free node, while that helps; a limited number."""
        improved = True
        while improved and self.left > 0:
            improved = False
            for other in self._neighbours(nodes):
                if self.left <= 0:
                    break
                self.left -= self.work
                score = self.score(other)
                if _better(score, least):
                    nodes, least, improved = other, score, True
                    break
        return nodes, least

    def _neighbours(self, nodes: Nodes) -> Iterator[Nodes]:
        for group, own in enumerate(nodes):
            homes = self.uplinks.homes[group]
            for a, b in combinations(range(len(own)), 2):
                if homes[own[a]] != homes[own[b]]:
                    yield _with(nodes, group, {a: own[b], b: own[a]})
            taken, free = set(own), dict[int, int]()
            for node in self.in_tree[group]:
                if node not in taken:
                    free.setdefault(homes[node], node)
            for a in range(len(own)):
                for home, node in free.items():
                    if home != homes[own[a]]:
                        yield _with(nodes, group, {a: node})


def _score(shapes: Sequence[PipelineShape], numbers: Sequence[PipelineNumbers]) -> Score:
    lost = 0.0
    for shape, own in zip(shapes, numbers, strict=True):
        lost += sum(stage.time.reduction_s + shape.micro_batches * stage.time.micro_batch_s for stage in own.stages)
        lost += sum(shape.micro_batches * (b.onward_s + b.back_s) for b in own.boundaries)
    return Score(max(n.step_time_s for n in numbers), lost)


def _count(number: int, word: str) -> str:
    return f"{number} {word}" if number == 1 else f"{number} {word}s"


def _sizes(most: int) -> list[int]:
    """1, `most`, and the powers of two between them."""
    return list(dict.fromkeys((1, most, *(2**n for n in range(most.bit_length()) if 2**n < most))))


def _inverse(order: Sequence[int], nodes: Sequence[int]) -> tuple[int, ...]:
    """The node of each node of the layout, when the one at order[n] gets nodes[n]."""
    found = dict(zip(order, nodes, strict=False))
    return tuple(found[node] for node in range(len(order)))


def _with(nodes: Nodes, group: int, changes: Mapping[int, int]) -> Nodes:
    own = list(nodes[group])
    for node, home in changes.items():
        own[node] = home
    return (*nodes[:group], tuple(own), *nodes[group + 1 :])

"""The whole plan space of a problem as shapes, each a setting and a number of stages, with its quick bound."""

from __future__ import annotations

from dataclasses import dataclass

from planner.search.mixed_stages.compose import Composer
from planner.search.mixed_stages.numbers import Mixes, Numbers, Synchronisation
from planner.search.mixed_stages.packing import Packing
from planner.search.mixed_stages.quick import QuickBounds
from planner.search.mixed_stages.shape import Prices, Shape
from planner.search.mixed_stages.tables import MixedProblem

__all__ = ["Node", "Space"]


@dataclass
class Node:
    """A shape that is still open. bound: seconds, no plan of it takes less.  slowest: the same for max x.

    limit: labels kept in its next chain search.  opened: whether its own bounds were taken.
    estimate: seconds, what chip prices said last.  tight: a target, and a lower bound of max x for plans below it.
    """

    setting: int
    num_stages: int
    bound: float
    slowest: float
    limit: int
    opened: bool = False
    estimate: float = float("inf")
    tight: tuple[float, float] = (0.0, 0.0)


class Space:
    """Tables by micro-batch size and by setting, made when first asked for."""

    def __init__(self, problem: MixedProblem) -> None:
        self.problem = problem
        self.packing = Packing(problem.chips, problem.replica_kinds)
        self.mixes = Mixes(problem)
        self.prices = Prices(self.packing)
        self._numbers: dict[int, Numbers] = {}
        self._syncs: dict[int, Synchronisation] = {}
        self._composers: dict[int, Composer] = {}
        self._twins: dict[tuple[int, int], list[int]] = {}
        for s, setting in enumerate(problem.settings):
            self._twins.setdefault((setting.micro_batch_size, setting.num_micro_batches), []).append(s)

    def nodes(self, limit: int) -> list[Node]:
        """Every shape that the quick bounds do not rule out."""
        problem, packing = self.problem, self.packing
        degrees = range(len(problem.replica_kinds))
        most = sum(
            max((packing.most(k) for k in degrees if problem.replica_kinds[k].chip == c), default=0)
            for c in range(len(problem.chips))
        )
        quick: dict[tuple[int, float], QuickBounds] = {}
        nodes: list[Node] = []
        for s, setting in enumerate(problem.settings):
            numbers = self.numbers(setting.micro_batch_size)
            for p in range(1, min(problem.num_layers, most // setting.data_parallel) + 1):
                held = min(problem.in_flight(i, p, setting) for i in range(p))
                key = (setting.micro_batch_size, held)
                if key not in quick:
                    quick[key] = QuickBounds(numbers, packing, problem, held)
                bound, slowest = quick[key].bound(setting, p)
                if bound < float("inf"):
                    nodes.append(Node(s, p, bound, slowest, limit))
        return nodes

    def numbers(self, micro_batch_size: int) -> Numbers:
        if micro_batch_size not in self._numbers:
            self._numbers[micro_batch_size] = Numbers(self.problem, self.mixes, self.packing, micro_batch_size)
        return self._numbers[micro_batch_size]

    def sync(self, setting: int) -> Synchronisation:
        if setting not in self._syncs:
            self._syncs[setting] = Synchronisation(self.problem, self.mixes, self.problem.settings[setting])
        return self._syncs[setting]

    def composer(self, setting: int) -> Composer:
        if setting not in self._composers:
            d = self.problem.settings[setting].data_parallel
            self._composers[setting] = Composer(self.packing, self.mixes, d, 0 if self.sync(setting).grows else 1)
        return self._composers[setting]

    def shape(self, node: Node) -> Shape:
        setting = self.problem.settings[node.setting]
        numbers = self.numbers(setting.micro_batch_size)
        return Shape(self.problem, numbers, self.sync(node.setting), self.packing, setting, node.num_stages)

    def outdone(self, node: Node) -> bool:
        """Whether fewer replicas give the same micro-batches and never a slower synchronisation.

        Every plan of this shape then has one in the other shape that takes no longer: leave out replicas, but one of
        each kind in every stage.
        """
        mine = self.problem.settings[node.setting]
        for s in self._twins[mine.micro_batch_size, mine.num_micro_batches]:
            other = self.problem.settings[s]
            if (
                len(self.problem.chips) <= other.data_parallel < mine.data_parallel
                and all(
                    self.problem.in_flight(i, node.num_stages, other)
                    <= self.problem.in_flight(i, node.num_stages, mine)
                    for i in range(node.num_stages)
                )
                and self._no_slower(s, node.setting)
            ):
                return True
        return False

    def _no_slower(self, first: int, second: int) -> bool:
        import numpy as np

        a, b = np.triu_indices(self.problem.num_layers + 1, 1)
        return bool((self.sync(first).tables[:, a, b] <= self.sync(second).tables[:, a, b]).all())

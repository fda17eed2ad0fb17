"""The search over every setting, number of stages, split and mixture of replicas.

First plans come from narrow searches of the shapes with the least bounds and of their neighbours. Then the proof is
what is left: every shape whose bound is below what is still of interest is held against a few chip prices (shape.py),
then searched chain by chain (labels.py), the most promising first. While there is no plan, the target rises.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Literal

from planner.search.mixed_stages.labels import Chain, ChainSearch
from planner.search.mixed_stages.plan import MixedAnswer, MixedPlan, MixedReplica, MixedStage, step_time_s
from planner.search.mixed_stages.shape import Prices, Rest, Shape
from planner.search.mixed_stages.space import Node, Space
from planner.search.mixed_stages.tables import MixedProblem

__all__ = ["solve_mixed"]

_FEW = 4
"""Price vectors that a shape is held against first."""
_SLICES = 5
"""Parts of the range of max x that are ruled out one by one, from below, before a shape is searched."""
_FIRST_TRIES, _FIRST_EACH, _FIRST_REACH, _FIRST_LIMIT = 30, 2, 6.0, 30
"""First plans: shapes tried, of each micro-batch size and length; step time looked for over the bound; labels kept."""
_LIMIT, _LIMIT_GROWTH, _MOST_LABELS = 240, 8, 130_000
"""Labels kept after a stage: at first, the factor at each further search of the shape, and at most."""
_BLOCK, _PROMISING = 300, 40
"""Shapes that are assessed before the first of them are searched, and how many those are."""
_FIRST_STEP, _STEP_GROWTH = 1.1, 1.25
"""Target over the least bound while there is no plan; growth of the excess."""


def solve_mixed(
    problem: MixedProblem,
    *,
    gap: float = 0.001,
    time_limit_s: float = 60.0,
    should_stop: Callable[[], bool] = lambda: False,
) -> MixedAnswer:
    """The plan with the least step time, to within `gap`, with a bound for the whole space.

    Equal inputs give equal answers whenever the gap, not the clock, ended the run.
    """
    if not problem.replica_kinds:
        return MixedAnswer("infeasible", None, float("inf"), float("inf"), 0, 0)
    return _Driver(problem, gap, time_limit_s, should_stop).run()


class _Driver:
    def __init__(self, problem: MixedProblem, gap: float, time_limit_s: float, should_stop: Callable[[], bool]) -> None:
        self.problem, self.gap = problem, gap
        self.ends_at = time.perf_counter() + time_limit_s
        self.should_stop = should_stop
        self.space = Space(problem)
        self.best: tuple[int, Chain] | None = None
        self.objective = float("inf")
        self.searches = 0

    @property
    def goal(self) -> float:
        """Seconds: only plans below this are still of interest."""
        return self.objective * (1 - self.gap) if self.best else float("inf")

    def _up(self) -> bool:
        return time.perf_counter() > self.ends_at or self.should_stop()

    def run(self) -> MixedAnswer:
        nodes = self.space.nodes(_LIMIT)
        num_shapes = len(nodes)
        self._first_plans(nodes)
        self._improve(nodes)
        target, step = 0.0, _FIRST_STEP
        while True:
            stop = self._stop(nodes)
            if stop is not None:
                break
            target = max(target, min(n.bound for n in nodes)) * step
            step = 1 + (step - 1) * _STEP_GROWTH
            self._pass(nodes, self.goal if self.best else target)
            nodes = [n for n in nodes if n.bound < float("inf")]
        bound = min([self.goal, *(n.bound for n in nodes)])
        return self._answer(stop, bound, num_shapes)

    def _stop(self, nodes: list[Node]) -> Literal["gap", "infeasible", "time", "work"] | None:
        """Why the search ends here; None while it goes on."""
        still_open = [n for n in nodes if n.bound < self.goal]
        if not still_open:
            return "gap" if self.best else "infeasible"
        if self._up():
            return "time"
        return "work" if all(n.limit > _MOST_LABELS for n in still_open) else None

    def _first_plans(self, nodes: list[Node]) -> None:
        """Narrow searches of the shapes with the least bounds, few of each (micro-batch size, number of stages)."""
        taken: dict[tuple[int, int], int] = {}
        tried = 0
        for node in sorted(nodes, key=_in_order):
            key = (self.problem.settings[node.setting].micro_batch_size, node.num_stages)
            if tried == _FIRST_TRIES or node.bound >= self.goal or self._up():
                break
            if taken.get(key, 0) == _FIRST_EACH:
                continue
            taken[key] = taken.get(key, 0) + 1
            tried += 1
            self._open(node)
            self._search(node, min(self.goal, _FIRST_REACH * node.bound), _FIRST_LIMIT)

    def _improve(self, nodes: list[Node]) -> None:
        """Searches around the best plan, as long as one of the settings and lengths next to it is better."""
        settings = self.problem.settings
        sizes = sorted({setting.micro_batch_size for setting in settings})
        index = {
            (settings[n.setting].micro_batch_size, settings[n.setting].data_parallel, n.num_stages): n for n in nodes
        }
        tried: set[tuple[int, int, int]] = set()
        before = float("inf")
        while self.best is not None and self.objective < before:
            before, setting, p = self.objective, settings[self.best[0]], len(self.best[1].ends)
            for key in _neighbours(sizes, setting.micro_batch_size, setting.data_parallel, p):
                if key not in index or key in tried or self._up():
                    continue
                tried.add(key)
                self._open(index[key])
                self._search(index[key], self.goal, _LIMIT)

    def _pass(self, nodes: list[Node], target: float) -> None:
        """Raise the bound of every node below the target to it, or to what stays open of the node."""
        order = sorted((n for n in nodes if n.limit <= _MOST_LABELS), key=_in_order)
        for block in (order[:_BLOCK], order[_BLOCK:]):
            for node in self._below(block, target):
                self._assess(node, min(target, self.goal))
            promising = sorted(self._below(block, target), key=lambda n: (n.estimate, *_in_order(n)))
            for node in self._below(promising[:_PROMISING], target):
                self._search(node, min(target, self.goal), node.limit)
        for node in self._below(sorted(order, key=_in_order), target):
            self._search(node, min(target, self.goal), node.limit)

    def _below(self, nodes: list[Node], target: float) -> Iterable[Node]:
        """Those that are still below the target when their turn comes, until the time is up."""
        for node in nodes:
            if self._up():
                return
            if node.bound < min(target, self.goal):
                yield node

    def _open(self, node: Node) -> Shape | None:
        """The node's shape, its bounds taken; None when it is out of the question."""
        if node.opened:
            return self.space.shape(node)
        node.opened = True
        if self.space.outdone(node):
            node.bound = float("inf")
            return None
        shape = self.space.shape(node)
        ends = shape.low_sync + shape.low_update
        node.slowest = max(node.slowest, shape.low_slowest)
        node.bound = max(node.bound + ends, shape.rounds * node.slowest + shape.low_sum + ends)
        return shape

    def _assess(self, node: Node, target: float) -> None:
        """Hold the node against a few chip prices: its bound becomes the target, or its estimate says where to look."""
        shape = self._open(node)
        if shape is not None and node.bound < target and self._least_slowest(shape, node, target, 1) is None:
            node.bound = self._refuted(shape, target)

    def _refuted(self, shape: Shape, target: float) -> float:
        """The bound of a shape without plans below the target."""
        return float("inf") if target > shape.high else target

    def _least_slowest(self, shape: Shape, node: Node, target: float, slices: int) -> float | None:
        """A lower bound of max x for plans below the target; None when a few chip prices allow no plan.

        From below, slice after slice of max x is ruled out, as long as that succeeds: a slice's upper end limits every
        stage, its lower end leaves the least for the sum of x.
        """
        high = shape.highest_slowest(target)
        low = max(node.slowest, node.tight[1] if target <= node.tight[0] else 0.0)
        prices = self.space.prices.few(_FEW)
        width = (high - low) / slices
        while low <= high:
            upto = min(low + width, high) if width > 1e-9 * high else high
            rest = _rest(shape, prices, low, upto, target)
            if rest is not None:
                node.tight = (target, low)
                node.estimate = rest.least_step(low)
                node.bound = max(node.bound, min(node.estimate, target))
                return low
            if upto == high:
                break
            low = upto
        return None

    def _search(self, node: Node, target: float, limit: int) -> None:
        """Raise the node's bound to the target, or as far as a search with `limit` labels a stage gets."""
        if node.bound >= target:
            return
        shape = self.space.shape(node)
        low, rest = self._least_slowest(shape, node, target, 1), None
        if low is not None:
            low = self._least_slowest(shape, node, target, _SLICES)
        if low is not None:
            rest = _rest(shape, self.space.prices, low, shape.highest_slowest(target), target)
        if low is None or rest is None:
            node.bound = self._refuted(shape, target)
            return
        self.searches += 1
        composer = self.space.composer(node.setting)
        answer = ChainSearch(shape, rest, composer, target, low, self._up).run(limit)
        found = answer.chain.step_time_s if answer.chain else float("inf")
        if answer.chain and found < self.objective:
            self.best, self.objective = (node.setting, answer.chain), found
        if answer.open_low < target:
            node.bound = max(node.bound, min(answer.open_low, found))
            node.limit = max(node.limit, limit * _LIMIT_GROWTH)
        else:
            node.bound = max(node.bound, min(found, self._refuted(shape, target)))

    def _answer(self, stop: Literal["gap", "infeasible", "time", "work"], bound: float, shapes: int) -> MixedAnswer:
        if self.best is None:
            return MixedAnswer(stop, None, float("inf"), bound, shapes, self.searches)
        setting, chain = self.best
        plan = self._plan(setting, chain)
        objective = step_time_s(self.problem, plan)
        assert objective <= chain.step_time_s * (1 + 1e-9), "the search and the formula disagree"
        return MixedAnswer(stop, plan, objective, min(bound, objective), shapes, self.searches)

    def _plan(self, setting: int, chain: Chain) -> MixedPlan:
        nodes = self.space.packing.assign(sum(chain.counts[1:], chain.counts[0]))
        assert nodes is not None, "the composer counts only what fits the nodes"
        stages = []
        for i, counts in enumerate(chain.counts):
            replicas = []
            for k, kind in enumerate(self.problem.replica_kinds):
                for _ in range(int(counts[k])):
                    replicas.append(MixedReplica(kind.chip, kind.degree, nodes[k].pop(0)))
            stages.append(MixedStage(chain.ends[i - 1] if i else 0, chain.ends[i], tuple(replicas)))
        return MixedPlan(self.problem.settings[setting], tuple(stages))


def _rest(shape: Shape, prices: Prices, low: float, slowest: float, target: float) -> Rest | None:
    """What rests of chains cost below the target, max x from `low` to `slowest`; None when the prices allow no plan."""
    longest = target - shape.low_update - shape.rounds * low - shape.low_sum
    budget = target - shape.rounds * low - shape.low_sync - shape.low_update
    if longest < shape.low_sync or slowest < low:
        return None
    rest = Rest(shape, prices, slowest, longest, budget)
    refuting = rest.refuting(budget)
    prices.count(refuting)
    return None if refuting.any() else rest


def _neighbours(sizes: list[int], mbs: int, dp: int, stages: int) -> list[tuple[int, int, int]]:
    """(Micro-batch size, data parallel degree, stages) near one: other degrees, lengths, and sizes at equal batches."""
    at = sizes.index(mbs)
    others = sizes[max(0, at - 1) : at] + sizes[at + 1 : at + 2]
    near = [(mbs, dp + i, stages + j) for j in (0, 1, -1) for i in (0, -1, 1, -2, 2, -4, 4)]
    return near + [(m, wide, stages + j) for m in others for wide in (dp * mbs // m, dp) for j in (0, 1, -1)]


def _in_order(node: Node) -> tuple[float, int, int]:
    return node.bound, node.setting, node.num_stages

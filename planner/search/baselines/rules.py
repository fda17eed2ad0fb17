"""The plans that people make without a search: rules that fix the split of the layers and the order of the groups.

A rule says nothing about degrees, micro-batches and replicas. All of these are tried and the fastest plan that fits is
the baseline, each stage with as much recompute as it needs: a rule of thumb at its best, not a straw man.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.recurrence import ChainTimes
from planner.cost.rows import window_rows
from planner.search.candidates import Limits, Root, make_roots
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf, Split
from planner.search.splitting import choose_policies

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.cost.tables import Mode
    from planner.search.tree import Order
    from planner.spec import Cluster

    Policies = tuple[tuple[int, ...], ...]

__all__ = ["RULES", "Rule", "RuleSearch", "Shape", "share_out", "stage_ends"]

_MOST_DEGREES = 1024
"""Combinations of modes for one micro-batch size and number of replicas, above which only equal ones
are tried.
"""
_AT_LEAST = 16
"""So many choices are looked at even when the time was over before."""
_AROUND = ("embedding", "norm", "head")
"""Layers that a rule does not count: they go with their neighbours. In a stack of two, with its name in front."""


@dataclass(frozen=True)
class Rule:
    """by_flops: layers in proportion to a stage's peak FLOP/s, else the same number on each.  by_memory: node groups
    with the most memory a chip first, else in the order of the cluster file.
    """

    code: str
    title: str
    sentence: str
    by_flops: bool
    by_memory: bool

    def order(self, cluster: Cluster, groups: Sequence[int]) -> list[int]:
        """Node groups along the pipeline."""

        def memory(group: int) -> int:
            chip = cluster.chip_of(group)
            size = chip.reported_memory_bytes or chip.memory_bytes or 0
            return size - cluster.node_groups[group].reserve_bytes

        return sorted(groups, key=lambda g: -memory(g)) if self.by_memory else list(groups)


RULES: tuple[Rule, ...] = (
    Rule("even", "even split", "every stage has the same number of layers; groups as in the file", False, False),
    Rule("flops", "split by FLOPs", "layers by the peak FLOP/s of a stage; groups as in the file", True, False),
    Rule("memory", "largest memory first", "layers by peak FLOP/s; the largest memory stands first", True, True),
)


class Shape(NamedTuple):
    """What a rule and its open choices decide.  missing_bytes: what the worst stage misses on one chip; 0: fits."""

    leaf: Leaf
    split: Split
    missing_bytes: float
    worst_stage: int


def share_out(layers: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers that sum to `layers`, as near to the weights' proportion as they come, at least one each.

    Largest remainders first; of equal ones the earliest.
    """
    assert layers >= len(weights)
    total = sum(weights)
    ideal = [layers * weight / total for weight in weights]
    counts = [max(1, int(share)) for share in ideal]
    behind = sorted(range(len(counts)), key=lambda i: (counts[i] - ideal[i], i))
    for i in behind[: max(0, layers - sum(counts))]:
        counts[i] += 1
    while sum(counts) > layers:  # some had to be raised to one
        able = [i for i in range(len(counts)) if counts[i] > 1]
        counts[max(able, key=lambda i: (counts[i] - ideal[i], i))] -= 1
    return counts


def counted_layers(names: Sequence[str]) -> list[int]:
    """Positions of the layers that rules count: all but embedding, norm and head (all, if there are no others)."""
    counted = [i for i, name in enumerate(names) if name.rpartition(".")[2] not in _AROUND]
    return counted or list(range(len(names)))


def stage_ends(counted: Sequence[int], num_layers: int, shares: Sequence[int]) -> tuple[int, ...]:
    """Chain position after each stage's last layer: a stage ends where the next one's first counted layer begins."""
    ends, done = [], 0
    for share in shares[:-1]:
        done += share
        ends.append(counted[done])
    return (*ends, num_layers)


class RuleSearch:
    """All choices that a rule leaves open, the promising ones first."""

    def __init__(self, rule: Rule, cluster: Cluster, cost: CostModel) -> None:
        self.rule, self.cost = rule, cost
        self.intervals = Intervals(cost.chain)
        self.roots = make_roots(cost, self.intervals, Limits())
        self.counted = counted_layers(cost.chain.names)
        able = [g for g, group in enumerate(cost.groups) if group.tensor_degrees]
        self.order = rule.order(cluster, able)
        self.tried, self.all_tried = 0, True
        self._policies: dict[tuple[object, ...], tuple[Policies, float]] = {}

    def unknown_peak(self) -> str | None:
        """A chip whose peak a split by FLOPs would need, and nobody knows."""
        if not self.rule.by_flops:
            return None
        missing = [self.cost.groups[g].chip for g in self.order if not self.cost.peak_flops_per_s(g)]
        return missing[0] if missing else None

    def best(self, deadline: float, should_stop: Callable[[], bool]) -> Shape | None:
        """The fastest shape that fits; if none does, the one whose worst stage misses least. None: the rule has no
        choice at all (fewer layers than stages, a group without room for a stage).
        """
        fastest, nearest, best_time = None, None, float("inf")
        choices = sorted(self._choices(deadline, should_stop), key=lambda c: c[0])
        for number, (bound, root, order, ends) in enumerate(choices):
            if bound >= best_time:
                break
            if should_stop() or (number >= _AT_LEAST and time.monotonic() > deadline):
                self.all_tried = False
                break
            leaf = Leaf(root, order)
            shape = self._shape(leaf, ends)
            if shape.missing_bytes > 0:
                nearest = min(nearest or shape, shape, key=lambda s: s.missing_bytes)
            elif self._row_bound(shape) < best_time:
                step = leaf.step_time(shape.split)
                if step < best_time:
                    fastest, best_time = shape, step
        return fastest or nearest

    def _choices(
        self, deadline: float, should_stop: Callable[[], bool]
    ) -> Iterator[tuple[float, Root, Order, tuple[int, ...]]]:
        """Every choice with its stage ends, and what its step takes at least if memory were no matter."""
        for root in self.roots:
            for order in self._orders(root):
                if should_stop() or time.monotonic() > deadline:
                    self.all_tried = False
                    return
                if sum(stages for _, _, stages in order) > len(self.counted):
                    continue
                self.tried += 1
                weights = [self._weight(group, mode) for group, mode, stages in order for _ in range(stages)]
                ends = stage_ends(self.counted, self.intervals.num_layers, share_out(len(self.counted), weights))
                yield self._least_time(root, order, ends), root, order, ends

    def _orders(self, root: Root) -> Iterator[Order]:
        """Every mode of every group, as many stages as its chips hold."""
        modes = [root.modes(g) for g in self.order]
        combinations = 1
        for choices in modes:
            combinations *= len(choices)
        if combinations > _MOST_DEGREES:
            self.all_tried = False
            common = sorted(set(modes[0]).intersection(*modes))
            chosen: Iterator[tuple[Mode, ...]] = ((mode,) * len(modes) for mode in common)
        else:
            chosen = product(*modes)
        for own in chosen:
            yield tuple((g, mode, root.max_stages(g, mode)) for g, mode in zip(self.order, own, strict=True))

    def _weight(self, group: int, mode: Mode) -> float:
        if not self.rule.by_flops:
            return 1.0
        return (self.cost.peak_flops_per_s(group) or 0.0) * mode.chips

    def _least_time(self, root: Root, order: Order, ends: tuple[int, ...]) -> float:
        """The way in to a stage, all its micro-batches, the way out; nothing recomputed:

        for all stages s:   T >= sum_{j<s} t_j + m t_s      (seconds)
        """
        import numpy as np

        tables = root if len(ends) > 1 else root.single_stage()
        options = [tables.options(group, mode) for group, mode, _ in order]
        seconds = np.array([o.layer_time for o in options if o is not None])
        prefix = self.intervals.prefix
        held = prefix[list(ends)] - prefix[[0, *ends[:-1]]]
        times = (held * np.repeat(seconds, [stages for _, _, stages in order], axis=0)).sum(axis=1)
        return float((np.cumsum(times) - times + root.micro_batches * times).max())

    def _row_bound(self, shape: Shape) -> float:
        """The same with transfers, recompute and round trips: the rows of single stages (cost/rows.py)."""
        leaf = shape.leaf
        times: ChainTimes = leaf.chain_times(shape.split)
        return max(
            row.length(times)
            for s in range(leaf.num_stages)
            for row in window_rows(leaf.micro_batches, leaf.in_flight, s, s)
        )

    def _shape(self, leaf: Leaf, ends: tuple[int, ...]) -> Shape:
        """The stages with the recompute that they need, or with the least memory where even that is too much."""
        policies, missing = [], []
        for s, received in enumerate(leaf.received(ends)):
            first = ends[s - 1] if s else 0
            counts = tuple(int(n) for n in self.intervals.prefix[ends[s]] - self.intervals.prefix[first])
            stage = leaf.stages[s]
            key = (id(leaf.root_for_tables), stage.group, stage.mode, leaf.in_flight[s], counts, received)
            if key not in self._policies:
                self._policies[key] = self._stage(leaf, s, counts, received)
            policies.append(self._policies[key][0])
            missing.append(self._policies[key][1])
        worst = max(range(len(missing)), key=lambda s: missing[s])
        return Shape(leaf, Split(ends, tuple(policies)), max(0.0, missing[worst]), worst)

    def _stage(self, leaf: Leaf, s: int, counts: tuple[int, ...], received: float) -> tuple[Policies, float]:
        import numpy as np

        chosen = choose_policies(leaf, s, counts, received)
        if chosen is not None:
            return chosen, 0.0
        table = leaf.table(s)
        held = table.saved_bytes * leaf.in_flight[s] + table.transient_bytes
        if table.offload is not None:
            held = np.where(table.offload.host_bytes > 0, np.inf, held)
        frugal = held.argmin(axis=0)
        number = table.recompute_s.shape[0]
        least = tuple(tuple(n if q == frugal[k] else 0 for q in range(number)) for k, n in enumerate(counts))
        missing = leaf.peak_bytes(s, least, received) - table.usable_bytes
        return least, missing if leaf.fits_off_chip(s, least) else max(missing, 1.0)

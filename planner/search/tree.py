"""The tree below a root: branching on modes, boxes of stage counts and orders; what survives a step time T."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from planner.cost.tables import Mode
from planner.search.bounds import Refuter
from planner.search.candidates import IDLE, OPEN, Node, Root

__all__ = ["Order", "Target", "single_stage_orders", "surviving_nodes", "surviving_orders"]

Order = tuple[tuple[int, Mode, int], ...]
"""(group, mode, number of stages) along the pipeline."""

_BATCH = 256
_BOX_PIECES = 4


@dataclass(frozen=True)
class Target:
    """The objective to beat. With prices the objective is price per second x step time, else the step time alone."""

    objective: float
    price_per_chip_s: tuple[float, ...] | None = None
    """Currency per second of one chip of each group; None: the objective is the step time."""

    def weight(self, root: Root, modes: tuple[Mode, ...], stages: tuple[int, ...]) -> float:
        """Objective per second of step time, at least, with this many stages of each group."""
        if self.price_per_chip_s is None:
            return 1.0
        chips_per_stage = root.setting.data_parallel * root.setting.context_parallel
        return sum(
            p * max(mode.chips, 0) * chips_per_stage * n
            for p, mode, n in zip(self.price_per_chip_s, modes, stages, strict=True)
        )

    def step_limit(self, root: Root, node: Node) -> float:
        """Largest step time with which the node can still reach the objective."""
        weight = self.weight(root, node.modes, node.low)
        return self.objective / weight if weight > 0 else 1e30


def _expand(root: Root, node: Node) -> Iterator[Node]:
    """Children of a node: the next open group's modes (or idle), or the widest box in pieces."""
    if OPEN in node.modes:
        g = node.modes.index(OPEN)
        for mode in root.modes(g):
            most = root.max_stages(g, mode)
            least = root.limits.stages.get(g, 1)
            yield _set(node, g, mode, least, most)
        if g not in root.limits.use and g not in root.limits.stages:
            yield _set(node, g, IDLE, 0, 0)
        return
    g = max(range(len(node.low)), key=lambda i: (node.high[i] - node.low[i], -i))
    low, width = node.low[g], node.high[g] - node.low[g] + 1
    pieces = min(_BOX_PIECES, width)
    for i in range(pieces):
        first, end = low + width * i // pieces, low + width * (i + 1) // pieces
        yield _set(node, g, node.modes[g], first, end - 1)


def _set(node: Node, g: int, mode: Mode, low: int, high: int) -> Node:
    def put(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:g], value, *values[g + 1 :])

    return Node((*node.modes[:g], mode, *node.modes[g + 1 :]), put(node.low, low), put(node.high, high))


def _possible(root: Root, node: Node) -> bool:
    """Counts that can be a pipeline of two or more stages, none empty."""
    most, least = sum(node.high), sum(node.low)
    if most < 2 or least > root.intervals.num_layers:
        return False
    total = root.limits.total_stages
    if total is not None and not least <= total <= most:
        return False
    pinned = root.limits.layers_per_stage
    return pinned is None or least <= len(pinned) <= most


def surviving_nodes(
    root: Root, refuter: Refuter, target: Callable[[], Target], should_stop: Callable[[], bool]
) -> Iterator[list[Node] | None]:
    """Batches of fixed nodes that the target does not refute, most spare capacity first; None as the last item if
    stopped early.

    The target may fall while the iteration runs.
    """
    start = root.start()
    if start is None:
        return
    open_nodes: list[tuple[float, Node]] = [(0.0, start)]
    while open_nodes:
        if should_stop():
            yield None
            return
        batch = [node for _, node in open_nodes[-_BATCH:]]
        del open_nodes[-_BATCH:]
        children = [c for node in batch for c in ([node] if node.fixed else _expand(root, node)) if _possible(root, c)]
        if not children:
            continue
        goal = target()
        dead, spare = refuter.refuted(children, [goal.step_limit(root, c) for c in children])
        alive = sorted(
            ((float(s), c) for c, s, d in zip(children, spare, dead, strict=True) if not d),
            key=lambda x: (x[0], x[1].modes, x[1].high),
        )
        fixed = [c for _, c in reversed(alive) if c.fixed]
        open_nodes.extend(x for x in alive if not x[1].fixed)
        if fixed:
            yield fixed


def surviving_orders(
    root: Root, refuter: Refuter, node: Node, step_limit: Callable[[], float], should_stop: Callable[[], bool]
) -> Iterator[tuple[int, ...]]:
    """Orders of a fixed node's groups that `step_limit` (which may fall meanwhile) does not refute, built from the
    pipeline's end.

    Groups with little memory are tried at the end first, where few micro-batches are in flight. Ends early when
    `should_stop` says so: ask it again afterwards.
    """
    active = node.active
    whole = _only_order(root, active)
    ends: list[tuple[int, ...]] = [()] if whole is None else [whole]
    if whole is not None and len(whole) < len(active):
        return
    by_memory = sorted(active, key=lambda g: (_usable(root, g, node.modes[g]), g), reverse=True)
    while ends and not should_stop():
        end = ends.pop()
        children = [end] if len(end) == len(active) else [(g, *end) for g in by_memory if g not in end]
        dead = refuter.refuted_ends(node, children, step_limit())
        for child, refuted in zip(children, dead, strict=True):
            if refuted:
                continue
            if len(child) < len(active):
                ends.append(child)
            else:
                yield child


def _usable(root: Root, group: int, mode: Mode) -> float:
    options = root.options(group, mode)
    return options.table.usable_bytes if options is not None else 0.0


def _only_order(root: Root, active: list[int]) -> tuple[int, ...] | None:
    """The order that the limits leave, if they leave just one."""
    if root.limits.order is not None:
        return tuple(g for g in root.limits.order if g in active)
    return tuple(active) if root.limits.fixed_order else None


def single_stage_orders(root: Root) -> list[Order]:
    """Pipelines of one stage, which have tables of their own."""
    limits = root.limits
    if limits.total_stages not in (None, 1) or any(n > 1 for n in limits.stages.values()):
        return []
    if limits.layers_per_stage is not None and len(limits.layers_per_stage) != 1:
        return []
    single = root.single_stage()
    needed = limits.use | frozenset(limits.stages)
    return [((g, mode, 1),) for g in range(len(root.groups)) if not needed - {g} for mode in single.modes(g)]

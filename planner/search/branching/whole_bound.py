"""What no pipeline over contiguous sets of a branching graph can beat: bounds of roots and of shapes.

With k micro-batches in flight, t = F + B and Z the longest way of one micro-batch through stage s and back, whatever
feeds what: before the last forward stage s has m forwards and m - k backwards to do, and the last backward waits for
what lies behind that forward; the first backward likewise. So

    T >= m t + u,     T >= Z + (m - k) t + (k - 1) max(F, B)

Z is at least the longest path of the graph through any layer of the stage, at the layers' fastest chips (`least_way`).
Recompute and transfers are left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.search.candidates import Root
from planner.search.highs import solve_program
from planner.search.quick_bounds import memory_suffices, single_stage_bound
from planner.search.tree import Order
from planner.search.ways import ways_through

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode

    Floats = NDArray[np.float64]

__all__ = ["Ways", "cost_bound", "quick_bound", "rate_bound", "shape_bound", "ways_of"]

_TOLERANCE = 1e-7
_HALVINGS = 16


@dataclass(frozen=True)
class Ways:
    """Seconds of one micro-batch there and back on the fastest chips.

    least: of the longest path through a layer, for the layer where that is shortest.  longest: of the longest path.
    """

    least: float
    longest: float


def ways_of(root: Root) -> Ways:
    """Longest paths of the graph, at every layer's fastest chip; 0 where nothing can be placed."""
    tables = [root.options(g, t) for g in range(len(root.groups)) for t in root.modes(g)]
    if not tables:
        return Ways(0.0, 0.0)
    kinds = range(root.intervals.prefix.shape[1])
    fastest = [min(float(o.layer_time[kind]) for o in tables if o is not None) for kind in kinds]
    return Ways(*ways_through(root.intervals.chain, fastest))


def _chips(root: Root, mode: Mode) -> int:
    return mode.chips * root.setting.data_parallel * root.setting.context_parallel


def _full_share(root: Root, backward_share: float, most: int) -> float:
    """Times of a stage beside its way, at least:  (m - k) + (k - 1) beta  for the largest k there can be."""
    m, k = root.micro_batches, root.stages_in_flight(max(1, most))
    return (m - k) + (k - 1) * backward_share


def quick_bound(root: Root) -> float:
    """All chips share the work without loss, each at its best layers; single stages on their own.

    T >= sum_k n_k w_k / sum_g (chips_g / least seconds x chips per work of g)
    """
    if not memory_suffices(root):
        return single_stage_bound(root)
    rate = 0.0
    for g, group in enumerate(root.groups):
        least = math.inf
        for t in root.modes(g):
            options = root.options(g, t)
            assert options is not None
            seconds = root.micro_batches * options.layer_time * _chips(root, t)
            least = min(least, float((seconds / root.work(g, t)).min()))
        if least < math.inf:
            rate += group.nodes * group.chips_per_node / max(least, 1e-300)
    if rate <= 0:
        return single_stage_bound(root)
    return min(max(root.total_work() / rate, ways_of(root).longest), single_stage_bound(root)) * (1 - _TOLERANCE)


def rate_bound(root: Root, time_limit_s: float) -> float:
    """The same with layers of every kind shared out as it is best, by a linear program.

    x[g, t, k] >= 0 layers of kind k on group g in mode t;  minimise T:   (chip-seconds)
    for all kinds k:     sum_{g,t} x[g, t, k] = n_k
    for all groups g:    sum_{t,k} chips_t (m t_k + u_k) x[g, t, k] <= chips_g T
                         sum_{t,k} chips_t ((m - K) + (K - 1) beta) t_k x[g, t, k] <= chips_g (T - least way)
    """
    import pulp

    ways, counts = ways_of(root), [int(n) for n in root.intervals.prefix[-1]]
    lowest = quick_bound(root)
    if lowest == math.inf or lowest <= 0:
        return lowest
    lp = pulp.LpProblem("rate", pulp.LpMinimize)
    step = lp.add_variable("step", 0)
    lp += step
    shares: dict[int, list[object]] = {k: [] for k, n in enumerate(counts) if n}
    for g, group in enumerate(root.groups):
        busy, full = [], []
        chips = group.nodes * group.chips_per_node
        for number, t in enumerate(root.modes(g)):
            options = root.options(g, t)
            assert options is not None
            update = options.table.reduction_s + options.table.optimizer_s
            share = _full_share(root, options.backward_share, root.most_stages)
            for k in shares:
                x = lp.add_variable(f"share__g{g}__t{number}__k{k}", 0)
                shares[k].append(x)
                part = _chips(root, t) / chips / lowest
                seconds = float(options.layer_time[k])
                busy.append(part * (root.micro_batches * seconds + float(update[k])) * x)
                full.append(part * share * seconds * x)
        if busy:
            lp += pulp.lpSum(busy) <= step, f"busy__g{g}"
            lp += pulp.lpSum(full) + ways.least / lowest <= step, f"full__g{g}"
    for k, held in shares.items():
        lp += pulp.lpSum(held) == counts[k], f"all__k{k}"
    answer = solve_program(lp, time_limit_s=time_limit_s)
    if answer.stop != "optimal":
        return lowest
    return max(lowest, min(answer.objective * lowest * (1 - _TOLERANCE), single_stage_bound(root)))


def cost_bound(root: Root, price_per_chip_s: Sequence[float]) -> float:
    """Price per second x step time: every layer where it is cheapest, on chips that work all the time."""
    total = math.inf
    for base in (root, root.single_stage()):
        cheapest = [math.inf] * base.intervals.prefix.shape[1]
        for g in range(len(base.groups)):
            for t in base.modes(g):
                options = base.options(g, t)
                assert options is not None
                for k, seconds in enumerate(options.layer_time):
                    price = price_per_chip_s[g] * _chips(base, t) * base.micro_batches * float(seconds)
                    cheapest[k] = min(cheapest[k], price)
        counts = base.intervals.prefix[-1]
        if all(price < math.inf for price, n in zip(cheapest, counts, strict=True) if n):
            total = min(total, sum(price * int(n) for price, n in zip(cheapest, counts, strict=True) if n))
    return total if total == math.inf else total * (1 - _TOLERANCE)


def shape_bound(root: Root, order: Order, ways: Ways) -> float:
    """The least T at which the stages of a shape can hold all work, each at its best layers.

    for all stages s:   w_s <= min((T - u) / m, (T - least way) / ((m - k_s) + (k_s - 1) beta)) / least seconds per work
    """
    stages = [(g, t) for g, t, n in order for _ in range(n)]
    rates = []
    for s, (g, t) in enumerate(stages):
        options = root.options(g, t)
        assert options is not None
        per_work = float((options.layer_time / root.work(g, t)).min())
        share = _full_share(root, options.backward_share, len(stages) - s)
        rates.append((per_work, options.table.fixed_update_s, share))

    def held(step: float) -> float:
        total = 0.0
        for per_work, update, share in rates:
            busy = (step - update) / root.micro_batches
            full = (step - ways.least) / share if share > 0 else math.inf
            total += max(0.0, min(busy, full)) / max(per_work, 1e-300)
        return total

    work, low, high = root.total_work(), ways.longest, max(ways.longest, 1e-12)
    if held(low) >= work:
        return low * (1 - _TOLERANCE)
    while held(high) < work:
        high *= 2
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if held(middle) >= work else (middle, high)
    return low * (1 - _TOLERANCE)

"""Bounds of a root that cost next to nothing: no tree, no floors, one look at each chip and mode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.search.candidates import Root

if TYPE_CHECKING:
    from collections.abc import Container

    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Mode

    Floats = NDArray[np.float64]

__all__ = ["least_cost", "memory_suffices", "rate_bound", "single_stage_bound"]


def rate_bound(root: Root) -> float:
    """A quick lower bound: all stages of every group in their best mode share the work without loss.

    With K the most stages, w the chain's work, r_g the least seconds per work:  sum_g P_g / r_g  is the pool's
    rate, and
    T >= m w / rate,   T >= w min_g r_g + ((m - k) + (k - 1) / 2) w / rate  with k = the in-flight count at distance
    K.
    """
    if not memory_suffices(root):
        return float("inf")
    rate, most, fastest = 0.0, 0, float("inf")
    for g in range(len(root.groups)):
        best, stages = 0.0, 0
        for mode in root.modes(g):
            options = root.options(g, mode)
            assert options is not None
            per_work = options.least_time_per_work
            best = max(best, root.max_stages(g, mode) / max(per_work, 1e-300))
            stages = max(stages, root.max_stages(g, mode))
            fastest = min(fastest, per_work)
        rate, most = rate + best, most + stages
    if rate <= 0:
        return float("inf")
    m, k = root.micro_batches, root.stages_in_flight(max(1, most))
    share = root.total_work() / rate
    return max(m * share, root.total_work() * fastest + ((m - k) + (k - 1) / 2) * share)


def single_stage_bound(root: Root, among: Container[tuple[int, Mode]] | None = None) -> float:
    """A lower bound of the step time of pipelines of one stage; inf when the chain fits no stage.

    among: the (group, mode) that count; None: all.
    """
    single = root.single_stage()
    whole = root.intervals.index[0, root.intervals.num_layers]
    least = float("inf")
    for g in range(len(root.groups)):
        for mode in single.modes(g):
            if among is not None and (g, mode) not in among:
                continue
            options = single.options(g, mode)
            assert options is not None
            k = root.stages_in_flight(1)
            least = min(least, float(root.micro_batches * options.times(k)[whole] + options.update[whole]))
    return least


def least_cost(root: Root, price_per_chip_s: tuple[float, ...]) -> float:
    """A lower bound of price per second x step time: every unit of work on the chips where it is cheapest.

    Stages cost price x chips x T >= price x chips x m t_s; the chain's work times the least price per work bounds
    the sum.
    """
    cheapest = float("inf")
    for base in (root, root.single_stage()):
        for g in range(len(root.groups)):
            for mode in base.modes(g):
                options = base.options(g, mode)
                assert options is not None
                chips = mode.chips * root.setting.data_parallel * root.setting.context_parallel
                cost = price_per_chip_s[g] * chips * root.micro_batches * options.least_time_per_work
                cheapest = min(cheapest, cost * base.total_work())
    return 0.0 if cheapest == float("inf") else cheapest


def memory_suffices(root: Root) -> bool:
    """Whether all chips together hold the weights, gradients and optimizer states, at their smallest, of one replica.

    A stage of t chips needs t x static bytes; the chips of a group are max_stages stages' worth.
    """
    import numpy as np

    needed: Floats | None = None
    held = 0.0
    for g in range(len(root.groups)):
        largest = 0.0
        for mode in root.modes(g):
            options = root.options(g, mode)
            assert options is not None
            static = mode.tensor * options.table.static_bytes
            needed = static if needed is None else np.minimum(needed, static)
            largest = max(largest, root.max_stages(g, mode) * mode.tensor * options.table.usable_bytes)
        held += largest
    return needed is None or float(root.intervals.prefix[-1] @ needed) <= held * (1 + 1e-9)

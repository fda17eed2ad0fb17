"""Free choice is not worse than what a restriction finds: all of its plans are in the free space too."""

from __future__ import annotations

import math
from functools import cache

import pytest

from planner.cost.model import CostModel
from planner.graph import build_graph
from planner.search.driver import search
from planner.search.mixed import driver
from planner.search.mixed.driver import Start, search_mixes
from planner.search.solve import SolveOptions, search_settings
from tests.search.uneven_pools import inputs, random_pool

SLOWER = 0.01
"""What free choice may lose, relatively, to a restriction: the search for mixes is not exhaustive."""


@cache
def best_step_time(seed: int, sizes: tuple[int, ...], tensor: int | None) -> float:
    """Seconds of a step of the best plan found, all work done. tensor: of every group; None: free."""
    cluster, model = inputs(random_pool(seed), "mixed")
    model = model.model_copy(update={"training": model.training.model_copy(update={"micro_batch_sizes": sizes})})
    if tensor is not None:
        degrees = {group.name: (tensor,) for group in cluster.node_groups}
        limits = model.constraints.model_copy(update={"tensor_parallel": degrees})
        model = model.model_copy(update={"constraints": limits})
    cost = CostModel(cluster, model, build_graph(model))
    settings = search_settings(cluster, model, cost, SolveOptions(time_limit_s=math.inf))
    found = search(cost, settings)
    start = Start(found.leaf, found.split, found.step_time)
    return search_mixes(cost, settings.limits, None, start, settings.gap, lambda: False).step_time


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "sizes", "tensor"), [(3, (2,), None), (3, (1, 2, 4), 1), (0, (1, 2, 4), 1)])
def test_free_choice_is_at_most_a_hundredth_slower_than_a_restriction(
    seed: int, sizes: tuple[int, ...], tensor: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver, "mix_bound", lambda *args: 0.0)  # not asked here
    free = best_step_time(seed, (1, 2, 4), None)
    assert free <= best_step_time(seed, sizes, tensor) * (1 + SLOWER)

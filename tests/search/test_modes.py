"""Node groups with several modes: the search equals exhaustive enumeration, and leaves out none that matters."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from planner.cost.model import CostModel
from planner.cost.tables import Mode
from planner.cost.tiers import Tier
from planner.graph import build_graph
from planner.search.candidates import Limits, Root
from planner.search.driver import SearchSettings, search
from planner.search.intervals import Intervals
from planner.spec import parse_cluster, parse_model
from tests.search.small_problems import TableProblem, best_by_enumeration, random_problem

TOLERANCE = 2e-6
"""`gap` 0 asks for the optimum to 1e-6."""


CHOICES: list[dict[str, Any]] = [
    {"zero_levels": (1, 3), "equal_modes": 0.3},
    {"offloads": (Tier.CHIP, Tier.HOST)},
    {"offloads": tuple(Tier)},
    {"offloads": (Tier.NVME,)},
    {"stage_replicas": (1, 2)},
    {"stage_replicas": (2,)},
]


@pytest.mark.parametrize("choices", CHOICES)
@pytest.mark.parametrize("first_seed", range(0, 24, 12))
def test_search_over_modes_equals_exhaustive_enumeration(first_seed: int, choices: dict[str, Any]) -> None:
    for seed in range(first_seed, first_seed + 12):
        problem = random_problem(seed, max_layers=5, **choices)
        prices = tuple(g.price for g in problem.groups) if seed % 5 == 4 else None
        best = best_by_enumeration(problem, prices)
        outcome = search(problem, SearchSettings(gap=0.0, time_limit_s=120, price_per_chip_s=prices))
        if math.isinf(best):
            assert (outcome.leaf, outcome.why_stopped) == (None, "exhausted")
            continue
        assert outcome.objective == pytest.approx(best, rel=TOLERANCE)
        assert outcome.objective >= best * (1 - 1e-9), "a plan that enumeration does not know"
        assert outcome.bound <= best * (1 + 1e-9), "the bound is above the optimum"


def test_where_host_memory_alone_is_short_stages_hold_what_their_share_allows() -> None:
    bound = 0
    for seed in range(16):
        tight = random_problem(seed, max_layers=5, offloads=(Tier.HOST,))
        free = replace(tight, tables={k: replace(t, usable_host_bytes=math.inf) for k, t in tight.tables.items()})
        best, wide = best_by_enumeration(tight), best_by_enumeration(free)
        outcome = search(tight, SearchSettings(gap=0.0, time_limit_s=60))
        assert outcome.objective == (best if math.isinf(best) else pytest.approx(best, rel=TOLERANCE))
        bound += best > wide * (1 + 1e-6)
    assert bound >= 3


def test_where_drives_or_their_buffers_alone_are_short_stages_hold_what_their_share_allows() -> None:
    by_drives = by_buffers = 0
    for seed in range(24):
        tight = random_problem(seed, max_layers=5, offloads=(Tier.NVME,))
        wide = replace(tight, tables={k: replace(t, usable_nvme_bytes=math.inf) for k, t in tight.tables.items()})
        bare = replace(tight, tables={k: replace(t, host_fixed_bytes=0.0) for k, t in tight.tables.items()})
        best = best_by_enumeration(tight)
        outcome = search(tight, SearchSettings(gap=0.0, time_limit_s=60))
        assert outcome.objective == (best if math.isinf(best) else pytest.approx(best, rel=TOLERANCE))
        by_drives += best > best_by_enumeration(wide) * (1 + 1e-6)
        by_buffers += best > best_by_enumeration(bare) * (1 + 1e-6)
    assert by_drives >= 3 and by_buffers >= 1


def test_every_tier_is_chosen_somewhere() -> None:
    chosen = set()
    for seed in range(0, 24, 2):
        outcome = search(random_problem(seed, max_layers=5, offloads=tuple(Tier)), SearchSettings(gap=0.0))
        chosen |= {stage.mode.offload for stage in outcome.leaf.stages} if outcome.leaf else set()
    assert chosen == set(Tier)


def test_both_levels_are_chosen_somewhere() -> None:
    chosen = set()
    for seed in range(8):
        outcome = search(random_problem(seed, max_layers=4, zero_levels=(1, 3)), SearchSettings(gap=0.0))
        chosen |= {stage.mode.zero for stage in outcome.leaf.stages} if outcome.leaf else set()
    assert chosen == {1, 3}


@pytest.mark.parametrize("seed", range(10))
def test_more_levels_to_choose_from_never_hurt(seed: int) -> None:
    wide = random_problem(seed, max_layers=5, zero_levels=(1, 3))
    narrow = replace(wide, groups=tuple(replace(group, zero_levels=(1,)) for group in wide.groups))
    settings = SearchSettings(gap=0.0, time_limit_s=60)
    assert search(wide, settings).objective <= search(narrow, settings).objective * (1 + 3e-6)


def test_of_equal_modes_the_first_is_kept_and_a_worse_one_goes() -> None:
    problem = random_problem(3, max_layers=4, zero_levels=(1, 3), equal_modes=1.0)
    root = Root(problem, Intervals(problem.chain), problem.settings[0], problem.schedules[0], Limits())
    for g, group in enumerate(problem.groups):
        assert root.modes(g) == tuple(mode for mode in group.modes if mode.zero == 1 and root.max_stages(g, mode))
    mode = Mode(1, 1)
    slow = problem.tables[0, mode, problem.settings[0]]
    problem.tables[0, mode, problem.settings[0]] = replace(slow, forward_s=2 * slow.forward_s)
    again = Root(problem, Intervals(problem.chain), problem.settings[0], problem.schedules[0], Limits())
    assert mode not in again.modes(0) and Mode(1, 3) in again.modes(0)


# ---- every mode at once, with the numbers of the cost model ----------------------------------------------------------

CLUSTER = """
name: t
node_groups:
  - {name: fast, chip: quick, nodes: 1, host_memory: 1 GiB, host_memory_bandwidth: 50 GB/s}
  - {name: slow, chip: steady, nodes: 2, host_memory: 30 MiB, host_memory_bandwidth: 50 GB/s}
chips:
  quick: {memory: FAST MiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 2,
          host_staging: 20 GB/s, intra_node: {bandwidth: 100 GB/s, latency: 3 us},
          nic: {bandwidth: 100 Gbps, latency: 5 us}}
  steady: {memory: SLOW MiB, peak: {bf16: 50 TFLOPS}, memory_bandwidth: 500 GB/s, chips_per_node: 1,
           host_staging: 10 GB/s, nic: {bandwidth: 50 Gbps, latency: 5 us}}
"""
MODEL = """
name: toy
model:
  dimensions:
    {num_hidden_layers: 3, hidden_size: 512, num_attention_heads: 8, intermediate_size: 1024, vocab_size: 1024}
training:
  {sequence_length: 256, global_batch: 8, micro_batch_sizes: [1, 2], recompute: [none], zero: [1, 3],
   offload_optimizer: allowed, stage_replicas: [1, 2]}
constraints: {tensor_parallel: 1}
"""


def enumerated(cost: CostModel) -> float:
    """The least step time over every plan of identical pipelines, setting by setting."""
    best, modes = math.inf, [(g, mode) for g, group in enumerate(cost.groups) for mode in group.modes]
    for setting in cost.settings:
        problem = TableProblem(cost.chain, cost.groups, cost.policies, cost.global_batch, (setting,), cost.schedules)
        for (g, mode), single in product(modes, (False, True)):
            own = replace(setting, single_stage=single)
            table = cost.table(g, mode, own)
            if table is not None:
                problem.tables[g, mode, own] = table
        for (g, mode), (h, other), same in product(modes, modes, (False, True)):
            problem.transfers[g, mode, h, other, same] = cost.transfer(g, mode, h, other, same, setting)
        best = min(best, best_by_enumeration(problem))
    return best


@pytest.mark.parametrize(
    ("fast", "slow", "chosen"),
    [
        (110, 90, {Mode(1, 1), Mode(1, 1, replicas=2)}),
        (80, 50, {Mode(1, 1), Mode(1, 1, offload=Tier.HOST, replicas=2)}),
        (70, 40, {Mode(1, 1, offload=Tier.HOST)}),
    ],
)
def test_with_the_cost_models_numbers_the_search_equals_enumeration_too(
    fast: int, slow: int, chosen: set[Mode]
) -> None:
    """The less memory the chips have (MiB), the more the best plan has to pay for room."""
    cluster = parse_cluster(CLUSTER.replace("FAST", str(fast)).replace("SLOW", str(slow)), "c.yaml")
    model = parse_model(MODEL, "m.yaml")
    cost = CostModel(cluster, model, build_graph(model))
    outcome, best = search(cost, SearchSettings(gap=0.0, time_limit_s=60)), enumerated(cost)
    assert outcome.objective == pytest.approx(best, rel=TOLERANCE) and outcome.bound <= best * (1 + 1e-9)
    assert outcome.leaf is not None and {stage.mode for stage in outcome.leaf.stages} == chosen


DRIVES = """
name: t
node_groups:
  - {name: fast, chip: quick, nodes: 1, host_memory: HOST MiB, host_memory_bandwidth: 50 GB/s,
     nvme: {capacity: DRIVES MiB, read: 8 GB/s, write: 4 GB/s}}
""" + CLUSTER[CLUSTER.index("chips:") :].replace("SLOW", "60")
SIX_LAYERS = MODEL.replace("num_hidden_layers: 3", "num_hidden_layers: 6").replace(
    "zero: [1, 3],\n   offload_optimizer: allowed, stage_replicas: [1, 2]", "zero: 1, offload_optimizer: allowed"
)


@pytest.mark.parametrize(
    ("chip", "host", "drives", "chosen"),
    [
        (200, 400, 400, {Tier.CHIP}),
        (90, 400, 400, {Tier.HOST}),  # the nearer tier where it holds the states
        (90, 200, 400, {Tier.NVME}),  # two tiles of the largest layer fit there, a chip's states do not
        (90, 200, 100, None),
        (90, 100, 400, None),
    ],
)
def test_where_hosts_are_small_the_search_over_three_tiers_equals_enumeration_too(
    chip: int, host: int, drives: int, chosen: set[Tier] | None
) -> None:
    """MiB of a chip, of the node's host, of its drives. None: nothing fits."""
    text = DRIVES.replace("FAST", str(chip)).replace("HOST", str(host)).replace("DRIVES", str(drives))
    cluster, model = parse_cluster(text, "c.yaml"), parse_model(SIX_LAYERS, "m.yaml")
    cost = CostModel(cluster, model, build_graph(model))
    outcome, best = search(cost, SearchSettings(gap=0.0, time_limit_s=60)), enumerated(cost)
    if chosen is None:
        assert (best, outcome.leaf, outcome.why_stopped) == (math.inf, None, "exhausted")
        return
    assert outcome.objective == pytest.approx(best, rel=TOLERANCE) and outcome.bound <= best * (1 + 1e-9)
    assert outcome.leaf is not None and {stage.mode.offload for stage in outcome.leaf.stages} == chosen

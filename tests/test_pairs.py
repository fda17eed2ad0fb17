"""Shipped clusters with models that they could sensibly train: a checked plan in two seconds of search."""

from __future__ import annotations

from functools import cache

import pytest

from planner.errors import DplanError
from planner.graph import build_graph
from planner.plan import Plan, check_plan
from planner.search import SolveOptions, solve
from planner.spec import Cluster, ModelSpec, load_cluster, load_model, shipped_names
from tests.search.small_problems import of_one_shape

ROOM = 0.5
"""A pair is sensible when 18 bytes a parameter fill at most this share of the memory of the chips that know the
precision: the rest is for activations, and for stages that do not come out even.
"""
SIX_PAIRS = [
    ("h2-1024-reconstructed", "h2-100b"),
    ("mixed-lab", "llama-3.1-70b"),
    ("three-sites", "llama-3.1-8b"),
    ("memory-tight", "llama-3.1-70b"),
    ("mi300x-h100", "mixtral-8x22b"),
    ("ascend-a100", "gemma-2-27b"),
]
"""Pairs that must close their gap: four chip types, old and new chips, thin links, tight memory, experts, alternating
kinds of layers.
"""


@cache
def cluster_of(name: str) -> Cluster:
    return load_cluster(name)


@cache
def model_of(name: str) -> ModelSpec:
    return load_model(name)


@cache
def parameters_of(name: str) -> int:
    return build_graph(model_of(name)).parameters


def is_sensible(cluster: Cluster, name: str) -> bool:
    model, memory = model_of(name), 0.0
    for index, group in enumerate(cluster.node_groups):
        chip = cluster.chip_of(index)
        if model.training.precision in chip.peak_flops_per_s:
            size = chip.reported_memory_bytes or chip.memory_bytes or 0
            memory += group.nodes * group.chips_per_node * (size - group.reserve_bytes)
    return 18 * parameters_of(name) <= ROOM * memory


def pairs() -> list[tuple[str, str]]:
    return [
        (cluster, model)
        for cluster in shipped_names("clusters")
        for model in shipped_names("models")
        if is_sensible(cluster_of(cluster), model)
    ]


def assert_honest(plan: Plan) -> None:
    """The plan passes the independent checker, and its certificate adds up."""
    assert check_plan(plan) == ()
    certificate = plan.certificate
    assert 0 <= certificate.bound <= certificate.objective
    assert certificate.gap == pytest.approx((certificate.objective - certificate.bound) / certificate.objective)
    assert certificate.objective == pytest.approx(plan.prediction.step_time_s)


def third(rest: int) -> list[tuple[str, str]]:
    """One pair in three; every cluster and every model is in each third.

    All pairs, in both spaces: `python -m tests.benchmarks.same_plans`.
    """
    clusters, models = shipped_names("clusters"), shipped_names("models")
    return [(c, m) for c, m in pairs() if (clusters.index(c) + models.index(m)) % 3 == rest]


def test_every_cluster_and_model_is_in_each_third() -> None:
    for rest in range(3):
        assert {c for c, _ in third(rest)} == {c for c, _ in pairs()}
        assert {m for _, m in third(rest)} == {m for _, m in pairs()}


@pytest.mark.parametrize(("cluster", "model"), third(0))
def test_a_sensible_pair_has_a_checked_plan_within_two_seconds_of_search(cluster: str, model: str) -> None:
    spec = of_one_shape(model_of(model))
    assert_honest(solve(cluster_of(cluster), spec, SolveOptions(time_limit_s=2.0)).plan)


@pytest.mark.parametrize(("cluster", "model"), third(1)[::2])
def test_so_it_has_where_shapes_may_be_mixed(cluster: str, model: str) -> None:
    assert_honest(solve(cluster_of(cluster), model_of(model), SolveOptions(time_limit_s=2.0)).plan)


@pytest.mark.slow
@pytest.mark.parametrize(("cluster", "model"), SIX_PAIRS)
def test_a_named_pair_closes_its_gap(cluster: str, model: str) -> None:
    result = solve(cluster_of(cluster), of_one_shape(model_of(model)), SolveOptions(time_limit_s=120.0))
    assert_honest(result.plan)
    assert result.why_stopped == "gap"
    assert result.plan.certificate.gap <= 0.01 * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cluster", "model"),
    [
        *SIX_PAIRS,
        ("h100-a100-l40s", "qwen3-32b"),
        ("rtx-3090-4090", "llama-3.1-8b"),
        ("five-chips-one-server", "dense-13b"),
        ("h100-64", "qwen3-235b-a22b"),
    ],
)
def test_a_short_search_has_a_true_gap(cluster: str, model: str) -> None:
    """Its bound is below what a long search finds, and the long search's bound is below its plan."""
    spec = of_one_shape(model_of(model))
    short = solve(cluster_of(cluster), spec, SolveOptions(time_limit_s=2.0)).plan
    long = solve(cluster_of(cluster), spec, SolveOptions(time_limit_s=60.0, gap=0.002)).plan
    assert_honest(short)
    assert_honest(long)
    assert short.certificate.bound <= long.certificate.objective
    assert long.certificate.bound <= short.certificate.objective


def test_pairs_that_are_not_sensible_are_refused_with_a_reason() -> None:
    """A 405B model on one node: proved, with the stage, what is missing and what would help."""
    with pytest.raises(DplanError) as caught:
        solve(cluster_of("one-node-h100"), model_of("llama-3.1-405b"), SolveOptions(time_limit_s=20.0))
    assert caught.value.exit_code == 3
    text = caught.value.render()
    assert "missing" in text and "it fits with" in text and "nodes of" in text

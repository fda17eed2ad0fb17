"""Why a search of mixed shapes stopped, and what it says of its space: small cases, the clock of a part pretended."""

from __future__ import annotations

import time
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from planner import SolveOptions, SolveResult, solve
from planner.search import mixes
from planner.search.driver import SearchSettings, search
from planner.spec import parse_cluster, parse_model
from tests.plan.small import CLUSTER, MODEL

solving = import_module("planner.search.solve")
"""The module; `planner.search.solve` is also the function in it."""


def solved(training: str = "", constraints: str = "", **options: Any) -> SolveResult:
    model = MODEL.replace("global_batch: 32", f"global_batch: 32{training}") + constraints
    return solve(parse_cluster(CLUSTER, "cluster.yaml"), parse_model(model, "model.yaml"), SolveOptions(**options))


@pytest.fixture
def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Identical pipelines use up their share of the time limit, with a bound that leaves a gap; so do all mixes'."""

    def late(*given: Any) -> Any:
        return replace(search(*given), why_stopped="time", bound=0.0)

    monkeypatch.setattr(solving, "search", late)
    monkeypatch.setattr(mixes, "mix_floor", lambda *given: 0.0)
    monkeypatch.setattr("planner.search.mixed.driver.is_small", lambda pool: False)
    monkeypatch.setattr("planner.search.mixed.driver.mix_bound", lambda *given: 0.0)


def test_a_share_that_was_used_up_is_not_called_the_time_limit(cut_short: None) -> None:
    begin = time.monotonic()
    certificate = solved(time_limit_s=60.0).plan.certificate
    assert time.monotonic() - begin < 60
    assert (certificate.why_stopped, certificate.gap) == ("time", 1.0)
    assert certificate.shares_used_up == ("identical pipelines",)
    assert certificate.model_dump()["shares_used_up"] == ("identical pipelines",)


def test_where_the_limit_came_no_share_is_named(cut_short: None) -> None:
    certificate = solved(time_limit_s=0.001).plan.certificate
    assert (certificate.why_stopped, certificate.shares_used_up) == ("time", None)
    assert "shares_used_up" not in certificate.model_dump()


def test_without_a_clock_a_gap_that_stays_is_exhausted(cut_short: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(solving, "search", lambda *given: replace(search(*given), bound=0.0))
    certificate = solved(time_limit_s=60.0).plan.certificate
    assert (certificate.why_stopped, certificate.shares_used_up) == ("exhausted", None)


def test_a_plan_that_the_clock_chose_is_not_the_gaps_though_its_gap_is_closed(
    cut_short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another one with more time."""
    monkeypatch.setattr("planner.search.mixed.driver.mix_bound", lambda pool, f, c, best, *rest: best)
    certificate = solved(time_limit_s=60.0).plan.certificate
    assert (certificate.why_stopped, certificate.shares_used_up) == ("time", ("identical pipelines",))
    assert certificate.gap <= 0.01


@pytest.mark.parametrize("gap", [0.5, 0.01, 0.001])
def test_mixes_begin_from_a_close_plan_of_identical_pipelines_whatever_the_gap(gap: float) -> None:
    certificate = solved(gap=gap).plan.certificate
    assert certificate.identical_bound is not None
    identical = solved(constraints="constraints: {shapes: identical}\n", gap=min(gap, 0.01)).plan.certificate
    assert certificate.identical_bound == identical.bound
    assert identical.gap <= min(gap, 0.01) * (1 + 1e-9)
    assert certificate.objective <= identical.objective


@pytest.mark.parametrize(("experts", "share"), [(1, 0.6), (2, 0.75)])
def test_identical_pipelines_have_more_of_the_time_where_expert_groups_are_not_mixed(
    experts: int, share: float
) -> None:
    settings = [SimpleNamespace(expert_parallel=n) for n in range(1, experts + 1)]
    problem: Any = SimpleNamespace(settings=settings)
    before = mixes.before_mixes(problem, SearchSettings(time_limit_s=40.0), 40.0)
    assert (before.time_limit_s, before.first_plan_limit_s) == (40 * share, 40)


@pytest.mark.parametrize(
    ("training", "why"),
    [
        (", zero: [0, 1]", "training.zero leaves a choice of levels"),
        (", stage_replicas: [1, 2]", "training.stage_replicas leaves a choice"),
        (", zero: [0, 1], stage_replicas: [1, 2]", "training.zero and training.stage_replicas leave a choice"),
    ],
)
def test_a_choice_that_takes_mixed_shapes_away_says_so(training: str, why: str) -> None:
    result = solved(training, gap=0.5)
    assert result.plan.certificate.plan_space["why_identical"] == why
    (said,) = (notice for notice in result.notices if notice.code == "shapes")
    assert said.message.startswith(f"mixed shapes of pipelines are not searched: {why}; without")
    assert said.message in [warning.message for warning in result.plan.warnings]


def test_what_the_model_file_asks_for_is_no_surprise() -> None:
    result = solved(", zero: [0, 1]", "constraints: {shapes: identical}\n", gap=0.5)
    assert "why_identical" not in result.plan.certificate.plan_space
    assert not [notice for notice in result.notices if notice.code == "shapes"]


def test_mixed_shapes_that_cannot_be_are_a_warning_whatever_takes_them_away() -> None:
    result = solved("", "constraints: {shapes: mixed, order: [fast, slow]}\n", gap=0.5)
    (said,) = (notice.message for notice in result.notices if notice.code == "shapes")
    assert said.endswith("stages, their order or their layers are pinned, although constraints.shapes is mixed")
    pinned = solved("", "constraints: {order: [fast, slow]}\n", gap=0.5)
    assert not [notice for notice in pinned.notices if notice.code == "shapes"]
    assert pinned.plan.certificate.plan_space["why_identical"] == "stages, their order or their layers are pinned"


def test_where_shapes_are_mixed_nothing_is_missing() -> None:
    assert "why_identical" not in solved(gap=0.5).plan.certificate.plan_space

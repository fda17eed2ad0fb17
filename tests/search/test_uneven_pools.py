"""Pools that do not divide evenly: a mix is never worse than the best plan of identical pipelines, and often better."""

from __future__ import annotations

from functools import cache

import pytest

from planner.plan import Plan, check_plan
from tests.search.uneven_pools import NAMED, solved


@cache
def planned(name: str, shapes: str) -> Plan:
    """The best plan of a pool, once for all tests."""
    return solved(NAMED[name], shapes).plan


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMED)
def test_a_mix_is_never_worse_than_identical_pipelines(name: str) -> None:
    identical, mixed = planned(name, "identical"), planned(name, "mixed")
    assert mixed.prediction.step_time_s <= identical.prediction.step_time_s * (1 + 1e-9)
    assert check_plan(mixed) == ()
    certificate = mixed.certificate
    assert certificate.bound <= mixed.prediction.step_time_s
    assert certificate.identical_bound == pytest.approx(identical.certificate.bound, rel=1e-9)
    assert "shapes" in certificate.plan_space["pipelines"]
    if len(mixed.pipelines) > 1:
        sequences = sum(p.replicas * p.micro_batches * p.micro_batch_size for p in mixed.pipelines)
        assert sequences == 384


@pytest.mark.slow
def test_seven_chips_of_two_types_train_faster_as_two_kinds_of_pipeline() -> None:
    """4 + 3 chips have no common degree: equal pipelines leave chips idle or slow, two shapes use all seven."""
    identical, mixed = planned("7 chips", "identical"), planned("7 chips", "mixed")
    assert mixed.prediction.step_time_s < 0.95 * identical.prediction.step_time_s
    assert len(mixed.pipelines) > 1


@pytest.mark.slow
def test_equal_inputs_give_equal_mixed_plans() -> None:
    assert solved(NAMED["7 chips"], "mixed").plan == planned("7 chips", "mixed")

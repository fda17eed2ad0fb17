"""Experts over chips, and what divides by what."""

from __future__ import annotations

import pytest

from planner.cost.sharding import Degrees, ExpertLayout, expert_layout


def test_experts_are_whole_when_their_degree_is_a_multiple_of_tensor():
    # 64 experts over 8 chips of 2 x 1 x 8 = 16: shards 8, each twice
    assert expert_layout(8, tensor=2, context=1, data=8, num_experts=64) == ExpertLayout(1, 8, 2, 8)


def test_experts_are_divided_over_the_tensor_group_otherwise():
    # degree 1 with tensor 4: every expert over 4 chips, a shard a tensor rank, 8 replicas
    assert expert_layout(1, tensor=4, context=1, data=8, num_experts=8) == ExpertLayout(4, 4, 8, 1)
    # degree 2 with tensor 4: 8 shards, 4 x 8 / 8 = 4 replicas
    assert expert_layout(2, tensor=4, context=1, data=8, num_experts=8) == ExpertLayout(4, 8, 4, 2)


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
@pytest.mark.parametrize("expert", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("data", [1, 2, 3, 8])
def test_shards_times_replicas_are_the_chips_of_the_stage(tensor, expert, data):
    layout = expert_layout(expert, tensor, 2, data, num_experts=32)
    if not isinstance(layout, str):
        assert layout.shards * layout.replicas == tensor * 2 * data
        assert 32 % layout.all_to_all == 0


def test_a5_sixteen_way_experts_do_not_fit_eight_chips():
    # GLM-4.5 run: 32 chips, tensor 8, pipeline 4: one replica of 8 chips a stage
    assert "expert_parallel 16" in str(expert_layout(16, tensor=8, context=1, data=1, num_experts=128))
    assert isinstance(expert_layout(16, tensor=8, context=1, data=2, num_experts=128), ExpertLayout)


def test_expert_degree_must_divide_the_experts():
    assert expert_layout(3, 1, 1, 3, num_experts=8) == "expert_parallel 3 does not divide num_experts 8"
    assert "has none" in str(expert_layout(2, 1, 1, 2, num_experts=0))


def test_d4_three_buckets_divide_by_their_own_degrees():
    layout = expert_layout(8, 2, 1, 4, num_experts=8)
    assert isinstance(layout, ExpertLayout)
    degrees = Degrees(2, 1, 4, True, layout)
    assert [degrees.weight_divisor(s) for s in ("tensor", "replicated", "sequence", "expert")] == [2, 1, 1, 8]
    assert [degrees.weight_replicas(s) for s in ("tensor", "replicated", "expert")] == [4, 4, 1]


def test_activations_divide_by_tensor_and_context():
    layout = expert_layout(1, 4, 2, 1, 0)
    assert isinstance(layout, ExpertLayout)
    with_it, without = Degrees(4, 2, 1, True, layout), Degrees(4, 2, 1, False, layout)
    kinds = ("tensor", "sequence", "replicated", "expert")
    assert [with_it.work_divisor(s) for s in kinds] == [8, 8, 2, 8]
    assert [without.work_divisor(s) for s in kinds] == [8, 2, 2, 8]

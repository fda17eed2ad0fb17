"""`Plan.for_rank`: what one trainer process is told. The plan of handmade.py:

chips      0 1 2 | 3 4 | 5 6      group a has one node of three, group b two nodes of two; chip 2 is idle
processes  0 1 - | 2 3 | 4 5
replica 0: stage 0 on chip 0, stage 1 on chips 3, 4.   replica 1: stage 0 on chip 1, stage 1 on chips 5, 6.
"""

from __future__ import annotations

import pytest

from planner.errors import InputError
from planner.plan.ranks import ChipMap, ReductionGroup
from planner.plan.schema import Plan
from tests.plan.handmade import CLUSTER, document, plan


def test_chips_are_numbered_by_group_then_node_then_chip() -> None:
    assert [(p.node_group, p.node, p.slot) for p in map(ChipMap(CLUSTER).place, range(7))] == [
        ("a", 0, 0),
        ("a", 0, 1),
        ("a", 0, 2),
        ("b", 0, 0),
        ("b", 0, 1),
        ("b", 1, 0),
        ("b", 1, 1),
    ]


def test_processes_renumber_the_used_chips_in_their_order() -> None:
    assert plan().used_ranks == (0, 1, 3, 4, 5, 6)
    assert [plan().for_rank(r).chip_rank for r in range(6)] == [0, 1, 3, 4, 5, 6]


def test_a_process_knows_its_chip_node_stage_and_replica() -> None:
    view = plan().for_rank(5)
    assert (view.rank, view.num_ranks, view.chip_rank) == (5, 6, 6)
    assert (view.node_group, view.chip, view.node, view.local_rank) == ("b", "chip-b", 1, 1)
    assert (view.island, view.pipeline, view.replica, view.stage, view.num_stages) == (0, 0, 1, 1, 2)
    assert (view.schedule, view.micro_batches, view.micro_batch_size) == ("1f1b", 8, 2)
    assert view.layers == ("layers.2", "norm", "head")


def test_replicas_share_the_global_batch_without_overlap() -> None:
    shares = {(v.first_sequence, v.num_sequences) for v in (plan().for_rank(r) for r in range(6))}
    assert shares == {(0, 16), (16, 16)}


def test_neighbours_are_the_chips_of_the_stages_before_and_after_in_the_same_replica() -> None:
    assert (plan().for_rank(1).previous, plan().for_rank(1).next) == ((), (4, 5))
    assert (plan().for_rank(4).previous, plan().for_rank(4).next) == ((1,), ())


def test_tensor_groups_are_the_chips_of_one_replica_of_a_stage() -> None:
    view = plan().for_rank(3)
    assert (view.tensor_parallel, view.tensor_rank, view.tensor_group) == (2, 1, (2, 3))


def test_gradients_are_averaged_over_the_replicas_that_hold_the_same_slice() -> None:
    assert plan().for_rank(3).reduction_groups == (ReductionGroup(("layers.2", "norm", "head"), (3, 5)),)
    assert plan().for_rank(0).reduction_groups == (ReductionGroup(("embedding", "layers.0", "layers.1"), (0, 1)),)


def test_recompute_is_that_of_the_own_stage() -> None:
    assert plan().for_rank(0).recompute == {"layers.0": "full"}
    assert plan().for_rank(3).recompute == {}


def test_context_parallel_chips_are_every_tensor_parallel_th_and_average_gradients_too() -> None:
    changed = document()
    first = changed["islands"][0]["pipelines"][0]["stages"][1]
    # one replica of 2 (tensor) x 2 (context) chips instead of two of 2 x 1
    first["context_parallel"] = 2
    first["ranks"] = [[3, 4, 5, 6]]
    changed["islands"][0]["pipelines"][0]["replicas"] = 1
    changed["islands"][0]["pipelines"][0]["stages"][0]["ranks"] = [[0]]
    view = Plan.model_validate(changed).for_rank(3)  # chip 5: tensor rank 0, context rank 1
    assert (view.tensor_group, view.context_group) == ((3, 4), (1, 3))
    assert (view.tensor_rank, view.context_rank) == (0, 1)
    assert view.reduction_groups[0].ranks == (1, 3)


def test_experts_spread_over_replicas_and_their_gradients_over_what_holds_the_same_ones() -> None:
    changed = document()
    stage = changed["islands"][0]["pipelines"][0]["stages"][1]
    # every expert whole on one of 4 chips: tensor 2 x replicas 2
    stage["expert_parallel"] = 4
    view = Plan.model_validate(changed).for_rank(3)
    assert (view.expert_group, view.expert_rank, view.expert_reduction_group) == ((2, 3, 4, 5), 1, (3,))
    # two expert shards, each in two copies: chips in a row
    stage["expert_parallel"] = 2
    view = Plan.model_validate(changed).for_rank(3)
    assert (view.expert_group, view.expert_rank, view.expert_reduction_group) == ((2, 3), 1, (3, 5))


def test_experts_divided_over_the_tensor_group_spread_over_chips_of_equal_tensor_rank() -> None:
    changed = document()
    pipeline = changed["islands"][0]["pipelines"][0]
    pipeline["replicas"] = 3
    pipeline["stages"] = [pipeline["stages"][1]]
    pipeline["transfers"] = []
    pipeline["stages"][0] |= {"expert_parallel": 3, "ranks": [[0, 1], [3, 4], [5, 6]]}  # 3 is no multiple of tensor 2
    view = Plan.model_validate(changed).for_rank(3)
    assert (view.expert_group, view.expert_rank, view.expert_reduction_group) == ((1, 3, 5), 1, (3,))


def test_pipelines_of_different_shape_average_layer_by_layer_over_overlapping_slices() -> None:
    changed = document()
    first = changed["islands"][0]["pipelines"][0]
    second = document()["islands"][0]["pipelines"][0]
    first["replicas"] = 1
    first["stages"][0]["ranks"], first["stages"][1]["ranks"] = [[0]], [[3, 4]]
    # the second pipeline has one stage with everything on chips 5 and 6
    whole = second["stages"][1] | {
        "layers": [*second["stages"][0]["layers"], *second["stages"][1]["layers"]],
        "ranks": [[5, 6]],
    }
    second |= {"replicas": 1, "stages": [whole], "transfers": [], "micro_batches": 4}
    changed["islands"][0]["pipelines"].append(second)
    view = Plan.model_validate(changed).for_rank(3)  # chip 5: slice 0 of 2
    assert view.pipeline == 1
    assert view.reduction_groups == (
        ReductionGroup(("embedding", "layers.0", "layers.1"), (0, 3)),  # chip 0 holds these whole
        ReductionGroup(("layers.2", "norm", "head"), (1, 3)),  # chip 3 holds slice 0 of 2
    )
    assert (view.first_sequence, view.num_sequences) == (16, 8)


def test_stages_that_hold_a_tied_matrix_average_its_gradient_together() -> None:
    changed = document()
    assert plan().for_rank(0).tied_groups == ()
    changed["tied_layers"] = [["embedding", "head"]]
    view = Plan.model_validate(changed).for_rank(3)  # chip 4: slice 1 of 2 of the head
    assert view.tied_groups == (ReductionGroup(("embedding", "head"), (0, 1, 3, 5)),)


def test_a_huge_cluster_costs_nothing_to_look_up() -> None:
    huge = {"node_groups": [{"name": "a", "chip": "c", "nodes": 10**15, "chips_per_node": 8}]}
    assert ChipMap(huge).place(8 * 10**15 - 1).node == 10**15 - 1


def test_a_chip_that_the_cluster_has_not_is_refused() -> None:
    changed = document()
    changed["islands"][0]["pipelines"][0]["stages"][1]["ranks"] = [[3, 4], [5, 7]]
    with pytest.raises(InputError, match="there is no chip 7"):
        Plan.model_validate(changed).for_rank(5)


@pytest.mark.parametrize("rank", [-1, 6])
def test_a_process_that_is_not_there_is_refused(rank: int) -> None:
    with pytest.raises(InputError, match="choose a rank from 0 to 5"):
        plan().for_rank(rank)

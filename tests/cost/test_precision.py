"""Bytes per parameter, as published."""

from __future__ import annotations

import pytest

from planner.cost.precision import FP8_COPIES_BYTES, recipe_of
from tests.cost.stand_ins import Training


def bytes_per_parameter(zero: int, replicas: int, **training: str) -> float:
    recipe = recipe_of(Training(zero=zero, **training))  # type: ignore[arg-type]
    return recipe.static("matrix", True, replicas).total


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_bf16_with_fp32_gradients_takes_18_bytes_divided_by_zero_level(d):
    by_level = [bytes_per_parameter(zero, d, precision="bf16") for zero in range(4)]
    assert by_level == pytest.approx([18, 6 + 12 / d, 2 + 16 / d, 18 / d], rel=1e-15)


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_fp16_with_fp16_gradients_takes_20_bytes_divided_by_zero_level(d):
    by_level = [bytes_per_parameter(zero, d, precision="fp16", gradients="compute") for zero in range(4)]
    assert by_level == pytest.approx([20, 4 + 16 / d, 2 + 18 / d, 20 / d], rel=1e-15)


@pytest.mark.parametrize("d", [1, 2, 8, 64])
def test_fp32_takes_16_bytes_divided_by_zero_level(d):
    by_level = [bytes_per_parameter(zero, d, precision="fp32") for zero in range(4)]
    assert by_level == pytest.approx([16, 8 + 8 / d, 4 + 12 / d, 16 / d], rel=1e-15)


def test_fp16_with_fp32_gradients_is_the_bf16_recipe():
    assert [bytes_per_parameter(z, 4, precision="fp16") for z in range(4)] == [
        bytes_per_parameter(z, 4, precision="bf16") for z in range(4)
    ]


def test_bf16_gradients_need_no_fp32_copy():
    # 2 weight + 2 gradient + 4 master + 8 states
    assert bytes_per_parameter(0, 1, precision="bf16", gradients="compute") == 16


def test_without_master_weights_the_optimizer_updates_the_compute_copy():
    assert bytes_per_parameter(0, 1, master_weights="none") == 2 + 4 + 8
    assert bytes_per_parameter(1, 8, master_weights="none") == 2 + 4 + 8 / 8


@pytest.mark.parametrize(
    ("optimizer", "matrix", "table", "vector"),
    [("adamw", 8, 8, 8), ("sgd", 4, 4, 4), ("muon", 4, 8, 8), ("adafactor", 1 / 128, 1 / 128, 4)],
)
def test_optimizer_states_by_kind_of_weight(optimizer, matrix, table, vector):
    recipe = recipe_of(Training(optimizer=optimizer))
    states = [recipe.static(kind, True, 1).optimizer - 4 for kind in ("matrix", "table", "vector")]
    assert states == [matrix, table, vector]


def test_fp8_adds_two_copies_of_matmul_weights_only():
    recipe = recipe_of(Training(precision="fp8"))
    assert FP8_COPIES_BYTES == 2
    assert recipe.static("matrix", True, 1, fp8_matmul=True).total == 20
    assert recipe.static("table", True, 1).total == 18


def test_a_frozen_weight_keeps_its_compute_copy_only():
    for zero, expected in ((0, 2.0), (2, 2.0), (3, 0.25)):
        assert recipe_of(Training(zero=zero)).static("matrix", False, 8).total == expected


def test_d3_distributed_optimizer_of_two_replicas_is_12_bytes():
    # public case D3: 46,983.28 MB for 4.1055 B parameters a chip = 12.0 bytes = 6 + 12/2
    assert bytes_per_parameter(1, 2) == 12


def test_update_touches_gradient_master_states_and_compute_copy():
    # 4 gradient read + 2 x 4 master + 2 x 8 states + 2 compute copy written
    assert recipe_of(Training(zero=0)).update_traffic("matrix", 4) == 30
    assert recipe_of(Training(zero=1)).update_traffic("matrix", 4) == 7.5
    # fp32 is its own master: 4 + 2 x 4 + 16
    assert recipe_of(Training(zero=0, precision="fp32")).update_traffic("matrix", 4) == 28

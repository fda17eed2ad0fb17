"""Rooflines and achievable rates by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.cost.compute import (
    ATTENTION_TO_MATMUL,
    BEST_MATMUL_EFFICIENCY,
    LAYER_TO_BEST_MATMUL,
    MEMORY_EFFICIENCY,
    attention_rate,
    best_matmul_rate,
    chip_rates,
    matmul_rate,
    memory_rate,
    missing_rates,
    newton_schulz_flops,
    roofline_s,
)
from tests.cost.stand_ins import GB, TFLOPS, Chip, Efficiency, Measured

A100 = Chip(
    name="a100",
    peak_flops_per_s={"bf16": 312 * TFLOPS, "fp16": 312 * TFLOPS, "fp32": 19.5 * TFLOPS, "tf32": 156 * TFLOPS},
    memory_bandwidth_bytes_per_s=2039 * GB,
    measured=Measured({"bf16": 271.2 * TFLOPS}),
    efficiency=None,
)


def test_an_operation_is_bound_by_arithmetic_or_by_memory():
    # 100 FLOPs at 10 a second, 30 bytes at 2 a second
    assert roofline_s(np.array([100.0, 100.0]), np.array([30.0, 10.0]), 10.0, 2.0).tolist() == [15.0, 10.0]


def test_a_measured_rate_beats_the_class_default():
    assert best_matmul_rate(A100, "bf16") == 271.2 * TFLOPS
    assert matmul_rate(A100, "bf16") == pytest.approx(271.2 * TFLOPS * LAYER_TO_BEST_MATMUL)


def test_the_other_sixteen_bit_precision_has_the_same_share_of_its_peak():
    assert best_matmul_rate(A100, "fp16") == pytest.approx(271.2 * TFLOPS)


def test_without_a_measurement_the_class_default_applies():
    assert matmul_rate(A100, "fp32") == pytest.approx(19.5 * TFLOPS * BEST_MATMUL_EFFICIENCY * LAYER_TO_BEST_MATMUL)
    assert memory_rate(A100) == pytest.approx(2039 * GB * MEMORY_EFFICIENCY)
    assert attention_rate(A100, "bf16") == pytest.approx(271.2 * TFLOPS * ATTENTION_TO_MATMUL)


def test_a_stated_efficiency_beats_a_measurement():
    chip = Chip(
        measured=Measured({"bf16": 90 * TFLOPS}, 900 * GB),
        efficiency=Efficiency(matmul=0.5, attention=0.4, memory=0.6),
    )
    rates = chip_rates(chip, "bf16")
    assert rates.matmul_flops_per_s == 50 * TFLOPS
    assert rates.attention_flops_per_s == 40 * TFLOPS
    assert rates.memory_bytes_per_s == 600 * GB


def test_tf32_is_never_taken_for_fp32():
    assert missing_rates(Chip(peak_flops_per_s={"tf32": 156 * TFLOPS}), "fp32") == ("fp32",)


def test_fp8_needs_bf16_for_everything_but_matmuls():
    fp8_only = Chip(peak_flops_per_s={"fp8": 200 * TFLOPS})
    both = Chip(peak_flops_per_s={"fp8": 200 * TFLOPS, "bf16": 100 * TFLOPS})
    assert missing_rates(fp8_only, "fp8") == ("bf16",)
    assert missing_rates(both, "fp8") == ()
    rates = chip_rates(both, "fp8")
    assert (rates.matmul_flops_per_s, rates.attention_flops_per_s) == (200 * TFLOPS, 100 * TFLOPS)


def test_newton_schulz_of_a_thousand_square_matrix():
    assert newton_schulz_flops(1e6) == pytest.approx(5 * 3 * 2 * 1e9)


@given(st.floats(0, 1e15), st.floats(0, 1e12), st.floats(1, 1e15), st.floats(1, 1e12), st.floats(1, 8))
def test_a_faster_chip_is_never_slower(flops, num_bytes, rate, bandwidth, factor):
    slow = roofline_s(np.array([flops]), np.array([num_bytes]), rate, bandwidth)
    assert roofline_s(np.array([flops]), np.array([num_bytes]), rate * factor, bandwidth)[0] <= slow[0]
    assert roofline_s(np.array([flops]), np.array([num_bytes]), rate, bandwidth * factor)[0] <= slow[0]

"""Compute time: a roofline per operation, and how much of a chip's peak real kernels reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.precision import compute_precision

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.spec import Chip

    Floats = NDArray[np.float64]

__all__ = [
    "ATTENTION_TO_MATMUL",
    "BEST_MATMUL_EFFICIENCY",
    "INTRA_NODE_EFFICIENCY",
    "LAYER_TO_BEST_MATMUL",
    "MEMORY_EFFICIENCY",
    "NETWORK_EFFICIENCY",
    "ChipRates",
    "attention_rate",
    "best_matmul_rate",
    "chip_rates",
    "matmul_rate",
    "memory_rate",
    "missing_rates",
    "newton_schulz_flops",
    "roofline_s",
]

BEST_MATMUL_EFFICIENCY = 0.80
"""Best large matmul over claimed dense peak, where a chip has no measurement: the median of the 15 chips with a
measured bf16 rate (stas00/ml-engineering, maximum achievable matmul; FlagPerf): A100 0.87, H100 0.80, B200 0.78,
MI300X 0.51."""

LAYER_TO_BEST_MATMUL = 0.80
"""Matmuls of a layer, with their shapes and launches, over the best matmul of the same chip. With this the model gives
0.94 to 1.03 of the eight step times of Korthikanti et al., arXiv 2205.05198, table 5 (22B to 1T on A100; a factor of 1
would give 0.78 to 0.88), and 0.96 to 1.07 of Galvatron's measured Llama-2-7B layer at one to eight sequences."""

ATTENTION_TO_MATMUL = 0.7
"""Attention core (flash kernels) over the best matmul of the same chip. FlashAttention-2 reports 50-73 % of an A100's
peak (Dao, arXiv 2307.08691), whose best matmul reaches 87 %: 0.57-0.84, the middle. Those kernels are timed as a layer
runs them, so no further factor."""

MEMORY_EFFICIENCY = 0.8
"""Achieved over claimed memory bandwidth. FlagPerf: A100-40GB 1328 of 1555 GB/s = 0.85, C550 1390.5 of 1800 GB/s =
0.77."""

INTRA_NODE_EFFICIENCY = 0.78
"""All-reduce bus bandwidth over the link's one-way rate inside a node. stas00/ml-engineering: A100 234.9 of 300 GB/s =
0.78, H200 367.6 of 450 = 0.82, B300 682 of 900 = 0.76."""

NETWORK_EFFICIENCY = 0.87
"""Achieved over nominal NIC rate. Between FlagPerf's A100 nodes (19.3 of 25 GB/s = 0.77) and DLSlime's RDMA reads (49.0
of 50 and 24.5 of 25 GB/s = 0.98)."""

NEWTON_SCHULZ_STEPS = 5


@dataclass(frozen=True)
class ChipRates:
    """Achievable rates of one chip."""

    matmul_flops_per_s: float
    attention_flops_per_s: float
    memory_bytes_per_s: float


def best_matmul_rate(chip: Chip, precision: str) -> float | None:
    """FLOP/s of the best large matmul:  the first of these that is known

    measured in this precision;  peak * (measured / peak of the other 16-bit precision);  peak * BEST_MATMUL_EFFICIENCY.

    fp32 means IEEE fp32, as PyTorch computes unless told otherwise: a `tf32` peak is never taken for it.
    None when the profile has no peak for the precision.
    """
    peak = chip.peak_flops_per_s.get(precision)
    if peak is None:
        return None
    measured = {} if chip.measured is None else chip.measured.matmul_flops_per_s
    if precision in measured:
        return measured[precision]
    sibling = {"bf16": "fp16", "fp16": "bf16"}.get(precision, "")
    if sibling in measured and sibling in chip.peak_flops_per_s:
        return peak * measured[sibling] / chip.peak_flops_per_s[sibling]
    return peak * BEST_MATMUL_EFFICIENCY


def matmul_rate(chip: Chip, precision: str) -> float | None:
    """FLOP/s of a layer's matmuls: peak * chip.efficiency.matmul, else best matmul * LAYER_TO_BEST_MATMUL."""
    peak = chip.peak_flops_per_s.get(precision)
    if peak is not None and chip.efficiency is not None and chip.efficiency.matmul is not None:
        return peak * chip.efficiency.matmul
    rate = best_matmul_rate(chip, precision)
    return None if rate is None else rate * LAYER_TO_BEST_MATMUL


def attention_rate(chip: Chip, precision: str) -> float | None:
    """FLOP/s of the attention core: peak * chip.efficiency.attention, else best matmul * ATTENTION_TO_MATMUL."""
    peak = chip.peak_flops_per_s.get(precision)
    if peak is not None and chip.efficiency is not None and chip.efficiency.attention is not None:
        return peak * chip.efficiency.attention
    rate = best_matmul_rate(chip, precision)
    return None if rate is None else rate * ATTENTION_TO_MATMUL


def memory_rate(chip: Chip) -> float | None:
    """Bytes/s of memory: bandwidth * chip.efficiency.memory, else measured, else bandwidth * MEMORY_EFFICIENCY."""
    bandwidth = chip.memory_bandwidth_bytes_per_s
    if bandwidth is not None and chip.efficiency is not None and chip.efficiency.memory is not None:
        return bandwidth * chip.efficiency.memory
    if chip.measured is not None and chip.measured.memory_bandwidth_bytes_per_s is not None:
        return chip.measured.memory_bandwidth_bytes_per_s
    return None if bandwidth is None else bandwidth * MEMORY_EFFICIENCY


def missing_rates(chip: Chip, precision: str) -> tuple[str, ...]:
    """Peaks that a precision needs and the profile lacks: fp8 needs `fp8`, and `bf16` for all but matmuls."""
    needed = (precision, compute_precision(precision)) if precision == "fp8" else (precision,)
    return tuple(p for p in needed if p not in chip.peak_flops_per_s)


def chip_rates(chip: Chip, precision: str) -> ChipRates:
    """Rates of a chip.

    FLOP/s are infinite where the profile has no peak: allowed only where every layer has a measured time, so that they
    are never asked for (`figures.require_figures`).
    """
    memory = memory_rate(chip)
    assert memory is not None, chip.name
    matmul, attention = matmul_rate(chip, precision), attention_rate(chip, compute_precision(precision))
    return ChipRates(
        float("inf") if matmul is None else matmul, float("inf") if attention is None else attention, memory
    )


def roofline_s(flops: Floats, num_bytes: Floats, flops_per_s: Floats | float, bytes_per_s: float) -> Floats:
    """An operation is bound by arithmetic or by memory:  max(flops / rate, bytes / bandwidth)  (s).

    Source: Williams et al., "Roofline", CACM 2009. `flops` and `num_bytes` are one chip's share.
    """
    import numpy as np

    return np.maximum(flops / flops_per_s, num_bytes / bytes_per_s)


def newton_schulz_flops(parameters: float) -> float:
    """FLOPs of Muon's orthogonalisation of an n x n matrix, n^2 = parameters:  5 steps * 3 matmuls * 2 n^3.

    Source: Jordan 2024 (kellerjordan.github.io/posts/muon): X <- a X + (b A + c A A) X with A = X X^T.
    """
    return float(NEWTON_SCHULZ_STEPS * 3 * 2 * parameters**1.5)

"""A plan made by hand: two a100 chips hold three layers, one v100 node of four holds the rest; two replicas."""

from __future__ import annotations

import copy
from typing import Any

from planner.plan.file import sha256_of
from planner.plan.schema import Plan

CLUSTER: dict[str, Any] = {
    "name": "bench",
    "node_groups": [
        {"name": "a", "chip": "chip-a", "nodes": 1, "chips_per_node": 3},
        {"name": "b", "chip": "chip-b", "nodes": 2, "chips_per_node": 2},
    ],
}
MODEL: dict[str, Any] = {"name": "toy"}


def stage(group: str, layers: list[str], ranks: list[list[int]], tensor: int, held: int) -> dict[str, Any]:
    return {
        "node_group": group,
        "chip": f"chip-{group}",
        "layers": layers,
        "tensor_parallel": tensor,
        "recompute": {},
        "in_flight": held,
        "ranks": ranks,
        "memory": {
            "peak_bytes": 70 * 2**30,
            "usable_bytes": 75 * 2**30,
            "parts": {"weights": 20 * 2**30, "saved": 50 * 2**30},
        },
        "time": {
            "forward_s": 0.010,
            "backward_input_s": 0.010,
            "backward_weight_s": 0.010,
            "recompute_s": 0.0,
            "reduction_s": 0.002,
            "optimizer_s": 0.001,
        },
    }


def document() -> dict[str, Any]:
    """Replica 0 uses chips 0 and 3, 4; replica 1 uses 1 and 5, 6; chip 2 is idle."""
    stages = [
        stage("a", ["embedding", "layers.0", "layers.1"], [[0], [1]], 1, 2),
        stage("b", ["layers.2", "norm", "head"], [[3, 4], [5, 6]], 2, 1),
    ]
    stages[0]["recompute"] = {"layers.0": "full"}
    stages[0]["time"]["recompute_s"] = 0.005
    stages[1]["memory"]["peak_bytes"] = 30 * 2**30
    stages[1]["memory"]["parts"] = {"weights": 10 * 2**30, "saved": 20 * 2**30}
    pipeline = {
        "replicas": 2,
        "micro_batches": 8,
        "micro_batch_size": 2,
        "schedule": {"name": "1f1b", "chunks": 1},
        "stages": stages,
        "transfers": [
            {
                "from_stage": 0,
                "to_stage": 1,
                "bytes": 67108864,
                "time_s": 0.003,
                "backward_time_s": 0.002,
                "transport": "host",
            }
        ],
        "reduction_s": 0.002,
        "optimizer_s": 0.001,
    }
    return copy.deepcopy(
        {
            "format": "dplan-plan",
            "format_version": "1.0",
            "inputs": {
                "cluster": {"name": "bench", "sha256": sha256_of(CLUSTER), "document": CLUSTER},
                "model": {"name": "toy", "sha256": sha256_of(MODEL), "document": MODEL},
            },
            "islands": [{"name": "all", "pipelines": [pipeline]}],
            "outer_sync": None,
            "idle": [{"node_group": "a", "chips": 1}],
            "prediction": {
                "step_time_s": 0.4,
                "tokens_per_s": 327680.0,
                "tokens_per_s_per_chip": 54613.333333333336,
                "mfu": 0.412,
                "bubble_fraction": 0.121,
            },
            "training": {
                "tokens": 15_000_000_000_000,
                "steps": 114440918,
                "days": 529.8,
                "price_per_hour": 12.5,
                "price_per_million_tokens": 0.0106,
                "cost": 158950.5,
                "currency": "USD",
            },
            "certificate": {
                "objective": 0.4,
                "unit": "s",
                "bound": 0.398,
                "gap": (0.4 - 0.398) / 0.4,
                "gap_asked": 0.01,
                "why_stopped": "gap",
                "plan_space": {"micro_batch_size": [1, 2, 4], "candidates": 50736, "schedules": ["1f1b"]},
                "solver": {"programs": 31},
            },
            "assumptions": ["The loss is computed whole, not in chunks."],
            "warnings": [{"code": "untrusted-chip", "message": "chip-b has no trustworthy source."}],
        }
    )


def plan() -> Plan:
    return Plan.model_validate(document())

"""Results written by hand: a case of ten calibration loops, and whatever a test changes in it."""

from __future__ import annotations

from typing import Any

from planner.bench.results import BenchResults

__all__ = ["case", "failed", "results"]

GIB = 2**30


def case(name: str = "8-h100", calibration_s: float = 2.0, **changes: Any) -> dict[str, Any]:
    """A step of 50 s, proved to 1 %, in 20 s: ten loops. `changes` are fields of the case or of what it found."""
    found = {
        "first_plan_s": 1.5,
        "solve_s": 20.0,
        "why_stopped": "gap",
        "step_time_s": 50.0,
        "bound_s": 49.5,
        "identical_bound_s": None,
        "gap": 0.01,
        "programs": 3,
        "solver": {"programs": 3, "nodes": 12},
        "chips": 8,
        "chips_used": 8,
        "chip_types": 1,
        "tokens_per_s": 80000.0,
        "tokens_per_s_per_chip": 10000.0,
        "cluster_sha256": "c" * 64,
        "model_sha256": "d" * 64,
    }
    found |= {key: value for key, value in changes.items() if key in found}
    found["loops"] = found["solve_s"] / calibration_s
    asked = {
        "name": name,
        "cluster": "one-node-h100",
        "model": "llama-3.1-8b",
        "pipelines": "identical",
        "time_limit_s": 10.0,
        "limit_s": 10.0,
        "gap_asked": 0.01,
        "calibration_s": calibration_s,
        "total_s": found["solve_s"] + 1.0,
        "peak_bytes": GIB,
        "found": found,
        "failure": None,
    }
    return asked | {key: value for key, value in changes.items() if key in asked}


def failed(name: str = "8-h100", message: str = "no plan fits\n  stage 0 misses 3.0 GiB") -> dict[str, Any]:
    """A case without a plan."""
    return case(name) | {"found": None, "failure": {"kind": "InfeasibleError", "message": message}}


def results(*cases: dict[str, Any], complete: bool = True) -> BenchResults:
    """A run of these cases."""
    environment = {"dplan": "0.1.0", "python": "3.12.1", "highspy": "1.15.1", "system": "Linux x86_64", "cores": 2}
    return BenchResults.model_validate({"environment": environment, "complete": complete, "cases": cases})

"""dplan plans how to train a large model on a cluster of unlike chips, and proves how good the plan is.

    from planner import load_cluster, load_model, solve

Names are imported when they are first used, so that `import planner` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.errors import (
        CheckError,
        DplanError,
        InfeasibleError,
        InputError,
        InterruptedSolve,
        NoPlanFoundError,
        Notice,
    )
    from planner.plan import Plan, RankView, Violation, check_plan
    from planner.search import Progress, SolveOptions, SolveResult, solve
    from planner.search.baselines import BaselineReport, compare_baselines
    from planner.spec import Cluster, ModelSpec, load_cluster, load_model

__all__ = [
    "BaselineReport",
    "CheckError",
    "Cluster",
    "DplanError",
    "InfeasibleError",
    "InputError",
    "InterruptedSolve",
    "ModelSpec",
    "NoPlanFoundError",
    "Notice",
    "Plan",
    "Progress",
    "RankView",
    "SolveOptions",
    "SolveResult",
    "Violation",
    "__version__",
    "check_plan",
    "compare_baselines",
    "load_cluster",
    "load_model",
    "solve",
]

__version__ = "0.1.0"

_HOMES = {
    "planner.errors": (
        "CheckError",
        "DplanError",
        "InfeasibleError",
        "InputError",
        "InterruptedSolve",
        "NoPlanFoundError",
        "Notice",
    ),
    "planner.plan": ("Plan", "RankView", "Violation", "check_plan"),
    "planner.search": ("Progress", "SolveOptions", "SolveResult", "solve"),
    "planner.search.baselines": ("BaselineReport", "compare_baselines"),
    "planner.spec": ("Cluster", "ModelSpec", "load_cluster", "load_model"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'planner' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)

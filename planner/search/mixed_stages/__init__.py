"""Plans whose stages may mix chips and tensor parallel degrees, for step times of the form sum plus maximum."""

from planner.search.mixed_stages.plan import MixedAnswer, MixedPlan, MixedReplica, MixedStage, step_time_s
from planner.search.mixed_stages.solve import solve_mixed
from planner.search.mixed_stages.tables import ChipPool, LayerNumbers, MixedProblem, MixedSetting, ReplicaKind

__all__ = [
    "ChipPool",
    "LayerNumbers",
    "MixedAnswer",
    "MixedPlan",
    "MixedProblem",
    "MixedReplica",
    "MixedSetting",
    "MixedStage",
    "ReplicaKind",
    "solve_mixed",
    "step_time_s",
]

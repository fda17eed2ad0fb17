"""Baselines: each chip type alone, and the plans that people make by rules of thumb, judged by the same cost model."""

from planner.search.baselines.budget import BaselineProgress
from planner.search.baselines.compare import compare_baselines
from planner.search.baselines.results import BaselineReport, HomogeneousBaseline, RuleBaseline

__all__ = ["BaselineProgress", "BaselineReport", "HomogeneousBaseline", "RuleBaseline", "compare_baselines"]

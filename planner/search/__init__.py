"""The search: candidates, bounds, the stage program, the certificate."""

from planner.search.solve import Progress, SolveOptions, SolveResult, solve

__all__ = ["Progress", "SolveOptions", "SolveResult", "solve"]

"""Placing a branching graph of layers on chips, so that the largest load of a chip is least, with the proof of it."""

from planner.search.branching.evaluate import Verdict, evaluate
from planner.search.branching.problem import BranchingProblem, ChipClass, Placement, Tensor
from planner.search.branching.solve import BranchingAnswer, solve_branching

__all__ = [
    "BranchingAnswer",
    "BranchingProblem",
    "ChipClass",
    "Placement",
    "Tensor",
    "Verdict",
    "evaluate",
    "solve_branching",
]

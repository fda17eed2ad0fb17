"""What a search is told, what it says on the way, and what it found."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from planner.search.candidates import Limits
from planner.search.highs import SolverChoice, SolverName

if TYPE_CHECKING:
    from planner.plan.assemble import PipelineChoice
    from planner.plan.placing import Placed
    from planner.search.leaf import Leaf, Split
    from planner.search.one_shape import Best

__all__ = ["Found", "Outcome", "SearchProgress", "SearchSettings", "WhyStopped"]

WhyStopped = Literal["gap", "time", "interrupted", "exhausted"]


@dataclass(frozen=True)
class SearchSettings:
    """gap: relative; 0 asks for the optimum (to 1e-6).  price_per_chip_s: per group, for the objective `cost`."""

    gap: float = 0.01
    time_limit_s: float = 25.0
    jobs: int = 1
    limits: Limits = field(default_factory=Limits)
    price_per_chip_s: tuple[float, ...] | None = None
    solver: SolverName = "highs"
    solver_log: str | None = None
    """File that the solver's logs are appended to, whichever process calls it."""
    warm: Best | None = None
    """An older plan, which `search` falls back on."""
    first_plan_limit_s: float | None = None
    """How long to look for a first plan; None: `time_limit_s`, which alone counts once there is a plan."""
    first_plan_only: bool = False
    """Stop at the first plan (or the proof that there is none)."""

    @property
    def program_solver(self) -> SolverChoice:
        """Who solves integer programs, and where the logs go."""
        return SolverChoice(self.solver, self.solver_log)


@dataclass(frozen=True)
class SearchProgress:
    """Where the search stands; objective and bound in the objective's unit. Fields as in `solve.Progress`."""

    candidates: int
    programs: int
    objective: float | None
    bound: float | None
    elapsed_s: float
    phase: str = ""
    whole: bool = True


@dataclass(frozen=True)
class Outcome:
    """The result: `leaf` and `split` of the best plan (None: nothing found), and what is proved.

    bound: no plan of the whole space has a smaller objective.  why_stopped `exhausted` with no plan: proved that none
    fits.
    """

    leaf: Leaf | None
    split: Split | None
    step_time: float
    objective: float
    bound: float
    why_stopped: WhyStopped
    statistics: dict[str, int]
    warmed: bool = False
    """The clock let the older plan have a say in the result."""

    @property
    def gap(self) -> float:
        """(objective - bound) / objective."""
        return (self.objective - self.bound) / self.objective if math.isfinite(self.objective) else math.inf


@dataclass(frozen=True)
class Found:
    """What the search found and proved. objective, bound: in the search's unit.  mixed: the bound holds for mixes of
    shapes too; identical_bound holds for plans of one shape then.  placed: the nodes of the choices, on a topology.
    cut_short: parts of the search that the clock ended, by the names of their phases; empty where it has no parts.
    """

    choices: tuple[PipelineChoice, ...]
    objective: float
    bound: float
    why_stopped: WhyStopped
    statistics: dict[str, int]
    mixed: bool
    identical_bound: float | None = None
    layer_order: str | None = None
    """Orders of layers that the bound holds for, where the graph leaves a choice."""
    placed: Placed | None = None
    cut_short: tuple[str, ...] = ()

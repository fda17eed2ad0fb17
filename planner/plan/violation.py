"""What the checker finds, and what it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.graph.layers import LayerGraph
    from planner.plan.schema import Plan
    from planner.spec import Cluster, ModelSpec

__all__ = ["Subject", "Violation"]


@dataclass(frozen=True)
class Violation:
    """One thing that does not hold. code: a short name, stable over versions; where: the place in the plan file."""

    code: str
    where: str
    message: str

    def render(self) -> str:
        """`where: message`."""
        return f"{self.where}: {self.message}"


@dataclass(frozen=True)
class Subject:
    """A plan and what its own documents say."""

    plan: Plan
    cluster: Cluster
    model: ModelSpec
    graph: LayerGraph
    cost: CostModel

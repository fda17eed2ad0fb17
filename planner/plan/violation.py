"""What the checker finds, and what it looks at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.cost.model import CostModel
    from planner.graph.layers import LayerGraph
    from planner.plan.schema import Pipeline, Plan
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

    @property
    def entries(self) -> list[tuple[str, Pipeline]]:
        """The pipelines of the only island, each with its place in the plan file."""
        pipelines = self.plan.islands[0].pipelines
        return [(f"islands[0].pipelines[{j}]", pipeline) for j, pipeline in enumerate(pipelines)]

    @property
    def whole(self) -> str:
        """The place of what concerns all pipelines together."""
        return "islands[0].pipelines[0]" if len(self.plan.islands[0].pipelines) == 1 else "islands[0].pipelines"

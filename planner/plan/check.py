"""The checker: does a plan do what it says, on its own chips, with its own model?

It knows nothing of the integer program and trusts nothing that the plan says about itself: cluster, model, layer graph
and cost model are made again from the embedded documents, every number is computed again from the ranks and layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner.errors import InputError
from planner.plan.file import sha256_of
from planner.plan.limits import limit_violations
from planner.plan.numbers import number_violations
from planner.plan.structure import structure_violations
from planner.plan.violation import Subject, Violation

if TYPE_CHECKING:
    from planner.plan.schema import InputDocument, Plan

__all__ = ["Violation", "check_plan"]


def check_plan(plan: Plan) -> tuple[Violation, ...]:
    """Everything that is wrong with a plan; nothing when it holds.

    Numbers are compared only where the structure is right: layers, ranks and counts come first.
    """
    found = [*_hash_violations(plan)]
    subject = _rebuild(plan)
    if isinstance(subject, Violation):
        return (*found, subject)
    structure = [*structure_violations(subject)]
    found += structure
    found += limit_violations(subject)
    if not structure:
        found += number_violations(subject)
    return tuple(found)


def _hash_violations(plan: Plan) -> Iterator[Violation]:
    for name, document in (("cluster", plan.inputs.cluster), ("model", plan.inputs.model)):
        actual = sha256_of(document.document)
        if actual != document.sha256:
            yield Violation(
                "sha256", f"inputs.{name}.sha256", f"is {document.sha256[:12]}..., the document's is {actual[:12]}..."
            )


def _rebuild(plan: Plan) -> Subject | Violation:
    """Cluster, model, graph and cost model from the plan's documents; a violation when they are no inputs."""
    from planner.cost.model import CostModel
    from planner.graph import build_graph
    from planner.spec import Cluster, ModelSpec

    cluster: Cluster | Violation = _read(Cluster, "cluster", plan.inputs.cluster)
    if isinstance(cluster, Violation):
        return cluster
    model: ModelSpec | Violation = _read(ModelSpec, "model", plan.inputs.model)
    if isinstance(model, Violation):
        return model
    try:
        graph = build_graph(model)
        return Subject(plan, cluster, model, graph, CostModel(cluster, model, graph))
    except InputError as error:
        return Violation("inputs", "inputs", f"cannot be planned: {error.problems[0].render()}")


def _read(kind: type[Any], name: str, document: InputDocument) -> Any:
    """The spec of a document; a Violation when it is none, or when the plan calls it by another name."""
    from pydantic import ValidationError

    where = f"inputs.{name}.document"
    try:
        spec = kind.model_validate(document.document)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(step) for step in first["loc"])
        return Violation("inputs", where, f"is not a {name}: {place}: {first['msg']}")
    except InputError as error:
        return Violation("inputs", where, f"is not a {name}: {error.problems[0].render()}")
    if spec.name != document.name:
        return Violation("inputs", f"inputs.{name}.name", f"is {document.name!r}, the document's is {spec.name!r}")
    return spec

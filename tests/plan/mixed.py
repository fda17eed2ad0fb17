"""Plans of several pipeline shapes, every choice made by hand, on the cluster and the model of small.py.

Chips 0-3 are `fast` (one node), 4-7 and 8-11 `slow` (two nodes); nine layers; a global batch of 32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Setting
from planner.graph import build_graph
from planner.plan.assemble import PipelineChoice, Proved, StageChoice, assemble_plan
from planner.plan.schema import Plan
from planner.spec import parse_cluster, parse_model
from tests.plan.small import CLUSTER, MODEL

__all__ = ["SITES", "changed", "entry", "mixed_plan", "three", "two"]

SITES = (
    CLUSTER.replace("quick, nodes: 1}", "quick, nodes: 1, site: north}").replace("nodes: 2}", "nodes: 2, site: south}")
    + "sites: {total: 10 Gbps, latency: 2 ms}\n"
)
"""The two node groups at two sites, with a line of 10 Gbps for all that crosses."""


def entry(
    replicas: int,
    micro_batches: int,
    size: int,
    *stages: tuple[int, int, int],
    schedule: str = "1f1b",
    recompute: Sequence[dict[str, str]] = (),
    context: int = 1,
) -> PipelineChoice:
    """A shape. stages: (node group, tensor parallel degree, position after its last layer) each."""
    starts = [0, *(end for _, _, end in stages)]
    policies = [*recompute, *({} for _ in stages)]
    chosen = tuple(
        StageChoice(group, Mode(tensor), first, end, policy)
        for (group, tensor, end), first, policy in zip(stages, starts, policies, strict=False)
    )
    return PipelineChoice(schedule, Setting(size, 1, context), micro_batches, chosen, replicas)


def two() -> list[PipelineChoice]:
    """A replica of 8 x 2 sequences on pairs of chips, two of 8 x 1 on single chips.

    fast: 0 1 hold layers 0-3 of the first, 2 | 3 layers 0-2 of the second.
    slow: 4 5 hold layers 4-8 of the first, 6 | 7 layers 3-8 of the second; the other node is idle.
    """
    return [
        entry(1, 8, 2, (0, 2, 4), (1, 2, 9), recompute=[{"layers.0": "full"}]),
        entry(2, 8, 1, (0, 1, 3), (1, 1, 9)),
    ]


def three() -> list[PipelineChoice]:
    """Three shapes of 8, 16 and 2 x 4 sequences: two stages, one stage, and three stages that never fill.

    fast: 0 1 the first stage of the first, 2 3 all of the second.
    slow: 4 5 the second stage of the first; then the stages of the third: 6 | 7, 8 | 9, 10 | 11.
    """
    return [
        entry(1, 4, 2, (0, 2, 4), (1, 2, 9)),
        entry(1, 4, 4, (0, 2, 9)),
        entry(2, 2, 2, (1, 1, 2), (1, 1, 6), (1, 1, 9)),
    ]


def mixed_plan(
    choices: Sequence[PipelineChoice],
    cluster_text: str = CLUSTER,
    model_text: str = MODEL,
    objective: Any = "throughput",
) -> Plan:
    """The plan of some shapes, its bound 1 % below its objective."""
    cluster, model = parse_cluster(cluster_text, "cluster.yaml"), parse_model(model_text, "model.yaml")
    graph = build_graph(model)
    cost = CostModel(cluster, model, graph)
    space = {"schedules": ["1f1b"]}
    proved = Proved(bound=0.0, gap_asked=0.02, why_stopped="gap", plan_space=space, objective=objective)
    first = assemble_plan(cluster, model, graph, cost, choices, proved)
    tokens = model.training.global_batch * model.training.sequence_length
    per_step = first.certificate.objective * (1 if objective == "throughput" else tokens)
    return assemble_plan(cluster, model, graph, cost, choices, replace(proved, bound=0.99 * per_step))


def changed(plan: Plan, pipeline: int, **changes: Any) -> Plan:
    """The plan with fields of one pipeline replaced; `stage_N` replaces fields of its stage N."""
    document = plan.model_dump(mode="json")
    edited = document["islands"][0]["pipelines"][pipeline]
    for name, value in changes.items():
        if name.startswith("stage_"):
            edited["stages"][int(name.removeprefix("stage_"))] |= value
        else:
            edited[name] = value
    return Plan.model_validate(document)

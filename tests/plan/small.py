"""A small real plan: two node groups, a Llama block model of six layers, every choice made by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from planner.cost.model import CostModel
from planner.cost.tables import Mode, Setting
from planner.graph import build_graph
from planner.plan.assemble import PipelineChoice, Proved, StageChoice, assemble_plan
from planner.plan.schema import Plan
from planner.spec import parse_cluster, parse_model

__all__ = ["CLUSTER", "MODEL", "choice", "edited", "small_plan"]

CLUSTER = """
name: bench
node_groups:
  - {name: fast, chip: quick, nodes: 1}
  - {name: slow, chip: steady, nodes: 2}
chips:
  quick: {memory: 16 GiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 4, host_staging: 20 GB/s,
          intra_node: {bandwidth: 100 GB/s, latency: 3 us}, nic: {bandwidth: 100 Gbps, latency: 5 us}}
  steady: {memory: 8 GiB, peak: {bf16: 50 TFLOPS}, memory_bandwidth: 500 GB/s, chips_per_node: 4, host_staging: 10 GB/s,
           intra_node: {bandwidth: 50 GB/s, latency: 3 us}, nic: {bandwidth: 50 Gbps, latency: 5 us}}
prices: {quick: 2.00 USD/h, steady: 1.00 USD/h}
"""

MODEL = """
name: toy
model:
  dimensions:
    {num_hidden_layers: 6, hidden_size: 512, num_attention_heads: 8, intermediate_size: 1024, vocab_size: 1024}
training: {sequence_length: 256, global_batch: 32, tokens: 1 B tokens}
"""
"""Nine layers: embedding, layers.0 to layers.5, norm, head."""


def choice() -> PipelineChoice:
    """Two replicas x 8 micro-batches x 2 sequences over three stages: 4 layers on `fast`, 2 and 3 on `slow`.

    Chips 0-3 are `fast`, 4-11 `slow`. Stage 0 takes 0 1 | 2 3, stage 1 takes 4 5 | 6 7, stage 2 takes 8 9 | 10 11.
    """
    stages = (
        StageChoice(0, Mode(2), 0, 4, {"layers.0": "full"}),
        StageChoice(1, Mode(2), 4, 6, {}),
        StageChoice(1, Mode(2), 6, 9, {}),
    )
    return PipelineChoice("1f1b", Setting(micro_batch_size=2, data_parallel=2), 8, stages)


def small_plan(
    model_text: str = MODEL,
    chosen: PipelineChoice | None = None,
    objective: Any = "throughput",
    cluster_text: str = CLUSTER,
) -> Plan:
    """The plan of `choice()`, its bound 1 % below its objective."""
    chosen = chosen or choice()
    cluster, model = parse_cluster(cluster_text, "cluster.yaml"), parse_model(model_text, "model.yaml")
    graph = build_graph(model)
    cost = CostModel(cluster, model, graph)
    proved = Proved(
        bound=0.0, gap_asked=0.02, why_stopped="gap", plan_space={"schedules": ["1f1b"]}, objective=objective
    )
    first = assemble_plan(cluster, model, graph, cost, chosen, proved)
    per_step = first.certificate.objective * (1 if objective == "throughput" else 32 * 256)
    return assemble_plan(cluster, model, graph, cost, chosen, replace(proved, bound=0.99 * per_step))


def edited(plan: Plan, **changes: Any) -> Plan:
    """The plan with fields of its only pipeline replaced; `stage_N` replaces fields of stage N."""
    document = plan.model_dump(mode="json")
    pipeline = document["islands"][0]["pipelines"][0]
    for name, value in changes.items():
        if name.startswith("stage_"):
            pipeline["stages"][int(name.removeprefix("stage_"))] |= value
        else:
            pipeline[name] = value
    return Plan.model_validate(document)

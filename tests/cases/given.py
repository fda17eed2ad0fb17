"""What the public cases share: inputs in a line, and what of an answer they look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from planner.cost.model import CostModel
from planner.errors import InputError
from planner.graph import build_graph
from planner.plan import check_plan
from planner.search import SolveOptions, solve
from planner.spec import parse_cluster, parse_model
from planner.spec.model import ModelSpec, Training

if TYPE_CHECKING:
    from planner.graph import LayerGraph
    from planner.plan import Plan
    from planner.plan.schema import Stage

__all__ = ["GIB", "LLAMA", "PLAIN_CHIP", "config_graph", "cost_of", "layer_counts", "plan_of", "refusal", "saved_gib"]
__all__ += ["static_gib"]

GIB = 2**30

PLAIN_CHIP = """
chips:
  plain: {memory: 64 GiB, peak: {bf16: 100 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 4,
          intra_node: {bandwidth: 200 GB/s, latency: 3 us}, nic: {bandwidth: 100 Gbps, latency: 5 us}}
"""
"""A chip without a history; cases change what they are about."""

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 1000,
}
"""A configuration that is read without a word."""


def plan_of(cluster: str, model: str, **options: Any) -> Plan:
    """The plan of two texts; the checker agrees with it."""
    settings = SolveOptions(**{"time_limit_s": 6.0, **options})
    plan = solve(parse_cluster(cluster, "cluster.yaml"), parse_model(model, "model.yaml"), settings).plan
    expected = {"memory"} if settings.ignore_memory else set()
    assert {violation.code for violation in check_plan(plan)} <= expected
    return plan


def cost_of(cluster: str, model: str) -> CostModel:
    """The cost model of two texts."""
    spec = parse_model(model, "model.yaml")
    return CostModel(parse_cluster(cluster, "cluster.yaml"), spec, build_graph(spec))


def config_graph(config: dict[str, Any], **training: Any) -> LayerGraph:
    """The layer graph of a Hugging Face configuration."""
    settings = Training(**{"sequence_length": 512, "global_batch": 8, **training})
    return build_graph(ModelSpec(name="case", source="config", architecture=config, training=settings))


def refusal(build: Callable[[], object]) -> str:
    """What is said about inputs that are refused."""
    with pytest.raises(InputError) as caught:
        build()
    return caught.value.render()


def layer_counts(plan: Plan) -> list[int]:
    """Transformer layers of each stage; embedding, norm and head do not count."""
    return [sum(name.startswith("layers.") for name in stage.layers) for stage in plan.pipelines[0].stages]


def static_gib(stage: Stage) -> float:
    """Weights, gradients and optimizer states on one chip."""
    return sum(stage.memory.parts[name] for name in ("weights", "gradients", "optimizer")) / GIB


def saved_gib(stage: Stage) -> float:
    """Activations of all micro-batches in flight on one chip."""
    return stage.memory.parts["activations"] / GIB

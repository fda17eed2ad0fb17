"""What the public cases share: inputs in a line, and what of an answer they look at."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
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

__all__ = ["GIB", "LLAMA", "chips", "config_graph", "cost_of", "equal_layers", "gpt", "layer_counts", "on", "peak_gib"]
__all__ += ["pinned", "plan_of", "preset", "refusal", "stages_of", "state_gib", "warnings"]

GIB = 2**30

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "vocab_size": 1000,
}
"""A configuration that is read without a word."""


# ---- inputs ---------------------------------------------------------------------------------------------------------


def on(chip: str, nodes: int = 1, **fields: Any) -> str:
    """A cluster of one node group."""
    more = "".join(f", {name}: {value}" for name, value in fields.items())
    return f"name: lab\nnode_groups:\n  - {{name: all, chip: {chip}, nodes: {nodes}{more}}}\n"


def chips(chips_per_node: int, memory: str = "64 GiB") -> str:
    """A cluster of one node of chips without a history."""
    return f"""{on("plain")}chips:
  plain: {{memory: {memory}, peak: {{bf16: 100 TFLOPS}}, memory_bandwidth: 1 TB/s, chips_per_node: {chips_per_node},
          intra_node: {{bandwidth: 200 GB/s, latency: 3 us}}, nic: {{bandwidth: 100 Gbps, latency: 5 us}}}}
"""


def gpt(layers: int, hidden: int, vocabulary: int, heads: int = 16, *, tokens: int = 1024, **training: Any) -> str:
    """A model file: GPT-2 of other sizes, 64 sequences a step, one a micro-batch."""
    sizes = f"n_layer: {layers}, n_embd: {hidden}, n_head: {heads}, n_positions: {tokens}, vocab_size: {vocabulary}"
    return f"model: {{dimensions: {{model_type: gpt2, {sizes}}}}}\n" + _training(tokens, training)


def preset(name: str, tokens: int, **training: Any) -> str:
    """A model file with a preset, 64 sequences a step, one a micro-batch."""
    return f"model: {{preset: {name}}}\n" + _training(tokens, training)


def equal_layers(count: int, parameters: int = 1_000_000, *, global_batch: int = 64, frozen: str = "[]") -> str:
    """A model file: a chain of equal layers and nothing else."""
    numbers = f"parameters: {parameters}, forward_flops: 1 TFLOP, saved: 1 MB, output: 1 kB"
    nodes = "\n".join(f"      - {{name: item.{i}, {numbers}}}" for i in range(count))
    edges = "\n".join(f"      - {{source: item.{a}, target: item.{b}}}" for a, b in pairwise(range(count)))
    edges = f"\n{edges}" if edges else " []"
    graph = f"model:\n  graph:\n    nodes:\n{nodes}\n    edges:{edges}\nfrozen: {frozen}\n"
    return graph + _training(1024, {"global_batch": global_batch})


def _training(tokens: int, fields: dict[str, Any]) -> str:
    fields = {"sequence_length": tokens, "global_batch": 64, "micro_batch_sizes": [1], **fields}
    return "training: {" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}\n"


def pinned(**constraints: Any) -> str:
    """What the model file pins. A degree of data or tensor parallelism that is not named is 1."""
    fields = {"tensor_parallel": 1, "data_parallel": 1, **constraints}
    return "constraints: {" + ", ".join(f"{name}: {value}" for name, value in fields.items()) + "}\n"


# ---- answers --------------------------------------------------------------------------------------------------------


def plan_of(cluster: str, model: str, **options: Any) -> Plan:
    """The plan of two texts, of identical pipelines unless they say more; the checker agrees with it."""
    settings = SolveOptions(**{"time_limit_s": 8.0, **options})
    spec = parse_model(model, "model.yaml")
    if spec.constraints.shapes is None:
        spec = spec.model_copy(update={"constraints": spec.constraints.model_copy(update={"shapes": "identical"})})
    plan = solve(parse_cluster(cluster, "cluster.yaml"), spec, settings).plan
    assert check_plan(plan) == ()
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


def stages_of(plan: Plan) -> tuple[Stage, ...]:
    """The stages of the plan's only pipeline."""
    return plan.pipelines[0].stages


def layer_counts(plan: Plan) -> list[int]:
    """Transformer layers of each stage; embedding, norm and head do not count."""
    return [sum(name.startswith("layers.") for name in stage.layers) for stage in stages_of(plan)]


def state_gib(stage: Stage) -> float:
    """Weights, gradients and optimizer states on one chip."""
    return sum(stage.memory.parts[name] for name in ("weights", "gradients", "optimizer")) / GIB


def peak_gib(stage: Stage) -> float:
    """All of one chip's memory that is in use at the worst moment."""
    return stage.memory.peak_bytes / GIB


def warnings(plan: Plan, code: str) -> list[str]:
    """The plan's warnings of one code."""
    return [notice.message for notice in plan.warnings if notice.code == code]

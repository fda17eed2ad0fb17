"""Pools that do not divide evenly, and a small model to train on them."""

from __future__ import annotations

import random

from planner import solve
from planner.search import SolveOptions, SolveResult
from planner.spec import Cluster, ModelSpec
from planner.spec.cluster_reader import parse_cluster
from planner.spec.model_reader import parse_model

CHIPS = {
    "nvidia-a100-80gb-sxm": 8,
    "nvidia-v100-32gb-sxm": 8,
    "nvidia-l40s-48gb": 8,
    "nvidia-rtx-4090-24gb": 8,
    "nvidia-rtx-3090-24gb": 8,
}

NIC = "nic: {bandwidth: 100 Gbps, latency: 5 us}"
"""Of every chip, so that pools differ in their chips alone."""

Groups = list[tuple[str, int, int]]
"""(chip, nodes, chips a node) of each node group."""

NAMED: dict[str, Groups] = {
    "5 + 3 nodes": [("nvidia-a100-80gb-sxm", 5, 8), ("nvidia-v100-32gb-sxm", 3, 8)],
    "7 chips": [("nvidia-rtx-4090-24gb", 1, 4), ("nvidia-rtx-3090-24gb", 1, 3)],
    "prime counts": [("nvidia-a100-80gb-sxm", 1, 7), ("nvidia-v100-32gb-sxm", 1, 5), ("nvidia-l40s-48gb", 1, 3)],
    "one odd node": [("nvidia-a100-80gb-sxm", 3, 8), ("nvidia-l40s-48gb", 1, 5)],
}


def random_pool(seed: int) -> Groups:
    """Two or three groups of one to five nodes, some of them not full."""
    r = random.Random(seed)
    chips = r.sample(sorted(CHIPS), r.choice([2, 2, 3]))
    return [(chip, r.choice([1, 1, 2, 3, 5]), r.choice([8, 8, 4, 7, 5, 3])) for chip in chips]


def inputs(groups: Groups, shapes: str, batch: int = 384) -> tuple[Cluster, ModelSpec]:
    """The pool, and a 1.2-billion-parameter Llama block stack to train on it in fp16."""
    lines = ["name: pool", "node_groups:"]
    for i, (chip, nodes, per_node) in enumerate(groups):
        lines.append(f"  - {{name: g{i}, chip: {chip}, nodes: {nodes}, chips_per_node: {per_node}, site: lab, {NIC}}}")
    model = f"""
name: small
model:
  dimensions: {{num_hidden_layers: 16, hidden_size: 2304, intermediate_size: 6144, num_attention_heads: 24,
               num_key_value_heads: 24, vocab_size: 32000}}
training: {{sequence_length: 2048, global_batch: {batch}, precision: fp16, micro_batch_sizes: [1, 2, 4]}}
constraints: {{shapes: {shapes}}}
"""
    return parse_cluster("\n".join(lines), "pool.yaml"), parse_model(model, "small.yaml")


def solved(groups: Groups, shapes: str, time_limit_s: float = 120.0) -> SolveResult:
    """The best plan on the pool."""
    return solve(*inputs(groups, shapes), SolveOptions(time_limit_s=time_limit_s))

"""Small files to start a test from."""

from __future__ import annotations

from planner.errors import InputError
from planner.spec import Cluster, ModelSpec, parse_cluster, parse_model

__all__ = ["CHIP", "cluster", "model", "problems"]

CHIP = (
    "{vendor: acme, memory: 64 GiB, peak: {bf16: 200 TFLOPS}, memory_bandwidth: 1 TB/s, chips_per_node: 8, "
    "intra_node: {bandwidth: 200 GB/s, latency: 3 us}, nic: {bandwidth: 100 Gbps, latency: 5 us}, "
    "host_staging: 20 GB/s}"
)
"""A chip with every figure that planning needs."""


def cluster(groups: str, rest: str = "", **chips: str) -> Cluster:
    """A cluster of `groups` (lines of flow mappings) with the chip `acme` and more."""
    known = {"acme": CHIP} | chips
    lines = ["name: lab", "node_groups:", *(f"  - {group}" for group in groups.strip().splitlines())]
    lines += ["chips:", *(f"  {name.replace('_', '-')}: {text}" for name, text in known.items()), rest]
    return parse_cluster("\n".join(lines), "lab.yaml")


def model(training: str = "", rest: str = "model: {preset: tiny}") -> ModelSpec:
    """A model with sequences of 128 tokens, 8 in a batch, and more."""
    base = {"sequence_length": "128", "global_batch": "8"}
    given = dict(line.split(": ", 1) for line in training.strip().splitlines())
    lines = ["training:", *(f"  {key}: {value}" for key, value in (base | given).items()), rest]
    return parse_model("\n".join(lines), "model.yaml")


def problems(error: InputError) -> list[str]:
    """The rendered problems, one a line."""
    return error.render().splitlines()

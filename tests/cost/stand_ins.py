"""Small inputs for the cost model: clusters, training settings and layer graphs that a person can compute by hand."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from planner.cost.model import CostModel
from planner.graph.layers import Edge, Layer, LayerGraph, Operation, SavedTensor, Weight

GB, GIB, TFLOPS = 10**9, 2**30, 10**12


@dataclass(frozen=True)
class Interconnect:
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0


@dataclass(frozen=True)
class Measured:
    matmul_flops_per_s: dict[str, float] = field(default_factory=dict)
    memory_bandwidth_bytes_per_s: float | None = None
    allreduce_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Efficiency:
    matmul: float | None = 1.0
    attention: float | None = 1.0
    memory: float | None = 1.0
    intra_node: float | None = 1.0
    network: float | None = 1.0


@dataclass(frozen=True)
class Chip:
    """An ideal chip: it reaches its peaks, so that times are plain divisions."""

    name: str = "ideal"
    memory_bytes: int | None = 80 * GIB
    reported_memory_bytes: int | None = None
    peak_flops_per_s: dict[str, float] = field(default_factory=lambda: {"bf16": 100.0 * TFLOPS, "fp16": 100.0 * TFLOPS})
    memory_bandwidth_bytes_per_s: float | None = 1000.0 * GB
    intra_node: Interconnect | None = Interconnect(100 * GB)
    host_staging_bytes_per_s: float | None = None
    chips_per_host_link: int | None = None
    measured: Measured | None = None
    efficiency: Efficiency | None = Efficiency()
    unified_memory: bool = False


@dataclass(frozen=True)
class NodeGroup:
    name: str
    chip: str = "ideal"
    nodes: int = 1
    chips_per_node: int = 8
    nic: Interconnect | None = Interconnect(10 * GB)
    intra_node: Interconnect | None = Interconnect(100 * GB)
    reserve_bytes: int = 0
    price_per_chip_hour: float = 0.0
    nic_affinity: None = None
    host_memory_bytes: int | None = None
    host_memory_bandwidth_bytes_per_s: float | None = None
    nvme: Any = None

    @property
    def reached_nic(self) -> Interconnect | None:
        return self.nic


@dataclass(frozen=True)
class LinkPath:
    bandwidth_bytes_per_s: float
    latency_s: float = 0.0
    transport: str = "rdma"
    staging_bytes_per_s: float | None = None
    total_bytes_per_s: float | None = None


@dataclass(frozen=True)
class Cluster:
    node_groups: tuple[NodeGroup, ...]
    chips: dict[str, Chip]
    paths: dict[tuple[int, int], LinkPath] = field(default_factory=dict)
    name: str = "stand-in"
    topology: None = None

    def chip_of(self, group_index: int) -> Chip:
        return self.chips[self.node_groups[group_index].chip]

    def path(self, a: int, b: int) -> LinkPath:
        if (a, b) in self.paths:
            return self.paths[a, b]
        nics = [nic for nic in (self.node_groups[g].nic for g in (a, b)) if nic is not None]
        return LinkPath(min(n.bandwidth_bytes_per_s for n in nics), max(n.latency_s for n in nics))


@dataclass(frozen=True)
class Training:
    sequence_length: int = 1024
    global_batch: int = 16
    micro_batch_sizes: tuple[int, ...] = (1,)
    precision: str = "bf16"
    optimizer: str = "adamw"
    master_weights: str = "fp32"
    gradients: str = "fp32"
    zero: int = 1
    recompute: tuple[str, ...] = ("none", "selective", "full")
    schedules: tuple[str, ...] = ("1f1b",)
    sequence_parallel: bool = True
    context_parallel: tuple[int, ...] = (1,)
    expert_parallel: tuple[int, ...] | None = None
    attention: str = "flash"
    loss: str = "plain"
    dropout: bool | None = None
    offload_optimizer: str = "never"
    stage_replicas: tuple[int, ...] = (1,)


@dataclass(frozen=True)
class Constraints:
    tensor_parallel: Any = None
    pipeline_parallel: int | None = None
    data_parallel: Any = None
    micro_batch_size: int | None = None
    stages: dict[str, int] | None = None
    order: tuple[str, ...] | None = None
    idle: tuple[str, ...] = ()
    use: tuple[str, ...] = ()


@dataclass(frozen=True)
class ModelSpec:
    training: Training = Training()
    constraints: Constraints = Constraints()


def cluster_of(*groups: NodeGroup, chips: tuple[Chip, ...] = (Chip(),), paths: Any = None) -> Cluster:
    """A cluster of the given groups; one node of eight ideal chips when nothing is said."""
    return Cluster(groups or (NodeGroup("a"),), {chip.name: chip for chip in chips}, paths or {})


def matmul_layer(
    name: str = "layers.0", parameters: int = 10**6, flops: float = 1e12, sharding: Any = "tensor", **changes: Any
) -> Layer:
    """One matrix and its multiplication; keeps its input of 1,000 elements, and 3,000 more unless recomputed."""
    layer = Layer(
        name=name,
        kind="layer",
        weights=(Weight("matrix", parameters, sharding),),
        operations=(Operation("matrix", "matmul", flops, sharding, weight_elements=parameters, weight_gradient=True),),
        saved=(
            SavedTensor("input", 1000, "sequence", kept=frozenset({"none", "selective", "full"})),
            SavedTensor("inner", 3000, "tensor", kept=frozenset({"none"})),
        ),
    )
    return replace(layer, **changes)


def graph_of(*layers: Layer, elements: float = 1000.0, **changes: Any) -> LayerGraph:
    """A chain of layers with equal tensors between them; four equal matmul layers when nothing is said."""
    layers = layers or tuple(matmul_layer(f"layers.{i}") for i in range(4))
    edges = tuple(Edge(a.name, b.name, elements) for a, b in pairwise(layers))
    graph = LayerGraph("stand-in", layers, edges, sequence_length=1024, vocabulary=0, num_heads=0, num_kv_heads=0)
    return replace(graph, **changes)


def cost_model(
    cluster: Any = None, graph: LayerGraph | None = None, constraints: Constraints | None = None, **training: Any
) -> CostModel:
    """A cost model on stand-ins."""
    model: Any = ModelSpec(Training(**training), constraints or Constraints())
    return CostModel(cluster or cluster_of(), model, graph or graph_of())

"""Random clusters with racks and pods, and random plans on them, every choice made by a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass

from planner.cost.model import CostModel
from planner.cost.sharding import ExpertLayout, expert_layout
from planner.cost.tables import Mode, Setting
from planner.graph import build_graph
from planner.plan.assemble import StageChoice
from planner.plan.evaluate import PipelineShape
from planner.plan.layout import PipelineChoice, shapes_of
from planner.spec import Cluster, ModelSpec, parse_cluster, parse_model
from planner.spec.topology import Switch, Topology

__all__ = ["Case", "random_case", "random_topology"]

_CHIP = """
    memory: 64 GiB
    peak: {bf16: 100 TFLOPS}
    memory_bandwidth: 1 TB/s
    chips_per_node: 4
    host_staging: 20 GB/s
    intra_node: {bandwidth: 100 GB/s, latency: 3 us}
    nic: {bandwidth: 100 Gbps, latency: 5 us}
"""
_LAYERS = 12
_DENSE = (
    "{num_hidden_layers: 12, hidden_size: 2048, num_attention_heads: 16, intermediate_size: 4096, vocab_size: 4096}"
)
_EXPERTS = (
    "{model_type: mixtral, num_hidden_layers: 12, hidden_size: 512, num_attention_heads: 8, num_key_value_heads: 8,"
    " intermediate_size: 512, vocab_size: 1024, num_local_experts: 8, num_experts_per_tok: 2}"
)


@dataclass(frozen=True)
class Case:
    """A cluster with a topology, the same without, a model, and a plan laid out in the order of the file."""

    cluster: Cluster
    plain: Cluster
    model: ModelSpec
    cost: CostModel
    choice: PipelineChoice

    @property
    def shapes(self) -> tuple[PipelineShape, ...]:
        return shapes_of(self.cost, [self.choice])


def random_topology(pick: random.Random, nodes: dict[str, int], most_racks: int = 4) -> Topology:
    """Racks under at most two levels of switches; nodes in racks by chance, some racks without any."""
    parents: list[int | None] = [None for _ in range(pick.choice((0, 2, 2, 3)))]
    pods = len(parents)
    parents += [pick.choice((None, *range(pods))) for _ in range(pick.randint(2, most_racks))]
    racks = range(pods, len(parents))
    homes = {name: [pick.choice(racks) for _ in range(count)] for name, count in nodes.items()}
    switches = []
    for index, parent in enumerate(parents):
        held = {
            name: tuple((n, n, 1) for n, home in enumerate(own) if home == index)
            for name, own in homes.items()
            if index in own
        }
        uplink, latency = pick.choice((2e9, 5e9, 12.5e9, 50e9)), pick.choice((0.0, 1e-6, 20e-6))
        switches.append(
            Switch(name=f"s{index}", parent=parent, uplink_bytes_per_s=uplink, latency_s=latency, nodes=held)
        )
    return Topology(switches=tuple(switches))


def _experts(expert: int, tensor: int, data: int) -> ExpertLayout | str:
    return expert_layout(expert, tensor, 1, data, 8)


def random_case(seed: int, *, most_nodes: int = 6, zero: int = 1, experts: bool = False) -> Case:
    """One or two node groups; a plan that fits on them."""
    pick = random.Random(seed)
    names = ["a", "b"][: pick.choice((1, 2, 2))]
    nodes = {name: pick.randint(2, most_nodes) for name in names}
    groups = "".join(f"  - {{name: {name}, chip: chip-{name}, nodes: {count}}}\n" for name, count in nodes.items())
    chips = "".join(f"  chip-{name}:{_CHIP}" for name in nodes)
    plain = parse_cluster(f"name: racks\nnode_groups:\n{groups}chips:\n{chips}", "racks.yaml")
    cluster = plain.model_copy(update={"topology": random_topology(pick, nodes)})
    while True:
        data, tensor = pick.choice((1, 2, 4, 8)), {name: pick.choice((1, 2, 4)) for name in nodes}
        room = {name: nodes[name] * (4 // tensor[name]) // data for name in nodes}
        counts = {name: pick.randint(1, min(room[name], 5)) for name in nodes if room[name] > 0}
        if len(counts) == len(nodes) and 1 < sum(counts.values()) <= _LAYERS:
            break
    kinds = [(g, tensor[name]) for g, name in enumerate(nodes) for _ in range(counts[name])]
    degrees = [e for e in (1, 2, 4, 8) if not any(isinstance(_experts(e, t, data), str) for t in tensor.values())]
    expert = pick.choice(degrees) if experts else 1
    model = parse_model(
        f"name: toy\nmodel: {{dimensions: {_EXPERTS if experts else _DENSE}}}\n"
        f"training: {{sequence_length: 1024, global_batch: 64, micro_batch_sizes: [1], zero: {zero}}}\n",
        "model.yaml",
    )
    graph = build_graph(model)
    cost = CostModel(cluster, model, graph)
    layers, stages = cost.chain.num_layers, len(kinds)
    ends = [layers * (s + 1) // stages for s in range(stages)]
    chosen = tuple(StageChoice(g, Mode(t), a, e, {}) for (g, t), a, e in zip(kinds, [0, *ends], ends, strict=False))
    choice = PipelineChoice("1f1b", Setting(1, data, 1, expert), 64 // data, chosen)
    return Case(cluster, plain, model, cost, choice)

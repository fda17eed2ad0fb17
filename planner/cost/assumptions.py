"""What the cost model assumes, in sentences for the reader of a plan."""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING

from planner.cost.compute import (
    ATTENTION_TO_MATMUL,
    BEST_MATMUL_EFFICIENCY,
    INTRA_NODE_EFFICIENCY,
    LAYER_TO_BEST_MATMUL,
    MEMORY_EFFICIENCY,
    NETWORK_EFFICIENCY,
)
from planner.cost.host_copies import offload_assumptions
from planner.cost.offload import TILES_IN_HOST_MEMORY
from planner.cost.precision import zero_levels
from planner.cost.tiers import Tier, tiers_asked
from planner.graph.limits import padded_vocabulary
from planner.spec.cluster_file import DEFAULT_RESERVE
from planner.spec.units import format_bytes, format_fraction

if TYPE_CHECKING:
    from collections.abc import Iterable

    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, ModelSpec

__all__ = ["assumptions"]


def assumptions(cluster: Cluster, model: ModelSpec, graph: LayerGraph, degrees: Iterable[int]) -> tuple[str, ...]:
    """Only those that bear on this model and these settings. degrees: the tensor parallel degrees of the plan space."""
    on_memory = (*_on_memory(cluster, model, graph, degrees), *offload_assumptions(model.training.recompute))
    on_network = (*_on_lines(cluster), *_on_uplinks(cluster), *_on_nics(cluster))
    return (*_always(model), _on_reserve(cluster), *on_memory, *on_network, *_on_communication(model, graph))


def _always(model: ModelSpec) -> Iterable[str]:
    yield (
        "where a profile states neither efficiency nor measurement, the best matmul reaches"
        f" {BEST_MATMUL_EFFICIENCY:.0%} of the peak, memory {MEMORY_EFFICIENCY:.0%}, links in a node"
        f" {INTRA_NODE_EFFICIENCY:.0%} and networks {NETWORK_EFFICIENCY:.0%} of their nominal rates;"
        f" a layer's matmuls reach {LAYER_TO_BEST_MATMUL:.0%} of the best matmul, its attention core"
        f" {ATTENTION_TO_MATMUL:.0%}"
    )
    yield "collectives inside layers and the gradient reduction do not overlap with arithmetic"
    if model.training.precision == "fp32":
        yield "fp32 means IEEE fp32; tf32 is not used"
    if model.training.precision == "fp8":
        yield "matmuls run in fp8; attention, norms, activations and everything kept between layers stay bf16"
        yield "fp8 keeps two one-byte copies of every matmul weight beside the bf16 weight"
    if model.training.optimizer == "adafactor":
        yield "Adafactor keeps row and column sums of matrices (0.008 bytes a parameter), no momentum"
    if model.training.optimizer == "muon":
        yield (
            "Muon trains hidden matrices (one fp32 momentum, Newton-Schulz steps on matrices taken as square);"
            " embedding, head and vectors use AdamW"
        )


def _on_reserve(cluster: Cluster) -> str:
    groups: dict[int, list[str]] = {}
    for group in cluster.node_groups:
        groups.setdefault(group.reserve_bytes, []).append(group.name)
    amounts = "; ".join(f"{format_bytes(reserve)} on {', '.join(names)}" for reserve, names in groups.items())
    default = format_fraction(DEFAULT_RESERVE[0])
    return f"memory that stays free on each chip (`reserve`, {default} where the cluster file has none): {amounts}"


def _on_memory(cluster: Cluster, model: ModelSpec, graph: LayerGraph, degrees: Iterable[int]) -> Iterable[str]:
    padded = {t: padded_vocabulary(graph.vocabulary, t) for t in degrees if graph.vocabulary}
    if any(size != graph.vocabulary for size in padded.values()):
        sizes = ", ".join(f"{size} at tensor_parallel {t}" for t, size in padded.items())
        yield f"embedding and head are sized for a padded vocabulary: {graph.vocabulary} -> {sizes}"
    if any(weight.vocabulary for layer in graph.layers for weight in layer.weights):
        yield f"the loss is computed as `{model.training.loss}` (training.loss)"
    if any(op.operation_class == "attention" for layer in graph.layers for op in layer.operations):
        yield f"attention runs with a `{model.training.attention}` kernel (training.attention)"
    if graph.is_chain:
        yield "every stage keeps two receive buffers, one each way, of the largest tensor between stages"
    else:
        yield "a stage keeps a receive buffer for every tensor that another stage sends it, and for every gradient"
    if model.training.offload_optimizer != "never":
        yield (
            "offloaded optimizer states: after the reduction gradients are copied to the host, the optimizer runs there"
            " as fast as the host's memory allows, and weights are copied back, one after another; the chips of a node"
            " share its host_memory (offloaded activations are in it too) and host_memory_bandwidth evenly; latencies"
            " of copies are not counted"
        )
    if Tier.NVME in tiers_asked(model.training) and any(group.nvme is not None for group in cluster.node_groups):
        yield (
            "optimizer states on drives: gradients are written there and read back with the states, which are written"
            " again, all at the chip's share of the drives' rates, and not while the optimizer or its copies run; host"
            f" memory keeps buffers of {TILES_IN_HOST_MEMORY} times what the largest layer has there"
        )
    if model.training.stage_replicas != (1,):
        yield (
            "replicas of a stage that share a micro-batch exchange their parts with the neighbouring stages at once,"
            " every byte once; the transfer ends when the whole micro-batch has arrived"
        )
    if max(zero_levels(model.training)) >= 2:
        yield "ZeRO-2 and ZeRO-3 scatter gradients after every micro-batch, layer by layer"


def _on_lines(cluster: Cluster) -> Iterable[str]:
    pairs = combinations(range(len(cluster.node_groups)), 2)
    if any(cluster.path(a, b).total_bytes_per_s is not None for a, b in pairs):
        yield (
            "the replicas that cross at once share a line's `total` evenly; each boundary between two node groups has"
            " the line to itself, and each direction all of it; lines reach the share of `total` that networks reach"
        )


def _on_uplinks(cluster: Cluster) -> Iterable[str]:
    if cluster.topology is None:
        return
    yield (
        "an uplink shares its rate evenly over what the plan sends through it at once: the stages that reduce"
        " gradients, and apart from them the replicas of all boundaries between stages, each way; nothing but the"
        " plan's traffic is counted; a boundary takes as long as its slowest replica; uplinks reach the share that"
        " networks reach; the all-reduce of tied matrices does not count uplinks"
    )
    yield (
        "the lower bound takes each stage's gradient rings, and transfers between node groups, at the best places that"
        " there are and alone on their uplinks; other transfers, all-to-alls and rings of several shapes as if no"
        " uplink limited them"
    )


def _on_nics(cluster: Cluster) -> Iterable[str]:
    for group in cluster.node_groups:
        affinity = group.nic_affinity
        if affinity is not None:
            used = "the NICs near them" if not affinity.far_chips else "NICs of which some are not near them"
            numbers = " ".join(map(str, affinity.use))
            yield f"the chips of a node of {group.name} use {used}: NIC {numbers}, in the order of the chips"


def _on_communication(model: ModelSpec, graph: LayerGraph) -> Iterable[str]:
    if not graph.is_chain:
        yield (
            "a tensor goes once and directly from the stage that makes it to each stage that needs it, not through the"
            " stages between; all that one stage sends another is one transfer; each pair of stages has its own link"
        )
    yield (
        "a gradient ring that leaves the node uses the NICs of all chips of its stage there; replicas of a stage sit in"
        " neighbouring slots"
    )
    if any(weight.tied_to for layer in graph.layers for weight in layer.weights):
        yield (
            "a tied matrix has a copy on every stage that uses it; the all-reduce of its gradient is counted at each"
            " stage's own NIC, the link between the stages is not"
        )
    if graph.num_experts:
        yield "tokens spread evenly over the experts"
    if max(model.training.context_parallel) > 1:
        yield "context parallel chips pass keys and values around in a ring, not overlapped with attention"

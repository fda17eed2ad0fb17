"""Small random models whose layers branch, on at most four chips, and the best plan over all sets by exhaustion.

The exhaustion knows the cost model's tables; sums, transfers, memory and the order of actions are its own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from itertools import permutations, product

from planner.cost.branching_recurrence import BranchTimes
from planner.cost.model import CostModel
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import LayerTable, Mode, Setting
from planner.graph import build_graph
from planner.spec import Cluster, ModelSpec, parse_cluster, parse_model
from tests.search.branching.test_branching_recurrence import step_by_longest_path

__all__ = ["all_plans", "best_by_exhaustion", "random_inputs"]

CHIP = (
    "{{memory: {memory} GiB, peak: {{bf16: 100 TFLOPS}}, memory_bandwidth: 1 TB/s, chips_per_node: {chips},"
    " host_staging: 20 GB/s, intra_node: {{bandwidth: {inside} GB/s, latency: 3 us}},"
    " nic: {{bandwidth: {nic} Gbps, latency: 50 us}}}}"
)


def random_inputs(seed: int, *, layers: int = 6, recompute: str = "[none]") -> tuple[Cluster, ModelSpec]:
    """Two node groups of one or two chips; up to `layers` nodes with times of their own on each chip."""
    r = random.Random(seed)
    chips = [
        CHIP.format(
            memory=r.choice([2, 2, 16]),
            chips=r.choice([1, 2]),
            inside=r.choice([1, 20]),
            nic=r.choice([1, 10, 100]),
        )
        for _ in range(2)
    ]
    cluster = f"""
name: two
node_groups: [{{name: a, chip: one, nodes: 1}}, {{name: b, chip: two, nodes: 1}}]
chips: {{one: {chips[0]}, two: {chips[1]}}}
"""
    n = r.randint(3, layers)
    nodes = ", ".join(_node(r, i) for i in range(n))
    pairs = [(u, v) for v in range(n) for u in range(v) if r.random() < r.choice([0.3, 0.5])]
    edges = ", ".join(_edge(r, u, v) for u, v in pairs)
    model = f"""
name: branches
model: {{graph: {{nodes: [{nodes}], edges: [{edges}]}}}}
training: {{sequence_length: 8, global_batch: {r.choice([4, 6, 8])}, micro_batch_sizes: [1, 2], recompute: {recompute}}}
"""
    return parse_cluster(cluster, "cluster.yaml"), parse_model(model, "model.yaml")


def _node(r: random.Random, i: int) -> str:
    times = ", ".join(
        f"{chip}: {{forward: {r.choice([1, 2, 3, 5])} ms, backward: {r.choice([2, 4, 7])} ms}}"
        for chip in ("one", "two")
    )
    parameters, saved, output = r.choice([1, 20, 40]) * 10**6, r.choice([1, 60, 200]), r.choice([1, 4, 20])
    return f"{{name: l{i}, parameters: {parameters}, saved: {saved} MB, output: {output} MB, times: {{{times}}}}}"


def _edge(r: random.Random, u: int, v: int) -> str:
    size = f", bytes: {r.choice([2, 30])} MB" if r.random() < 0.3 else ""
    return f"{{source: l{u}, target: l{v}{size}}}"


def best_by_exhaustion(cluster: Cluster, model: ModelSpec) -> float:
    """The least step time over every plan of identical pipelines: sets of layers in every order, with the fastest
    recompute that fits; inf when nothing fits.
    """
    best = math.inf
    for times, held, m, _ in all_plans(cluster, model):
        busy = zip(times.forward, times.backward, times.update, strict=True)
        if max(m * (forward + backward) + update for forward, backward, update in busy) < best:
            best = min(best, step_by_longest_path(times, held, m))
    return best


Timed = tuple[BranchTimes, tuple[int, ...], int, tuple[int, ...]]
"""Times, micro-batches in flight, their number, and the stage of each layer."""


def all_plans(cluster: Cluster, model: ModelSpec) -> Iterator[Timed]:
    graph = build_graph(model)
    cost = CostModel(cluster, model, graph)
    position = {layer.name: i for i, layer in enumerate(graph.layers)}
    edges = [(position[e.source], position[e.target]) for e in graph.edges]
    sizes = {(position[e.source], position[e.target]): e.elements for e in graph.edges}
    for setting in cost.settings:
        for shape in _shapes(cost, setting):
            for stage_of in _assignments(len(graph.layers), edges, len(shape)):
                yield from _times(cost, setting, shape, stage_of, sizes)


def _shapes(cost: CostModel, setting: Setting) -> Iterator[tuple[int, ...]]:
    """The group of every stage: those of a group are neighbours (no layer of these models splits, so tensor is 1)."""
    counts = [range(group.max_stages(1, setting.data_parallel) + 1) for group in cost.groups]
    for chosen in product(*counts):
        used = [g for g, n in enumerate(chosen) if n]
        if 0 < sum(chosen) <= cost.chain.num_layers:
            for order in permutations(used):
                yield tuple(g for g in order for _ in range(chosen[g]))


def _assignments(n: int, edges: list[tuple[int, int]], p: int) -> Iterator[tuple[int, ...]]:
    """Maps from layers to stages that fill every stage and go along the edges."""
    for stage_of in product(range(p), repeat=n):
        if len(set(stage_of)) == p and all(stage_of[u] <= stage_of[v] for u, v in edges):
            yield stage_of


def _times(
    cost: CostModel,
    setting: Setting,
    shape: tuple[int, ...],
    stage_of: tuple[int, ...],
    sizes: dict[tuple[int, int], float],
) -> Iterator[Timed]:
    p = len(shape)
    own = Setting(setting.micro_batch_size, setting.data_parallel, single_stage=p == 1)
    m = cost.global_batch // (own.micro_batch_size * own.data_parallel)
    held = in_flight_counts("1f1b", p, m)
    sent: dict[tuple[int, int], dict[tuple[int, float], float]] = {}
    for (u, v), elements in sizes.items():
        if stage_of[u] != stage_of[v]:
            sent.setdefault((stage_of[u], stage_of[v]), {})[u, elements] = elements
    seconds = [
        [
            *_stage(
                cost, own, shape[s], [v for v, at in enumerate(stage_of) if at == s], held[s], _received(sent, s, own)
            )
        ]
        for s in range(p)
    ]
    there, back = {}, {}
    for a, b in sent:
        there[a, b], back[a, b] = _transfer(cost, own, shape, a, b, sum(sent[a, b].values()))
    for chosen in product(*seconds):
        forward, backward, update = ([own[i] for own in chosen] for i in range(3))
        yield BranchTimes(forward, backward, update, there, back), held, m, stage_of


def _received(sent: dict[tuple[int, int], dict[tuple[int, float], float]], s: int, setting: Setting) -> float:
    """Bytes that arrive at a stage for one micro-batch; bf16 has two an element."""
    return 2 * setting.micro_batch_size * sum(sum(t.values()) for pair, t in sent.items() if s in pair)


def _stage(
    cost: CostModel, setting: Setting, group: int, layers: list[int], held: int, received: float
) -> Iterator[tuple[float, float, float]]:
    """Forward, backward and update seconds under every recompute choice that fits; only the fastest of equal ones."""
    table = cost.table(group, Mode(1), setting)
    assert table is not None
    kinds = [cost.chain.kinds[v] for v in layers]
    found = set()
    for policies in product(range(len(cost.policies)), repeat=len(kinds)):
        if _needs(table, kinds, policies, held) + received <= table.usable_bytes:
            backward = sum(table.backward_input_s[k] + table.backward_weight_s[k] for k in kinds)
            again = sum(table.recompute_s[q, k] for q, k in zip(policies, kinds, strict=True))
            update = sum(table.reduction_s[k] + table.optimizer_s[k] for k in kinds) + table.fixed_update_s
            found.add((float(sum(table.forward_s[k] for k in kinds)), float(backward + again), float(update)))
    yield from sorted(found)[:1]


def _needs(table: LayerTable, kinds: list[int], policies: tuple[int, ...], held: int) -> float:
    total = sum(table.static_bytes[k] + held * table.saved_bytes[q, k] for q, k in zip(policies, kinds, strict=True))
    return float(total + max(table.transient_bytes[q, k] for q, k in zip(policies, kinds, strict=True)))


def _transfer(
    cost: CostModel, setting: Setting, shape: tuple[int, ...], a: int, b: int, elements: float
) -> tuple[float, float]:
    """Both ways; groups have one node, which its stages share. `tests/plan/test_branching.py` compares the rates."""
    source, target = shape[a], shape[b]
    return cost.transfer(source, Mode(1), target, Mode(1), source == target, setting).seconds(elements)

"""Small random problems from tables alone, and exhaustive enumeration of their plans."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise, permutations, product

import numpy as np

from planner.cost.placement import crosses_node
from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import Chain, ChipGroup, LayerTable, Mode, Offload, Setting, TransferTable
from planner.cost.tiers import Tier
from planner.spec.model import ModelSpec


def of_one_shape(model: ModelSpec) -> ModelSpec:
    """The model with identical pipelines alone."""
    constraints = model.constraints.model_copy(update={"shapes": "identical"})
    return model.model_copy(update={"constraints": constraints})


@dataclass
class TableProblem:
    """A `Problem` whose numbers are drawn once."""

    chain: Chain
    groups: tuple[ChipGroup, ...]
    policies: tuple[str, ...]
    global_batch: int
    settings: tuple[Setting, ...]
    schedules: tuple[str, ...]
    tables: dict[tuple[int, Mode, Setting], LayerTable] = field(default_factory=dict)
    transfers: dict[tuple[int, Mode, int, Mode, bool], TransferTable] = field(default_factory=dict)

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        return self.tables.get((group, mode, setting))

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.transfers[source, source_mode, target, target_mode, same_node]


def random_problem(
    seed: int,
    max_layers: int = 7,
    zero_levels: tuple[int | None, ...] = (None,),
    equal_modes: float = 0.0,
    offloads: tuple[Tier, ...] = (Tier.CHIP,),
    stage_replicas: tuple[int, ...] = (1,),
) -> TableProblem:
    """At most 4 chips in at most 3 groups, at most `max_layers` layers, two or three recompute policies; memory tight
    in every second one.

    zero_levels: with several, a group has tables of its own for each, but in a share `equal_modes` of cases.
    stage_replicas: stages of r replicas have tables and transfers of their own, where r divides the micro-batch.
    offloads: with states in host memory layers take less on the chip, updates longer, and the host holds a few; on
    drives updates take longer still, drives hold more or less, and host memory buffers.
    """
    r = random.Random(seed)
    num_kinds = r.choice([1, 2, 2, 3])
    kinds = sorted(
        r.choices(range(num_kinds), k=r.randint(2, max_layers)), key=lambda k: k if r.random() < 0.7 else r.random()
    )
    chain = Chain(tuple(f"l{i}" for i in range(len(kinds))), tuple(kinds), tuple(f"k{i}" for i in range(num_kinds)))
    shapes = r.choice(
        [[(2, 2)], [(1, 2), (1, 2)], [(2, 1), (1, 2)], [(4, 1)], [(1, 1), (1, 1), (2, 1)], [(3, 1), (1, 1)], [(1, 4)]]
    )
    groups = tuple(
        ChipGroup(
            *(f"g{i}", f"chip{i}", n, c, tuple(t for t in (1, 2, 4) if c % t == 0), r.uniform(1, 4)),
            *(zero_levels, offloads, stage_replicas),
        )
        for i, (n, c) in enumerate(shapes)
    )
    batch = r.choice([2, 4, 6, 8])
    settings = tuple(
        Setting(b, d) for b in (1, 2) for d in (1, 2, 3, 4) if batch % (b * d) == 0 and r.random() < 0.8
    ) or (Setting(1, 1),)
    policies = r.choice([("none", "full"), ("none", "selective", "full")])
    problem = TableProblem(
        chain, groups, policies, batch, settings, (r.choice(["1f1b", "1f1b", "gpipe", "eager_1f1b"]),)
    )
    tight = seed % 2 == 0
    for setting in settings:
        for single in (False, True):
            for g, group in enumerate(groups):
                for mode in (mode for mode in group.modes if setting.micro_batch_size % mode.replicas == 0):
                    key = Setting(setting.micro_batch_size, setting.data_parallel, single_stage=single)
                    own = "" if mode.zero is None or r_of(seed, g, mode).random() < equal_modes else f" {mode.zero}"
                    own += f" x {mode.replicas}" if mode.replicas > 1 else ""
                    table = _random_table(
                        random.Random(f"{seed} {g} {mode.tensor} {setting} {single}{own}"),
                        num_kinds,
                        len(policies),
                        len(kinds),
                        tight,
                    )
                    problem.tables[g, mode, key] = _off_chip(table, mode, len(kinds), seed, g)
    for g, h in product(range(len(groups)), repeat=2):
        for t, u in product(groups[g].tensor_degrees, groups[h].tensor_degrees):
            for same in (False, True):
                slow = r.choice([0.0, 0.1, 1.0, 5.0])
                draw = [r.random() * slow for _ in range(2)]
                spread = r.random() < 0.3
                table = TransferTable(
                    np.array([draw[0] * (r.random() if spread else 1) for _ in range(num_kinds)]),
                    np.array([draw[1] * (r.random() if spread else 1) for _ in range(num_kinds)]),
                )
                for one, other in product(groups[g].modes, groups[h].modes):
                    if (one.tensor, other.tensor) == (t, u):
                        factor = 2 / (one.replicas + other.replicas)
                        own_table = TransferTable(factor * table.forward_s, factor * table.backward_s)
                        problem.transfers[g, one, h, other, same] = own_table
    return problem


def _offloaded(table: LayerTable, layers: int, r: random.Random) -> LayerTable:
    """The table with optimizer states in host memory, of which a stage may use enough for some layers."""
    held = np.array([r.uniform(0.5, 1.5) for _ in table.static_bytes]) * 2**30
    return replace(
        table,
        static_bytes=table.static_bytes * r.uniform(0.3, 0.9),
        optimizer_s=table.optimizer_s + table.forward_s * r.choice([0.1, 0.5, 2.0]),
        host_bytes=held,
        usable_host_bytes=r.choice([0.3, 0.6, 1.0, 10.0]) * layers * 2**30,
    )


def _off_chip(table: LayerTable, mode: Mode, layers: int, seed: int, group: int) -> LayerTable:
    """The table with optimizer states where the mode has them."""
    if not mode.offload:
        return table
    table = _offloaded(table, layers, r_of(seed, group, mode))
    if mode.offload is not Tier.NVME:
        return table
    r = r_of("drives", seed, group)
    return replace(
        table,
        optimizer_s=table.optimizer_s + table.forward_s * r.choice([0.0, 0.1, 1.0]),
        host_bytes=None,
        host_fixed_bytes=r.choice([0.1, 0.5, 2.0]) * 2**30,
        nvme_bytes=table.host_bytes,
        usable_nvme_bytes=r.choice([0.4, 0.7, 10.0]) * layers * 2**30,
    )


def r_of(*key: object) -> random.Random:
    return random.Random(f"{key}")


def _random_table(r: random.Random, kinds: int, policies: int, layers: int, tight: bool) -> LayerTable:
    speed = r.choice([0.5, 1.0, 1.0, 3.0])
    forward = np.array([speed * r.choice([0.1, 1.0, 1.0, 2.5]) * r.uniform(0.8, 1.2) for _ in range(kinds)])
    backward = forward * r.uniform(0.7, 2.2)
    saved = np.array([r.uniform(0.5, 1.5) for _ in range(kinds)]) * 2**30
    shrink = np.array([1.0, 0.5, 0.1])[[0, 2] if policies == 2 else [0, 1, 2]]
    extra = np.array([0.0, 0.2, 1.0])[[0, 2] if policies == 2 else [0, 1, 2]]
    static = np.array([r.uniform(0.5, 2.0) for _ in range(kinds)]) * 2**30
    transient = np.outer(np.array([0.1, 0.3, 1.0])[[0, 2] if policies == 2 else [0, 1, 2]], saved)
    usable = (r.uniform(0.8, 4.0) if tight else 1000.0) * layers / 2 * 2**30
    return LayerTable(
        forward,
        backward * 0.5,
        backward * 0.5,
        np.outer(extra, forward),
        static,
        np.outer(shrink, saved),
        transient,
        forward * r.choice([0.0, 0.3, 2.0]),
        forward * 0.1,
        0.1 * 2**30,
        usable,
        r.choice([0.0, 0.2]),
    )


def random_offload_problem(seed: int, max_layers: int = 5, offloads: tuple[Tier, ...] = (Tier.CHIP,)) -> TableProblem:
    """A random problem whose layers may also be offloaded, over host links slow and fast, to much or little memory;
    offloads: where optimizer states may be beside.
    """
    problem = random_problem(seed, max_layers, offloads=offloads)
    r = random.Random(f"offload {seed}")
    bases = list(range(len(problem.policies)))
    bases = r.choice([bases, bases[:1], bases[-1:]])
    problem.policies += tuple(
        "offload" if problem.policies[q] == "none" else f"{problem.policies[q]}_offload" for q in bases
    )
    slowness, room = r.choice([0.0, 0.3, 1.0, 2.0, 4.0]), r.choice([float("inf"), 0.0, 1.0, 3.0, 8.0])
    if r.random() < 0.2:
        problem.policies = problem.policies[1:]  # nothing may simply stay
    for key, table in problem.tables.items():
        problem.tables[key] = _with_offload(table, bases, slowness, room * 2**30, len(problem.policies))
    return problem


def _with_offload(table: LayerTable, bases: list[int], slowness: float, room: float, policies: int) -> LayerTable:
    """slowness: seconds to copy a GiB.  The last `policies` rows are kept."""
    plain, moved = np.zeros_like(table.saved_bytes), table.saved_bytes[bases]
    copies = moved / 2**30 * slowness
    arithmetic = table.backward_input_s + table.backward_weight_s + table.recompute_s[bases]
    out, back = np.maximum(0.0, copies - table.forward_s), np.maximum(0.0, copies - arithmetic)
    host = np.vstack([plain, moved])[-policies:]
    transient = table.transient_bytes[:1] + 0.2 * moved
    return replace(
        table,
        recompute_s=np.vstack([table.recompute_s, table.recompute_s[bases] + back])[-policies:],
        saved_bytes=np.vstack([table.saved_bytes, 0.0 * moved])[-policies:],
        transient_bytes=np.vstack([table.transient_bytes, transient])[-policies:],
        offload=Offload(np.vstack([plain, out])[-policies:], host, 0.1 * host),
        usable_host_bytes=min(room, table.usable_host_bytes),
    )


def shapes_of(problem: TableProblem, setting: Setting) -> Iterator[tuple[tuple[int, Mode, int], ...]]:
    """Every order of (group, mode, stages)."""
    choices = []
    for group in problem.groups:
        choices.append(
            [None]
            + [
                (t, n)
                for t in group.modes
                if setting.micro_batch_size % t.replicas == 0
                for n in range(1, min(problem.chain.num_layers, _room(group, t, setting)) + 1)
            ]
        )
    for picked in product(*choices):
        active = [(g, *c) for g, c in enumerate(picked) if c is not None]
        if active and sum(n for _, _, n in active) <= problem.chain.num_layers:
            yield from permutations(active)


def _room(group: ChipGroup, mode: Mode, setting: Setting) -> int:
    return group.nodes * (group.chips_per_node // mode.tensor) // (setting.data_parallel * mode.replicas)


def best_by_enumeration(problem: TableProblem, prices: tuple[float, ...] | None = None) -> float:
    """The least objective over every plan of the space; inf when none fits."""
    best = float("inf")
    for schedule in problem.schedules:
        for setting in problem.settings:
            m = problem.global_batch // (setting.micro_batch_size * setting.data_parallel)
            for order in shapes_of(problem, setting):
                weight = 1.0
                if prices is not None:
                    weight = sum(prices[g] * t.chips * n * setting.data_parallel for g, t, n in order)
                best = min(best, weight * _best_of_shape(problem, setting, schedule, m, order))
    return best


def _best_of_shape(problem, setting, schedule, m, order):  # type: ignore[no-untyped-def]
    stages = [(g, t, j) for g, t, n in order for j in range(n)]
    p, layers = len(stages), problem.chain.num_layers
    key = Setting(setting.micro_batch_size, setting.data_parallel, single_stage=p == 1)
    tables = [problem.tables[g, t, key] for g, t, _ in stages]
    k = in_flight_counts(schedule, p, m)
    boundaries = []
    for (g, t, j), (h, u, _) in pairwise(stages):
        slots = problem.groups[g].chips_per_node // t.tensor
        same = g == h and not crosses_node(j, setting.data_parallel * t.replicas, slots)
        boundaries.append(problem.transfers[g, t, h, u, same])
    options = {
        (s, a, b): _stage_choices(problem, tables[s], k[s], a, b)
        for s in range(p)
        for a in range(layers)
        for b in range(a + 1, layers + 1)
    }
    best = float("inf")
    for cuts in combinations(range(1, layers), p - 1):
        ends = (0, *cuts, layers)
        last = [problem.chain.kinds[e - 1] for e in cuts]
        send_f = [float(x.forward_s[kind]) for x, kind in zip(boundaries, last, strict=True)]
        send_b = [float(x.backward_s[kind]) for x, kind in zip(boundaries, last, strict=True)]
        for chosen in product(*(options[s, ends[s], ends[s + 1]] for s in range(p))):
            times = ChainTimes([c[0] for c in chosen], [c[1] for c in chosen], [c[2] for c in chosen], send_f, send_b)
            best = min(best, step_time(times, k, m))
    return best


def _stage_choices(problem, table, k_s, a, b):  # type: ignore[no-untyped-def]
    """(forward, backward, update) of every recompute choice that fits, dominated ones left out (times are monotone)."""
    per_kind = [problem.chain.kinds[a:b].count(kind) for kind in range(len(problem.chain.kind_names))]
    num_policies = table.recompute_s.shape[0]
    found = []
    for picks in product(*(_compositions(n, num_policies) for n in per_kind)):
        memory, working, staging, on_host = table.fixed_bytes, 0.0, 0.0, table.host_fixed_bytes
        backward = forward = 0.0
        for kind, counts in enumerate(picks):
            memory += per_kind[kind] * table.static_bytes[kind]
            backward += per_kind[kind] * (table.backward_input_s[kind] + table.backward_weight_s[kind])
            forward += per_kind[kind] * table.forward_s[kind]
            for q, n in enumerate(counts):
                if n:
                    memory += n * k_s * table.saved_bytes[q, kind]
                    backward += n * table.recompute_s[q, kind]
                    working = max(working, table.transient_bytes[q, kind])
                    if table.offload is not None:
                        forward += n * table.offload.forward_s[q, kind]
                        staging = max(staging, table.offload.staging_bytes[q, kind])
                        on_host += n * k_s * table.offload.host_bytes[q, kind]
        if table.host_bytes is not None:
            on_host += sum(n * table.host_bytes[kind] for kind, n in enumerate(per_kind))
        states = [0.0] * len(per_kind) if table.nvme_bytes is None else table.nvme_bytes
        on_drives = sum(n * states[kind] for kind, n in enumerate(per_kind))
        off_chip = on_host <= table.usable_host_bytes and on_drives <= table.usable_nvme_bytes
        if memory + working + staging <= table.usable_bytes and off_chip:
            found.append((forward, backward))
    update = sum(n * (table.reduction_s[kind] + table.optimizer_s[kind]) for kind, n in enumerate(per_kind))
    return [(f, b, update + table.fixed_update_s) for f, b in _undominated(found)]


def _undominated(pairs: list[tuple[float, float]]) -> list[tuple[float, float]]:
    kept: list[tuple[float, float]] = []
    for pair in sorted(set(pairs)):
        if not kept or pair[1] < kept[-1][1]:
            kept.append(pair)
    return kept


def _compositions(total: int, parts: int) -> list[tuple[int, ...]]:
    return [c for c in product(range(total + 1), repeat=parts) if sum(c) == total]

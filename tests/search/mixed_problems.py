"""Small random problems in which pipelines of several shapes may train together, and every mix enumerated.

The enumeration shares the recurrence of one pipeline and the tables with the search, and nothing else: places, sharing
of layers, reductions and recompute choices are worked out here again.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, product

import numpy as np

from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import Chain, ChipGroup, Holder, LayerTable, Mode, Offload, Reduction, Setting, TransferTable
from planner.cost.tiers import Tier

GIB = 2.0**30


@dataclass
class MixedTables:
    """A `MixedProblem` whose numbers depend on a seed alone."""

    seed: int
    chain: Chain
    groups: tuple[ChipGroup, ...]
    policies: tuple[str, ...]
    global_batch: int
    sizes: tuple[int, ...]
    schedules: tuple[str, ...]
    tight: bool
    may_mix: bool = True
    """Groups with `offloads` have states off the chip that take less of it and longer to update."""

    def __post_init__(self) -> None:
        self.cache: dict[object, object] = {}

    @property
    def settings(self) -> tuple[Setting, ...]:
        """As the cost model lists them: what divides the batch."""
        return tuple(
            Setting(b, d)
            for b in self.sizes
            for d in range(1, self.global_batch + 1)
            if self.global_batch % (b * d) == 0
        )

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        return self.sizes

    def draw(self, *key: object) -> random.Random:
        return random.Random(f"{self.seed} {key}")

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        key = (group, mode, setting)
        if key not in self.cache:
            table = self._table(group, mode.tensor, setting)
            offloaded = table is not None and mode.offload
            self.cache[key] = self._offloaded(table, group, mode.offload) if table and offloaded else table
        return self.cache[key]  # type: ignore[return-value]

    def _table(self, group: int, tensor: int, setting: Setting) -> LayerTable | None:
        if tensor not in self.groups[group].tensor_degrees:
            return None
        if not setting.mixed and self.groups[group].max_stages(tensor, setting.data_parallel) < 1:
            return None
        r = self.draw(group, tensor, setting.micro_batch_size, setting.single_stage)
        kinds, policies, d = len(self.chain.kind_names), len(self.policies), setting.data_parallel
        speed = r.choice([0.5, 1.0, 1.0, 3.0]) / tensor**0.8 * setting.micro_batch_size**0.9
        forward = np.array([speed * r.choice([0.3, 1.0, 1.0, 2.0]) * r.uniform(0.8, 1.2) for _ in range(kinds)])
        backward = forward * r.uniform(0.8, 2.2)
        saved = np.array([r.uniform(0.5, 1.5) for _ in range(kinds)]) * GIB * setting.micro_batch_size / tensor
        static = np.array([r.uniform(0.5, 2.0) for _ in range(kinds)]) * GIB / tensor
        shrink, extra = np.array([1.0, 0.1])[:policies], np.array([0.0, 1.0])[:policies]
        usable = (r.uniform(1.2, 4.0) if self.tight else 1000.0) * self.chain.num_layers / 2 * GIB
        least = self.least_reduction(group, tensor, d)
        rings = 1.0 if setting.mixed else self.draw("ring", group, tensor, d).uniform(1.0, 1.4)
        offload, on_host = None, math.inf
        if "offload" in self.policies:  # of what the second policy adds, 0.4 are forward
            host = np.outer([0.0, 1.0], saved)
            offload = Offload(0.4 * np.outer(extra, forward), host, 0.05 * host)
            on_host = r.choice([2.0, 1e9]) * GIB
            extra = 0.6 * extra
        return LayerTable(
            forward,
            backward * 0.5,
            backward * 0.5,
            np.outer(extra, forward),
            static * (0.5 + 0.5 / d),
            np.outer(shrink, saved),
            np.outer(np.array([0.1, 1.0])[:policies], saved),
            least.seconds * rings,
            forward * 0.1,
            0.0 if setting.single_stage else 0.1 * GIB,
            usable,
            least.fixed_s * rings,
            offload=offload,
            usable_host_bytes=on_host,
        )

    def _offloaded(self, table: LayerTable, group: int, tier: Tier) -> LayerTable:
        table = self._on_host(table, group)
        if tier is Tier.HOST:
            return table
        r = self.draw("drives", group)
        return replace(
            table,
            optimizer_s=table.optimizer_s + table.forward_s * r.choice([0.0, 0.1, 1.0]),
            host_bytes=None,
            host_fixed_bytes=r.choice([0.1, 1.0]) * GIB,
            nvme_bytes=table.host_bytes,
            usable_nvme_bytes=r.choice([0.5, 10.0]) * self.chain.num_layers * GIB,
        )

    def _on_host(self, table: LayerTable, group: int) -> LayerTable:
        r = self.draw("host", group)
        return replace(
            table,
            static_bytes=table.static_bytes * r.uniform(0.2, 0.8),
            optimizer_s=table.optimizer_s + table.forward_s * r.choice([0.1, 0.5, 2.0]),
            host_bytes=np.array([r.uniform(0.5, 1.5) for _ in table.static_bytes]) * GIB,
            usable_host_bytes=min(table.usable_host_bytes, r.choice([0.4, 0.8, 10.0]) * self.chain.num_layers * GIB),
        )

    def least_reduction(self, group: int, tensor: int, replicas: int) -> Reduction:
        r = self.draw("reduce", group, tensor)
        size = r.choice([0.0, 0.2, 1.0]) * 2 * (replicas - 1) / replicas
        return Reduction(np.array([size * r.uniform(0.5, 1.5) for _ in self.chain.kind_names]), 0.05 * (replicas - 1))

    def reduction(self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1) -> Reduction:
        mine = holders[own]
        assert sum(h.replicas for h in holders) == setting.data_parallel and setting.mixed
        least = self.least_reduction(mine.group, mine.tensor, setting.data_parallel)
        slow = 1.0 + 0.5 * (len({h.group for h in holders}) - 1) + 0.3 * any(h.nodes > 1 for h in holders)
        slow += 0.1 * (sharing - 1) + 0.2 * (len({h.tensor for h in holders}) - 1) + 0.05 * max(h.node for h in holders)
        slow += 0.1 / min(h.per_node for h in holders)
        return Reduction(least.seconds * slow, least.fixed_s * slow)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        r = self.draw("send", source, source_mode.tensor, target, target_mode.tensor)
        slow = r.choice([0.05, 0.2, 1.0]) * setting.micro_batch_size * (0.3 if same_node else 1.0)
        sharing = 1 if setting.mixed or source == target else setting.data_parallel
        kinds = [slow * sharing * r.uniform(0.8, 1.0) for _ in self.chain.kind_names]
        return TransferTable(np.array(kinds), np.array(kinds) * r.uniform(0.5, 1.0))


def with_offload(problem: MixedTables) -> MixedTables:
    """The same pools and layers with `offload` as the second policy: time that it adds is divided over both passes in
    one proportion, so that the least time is also the least in each.
    """
    return replace(problem, policies=("none", "offload"))


def random_mixed_problem(seed: int, offloads: tuple[Tier, ...] = (Tier.CHIP,)) -> MixedTables:
    """At most 6 chips in two or three groups, at most 6 layers; memory tight in every second one."""
    r = random.Random(seed)
    num_kinds = r.choice([1, 2])
    layers = r.choice([2, 3, 3, 4, 4, 5, 6])
    kinds = sorted(r.choices(range(num_kinds), k=layers))
    chain = Chain(tuple(f"l{i}" for i in range(layers)), tuple(kinds), tuple(f"k{i}" for i in range(num_kinds)))
    pools = [[(2, 1), (1, 1)], [(3, 1), (2, 1)], [(1, 2), (1, 1)], [(1, 2), (2, 1)], [(1, 3), (1, 2)]]
    pools += [[(2, 2), (1, 1)], [(1, 2), (1, 2), (1, 1)], [(2, 1), (1, 1), (1, 1)], [(1, 4), (1, 1)], [(3, 1), (3, 1)]]
    shapes = r.choice(pools)
    groups = tuple(
        ChipGroup(f"g{i}", f"chip{i}", n, c, tuple(t for t in (1, 2) if t <= c), offloads=offloads)
        for i, (n, c) in enumerate(shapes)
    )
    schedules = r.choice([("1f1b",), ("1f1b",), ("gpipe",), ("eager_1f1b",), ("1f1b", "gpipe")])
    policies = r.choice([("none",), ("none", "full")])
    sizes = r.choice([(1,), (1, 2)])
    batch = r.choice([3, 4, 5, 6] if layers < 5 else [3, 4])
    return MixedTables(seed, chain, groups, policies, batch, sizes, schedules, seed % 2 == 0)


# --- every mix --------------------------------------------------------------------------------------------------

Pipe = tuple[str, int, tuple[tuple[int, Mode], ...], tuple[int, ...], tuple[tuple[tuple[int, ...], ...], ...], int]
"""schedule, micro-batch size, (group, mode) a stage, ends, recompute counts a stage, micro-batches."""


def best_mix_by_enumeration(problem: MixedTables) -> float:
    """The least step time over every mix; inf when none fits."""
    best = [float("inf")]
    chips = tuple(g.nodes * g.chips_per_node for g in problem.groups)
    for replicas in range(1, min(sum(chips), problem.global_batch) + 1):
        pipes = sorted(pipelines(problem, replicas), key=lambda x: x[0])
        for mix in mixes(problem, pipes, replicas, chips, lambda: best[0]):
            best[0] = min(best[0], time_of_mix(problem, mix))
    return best[0]


def pipelines(problem: MixedTables, replicas: int) -> Iterator[tuple[float, Pipe]]:
    """Every pipeline that fits its chips' memory, with seconds that it cannot undercut: without any communication."""
    for schedule, size, stages in product(problem.schedules, problem.sizes, stage_lists(problem)):
        for m in range(1, problem.global_batch // size + 1):
            setting = Setting(size, replicas, single_stage=len(stages) == 1, mixed=True)
            held = in_flight_counts(schedule, len(stages), m)
            for cuts in combinations(range(1, problem.chain.num_layers), len(stages) - 1):
                ends = (*cuts, problem.chain.num_layers)
                chosen = recompute(problem, setting, stages, ends, held)
                if chosen is not None:
                    pipe = (schedule, size, stages, ends, chosen, m)
                    yield step_time(bare_times(problem, setting, pipe), held, m), pipe


def stage_lists(problem: MixedTables) -> Iterator[tuple[tuple[int, Mode], ...]]:
    kinds = [(g, mode) for g, group in enumerate(problem.groups) for mode in group.modes]
    for length in range(1, problem.chain.num_layers + 1):
        for stages in product(kinds, repeat=length):
            used = Counter[int]()
            for g, t in stages:
                used[g] += t.tensor
            if all(n <= problem.groups[g].nodes * problem.groups[g].chips_per_node for g, n in used.items()):
                yield stages


def recompute(problem, setting, stages, ends, held):  # type: ignore[no-untyped-def]
    """The least recompute of every stage that fits, over all choices; None when a stage does not fit."""
    chosen, first = [], 0
    for (g, t), end, k in zip(stages, ends, held, strict=True):
        table = problem.table(g, t, setting)
        counts = Counter(problem.chain.kinds[first:end])
        best = None
        states = 0.0 if table.host_bytes is None else sum(n * table.host_bytes[i] for i, n in counts.items())
        on_drives = 0.0 if table.nvme_bytes is None else sum(n * table.nvme_bytes[i] for i, n in counts.items())
        options = [
            [
                (n - x, x) if len(problem.policies) == 2 else (n,)
                for x in range(n + 1 if len(problem.policies) == 2 else 1)
            ]
            for n in (counts[i] for i in range(len(problem.chain.kind_names)))
        ]
        for choice in product(*options):
            size = table.fixed_bytes + sum(n * table.static_bytes[i] for i, n in counts.items())
            cost, work, staging, on_host = 0.0, 0.0, 0.0, states + table.host_fixed_bytes
            for i, row in enumerate(choice):
                for q, n in enumerate(row):
                    size += n * k * table.saved_bytes[q, i]
                    cost += n * table.recompute_s[q, i]
                    work = max(work, table.transient_bytes[q, i] if n else 0.0)
                    if table.offload is not None and n:
                        staging = max(staging, table.offload.staging_bytes[q, i])
                        on_host += n * k * table.offload.host_bytes[q, i]
            if on_host > table.usable_host_bytes or on_drives > table.usable_nvme_bytes:
                continue
            if size + work + staging <= table.usable_bytes and (best is None or cost < best[0]):
                best = (cost, choice)
        if best is None:
            return None
        chosen.append(best[1])
        first = end
    return tuple(chosen)


def bare_times(problem: MixedTables, setting: Setting, pipe: Pipe) -> ChainTimes:
    _, _, stages, ends, chosen, _ = pipe
    forward, backward = [], []
    for s, (g, t) in enumerate(stages):
        table = problem.table(g, t, setting)
        layers = problem.chain.kinds[ends[s - 1] if s else 0 : ends[s]]
        waits = 0.0
        if table.offload is not None:
            added = table.offload.forward_s
            waits = sum(n * float(added[q, k]) for k, row in enumerate(chosen[s]) for q, n in enumerate(row))
        forward.append(sum(float(table.forward_s[k]) for k in layers) + waits)
        again = sum(n * float(table.recompute_s[q, k]) for k, row in enumerate(chosen[s]) for q, n in enumerate(row))
        backward.append(sum(float(table.backward_input_s[k] + table.backward_weight_s[k]) for k in layers) + again)
    nothing = [0.0] * (len(stages) - 1)
    return ChainTimes(forward, backward, [0.0] * len(stages), nothing, nothing)


def mixes(problem, pipes, replicas, chips, best):  # type: ignore[no-untyped-def]
    """Every multiset of pipelines that fills the batch and fits the chips, but for those that cannot be the best."""

    def extend(chosen, start, missing, left):  # type: ignore[no-untyped-def]
        if len(chosen) == replicas:
            if missing == 0:
                yield chosen
            return
        for i in range(start, len(pipes)):
            seconds, pipe = pipes[i]
            if seconds >= best():
                return
            rest = list(left)
            for g, t in pipe[2]:
                rest[g] -= t.tensor
            if pipe[1] * pipe[5] <= missing and min(rest) >= 0:
                yield from extend([*chosen, pipe], i, missing - pipe[1] * pipe[5], rest)

    yield from extend([], 0, problem.global_batch, chips)


def time_of_mix(problem: MixedTables, mix: list[Pipe]) -> float:
    """Seconds of a step; inf when the pipelines cannot be placed."""
    entries = sorted(Counter(mix).items(), key=lambda e: (*e[0][:5], -e[0][5]))
    total = len(mix)
    if len(entries) == 1:
        return time_of_identical(problem, entries[0][0], total)
    places = first_fit(problem, [(p[2], n) for p, n in entries])
    if places is None:
        return float("inf")
    crossing = Counter[frozenset[int]]()
    for pipe, n in entries:
        for (g, _), (h, _) in pairwise(pipe[2]):
            if g != h:
                crossing[frozenset((g, h))] += n
    deepest = max(len(p[2]) for p, _ in entries)
    slowest = 0.0
    for j, (pipe, _) in enumerate(entries):
        schedule, size, stages, ends, _, m = pipe
        setting = Setting(size, total, single_stage=len(stages) == 1, mixed=True)
        bare = bare_times(problem, setting, pipe)
        onward, back = [], []
        for s, ((g, t), (h, u)) in enumerate(pairwise(stages)):
            same = g == h and all(x == y for x, y in zip(places[j][s], places[j][s + 1], strict=True))
            sharing = Setting(size, 1 if g == h else crossing[frozenset((g, h))])
            table = problem.transfer(g, t, h, u, same, sharing)
            onward.append(float(table.forward_s[problem.chain.kinds[ends[s] - 1]]))
            back.append(float(table.backward_s[problem.chain.kinds[ends[s] - 1]]))
        update = [updates(problem, entries, places, j, s, setting, deepest) for s in range(len(stages))]
        times = replace(bare, update=update, send_forward=onward, send_backward=back)
        slowest = max(slowest, step_time(times, in_flight_counts(schedule, len(stages), m), m))
    return slowest


def updates(problem, entries, places, j, s, setting, deepest):  # type: ignore[no-untyped-def]
    """Reduction and optimizer seconds of one stage, layer by layer; a fixed part for each set of holders."""
    _, _, stages, ends, _, _ = entries[j][0]
    table = problem.table(*stages[s], setting)
    total, seen = 0.0, set()
    for layer in range(ends[s - 1] if s else 0, ends[s]):
        holding = tuple(next(i for i, end in enumerate(p[3]) if layer < end) for p, _ in entries)
        holders = []
        for i, where in enumerate(holding):
            nodes = Counter(places[i][where])
            g, t = entries[i][0][2][where]
            holders.append(Holder(g, t.tensor, entries[i][1], len(nodes), min(nodes.values()), min(nodes)))
        reduced = problem.reduction(j, tuple(holders), setting, deepest)
        kind = problem.chain.kinds[layer]
        total += float(reduced.seconds[kind] + table.optimizer_s[kind])
        total += 0.0 if holding in seen else reduced.fixed_s
        seen.add(holding)
    return total


def first_fit(problem, shapes):  # type: ignore[no-untyped-def]
    """Node of every replica of every stage: the widest stages of a group first, each at the first node with room."""
    room = [[g.chips_per_node] * g.nodes for g in problem.groups]
    places = [[[-1] * n for _ in stages] for stages, n in shapes]
    stages = [(t.tensor, j, s, g) for j, (own, _) in enumerate(shapes) for s, (g, t) in enumerate(own)]
    for t, j, s, g in sorted(stages, key=lambda x: (-x[0], x[1], x[2])):
        for i in range(shapes[j][1]):
            node = next((n for n, free in enumerate(room[g]) if free >= t), None)
            if node is None:
                return None
            room[g][node] -= t
            places[j][s][i] = node
    return places


def time_of_identical(problem: MixedTables, pipe: Pipe, replicas: int) -> float:
    """A plan of one shape: its replicas fill a group's slots stage by stage, and its tables know their rings."""
    schedule, size, stages, ends, _, m = pipe
    setting = Setting(size, replicas, single_stage=len(stages) == 1)
    degrees = dict(stages)
    counts = Counter(g for g, _ in stages)
    for g, t in stages:
        slots = problem.groups[g].nodes * (problem.groups[g].chips_per_node // t.tensor)
        if degrees[g] != t or counts[g] * replicas > slots:
            return float("inf")
    held = in_flight_counts(schedule, len(stages), m)
    chosen = recompute(problem, setting, stages, ends, held)
    if chosen is None:
        return float("inf")
    onward, back, update = [], [], []
    for s, (g, t) in enumerate(stages):
        table = problem.table(g, t, setting)
        layers = problem.chain.kinds[ends[s - 1] if s else 0 : ends[s]]
        update.append(sum(float(table.reduction_s[k] + table.optimizer_s[k]) for k in layers) + table.fixed_update_s)
        if s + 1 < len(stages):
            h, u = stages[s + 1]
            index = sum(1 for x, _ in stages[:s] if x == g)
            per_node = problem.groups[g].chips_per_node // t.tensor
            same = g == h and all(
                (index * replicas + i) // per_node == ((index + 1) * replicas + i) // per_node for i in range(replicas)
            )
            send = problem.transfer(g, t, h, u, same, setting)
            onward.append(float(send.forward_s[layers[-1]]))
            back.append(float(send.backward_s[layers[-1]]))
    bare = bare_times(problem, setting, (schedule, size, stages, ends, chosen, m))
    return step_time(replace(bare, update=update, send_forward=onward, send_backward=back), held, m)

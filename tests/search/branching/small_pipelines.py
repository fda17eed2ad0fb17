"""Small random branching graphs on the stages of a pipeline, and the optimum over every assignment by exhaustion."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from itertools import product

from planner.cost.branching_recurrence import BranchTimes, branch_step_time
from planner.cost.schedule import SCHEDULES, in_flight_counts
from planner.search.branching.pipeline import PipelineProblem, StageTable
from planner.search.branching.problem import Tensor

GIB = float(2**30)


def random_pipeline(seed: int) -> PipelineProblem:
    """At most 7 layers on at most 4 stages of 1 to 3 tables; memory tight in every second one, tied layers in some."""
    r = random.Random(seed)
    n, p, m = r.randint(2, 7), r.choice([1, 2, 2, 3, 3, 4]), r.randint(1, 5)
    density = r.choice([0.25, 0.4, 0.7])
    consumers = [[v for v in range(u + 1, n) if r.random() < density] for u in range(n)]
    if r.random() < 0.5:
        tensors = [Tensor(u, tuple(after)) for u, after in enumerate(consumers) if after]
    else:
        tensors = [Tensor(u, (v,)) for u, after in enumerate(consumers) for v in after]
    kinds = [_table(r, n) for _ in range(r.randint(1, 3))]
    stages = tuple(kinds[i] for i in sorted(r.randrange(len(kinds)) for _ in range(p)))
    slow = r.choice([0.0, 0.3, 2.0])
    pairs = [(a, b) for b in range(p) for a in range(b)]
    there, back = (
        {pair: tuple(slow * r.choice([0.0, 0.5, 1.0, 2.0]) for _ in tensors) for pair in pairs} for _ in range(2)
    )
    tied = (tuple(sorted(r.sample(range(n), 2))),) if r.random() < 0.2 else ()
    counts = in_flight_counts(r.choice(SCHEDULES), p, m)
    return PipelineProblem(tuple(tensors), stages, counts, m, there, back, tied)


def _table(r: random.Random, n: int) -> StageTable:
    forward = [r.choice([0.0, 1.0, 1.5, 2.0, 4.0]) for _ in range(n)]
    static = [float(r.randint(0, 4)) * GIB for _ in range(n)]
    saved = [float(r.randint(0, 3)) * GIB for _ in range(n)]
    usable = r.uniform(0.3, 1.2) * (sum(static) + 2 * sum(saved)) if r.random() < 0.5 else 1000 * GIB
    return StageTable(
        forward_s=tuple(forward),
        backward_s=tuple(f * r.choice([1.0, 2.0, 3.0]) for f in forward),
        update_s=tuple(r.choice([0.0, 0.25, 1.0]) for _ in range(n)),
        static_bytes=tuple(static),
        saved_bytes=tuple(saved),
        transient_bytes=tuple(float(r.choice([0, 0, 1, 3])) * GIB for _ in range(n)),
        usable_bytes=float(round(usable / GIB)) * GIB,
        fixed_update_s=r.choice([0.0, 0.5]),
    )


def with_buffers_and_latency(problem: PipelineProblem, seed: int) -> PipelineProblem:
    """The problem with receive buffers of whole GiB on every stage, and latencies between some."""
    r = random.Random(seed)
    stages = tuple(
        replace(table, buffer_bytes=tuple(float(r.choice([0, 1, 2])) * GIB for _ in problem.tensors))
        for table in problem.stages
    )
    latency = {pair: (r.choice([0.25, 1.0]), r.choice([0.0, 2.0])) for pair in problem.pairs if r.random() < 0.7}
    return replace(problem, stages=stages, latency_s=latency)


def optimum_by_exhaustion(problem: PipelineProblem) -> float:
    """The least step time over all maps from layers to stages that keep the order, fill every stage and fit."""
    n, p = problem.num_layers, problem.num_stages
    best = math.inf
    for stage_of in product(range(p), repeat=n):
        if len(set(stage_of)) < p or not _in_order(problem, stage_of):
            continue
        if any(len({stage_of[v] for v in group}) > 1 for group in problem.together):
            continue
        received = [_received(problem, s, stage_of) for s in range(p)]
        if all(_fits(problem, s, [v for v in range(n) if stage_of[v] == s], received[s]) for s in range(p)):
            best = min(best, _step(problem, stage_of))
    return best


def _in_order(problem: PipelineProblem, stage_of: tuple[int, ...]) -> bool:
    return all(stage_of[t.source] <= stage_of[v] for t in problem.tensors for v in t.consumers)


def _received(problem: PipelineProblem, s: int, stage_of: tuple[int, ...]) -> float:
    """Buffers of tensors made elsewhere, and of gradients from every other stage that needs one made here."""
    total = 0.0
    for t, tensor in enumerate(problem.tensors):
        users = {stage_of[v] for v in tensor.consumers}
        times = len(users - {s}) if stage_of[tensor.source] == s else s in users
        total += times * (problem.stages[s].buffer_bytes[t] if problem.stages[s].buffer_bytes else 0.0)
    return total


def _fits(problem: PipelineProblem, s: int, layers: list[int], received: float) -> bool:
    """Whole GiB in these problems, so that sums are exact."""
    table = problem.stages[s]
    held = sum(table.static_bytes[v] + problem.in_flight[s] * table.saved_bytes[v] for v in layers)
    return held + received + max(table.transient_bytes[v] for v in layers) <= table.usable_bytes


def _step(problem: PipelineProblem, stage_of: tuple[int, ...]) -> float:
    p = problem.num_stages
    forward, backward, update = [0.0] * p, [0.0] * p, [table.fixed_update_s for table in problem.stages]
    for v, s in enumerate(stage_of):
        forward[s] += problem.stages[s].forward_s[v]
        backward[s] += problem.stages[s].backward_s[v]
        update[s] += problem.stages[s].update_s[v]
    there: dict[tuple[int, int], float] = {}
    back: dict[tuple[int, int], float] = {}
    for t, tensor in enumerate(problem.tensors):
        for b in range(stage_of[tensor.source] + 1, p):
            if b in [stage_of[v] for v in tensor.consumers]:
                pair = (stage_of[tensor.source], b)
                onward, return_ = problem.latency_s.get(pair, (0.0, 0.0))
                there[pair] = there.get(pair, onward) + problem.send_forward_s[pair][t]
                back[pair] = back.get(pair, return_) + problem.send_backward_s[pair][t]
    return branch_step_time(
        BranchTimes(forward, backward, update, there, back), problem.in_flight, problem.micro_batches
    )

"""The rule that judges a plan, from the cases' description alone: a plan and the case's document in, seconds out.

A plan is (micro-batch size, stages); a stage is (first layer, end, replicas), a replica (chip name, tensor degree,
node), in the order of the data parallel ranks. Shares no code with the adapter or the search.
"""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

Replica = tuple[str, int, int]
Stage = tuple[int, int, list[Replica]]


def violations(case: dict[str, Any], micro_batch_size: int, stages: list[Stage]) -> list[str]:
    """What breaks the rule; empty for a plan that may run."""
    found = []
    ends = [0, *(stage[1] for stage in stages)]
    if [stage[0] for stage in stages] != ends[:-1] or ends[-1] != len(case["layers"]) or ends != sorted(set(ends)):
        found.append("stages do not hold every layer once")
    if len({len(stage[2]) for stage in stages}) != 1:
        found.append("data parallel degrees differ")
    used: dict[tuple[str, int], int] = defaultdict(int)
    for i, (first, end, replicas) in enumerate(stages):
        for chip, degree, node in replicas:
            used[chip, node] += degree
            table = case["chips"][chip]["times_s"].get(str(micro_batch_size), {})
            if str(degree) not in table:
                found.append(f"{chip} has no times at degree {degree}")
            layers = case["layers"][first:end]
            weights = sum(layer["params"][str(degree)] for layer in layers) * 24
            kept = sum(layer["act_mem_elems_per_sample"][str(degree)] for layer in layers)
            held = kept * 4 * micro_batch_size * (len(stages) - i) + (2e9 if degree == 1 else 3e9)
            if weights + held > case["chips"][chip]["mem_bytes"]:
                found.append(f"stage {i} does not fit {chip}")
    for (chip, node), chips in used.items():
        count, size = case["chips"][chip]["count"], case["chips"][chip]["per_node"]
        if not 0 <= node < math.ceil(count / size) or chips > min(size, count - node * size):
            found.append(f"{chip} node {node} cannot hold {chips} chips")
    return found


def step_time_s(case: dict[str, Any], micro_batch_size: int, stages: list[Stage]) -> float:
    dp, last = len(stages[0][2]), len(stages) - 1
    rounds = math.ceil(case["global_batch"] / (micro_batch_size * dp)) - 1
    comp = [_compute(case, micro_batch_size, stage) for stage in stages]
    comm = []
    for i, (first, end, replicas) in enumerate(stages):
        forward = backward = 0.0
        if i < last:
            forward = _send(case, micro_batch_size, end - 1, replicas, stages[i + 1][2])
        if i > 0:
            backward = _send(case, micro_batch_size, first, replicas, stages[i - 1][2])
        if i == 0:
            comm.append(forward * (2 if len(stages) > 3 else 1))
        elif i == last:
            comm.append(2 * backward)
        else:
            comm.append(forward + backward)
    slowest = max(a + b for a, b in zip(comp, comm, strict=True))
    update = max(
        case["chips"][chip]["times_s"][str(micro_batch_size)][str(degree)][first][2]
        for first, _, replicas in stages
        for chip, degree, _ in replicas
    )
    return rounds * slowest + sum(comp) + sum(comm) + update + max(_sync(case, stage) for stage in stages)


def _compute(case: dict[str, Any], micro_batch_size: int, stage: Stage) -> float:
    first, end, replicas = stage
    times = [case["chips"][chip]["times_s"][str(micro_batch_size)][str(degree)] for chip, degree, _ in replicas]
    return float(max(sum(f + b for f, b, _ in table[first:end]) for table in times))


def _transfer(case: dict[str, Any], source: tuple[str, int], target: tuple[str, int], size: float) -> float:
    for link in case["links"]:
        ends = (link["from"], int(link["from_tp"]), link["to"], int(link["to_tp"]))
        if ends == (*source, *target):
            a, b, c = link["poly_log2MB"]
            log = math.log2(size / 1e6)
            return float((size / 1e9) / (a * log**2 + b * log + c))
    return math.inf


def _send(
    case: dict[str, Any], micro_batch_size: int, layer: int, senders: list[Replica], receivers: list[Replica]
) -> float:
    """The slowest of the replica pairs: rank k sends to rank k."""
    size = micro_batch_size * 4 * case["layers"][layer]["act_out_elems_per_sample"]
    pairs = {(s[:2], t[:2]) for s, t in zip(senders, receivers, strict=True)}
    return max(_transfer(case, source, target, size) for source, target in pairs)


def _sync(case: dict[str, Any], stage: Stage) -> float:
    """All-reduce in buckets of 5e8 bytes over the slowest link of the ring of ranks."""
    first, end, replicas = stage
    dp = len(replicas)
    if dp == 1:
        return 0.0
    left = sum(layer["params"]["1"] for layer in case["layers"][first:end]) * 4 / min(r[1] for r in replicas)
    ring = {(replicas[k][0], replicas[(k + 1) % dp][0]) for k in range(dp)}
    total = 0.0
    while left > 0:
        bucket = min(left, 5e8)
        total += max(2 * (dp - 1) * _transfer(case, (a, 1), (b, 1), bucket / dp) for a, b in ring)
        left -= bucket
    return total

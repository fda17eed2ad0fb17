"""Every plan of a small space, one by one: any replicas in any stage, two degrees of one chip among them.

Shares nothing with the search but the problem's tables.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations, combinations_with_replacement

from planner.search.mixed_stages import MixedProblem, MixedSetting, ReplicaKind

Stage = tuple[int, int, tuple[ReplicaKind, ...]]


def least_step_time(problem: MixedProblem) -> float:
    """Seconds of the best plan, inf when there is none."""
    packs = _packer(problem)
    best = float("inf")
    for setting in problem.settings:
        teams = [
            team for team in combinations_with_replacement(problem.replica_kinds, setting.data_parallel) if packs(team)
        ]
        for p in range(1, problem.num_layers + 1):
            for cuts in combinations(range(1, problem.num_layers), p - 1):
                ends = (0, *cuts, problem.num_layers)
                for chain in _chains(problem, setting, ends, teams, packs, ()):
                    best = min(best, _step_time(problem, setting, chain))
    return best


def _chains(problem, setting, ends, teams, packs, placed: tuple[Stage, ...]) -> Iterator[tuple[Stage, ...]]:  # type: ignore[no-untyped-def]
    stage, stages = len(placed), len(ends) - 1
    if stage == stages:
        yield placed
        return
    taken = tuple(kind for _, _, team in placed for kind in team)
    for team in teams:
        fits = all(_fits(problem, setting, kind, ends[stage], ends[stage + 1], stage, stages) for kind in set(team))
        if fits and packs(taken + team):
            yield from _chains(problem, setting, ends, teams, packs, (*placed, (ends[stage], ends[stage + 1], team)))


def _fits(
    problem: MixedProblem, setting: MixedSetting, kind: ReplicaKind, a: int, b: int, stage: int, stages: int
) -> bool:
    numbers = problem.layer_numbers(kind, setting.micro_batch_size)
    if numbers is None:
        return False
    held = problem.in_flight(stage, stages, setting)
    used = sum(numbers.static_bytes[a:b]) + held * sum(numbers.saved_bytes[a:b]) + numbers.fixed_bytes
    return bool(used <= problem.chips[kind.chip].usable_bytes)


def _packer(problem: MixedProblem):  # type: ignore[no-untyped-def]
    """Whether replicas fit the nodes: each in turn into every node that has room."""

    @cache
    def place(degrees: tuple[int, ...], room: tuple[int, ...]) -> bool:
        if not degrees:
            return True
        first, rest = degrees[0], degrees[1:]
        return any(
            place(rest, tuple(sorted((*room[:n], free - first, *room[n + 1 :]))))
            for n, free in enumerate(room)
            if free >= first
        )

    def packs(team: tuple[ReplicaKind, ...]) -> bool:
        for c, pool in enumerate(problem.chips):
            full, rest = divmod(pool.count, pool.chips_per_node)
            room = tuple(sorted([pool.chips_per_node] * full + ([rest] if rest else [])))
            if not place(tuple(sorted(k.degree for k in team if k.chip == c)), room):
                return False
        return True

    return packs


def _step_time(problem: MixedProblem, setting: MixedSetting, chain: tuple[Stage, ...]) -> float:
    mbs, stages = setting.micro_batch_size, len(chain)
    x, updates, syncs = [], [], []
    for i, (a, b, team) in enumerate(chain):
        onward_weight, back_weight = problem.transfer_weights(i, stages)
        numbers = [problem.layer_numbers(kind, mbs) for kind in team]
        time = max(sum(n.time_s[a:b]) for n in numbers if n is not None)
        if i + 1 < stages:
            time += _sent(onward_weight, [problem.onward_s(s, t, mbs) for s in team for t in chain[i + 1][2]], b - 1)
        if i:
            time += _sent(back_weight, [problem.back_s(s, t, mbs) for s in team for t in chain[i - 1][2]], a)
        x.append(time)
        updates.append(max(n.update_s[a] for n in numbers if n is not None))
        table = problem.sync_s(tuple(sorted({k.chip for k in team})), min(k.degree for k in team), setting)
        syncs.append(float("inf") if table is None else table[a, b])
    if float("inf") in (*x, *syncs):
        return float("inf")
    return float((setting.num_micro_batches - 1) * max(x) + sum(x) + max(updates) + max(syncs))


def _sent(weight: float, links, layer: int) -> float:  # type: ignore[no-untyped-def]
    """Seconds over the slowest link; a missing one rules the plan out even where it does not count."""
    if any(seconds is None for seconds in links):
        return float("inf")
    return weight * max(float(seconds[layer]) for seconds in links)

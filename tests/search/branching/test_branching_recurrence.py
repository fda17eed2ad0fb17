"""The step time of stages that feed each other along branches: by hand, as on chains, by a second computation."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx as nx
import pytest

from planner.cost.branching_recurrence import BranchTimes, branch_critical_path, branch_step_time, run_branches
from planner.cost.recurrence import ChainTimes, run_chain
from planner.cost.schedule import SCHEDULES, in_flight_counts, stage_actions


def random_times(r: random.Random, chain: bool) -> BranchTimes:
    p = r.randint(1, 5)
    pairs = [(a, b) for b in range(p) for a in range(b) if (a + 1 == b if chain else r.random() < 0.6)]
    draw = lambda: r.choice([0.0, 0.5, 1.0, 2.0, 3.25])  # noqa: E731
    return BranchTimes(
        [draw() for _ in range(p)],
        [draw() for _ in range(p)],
        [draw() for _ in range(p)],
        {pair: draw() for pair in pairs},
        {pair: draw() for pair in pairs},
    )


def schedule_of(r: random.Random, num_stages: int) -> tuple[tuple[int, ...], int]:
    m = r.randint(1, 7)
    return in_flight_counts(r.choice(SCHEDULES), num_stages, m), m


def step_by_longest_path(times: BranchTimes, in_flight: tuple[int, ...], m: int) -> float:
    """Actions and transfers as nodes of a graph, with edges for every rule; the longest path ends the step."""
    graph = nx.DiGraph()
    duration: dict[tuple[object, ...], float] = {}
    for s in range(times.num_stages):
        actions = [(name[0], s, int(name[1:])) for name in stage_actions(in_flight[s], m)]
        for kind, _, i in actions:
            duration[kind, s, i] = times.forward[s] if kind == "F" else times.backward[s]
        graph.add_nodes_from(actions)
        graph.add_edges_from(pairwise(actions))
    for a, b in times.send_forward:
        for i in range(m):
            duration["f", a, b, i], duration["b", a, b, i] = times.send_forward[a, b], times.send_backward[a, b]
            graph.add_edges_from([(("F", a, i), ("f", a, b, i)), (("f", a, b, i), ("F", b, i))])
            graph.add_edges_from([(("B", b, i), ("b", a, b, i)), (("b", a, b, i), ("B", a, i))])
            if i:
                graph.add_edge(("f", a, b, i - 1), ("f", a, b, i))
                graph.add_edge(("b", a, b, i - 1), ("b", a, b, i))
    end: dict[tuple[object, ...], float] = {}
    for node in nx.topological_sort(graph):
        end[node] = max((end[before] for before in graph.predecessors(node)), default=0.0) + duration[node]
    return max(end["B", s, m - 1] + times.update[s] for s in range(times.num_stages))


def test_a_tensor_that_skips_a_stage_does_not_pass_through_it() -> None:
    # one micro-batch, forward 1, backward 1: 0 feeds 1 (transfer 1) and 2 (transfer 5), 1 does not feed 2
    # F0 ends at 1, F1 at 3, F2 at 7, B2 at 8; back at 0: from 1 at 3 + 1 + 1, from 2 at 8 + 5; B0 ends at 14
    pairs = {(0, 1): 1.0, (0, 2): 5.0}
    run = run_branches(BranchTimes([1.0] * 3, [1.0] * 3, [0.0] * 3, pairs, pairs), (1, 1, 1), 1)
    assert run.forward_end == [[1], [3], [7]]
    assert run.backward_end == [[14], [4], [8]]
    assert run.step == 14


def test_stages_without_tensors_between_them_do_not_wait_for_each_other() -> None:
    times = BranchTimes([1.0, 1.0], [2.0, 2.0], [0.0, 0.0], {}, {})
    assert branch_step_time(times, (2, 1), 4) == 12


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_on_chains_it_is_the_recurrence_of_chains(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        r = random.Random(seed)
        times = random_times(r, chain=True)
        counts, m = schedule_of(r, times.num_stages)
        links = [(s, s + 1) for s in range(times.num_stages - 1)]
        chain = ChainTimes(
            times.forward,
            times.backward,
            times.update,
            [times.send_forward[pair] for pair in links],
            [times.send_backward[pair] for pair in links],
        )
        ours, theirs = run_branches(times, counts, m), run_chain(chain, counts, m)
        assert (ours.step, ours.last_stage) == (theirs.step, theirs.last_stage)
        assert (ours.forward_end, ours.backward_end) == (theirs.forward_end, theirs.backward_end)


@pytest.mark.parametrize("first_seed", range(0, 120, 40))
def test_many_micro_batches_take_what_all_their_actions_take(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 40):
        r = random.Random(seed)
        times = random_times(r, chain=False)
        m = r.randint(201, 900)
        counts = in_flight_counts(r.choice(SCHEDULES), times.num_stages, m)
        step = run_branches(times, counts, m).step
        assert branch_step_time(times, counts, m) == pytest.approx(step, rel=1e-12), seed


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_it_equals_the_longest_path_through_all_actions(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        r = random.Random(seed)
        times = random_times(r, chain=False)
        counts, m = schedule_of(r, times.num_stages)
        assert branch_step_time(times, counts, m) == pytest.approx(step_by_longest_path(times, counts, m), rel=1e-12)


@pytest.mark.parametrize("first_seed", range(0, 400, 100))
def test_the_critical_path_is_as_long_as_the_step_and_bounds_every_other(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + 100):
        r = random.Random(seed)
        times = random_times(r, chain=False)
        counts, m = schedule_of(r, times.num_stages)
        path = branch_critical_path(times, counts, m)
        assert path.length(times) == pytest.approx(branch_step_time(times, counts, m), rel=1e-12)
        changed = BranchTimes(
            [t * r.choice([0.0, 1.0, 2.0]) for t in times.forward],
            [t * r.choice([0.0, 1.0, 2.0]) for t in times.backward],
            times.update,
            {pair: t * r.choice([0.0, 1.0, 3.0]) for pair, t in times.send_forward.items()},
            times.send_backward,
        )
        assert path.length(changed) <= branch_step_time(changed, counts, m) * (1 + 1e-12)

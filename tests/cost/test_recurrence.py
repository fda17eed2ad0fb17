"""The exact step time, by hand and against a second way of computing it."""

from __future__ import annotations

import random
from itertools import pairwise

import networkx as nx
import pytest

from planner.cost.recurrence import ChainTimes, critical_path, run_chain, step_time
from planner.cost.schedule import SCHEDULES, in_flight_counts, stage_actions


def equal_stages(num_stages: int, forward: float = 1.0, backward: float = 2.0) -> ChainTimes:
    links = [0.0] * (num_stages - 1)
    return ChainTimes([forward] * num_stages, [backward] * num_stages, [0.0] * num_stages, links, links)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager_1f1b"])
@pytest.mark.parametrize("num_stages", [1, 2, 5, 16])
@pytest.mark.parametrize("micro_batches", [1, 2, 7, 64])
def test_equal_stages_take_m_plus_p_minus_1_slots(schedule: str, num_stages: int, micro_batches: int) -> None:
    counts = in_flight_counts(schedule, num_stages, micro_batches)
    assert step_time(equal_stages(num_stages), counts, micro_batches) == 3 * (micro_batches + num_stages - 1)


def test_two_stages_three_micro_batches_by_hand() -> None:
    # forward 1, backward 2, free links; one column a unit:
    # F0  F1  .   .   B0  B0  F2  B1  B1  .   B2  B2   (1F1B with k = 2, 1; the last column ends at 12)
    # .   F0  B0  B0  F1  B1  B1  F2  B2  B2  .   .
    run = run_chain(equal_stages(2), in_flight_counts("1f1b", 2, 3), 3)
    assert run.step == 12
    assert run.forward_end == [[1, 2, 7], [2, 5, 8]]
    assert run.backward_end == [[6, 9, 12], [4, 7, 10]]


def test_a_slow_link_limits_the_rate_although_no_stage_is_slow() -> None:
    # p = 2, one in flight on stage 1, two on stage 0: a round trip F + c + (F + B) + c + B = 1 + 10 + 3 + 10 + 2 = 26
    # serves two micro-batches
    times = ChainTimes([1.0, 1.0], [2.0, 2.0], [0.0, 0.0], [10.0], [10.0])
    counts = in_flight_counts("1f1b", 2, 20)
    rate = (step_time(times, counts, 20) - step_time(times, counts, 10)) / 10
    assert rate == pytest.approx(13.0)


def test_a_link_carries_one_transfer_at_a_time() -> None:
    # gpipe, free compute: 4 transfers of 5 onward, then 4 back
    times = ChainTimes([0.0, 0.0], [0.0, 0.0], [0.0, 0.0], [5.0], [5.0])
    assert step_time(times, in_flight_counts("gpipe", 2, 4), 4) == 40


def test_the_step_ends_with_the_stage_whose_update_ends_last() -> None:
    # last backward of stage 1 ends at 10, of stage 0 at 12 (see above)
    times = ChainTimes([1.0, 1.0], [2.0, 2.0], [1.0, 5.0], [0.0], [0.0])
    run = run_chain(times, in_flight_counts("1f1b", 2, 3), 3)
    assert (run.step, run.last_stage) == (15, 1)


def random_chain(r: random.Random) -> tuple[ChainTimes, tuple[int, ...], int]:
    p, m = r.randint(1, 7), r.randint(1, 16)
    slow = r.choice([0.0, 0.2, 4.0])
    times = ChainTimes(
        [r.uniform(0.1, 2) for _ in range(p)],
        [r.uniform(0.1, 4) for _ in range(p)],
        [r.uniform(0, 3) for _ in range(p)],
        [r.random() * slow for _ in range(p - 1)],
        [r.random() * slow for _ in range(p - 1)],
    )
    return times, in_flight_counts(r.choice(SCHEDULES), p, m), m


def longest_path(times: ChainTimes, counts: tuple[int, ...], m: int) -> float:
    """The step time a second way: the longest path in the graph of all actions and transfers, built from each stage's
    list of actions.
    """
    graph = nx.DiGraph()
    p = times.num_stages
    for s in range(p):
        actions = [(a[0], s, int(a[1:])) for a in stage_actions(counts[s], m)]
        for action in actions:
            graph.add_edge(
                (*action, "start"), (*action, "end"), w=(times.forward if action[0] == "F" else times.backward)[s]
            )
        for before, after in pairwise(actions):
            graph.add_edge((*before, "end"), (*after, "start"), w=0.0)
        graph.add_edge((*actions[-1], "end"), "done", w=times.update[s])
    for j in range(p - 1):
        for i in range(m):
            for kind, source, target, seconds in (
                ("F", j, j + 1, times.send_forward[j]),
                ("B", j + 1, j, times.send_backward[j]),
            ):
                send = ("send", kind, j, i)
                graph.add_edge((kind, source, i, "end"), (*send, "start"), w=0.0)
                graph.add_edge((*send, "start"), (*send, "end"), w=seconds)
                graph.add_edge((*send, "end"), (kind, target, i, "start"), w=0.0)
                if i:
                    graph.add_edge(("send", kind, j, i - 1, "end"), (*send, "start"), w=0.0)
    return float(nx.dag_longest_path_length(graph, weight="w"))


@pytest.mark.parametrize("seed", range(60))
def test_the_recurrence_equals_the_longest_path_through_all_actions(seed: int) -> None:
    times, counts, m = random_chain(random.Random(seed))
    assert step_time(times, counts, m) == pytest.approx(longest_path(times, counts, m), rel=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_the_critical_path_has_the_length_of_the_step_and_bounds_every_other_chain(seed: int) -> None:
    r = random.Random(seed)
    times, counts, m = random_chain(r)
    path = critical_path(times, counts, m)
    assert path.length(times) == pytest.approx(step_time(times, counts, m), rel=1e-12)
    other = ChainTimes(
        [r.uniform(0, 3) for _ in times.forward],
        [r.uniform(0, 3) for _ in times.backward],
        [r.uniform(0, 3) for _ in times.update],
        [r.uniform(0, 3) for _ in times.send_forward],
        [r.uniform(0, 3) for _ in times.send_backward],
    )
    assert path.length(other) <= step_time(other, counts, m) * (1 + 1e-12)


@pytest.mark.parametrize("seed", range(40))
def test_with_many_micro_batches_the_repeating_part_is_counted_and_not_run(seed: int) -> None:
    r = random.Random(seed)
    times, _, _ = random_chain(r)
    m = r.choice([4097, 5000])
    counts = in_flight_counts(r.choice(SCHEDULES), times.num_stages, m)
    assert step_time(times, counts, m) == pytest.approx(run_chain(times, counts, m).step, rel=1e-11)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_hundred_million_micro_batches_take_no_time_and_no_memory(schedule: str) -> None:
    m = 100_000_000
    assert step_time(equal_stages(6), in_flight_counts(schedule, 6, m), m) == pytest.approx(3 * (m + 5), rel=1e-12)

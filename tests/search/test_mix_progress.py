"""What the search for mixes says on the way."""

from __future__ import annotations

import math
import time

import pytest

from planner.search import mix_progress
from planner.search.candidates import Limits
from planner.search.driver import SearchSettings, search
from planner.search.mix_progress import MixReporter
from planner.search.mixed import driver
from planner.search.mixed.driver import Start, search_mixes
from planner.search.mixed.exhaustive import Found
from planner.search.outcome import SearchProgress
from tests.search.mixed_problems import random_mixed_problem


def phases(seed: int) -> list[str]:
    problem, told = random_mixed_problem(seed), list[str]()
    known = search(problem, SearchSettings(gap=0.0))
    start = Start(known.leaf, known.split, known.step_time)
    search_mixes(problem, Limits(), None, start, 0.05, lambda: False, enter=lambda phase, found: told.append(phase))
    return told


def test_a_small_pool_has_one_phase() -> None:
    assert phases(1) == ["every mix"]


def test_a_larger_pool_looks_for_better_mixes_and_then_for_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "is_small", lambda pool: False)
    assert phases(1) == ["better mixes", "bound of all mixes"]


def test_step_time_bound_and_mixes_are_those_of_now() -> None:
    told: list[SearchProgress] = []
    reporter = MixReporter(told.append, time.monotonic())
    reporter.begin(10.0, 8.0)
    found = Found(10.0, (), math.inf)
    reporter.enter("better mixes", found)
    found.step_time, found.mixes = 9.0, 3
    reporter.enter("bound of all mixes")
    first, last = told
    assert (first.phase, first.objective, first.bound, first.candidates) == ("better mixes", 10.0, 8.0, 0)
    assert (last.phase, last.objective, last.bound, last.candidates) == ("bound of all mixes", 9.0, 8.0, 3)


def test_ticks_close_together_say_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mix_progress, "_INTERVAL_S", 1000.0)
    told: list[SearchProgress] = []
    reporter = MixReporter(told.append, time.monotonic())
    reporter.begin(math.inf, 8.0)
    reporter.tick()
    for _ in range(100):
        reporter.tick()
    assert [p.objective for p in told] == [None]


def test_nobody_need_listen() -> None:
    reporter = MixReporter(None, time.monotonic())
    reporter.begin(10.0, 8.0)
    reporter.enter("every mix", Found(10.0, (), math.inf))
    reporter.tick()

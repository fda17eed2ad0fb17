"""Surveys and proofs, here or in worker processes. The batches and their targets are fixed before, so results do not
depend on `jobs`.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from planner.errors import InputError
from planner.search.candidates import Root, make_roots
from planner.search.highs import SolverChoice
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.prove import Proof, prove_leaf
from planner.search.sifting import Question, Sift, sift_root
from planner.search.survey import SHORT, Effort, Survey, leaf_weight, survey_root
from planner.search.tree import Order, Target

if TYPE_CHECKING:
    from planner.cost.tables import Problem
    from planner.search.driver import SearchSettings

__all__ = ["PoolOfWorkers", "Workers"]

_Result = TypeVar("_Result")
_Inputs = TypeVar("_Inputs")


_roots: list[Root] = []
"""A worker process's own roots, made once when it starts."""


def _start_worker(path: str) -> None:
    """path: a file with what the search is about; a pipe would block the search for ever if a worker cannot start."""
    import pickle
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    problem, settings = pickle.loads(Path(path).read_bytes())
    _roots[:] = make_roots(problem, Intervals(problem.chain), settings.limits)


def _survey(index: int, target: Target, gap: float, deadline: float, floor: float, effort: Effort) -> Survey:
    return survey_root(_roots[index], index, target, gap, deadline=deadline, floor=floor, effort=effort)


def _sift(question: Question, target: Target, gap: float, deadline: float) -> Sift:
    import time

    return sift_root(_roots[question.index], question, target, gap, lambda: time.monotonic() > deadline)


def _prove(
    index: int, order: Order, target: Target, gap: float, deadline: float, asked: SolverChoice
) -> tuple[Proof, float]:
    return _prove_here(_roots[index], order, target, gap, deadline, asked, lambda: False)


def _prove_here(
    root: Root,
    order: Order,
    target: Target,
    gap: float,
    deadline: float,
    asked: SolverChoice,
    should_stop: Callable[[], bool],
) -> tuple[Proof, float]:
    import time

    leaf = Leaf(root, order)
    weight = leaf_weight(leaf, target)
    limit = target.objective / weight if weight > 0 else target.objective
    proof = prove_leaf(
        leaf,
        limit,
        gap,
        time_limit_s=max(0.0, deadline - time.monotonic()),
        should_stop=should_stop,
        solver=asked.name,
        solver_log=asked.log,
    )
    return proof, weight


class Workers:
    """Runs batches of surveys and proofs in this process (`jobs` 1, or one alone) or in a pool."""

    def __init__(self, problem: Problem, settings: SearchSettings, roots: list[Root]) -> None:
        self.roots, self.settings = roots, settings
        self._pool: ProcessPoolExecutor | None = None
        self._inputs: str | None = None
        if settings.jobs > 1:
            self._inputs = _written((problem, settings))
            self._pool = ProcessPoolExecutor(
                settings.jobs, get_context("spawn"), initializer=_start_worker, initargs=(self._inputs,)
            )

    def begin(self) -> None:
        """Start the processes of the pool, which takes them about a second."""
        if self._pool is not None:
            _begin(self._pool, self.settings.jobs)

    def close(self) -> None:
        """End the pool without waiting for running work."""
        if self._pool is not None:
            _end(self._pool)
        if self._inputs is not None:
            Path(self._inputs).unlink(missing_ok=True)

    def survey_here(
        self,
        index: int,
        floor: float,
        target: Target,
        deadline: float,
        should_stop: Callable[[], bool],
        any_plan: bool,
    ) -> Survey:
        """A short survey in this process, to find a plan; proves nothing."""
        effort = replace(SHORT, any_plan=any_plan)
        return survey_root(
            self.roots[index],
            index,
            target,
            0.0,
            deadline=deadline,
            floor=floor,
            should_stop=should_stop,
            effort=effort,
        )

    def surveys(
        self,
        batch: list[tuple[int, float, Effort]],
        target: Target,
        gap: float,
        deadline: float,
        should_stop: Callable[[], bool],
    ) -> list[Survey]:
        """One survey a root (given with its bound and the effort that it is worth), all at the same target."""
        if self._pool is None or len(batch) == 1:
            return [
                survey_root(
                    self.roots[i],
                    i,
                    target,
                    gap,
                    deadline=deadline,
                    floor=floor,
                    should_stop=should_stop,
                    effort=effort,
                )
                for i, floor, effort in batch
            ]
        calls = [(i, target, gap, deadline, floor, effort) for i, floor, effort in batch]
        return _answers(self._pool, _survey, calls, should_stop, Survey(complete=False))

    def sifts(
        self, batch: list[Question], target: Target, gap: float, should_stop: Callable[[], bool], deadline: float
    ) -> list[Sift]:
        """One question a root, all at the same target. `should_stop` knows of the deadline; workers only of that."""
        if self._pool is None or len(batch) == 1:
            return [sift_root(self.roots[q.index], q, target, gap, should_stop) for q in batch]
        calls = [(q, target, gap, deadline) for q in batch]
        return _answers(self._pool, _sift, calls, should_stop, Sift(0.0, math.inf, None))

    def proofs(
        self,
        batch: list[tuple[float, int, Order]],
        target: Target,
        gap: float,
        deadline: float,
        should_stop: Callable[[], bool],
    ) -> list[tuple[Proof, float]]:
        """One proof a leaf, all at the same target; the objective per second of each leaf beside it."""
        solver = self.settings.program_solver
        if self._pool is None or len(batch) == 1:
            return [_prove_here(self.roots[i], o, target, gap, deadline, solver, should_stop) for _, i, o in batch]
        calls = [(i, o, target, gap, deadline, solver) for _, i, o in batch]
        nothing = (Proof(0.0, None, target.objective, False, 0), 1.0)
        return _answers(self._pool, _prove, calls, should_stop, nothing)


class PoolOfWorkers:
    """Worker processes that each begin with `start(inputs)`."""

    def __init__(self, jobs: int, start: Callable[[_Inputs], None], inputs: _Inputs) -> None:
        self._inputs = _written((start, inputs))
        self._pool = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=_start_with, initargs=(self._inputs,))
        _begin(self._pool, jobs)

    def each(
        self,
        function: Callable[..., _Result],
        calls: Sequence[tuple[object, ...]],
        should_stop: Callable[[], bool],
    ) -> Iterator[_Result | None]:
        """The function's results, in order; None for those that the search no longer waits for. What was not begun when
        the iterator is closed never is.
        """
        futures: list[Future[_Result]] = []
        try:
            with _started():
                futures += [self._pool.submit(function, *call) for call in calls]
                for future in futures:
                    yield _wait(future, should_stop)
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the processes without waiting for running work."""
        _end(self._pool)
        Path(self._inputs).unlink(missing_ok=True)


def _start_with(path: str) -> None:
    """As `_start_worker`, of a pool whose file says itself how to begin."""
    import pickle
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    start, inputs = pickle.loads(Path(path).read_bytes())
    start(inputs)


def _begin(pool: ProcessPoolExecutor, jobs: int) -> None:
    """Start the processes now, not when they are asked: each call starts one."""
    with _started():
        for _ in range(jobs):
            pool.submit(_nothing)


def _nothing() -> None:
    pass


def _end(pool: ProcessPoolExecutor) -> None:
    processes = list((getattr(pool, "_processes", None) or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.kill()


def _written(inputs: object) -> str:
    """The path of a file with pickled inputs, readable by this user alone."""
    import pickle

    handle, path = tempfile.mkstemp(prefix="dplan-", suffix=".pickle")
    with os.fdopen(handle, "wb") as file:
        pickle.dump(inputs, file)
    return path


def _answers(
    pool: ProcessPoolExecutor,
    function: Callable[..., _Result],
    calls: Sequence[tuple[object, ...]],
    should_stop: Callable[[], bool],
    nothing: _Result,
) -> list[_Result]:
    """The function's results, in order; `nothing` for those that the search no longer waits for."""
    with _started():
        futures = [pool.submit(function, *call) for call in calls]
        return [_wait(future, should_stop) or nothing for future in futures]


@contextmanager
def _started() -> Iterator[None]:
    """Says what is wrong where worker processes cannot start."""
    try:
        yield
    except BrokenProcessPool:
        raise InputError.single(
            path="jobs",
            what="worker processes end as soon as they start",
            why="each imports the main module again, which calls solve itself or is no file",
            fix='call solve below `if __name__ == "__main__":`, or leave jobs at 1',
        ) from None


def _wait(future: Future[_Result], should_stop: Callable[[], bool]) -> _Result | None:
    """The future's result, or None once the search is asked to stop."""
    while not should_stop():
        try:
            return future.result(timeout=0.1)
        except TimeoutError:
            continue
    return None

"""Surveys and proofs, here or in worker processes. The batches and their targets are fixed before, so results do not
depend on `jobs`.
"""

from __future__ import annotations

import math
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from dataclasses import replace
from multiprocessing import get_context, parent_process
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
    from multiprocessing.process import BaseProcess

    from planner.cost.tables import Problem
    from planner.search.driver import SearchSettings

__all__ = ["PoolOfWorkers", "Workers"]

_Result = TypeVar("_Result")
_Inputs = TypeVar("_Inputs")


_JOIN_S = 1.0
"""Seconds to wait for the end of processes whose pool is broken."""

_roots: list[Root] = []
"""A worker process's own roots, made once when it starts."""


def _start_worker(path: str) -> None:
    """path: a file with what the search is about; a pipe would block the search for ever if a worker cannot start."""
    import pickle

    _serve()
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
        self._pool: _Pool | None = None
        self._inputs: str | None = None
        if settings.jobs > 1:
            self._inputs = _written((problem, settings))
            self._pool = _Pool(settings.jobs, _start_worker, self._inputs)

    def begin(self) -> None:
        """Start the processes of the pool, which takes them about a second."""
        if self._pool is not None:
            self._pool.begin()

    def close(self) -> None:
        """End the pool without waiting for running work."""
        if self._pool is not None:
            self._pool.end()
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

        def here() -> list[Survey]:
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
        return self._answers(_survey, calls, should_stop, Survey(complete=False), here)

    def sifts(
        self, batch: list[Question], target: Target, gap: float, should_stop: Callable[[], bool], deadline: float
    ) -> list[Sift]:
        """One question a root, all at the same target. `should_stop` knows of the deadline; workers only of that."""

        def here() -> list[Sift]:
            return [sift_root(self.roots[q.index], q, target, gap, should_stop) for q in batch]

        calls = [(q, target, gap, deadline) for q in batch]
        return self._answers(_sift, calls, should_stop, Sift(0.0, math.inf, None), here)

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

        def here() -> list[tuple[Proof, float]]:
            return [_prove_here(self.roots[i], o, target, gap, deadline, solver, should_stop) for _, i, o in batch]

        calls = [(i, o, target, gap, deadline, solver) for _, i, o in batch]
        nothing = (Proof(0.0, None, target.objective, False, 0), 1.0)
        return self._answers(_prove, calls, should_stop, nothing, here)

    def _answers(
        self,
        function: Callable[..., _Result],
        calls: Sequence[tuple[object, ...]],
        should_stop: Callable[[], bool],
        nothing: _Result,
        here: Callable[[], list[_Result]],
    ) -> list[_Result]:
        """The function's results, in order; `nothing` for those that the search no longer waits for. Once a worker was
        killed, all is done in this process.
        """
        if self._pool is None or len(calls) == 1:
            return here()
        try:
            futures = [self._pool.submit(function, *call) for call in calls]
            return [_wait(future, should_stop) or nothing for future in futures]
        except BrokenProcessPool:
            self._pool.say_if_none_starts()
            self._pool.end()
            self._pool = None
            return here()


class PoolOfWorkers:
    """Worker processes that each begin with `start(inputs)`, at once."""

    def __init__(self, jobs: int, start: Callable[[_Inputs], None], inputs: _Inputs) -> None:
        self._inputs = _written((start, inputs))
        self._pool = _Pool(jobs, _start_with, self._inputs)
        self._pool.begin()

    def each(
        self,
        function: Callable[..., _Result],
        calls: Sequence[tuple[object, ...]],
        should_stop: Callable[[], bool],
        here: Callable[..., _Result],
    ) -> Iterator[_Result | None]:
        """The function's results, in order; None for those that the search no longer waits for. What was not begun when
        the iterator is closed never is.  here: the same function for this process, for when a worker was killed.
        """
        futures: list[Future[_Result]] = []
        try:
            for call in calls:
                with suppress(BrokenProcessPool):
                    futures.append(self._pool.submit(function, *call))
            for n, call in enumerate(calls):
                try:
                    if n >= len(futures):
                        raise BrokenProcessPool
                    found = _wait(futures[n], should_stop)
                except BrokenProcessPool:
                    self._pool.say_if_none_starts()
                    found = here(*call)
                yield found
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """End the processes without waiting for running work."""
        self._pool.end()
        Path(self._inputs).unlink(missing_ok=True)


class _Pool:
    """Processes that start when they are first asked, or before; each calls `start(inputs)`."""

    def __init__(self, jobs: int, start: Callable[[str], None], inputs: str) -> None:
        self._jobs = jobs
        self._executor = ProcessPoolExecutor(jobs, get_context("spawn"), initializer=start, initargs=(inputs,))
        self._processes: list[BaseProcess] = []

    def begin(self) -> None:
        """Start all processes now: each call starts one."""
        if not self._processes:
            with _uninterrupted(), suppress(BrokenProcessPool):
                for _ in range(self._jobs):
                    self._executor.submit(_nothing)
                    self._processes = list((self._executor._processes or {}).values()) or self._processes

    def submit(self, function: Callable[..., _Result], *given: object) -> Future[_Result]:
        self.begin()
        return self._executor.submit(function, *given)

    def say_if_none_starts(self) -> None:
        """Raises InputError where a process ended by itself, which happens where none can start; others were killed."""
        for process in self._processes:
            process.join(_JOIN_S)
        if any((process.exitcode or 0) > 0 for process in self._processes):
            raise InputError.single(
                path="jobs",
                what="worker processes end as soon as they start",
                why="each imports the main module again, which calls solve itself or is no file",
                fix='call solve below `if __name__ == "__main__":`, or leave jobs at 1',
            ) from None

    def end(self) -> None:
        """End the processes without waiting for running work.

        The executor's thread tells what is pending that the processes are gone, and fails at what is cancelled.
        """
        pending = getattr(self._executor, "_pending_work_items", None) or {}
        for number, item in list(pending.items()):
            if item.future.cancelled():
                pending.pop(number, None)
        self._executor.shutdown(wait=False)
        for process in self._processes:
            process.kill()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Processes started meanwhile never see Ctrl-C, which is for the search alone; here it comes afterwards."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve() -> None:
    """Of a worker process: deaf to Ctrl-C, and gone once the search is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = parent_process()

    def follow() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


def _start_with(path: str) -> None:
    """As `_start_worker`, of a pool whose file says itself how to begin."""
    import pickle

    _serve()
    start, inputs = pickle.loads(Path(path).read_bytes())
    start(inputs)


def _nothing() -> None:
    pass


def _written(inputs: object) -> str:
    """The path of a file with pickled inputs, readable by this user alone."""
    import pickle

    handle, path = tempfile.mkstemp(prefix="dplan-", suffix=".pickle")
    with os.fdopen(handle, "wb") as file:
        pickle.dump(inputs, file)
    return path


def _wait(future: Future[_Result], should_stop: Callable[[], bool]) -> _Result | None:
    """The future's result, or None once the search is asked to stop."""
    while not should_stop():
        try:
            return future.result(timeout=0.1)
        except TimeoutError:
            continue
    return None

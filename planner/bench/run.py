"""Runs cases one after another, with a calibration loop before and after each."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from planner import __version__
from planner.bench.calibration import calibrate
from planner.bench.cases import GAP, Case
from planner.bench.child import Request
from planner.bench.compare import same_case
from planner.bench.process import Answer, answer_of
from planner.bench.results import BenchResults, CaseResult, Environment, Failure, Found

if TYPE_CHECKING:
    from planner.search import Progress

__all__ = ["BenchProgress", "run_cases"]


@dataclass(frozen=True)
class BenchProgress:
    """Case `number` of `total`: at its start, while it searches (`search`), and when it is done (`result`)."""

    number: int
    total: int
    case: Case
    search: Progress | None = None
    result: CaseResult | None = None


def run_cases(
    cases: Sequence[Case],
    baseline: BenchResults | None = None,
    progress: Callable[[BenchProgress], None] = lambda _: None,
    gap: float = GAP,
) -> BenchResults:
    """Run every case. On KeyboardInterrupt the results of those that are done, marked as not complete."""
    done: list[CaseResult] = []
    try:
        for result in _results(cases, baseline, progress, gap):
            done.append(result)
    except KeyboardInterrupt:
        pass
    return BenchResults(environment=environment(), complete=len(done) == len(cases), cases=tuple(done))


def _results(
    cases: Sequence[Case], baseline: BenchResults | None, progress: Callable[[BenchProgress], None], gap: float
) -> Iterator[CaseResult]:
    before = calibrate() if cases else 0.0
    for number, case in enumerate(cases, 1):
        progress(BenchProgress(number, len(cases), case))
        earlier = None if baseline is None else baseline.case(case.name)
        limit_s = granted_s(case, gap, earlier, before)

        def tell(numbers: dict[str, Any], number: int = number, case: Case = case) -> None:
            from planner.search import Progress

            progress(BenchProgress(number, len(cases), case, Progress(**numbers)))

        answer = answer_of(Request(case.cluster, case.model, case.pipelines, limit_s, gap), tell)
        try:
            after = calibrate()
        except KeyboardInterrupt:  # the case is done all the same
            yield result_of(case, gap, limit_s, before, answer)
            raise
        result = result_of(case, gap, limit_s, (before + after) / 2, answer)
        yield result
        progress(BenchProgress(number, len(cases), case, result=result))
        before = after


def granted_s(case: Case, gap: float, earlier: CaseResult | None, calibration_s: float) -> float:
    """Seconds of search: as many calibration loops as the same case had in the baseline, else the family's limit.

    A slower machine then has more seconds for the same work, and a plan that was cut short can be compared.
    """
    if earlier is None or not same_case(case, gap, earlier):
        return case.time_limit_s
    return earlier.limit_s / earlier.calibration_s * calibration_s


def result_of(case: Case, gap: float, limit_s: float, calibration_s: float, answer: Answer) -> CaseResult:
    """What a case took and found."""
    from pydantic import ValidationError

    found, failure = None, None
    try:
        if answer.found is not None:
            found = Found(**answer.found, loops=answer.found["solve_s"] / calibration_s)
        else:
            failure = Failure.model_validate(answer.failure)
    except ValidationError as error:
        detail = error.errors()[0]
        place = ".".join(str(step) for step in detail["loc"])
        failure = Failure(kind="crash", message=f"our bug: the answer is not possible: {place}: {detail['msg']}")
    return CaseResult(
        name=case.name,
        cluster=case.cluster,
        model=case.model,
        pipelines=case.pipelines,
        time_limit_s=case.time_limit_s,
        limit_s=limit_s,
        gap_asked=gap,
        calibration_s=calibration_s,
        total_s=answer.total_s,
        peak_bytes=answer.peak_bytes,
        found=found,
        failure=failure,
    )


def environment() -> Environment:
    """Versions and machine; nothing that names it."""
    try:
        highspy = version("highspy")
    except PackageNotFoundError:
        highspy = "unknown"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return Environment(
        dplan=__version__,
        python=platform.python_version(),
        highspy=highspy,
        system=f"{platform.system()} {platform.machine()}".strip() or "unknown",
        cores=cores,
    )

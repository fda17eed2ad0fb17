"""A run beside an earlier one, whatever machine that ran on: times count in calibration loops."""

from __future__ import annotations

from collections.abc import Iterator

from planner.bench.cases import Case
from planner.bench.results import BenchResults, CaseResult, Change, Comparison, Found, Limits, Regression

__all__ = ["LEAST_LOOPS", "compare", "same_case"]

LEAST_LOOPS = 1.0
"""A case is slower only if it is so by more than one calibration loop, about a second: below that a ratio is noise."""
_ROUNDING = 1e-9
"""A limit is passed by more than the rounding of the arithmetic."""


def same_case(case: Case, gap: float, earlier: CaseResult) -> bool:
    """Whether an earlier result is of the same case: a name may have been given to another one since."""
    now = (case.cluster, case.model, case.pipelines, case.time_limit_s, gap)
    return now == (earlier.cluster, earlier.model, earlier.pipelines, earlier.time_limit_s, earlier.gap_asked)


def compare(results: BenchResults, baseline: BenchResults, limits: Limits) -> Comparison:
    """Each case of this run beside the baseline's case of that name."""
    names = {case.name for case in results.cases}
    return Comparison(
        limits=limits,
        changes=tuple(_change(case, baseline.case(case.name), limits) for case in results.cases),
        not_run=tuple(case.name for case in baseline.cases if case.name not in names),
    )


def _change(now: CaseResult, base: CaseResult | None, limits: Limits) -> Change:
    if base is None:
        return Change(name=now.name, note="not in the baseline")
    asked = Case(now.name, now.cluster, now.model, now.time_limit_s, now.pipelines)
    if not same_case(asked, now.gap_asked, base):
        return Change(name=now.name, note="the case has changed since the baseline")
    if base.found is None:
        return Change(name=now.name, note="the baseline has no plan")
    if now.found is None:
        return Change(name=now.name, regressions=("no plan",), note="the baseline has a plan")
    if _inputs(now.found) != _inputs(base.found):
        return Change(name=now.name, note="the cluster or model file has changed since the baseline")
    return _measured(now, now.found, base, base.found, limits)


def _inputs(found: Found) -> tuple[str, str]:
    return found.cluster_sha256, found.model_sha256


def _measured(now: CaseResult, found: Found, base: CaseResult, before: Found, limits: Limits) -> Change:
    memory = None
    if now.peak_bytes and base.peak_bytes:
        memory = now.peak_bytes / base.peak_bytes
    ended = before.why_stopped != "time"  # else its time says what the limit was, not what the case needs
    change = Change(
        name=now.name,
        loops_ratio=found.loops / before.loops if ended else None,
        memory_ratio=memory,
        worse=found.step_time_s / before.step_time_s - 1,
        wider=found.gap - before.gap,
        note="" if ended else "the baseline ran into its time limit: times are not compared",
    )
    slow = found.loops - before.loops > LEAST_LOOPS
    if _passes(change.loops_ratio, limits.slower) and not slow:
        change = change.model_copy(update={"note": f"slower by less than {LEAST_LOOPS:g} loop, which is noise"})
    return change.model_copy(update={"regressions": tuple(_regressions(change, slow, limits))})


def _regressions(change: Change, slow: bool, limits: Limits) -> Iterator[Regression]:
    """The limits that are passed. slow: by more than noise."""
    if slow and _passes(change.loops_ratio, limits.slower):
        yield "slower"
    if _passes(change.memory_ratio, limits.memory):
        yield "memory"
    if _passes(change.worse, limits.worse):
        yield "plan"
    if _passes(change.wider, limits.wider):
        yield "gap"


def _passes(value: float | None, limit: float) -> bool:
    return value is not None and value > limit + _ROUNDING

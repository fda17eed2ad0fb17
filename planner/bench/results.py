"""The results file: what each case took and found, and how that compares with an earlier run. Keys carry their unit."""

from __future__ import annotations

import statistics
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "FORMAT_VERSION",
    "BenchResults",
    "CaseResult",
    "Change",
    "Comparison",
    "Environment",
    "Failure",
    "Found",
    "Limits",
    "Regression",
    "bench_schema",
]

FORMAT_VERSION = "1.0"

Count = Annotated[int, Field(ge=1)]
Whole = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(ge=1e-9, le=1e15)]
"""More than nothing and less than anything that is measured, so that ratios of two stay finite."""
Ratio = Annotated[float, Field(gt=0)]
Number = Annotated[float, Field(ge=0)]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Regression = Literal["slower", "memory", "plan", "gap", "no plan"]


class BenchModel(BaseModel):
    """Base of every object in a results file: unknown keys are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)


class Environment(BenchModel):
    """Where the cases ran."""

    dplan: Text
    """Version of dplan."""
    python: Text
    """Version of Python."""
    highspy: Text
    """Version of the solver."""
    system: Text
    """Operating system and processor, such as `Linux x86_64`."""
    cores: Count
    """Processor cores that the run could use; a case uses one."""


class Found(BenchModel):
    """The plan of a case, and what finding it took."""

    first_plan_s: Number | None
    """Until the search told of its first plan, from the call of `solve`; null when it told of none on the way."""
    solve_s: Positive
    """The call of `solve`: from a cluster and a model that have been read to a plan with its proof."""
    loops: Positive
    """`solve_s` / `calibration_s`: what is compared between runs."""
    why_stopped: Literal["gap", "time", "exhausted"]
    """`gap`: it closed.  `time`: the limit, or a share of it, came.  `exhausted`: nothing left to try."""
    step_time_s: Positive
    """The objective: predicted time of a step."""
    bound_s: Number
    """No plan of the plan space has a shorter step."""
    identical_bound_s: Number | None = None
    """No plan of identical pipelines has a shorter step, where pipelines could be of several shapes; null where they
    could not, and in results that older versions wrote."""
    gap: Annotated[float, Field(ge=0, le=1)]
    """(step_time_s - bound_s) / step_time_s."""
    programs: Whole
    """Integer programs that were solved."""
    solver: dict[str, int]
    """All counts of the search, as in the plan's certificate."""
    chips: Count
    """Chips of the cluster."""
    chips_used: Count
    """Chips that the plan uses."""
    chip_types: Count
    """Different chips in the cluster."""
    tokens_per_s: Positive
    """Tokens of the global batch over the step time."""
    tokens_per_s_per_chip: Positive
    """The same over the chips that the plan uses (TGS)."""
    cluster_sha256: Sha256
    """Hash of the cluster with its profiles, as in the plan."""
    model_sha256: Sha256
    """Hash of the model and how it is trained, as in the plan."""


class Failure(BenchModel):
    """Why a case has no plan."""

    kind: Text
    """Class of the error, `crash` when the process ended without a word, `overtime` when it did not end."""
    message: Text
    """What a person is told."""


class CaseResult(BenchModel):
    """One case: what was asked, what it took, and either `found` or `failure`."""

    name: Text
    """Name of the case."""
    cluster: Text
    """Name of the shipped cluster."""
    model: Text
    """Name of the shipped model."""
    pipelines: Literal["mixed", "identical"]
    """Whether replicas could be of several shapes."""
    time_limit_s: Positive
    """The time limit of the family."""
    limit_s: Positive
    """The time limit of this run: with a baseline, as many calibration loops as the baseline's."""
    gap_asked: Annotated[float, Field(ge=0, le=1)]
    """Where the search was told to stop."""
    calibration_s: Positive
    """One calibration loop: mean of the one before the case and the one after it."""
    total_s: Positive
    """The whole process: Python, imports, reading, `solve`, checking the plan."""
    peak_bytes: Whole | None
    """Most memory that the process held at a time; null when it could not tell."""
    found: Found | None
    """The plan, when there is one."""
    failure: Failure | None
    """Why there is no plan."""

    @model_validator(mode="after")
    def _is_consistent(self) -> CaseResult:
        if (self.found is None) == (self.failure is None):
            raise ValueError("a case has either `found` or `failure`")
        if self.found is not None:
            loops = self.found.solve_s / self.calibration_s
            if abs(self.found.loops - loops) > 1e-6 * loops:
                raise ValueError(f"`loops` is {self.found.loops:g}, but solve_s / calibration_s is {loops:g}")
        return self


class Limits(BenchModel):
    """What is still no regression."""

    slower: Annotated[float, Field(ge=1)] = 1.5
    """Calibration loops of a case over those of the baseline."""
    memory: Annotated[float, Field(ge=1)] = 1.5
    """Peak memory over the baseline's."""
    worse: Annotated[float, Field(ge=0)] = 0.001
    """Step time over the baseline's, less one."""
    wider: Annotated[float, Field(ge=0)] = 0.01
    """Gap less the baseline's gap."""


class Change(BenchModel):
    """One case beside the baseline. A number is null where there is nothing to compare."""

    name: Text
    """Name of the case."""
    loops_ratio: Ratio | None = None
    """Calibration loops over the baseline's; above 1 is slower. Null unless the baseline closed its gap."""
    memory_ratio: Ratio | None = None
    """Peak memory over the baseline's."""
    worse: float | None = None
    """Step time over the baseline's, less one; above 0 is worse."""
    wider: float | None = None
    """Gap less the baseline's; above 0 is worse."""
    regressions: tuple[Regression, ...] = ()
    """Which limits are passed."""
    note: str = ""
    """Why something was not compared."""


class Comparison(BenchModel):
    """This run beside an earlier one."""

    limits: Limits
    """What is still no regression."""
    changes: tuple[Change, ...]
    """The cases of this run, in its order."""
    not_run: tuple[Text, ...] = ()
    """Cases of the baseline that did not run now."""

    @property
    def regressed(self) -> tuple[Change, ...]:
        """The cases that pass a limit."""
        return tuple(change for change in self.changes if change.regressions)


class BenchResults(BenchModel):
    """A run of the benchmarks."""

    format: Literal["dplan-bench"] = "dplan-bench"
    """Says what the file is."""
    format_version: Literal["1.0"] = "1.0"
    """Readers refuse a version that they do not know."""
    environment: Environment
    """Where it ran."""
    complete: bool
    """Whether every case that was asked for has run; false after Ctrl-C."""
    cases: tuple[CaseResult, ...]
    """In the order of the family."""
    comparison: Comparison | None = None
    """Beside the baseline, when one was given."""

    @model_validator(mode="after")
    def _has_each_case_once(self) -> BenchResults:
        names = [case.name for case in self.cases]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"case {twice[0]!r} is there twice")
        return self

    @property
    def calibration_s(self) -> float | None:
        """Median of the cases' calibration loops."""
        return statistics.median(case.calibration_s for case in self.cases) if self.cases else None

    def case(self, name: str) -> CaseResult | None:
        """The case of a name."""
        return next((case for case in self.cases if case.name == name), None)


def bench_schema() -> dict[str, Any]:
    """The published JSON Schema of a results file."""
    schema = BenchResults.model_json_schema(mode="validation")
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}

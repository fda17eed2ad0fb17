"""What a mixed plan is worth: beside each chip type alone, and beside the rules that people use without a search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.errors import InfeasibleError, InputError, InterruptedSolve, NoPlanFoundError
from planner.search.baselines.ablations import CHANGES, Rate, Side
from planner.search.baselines.accounts import chip_time, speed_of
from planner.search.baselines.budget import BaselineProgress, Budget, Watch
from planner.search.baselines.explain import ablate, force_all_groups, statements
from planner.search.baselines.narrowed import ChipType, batch_for, chip_types, only_groups, with_batch, with_free_shape
from planner.search.baselines.results import BaselineReport, HomogeneousBaseline, RuleBaseline, Status
from planner.search.baselines.rules import RULES
from planner.search.baselines.thumb import rule_baseline
from planner.search.solve import SolveOptions, SolveResult, interruptible, solve

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.spec import Cluster, ModelSpec

__all__ = ["compare_baselines"]

_TYPE_PARTS = 2
"""How many times as long as a rule of thumb a chip type alone may take: it proves how good its plan is."""


def compare_baselines(
    cluster: Cluster,
    model: ModelSpec,
    options: SolveOptions | None = None,
    progress: Callable[[BaselineProgress], None] | None = None,
    *,
    mixed: SolveResult | None = None,
    explain: bool = True,
) -> BaselineReport:
    """The best plan, the best plan of each chip type alone, the plans of rules of thumb, and why they differ.

    All are plans of the same cost model and pass the checker. mixed: the result of `solve` with the same inputs, if it
    is known. explain: also account for the chips' time and solve again without each cause.

    Time: the mixed plan takes up to `options.time_limit_s`; all baselines together as long again, each an equal part of
    what is left; and so does each cause that is taken away (five of them, and idle node groups if there are any).
    What proves that a chip type does not fit may take half a minute more (as in `solve`).

    Raises InputError for options that make no comparison (`ignore_memory`, objective `cost`), what `solve` raises for
    the mixed plan, and InterruptedSolve on Ctrl-C.
    """
    options = options or SolveOptions()
    _refuse(options)
    types = chip_types(cluster, model)
    watch = Watch(progress, _solves(len(types), mixed is None, explain))
    if mixed is None:
        watch.begin("the mixed plan")
        mixed = _uninterrupted(solve(cluster, model, options, watch.search))
    comparison = _Comparison(cluster, model, options, watch, types, mixed.plan)
    baselines, rules = comparison.baselines()
    report = BaselineReport(mixed.plan, comparison.chips, baselines, rules, notes=tuple(comparison.notes(baselines)))
    return comparison.explained(report) if explain else report


def _refuse(options: SolveOptions) -> None:
    why = {"objective cost": options.objective == "cost", "ignore_memory": options.ignore_memory}
    for name, asked in why.items():
        if asked:
            raise InputError.single(
                path="baselines",
                what=f"there is no comparison with {name}",
                why="baselines are compared by the step times of plans that can run",
                fix="leave one of the two out",
            )


def _solves(types: int, mixed: bool, explain: bool) -> int:
    """How many searches there will be, at most."""
    again = (len(CHANGES) + 1) * (types + 1) if explain and types > 1 else 0
    return int(mixed) + types + len(RULES) + again


def _uninterrupted(result: SolveResult) -> SolveResult:
    if result.why_stopped == "interrupted":
        raise InterruptedSolve("interrupted before the comparison was done")
    return result


@dataclass(frozen=True)
class _Comparison:
    """The inputs of one comparison, and its steps."""

    cluster: Cluster
    model: ModelSpec
    options: SolveOptions
    watch: Watch
    types: tuple[ChipType, ...]
    plan: Plan

    @property
    def chips(self) -> int:
        """N_total."""
        return sum(kind.chips for kind in self.types)

    @property
    def usable(self) -> Cluster:
        """The cluster without node groups that the user leaves idle."""
        groups = [g for kind in self.types for g in kind.groups]
        if len(groups) == len(self.cluster.node_groups):
            return self.cluster
        return only_groups(self.cluster, groups, self.cluster.name)

    def baselines(self) -> tuple[tuple[HomogeneousBaseline, ...], tuple[RuleBaseline, ...]]:
        """Every chip type alone, and every rule of thumb."""
        budget = Budget(self.options.time_limit_s, _TYPE_PARTS * len(self.types) + len(RULES))
        alone = tuple(self._alone(kind, budget) for kind in self.types)
        found = []
        with interruptible() as interrupted:
            for rule in RULES:
                self.watch.begin(rule.title)
                deadline = time.monotonic() + budget.next()
                found.append(rule_baseline(rule, self.usable, self.model, deadline, interrupted))
                if interrupted():
                    raise InterruptedSolve("interrupted before the comparison was done")
        return alone, tuple(found)

    def side(self, kind: ChipType, plan: Plan | None) -> Side:
        """A chip type as a cluster of its own with its share of the batch."""
        cluster = only_groups(self.cluster, kind.groups, f"{self.cluster.name}-{kind.chip}")
        _, batch = batch_for(self.model, kind.chips, self.chips)
        return Side(
            f"{kind.chip} alone", cluster, with_batch(with_free_shape(self.model, kind.node_groups), batch), plan
        )

    def _alone(self, kind: ChipType, budget: Budget) -> HomogeneousBaseline:
        fair, batch = batch_for(self.model, kind.chips, self.chips)
        if len(self.types) == 1 and self.side(kind, None).model == self.model:
            return HomogeneousBaseline(
                kind.chip, kind.node_groups, kind.chips, float(fair), batch, "planned", self.plan
            )
        side, unlimited = self.side(kind, None), None
        options = replace(self.options, jobs=1)  # worker processes take longer to start than one type takes to solve
        plan, status, reason = _solved(side, replace(options, time_limit_s=budget.next(_TYPE_PARTS)), self.watch)
        if status == "does not fit":
            options = replace(options, time_limit_s=budget.next(), ignore_memory=True)
            unlimited, _, _ = _solved(side, options, self.watch)
        return HomogeneousBaseline(
            kind.chip, kind.node_groups, kind.chips, float(fair), batch, status, plan, reason, unlimited
        )

    def notes(self, baselines: tuple[HomogeneousBaseline, ...]) -> Iterator[str]:
        """How the numbers were made."""
        yield "TGS counts all chips of a side, idle ones too; the separate plans are jobs side by side, rates added up"
        for baseline in baselines:
            if baseline.fair_batch != baseline.global_batch:
                yield (
                    f"{baseline.chip}: its share of the batch is {baseline.fair_batch:.2f} sequences, planned with"
                    f" {baseline.global_batch} (never fewer: a larger batch favours the baseline)"
                )
            if baseline.status in ("does not fit", "impossible"):
                yield f"{baseline.chip} cannot train alone: its TGS counts as 0"
        if self.cluster.topology is not None:
            yield "plans are placed and priced on the topology; solving again without a cause assumes the best places"
        yield "rules of thumb: the fastest over all micro-batch sizes, degrees and replicas, recompute as needed"

    def explained(self, report: BaselineReport) -> BaselineReport:
        """The report with chip time and statements; without them where a chip type was not planned in time."""
        baselines = report.homogeneous
        if len(self.types) < 2 or any(baseline.status == "not found" for baseline in baselines):
            return report
        speeds = _speeds(baselines)
        separate = [(baseline.chip, baseline.chips, baseline.plan) for baseline in baselines]
        left_out = self.model.constraints.idle
        time_spent = None if speeds is None else chip_time(report.mixed, separate, speeds, left_out)
        if time_spent is None:
            return report
        sides = [
            self.side(kind, baseline.plan)
            for kind, baseline in zip(self.types, baselines, strict=True)
            if baseline.status != "impossible"
        ]
        whole = Side("the mixed plan", self.cluster, self.model, report.mixed)
        parts = len(sides) + max(1, len(sides))
        limit = self.options.time_limit_s
        again = ablate(time_spent, whole, sides, self.options, lambda: Budget(limit, parts), self.watch)
        now = Rate.of_plan(report.mixed, self.options.gap)
        separately = Rate.total([Rate.of_plan(b.plan, self.options.gap) for b in baselines if b.plan is not None])
        able = [name for baseline in baselines if baseline.status != "impossible" for name in baseline.node_groups]
        if not self._used.issuperset(able):
            forced = force_all_groups(whole, able, separately, self.options, self.watch)
            again |= {} if forced is None else {"idle": forced}
        return replace(report, chip_time=time_spent, statements=statements(time_spent, now, separately, again))

    @property
    def _used(self) -> set[str]:
        """Node groups at work in the mixed plan."""
        return {stage.node_group for pipeline in self.plan.pipelines for stage in pipeline.stages}


def _speeds(baselines: tuple[HomogeneousBaseline, ...]) -> dict[str, float] | None:
    """Tokens per second of computing, by chip. A type that does not fit alone is measured by its plan without regard
    to memory; one that cannot train at all counts nothing. None when that is not known.
    """
    speeds = {}
    for baseline in baselines:
        plan = baseline.plan or baseline.unlimited
        if plan is None and baseline.status != "impossible":
            return None
        speeds[baseline.chip] = 0.0 if plan is None else speed_of(plan)
    return speeds


def _solved(side: Side, options: SolveOptions, watch: Watch) -> tuple[Plan | None, Status, str]:
    """The best plan of a side, checked, or why there is none."""
    from planner.plan import check_plan

    watch.begin(side.name)
    try:
        result = _uninterrupted(solve(side.cluster, side.model, options, watch.search))
    except InfeasibleError as error:
        return None, "does not fit", error.details[0] if error.details else error.message
    except NoPlanFoundError as error:
        return None, "not found", error.message
    except InputError as error:
        return None, "impossible", error.problems[0].render()
    wrong = [v for v in check_plan(result.plan) if not (options.ignore_memory and v.code == "memory")]
    assert not wrong, wrong[0].render()
    return result.plan, "planned", ""

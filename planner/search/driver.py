"""The search over all roots: first plan, surveys, proofs, certificate. Knows numbers only."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from planner.search.candidates import make_roots
from planner.search.first_plans import obvious_best, single_stage_plan, spread_roots
from planner.search.highs import require_solver
from planner.search.improve import improve, improve_shape
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf
from planner.search.open_roots import OpenRoots
from planner.search.outcome import Outcome, SearchProgress, SearchSettings, WhyStopped
from planner.search.prove import Proof
from planner.search.sieve import MOST_GROUPS
from planner.search.sifting import Question
from planner.search.survey import CAUTIOUS, SHORT, THOROUGH, Best, Survey, leaf_weight, sieve_helps, survey_root
from planner.search.tree import Order, Target
from planner.search.workers import Workers

if TYPE_CHECKING:
    from planner.cost.tables import Problem

__all__ = ["Outcome", "SearchProgress", "SearchSettings", "WhyStopped", "search"]

_SURVEY_BATCH = 4
_PROOF_BATCH = 8
_FIRST_TRIES = 2
_LOW_FLOORS = 8
_MANY_GROUPS = 12
_PROMISING_ROOTS = 4
_WIDENING = (4.0, 30.0, 1e6)
"""Targets of the first surveys, as multiples of a root's bound, until there is a plan: the later ones only where memory
rules out the earlier.
"""
_HALVINGS, _FRESH_HALVINGS = 6, 2
"""Questions to the sieve about a promising root, and about any other."""
_CLOSENESS = 0.2
"""Better plans of promising roots are looked for until the sieve knows of none that is better by this share of the gap.
"""
_SOME_GROUPS = 4
"""Up to so many groups a promising root is looked at closely first, and the best plan is tried without each group."""
_CLOSER = 1.1
"""The target of one more short survey a promising root, as a multiple of its bound."""
_UNLIMITED = 1e30
_ALONE = 0.5
"""Share of the time limit in which the search goes as it would without an older plan."""


def search(
    problem: Problem,
    settings: SearchSettings,
    progress: Callable[[SearchProgress], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Find the plan with the least objective, and prove how good it is, over every root of the problem."""
    return _Search(problem, settings, progress, should_stop).run()


class _Search:
    def __init__(
        self,
        problem: Problem,
        settings: SearchSettings,
        progress: Callable[[SearchProgress], None] | None,
        should_stop: Callable[[], bool],
    ) -> None:
        require_solver(settings.solver)
        self.settings, self.progress, self.should_stop = settings, progress, should_stop
        self.begin = time.monotonic()
        self.deadline = self.begin + (settings.first_plan_limit_s or settings.time_limit_s)
        self.roots = make_roots(problem, Intervals(problem.chain), settings.limits)
        self.workers = Workers(problem, settings, self.roots)
        self.best: Best | None = None
        self.open = OpenRoots(self.roots, settings.price_per_chip_s, self.out_of_time)
        self.crowded: set[int] = set()
        self.looked_around: Best | None = None
        self.older, self.warmed = settings.warm, False
        self.statistics = {
            "roots": len(self.roots),
            "nodes": 0,
            "leaves": 0,
            "programs": 0,
            "surveyed_roots": 0,
            "sifts": 0,
        }

    # -- small helpers -------------------------------------------------------------------------------------------

    @property
    def gap(self) -> float:
        return max(self.settings.gap, 1e-6)

    @property
    def objective(self) -> float:
        return self.best.objective if self.best else math.inf

    @property
    def has_plan(self) -> bool:
        return self.best is not None

    def target(self) -> Target:
        return Target(min(self.objective, _UNLIMITED), self.settings.price_per_chip_s)

    def out_of_time(self) -> bool:
        return self.should_stop() or time.monotonic() >= self.deadline

    def take(self, found: Best | None) -> None:
        if found is not None and found.objective < self.objective:
            self.best = found
            self.deadline = min(self.deadline, self.begin + self.settings.time_limit_s)

    def bound(self) -> float:
        """What no plan can beat: the least bound of anything open, or proved when it was closed."""
        return min(self.open.least(), self.objective)

    def adopt_older(self, after: float) -> None:
        """Take an older plan that is better than anything found, once so much of the time is over.

        Not before: what ends by the gap must not depend on it.
        """
        older, passed = self.older, time.monotonic() - self.begin
        if older is not None and older.objective < self.objective and passed >= after * self.settings.time_limit_s:
            self.best, self.warmed = older, True

    def report(self) -> None:
        if self.progress is not None:
            known = [x.objective for x in (self.best, self.older) if x is not None]
            found = min(known, default=None)
            elapsed = time.monotonic() - self.begin
            bound = min(self.bound(), found or math.inf)
            self.progress(
                SearchProgress(
                    self.statistics["leaves"],
                    self.statistics["programs"],
                    found,
                    bound if math.isfinite(bound) else None,
                    elapsed,
                )
            )

    # -- phases --------------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        try:
            few = spread_roots(self.roots)
            if self.older is not None:
                self.report()
            self.try_single_stages(few)
            self.try_obvious_shapes(few)
            self.open.find_floors(self.should_stop)
            self.report()
            self.try_low_floors()
            self.open.begin(few)
            self.find_first_plan()
            self.open.begin(i for i in range(len(self.roots)) if i not in few)
            self.find_first_plan()
            self.workers.begin()
            self.adopt_older(_ALONE)
            self.find_better_plan()
            self.close_roots()
        finally:
            self.workers.close()
        return self.outcome()

    def find_first_plan(self) -> None:
        """A good plan before anything is proved: the most promising leaves of the most promising roots."""
        if self.best is not None and (self.settings.first_plan_only or self.can_sift(self.best.root_index)):
            return
        promising = self.open.promising(_FIRST_TRIES)
        roomiest = self.open.roomiest(_PROMISING_ROOTS)
        begun = self.objective
        for factor, roots in zip(_WIDENING, (promising, roomiest, promising), strict=True):
            for i in roots:
                if self.objective == begun:
                    self.look_for_plan(i, self.open.bounds[i] * factor or _UNLIMITED, any_plan=True)
        self.report()

    def try_obvious_shapes(self, roots: list[int]) -> None:
        """A plan to begin with, whatever it is worth; short pipelines first, which are soon split."""
        for i in sorted(roots, key=lambda i: (self.roots[i].most_stages, i)):
            if self.has_plan or self.out_of_time():
                break
            self.take(obvious_best(self.roots[i], i, self.target()))
        self.report()

    def try_low_floors(self) -> None:
        """The obvious shapes of the roots with the lowest floors: the first plan may be many times slower."""
        if self.settings.first_plan_only or not self.has_plan:
            return
        for i in self.open.lowest(_LOW_FLOORS):
            if not self.out_of_time():
                self.take(obvious_best(self.roots[i], i, self.target()))
                self.roots[i].release()
        self.report()

    def try_single_stages(self, roots: list[int]) -> None:
        """With very many groups even bounds take long: the first single stage that fits is a plan to begin with."""
        if len(self.roots[0].groups if self.roots else ()) > _MANY_GROUPS:
            self.take(single_stage_plan(self.roots, roots, self.target(), self.out_of_time))

    def find_better_plan(self) -> None:
        """Short surveys of the promising roots close to their bounds, then local search around the best plan."""
        if self.settings.first_plan_only:
            return
        for i in () if self.sifts_all() else self.open.promising(_PROMISING_ROOTS):
            if not self.can_sift(i):
                self.look_for_plan(i, self.open.bounds[i] * _CLOSER or _UNLIMITED, any_plan=False)
        self.sift_promising()
        if self.best is not None and not self.out_of_time() and not self.can_sift(self.best.root_index):
            self.take(improve(self.roots, self.best, self.settings.price_per_chip_s, self.out_of_time))
        self.leave_out_groups()
        self.report()

    def sift_promising(self) -> None:
        """Better plans from the sieve, those of short pipelines first, which are soon answered.

        With many groups every question takes long, and no root is worth more than its turn.
        """
        if len(self.roots[0].groups) > _SOME_GROUPS:
            return
        promising = [i for i in self.open.promising(_PROMISING_ROOTS) if self.can_sift(i)]
        for i in sorted(promising, key=lambda i: (self.roots[i].most_stages, i)):
            goal = self.objective * (1 - self.gap)
            if self.open.bounds[i] < goal and not self.out_of_time():
                self.sift([self.open.question(i, goal, _HALVINGS)], _CLOSENESS)

    def leave_out_groups(self) -> None:
        """A group that does not earn its place: look for a plan without it that is at least as good."""
        if self.best is None or len(self.best.order) > _SOME_GROUPS:
            return
        for g in sorted({group for group, _, _ in self.best.order}):
            if len(self.best.order) < 2 or self.out_of_time():
                return
            if g in self.settings.limits.use or g in self.settings.limits.stages:
                continue
            root = self.roots[self.best.root_index]
            target = Target(self.objective * (1 + 1e-9), self.settings.price_per_chip_s)
            survey = survey_root(
                root.without(g), self.best.root_index, target, 0.0, deadline=self.deadline, effort=SHORT
            )
            self.count(survey)
            if survey.best is not None:
                self.best = survey.best

    def look_for_plan(self, i: int, objective: float, *, any_plan: bool) -> None:
        """A short survey of one root for a plan better than `objective` and the best one known; for the first such plan
        if any will do.
        """
        if self.out_of_time():
            return
        goal = Target(min(self.objective, objective), self.settings.price_per_chip_s)
        survey = self.workers.survey_here(i, self.open.bounds[i], goal, self.deadline, self.should_stop, any_plan)
        self.count(survey)
        self.take(survey.best)

    def count(self, survey: Survey) -> None:
        self.statistics["nodes"] += survey.nodes
        self.statistics["leaves"] += survey.num_leaves

    def can_sift(self, i: int) -> bool:
        """Whether the sieve over all shapes can be asked about a root."""
        return self.settings.price_per_chip_s is None and self.has_plan and sieve_helps(self.roots[i])

    def sifts_all(self) -> bool:
        """Whether it can be asked about any root; known without a look at the roots."""
        return self.settings.price_per_chip_s is None and self.has_plan and len(self.roots[0].groups) <= MOST_GROUPS

    def sift(self, questions: list[Question], closeness: float = 1.0) -> None:
        """Ask the sieve about some roots: plans until none is better by so much of the gap, and sharper bounds."""
        gap = closeness * self.gap
        sifts = self.workers.sifts(questions, self.target(), gap, self.out_of_time, self.deadline)
        for question, sift in zip(questions, sifts, strict=True):
            self.statistics["sifts"] += 1
            self.open.answer(question, sift)
            self.take(sift.best)
            self.roots[question.index].release()
        self.report()

    def sift_fresh(self, goal: float) -> bool:
        """Ask about a few roots for the first time, at the goal; False when every root below it has been asked about.

        Better plans come from here: the goal falls before the other roots are looked at.
        """
        fresh = self.open.unasked(goal, _SURVEY_BATCH, self.can_sift)
        if fresh:
            self.sift([self.open.question(i, goal, _FRESH_HALVINGS) for i in fresh])
        return bool(fresh)

    def sift_closer(self, batch: list[int], goal: float) -> bool:
        """Ask about the roots of the batch whose bounds are not sharp yet; False when all are."""
        closer = [self.open.closer_question(i, goal) for i in batch if self.can_sift(i)]
        questions = [question for question in closer if question is not None]
        if questions:
            self.sift(questions)
        return bool(questions)

    def close_roots(self) -> None:
        """Sift and survey roots in the order of their bounds, prove what survives; roots above the target are closed by
        their bound.
        """
        while self.open.bounds and not self.out_of_time():
            if self.best is not None and self.settings.first_plan_only:
                break
            self.adopt_older(_ALONE)
            goal = self.objective * (1 - self.gap)
            if self.sift_fresh(goal):
                continue
            batch = [i for i in self.open.best(_SURVEY_BATCH) if self.open.bounds[i] < goal]
            if not batch:
                break
            if not (self.sift_closer(batch, goal) or self.look_around() or self.survey(batch)):
                break

    def look_around(self) -> bool:
        """Once for every best plan that came from elsewhere, its neighbours; whether a better one was found."""
        if self.best is None or self.best is self.looked_around or not self.can_sift(self.best.root_index):
            return False
        found = improve_shape(self.roots[self.best.root_index], self.best, self.out_of_time)
        better = found.objective < self.objective * (1 - 1e-9)
        self.take(found)
        self.looked_around = self.best
        self.report()
        return better

    def survey(self, batch: list[int]) -> bool:
        """Survey a batch of roots and prove what is left of them; False when the time was over before the end."""
        tasks = [(i, self.open.bounds[i], CAUTIOUS if i not in self.crowded else THOROUGH) for i in batch]
        surveys = self.workers.surveys(tasks, self.target(), self.gap, self.deadline, self.should_stop)
        leaves: list[tuple[float, int, Order]] = []
        for i, survey in zip(batch, surveys, strict=True):
            self.count(survey)
            self.take(survey.best)
            leaves += [] if survey.too_many else [(b, i, o) for b, o in survey.leaves]
        remaining = self.prove(sorted(leaves, key=lambda x: (x[0], x[1], x[2])))
        for i, survey in zip(batch, surveys, strict=True):
            if survey.too_many:
                self.crowded.add(i)
            elif survey.complete:
                self.statistics["surveyed_roots"] += 1
                # what was pruned in this root was above the target of its time, which only fell since
                left = [b for b, j, _ in remaining if j == i]
                proved = [max(min(left), self.open.bounds[i])] if left else []
                self.open.close(i, [self.objective * (1 - self.gap), *proved])
        self.report()
        return all(survey.complete or survey.too_many for survey in surveys)

    def prove(self, leaves: list[tuple[float, int, Order]]) -> list[tuple[float, int, Order]]:
        """Solve the stage programs of surviving leaves in fixed batches; returns what stayed open, with its bound."""
        still_open: list[tuple[float, int, Order]] = []
        while leaves:
            goal = self.objective * (1 - self.gap)
            leaves = [x for x in leaves if x[0] < goal]
            if not leaves:
                break
            if self.out_of_time():
                return still_open + leaves
            batch, leaves = leaves[:_PROOF_BATCH], leaves[_PROOF_BATCH:]
            proofs = self.workers.proofs(batch, self.target(), self.gap, self.deadline, self.should_stop)
            for (bound, i, order), (proof, weight) in zip(batch, proofs, strict=True):
                self.statistics["programs"] += proof.programs
                self.take_proof(i, order, proof, weight)
                if not proof.closed:
                    still_open.append((max(bound, proof.bound * weight), i, order))
            self.report()
        goal = self.objective * (1 - self.gap)
        return [x for x in still_open if x[0] < goal]

    def take_proof(self, i: int, order: Order, proof: Proof, weight: float) -> None:
        if proof.split is not None:
            self.take(Best(weight * proof.step_time, proof.step_time, i, order, proof.split))

    def outcome(self) -> Outcome:
        why = self.why_stopped()
        if why != "gap":
            self.adopt_older(0.0)
        bound = self.bound()
        if self.best is None:
            return Outcome(None, None, math.inf, math.inf, bound, why, self.statistics)
        leaf = Leaf(self.roots[self.best.root_index], self.best.order)
        assert abs(leaf_weight(leaf, self.target()) * self.best.step_time - self.objective) <= 1e-9 * self.objective
        return Outcome(
            leaf, self.best.split, self.best.step_time, self.objective, bound, why, self.statistics, self.warmed
        )

    def why_stopped(self) -> WhyStopped:
        """An older plan that was let in by the clock makes the clock the reason, also where the gap is closed."""
        if self.should_stop():
            return "interrupted"
        if self.best is not None and self.objective - self.bound() <= self.gap * self.objective * (1 + 1e-6):
            return "time" if self.warmed else "gap"
        return "time" if time.monotonic() >= self.deadline else "exhausted"

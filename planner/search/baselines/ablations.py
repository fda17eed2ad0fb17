"""Solving again with one cause of lost time taken away: what does each side of a comparison gain?

Each side is searched again in its own plan space: identical pipelines first, then mixes of shapes where the space has
them. Whatever was changed, the plan that is known stays possible and is run again under the change, so that a search
which found little in its time never makes a change look harmful.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from planner.errors import InterruptedSolve
from planner.search.baselines.accounts import Replay
from planner.search.baselines.results import rate_at_bound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.model import CostModel
    from planner.cost.tables import (
        Chain,
        ChipGroup,
        Holder,
        LayerTable,
        MixedProblem,
        Mode,
        Offload,
        Reduction,
        Setting,
        TransferTable,
    )
    from planner.plan import Plan
    from planner.search.baselines.budget import Budget, Watch
    from planner.search.outcome import SearchSettings, WhyStopped
    from planner.search.solve import SolveOptions
    from planner.spec import Cluster, ModelSpec

    Floats = NDArray[np.float64]

__all__ = ["CHANGES", "Change", "DividedLayers", "FreeRecompute", "FreeTransfers", "Rate", "Side", "rate_under"]

_LARGER = 8
"""How many times the batch, where filling, draining and updating are to weigh little."""
_NEARLY = 2
"""A search counts as settled within so many times its asked gap."""
_PIECES = 2
"""Into how many equal pieces a layer divides, where whole layers are to matter less."""


@dataclass(frozen=True)
class _Changed:
    """A problem that differs from `base` in what a subclass says."""

    base: MixedProblem

    @property
    def chain(self) -> Chain:
        return self.base.chain

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def policies(self) -> tuple[str, ...]:
        return self.base.policies

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    @property
    def settings(self) -> tuple[Setting, ...]:
        return self.base.settings

    @property
    def schedules(self) -> tuple[str, ...]:
        return self.base.schedules

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        return self.base.table(group, mode, setting)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> Floats | None:
        least = getattr(self.base, "least_layer_s", None)
        return None if least is None else least(group, mode, setting)

    @property
    def may_mix(self) -> bool:
        return self.base.may_mix

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        return self.base.micro_batch_sizes

    def reduction(self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1) -> Reduction:
        return self.base.reduction(own, holders, setting, sharing)


class FreeTransfers(_Changed):
    """Transfers between stages take no time."""

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        from planner.cost.tables import TransferTable

        table = self.base.transfer(source, source_mode, target, target_mode, same_node, setting)
        return TransferTable(0.0 * table.forward_s, 0.0 * table.backward_s)


class FreeRecompute(_Changed):
    """Recompute and copies to host memory take no time; what they free they free."""

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        if table is None:
            return None
        offload = table.offload and replace(table.offload, forward_s=0.0 * table.offload.forward_s)
        return replace(table, recompute_s=0.0 * table.recompute_s, offload=offload)


class UnlimitedMemory(_Changed):
    """Every chip holds whatever it is given."""

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        if table is None:
            return None
        return replace(table, usable_bytes=math.inf, usable_host_bytes=math.inf, usable_nvme_bytes=math.inf)


class DividedLayers(_Changed):
    """Every kind of layer that occurs more than once comes in `_PIECES` equal pieces, each with its part of the time
    and memory (the working set stays whole).
    """

    @property
    def chain(self) -> Chain:
        from planner.cost.tables import Chain

        chain = self.base.chain
        pieces = [
            (f"{name}.{piece}", kind)
            for name, kind in zip(chain.names, chain.kinds, strict=True)
            for piece in range(self._pieces(kind))
        ]
        return Chain(tuple(name for name, _ in pieces), tuple(kind for _, kind in pieces), chain.kind_names)

    def _pieces(self, kind: int) -> int:
        return _PIECES if self.base.chain.kinds.count(kind) > 1 else 1

    def _part(self) -> Floats:
        """By kind, what one piece is of its layer."""
        import numpy as np

        return np.array([1.0 / self._pieces(kind) for kind in range(len(self.base.chain.kind_names))])

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> Floats | None:
        least = super().least_layer_s(group, mode, setting)
        return None if least is None else least * self._part()

    def reduction(self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1) -> Reduction:
        whole = super().reduction(own, holders, setting, sharing)
        return replace(whole, seconds=whole.seconds * self._part())

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        if table is None:
            return None
        part = self._part()
        return replace(
            table,
            forward_s=table.forward_s * part,
            backward_input_s=table.backward_input_s * part,
            backward_weight_s=table.backward_weight_s * part,
            recompute_s=table.recompute_s * part,
            static_bytes=table.static_bytes * part,
            host_bytes=None if table.host_bytes is None else table.host_bytes * part,
            nvme_bytes=None if table.nvme_bytes is None else table.nvme_bytes * part,
            saved_bytes=table.saved_bytes * part,
            reduction_s=table.reduction_s * part,
            optimizer_s=table.optimizer_s * part,
            offload=None if table.offload is None else _divided(table.offload, part),
        )


def _divided(offload: Offload, part: Floats) -> Offload:
    """Copies of pieces of layers; the staging buffers stay whole."""
    return replace(offload, forward_s=offload.forward_s * part, host_bytes=offload.host_bytes * part)


@dataclass(frozen=True)
class Change:
    """One cause taken away.  sentence: in words.  problem: the search's numbers without it.  replay: a known plan's own
    stages without it.  lifts_memory: whether a side that does not fit has a plan under the change.
    """

    code: str
    sentence: str
    problem: Callable[[MixedProblem], MixedProblem]
    replay: Replay
    lifts_memory: bool = False


def _as_it_is(problem: MixedProblem) -> MixedProblem:
    return problem


CHANGES: tuple[Change, ...] = (
    Change("recompute", "recompute takes no time", FreeRecompute, Replay(no_recompute=True)),
    Change("bubble", f"the batch is {_LARGER} times as large", _as_it_is, Replay(times_batch=_LARGER)),
    Change("links", "transfers between stages take no time", FreeTransfers, Replay(free_links=True)),
    Change("integrality", f"every layer divides in {_PIECES}", DividedLayers, Replay()),
    Change("memory", "memory has no limit", UnlimitedMemory, Replay(no_recompute=True), lifts_memory=True),
)


@dataclass(frozen=True)
class Side:
    """What is solved again: the whole cluster, or one chip type alone, with the plan that is known for it."""

    name: str
    cluster: Cluster
    model: ModelSpec
    plan: Plan | None


@dataclass(frozen=True)
class Rate:
    """Tokens per second that were found, and that nothing of the plan space can beat (inf where nothing is proved).

    settled: the search over identical pipelines came about as close to its own bound as it was asked to, or the plan
    is better than that; whether mixes are settled too, only `most` says.
    """

    found: float
    most: float
    settled: bool = True

    @classmethod
    def total(cls, rates: Sequence[Rate]) -> Rate:
        """Several jobs side by side."""
        settled = all(rate.settled for rate in rates)
        return cls(sum(rate.found for rate in rates), sum(rate.most for rate in rates), settled)

    @classmethod
    def of_plan(cls, plan: Plan, gap: float) -> Rate:
        """What a plan and its certificate say; gap: what was asked."""
        certificate = plan.certificate
        bound = certificate.bound if certificate.identical_bound is None else certificate.identical_bound
        settled = _near(1 - bound / certificate.objective, gap)
        return cls(plan.prediction.tokens_per_s, rate_at_bound(plan), settled)


def _near(gap: float, asked: float) -> bool:
    return gap <= _NEARLY * max(asked, 1e-6)


@dataclass(frozen=True)
class _Again:
    """Seconds of the best step of a search, of its bound, and of its bound among identical pipelines.

    stopped: why the search for identical pipelines did.
    """

    step_s: float
    bound_s: float
    identical_s: float
    stopped: WhyStopped


def rate_under(change: Change, side: Side, options: SolveOptions, budget: Budget, watch: Watch, parts: int = 1) -> Rate:
    """A side's rate under a change: the better of a new search and of the known plan's own stages."""
    from planner.cost.model import CostModel
    from planner.graph import build_graph
    from planner.search.baselines.narrowed import with_batch
    from planner.search.solve import search_settings

    watch.begin(f"{side.name}, if {change.sentence}")
    training, times = side.model.training, change.replay.times_batch
    model = with_batch(side.model, training.global_batch * times)
    cost = CostModel(side.cluster, model, build_graph(model))
    settings = replace(search_settings(side.cluster, model, cost, options), time_limit_s=budget.next(parts))
    again = _searched(change.problem(cost), cost, model, settings, options, watch)
    known = math.inf if side.plan is None else change.replay.step_time_s(side.plan)
    step, tokens = min(again.step_s, known), times * training.global_batch * training.sequence_length
    if step == math.inf:
        nothing = again.stopped == "exhausted" and again.bound_s == math.inf
        return Rate(0.0, 0.0 if nothing else math.inf, nothing)
    found = again.step_s < math.inf
    settled = found and _near((step - again.identical_s) / step, options.gap)
    # layers that branch are searched in the model's order here: that proves nothing of other orders
    proved = again.bound_s if found and cost.chain.tensors is None else 0.0
    return Rate(tokens / step, tokens / min(proved, step) if proved > 0 else math.inf, settled)


def _searched(
    problem: MixedProblem,
    cost: CostModel,
    model: ModelSpec,
    settings: SearchSettings,
    options: SolveOptions,
    watch: Watch,
) -> _Again:
    """As `solve` searches: identical pipelines, then mixes from the best of them."""
    from planner.search.driver import search
    from planner.search.mix_progress import MixReporter
    from planner.search.mixes import IDENTICAL, before_mixes, search_all_shapes, why_identical
    from planner.search.progress import forward
    from planner.search.solve import interruptible

    begin, limit = time.monotonic(), settings.time_limit_s
    mixes = why_identical(model, cost, settings.limits, options) is None
    first = before_mixes(problem, settings, limit) if mixes else settings
    with interruptible() as interrupted:
        outcome = search(problem, first, forward(watch.search, IDENTICAL if mixes else ""), interrupted)
        again = _Again(outcome.step_time, outcome.bound, outcome.bound, outcome.why_stopped)
        if mixes and not interrupted():
            say = MixReporter(forward(watch.search), begin)
            searched = search_all_shapes(problem, model, settings, outcome, begin + limit, interrupted, say)
            again = replace(again, step_s=min(again.step_s, searched.mixed.step_time), bound_s=searched.bound)
        if interrupted():
            raise InterruptedSolve("interrupted while solving again")
    return again

"""Why a mixed plan is better or worse than separate ones: what the accounts say, what solving again confirms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from planner.errors import InfeasibleError, InputError, NoPlanFoundError
from planner.search.baselines.ablations import CHANGES, Change, Rate, Side, rate_under
from planner.search.baselines.results import Ratio

if TYPE_CHECKING:
    from planner.search.baselines.accounts import ChipTime
    from planner.search.baselines.budget import Budget, Watch
    from planner.search.solve import SolveOptions

__all__ = ["Ablation", "Statement", "ablate", "force_all_groups", "statements"]

Verdict = Literal["confirmed", "not confirmed", "undecided", "not tested", "no difference"]

_VISIBLE = 0.0005
"""Shares of chip time that differ by less count as equal: half of the last digit that people are shown."""
_PARTS = {
    "recompute": ("recompute",),
    "bubble": ("fill", "update"),
    "links": ("links",),
    "integrality": ("uneven",),
    "idle": ("idle",),
}
"""The parts of chip time (accounts.PARTS) that each cause explains; all but computing have a cause."""
_TITLES = {
    "recompute": ("recompute avoided", "recompute added"),
    "bubble": ("bubble avoided", "bubble added"),
    "links": ("links avoided", "links crossed"),
    "integrality": ("layer integrality", "layer integrality"),
    "idle": ("idle chips avoided", "idle chips"),
    "memory": ("memory costs less", "memory costs more"),
}
"""What a cause is called when the mixed plan loses less to it than the separate plans, and when it loses more."""
_OF_WHAT = {
    "recompute": "forward work done again",
    "bubble": "filling, draining and the update at the end of a step",
    "links": "waiting for transfers between stages",
    "integrality": "waiting for stages with more than their share, as layers are whole",
    "idle": "chips without work",
    "memory": "what its limit takes from the rate, by recompute, longer pipelines and larger degrees together",
}


@dataclass(frozen=True)
class Ablation:
    """What solving again gave.  change: what was taken away or forced.  Rates in tokens per second, of the mixed plan
    and of the separate ones together.
    """

    change: str
    mixed: Rate
    separate: Rate

    @property
    def ratio(self) -> Ratio:
        """HeteroSpeedupRatio under the change."""
        return Ratio.of((self.mixed.found, self.mixed.most), (self.separate.found, self.separate.most))

    def document(self) -> dict[str, Any]:
        return {
            "change": self.change,
            "mixed_tokens_per_s": self.mixed.found,
            "separate_tokens_per_s": self.separate.found,
            "hetero_speedup_ratio": self.ratio.document(),
        }


@dataclass(frozen=True)
class Statement:
    """One cause of the difference.

    mixed_share, separate_share: of the chips' time (ChipTime) that goes there; for `memory`, whose cost lies in all
    parts, of the rate without its limit. gain: separate less mixed, positive where the mixed plan loses less.
    verdict: `confirmed` when solving again without the cause moves the ratio the way that `gain` says (a gain vanishes
    and the ratio falls, a loss vanishes and it rises; idle chips: forcing all groups to work does not make the step
    shorter), `undecided` when one of the searches was cut short well above its bound, so that its plan says little,
    `not tested` without a second solve.  proved: whether the certificates rule out that it moved the other way.
    """

    code: str
    title: str
    what: str
    mixed_share: float
    separate_share: float
    verdict: Verdict
    proved: bool
    ablation: Ablation | None

    @property
    def gain(self) -> float:
        """Share of chip time that the mixed plan saves here; negative where it loses."""
        return self.separate_share - self.mixed_share

    def document(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "code": self.code,
            "title": self.title,
            "what": self.what,
            "mixed_share": self.mixed_share,
            "separate_share": self.separate_share,
            "gain": self.gain,
            "verdict": self.verdict,
            "proved": self.proved,
            "ablation": None if self.ablation is None else self.ablation.document(),
        }


def ablate(
    time_spent: ChipTime,
    mixed: Side,
    separate: Sequence[Side],
    options: SolveOptions,
    budget: Callable[[], Budget],
    watch: Watch,
) -> dict[str, Ablation]:
    """Solve both sides again under every change; each change has a budget of its own.

    A cause that takes no time on either side is not taken away. A chip type that cannot train alone counts as zero,
    except where the change may make it fit.
    """
    found = {}
    for change in CHANGES:
        if not _is_there(change.code, time_spent):
            continue
        time = budget()
        sides = [_rate(change, side, options, time, watch) for side in separate]
        together = rate_under(change, mixed, options, time, watch, parts=max(1, len(separate)))
        found[change.code] = Ablation(change.sentence, together, Rate.total(sides))
    return found


def _shares(code: str, time: ChipTime) -> tuple[float, float]:
    """The parts of chip time that a cause explains, on the mixed side and on the separate one."""
    mixed, separate = (sum(side[part] for part in _PARTS[code]) for side in (time.mixed, time.separate))
    return mixed, separate


def _is_there(code: str, time: ChipTime) -> bool:
    return code not in _PARTS or max(_shares(code, time)) >= _VISIBLE


def _rate(change: Change, side: Side, options: SolveOptions, budget: Budget, watch: Watch) -> Rate:
    if side.plan is None and not change.lifts_memory:
        return Rate(0.0, 0.0)
    return rate_under(change, side, replace(options, jobs=1), budget, watch)


def force_all_groups(
    mixed: Side, names: Sequence[str], separate: Rate, options: SolveOptions, watch: Watch
) -> Ablation | None:
    """Solve the mixed plan again with all of these node groups at work; None when that is not known in time, or the
    inputs rule it out.
    """
    from planner.search.solve import solve

    watch.begin(f"{mixed.name}, if every node group works")
    pinned = mixed.model.constraints
    forced = mixed.model.model_copy(update={"constraints": pinned.model_copy(update={"use": tuple(names)})})
    try:
        plan = solve(mixed.cluster, forced, replace(options, objective="throughput"), watch.search).plan
    except InfeasibleError:
        return Ablation("every node group works", Rate(0.0, 0.0), separate)
    except (InputError, NoPlanFoundError):
        return None
    return Ablation("every node group works", Rate.of_plan(plan, options.gap), separate)


def statements(time: ChipTime, mixed: Rate, separate: Rate, ablations: Mapping[str, Ablation]) -> tuple[Statement, ...]:
    """A statement a cause, the largest difference first, then what memory costs. mixed, separate: nothing changed."""
    now = Ablation("nothing", mixed, separate)
    made = []
    for code in _PARTS:
        made.append(_statement(code, _shares(code, time), now, ablations.get(code)))
    made.sort(key=lambda s: -abs(s.gain))
    again = ablations.get("memory")
    if again is not None and again.mixed.found > 0 and again.separate.found > 0:
        lost = 1 - mixed.found / again.mixed.found, 1 - separate.found / again.separate.found
        made.append(_statement("memory", lost, now, again))
    return tuple(made)


def _statement(code: str, shares: tuple[float, float], now: Ablation, again: Ablation | None) -> Statement:
    mixed, separate = shares
    gain = separate - mixed
    verdict: Verdict = "not tested"
    proved = False
    if abs(gain) < _VISIBLE and not (code == "idle" and again is not None):
        verdict = "no difference"
    elif again is not None:
        verdict, proved = _judge(now, again, code == "idle" or gain > 0)
    title = _TITLES[code][0 if gain > 0 else 1]
    return Statement(code, title, _OF_WHAT[code], mixed, separate, verdict, proved, again)


def _judge(now: Ablation, again: Ablation, falls: bool) -> tuple[Verdict, bool]:
    """Whether the ratio moved down (falls) or up, and whether the bounds of both prove it."""
    low, high = (again.ratio, now.ratio) if falls else (now.ratio, again.ratio)
    if low.value is None or high.value is None:
        return "not tested", False
    proved = low.most is not None and high.least is not None and low.most <= high.least
    settled = all(rate.settled for rate in (now.mixed, now.separate, again.mixed, again.separate))
    if not (proved or settled):
        return "undecided", False
    return ("confirmed" if low.value <= high.value else "not confirmed"), proved

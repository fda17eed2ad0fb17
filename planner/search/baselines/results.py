"""What a comparison with baselines finds, and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from planner.plan import Plan
    from planner.search.baselines.accounts import ChipTime
    from planner.search.baselines.explain import Statement

__all__ = ["BaselineReport", "HomogeneousBaseline", "Ratio", "RuleBaseline", "Status", "rate_at_bound"]

FORMAT, FORMAT_VERSION = "dplan-baselines", "1.0"

Status = Literal["planned", "does not fit", "impossible", "not found"]
"""`planned`: there is a checked plan.  `does not fit`: proved, or for a rule of thumb: none of its choices fits.
`impossible`: the inputs rule it out (a chip without the precision, ...).  `not found`: the time was over before a plan
was found; nothing is proved.
"""


@dataclass(frozen=True)
class HomogeneousBaseline:
    """The best plan of one chip type alone.

    fair_batch: the type's exact share of the global batch, sequences.  global_batch: what it was planned with.
    reason: why there is no plan.  unlimited: where it does not fit, its best plan if memory had no limit, which may not
    run.  Rates are per chip of the type whether it works or not, so that chips which a plan
    leaves idle count against it.
    """

    chip: str
    node_groups: tuple[str, ...]
    chips: int
    fair_batch: float
    global_batch: int
    status: Status
    plan: Plan | None = None
    reason: str = ""
    unlimited: Plan | None = None

    @property
    def tokens_per_s(self) -> float:
        """N_i * TGS_i; 0 without a plan."""
        return 0.0 if self.plan is None else self.plan.prediction.tokens_per_s

    @property
    def most_tokens_per_s(self) -> float:
        """What no plan of this type can beat: the rate at the proved bound of the step time; inf where nothing is
        proved.
        """
        if self.plan is None:
            return float("inf") if self.status == "not found" else 0.0
        return rate_at_bound(self.plan)

    def document(self) -> dict[str, Any]:
        """JSON form; docs/baselines.md names the keys."""
        return {
            "chip": self.chip,
            "node_groups": list(self.node_groups),
            "chips": self.chips,
            "fair_batch": self.fair_batch,
            "global_batch": self.global_batch,
            "status": self.status,
            "reason": self.reason,
            **_rates(self.plan, self.chips),
            "plan": None if self.plan is None else self.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class RuleBaseline:
    """The best plan that a rule of thumb allows, on the whole cluster with the whole batch.

    rule: what the rule fixes, one sentence.  tried: choices that it leaves open and that were looked at; all_tried:
    whether they are all.  plan: the fastest that fits; with status `does not fit` the one that misses least memory.
    missing_bytes: what its worst stage misses on one chip; reason: that stage in words, or why there is no plan.
    """

    code: str
    title: str
    rule: str
    status: Status
    plan: Plan | None = None
    missing_bytes: int = 0
    reason: str = ""
    tried: int = 0
    all_tried: bool = True

    @property
    def tokens_per_s(self) -> float:
        """Tokens per second; 0 when there is no plan that fits."""
        return self.plan.prediction.tokens_per_s if self.plan is not None and self.status == "planned" else 0.0

    def document(self, chips: int) -> dict[str, Any]:
        """JSON form; docs/baselines.md names the keys. chips: of the cluster."""
        fits = self.plan if self.status == "planned" else None
        return {
            "code": self.code,
            "title": self.title,
            "rule": self.rule,
            "status": self.status,
            "reason": self.reason,
            "missing_bytes": self.missing_bytes,
            "tried": self.tried,
            "all_tried": self.all_tried,
            **{key: value for key, value in _rates(fits, chips).items() if key != "gap"},
            "plan": None if self.plan is None else self.plan.model_dump(mode="json"),
        }


@dataclass(frozen=True)
class Ratio:
    """Tokens per second of the mixed plan over those of all separate plans together; None where that is not known.

    least, most: what the certificates of both sides prove that the ratio of the best plans lies between; None where
    they prove nothing.
    """

    value: float | None
    least: float | None
    most: float | None

    @classmethod
    def of(cls, mixed: tuple[float, float], separate: tuple[float, float]) -> Ratio:
        """From (found, most possible) tokens per second of either side; inf where nothing is proved."""
        found, possible = separate
        if found <= 0:
            return cls(None, None, None)
        least, most = mixed[0] / possible, mixed[1] / found
        return cls(mixed[0] / found, least or None, most if most < float("inf") else None)

    def document(self) -> dict[str, float | None]:
        return {"value": self.value, "least": self.least, "most": self.most}


@dataclass(frozen=True)
class BaselineReport:
    """A mixed plan beside its baselines, all judged by one cost model.

    chips: N_total, without node groups that `constraints.idle` rules out.  chip_time: where the chips' time goes, and
    statements: why the mixed plan is better or worse, each with the solve that confirms it or does not.
    notes: how the numbers were made, one sentence each.
    """

    mixed: Plan
    chips: int
    homogeneous: tuple[HomogeneousBaseline, ...]
    rules: tuple[RuleBaseline, ...]
    chip_time: ChipTime | None = None
    statements: tuple[Statement, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def separate_tokens_per_s(self) -> tuple[float, float]:
        """sum_i N_i * TGS_i: every chip type trains alone. What was found, and what is proved to be the most."""
        found = sum(baseline.tokens_per_s for baseline in self.homogeneous)
        return found, sum(baseline.most_tokens_per_s for baseline in self.homogeneous)

    @property
    def hetero_speedup_ratio(self) -> Ratio:
        """N_total * TGS_mixed / sum_i N_i * TGS_i, TGS over all chips of a side, idle ones too (arXiv 2505.17548)."""
        if any(baseline.status == "not found" for baseline in self.homogeneous):
            return Ratio(None, None, None)
        mixed = (self.mixed.prediction.tokens_per_s, rate_at_bound(self.mixed))
        return Ratio.of(mixed, self.separate_tokens_per_s)

    def document(self) -> dict[str, Any]:
        """JSON form; docs/baselines.md names the keys."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "plan": self.mixed.model_dump(mode="json"),
            "cluster": self.mixed.inputs.cluster.name,
            "model": self.mixed.inputs.model.name,
            "mixed": {
                "chips": self.chips,
                "global_batch": self.mixed.inputs.model.document["training"]["global_batch"],
                **_rates(self.mixed, self.chips),
            },
            "separate_tokens_per_s": self.separate_tokens_per_s[0],
            "hetero_speedup_ratio": self.hetero_speedup_ratio.document(),
            "homogeneous": [baseline.document() for baseline in self.homogeneous],
            "rules": [baseline.document(self.chips) for baseline in self.rules],
            "chip_time": None if self.chip_time is None else self.chip_time.document(),
            "statements": [statement.document() for statement in self.statements],
            "notes": list(self.notes),
        }


def rate_at_bound(plan: Plan) -> float:
    """Tokens per second at the certificate's bound of the step time; inf where nothing is proved."""
    certificate = plan.certificate
    assert certificate.unit == "s", certificate.unit
    if certificate.bound <= 0:
        return float("inf")
    return plan.prediction.tokens_per_s * certificate.objective / certificate.bound


def _rates(plan: Plan | None, chips: int) -> dict[str, float | int | None]:
    """Step time, rates and gap; tokens_per_s_per_chip is over `chips`, idle ones too."""
    if plan is None:
        keys = ("step_time_s", "tokens_per_s", "tokens_per_s_per_chip", "used_chips", "gap")
        return dict.fromkeys(keys)
    return {
        "step_time_s": plan.prediction.step_time_s,
        "tokens_per_s": plan.prediction.tokens_per_s,
        "tokens_per_s_per_chip": plan.prediction.tokens_per_s / chips,
        "used_chips": len(plan.used_ranks),
        "gap": plan.certificate.gap,
    }

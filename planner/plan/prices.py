"""What a plan costs: the price of the chips it uses, and of the whole training run."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from planner.plan.schema import PlanNotice, TrainingEstimate

if TYPE_CHECKING:
    from planner.plan.evaluate import PipelineShape
    from planner.plan.schema import Prediction
    from planner.spec import Cluster, ModelSpec

__all__ = ["chips_of_groups", "price_per_hour", "price_warnings", "training_estimate"]


def chips_of_groups(shapes: Sequence[PipelineShape]) -> dict[int, int]:
    """Used chips of every node group that is used."""
    used: dict[int, int] = {}
    for shape in shapes:
        for stage in shape.stages:
            used[stage.group] = used.get(stage.group, 0) + shape.chips(stage)
    return used


def price_per_hour(cluster: Cluster, shapes: Sequence[PipelineShape]) -> float | None:
    """Currency an hour for the chips that the plan uses; None when one of them has no price."""
    if _without_price(cluster, shapes):
        return None
    return sum(
        chips * cluster.node_groups[group].price_per_chip_hour for group, chips in chips_of_groups(shapes).items()
    )


def price_warnings(cluster: Cluster, shapes: Sequence[PipelineShape]) -> Iterator[PlanNotice]:
    """Which used chips have no price, where others have one: a total would count them as free."""
    missing = _without_price(cluster, shapes)
    if missing and cluster.prices:
        chips = ", ".join(f"{name} ({count:,} used)" for name, count in missing.items())
        yield PlanNotice(
            code="price", message=f"no price is known for {chips}, so none is given for the plan; add it to `prices`"
        )


def _without_price(cluster: Cluster, shapes: Sequence[PipelineShape]) -> dict[str, int]:
    """Used chips without a price, and how many of them; a stated price of 0 is a price."""
    missing: dict[str, int] = {}
    for index, count in chips_of_groups(shapes).items():
        group = cluster.node_groups[index]
        if group.chip not in cluster.prices and group.price_per_chip_hour == 0:
            missing[group.chip] = missing.get(group.chip, 0) + count
    return missing


def training_estimate(
    model: ModelSpec, prediction: Prediction, price: float | None, currency: str
) -> TrainingEstimate | None:
    """Days and cost of the whole run; None when neither its length nor a price is known."""
    tokens = model.training.tokens
    if tokens is None and price is None:
        return None
    steps = days = cost = None
    if tokens is not None:
        steps = math.ceil(tokens / (model.training.global_batch * model.training.sequence_length))
        days = steps * prediction.step_time_s / 86400
        cost = None if price is None else days * 24 * price
    return TrainingEstimate(
        tokens=tokens,
        steps=steps,
        days=days,
        price_per_hour=price,
        price_per_million_tokens=None if price is None else price / 3600 / prediction.tokens_per_s * 1e6,
        cost=cost,
        currency=None if price is None else currency or None,
    )

"""What is trained, and what the whole run takes and costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from planner.cost.precision import zero_levels
from planner.report.bars import heading, indented
from planner.report.words import format_count, format_number, plural
from planner.spec.units import format_duration

if TYPE_CHECKING:
    from planner.plan.schema import Plan, TrainingEstimate

__all__ = ["trained_line", "training_section"]


def trained_line(plan: Plan) -> str | None:
    """`70.6 B parameters, 512 x 8,192 tokens a step, bf16, adamw, ZeRO 1`; None when the plan's model is none."""
    from pydantic import ValidationError

    from planner.errors import InputError
    from planner.graph import build_graph
    from planner.spec import ModelSpec

    try:
        model = ModelSpec.model_validate(plan.inputs.model.document)
        parameters = format_count(build_graph(model).parameters, brief=True)
    except (ValidationError, InputError):
        return None  # `dplan check` says what is wrong with it
    training = model.training
    levels = " or ".join(str(level) for level in zero_levels(training))
    return (
        f"{parameters} parameters, {training.global_batch:,} x {training.sequence_length:,} tokens a step,"
        f" {training.precision}, {training.optimizer}, ZeRO {levels}"
    )


def training_section(training: TrainingEstimate, used_chips: int) -> Iterator[RenderableType]:
    """Steps, days and cost where the length is known; prices where those of all used chips are."""
    yield heading("price" if training.tokens is None else f"training on {format_count(training.tokens)} tokens")
    if training.steps is not None and training.days is not None:
        length = (
            f"{format_number(training.days)} days" if training.days >= 2 else format_duration(training.days * 86400)
        )
        line = f"{training.steps:,} {plural('step', training.steps)}, {length} without interruptions"
        if training.cost is not None:
            line += f", {format_number(training.cost)} {training.currency}"
        yield indented(Text(line))
    if training.price_per_hour is not None and training.price_per_million_tokens is not None:
        hour, million = format_number(training.price_per_hour), format_number(training.price_per_million_tokens)
        chips = f"{used_chips:,} {plural('chip', used_chips)}"
        line = (
            f"{hour} {training.currency} an hour for the {chips} used, {million} {training.currency} a million tokens"
        )
        yield indented(Text(line))

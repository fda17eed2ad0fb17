"""The proof: how good the plan is, and among which plans."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.report.bars import heading, indented
from planner.report.words import format_exact_duration, format_percent, joined, plural

if TYPE_CHECKING:
    from planner.plan.schema import Certificate

__all__ = ["certificate_section", "narrower_space", "space_section", "why_stopped_line"]

_PER_TOKEN = "/token"


def certificate_section(certificate: Certificate) -> Iterator[RenderableType]:
    """A line each: the numbers, what they mean, why the search stopped before that was enough, what the space lacks."""
    yield heading("certificate")
    objective, bound = _amount(certificate.objective, certificate.unit), _amount(certificate.bound, certificate.unit)
    step = "step " if certificate.unit == "s" else ""
    gap = format_percent(certificate.gap, 2)
    yield indented(Text(f"{step}{objective}, proved lower bound {bound}: gap {gap}"))
    yield indented(Text(_verdict(certificate)))
    stopped = why_stopped_line(certificate)
    if stopped is not None:
        yield indented(Text(stopped, style="" if certificate.is_as_close_as_asked else "yellow"))
    if "why_identical" in certificate.plan_space:
        yield indented(Text(f"this space has pipelines of one shape alone: {certificate.plan_space['why_identical']}"))
    if "layer_order" in certificate.plan_space:
        yield indented(Text(_of_order(str(certificate.plan_space["layer_order"]))))
    if certificate.identical_bound is not None:
        yield indented(Text(_among_identical(certificate, certificate.identical_bound)))


def _of_order(order: str) -> str:
    """For models whose layers branch, in a line; `--full` has the whole sentence."""
    if order.startswith("every order"):
        return "this space has every contiguous set of layers"
    return "this space has the model's order of layers; others were tried, without such a proof"


def _among_identical(certificate: Certificate, bound: float) -> str:
    """What is known of the plans that people mostly run."""
    shown = _amount(bound, certificate.unit)
    if bound > certificate.objective:
        return f"no plan of identical pipelines is better than {shown}: mixing shapes pays"
    gap = format_percent((certificate.objective - bound) / certificate.objective, 2)
    alone = "; `constraints: {shapes: identical}` searches these alone" if narrower_space(certificate) else ""
    return f"among plans of identical pipelines: lower bound {shown}, gap {gap}{alone}"


def _amount(value: float, unit: str) -> str:
    """A duration, or money for a million tokens: four figures, because two are compared."""
    if unit == "s":
        return format_exact_duration(value)
    if unit.endswith(_PER_TOKEN):
        return f"{value * 1e6:.4g} {unit.removesuffix(_PER_TOKEN)} a million tokens"
    return f"{value:.4g} {unit}"


def _verdict(certificate: Certificate) -> str:
    space = f"no plan of this space is more than {format_percent(certificate.gap, 2)} better"
    if certificate.gap == 0:
        space = "no plan of this space is better"
    return space


def why_stopped_line(certificate: Certificate) -> str | None:
    """Why the search stopped although the gap was not as asked, and whether more time helps; None where nothing is to
    be said. Where the clock had a part in a plan that is as close as asked, that is said.
    """
    why = certificate.why_stopped
    if certificate.is_as_close_as_asked or why == "gap":
        return None if why in ("gap", "exhausted") else f"as close as asked, but {_BY_CHANCE[why]}"
    asked = "" if certificate.gap_asked is None else f" (asked: {format_percent(certificate.gap_asked, 2)})"
    if why == "interrupted":
        return f"the search was interrupted{asked}"
    if why == "exhausted":
        return f"all that the search does is done{asked}: more time changes nothing"
    if not certificate.shares_used_up:
        return f"the time limit came first{asked}: more time may help"
    shares = plural("share", len(certificate.shares_used_up))
    return f"the {shares} of the time limit for {joined(certificate.shares_used_up)} ran out{asked}: more time may help"


_BY_CHANCE = {
    "time": "the clock had a part in it: another run may give another plan",
    "interrupted": "the search was interrupted: another run may give another plan",
}


def narrower_space(certificate: Certificate) -> str | None:
    """Where more is proved, once more time changes nothing; None where nothing is said, or no plan there is as good."""
    bound, objective = certificate.identical_bound, certificate.objective
    if certificate.why_stopped != "exhausted" or certificate.is_as_close_as_asked:
        return None
    if bound is None or not certificate.bound < bound <= objective:
        return None
    return f"`constraints: {{shapes: identical}}` is proved more closely: {format_percent(1 - bound / objective, 2)}"


def space_section(space: dict[str, Any], node_groups: Sequence[str]) -> Iterator[RenderableType]:
    """Every dimension; what is said of node groups in the order of the cluster file."""
    if not space:
        return
    yield Text("")
    yield heading("plan space")
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    place = {name: index for index, name in enumerate(node_groups)}
    for name, value in sorted(space.items()):
        if isinstance(value, dict):
            value = dict(sorted(value.items(), key=lambda item: place.get(item[0], len(place))))
        table.add_row(name.replace("_", " "), _space_value(value))
    yield indented(table)


def _space_value(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_space_value(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        items = [_space_value(item) for item in value]
        return ("; " if any(" " in item for item in items) else ", ").join(items) or "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)

"""Chip profiles as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from planner.report.bars import new_table
from planner.report.words import format_number
from planner.spec.units import format_bytes, format_duration, format_flops, format_fraction, format_rate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from planner.spec import Chip
    from planner.spec import Interconnect as Link

__all__ = ["chip_report", "chip_table"]

_UNKNOWN = "-"


def chip_table(chips: Sequence[Chip]) -> RenderableType:
    """One line a chip; peaks are dense, memory is what planning uses. What is not known is a dash."""
    names = ("memory", "bf16", "mem GB/s", "node", "NIC")
    table = new_table("chip", *names, "trust", right=names)
    for chip in chips:
        peak = chip.peak_flops_per_s.get("bf16")
        table.add_row(
            chip.name,
            _bytes(chip.capacity_bytes),
            _short(peak / 1e12 if peak is not None else None),
            _short(_giga(chip.memory_bandwidth_bytes_per_s)),
            _short(_giga(chip.intra_node.bandwidth_bytes_per_s if chip.intra_node else None)),
            _short(_giga(chip.nic.bandwidth_bytes_per_s if chip.nic else None)),
            chip.trust,
        )
    legend = (
        "memory: what the driver reports, where known; bf16: dense peak, TFLOPS;"
        " node, NIC: link inside and between nodes, GB/s, one way; -: not known"
    )
    return Group(table, Text(""), Text(legend, style="dim"))


def _giga(bytes_per_s: float | None) -> float | None:
    return None if bytes_per_s is None else bytes_per_s / 1e9


def _short(value: float | None) -> str:
    return _UNKNOWN if value is None else format_number(value)


def _bytes(value: int | None) -> str:
    return _UNKNOWN if value is None else format_bytes(value)


def chip_report(chip: Chip) -> RenderableType:
    """Every figure of a chip, and below them where each is from."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    sources: dict[str, int] = {}
    for field, label, value in _figures(chip):
        source = chip.sources.get(field)
        number = "" if source is None else f"[{sources.setdefault(source, len(sources) + 1)}]"
        table.add_row(label, value, number)
    parts: list[RenderableType] = [Text(chip.name, style="bold"), _indented(table)]
    if sources:
        listed = Table(box=None, show_header=False, pad_edge=False, padding=(0, 1, 0, 0))
        listed.add_column(no_wrap=True, justify="right")
        listed.add_column(overflow="fold")
        for source, index in sources.items():
            listed.add_row(f"[{index}]", source)
        parts += [Text(""), Text("sources", style="bold"), _indented(listed)]
    if chip.notes:
        parts += [Text(""), Text("notes", style="bold"), _indented(Text(chip.notes.strip()))]
    return Group(*parts)


def _indented(renderable: RenderableType) -> Padding:
    return Padding(renderable, (0, 0, 0, 2))


def _figures(chip: Chip) -> Iterator[tuple[str, str, str]]:
    """Field (as `sources` names it), label, value; what is not known is a dash if planning needs it, else left out."""
    yield "vendor", "vendor", chip.vendor
    yield "trust", "trust", chip.trust
    yield "memory", "memory", _bytes(chip.memory_bytes)
    if chip.reported_memory_bytes is not None:
        yield "reported_memory", "memory the driver reports", format_bytes(chip.reported_memory_bytes)
    for precision, peak in chip.peak_flops_per_s.items():
        yield f"peak.{precision}", f"dense peak {precision}", format_flops(peak)
    yield "memory_bandwidth", "memory bandwidth", _rate(chip.memory_bandwidth_bytes_per_s)
    yield "chips_per_node", "chips per node", _UNKNOWN if chip.chips_per_node is None else str(chip.chips_per_node)
    yield from _link("intra_node", "link in a node", chip.intra_node)
    yield from _link("nic", "NIC", chip.nic)
    if chip.host_staging_bytes_per_s is not None:
        yield "host_staging", "staging through the host", format_rate(chip.host_staging_bytes_per_s)
    if chip.chips_per_host_link is not None:
        yield "chips_per_host_link", "chips on one host link", str(chip.chips_per_host_link)
    yield from _measured(chip)
    if chip.efficiency is not None:
        for name, share in chip.efficiency:
            if share is not None:
                yield f"efficiency.{name}", f"efficiency {name.replace('_', ' ')}", format_fraction(share)
    if chip.torch_device is not None:
        yield "torch_device", "torch name", chip.torch_device
    if chip.collective_backend is not None:
        yield "collective_backend", "collective library", chip.collective_backend


def _measured(chip: Chip) -> Iterator[tuple[str, str, str]]:
    if chip.measured is None:
        return
    for precision, rate in chip.measured.matmul_flops_per_s.items():
        yield f"measured.matmul.{precision}", f"measured matmul {precision}", format_flops(rate)
    if chip.measured.memory_bandwidth_bytes_per_s is not None:
        rate = chip.measured.memory_bandwidth_bytes_per_s
        yield "measured.memory_bandwidth", "measured memory bandwidth", format_rate(rate)
    if chip.measured.allreduce_bytes_per_s is not None:
        yield "measured.allreduce", "measured all-reduce", format_rate(chip.measured.allreduce_bytes_per_s)


def _rate(bytes_per_s: float | None) -> str:
    return _UNKNOWN if bytes_per_s is None else format_rate(bytes_per_s)


def _link(field: str, label: str, link: Link | None) -> Iterator[tuple[str, str, str]]:
    if link is None:
        yield field, label, _UNKNOWN
        return
    yield f"{field}.bandwidth", label, format_rate(link.bandwidth_bytes_per_s)
    yield f"{field}.latency", f"{label}, latency", format_duration(link.latency_s)

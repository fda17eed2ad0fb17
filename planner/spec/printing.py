"""Quantities as dplan prints them: one decimal, the unit attached."""

from __future__ import annotations

__all__ = [
    "format_bytes",
    "format_count",
    "format_duration",
    "format_flops",
    "format_fraction",
    "format_rate",
    "format_work",
]

_BINARY = ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB")
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")
_SHORT_TIMES = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_LONG_TIMES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))


def format_bytes(num_bytes: float) -> str:
    """`76.0 GiB`; below 1 KiB whole bytes."""
    if abs(num_bytes) < 1024:
        return f"{num_bytes:.0f} B"
    amount = float(num_bytes)
    for unit in _BINARY:
        amount /= 1024
        if abs(round(amount, 1)) < 1024 or unit == _BINARY[-1]:
            break
    return f"{amount:.1f} {unit}"


def format_duration(seconds: float) -> str:
    """`1.5 ms`, `25.0 s`, `2.5 h`; the largest unit that leaves at least one (minutes and more from 120 s on)."""
    size = abs(seconds)
    if size >= 120:
        factor, unit = next((f, u) for f, u in _LONG_TIMES if size >= 2 * f)
        return f"{seconds / factor:.1f} {unit}"
    for factor, unit in _SHORT_TIMES:
        if round(size / factor, 1) >= 1:
            return f"{seconds / factor:.1f} {unit}"
    return f"{seconds * 1e9:.1f} ns" if size else "0.0 s"


def format_rate(bytes_per_s: float) -> str:
    """`25.0 GB/s`."""
    return _decimal(bytes_per_s, "B/s")


def format_flops(flops_per_s: float) -> str:
    """`312.0 TFLOPS`: a rate."""
    return _decimal(flops_per_s, "FLOPS")


def format_work(flops: float) -> str:
    """`1.5 TFLOP`: an amount."""
    return _decimal(flops, "FLOP")


def format_fraction(share: float) -> str:
    """`6.0 %`."""
    return f"{share * 100:.1f} %"


def format_count(count: float) -> str:
    """`8,030,261,248`: a whole number with separators, for people."""
    return f"{count:,.0f}"


def _decimal(amount: float, unit: str) -> str:
    for prefix in _PREFIXES:
        if abs(round(amount, 1)) < 1000 or prefix == _PREFIXES[-1]:
            return f"{amount:.1f} {prefix}{unit}"
        amount /= 1000
    raise AssertionError("the last prefix returns")

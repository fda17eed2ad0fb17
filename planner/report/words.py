"""Words and numbers that every report uses."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

__all__ = [
    "format_count",
    "format_exact_duration",
    "format_number",
    "format_percent",
    "joined",
    "layer_ranges",
    "plural",
]

_NUMBERED = re.compile(r"(.*?)(\d+)$")


def plural(word: str, count: int) -> str:
    """`1 stage`, `2 stages`, `2 micro-batches`: the word alone."""
    if count == 1:
        return word
    return word + ("es" if word.endswith(("ch", "x")) else "s")


def joined(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def format_percent(fraction: float, decimals: int = 1) -> str:
    """`12.3 %`."""
    return f"{100 * fraction:.{decimals}f} %"


def format_number(value: float) -> str:
    """`12,345` or, below 100, three significant figures."""
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def format_count(count: float, brief: bool = False) -> str:
    """`8.03 B`: thousands, millions, billions, trillions; brief: three figures, `70.6 B`."""
    for size, letter in ((1e15, "P"), (1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(count) >= size:
            if brief:
                share = count / size
                return f"{share:.{2 if abs(share) < 9.995 else 1 if abs(share) < 99.95 else 0}f} {letter}"
            return f"{count / size:.2f} {letter}"
    return f"{count:.0f}" if float(count).is_integer() else f"{count:.2f}"


def format_exact_duration(seconds: float, figures: int = 4) -> str:
    """`12.34 s`: four figures, where two durations are compared; more where one is watched as it falls."""
    for size, unit in ((1.0, "s"), (1e-3, "ms")):
        if seconds >= size:
            decimals = max(0, figures - len(f"{seconds:.0f}"))
            return f"{seconds / size:.{figures}g} {unit}" if seconds < 1000 else f"{seconds:,.{decimals}f} s"
    return f"{seconds * 1e6:.{figures}g} us"


def layer_ranges(names: Iterable[str]) -> str:
    """`embedding, layers.0-11`: consecutive numbers of one prefix run together."""
    return ", ".join(_runs(names))


def _runs(names: Iterable[str]) -> Iterator[str]:
    prefix, first, last = "", -1, -1
    for name in names:
        match = _NUMBERED.match(name)
        if match and match[1] == prefix and int(match[2]) == last + 1 and first >= 0:
            last += 1
            continue
        if first >= 0:
            yield _run(prefix, first, last)
        first = -1
        if match:
            prefix, first, last = match[1], int(match[2]), int(match[2])
        else:
            prefix = ""
            yield name
    if first >= 0:
        yield _run(prefix, first, last)


def _run(prefix: str, first: int, last: int) -> str:
    return f"{prefix}{first}" if first == last else f"{prefix}{first}-{last}"

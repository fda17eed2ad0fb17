"""The kinds of quantity: which units each has, which amounts make sense, and what to say about the rest."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from planner.errors import InputError, Problem

__all__ = [
    "BANDWIDTH",
    "COMPUTE_RATE",
    "COMPUTE_WORK",
    "DURATION",
    "LATENCY",
    "MEMORY",
    "SIZE",
    "Kind",
    "QuantityError",
    "plain_text",
    "read_number",
    "refuse_non_text",
]

_NUMBER = re.compile(r"[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d{1,4})?", re.ASCII)
_QUANTITY = re.compile(r"(?P<number>[+-]?(?:\d[\d_.,]*|\.\d+)(?:[eE][+-]?\d+)?)\s*(?P<unit>.*)", re.ASCII | re.DOTALL)
_MAX_TEXT = 64


class QuantityError(InputError):
    """A text that is no such quantity."""

    def __init__(self, what: str, why: str = "", fix: str = "") -> None:
        super().__init__([Problem(what=what, why=why, fix=fix)])
        self.args = (what, why, fix)


def refuse_non_text(value: object, noun: str, example: str, *, numbers: bool = False) -> None:
    """Text passes, and numbers where they make sense; empty values, booleans, lists and mappings do not."""
    if value is None:
        raise QuantityError("is empty", "", f"write {noun} like '{example}'")
    if isinstance(value, bool):
        raise QuantityError(f"is {str(value).lower()}, not {noun}", "", f"write it like '{example}'")
    if not isinstance(value, (str, int, float) if numbers else str):
        raise QuantityError(f"is {_shape(value)}, not {noun}", "", f"write it like '{example}'")
    if isinstance(value, str) and len(value) > _MAX_TEXT:
        raise QuantityError(f"is a text of {len(value)} characters, not {noun}", "", f"write it like '{example}'")


def _shape(value: object) -> str:
    if isinstance(value, dict):
        return "a mapping"
    return "a list" if isinstance(value, (list, tuple)) else "not text"


def plain_text(value: object) -> str:
    """A number or text as a person would have written it: 80000000000, not 80000000000.0."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e18:
        return str(int(value))
    return str(value).strip()


def read_number(text: str, noun: str, example: str, unit_hint: str = "") -> Decimal:
    """A finite decimal number, exactly; everything else is refused with the reason that fits."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return Decimal(text)
    if re.fullmatch(r"[+-]?\.?(?:inf|infinity|nan)(?:\s.*)?", text, re.IGNORECASE):
        raise QuantityError(f"{text!r} is not a finite number", "", f"write {noun} like '{example}'")
    if re.fullmatch(_NUMBER.pattern.replace("{1,4}", "+"), text):
        raise QuantityError(f"{text!r} is absurdly large or small", "", f"write {noun} like '{example}'")
    if re.fullmatch(r"[+-]?\d+,\d+", text):
        raise QuantityError(f"{text!r} has a comma", "a comma is read in two ways", f"write '{text.replace(',', '.')}'")
    unit = re.match(r"[+-]?[\d.]+\s*([A-Za-z]+.*)", text)
    if unit and unit_hint:
        raise QuantityError(f"unknown unit {unit[1]!r}", unit_hint, f"write it like {example}")
    raise QuantityError(f"{text!r} is not a number", "", f"write {noun} like '{example}'")


@dataclass(frozen=True)
class Kind:
    """One kind of quantity.

    `units` gives a unit's amount in base units; `confused` maps a regular expression for wrong units to why and advice.
    In advice, `{n}` is the number and `{p}` the prefix that the expression caught.
    """

    noun: str
    example: str
    units: Mapping[str, Decimal]
    smallest: float
    largest: float
    base_unit: str
    base_advice: str
    """What to write for a bare number that is large enough to be in base units."""
    bare_advice: str
    confused: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def parse(self, value: object, *, zero: bool = False) -> float:
        """The amount in base units of a text with a unit. A plain 0 needs no unit where zero is allowed."""
        if zero and value in (0, "0") and not isinstance(value, bool):
            return 0.0
        refuse_non_text(value, self.noun, self.example, numbers=True)
        text = plain_text(value)
        number, unit = self._split(text)
        amount = number * self.units[unit]
        self._limit(float(amount), text, zero)
        return float(amount)

    def check(self, amount: float, *, zero: bool = False) -> float:
        """An amount that is in base units already."""
        if not math.isfinite(amount):
            raise QuantityError(f"'{amount}' is not a finite number", "", f"write {self.noun} like '{self.example}'")
        self._limit(float(amount), f"{amount} {self.base_unit}", zero)
        return float(amount)

    def _split(self, text: str) -> tuple[Decimal, str]:
        match = _QUANTITY.fullmatch(text)
        if match is None:
            read_number(text, self.noun, self.example)
        assert match is not None, "read_number accepts only what the quantity pattern accepts"
        number = read_number(match["number"], self.noun, self.example)
        unit = match["unit"].strip()
        if unit not in self.units:
            raise self._wrong_unit(match["number"], unit)
        return number, unit

    def _wrong_unit(self, number: str, unit: str) -> QuantityError:
        if not unit:
            advice = self.base_advice if float(number) >= 1e6 else self.bare_advice
            return QuantityError(f"'{number}' has no unit", "", advice.format(n=number))
        for pattern, (why, advice) in self.confused.items():
            match = re.fullmatch(pattern, unit)
            if match is not None:
                prefix = (match.groupdict().get("p") or "").upper().replace("K", "k")
                return QuantityError(f"unknown unit {unit!r}", why, advice.format(n=number, p=prefix))
        close = self.closest_unit(unit)
        known = ", ".join(u for u in self.units if u != "μs")
        return QuantityError(
            f"unknown unit {unit!r}", "", f"did you mean '{close}'?" if close else f"known units: {known}"
        )

    def closest_unit(self, unit: str) -> str | None:
        """The known unit a misspelt one most likely means."""
        for known in self.units:
            if known.casefold() == unit.casefold():
                return known
        close = difflib.get_close_matches(unit, list(self.units), n=1, cutoff=0.5)
        return close[0] if close else None

    def _limit(self, amount: float, text: str, zero: bool) -> None:
        if amount < 0:
            raise QuantityError(f"{text!r} is negative", f"{self.noun} is positive", f"write it like '{self.example}'")
        if amount == 0:
            if not zero:
                raise QuantityError(f"{text!r} is zero", f"{self.noun} is positive", f"write it like '{self.example}'")
            return
        if amount > self.largest:
            raise QuantityError(f"{text!r} is absurdly large", f"{self.noun} stays below {self._bound(self.largest)}")
        if amount < self.smallest:
            raise QuantityError(f"{text!r} is absurdly small", f"{self.noun} starts at {self._bound(self.smallest)}")

    def _bound(self, amount: float) -> str:
        for unit, factor in reversed(list(self.units.items())):
            if amount >= factor and (amount / float(factor)).is_integer():
                return f"{amount / float(factor):g} {unit}"
        return f"{amount:g} {self.base_unit}"


_DECIMAL = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50}
_BYTES = {"B": 1} | {f"{p}B": n for p, n in _BINARY.items()} | {f"{p}B": n for p, n in _DECIMAL.items()}
_BITS = {"bps": 1} | {f"{p}bps": n for p, n in _DECIMAL.items()}
_BIT_RATES = {"bit/s": 1} | {f"{p}bit/s": n for p, n in _DECIMAL.items()}
_TIMES = {
    "ns": "1e-9",
    "us": "1e-6",
    "µs": "1e-6",
    "μs": "1e-6",
    "ms": "1e-3",
    "s": "1",
    "min": "60",
    "h": "3600",
    "d": "86400",
}
_FLOP_PREFIXES = {"": 1} | _DECIMAL | {"E": 10**18}

_SIZE_ADVICE = "write '{n} {p}B' (powers of 10) or '{n} {p}iB' (powers of 2)"
_SIZE_CONFUSED = {
    r"(?P<p>[kKmMgGtTpP])i?": ("it names no bytes", _SIZE_ADVICE),
    r"KB": ("it is read as 1000 and as 1024 bytes", _SIZE_ADVICE.replace("{p}i", "Ki").replace("{p}", "k")),
    r"(?P<p>[kKmMgGtTpP])i?b": ("a small b means bits", _SIZE_ADVICE),
    r"(?P<p>[kKmMgGtTpP])i?bits?": ("memory is counted in bytes", _SIZE_ADVICE),
}
_SPEED_ADVICE = "write '{n} {p}bps' (bits) or '{n} {p}B/s' (bytes)"
_SPEED_CONFUSED = {
    r"(?P<p>[kKmMgGtTpP])(?:b|b/s|Bps|b/sec)": ("bits and bytes are easily confused here", _SPEED_ADVICE),
    r"(?P<p>[kKmMgGtTpP])(?:i|B|iB|bit)?": ("it names no amount per second", _SPEED_ADVICE),
    r"(?P<p>[kKmMgGtTpP])?T/s": ("transfers a second are no bytes", _SPEED_ADVICE),
}
_TIME_CONFUSED = {
    r"m|M": ("it may mean minutes or milliseconds", "write '{n} min' or '{n} ms'"),
    r"[sS]ec(?:s|onds?)?|seconds?": ("", "did you mean '{n} s'?"),
    r"min(?:s|utes?)|minutes?": ("", "did you mean '{n} min'?"),
    r"hrs?|hours?|H": ("", "did you mean '{n} h'?"),
    r":\d.*": ("a time of day is no duration", "write it in one unit, like '90 s'"),
    r"days?|D": ("", "did you mean '{n} d'?"),
    r"usecs?|microseconds?": ("", "did you mean '{n} us'?"),
    r"msecs?|milliseconds?": ("", "did you mean '{n} ms'?"),
}
_RATE_CONFUSED = {
    r"(?P<p>[kKMGTPE])(?:FLOP|FLOPs|F|Flops|flops)?": ("it names no rate", "did you mean '{n} {p}FLOPS'?"),
    r"(?P<p>[kKMGTPE])OPS": ("integer operations do not count here", "write the dense '{p}FLOPS' of the precision"),
}
_WORK_CONFUSED = {
    r"(?P<p>[kKMGTPE])(?:FLOPS|FLOP/s|FLOPs/s)": (
        "it is a rate; an amount of work is asked",
        "did you mean '{n} {p}FLOP'?",
    ),
    r"(?P<p>[kKMGTPE])(?:F|Flops?|flops?)?": ("", "did you mean '{n} {p}FLOP'?"),
}


def _decimals(units: Mapping[str, int | str]) -> dict[str, Decimal]:
    return {unit: Decimal(factor) for unit, factor in units.items()}


_BASE_SIZE = "write '{n} B'"
_BARE_SIZE = "write '{n} GB' (10^9 bytes) or '{n} GiB' (2^30 bytes)"
MEMORY = Kind(
    "the memory of a chip", "80 GiB", _decimals(_BYTES), 2**20, 2**46, "B", _BASE_SIZE, _BARE_SIZE, _SIZE_CONFUSED
)
SIZE = Kind("a size", "80 GiB", _decimals(_BYTES), 1, 2**60, "B", _BASE_SIZE, _BARE_SIZE, _SIZE_CONFUSED)
BANDWIDTH = Kind(
    "a bandwidth",
    "400 Gbps",
    {unit: factor / 8 for unit, factor in _decimals(_BITS | _BIT_RATES).items()}
    | {f"{unit}/s": factor for unit, factor in _decimals(_BYTES).items()},
    1e3,
    1e15,
    "B/s",
    "write '{n} bps' (bits) or '{n} B/s' (bytes)",
    "write '{n} Gbps' (bits) or '{n} GB/s' (bytes)",
    _SPEED_CONFUSED,
)
_BARE_TIME = "write '{n} s', '{n} ms' or '{n} us'"
DURATION = Kind("a duration", "25 s", _decimals(_TIMES), 1e-12, 1e9, "s", _BARE_TIME, _BARE_TIME, _TIME_CONFUSED)
LATENCY = Kind("a latency", "5 us", _decimals(_TIMES), 1e-12, 60.0, "s", _BARE_TIME, _BARE_TIME, _TIME_CONFUSED)
COMPUTE_RATE = Kind(
    "a compute rate",
    "312 TFLOPS",
    _decimals({f"{p}{word}": n for word in ("FLOPS", "FLOP/s", "FLOPs/s") for p, n in _FLOP_PREFIXES.items()}),
    1e6,
    1e19,
    "FLOPS",
    "write '{n} FLOPS'",
    "write '{n} TFLOPS'",
    _RATE_CONFUSED,
)
COMPUTE_WORK = Kind(
    "an amount of work",
    "1.5 TFLOP",
    _decimals({f"{p}{word}": n for word in ("FLOP", "FLOPs") for p, n in _FLOP_PREFIXES.items()}),
    1,
    1e24,
    "FLOP",
    "write '{n} FLOP'",
    "write '{n} GFLOP' or '{n} TFLOP'",
    _WORK_CONFUSED,
)

"""Quantities as people write them: a number and a unit, read into base units. Nothing is guessed.

`GB` is 10^9 bytes, `GiB` is 2^30 bytes, `Gbps` is bits. A form that two readers could take for two amounts
(`80`, `80 G`, `80 Gb`, `10 m`) is refused with the forms that say it clearly.
"""

from __future__ import annotations

import re
from decimal import Decimal

from planner.spec.kinds import (
    BANDWIDTH,
    COMPUTE_RATE,
    COMPUTE_WORK,
    DURATION,
    SIZE,
    QuantityError,
    plain_text,
    read_number,
    refuse_non_text,
)
from planner.spec.printing import (
    format_bytes,
    format_count,
    format_duration,
    format_flops,
    format_fraction,
    format_rate,
    format_work,
)

__all__ = [
    "QuantityError",
    "format_bytes",
    "format_count",
    "format_duration",
    "format_flops",
    "format_fraction",
    "format_rate",
    "format_work",
    "parse_bandwidth",
    "parse_batch",
    "parse_bytes",
    "parse_count",
    "parse_duration",
    "parse_flops",
    "parse_fraction",
    "parse_price",
    "parse_tokens",
    "parse_work",
]

_LARGEST_COUNT = 10**18
_SCALES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_PRICE = re.compile(r"(?P<amount>[^\s/]+)\s+(?P<currency>[A-Za-z]+)\s*/\s*(?P<per>\S+)")
_AMOUNT_WITH_WORD = re.compile(r"(?P<number>[^\sA-Za-z]*(?:[eE][+-]?\d+)?)\s*(?P<scale>[A-Za-z]?)\s+(?P<word>[a-z-]+)")


def parse_bytes(value: object, *, zero: bool = False) -> int:
    """Bytes of `80 GiB` or `80 GB`; `zero` allows 0."""
    return round(SIZE.parse(value, zero=zero))


def parse_bandwidth(value: object) -> float:
    """Bytes a second of `400 Gbps` (bits) or `50 GB/s` (bytes)."""
    return BANDWIDTH.parse(value)


def parse_duration(value: object, *, zero: bool = False) -> float:
    """Seconds of `5 us`, `25 s` or `2 h`; `zero` allows 0."""
    return DURATION.parse(value, zero=zero)


def parse_flops(value: object) -> float:
    """FLOP/s of `312 TFLOPS`: a rate."""
    return COMPUTE_RATE.parse(value)


def parse_work(value: object, *, zero: bool = False) -> float:
    """FLOP of `1.5 TFLOP`: an amount of work; `zero` allows 0."""
    return COMPUTE_WORK.parse(value, zero=zero)


def parse_fraction(value: object, *, bare: bool = False) -> float:
    """A share in [0, 1] of `6 %`. `bare` also takes a plain number below 1, such as 0.72; a plain 0 is always clear."""
    refuse_non_text(value, "a share", "6 %", numbers=True)
    text = plain_text(value)
    number_text = text[:-1].rstrip() if text.endswith("%") else text
    number = read_number(number_text, "a share", "6 %")
    share = number / 100 if text.endswith("%") else number
    if not text.endswith("%") and number != 0 and not (bare and 0 < number < 1):
        choices = (
            f"write '{number_text} %'" if number >= 1 else f"write '{_plain(number * 100)} %' or '{number_text} %'"
        )
        raise QuantityError(f"{text!r} has no unit", "a bare number may be a fraction or percent", choices)
    if not 0 <= share <= 1:
        raise QuantityError(f"{text!r} is not a share", "a share lies between 0 % and 100 %", "write it like '6 %'")
    return float(share)


def parse_count(
    value: object, *, noun: str = "a count", smallest: int = 1, largest: int = _LARGEST_COUNT, example: str = "8"
) -> int:
    """A whole number without a unit. `1e9` counts as 1000000000; `true`, `1.5`, `1_000`, `010` and `4k` are refused."""
    refuse_non_text(value, noun, example, numbers=True)
    text = plain_text(value)
    if re.fullmatch(r"[+-]?0\d+", text):
        plain = text.lstrip("+-0") or "0"
        raise QuantityError(f"{text!r} has leading zeros", "some readers take it as octal", f"write {plain}")
    if re.fullmatch(r"\d{1,3}(?:[_,' ]\d{3})+", text):
        raise QuantityError(f"{text!r} has separators", "", f"write {re.sub('[^0-9]', '', text)}")
    number = read_number(text, noun, example, unit_hint="counts are bare numbers")
    if number != number.to_integral_value():
        raise QuantityError(f"{text!r} is not a whole number", f"{noun} has no parts")
    if not smallest <= number <= largest:
        too = "small" if number < smallest else "large"
        raise QuantityError(f"{text!r} is too {too}", f"{noun} lies between {smallest} and {largest}")
    return int(number)


def parse_tokens(value: object) -> int:
    """Tokens: a bare count, or `15 T tokens` (k 10^3, M 10^6, B 10^9, T 10^12)."""
    number, word = _count_with_word(value, ("tokens",), "15 T tokens")
    return parse_count(number, noun="the number of tokens") if word else parse_count(value, noun="the number of tokens")


def parse_batch(value: object) -> tuple[int, str]:
    """A batch and what it counts: `2048` and `2048 sequences`, or `8388608 tokens`."""
    number, word = _count_with_word(value, ("sequences", "tokens"), "8388608 tokens")
    return parse_count(number if word else value, noun="a batch"), word or "sequences"


def parse_price(value: object) -> tuple[float, str]:
    """Money per chip-hour and its currency code: `1.80 USD/h`."""
    example = "1.80 USD/h"
    refuse_non_text(value, "a price", example, numbers=True)
    text = plain_text(value)
    match = _PRICE.fullmatch(text)
    if match is None:
        if isinstance(value, (int, float)):
            raise QuantityError(f"{text!r} has no unit", "", f"write '{text} USD/h', with your currency's code")
        raise QuantityError(f"{text!r} is not a price", "a price is money per chip-hour", f"write it like '{example}'")
    if match["per"] not in ("h", "chip-hour"):
        raise QuantityError(f"unknown unit '/{match['per']}'", "prices are per chip-hour", f"write it like '{example}'")
    currency = match["currency"]
    if not re.fullmatch(r"[A-Z]{3}", currency):
        raise QuantityError(f"unknown currency {currency!r}", "", "write its three-letter code, like 'USD'")
    amount = read_number(match["amount"], "a price", example)
    if not 0 <= amount <= 1_000_000:
        raise QuantityError(f"{text!r} is not a sensible price", "a chip-hour costs between 0 and 1000000")
    return float(amount), currency


def _count_with_word(value: object, words: tuple[str, ...], example: str) -> tuple[str, str]:
    """The number as text and the word behind it, or empty texts for a bare number."""
    if not isinstance(value, str):
        return "", ""
    text = value.strip()
    match = _AMOUNT_WITH_WORD.fullmatch(text)
    if match is None or not match["number"]:
        if re.fullmatch(r"[^A-Za-z]+[A-Za-z]", text):
            fix = f"write a bare number, or name what is counted like '{example}'"
            raise QuantityError(f"{text!r} has no unit", "", fix)
        return "", ""
    if match["word"] not in words:
        raise QuantityError(f"unknown unit {match['word']!r}", "", f"write it like '{example}'")
    if match["scale"] not in _SCALES:
        raise QuantityError(
            f"unknown scale {match['scale']!r}", "k, M, B and T are known", f"write it like '{example}'"
        )
    number = read_number(match["number"], "a count", example)
    return format(number * _SCALES[match["scale"]], "f"), match["word"]


def _plain(number: Decimal) -> str:
    return format(number.normalize(), "f")

"""What all spec models share (strict, frozen, YAML keys as aliases), and the field types for quantities and names.

A model is read in two ways. *Written* input (files) goes through `planner.spec.reading`: only YAML keys, every
quantity with its unit. From Python, and from a plan file, the Python names hold plain numbers in base units.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, WithJsonSchema
from pydantic_core import PydanticCustomError

from planner.spec.kinds import (
    BANDWIDTH,
    COMPUTE_RATE,
    COMPUTE_WORK,
    DURATION,
    LATENCY,
    MEMORY,
    SIZE,
    Kind,
    QuantityError,
)
from planner.spec.units import parse_count, parse_fraction, parse_price, parse_tokens

__all__ = [
    "WRITTEN",
    "Bandwidth",
    "Count",
    "Duration",
    "Flops",
    "Latency",
    "MemoryBytes",
    "Name",
    "Price",
    "Share",
    "SizeBytes",
    "SpecModel",
    "Text",
    "Title",
    "Tokens",
    "Work",
    "distinct",
    "filled",
    "is_name",
    "refusal",
    "whole_number",
]

WRITTEN: Final[dict[str, Any]] = {"written": True}
"""The validation context of a file that a person wrote."""

_NAME = re.compile(r"[^\W_][\w.+-]{0,99}")


class SpecModel(BaseModel):
    """Base of everything people write."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, populate_by_name=True, use_attribute_docstrings=True, allow_inf_nan=False
    )


def refusal(error: QuantityError) -> PydanticCustomError:
    """The same refusal in the form that pydantic collects."""
    problem = error.problems[0]
    return PydanticCustomError("dplan", "{what}", {"what": problem.what, "why": problem.why, "fix": problem.fix})


def _quantity(kind: Kind, *, zero: bool = False, whole: bool = False) -> BeforeValidator:
    def read(value: Any, info: ValidationInfo) -> float | int:
        try:
            plain = isinstance(value, (int, float)) and not isinstance(value, bool)
            if plain and not (info.context or {}).get("written"):
                amount = kind.check(value, zero=zero)
                return value if whole and isinstance(value, int) else _number(amount, whole)
            return _number(kind.parse(value, zero=zero), whole)
        except QuantityError as error:
            raise refusal(error) from None

    return BeforeValidator(read)


def _number(amount: float, whole: bool) -> float | int:
    return round(amount) if whole else amount


def _quantity_schema(kind: Kind, *, zero: bool = False) -> WithJsonSchema:
    units = "|".join(re.escape(unit) for unit in kind.units)
    pattern = rf"^\+?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*({units})$"
    written: dict[str, Any] = {"type": "string", "pattern": pattern}
    return WithJsonSchema({"anyOf": [written, {"const": 0}]} if zero else written | {"examples": [kind.example]})


def _refusing(parse: Callable[[Any], Any]) -> BeforeValidator:
    def read(value: Any) -> Any:
        try:
            return parse(value)
        except QuantityError as error:
            raise refusal(error) from None

    return BeforeValidator(read)


def whole_number(noun: str, smallest: int, largest: int, example: str = "8") -> BeforeValidator:
    """A count between two limits."""
    return _refusing(lambda value: parse_count(value, noun=noun, smallest=smallest, largest=largest, example=example))


def is_name(text: str) -> bool:
    """A text that may name a group, chip, site or layer (and a file, since it holds no separator)."""
    return _NAME.fullmatch(text) is not None


def _read_name(value: Any) -> str:
    if not isinstance(value, str):
        raise QuantityError(_not_text(value), "a name is text", "write it in quotes")
    if not is_name(value):
        why = "names are letters, digits, '.', '_', '+' and '-', at most 100, and start with a letter or digit"
        raise QuantityError(f"{value[:40]!r} is no name", why, "rename it")
    return value


def _text_reader(largest: int, *, lines: bool) -> Callable[[Any], str]:
    def read(value: Any) -> str:
        if not isinstance(value, str):
            raise QuantityError(_not_text(value), "text is expected", "write it in quotes")
        if not value.strip() or len(value) > largest:
            raise QuantityError("is empty text" if not value.strip() else f"is longer than {largest} characters")
        if not (value.replace("\n", "") if lines else value).isprintable():
            raise QuantityError("has control characters", "it is printed as it is", "remove them")
        return value.strip()

    return read


def filled(noun: str, largest: int, *, empty: bool = False) -> BeforeValidator:
    """A list or mapping with at most so many entries, and at least one unless it may be `empty`."""

    def read(value: Any) -> Any:
        if isinstance(value, (list, tuple, dict)):
            if not value and not empty:
                raise QuantityError("is empty", f"at least one {noun} is needed")
            if len(value) > largest:
                raise QuantityError(f"has {len(value)} entries", f"at most {largest} are read")
        return value

    return _refusing(read)


def distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    """A list without repetitions."""
    seen = set()
    for value in values:
        if value in seen:
            raise refusal(QuantityError(f"names '{value}' twice", "", "remove one of them"))
        seen.add(value)
    return values


def _not_text(value: Any) -> str:
    if value is None:
        return "is empty"
    if isinstance(value, bool):
        return f"is {str(value).lower()}"
    if isinstance(value, (list, tuple, dict)):
        return "is a mapping" if isinstance(value, dict) else "is a list"
    return f"is the number {value}"


def _read_share(value: Any, info: ValidationInfo) -> float:
    try:
        share = parse_fraction(value, bare=True) if value != 1 or (info.context or {}).get("written") else 1.0
        if share == 0:
            raise QuantityError("is zero", "nothing would ever finish", "write a share like '72 %'")
    except QuantityError as error:
        raise refusal(error) from None
    return share


_COUNT_SCHEMA = WithJsonSchema({"type": "integer", "minimum": 1})

MemoryBytes = Annotated[int, _quantity(MEMORY, whole=True), _quantity_schema(MEMORY)]
SizeBytes = Annotated[int, _quantity(SIZE, zero=True, whole=True), _quantity_schema(SIZE, zero=True)]
Bandwidth = Annotated[float, _quantity(BANDWIDTH), _quantity_schema(BANDWIDTH)]
Latency = Annotated[float, _quantity(LATENCY, zero=True), _quantity_schema(LATENCY, zero=True)]
Duration = Annotated[float, _quantity(DURATION, zero=True), _quantity_schema(DURATION, zero=True)]
Flops = Annotated[float, _quantity(COMPUTE_RATE), _quantity_schema(COMPUTE_RATE)]
Work = Annotated[float, _quantity(COMPUTE_WORK, zero=True), _quantity_schema(COMPUTE_WORK, zero=True)]
Share = Annotated[
    float,
    BeforeValidator(_read_share),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": r"^\d+(\.\d*)?\s*%$"},
                {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
            ],
            "examples": ["72 %"],
        }
    ),
]
Price = Annotated[
    tuple[float, str],
    _refusing(parse_price),
    WithJsonSchema(
        {"type": "string", "pattern": r"^\d+(\.\d*)?\s+[A-Z]{3}\s*/\s*(h|chip-hour)$", "examples": ["1.80 USD/h"]}
    ),
]
Tokens = Annotated[
    int,
    _refusing(parse_tokens),
    WithJsonSchema(
        {
            "anyOf": [{"type": "integer", "minimum": 1}, {"type": "string", "pattern": r"^[\d.]+\s*[kMBT]?\s+tokens$"}],
            "examples": ["15 T tokens"],
        }
    ),
]
Count = Annotated[int, whole_number("a count", 1, 10**9), _COUNT_SCHEMA]
Name = Annotated[str, _refusing(_read_name), WithJsonSchema({"type": "string", "pattern": r"^\w[\w.+-]*$"})]
Title = Annotated[
    str, _refusing(_text_reader(200, lines=False)), WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 200})
]
Text = Annotated[
    str,
    _refusing(_text_reader(8000, lines=True)),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 8000}),
]

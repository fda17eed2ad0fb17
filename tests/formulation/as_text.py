"""A program as sorted text: one line a row, terms in the order of their names, so that goldens read like formulas."""

from __future__ import annotations

from typing import Any

SIGNS = {0: "=", -1: "<=", 1: ">="}


def number(value: float) -> str:
    return f"{value:.6g}"


def term(coefficient: float, name: str) -> str:
    sign = "-" if coefficient < 0 else "+"
    size = abs(coefficient)
    return f"{sign} {name}" if size == 1 else f"{sign} {number(size)} {name}"


def expression(items: Any) -> str:
    terms = [term(c, v.name) for v, c in sorted(items, key=lambda x: x[0].name) if c]
    return " ".join(terms).removeprefix("+ ") or "0"


def as_text(lp: Any) -> str:
    rows = [f"{c.name}: {expression(c.items())} {SIGNS[c.sense]} {number(0.0 - c.constant)}" for c in lp.constraints()]
    return "\n".join(sorted(rows))


def family_as_text(lp: Any, *prefixes: str) -> str:
    """Only the rows whose names start with one of the prefixes."""
    return "\n".join(line for line in as_text(lp).splitlines() if line.split("__")[0] in prefixes)

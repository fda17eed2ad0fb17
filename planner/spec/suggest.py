"""Did you mean ...?"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["closest", "did_you_mean", "with_the_parts_of"]

_FEW = 12


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a misspelt one most likely means; never that very word."""
    by_folded: dict[str, str] = {}
    for candidate in sorted(set(known) - {word}):
        by_folded.setdefault(_folded(candidate), candidate)
    match = difflib.get_close_matches(_folded(word[:200]), list(by_folded), n=1, cutoff=0.6)
    return by_folded[match[0]] if match else None


def did_you_mean(word: str, known: Iterable[str], noun: str = "known", more: str = "") -> str:
    """Advice for an unknown word: the closest known one, the whole list where it is short, or `more`."""
    names = sorted(set(known) - {word})
    close = closest(word, names)
    if close is not None:
        return f"did you mean '{close}'?"
    if not names:
        return more
    if len(names) <= _FEW:
        return f"{noun}: {', '.join(names)}"
    return more or f"{noun}: {', '.join(names[:_FEW])}, ..."


def with_the_parts_of(word: str, known: Iterable[str]) -> list[str]:
    """The known words that hold every part of a shortened one: `h100` or `h100-sxm` in `nvidia-h100-80gb-sxm`."""
    parts = [part for part in _folded(word[:200]).split("-") if part]
    if max(map(len, parts), default=0) < 2:
        return []
    return [name for name in sorted(set(known) - {word}) if all(part in _folded(name) for part in parts)]


def _folded(word: str) -> str:
    return word.casefold().replace("_", "-").replace(" ", "-")

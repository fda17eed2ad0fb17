"""Pipelines a step away from those of a mix: stages more or fewer, on other chips, joined, parted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.search.mixed.shapes import Kind, Stages

__all__ = ["variants"]

_CHANGES = (1, -1, 2, -2)


def variants(pipelines: Sequence[Stages], kinds: Sequence[Kind]) -> Iterator[Stages]:
    """Stages of each pipeline with a small change, then two pipelines as one, and one as two; some of them twice.

    kinds: what stages may run on.
    """
    for stages in pipelines:
        yield from _longer_or_shorter(stages)
    for stages in pipelines:
        yield from _exchanged(stages, kinds)
    for i, one in enumerate(pipelines):
        for other in pipelines[i:]:
            yield one + other
            yield other + one
        half = len(one) // 2
        yield from (part for part in (one[:half], one[half:]) if part)


def _runs(stages: Stages) -> list[tuple[int, int]]:
    """(first, end) of the longest pieces of equal stages."""
    ends, first = [], 0
    for _, run in groupby(stages):
        end = first + len([*run])
        ends.append((first, end))
        first = end
    return ends


def _longer_or_shorter(stages: Stages) -> Iterator[Stages]:
    """A piece of equal stages that is one or two stages longer or shorter."""
    for first, end in _runs(stages):
        for change in _CHANGES:
            length = end - first + change
            if length >= 0 and len(stages) + change > 0:
                yield stages[:first] + length * stages[first : first + 1] + stages[end:]


def _exchanged(stages: Stages, kinds: Sequence[Kind]) -> Iterator[Stages]:
    """The first or last of equal stages, or all of them, on other chips; a stage of other chips at an end of them."""
    for first, end in _runs(stages):
        for kind in kinds:
            if kind == stages[first]:
                continue
            yield (*stages[:first], kind, *stages[first + 1 :])
            yield (*stages[: end - 1], kind, *stages[end:])
            yield stages[:first] + (end - first) * (kind,) + stages[end:]
            yield (*stages[:first], kind, *stages[first:])
            yield (*stages[:end], kind, *stages[end:])

"""Boxes of micro-batches and ways that hold no pipeline which runs what it costs, divided where they have to be."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from planner.search.mixed.cheapest import cheaper, cheapest_stages
from planner.search.mixed.fronts import Behind, Box
from planner.search.workers import PoolOfWorkers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.rows import PieceRows
    from planner.search.mixed.shapes import Family

    Floats = NDArray[np.float64]

__all__ = ["Answer", "Asking", "Boxes", "Group", "Question", "Refuter", "Relaxed", "first_boxes", "grouped"]

_WIDE, _FIRST_WIDTH = 1.06, 0.08
"""Ratio of the micro-batches of a first box, and its width, a share of these and of the step time."""
_WAYS = 3
"""Parts into which the usual ways of a first box are divided."""
_USUAL_WAY = 0.25
"""Share of the step time: longer ways are one part."""
_FINEST = 0.003
"""Share of the step time: parts of ways of one number of micro-batches that are not divided any more."""
_ALIKE = 1.5
"""Ratio of micro-batches of boxes that one process looks at."""
_LABELS, _MOST_LABELS, _STEEPNESS = 300, 20_000, 1.5
"""Labels of a stage after which a first box is divided; narrower ones are worth more, as a power of their width."""
_RATES = 3
"""Prices of a second of way."""
_CELLS = 40_000
"""Kinds times positions times boxes that are looked at together, about."""


Boxes = Sequence[tuple[int, Box]]
"""Boxes, each with the number of its family."""


class Question(NamedTuple):
    """prices: of a chip of each group, in sequences.  slack: a share of the prices: boxes are shown at prices lower by
    so much, and so at all that are higher than those.  looks: boxes that are looked at; they are divided until as many
    were, none is left, or it fails at a fine one; None: every box once, and those left over are halved.
    """

    step_time: float
    prices: tuple[float, ...]
    slack: float = 0.0
    looks: float | None = math.inf

    def lowered(self) -> tuple[float, ...]:
        """Prices at which boxes are shown."""
        return tuple(p * (1 - self.slack) for p in self.prices)


@dataclass(frozen=True)
class Group:
    """Boxes of a family, by its number; all have `fewest` micro-batches or more."""

    family: int
    fewest: int
    boxes: tuple[Box, ...]


class Relaxed(NamedTuple):
    """A relaxed pipeline: its chips of each group, and the most sequences that it runs in a step."""

    chips: tuple[int, ...]
    sequences: float


@dataclass(frozen=True)
class Answer:
    """Of a group's boxes, divided as far as needed: those that hold no pipeline that runs what it costs, and those of
    which that is not shown.  failed: dividing them further does not show it.  because: a relaxed pipeline of these that
    runs what it costs, if one is known.
    """

    shown: tuple[Box, ...]
    left: tuple[Box, ...]
    failed: bool = False
    because: Relaxed | None = None


class Refuter:
    """Says which boxes hold no pipeline within a step time that runs what it costs."""

    def __init__(self, families: Sequence[Family]) -> None:
        self.rows: list[PieceRows] = [f.rows for f in families]
        self.sizes = [f.micro_batch_size for f in families]
        self.chips = [[(k.group, k.tensor * f.pool.context) for k in f.kinds] for f in families]

    def answer(self, group: Group, asked: Question, should_stop: Callable[[], bool]) -> Answer:
        """What is known of a group of boxes."""
        rows, step_time = self.rows[group.family], asked.step_time
        if not rows.kinds or float(rows.fastest[-1]) >= step_time:
            return Answer(group.boxes, ())
        behind = self._behind(group, step_time, asked.lowered())
        together = max(4, _CELLS // (len(rows.kinds) * (rows.layers + 1)))
        looks = len(group.boxes) if asked.looks is None else asked.looks
        open_boxes, shown, left = [*reversed(group.boxes)], list[Box](), list[Box]()
        while open_boxes and looks > 0:
            if should_stop():
                return Answer((), group.boxes)
            boxes, labels = _next(open_boxes, together, step_time)
            looks -= len(boxes)
            holds = cheaper(behind, boxes, labels, _RATES)
            shown += [box for box, some in zip(boxes, holds, strict=True) if some is False]
            rest = {box: _divided(box, step_time) for box, some in zip(boxes, holds, strict=True) if some is not False}
            fine = [box for box, parts in rest.items() if not parts]
            left += fine
            (left if asked.looks is None else open_boxes).extend(part for parts in rest.values() for part in parts)
            if fine and asked.looks is not None:
                failed, because = self._fails(group, asked, fine)
                if failed:
                    return Answer(tuple(shown), (*left, *open_boxes), True, because)
        return Answer(tuple(shown), (*left, *open_boxes))

    def _fails(self, group: Group, asked: Question, fine: Sequence[Box]) -> tuple[bool, Relaxed | None]:
        """Whether it can't be shown of boxes too fine to be divided, at the prices; and a pipeline that says so."""
        exact = self._behind(group, asked.step_time, asked.prices)
        holding = zip(fine, cheaper(exact, fine, _MOST_LABELS, _RATES), strict=True)
        wrong = next((box for box, holds in holding if holds is not False), None)
        return wrong is not None, None if wrong is None else self._because(exact, wrong, group.family)

    def _behind(self, group: Group, step_time: float, prices: Sequence[float]) -> Behind:
        import numpy as np

        slots = np.array([prices[g] * n for g, n in self.chips[group.family]]) / self.sizes[group.family]
        return Behind(self.rows[group.family], step_time, slots, group.fewest)

    def _because(self, behind: Behind, box: Box, family: int) -> Relaxed | None:
        """A relaxed pipeline of the box that runs what it costs."""
        found = cheapest_stages(behind, box, _MOST_LABELS, _RATES)
        if found is None:
            return None
        kinds, most = found
        chips = [0] * (1 + max(g for g, _ in self.chips[family]))
        for k in kinds:
            group, count = self.chips[family][k]
            chips[group] += count
        return Relaxed(tuple(chips), most * self.sizes[family])


def _next(boxes: list[Box], most: int, step_time: float) -> tuple[list[Box], int]:
    """The last ones, as many as are worth the same number of labels."""
    found = [boxes.pop()]
    labels = _labels(found[0], step_time)
    while boxes and len(found) < most and _labels(boxes[-1], step_time) == labels:
        found.append(boxes.pop())
    return found, labels


def _labels(box: Box, step_time: float) -> int:
    """Labels of a stage that a box is worth."""
    width = max(box.most / box.fewest - 1, (box.long - box.short) / step_time, _FINEST)
    halvings = max(0, math.floor(math.log2(_FIRST_WIDTH / width)))
    return min(_MOST_LABELS, int(_LABELS * 2 ** (_STEEPNESS * halvings)))


def _divided(box: Box, step_time: float) -> tuple[Box, ...]:
    """The box divided where it is widest, micro-batches or way; nothing when that is too fine already."""
    width = (box.long - box.short) / step_time
    if box.most > box.fewest and (box.most / box.fewest - 1 >= width or width <= _FINEST):
        middle = min(max(int(math.sqrt(box.fewest * box.most)), box.fewest), box.most - 1)
        return box._replace(fewest=middle + 1), box._replace(most=middle)
    if width <= _FINEST:
        return ()
    way = (box.short + box.long) / 2
    return box._replace(short=way), box._replace(long=way)


def first_boxes(rows: PieceRows, fewest: int, most: int, step_time: float) -> list[Box]:
    """All pipelines of a family with fewest..most micro-batches: ways divided evenly up to a usual one, then a rest."""
    shortest = float(rows.fastest[-1])
    usual = max(_USUAL_WAY * step_time, min(2 * shortest, step_time))
    ways = [*(shortest + (usual - shortest) * n / _WAYS for n in range(_WAYS + 1)), step_time]
    boxes = []
    while fewest <= most:
        last = min(most, max(fewest, int(fewest * _WIDE)))
        boxes += [Box(fewest, last, *way) for way in pairwise(ways) if way[0] < way[1]]
        fewest = last + 1
    return boxes


def grouped(boxes: Boxes) -> list[Group]:
    """Boxes with about as many micro-batches together, the largest groups first."""
    groups = dict[tuple[int, int], list[Box]]()
    for family, box in sorted(boxes):
        start = 1
        while (more := max(start + 1, int(start * _ALIKE))) <= box.fewest:
            start = more
        groups.setdefault((family, start), []).append(box)
    found = [Group(family, start, tuple(some)) for (family, start), some in groups.items()]
    return sorted(found, key=lambda g: (-len(g.boxes), g.family, g.fewest))


class Asking:
    """Asks here (`jobs` 1) or in worker processes; what is answered does not depend on it."""

    def __init__(self, refuter: Refuter, should_stop: Callable[[], bool], jobs: int, deadline: float) -> None:
        self.refuter, self.stop, self.deadline = refuter, should_stop, deadline
        self._workers = PoolOfWorkers(jobs, _start_worker, refuter) if jobs > 1 else None

    def __enter__(self) -> Asking:
        return self

    def __exit__(self, *_: object) -> None:
        if self._workers is not None:
            self._workers.close()

    def answers(self, groups: Sequence[Group], asked: Question) -> Generator[Answer, None, None]:
        """One a group, in order; no more is asked once the generator is closed."""
        if self._workers is None:
            for g in groups:
                yield self.refuter.answer(g, asked, self.stop)
        else:
            calls = [(g, asked, self.deadline) for g in groups]
            answers = self._workers.each(_answer, calls, self.stop, self._here)
            for g, answer in zip(groups, answers, strict=True):
                yield answer or Answer((), g.boxes)

    def _here(self, group: Group, asked: Question, deadline: float) -> Answer:
        return self.refuter.answer(group, asked, lambda: self.stop() or time.monotonic() > deadline)


_refuters: list[Refuter] = []
"""A worker process's own, from when it starts."""


def _start_worker(refuter: Refuter) -> None:
    _refuters[:] = [refuter]


def _answer(group: Group, asked: Question, deadline: float) -> Answer:
    return _refuters[0].answer(group, asked, lambda: time.monotonic() > deadline)

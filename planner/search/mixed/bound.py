"""A lower bound of every mix, from prices of chips.

Prices (sequences a step, one a slot) are normalised: all chips together cost exactly the global batch. The pipelines of
a mix run the global batch between them and cost no more than it, so one of them runs at least as many sequences as it
costs. Where no pipeline within a step time does, no mix is that fast. Step times are asked for from a low one up to the
goal, each for all numbers of micro-batches, in ranges that are divided where they have to be (cheapest.py).
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.cost.schedule import in_flight
from planner.search.mixed.cheapest import cheaper
from planner.search.mixed.fronts import Behind, Box
from planner.search.workers import PoolOfWorkers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.mixed.rows import PieceRows
    from planner.search.mixed.shapes import Family, Pool

    Floats = NDArray[np.float64]

__all__ = ["mix_bound"]

_GOALS = (0.03, 0.02, 0.015)
"""How far below the best plan step times are asked for, while that is shown, before the gap asked for."""
_EASIER = (0.08, 0.15, 0.25, 0.4)
"""Before the first goal: until something is shown."""
_HALVINGS = 3
"""Step times asked for between the last one that was shown and the first one that was not."""
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
_FEW_RATES, _RATES = 2, 3
"""Prices of a second of way for wide and for narrow boxes."""
_CELLS = 40_000
"""Kinds times positions times boxes that are looked at together, about."""
_SLACK = 1e-9


@dataclass(frozen=True)
class Group:
    """Boxes of a family, by its number; all have `fewest` micro-batches or more."""

    family: int
    fewest: int
    boxes: tuple[Box, ...]


@dataclass(frozen=True)
class Answer:
    """Of a group's boxes, divided as far as needed: those that hold no pipeline that runs what it costs, and those of
    which that is not shown.
    """

    shown: tuple[Box, ...]
    left: tuple[Box, ...]


class Refuter:
    """Says which boxes hold no pipeline within a step time that runs what it costs.

    rows, prices: of each family, prices in micro-batches for a slot of each kind.
    """

    def __init__(self, rows: Sequence[PieceRows], prices: Sequence[Floats]) -> None:
        self.rows, self.prices = rows, prices

    def answer(self, group: Group, step_time: float, once: bool, should_stop: Callable[[], bool]) -> Answer:
        """once: every box is looked at once, and those left over are halved; else they are divided until none is left
        or a fine one is, and that one says no more than that the answer is no.
        """
        rows = self.rows[group.family]
        if not rows.kinds or float(rows.fastest[-1]) >= step_time:
            return Answer(group.boxes, ())
        behind = Behind(rows, step_time, self.prices[group.family], group.fewest)
        together = max(4, _CELLS // (len(rows.kinds) * (rows.layers + 1)))
        open_boxes, shown, left = [*reversed(group.boxes)], list[Box](), list[Box]()
        while open_boxes:
            if should_stop():
                return Answer((), group.boxes)
            boxes = _next(open_boxes, together, step_time)
            effort = _effort(boxes[0], step_time)
            for box, holds in zip(boxes, cheaper(behind, boxes, *effort), strict=True):
                parts = () if holds is False else _divided(box, step_time)
                if holds is False:
                    shown.append(box)
                elif once or not parts:
                    left += parts or (box,)
                else:
                    open_boxes += parts
            if left and not once:
                return Answer((), tuple(left))
        return Answer(tuple(shown), tuple(left))


def _next(boxes: list[Box], most: int, step_time: float) -> list[Box]:
    """The last ones, as many as are looked at alike."""
    found = [boxes.pop()]
    effort = _effort(found[0], step_time)
    while boxes and len(found) < most and _effort(boxes[-1], step_time) == effort:
        found.append(boxes.pop())
    return found


def _effort(box: Box, step_time: float) -> tuple[int, int]:
    """Labels and rates that a box is worth."""
    width = max(box.most / box.fewest - 1, (box.long - box.short) / step_time, _FINEST)
    halvings = max(0, math.floor(math.log2(_FIRST_WIDTH / width)))
    labels = min(_MOST_LABELS, int(_LABELS * 2 ** (_STEEPNESS * halvings)))
    return labels, _FEW_RATES if halvings < 2 else _RATES


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


def _first_boxes(rows: PieceRows, fewest: int, most: int, step_time: float) -> list[Box]:
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


_Boxes = Sequence[tuple[int, Box]]
"""Boxes, each with the number of its family."""


def _grouped(boxes: _Boxes) -> list[Group]:
    """Boxes with about as many micro-batches together, the largest groups first."""
    groups = dict[tuple[int, int], list[Box]]()
    for family, box in sorted(boxes):
        start = 1
        while (more := max(start + 1, int(start * _ALIKE))) <= box.fewest:
            start = more
        groups.setdefault((family, start), []).append(box)
    found = [Group(family, start, tuple(some)) for (family, start), some in groups.items()]
    return sorted(found, key=lambda g: (-len(g.boxes), g.family, g.fewest))


def _tried(boxes: _Boxes, ask: Callable[[Sequence[Group]], Generator[Answer, None, None]]) -> tuple[_Boxes, _Boxes]:
    """Boxes of which it is shown that none holds a pipeline that runs what it costs, and the halves of the others."""
    groups = _grouped(boxes)
    answers = [*zip(groups, ask(groups), strict=True)]
    shown = [(group.family, box) for group, answer in answers for box in answer.shown]
    return shown, [(group.family, box) for group, answer in answers for box in answer.left]


def _refuted(boxes: _Boxes, ask: Callable[[Sequence[Group]], Generator[Answer, None, None]]) -> _Boxes | None:
    """The boxes, divided as far as needed to show it of all; None when it was not shown."""
    groups, shown = _grouped(boxes), list[tuple[int, Box]]()
    with contextlib.closing(ask(groups)) as answers:
        for group, answer in zip(groups, answers, strict=True):
            if answer.left:
                return None
            shown += ((group.family, box) for box in answer.shown)
    return shown


def mix_bound(
    pool: Pool,
    families: Sequence[tuple[Family, int, int]],
    prices: Sequence[float],
    best: float,
    gap: float,
    should_stop: Callable[[], bool] = lambda: False,
    jobs: int = 1,
    deadline: float = math.inf,
) -> float:
    """No mix of pipelines of these families is faster than this many seconds; at most (1 - gap) * best.

    families: each with the fewest and the most micro-batches of its pipelines, all mixes covered.
    prices: of a chip of each group, in any unit.  The bound is valid for all of them, and best for the dual prices of
    the relaxed master.  jobs: processes; they heed the deadline (of the monotonic clock) alone.
    """
    import numpy as np

    whole = sum(p * n for p, n in zip(prices, pool.num_chips, strict=True))
    if whole <= 0:
        return 0.0
    batch = pool.problem.global_batch
    scaled = [p * batch / whole for p in prices]
    alone, rows, slots, boxes = math.inf, list["PieceRows"](), list["Floats"](), list[tuple[int, Box]]()
    for family, fewest, most in families:
        if should_stop():
            return 0.0
        costs = np.array([scaled[k.group] * k.tensor * pool.context for k in family.kinds])
        alone = min(alone, _single_stages(family, costs, fewest))
        rows.append(family.rows)
        slots.append(costs / family.micro_batch_size)
        boxes += ((len(rows) - 1, box) for box in _first_boxes(family.rows, fewest, most, best))
    with Asking(Refuter(rows, slots), should_stop, jobs, deadline) as asking:
        return min(alone, _climb(boxes, asking, best, gap, alone))


def _climb(boxes: _Boxes, asking: Asking, best: float, gap: float, enough: float) -> float:
    """The highest step time asked for that no box reaches; one above `enough` will do.

    What a goal leaves open after one look is asked for at easier step times first, so that something is known early.
    """
    reached, failed = 1.0, 0.0
    for goal in (*(g for g in _GOALS if g > gap), gap):
        shown, left = _tried(boxes, asking.about(best * (1 - goal), once=True))
        if reached == 1.0:
            for easier in (e for e in _EASIER if e > goal):
                found = _refuted(left, asking.about(best * (1 - easier)))
                if found is not None:
                    reached, left = easier, found
                    break
                failed = easier
        closer = _refuted(left, asking.about(best * (1 - goal))) if not failed else None
        if closer is None:
            failed = failed or goal
            break
        boxes, reached = [*shown, *closer], goal
        if enough <= best * (1 - reached):
            break
    for _ in range(_HALVINGS if failed and reached < 1.0 else 0):
        middle = (reached + failed) / 2
        found = _refuted(left, asking.about(best * (1 - middle)))
        if found is None:
            failed = middle
        else:
            left, reached = found, middle
    return best * (1 - reached)


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

    def about(self, step_time: float, once: bool = False) -> Callable[[Sequence[Group]], Generator[Answer, None, None]]:
        """For groups, whether one holds a pipeline within the step time that runs what it costs."""

        def ask(groups: Sequence[Group]) -> Generator[Answer, None, None]:
            if self._workers is None:
                for g in groups:
                    yield self.refuter.answer(g, step_time, once, self.stop)
            else:
                calls = [(g, step_time, once, self.deadline) for g in groups]
                for g, answer in zip(groups, self._workers.each(_answer, calls, self.stop), strict=False):
                    yield answer or Answer((), g.boxes)

        return ask


_refuters: list[Refuter] = []
"""A worker process's own, from when it starts."""


def _start_worker(refuter: Refuter) -> None:
    _refuters[:] = [refuter]


def _answer(group: Group, step_time: float, once: bool, deadline: float) -> Answer:
    return _refuters[0].answer(group, step_time, once, lambda: time.monotonic() > deadline)


def _single_stages(family: Family, costs: Floats, fewest: int) -> float:
    """The fastest pipeline of one stage that runs what it costs, and at least `fewest` micro-batches."""
    single = family.root.single_stage()
    whole = family.root.intervals.index[0, family.root.intervals.num_layers]
    best = math.inf
    for kind, cost in zip(family.kinds, costs, strict=True):
        options = single.options(kind.group, kind.mode)
        if options is not None:
            m = max(fewest, math.ceil(float(cost) / family.micro_batch_size * (1 - _SLACK)))
            held = in_flight(family.schedule, 1, m)
            best = min(best, float(m * options.times(held)[whole] + options.update[whole]))
    return best

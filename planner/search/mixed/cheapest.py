"""The cheapest pipelines within a step time: what their stages cost against one micro-batch's way through them.

A pipeline of P stages, the i-th from the end with k_i micro-batches in flight, takes at least (cost/rows.py; S: the
way of one micro-batch and the first stage's update; W_i: the way through the last i stages and back):

    T >= S + (m - 1) t_i - (k_i - 1) F_i                 the way in, m - k_i + 1 turns at the stage, backwards, way out
    T >= S + q W_i + (m - 1 - q k_i) t_i                 for q = 1 .. (m - 1) // k_i:  q + 1 trips to the end, and turns

`Cheapest` looks for the pipelines with the least price among those with fewest..most micro-batches and S in
[short, long]. From the front, `_Fronts` bounds what the layers before a position cost at the end of so many stages,
for several prices of a second of way. From the end, labels (position, way so far, price) are extended stage by stage
with these bounds to prune them; labels of a position with about the same way become one, with the least of both.
No pipeline is cheaper than what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from planner.search.mixed.rows import PieceRows, StepRows

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]

__all__ = ["Box", "Cheapest"]

_SLACK = 1e-9
_FEW_RATES, _RATES = (0.0, 0.3), (0.0, 0.1, 0.3, 0.8)
"""Prices of a second of way at which fronts are bounded, times the limit over the fastest way: where that is asked
for roughly, and else.
"""
_BUCKETS = 192
"""Ways between the fastest and the longest are told apart this finely."""


class Box(NamedTuple):
    """Pipelines with fewest..most micro-batches and S from short to long seconds."""

    fewest: int
    most: int
    short: float
    long: float


@dataclass
class _Labels:
    """Stages behind a position: box, position, way beyond the fastest one, price."""

    box: Counts
    end: Counts
    beyond: Floats
    price: Floats


class Cheapest:
    """Pipelines of two or more stages of a family with fewest..most micro-batches within a step time.

    prices: (K,) micro-batches for a slot of each kind.  shorts: ascending seconds of S from which fronts are bounded;
    no box begins below the first one.
    """

    def __init__(
        self,
        rows: PieceRows,
        step_time: float,
        prices: Floats,
        fewest: int,
        most: int,
        shorts: Floats,
        rough: bool = False,
    ) -> None:
        self.rows, self.step_time, self.prices = rows, step_time, prices
        self.shorts = shorts
        self._steps: dict[int, StepRows] = {}
        rates = _FEW_RATES if rough else _RATES
        self.fronts = _Fronts(rows, self.step(fewest), prices, most * (1 + _SLACK), shorts, rates)

    def step(self, fewest: int) -> StepRows:
        """Rows, made once."""
        if fewest not in self._steps:
            self._steps[fewest] = StepRows(self.rows, self.step_time, fewest)
        return self._steps[fewest]

    def cheaper(self, boxes: Sequence[Box], most_labels: int) -> list[bool | None]:
        """For each box (all of the same micro-batches, within fewest..most) whether a relaxed pipeline costs no more
        than it runs; None where that takes more labels than asked for.
        """
        import numpy as np

        search = _Search(self, boxes)
        open_boxes = set(search.labels.box.tolist())
        for i in range(1, self.fronts.stages + 1):
            if not len(search.labels.end) or len(search.labels.end) > most_labels:
                break
            if not search.extend(i):
                break
        left = set(np.unique(search.labels.box).tolist()) & open_boxes
        return [True if done else (None if j in left else False) for j, done in enumerate(search.done.tolist())]


class _Fronts:
    """least[i][j, p, r]: what the layers before p cost at least, S at least shorts[j], when i stages lie behind p, with
    a second of way at rate r. After it, a way of w seconds beyond the fastest one costs  least + rate * (w - room)  at
    least, room what is left for it.  cheapest[i][j, p]: at rate 0, of p and all positions behind it.
    """

    def __init__(
        self,
        rows: PieceRows,
        step: StepRows,
        prices: Floats,
        limit: float,
        shorts: Floats,
        rates: Sequence[float],
    ) -> None:
        import numpy as np

        self.rows, self.prices = rows, prices
        self.rates: Floats = np.array(rates) * limit / max(float(rows.fastest[-1]), 1e-300)
        self._beyond = rows.beyond[:, :, None] * self.rates
        self.capacity, self.live = self._affordable(step, step.step_time - shorts, limit)
        self.stages = len(self.capacity) - 1
        nothing = np.full((len(shorts), rows.layers + 1, len(self.rates)), np.inf)
        nothing[:, 0] = 0.0
        self.least: list[Floats] = [nothing]
        for i in range(self.stages, 0, -1):
            self.least.append(self._one_more(self.capacity[i], self.least[-1], i))
        self.least.reverse()
        # fewer layers can cost more: a heavy one may be impossible two stages from the end and possible three from it
        self.cheapest: list[Floats] = [np.minimum.accumulate(x[:, ::-1, 0], axis=1)[:, ::-1] for x in self.least]

    def _affordable(self, step: StepRows, spare: Floats, limit: float) -> tuple[list[Counts], list[tuple[int, int]]]:
        """By the number of stages, as many as can be paid: layers that the front one of them can hold before each
        position, and from where to where that front one can begin.

        A position is out of reach when the cheapest stages behind it and layers in front of it cost too much, at one of
        the rates for the way W behind it:  S + q W <= T  for q trips to the end, and S is W and the way in front.
        """
        import numpy as np

        rows, at = self.rows, np.arange(self.rows.layers + 1)
        longest = step.loosest(float(spare.max(initial=0.0)))
        each = min((float(p / n) for p, n in zip(self.prices, longest, strict=True) if n), default=0.0)
        front, fast = at * each * (1 - _SLACK), rows.fastest[-1] - rows.fastest
        capacity, live = [np.zeros((0, 0, 0), dtype=np.int64)], [(rows.layers, rows.layers)]
        behind = np.full((rows.layers + 1, len(self.rates)), np.inf)
        behind[-1] = 0.0
        for i in range(1, rows.layers + 1):
            holds = step.capacity(i, spare)
            behind = self._one_behind(behind, holds.max(axis=(0, 2)), i)
            trips = (step.fewest - 1) // step.held(i)
            room = (step.step_time - rows.fastest) / (1 + trips) * (1 + _SLACK) - fast
            cost = (behind - self.rates * room[:, None]).max(axis=1) + front
            near = np.nonzero((cost < limit) & (room >= 0))[0]
            if not len(near):
                break
            capacity.append(holds)
            live.append((int(near[0]), int(near[-1])))
        return capacity, live

    def _one_behind(self, behind: Floats, longest: Counts, i: int) -> Floats:
        """(L+1, R) the least price of one stage more, from each position on: of kind k it holds up to longest[k]
        layers.
        """
        import numpy as np

        kinds = np.nonzero(longest)[0]
        if not len(kinds):
            return np.full_like(behind, np.inf)
        beyond = self._beyond[kinds]
        ahead = (behind + beyond)[None, :, ::-1]
        count = np.minimum(longest[kinds, None], np.arange(self.rows.layers + 1))[None]
        found: Floats = (_least_before(ahead, count)[0, :, ::-1] - beyond + self._once(kinds, i)[:, None]).min(axis=0)
        return found

    def _one_more(self, capacity: Counts, least: Floats, i: int) -> Floats:
        """What the layers before a position cost, the first stage before it the i-th from the end."""
        import numpy as np

        found = np.full_like(least, np.inf)
        low, end = self.live[i][0], self.live[i - 1][1] + 1
        kinds = np.nonzero(capacity[:, :, low:end].any(axis=(0, 2)))[0]
        if len(kinds):
            beyond = self._beyond[kinds, low:end]
            holds = np.minimum(capacity[:, kinds, low:end], np.arange(end - low))
            inside = _least_before(least[:, None, low:end] - beyond, holds)
            found[:, low:end] = (inside + (beyond + self._once(kinds, i)[:, None])).min(axis=1)
        found[:, 0] = 0.0
        return found

    def _once(self, kinds: Counts, i: int) -> Floats:
        """(K, R) what a stage, the i-th from the end, costs whatever it holds."""
        price, sends = self.prices[kinds, None], self.rows.sends[kinds, None]
        found: Floats = price + (sends if i > 1 else 0 * sends) * self.rates
        return found

    def at(self, i: int, front: Counts, position: Counts, spent: Floats) -> Floats:
        """What lies before each position costs at least; spent: way - room."""
        found: Floats = (self.least[i][front, position] + self.rates * spent[:, None]).max(axis=1)
        return found


def _least_before(values: Floats, count: Counts) -> Floats:
    """At p the least of values[p-count .. p-1]; inf where count is 0. values: (B, K, L+1, R), count: (B, K, L+1)."""
    import numpy as np

    longest = max(1, int(count.max(initial=0)))
    levels = [values]
    while 2 ** len(levels) <= longest:
        shift, last = 2 ** (len(levels) - 1), levels[-1]
        longer = last.copy()
        np.minimum(last[:, :, :-shift], last[:, :, shift:], out=longer[:, :, :-shift])
        levels.append(longer)
    table = np.concatenate([level.reshape(-1, values.shape[3]) for level in levels])
    power = np.frexp(np.maximum(count, 1))[1].astype(np.int64) - 1
    at = np.arange(values.shape[2])
    start = np.arange(0, count.size, values.shape[2]).reshape(*count.shape[:2], 1) + power * count.size
    result: Floats = table[start + np.maximum(at - count, 0)]
    np.minimum(result, table[start + np.maximum(at - (1 << power), 0)], out=result)
    result[count == 0] = np.inf
    return result


class _Search:
    """Labels from the end of the chain, of several boxes at once."""

    def __init__(self, of: Cheapest, boxes: Sequence[Box]) -> None:
        import numpy as np

        self.of, self.fronts, self.step = of, of.fronts, of.step(boxes[0].fewest)
        self.limit = boxes[0].most * (1 + _SLACK)
        self.short: Floats = np.array([b.short for b in boxes])
        self.room: Floats = np.array([b.long for b in boxes]) - of.rows.fastest[-1]
        self.front: Counts = np.searchsorted(of.shorts, self.short, side="right") - 1
        self.done = np.zeros(len(boxes), dtype=bool)
        end, box = np.full(len(boxes), of.rows.layers), np.arange(len(boxes))
        whole = self.fronts.at(0, self.front, end, -self.room)
        box = box[(whole < self.limit) & (self.room >= 0)]
        self.labels = _Labels(box, end[box], np.zeros(len(box)), np.zeros(len(box)))

    def extend(self, i: int) -> bool:
        """One more stage in front, the i-th from the end; False when no labels are left."""
        import numpy as np

        of, known = self.of, self.labels
        capacity = self.fronts.capacity[i][self.front[known.box], :, known.end]
        label, kind = np.nonzero(capacity)
        n = np.minimum(capacity[label, kind], known.end[label])
        made: list[_Labels] = []
        price = known.price[:0]
        while len(label):
            box, first = known.box[label], known.end[label] - n
            price = known.price[label] + of.prices[kind]
            going = price + self.fronts.cheapest[i][self.front[box], first] < self.limit
            label, kind, n, box, first = (x[going] for x in (label, kind, n, box, first))
            price = price[going]
            beyond, fits, ends = self._judged(i, label, kind, n, box, first)
            fits &= price + self.fronts.at(i, self.front[box], first, beyond - self.room[box]) < self.limit
            self.done[box[fits & ends]] = True
            fits &= (first > 0) & ~self.done[box]
            made.append(_Labels(box[fits], first[fits], beyond[fits], price[fits]))
            more = (n > 1) & ~self.done[box]
            label, kind, n = label[more], kind[more], n[more] - 1
        self.labels = self._merged(made) if made else _Labels(label, label, price, price)
        return bool(len(self.labels.end))

    def _judged(
        self, i: int, label: Counts, kind: Counts, n: Counts, box: Counts, first: Counts
    ) -> tuple[Floats, NDArray[np.bool_], NDArray[np.bool_]]:
        """The way beyond the fastest one of labels with a stage of n layers more; whether its rows hold; whether it can
        be the front stage.
        """
        import numpy as np

        rows, step, room = self.of.rows, self.step, self.room[box] + _SLACK
        end = self.labels.end[label]
        piece = rows.pieces[end, n - 1]
        beyond = self.labels.beyond[label] + rows.beyond[kind, end] - rows.beyond[kind, first]
        if i > 1:
            beyond += rows.sends[kind]
        time, need = step.rows.times(step.held(i))[kind, piece], step.need(i)[kind, piece]
        way = rows.fastest[-1] - rows.fastest[first] + beyond
        fits = beyond <= room
        fits &= self._rows_hold(i, np.maximum(self.short[box], way + rows.fastest[first]), way, time, need)
        front = (first == 0) & fits if i > 1 else np.zeros(len(label), dtype=bool)
        at = np.nonzero(front)[0]
        if len(at):
            update = rows.update[kind[at], piece[at]]
            whole = np.maximum(self.short[box[at]], way[at] + update)
            front[at] = self._rows_hold(i, whole, way[at], time[at], need[at]) & (beyond[at] + update <= room[at])
        return beyond, fits, front

    def _rows_hold(self, i: int, whole: Floats, way: Floats, time: Floats, need: Floats) -> NDArray[np.bool_]:
        """The rows of a stage, for S at least `whole` and W_i at least `way`."""
        m, held = self.step.fewest, self.step.held(i)
        latest = self.of.step_time * (1 + _SLACK)
        holds: NDArray[np.bool_] = whole + need <= latest
        for q in {1, (m - 1) // held} if m > held else ():
            turns = m - 1 - q * held
            holds &= whole + q * way + (turns * time if turns else 0.0) <= latest
        return holds

    def _merged(self, made: Sequence[_Labels]) -> _Labels:
        """Labels of a box and position with about the same way become one, with the least way and price; one that
        costs no less than another with a shorter way is dropped.
        """
        import numpy as np

        box, end = np.concatenate([m.box for m in made]), np.concatenate([m.end for m in made])
        beyond, price = np.concatenate([m.beyond for m in made]), np.concatenate([m.price for m in made])
        kept = ~self.done[box]
        box, end, beyond, price = box[kept], end[kept], beyond[kept], price[kept]
        if not len(box):
            return _Labels(box, end, beyond, price)
        room = np.maximum(self.room[box], 1e-300)
        place = box * (self.of.rows.layers + 1) + end
        key = place * (_BUCKETS + 2) + np.minimum(beyond / room * _BUCKETS, _BUCKETS).astype(np.int64)
        order = np.argsort(key, kind="stable")
        starts = np.concatenate([[0], np.nonzero(np.diff(key[order]))[0] + 1])
        price = np.minimum.reduceat(price[order], starts)
        beyond = np.minimum.reduceat(beyond[order], starts)
        box, end, place = box[order][starts], end[order][starts], place[order][starts]
        new = np.concatenate([[True], np.diff(place) != 0])
        ladder = 4.0 * self.limit * (np.cumsum(new) - 1)
        before = np.minimum.accumulate(price - ladder) + ladder
        kept = new.copy()
        kept[1:] |= price[1:] < before[:-1] - 1e-12
        return _Labels(box[kept], end[kept], beyond[kept], price[kept])

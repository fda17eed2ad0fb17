"""Whether a pipeline within a step time costs no more than it runs: labels from the end of the chain.

A pipeline of P stages, the i-th from the end with k_i micro-batches in flight, takes at least (cost/rows.py; S: the
way of one micro-batch and the first stage's update; W_i: the way through the last i stages and back):

    T >= S + (m - 1) t_i - (k_i - 1) F_i                 the way in, m - k_i + 1 turns at the stage, backwards, way out
    T >= S + q W_i + (m - 1 - q k_i) t_i                 for q = 1 .. (m - 1) // k_i:  q + 1 trips to the end, and turns

`cheaper` looks for such pipelines in boxes of micro-batches and S. From the front, `Fronts` bounds what the layers
before a position cost at the end of so many stages, for several prices of a second of way. From the end, labels
(position, way so far, price) are extended stage by stage with these bounds to prune them; labels of a position with
about the same way become one, with the least of both. No pipeline is cheaper than what comes out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from planner.search.mixed.fronts import Behind, Box, Fronts

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Truths = NDArray[np.bool_]

__all__ = ["cheaper"]

_SLACK = 1e-9
_PARTS = 2
"""Most micro-batches of a box are told apart this finely."""
_BUCKETS = 192
"""Ways between the fastest and the longest are told apart this finely."""


def cheaper(behind: Behind, boxes: Sequence[Box], most_labels: int, num_rates: int) -> list[bool | None]:
    """For each box whether a relaxed pipeline of two or more stages costs no more than it runs; None where that takes
    more labels of one stage than asked for.

    num_rates: prices of a second of way at which fronts are bounded, the more the closer.
    """
    search = _Search(behind, boxes, num_rates)
    given_up = search.run(most_labels)
    return [True if done else (None if up else False) for done, up in zip(search.done, given_up, strict=True)]


def cheapest_stages(behind: Behind, box: Box, most_labels: int, num_rates: int) -> tuple[list[int], float] | None:
    """Kinds of the stages of a relaxed pipeline of the box that costs no more than it runs, and how many micro-batches
    that is; None where none was found.
    """
    search = _Search(behind, [box], num_rates, history=[])
    search.run(most_labels)
    return search.traced() if search.done[0] else None


@dataclass
class _Labels:
    """Stages behind a position: box, position, way beyond the fastest one, price, and the most micro-batches that the
    stages have time for.
    """

    box: Counts
    end: Counts
    beyond: Floats
    price: Floats
    most: Floats

    def take(self, at: Counts) -> _Labels:
        box, end = self.box.take(at), self.end.take(at)
        return _Labels(box, end, self.beyond.take(at), self.price.take(at), self.most.take(at))


class _Rows(NamedTuple):
    """What a piece asks for in a step as a certain stage, by number of micro-batches, kind and piece: in the first row
    beside S; in the second one beside ways, for one trip and for as many as there can be: `trips`, perhaps 0.
    turn: what a micro-batch more asks for at least.
    """

    need: Floats
    one: Floats
    many: Floats
    turn: Floats
    trips: Counts
    num_pieces: int


class _Search:
    """Labels of several boxes at once."""

    def __init__(
        self, behind: Behind, boxes: Sequence[Box], num_rates: int, history: list[_Labels] | None = None
    ) -> None:
        """history: where labels of each number of stages are kept, to trace them."""
        import numpy as np

        self.behind, self.rows, self.history = behind, behind.rows, history
        self.ended: _Labels | None = None
        self.fronts = fronts = Fronts(behind, boxes, num_rates)
        self.short: Floats = np.array([b.short for b in boxes])
        self.limit, self.room = fronts.limit, fronts.room
        self.done: Truths = np.zeros(len(boxes), dtype=np.bool_)
        box, end = np.arange(len(boxes)), np.full(len(boxes), self.rows.layers)
        box = box[fronts.paid(0, fronts.place(box, end), -self.room, self.limit) & (self.room >= 0)]
        self.fewest: Floats = np.array([float(b.fewest) for b in boxes])
        self.labels = _Labels(box, end[box], np.zeros(len(box)), np.zeros(len(box)), self.limit[box])

    def run(self, most_labels: int) -> Truths:
        """Extend until no labels are left; says which boxes took too many."""
        import numpy as np

        given_up = np.zeros_like(self.done)
        for i in range(1, self.fronts.stages + 1):
            if not len(self.labels.end):
                break
            if self.history is not None and not self.done.any():
                self.history.append(self.labels)
            self._extend(i)
            many = np.bincount(self.labels.box, minlength=len(self.done)) > most_labels
            if many.any():
                given_up |= many
                self.labels = self.labels.take(np.nonzero(~many[self.labels.box])[0])
        return given_up

    def _extend(self, i: int) -> None:
        """One more stage in front, the i-th from the end."""
        import numpy as np

        known, fronts = self.labels, self.fronts
        spent, left = known.beyond - self.room[known.box], known.most - known.price
        label, kind, n = fronts.stages_before(i, known.box, known.end, spent, left)
        n = np.minimum(n, known.end[label])
        least, rows, made = fronts.cheapest(i), self._stage_rows(i), [known.take(label[:0].astype(np.int64))]
        while len(label):
            box, first = known.box.take(label), known.end.take(label) - n
            price = known.price.take(label) + self.behind.prices.take(kind)
            going = np.nonzero(price + least.take(fronts.place(box, first)) < known.most.take(label))[0]
            label, kind, n = label.take(going), kind.take(going), n.take(going)
            way, most = known.beyond.take(label), known.most.take(label)
            longer = _Labels(box.take(going), first.take(going), way, price.take(going), most)
            made.append(self._kept(i, rows, longer, known.end.take(label), kind, n))
            more = np.nonzero((n > 1) & ~self.done.take(longer.box))[0]
            label, kind, n = label.take(more), kind.take(more), n.take(more) - 1
        self.labels = self._merged(made)

    def _stage_rows(self, i: int) -> _Rows:
        """Of the i-th stage from the end."""
        import numpy as np

        need, one, many, turn, trips = [], [], [], [], []
        for step in self.fronts.steps:
            m, held = step.fewest, step.held(i)
            time, q = self.rows.times(held), (m - 1) // held if m > held else 0
            need.append(step.need(i))
            one.append((m - 1 - held) * time if q and m - 1 > held else np.zeros_like(time))
            many.append((m - 1 - q * held) * time if q and m - 1 > q * held else np.zeros_like(time))
            with np.errstate(invalid="ignore"):
                turn.append(time if held < m else time - self.rows.forward)
            trips.append(q)
        flat = [np.array(x).reshape(-1) for x in (need, one, many, turn)]
        return _Rows(flat[0], flat[1], flat[2], flat[3], np.array(trips), need[0].size)

    def _kept(self, i: int, rows: _Rows, labels: _Labels, end: Counts, kind: Counts, n: Counts) -> _Labels:
        """Labels with a stage of n layers of a kind more, before `end`: those whose rows hold and that can be paid for
        with what lies in front of them. `labels` begin at the new stage, their way is still without it.
        """
        import numpy as np

        of, fronts = self.rows, self.fronts
        box, first = labels.box, labels.end
        at_kind = kind * (of.layers + 1)
        beyond = labels.beyond + of.beyond.take(at_kind + end) - of.beyond.take(at_kind + first)
        if i > 1:
            beyond += of.sends.take(kind)
        place = kind * of.update.shape[1] + of.pieces.take(end * of.layers + n - 1)
        most = np.minimum(labels.most, self._most(rows, box, first, beyond, place, 0.0))
        fits = np.nonzero(most >= np.maximum(labels.price, self.fewest.take(box)))[0]
        labels, place = _Labels(box, first, beyond, labels.price, most).take(fits), place.take(fits)
        left, spent = labels.most - labels.price, labels.beyond - self.room.take(labels.box)
        paid = np.nonzero(fronts.paid(i, fronts.place(labels.box, labels.end), spent, left))[0]
        labels, place = labels.take(paid), place.take(paid)
        if i > 1:
            whole = np.nonzero(labels.end == 0)[0]
            last, place = labels.take(whole), place.take(whole)
            most = self._most(rows, last.box, last.end, last.beyond, place, of.update.take(place))
            ended = np.nonzero(most >= np.maximum(last.price, self.fewest.take(last.box)))[0]
            self.done[last.box.take(ended)] = True
            if self.history is not None and len(ended):
                self.ended = last.take(ended)
        return labels.take(np.nonzero((labels.end > 0) & ~self.done.take(labels.box))[0])

    def _most(
        self, rows: _Rows, box: Counts, first: Counts, beyond: Floats, place: Counts, update: Floats | float
    ) -> Floats:
        """The most micro-batches for which the rows of a stage from `first` on hold, where it is the front one with its
        update; fewer than the box's where it does not fit.
        """
        import numpy as np

        fastest, latest = self.rows.fastest, self.behind.step_time * (1 + _SLACK)
        way = fastest[-1] - fastest.take(first) + beyond
        spare = latest - np.maximum(self.short.take(box), fastest[-1] + beyond + update)
        step = self.fronts.step_of.take(box)
        place = step * rows.num_pieces + place
        left = spare - rows.need.take(place)
        for turns, trips in ((rows.one, np.minimum(rows.trips, 1)), (rows.many, rows.trips)):
            left = np.minimum(left, spare - trips.take(step) * way - turns.take(place))
        left[beyond + update > self.room.take(box) + _SLACK] = -np.inf
        with np.errstate(invalid="ignore", divide="ignore"):
            more = np.floor(left / rows.turn.take(place) + _SLACK)
        found: Floats = np.where(left >= 0, self.fewest.take(box) + more, -np.inf) * (1 + _SLACK)
        return found

    def traced(self) -> tuple[list[int], float]:
        """Kinds of a pipeline that ended, and its micro-batches: found again by their prices, which add up."""
        import numpy as np

        assert self.history is not None
        assert self.ended is not None
        best = int((self.ended.price - self.ended.most).argmin())
        price, position, kinds = float(self.ended.price[best]), 0, list[int]()
        for labels in reversed(self.history):
            left = np.abs(labels.price[:, None] + self.behind.prices - price)
            left[labels.end <= position] = np.inf
            label, kind = np.unravel_index(int(left.argmin()), left.shape)
            price, position = float(labels.price[label]), int(labels.end[label])
            kinds.append(int(kind))
        return kinds, float(self.ended.most[best])

    def _merged(self, made: Sequence[_Labels]) -> _Labels:
        """Labels of a box and position with about the same way become one, with the least way and price; one that
        costs no less than another with a shorter way is dropped.
        """
        import numpy as np

        known = [m.take(np.nonzero(~self.done[m.box])[0]) for m in made]
        box, end = np.concatenate([m.box for m in known]), np.concatenate([m.end for m in known])
        beyond, price = np.concatenate([m.beyond for m in known]), np.concatenate([m.price for m in known])
        most = np.concatenate([m.most for m in known])
        if not len(box):
            return _Labels(box, end, beyond, price, most)
        room = np.maximum(self.room.take(box), 1e-300)
        low, high = self.fewest.take(box), self.limit.take(box)
        part = np.minimum((most - low) / (high - low + 1.0) * _PARTS, _PARTS - 1).astype(np.int64)
        place = (box * (self.rows.layers + 1) + end) * _PARTS + part
        key = place * (_BUCKETS + 2) + np.minimum(beyond / room * _BUCKETS, _BUCKETS).astype(np.int64)
        order = np.argsort(key)
        starts = np.concatenate([[0], np.nonzero(np.diff(key.take(order)))[0] + 1])
        price = np.minimum.reduceat(price.take(order), starts)
        beyond = np.minimum.reduceat(beyond.take(order), starts)
        most = np.maximum.reduceat(most.take(order), starts)
        first = order.take(starts)
        box, end, place = box.take(first), end.take(first), place.take(first)
        new = np.concatenate([[True], np.diff(place) != 0])
        ladder = 4.0 * float(self.limit.max()) * (np.cumsum(new) - 1)
        before = np.minimum.accumulate(price - ladder) + ladder
        kept = new.copy()
        kept[1:] |= price[1:] < before[:-1] - 1e-12
        return _Labels(box, end, beyond, price, most).take(np.nonzero(kept)[0])

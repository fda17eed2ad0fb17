"""What stages cost at least, whatever they are: behind a position (`Behind`), and in front of it (`Fronts`).

Both are dynamic programmes over positions, a stage at a time, at several prices of a second of way: `rates`, in
micro-batches a second. Costs are in micro-batches. R rates, B boxes, K kinds, L layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from planner.search.mixed.rows import PieceRows, StepRows, alike

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Counts = NDArray[np.int64]
    Truths = NDArray[np.bool_]

__all__ = ["Behind", "Box", "Fronts"]

_SLACK = 1e-9
_RATES = (0.0, 0.3, 0.1, 0.8)
"""Rates, times the micro-batches over the fastest way."""

_KEPT_STAGES, _KEPT_COSTS = 32, 1 << 18
"""Tables of so many last stages are kept, unless they are larger than this; others are made again."""


class Box(NamedTuple):
    """Pipelines with fewest..most micro-batches and S, the way of one of them and the first update, from short to long
    seconds.
    """

    fewest: int
    most: int
    short: float
    long: float


class Behind:
    """What i stages behind a position cost at least, for pipelines of a family with `fewest` micro-batches or more that
    take a step time at most.

    prices: (K,) micro-batches for a slot of each kind.  rates: (R,); the first one is 0.
    """

    def __init__(self, rows: PieceRows, step_time: float, prices: Floats, fewest: int) -> None:
        import numpy as np

        self.rows, self.step_time, self.prices = rows, step_time, prices
        self.rates: Floats = np.array(_RATES) * fewest / max(float(rows.fastest[-1]), 1e-300)
        self.beyond: Floats = self.rates[:, None, None] * rows.beyond
        self._steps: dict[int, StepRows] = {}
        self._step = self.step(fewest)
        self._spare: Floats = np.array([step_time - float(rows.fastest[-1])])
        first = np.full((len(self.rates), rows.layers + 1), np.inf)
        first[:, -1] = 0.0
        self._least: list[Floats] = [first]
        self._longest = range(0), np.zeros(0, dtype=np.int64)

    def step(self, fewest: int) -> StepRows:
        """The rows of pipelines with at least so many micro-batches, made once."""
        if fewest not in self._steps:
            self._steps[fewest] = StepRows(self.rows, self.step_time, fewest)
        return self._steps[fewest]

    def within(self, limit: float) -> list[Floats]:
        """(R, L+1) for i = 0, 1, ..: all that cost less, and perhaps more."""
        while len(self._least) <= self.rows.layers and float(self._least[-1][0].min()) < limit:
            self._least.append(self._one_more(len(self._least)))
        return self._least

    def _one_more(self, i: int) -> Floats:
        import numpy as np

        if alike(i) != self._longest[0]:
            self._longest = alike(i), self._step.capacity(i, self._spare)[0].max(axis=1)
        longest = self._longest[1]
        kinds = np.nonzero(longest)[0]
        if not len(kinds):
            return np.full_like(self._least[0], np.inf)
        beyond = self.beyond[:, kinds]
        ahead = (self._least[-1][:, None] + beyond)[:, None, :, ::-1]
        count = np.minimum(longest[kinds, None], np.arange(self.rows.layers + 1))[None]
        inside = _least_before(ahead, count)[:, 0, :, ::-1] - beyond
        found: Floats = (inside + self.once(kinds, i)[:, :, None]).min(axis=1)
        return found

    def once(self, kinds: Counts, i: int) -> Floats:
        """(R, kinds) what a stage, the i-th from the end, costs whatever it holds."""
        price, sends = self.prices[kinds], self.rows.sends[kinds]
        found: Floats = price + self.rates[:, None] * (sends if i > 1 else 0 * sends)
        return found


class _Stage(NamedTuple):
    """The i-th stage from the end, of kinds `kinds`, before positions from `low` on. costs: (R, B, K, n) of it and what
    lies in front of it.  holds: (B, K, n) layers.
    """

    kinds: Counts
    low: int
    costs: Floats
    holds: Counts


class Fronts:
    """What the layers before a position cost at least when i stages lie behind it, in each of B boxes.

    least[i]: (R, B, L+1).  After it, a way of w seconds beyond the fastest one costs  least + rate * (w - room)  at
    least, room what the box leaves for it.
    """

    def __init__(self, behind: Behind, boxes: Sequence[Box], num_rates: int) -> None:
        import numpy as np

        self.rows, self.behind = behind.rows, behind
        self.rates: Floats = behind.rates[:num_rates]
        self._beyond: Floats = behind.beyond[:num_rates]
        self.limit: Floats = np.array([b.most for b in boxes]) * (1 + _SLACK)
        self._spare: Floats = behind.step_time - np.array([b.short for b in boxes])
        self.room: Floats = np.array([b.long for b in boxes]) - float(self.rows.fastest[-1])
        self.steps = [behind.step(m) for m in sorted({b.fewest for b in boxes})]
        order = {step.fewest: n for n, step in enumerate(self.steps)}
        self.step_of: Counts = np.array([order[b.fewest] for b in boxes])
        self._known = np.stack(behind.within(float(self.limit.max())))[:, :num_rates]
        self._near = self._affordable()
        self.stages = int(np.nonzero(self._near.any(axis=(1, 2)))[0].max(initial=0))
        nothing = np.full((num_rates, len(boxes), self.rows.layers + 1), np.inf)
        nothing[:, :, 0] = np.where(self._near[self.stages, :, 0], 0.0, np.inf)
        self.least: list[Floats] = [nothing]
        self._stages: dict[int, _Stage | None] = {}
        self._holds = range(0), np.zeros((0, 0, 0), dtype=np.int64)
        for i in range(self.stages, 0, -1):
            self.least.append(self._one_more(i))
        self.least.reverse()

    def _affordable(self) -> Truths:
        """(I+1, B, L+1) by the number of stages: where the front one of them can begin.

        A position is out of reach when the cheapest stages behind it and layers in front of it cost too much, at one of
        the rates for the way W behind it:  S + q W <= T  for q trips to the end, and S is W and the way in front.
        """
        import numpy as np

        rows, at, prices = self.rows, np.arange(self.rows.layers + 1), self.behind.prices
        near = np.zeros((len(self._known), len(self.limit), rows.layers + 1), dtype=np.bool_)
        for n, step in enumerate(self.steps):
            boxes = np.nonzero(self.step_of == n)[0]
            longest = step.loosest(float(self._spare[boxes].max()))
            each = min((float(p / n) for p, n in zip(prices, longest, strict=True) if n), default=0.0)
            trips = np.array([(step.fewest - 1) // step.held(max(i, 1)) for i in range(len(self._known))])
            room = (step.step_time - rows.fastest) / (1 + trips[:, None]) * (1 + _SLACK)
            room -= rows.fastest[-1] - rows.fastest
            cost = (self._known - self.rates[:, None] * room[:, None]).max(axis=1) + at * each * (1 - _SLACK)
            near[:, boxes] = (cost[:, None] < self.limit[boxes, None]) & (room >= 0)[:, None]
        near[1:] &= np.logical_and.accumulate(near[1:].any(axis=2))[:, :, None]
        near[0] = False
        near[0, :, -1] = True
        return near

    def _stage(self, i: int, least: Floats) -> _Stage | None:
        """The i-th stage from the end, in front of it what is given; None where there is none."""
        import numpy as np

        reached = np.nonzero(np.isfinite(least[0]).any(axis=0))[0]
        if not len(reached):
            return None
        low, end = int(reached[0]), int(np.nonzero(self._near[i - 1].any(axis=0))[0].max(initial=0)) + 1
        holds = self._capacity(i)[:, :, low:end]
        kinds = np.nonzero(holds.any(axis=(0, 2)))[0]
        if not len(kinds):
            return None
        beyond = self._beyond[:, kinds, low:end]
        holds = np.minimum(holds[:, kinds], np.arange(end - low))
        costs = _least_before(least[:, :, None, low:end] - beyond[:, None], holds)
        costs += (beyond + self.behind.once(kinds, i)[: len(self.rates), :, None])[:, None]
        return _Stage(kinds, low, costs, holds)

    def _capacity(self, i: int) -> Counts:
        """(B, K, L+1) layers that the i-th stage from the end can hold."""
        import numpy as np

        stages = alike(i)
        if stages != self._holds[0]:
            each = [s.capacity(i, self._spare[self.step_of == n]) for n, s in enumerate(self.steps)]
            holds = np.empty((len(self.limit), *each[0].shape[1:]), dtype=np.int64)
            for n, some in enumerate(each):
                holds[self.step_of == n] = some
            self._holds = stages, holds
        return self._holds[1]

    def _one_more(self, i: int) -> Floats:
        """What the layers before a position cost, the first stage before it the i-th from the end."""
        import numpy as np

        found = np.full_like(self.least[-1], np.inf)
        stage, near = self._stage(i, self.least[-1]), self._near[i - 1]
        if i <= _KEPT_STAGES and (stage is None or stage.costs.size <= _KEPT_COSTS):
            self._stages[i] = stage
        if stage is not None:
            at = slice(stage.low, stage.low + stage.costs.shape[3])
            least = stage.costs.min(axis=2)
            cost = (least + self._known[i - 1][:, None, at] - self.rates[:, None, None] * self.room[:, None]).max(
                axis=0
            )
            found[:, :, at] = np.where((cost < self.limit[:, None]) & near[:, at], least, np.inf)
        if i > 1:
            found[:, :, 0] = np.where(near[:, 0], 0.0, np.inf)
        return found

    def stages_before(
        self, i: int, box: Counts, position: Counts, spent: Floats, left: Floats
    ) -> tuple[Counts, Counts, Counts]:
        """(label, kind, layers): what the i-th stage from the end can be before each position, and how many layers it
        can hold, where it and what lies in front of it may cost less than what is left.

        spent: way - room.
        """
        import numpy as np

        stage = self._stages[i] if i in self._stages else self._stage(i, self.least[i])
        if stage is None:
            return box[:0], box[:0], box[:0]
        kinds, low, inside, holds = stage
        width = inside.shape[3]
        label = np.nonzero((position >= low) & (position < low + width))[0]
        place = (box[label, None] * len(kinds) + np.arange(len(kinds))) * width + (position[label, None] - low)
        left, spent = left[label, None], spent[label, None]
        paid: Truths = inside[0].take(place) < left
        for rate, costs in zip(self.rates[1:], inside[1:], strict=True):
            paid &= costs.take(place) < left - rate * spent
        row, kind = np.nonzero(paid)
        return label[row], kinds[kind], holds.take(place[row, kind])

    def cheapest(self, i: int) -> Floats:
        """(B * (L+1),) the least price of what lies before each position, or before any behind it.

        Fewer layers can cost more: a heavy one may be impossible two stages from the end and possible three from it.
        """
        import numpy as np

        falling: Floats = np.minimum.accumulate(self.least[i][0, :, ::-1], axis=1)[:, ::-1]
        return falling.reshape(-1)

    def place(self, box: Counts, position: Counts) -> Counts:
        """Where `paid` and `cheapest` have a position of a box."""
        return box * (self.rows.layers + 1) + position

    def paid(self, i: int, place: Counts, spent: Floats, left: Floats) -> Truths:
        """Whether what lies before each position may cost less than what is left; spent: way - room."""
        least = self.least[i]
        found: Truths = least[0].take(place) < left
        for rate, costs in zip(self.rates[1:], least[1:], strict=True):
            found &= costs.take(place) < left - rate * spent
        return found


def _least_before(values: Floats, count: Counts) -> Floats:
    """At p the least of values[p-count .. p-1]; inf where count is 0. values: (R, B, K, L+1), count: (B, K, L+1)."""
    import numpy as np

    longest = max(1, int(count.max(initial=0)))
    table = np.empty((len(values), longest.bit_length(), *values.shape[1:]))
    table[:, 0] = values
    for n in range(1, table.shape[1]):
        shift, last, longer = 2 ** (n - 1), table[:, n - 1], table[:, n]
        np.minimum(last[..., :-shift], last[..., shift:], out=longer[..., :-shift])
        longer[..., -shift:] = last[..., -shift:]
    table = table.reshape(len(values), -1)
    power = np.frexp(np.maximum(count, 1))[1].astype(np.int64) - 1
    at = np.arange(values.shape[3])
    start = np.arange(0, count.size, values.shape[3]).reshape(*count.shape[:2], 1) + power * count.size
    result: Floats = table.take(start + np.maximum(at - count, 0), axis=1)
    np.minimum(result, table.take(start + np.maximum(at - (1 << power), 0), axis=1), out=result)
    np.copyto(result, np.inf, where=count == 0)
    return result

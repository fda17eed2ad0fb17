"""From the tables of `sieve.py` to shapes: the one with the shortest way, and all that may pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.search.sieve import ShapeTable
    from planner.search.tree import Order

    Floats = NDArray[np.float64]

__all__ = ["all_shapes", "shortest_shape"]


def shortest_shape(table: ShapeTable) -> tuple[Order, tuple[int, ...]]:
    """The shape with the shortest way of one micro-batch, and where its stages end."""
    return next(_Walk(table, only_shortest=True).run())


def all_shapes(table: ShapeTable) -> Iterator[Order]:
    """Every shape that the tables do not rule out."""
    for order, _ in _Walk(table, only_shortest=False).run():
        yield order


_Step = tuple[int, "Floats", "Floats"]
"""A stage on the way: its choice, what is ahead of each state at its start, what lies behind each at its end."""


class _Walk:
    """From the front to the end, a block of stages at a time. `ahead[k, a]`: least way of the stages in front of state
    (k, a); every state also has a least way behind it, and both together must not be too long.
    """

    def __init__(self, table: ShapeTable, *, only_shortest: bool) -> None:
        self.table, self.sieve = table, table.sieve
        self.longest = table.step_time - self.sieve.least_update
        whole = table.whole()
        if only_shortest:
            self.longest = min(float(ways.min()) for _, ways in whole) * (1 + 1e-12)
        self.whole = sorted(whole, key=lambda item: (float(item[1].min()), item[0]))
        self.only_shortest = only_shortest
        self._stages: dict[tuple[int, int], tuple[Floats, list[Floats]]] = {}

    def run(self) -> Iterator[tuple[Order, tuple[int, ...]]]:
        import numpy as np

        for (mask, c), ways in self.whole:
            ahead = np.full((self.sieve.most + 1, self.sieve.layers + 1), np.inf)
            ahead[ways <= self.longest, 0] = 0.0
            yield from self._blocks(mask, c, ahead, (), [])

    def _blocks(
        self, mask: int, c: int, ahead: Floats, order: Order, steps: list[_Step]
    ) -> Iterator[tuple[Order, tuple[int, ...]]]:
        """Continue with a block of choice c. steps: every stage so far."""
        import numpy as np

        choice = self.sieve.choices[c]
        rest = mask ^ self.sieve.bit[choice.group]
        entering, stages = self._stages_of(rest, c)
        inner = self.table.crossing(c, choice.group)[0]
        for j in range(choice.least, len(stages) + 1):
            now = np.where(ahead + stages[j - 1] <= self.longest, ahead, np.inf)
            if not np.isfinite(now).any():
                continue
            walked = list(steps)
            for i in range(j - 1, -1, -1):
                lies = stages[i - 1] + inner if i else entering
                walked.append((c, now, lies))
                now = self._advance(now, c, lies)
                if i:
                    now = now + inner
            longer = (*order, (choice.group, choice.mode, j))
            if not rest:
                if np.isfinite(now[0, -1]):
                    yield longer, self._ends(walked) if self.only_shortest else ()
                continue
            for d, other in enumerate(self.sieve.choices):
                if (rest, d) in self.table.behind:
                    crossed = now + self.table.crossing(c, other.group)[0]
                    yield from self._blocks(rest, d, crossed, longer, walked)

    def _stages_of(self, rest: int, c: int) -> tuple[Floats, list[Floats]]:
        """What lies behind a block of choice c and the groups in `rest`, and behind its first, second, ... stage."""
        if (rest, c) not in self._stages:
            entering, size = self.table.entering(rest, c), (self.sieve.most, self.sieve.layers)
            assert entering is not None, "a block was put in front of it"
            stages = [values.within(*size) for values in self.table.stages(rest, c, entering)]
            self._stages[rest, c] = entering.within(*size), stages
        return self._stages[rest, c]

    def _advance(self, ahead: Floats, c: int, lies: Floats) -> Floats:
        """Through one stage, behind which `lies` what lies there: what is ahead of the boundary behind it."""
        import numpy as np

        of, layers = self.table.limits[c], self.sieve.layers
        start = np.concatenate([ahead[1:], ahead[-1:]])  # the last row holds what has more stages too
        result = np.full_like(ahead, np.inf)
        for n in range(1, of.time.shape[0] + 1):
            a = slice(0, layers + 1 - n)
            through = start[:, a] + of.time[n - 1, :, a]
            through[(lies[:, n:] > of.limit[n - 1, :, a]) | (through + lies[:, n:] > self.longest)] = np.inf
            np.minimum(result[:, n:], through, out=result[:, n:])
        return result

    def _ends(self, walked: list[_Step]) -> tuple[int, ...]:
        """Stage ends along a shortest way, from the end back to the front."""
        import numpy as np

        ends, a, k = [], self.sieve.layers, 0
        for c, ahead, lies in reversed(walked):
            of, row = self.table.limits[c], min(k + 1, len(ahead) - 1)
            starts = np.arange(max(0, a - of.time.shape[0]), a)
            way = ahead[row, starts] + of.time[a - starts - 1, k, starts]
            way[lies[k, a] > of.limit[a - starts - 1, k, starts]] = np.inf
            ends.append(a)
            a, k = int(starts[way.argmin()]), row
        return tuple(reversed(ends))

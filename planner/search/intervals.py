"""Contiguous pieces of the layer chain: what a stage can hold."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import Chain

__all__ = ["Intervals", "Run"]


class Run:
    """Consecutive layers of one kind: `first` is the chain position of the first, `count` how many."""

    __slots__ = ("count", "first", "kind")

    def __init__(self, kind: int, first: int, count: int) -> None:
        self.kind, self.first, self.count = kind, first, count


def _digits(base: int, num_kinds: int) -> NDArray[np.int64] | None:
    """Powers of `base`, one a kind; None when the number would not fit 62 bits."""
    import numpy as np

    if num_kinds * base.bit_length() > 62:
        return None
    return np.array([base**k for k in range(num_kinds)], dtype=np.int64)


class Intervals:
    """All contiguous, non-empty pieces [a, b) of a chain, grouped by how many layers of each kind they hold.

    counts: (U, K) layers per kind of each distinct piece.  index: (L+1, L+1), `index[a, b]` is the piece's row in
    counts; -1 when a >= b.
    A chain of 96 equal layers between an embedding and a head has some 400 distinct pieces, not 4,800.
    """

    def __init__(self, chain: Chain) -> None:
        import numpy as np

        self.chain = chain
        self.num_layers = chain.num_layers
        num_kinds = len(chain.kind_names)
        prefix = np.zeros((self.num_layers + 1, num_kinds), dtype=np.int64)
        for i, kind in enumerate(chain.kinds):
            prefix[i + 1] = prefix[i]
            prefix[i + 1, kind] += 1
        self.prefix = prefix
        first, last = np.triu_indices(self.num_layers + 1, k=1)
        # equal counts have equal marks; unequal ones differ with certainty: a digit a kind, in base L + 1
        held = prefix[last] - prefix[first]
        digits, marks = _digits(self.num_layers + 1, num_kinds), held
        if digits is not None:
            marks = (held * digits).sum(axis=1)
        _, sample, inverse = np.unique(marks, axis=0, return_index=True, return_inverse=True)
        self.counts: NDArray[np.int64] = held[sample]
        self.index: NDArray[np.int64] = np.full((self.num_layers + 1, self.num_layers + 1), -1, dtype=np.int64)
        self.index[first, last] = inverse.reshape(-1)

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Maximal runs of equal layers, in order."""
        runs: list[Run] = []
        for i, kind in enumerate(self.chain.kinds):
            if runs and runs[-1].kind == kind:
                runs[-1].count += 1
            else:
                runs.append(Run(kind, i, 1))
        return tuple(runs)

    @cached_property
    def cut_kinds(self) -> list[int]:
        """Kinds of the layers that a cut between stages can come after: all but the last layer's own position."""
        return sorted(set(self.chain.kinds[:-1]))

    @cached_property
    def band(self) -> NDArray[np.int64]:
        """(L, L+1): `band[n-1, b]` is the piece of n layers that ends at b; U (no piece) where b < n. Gather from
        arrays that end with an infinite entry.
        """
        import numpy as np

        band = np.full((self.num_layers, self.num_layers + 1), len(self.counts), dtype=np.int64)
        for n in range(1, self.num_layers + 1):
            ends = np.arange(n, self.num_layers + 1)
            band[n - 1, n:] = self.index[ends - n, ends]
        return band

    @cached_property
    def pieces_by_start(self) -> NDArray[np.int64]:
        """(L, L): `pieces_by_start[a, n-1]` is the piece of n layers that starts at a; U (no piece) beyond the end."""
        import numpy as np

        pieces = np.full((self.num_layers, self.num_layers), len(self.counts), dtype=np.int64)
        for n in range(1, self.num_layers + 1):
            starts = np.arange(self.num_layers + 1 - n)
            pieces[starts, n - 1] = self.index[starts, starts + n]
        return pieces

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """(L, L+1): where the piece of `band[n-1, b]` starts, b - n; 0 where there is none."""
        import numpy as np

        ends, layers = np.arange(self.num_layers + 1)[None, :], np.arange(1, self.num_layers + 1)[:, None]
        starts: NDArray[np.int64] = np.maximum(ends - layers, 0)
        return starts

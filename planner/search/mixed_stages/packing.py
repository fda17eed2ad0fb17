"""Replicas in nodes: what each chip pool can hold, as linear rows for bounds and as an exact packing for plans."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from planner.search.mixed_stages.tables import ChipPool, ReplicaKind

if TYPE_CHECKING:
    from planner.search.mixed_stages.tables import Floats, Ints

__all__ = ["Packing", "pack_nodes"]


class Packing:
    """The pools' room for replicas.

    rows: (R, K) chips that a replica of kind k takes in row r, caps: (R,).  A row belongs to a chip and a degree d: all
    replicas of that chip with a degree of at least d, against the chips that such replicas can use in the nodes:

        sum_{k on the chip, degree_k >= d} degree_k * count_k <= sum over nodes of the most that degrees >= d fill of it

    The rows are necessary. They are sufficient too where the degrees of a chip divide one another (largest first,
    nothing is wasted but the rests that the caps leave out); the other chips' kinds are listed in `loose`.
    uses: (K, D) what dominance compares: the rows of the first, the counts of the loose kinds.
    """

    def __init__(self, chips: Sequence[ChipPool], kinds: Sequence[ReplicaKind]) -> None:
        import numpy as np

        self.chips, self.kinds = tuple(chips), tuple(kinds)
        rows: list[list[float]] = []
        caps: list[float] = []
        owners: list[int] = []
        self.loose: list[int] = []
        for c, pool in enumerate(self.chips):
            degrees = sorted({kind.degree for kind in self.kinds if kind.chip == c})
            cap_before = -1.0
            for d in degrees:
                cap = float(sum(_most_filled(size, [t for t in degrees if t >= d]) for size in pool.node_sizes))
                if cap != cap_before or d == degrees[0]:
                    rows.append([float(k.degree) * (k.chip == c and k.degree >= d) for k in self.kinds])
                    caps.append(cap)
                    owners.append(c)
                cap_before = cap
            if any(large % small for small, large in pairwise(degrees)):
                self.loose += [i for i, kind in enumerate(self.kinds) if kind.chip == c]
        self.rows: Floats = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.kinds))
        self.caps: Floats = np.array(caps, dtype=np.float64)
        tight = [r for r, c in enumerate(owners) if c not in {self.kinds[i].chip for i in self.loose}]
        counts = np.eye(len(self.kinds))[self.loose]
        self.uses: Floats = np.vstack(
            [self.rows[tight], counts, self.rows[[r for r in range(len(rows)) if r not in tight]]]
        ).T
        self.use_caps: Floats = np.concatenate(
            [
                self.caps[tight],
                np.full(len(self.loose), np.inf),
                self.caps[[r for r in range(len(rows)) if r not in tight]],
            ]
        )

    def most(self, kind: int) -> int:
        """Replicas of this kind that the empty pool holds."""
        k = self.kinds[kind]
        return sum(size // k.degree for size in self.chips[k.chip].node_sizes)

    def assign(self, counts: Ints) -> list[list[int]] | None:
        """Nodes of every replica, for each kind; None when the pools cannot hold them. counts: (K,)."""
        nodes: list[list[int]] = [[] for _ in self.kinds]
        for c, pool in enumerate(self.chips):
            mine = [i for i, kind in enumerate(self.kinds) if kind.chip == c and counts[i]]
            placed = pack_nodes(pool.node_sizes, [(self.kinds[i].degree, int(counts[i])) for i in mine])
            if placed is None:
                return None
            for i, where in zip(mine, placed, strict=True):
                nodes[i] = where
        return nodes


def _most_filled(size: int, degrees: Sequence[int]) -> int:
    """The most chips of a node of `size` that whole replicas of these degrees can take."""
    reachable = {0}
    for total in range(1, size + 1):
        if any(total - d in reachable for d in degrees):
            reachable.add(total)
    return max(reachable)


def pack_nodes(sizes: Sequence[int], wanted: Sequence[tuple[int, int]]) -> list[list[int]] | None:
    """Nodes for replicas: `wanted` lists (degree, count); the answer lists the node of each replica in that order.

    Largest degrees first, into the fullest node that has room; where degrees do not divide one another a search over
    the nodes' contents follows, which is exact.
    """
    order = sorted(range(len(wanted)), key=lambda i: -wanted[i][0])
    groups = [(wanted[i][0], wanted[i][1]) for i in order]
    placed = _first_fit(list(sizes), groups)
    chain = all(large % small == 0 for (large, _), (small, _) in pairwise(groups))
    if placed is None and not chain:
        placed = _search(tuple(sizes), tuple(groups))
    if placed is None:
        return None
    answer: list[list[int]] = [[] for _ in wanted]
    for i, where in zip(order, placed, strict=True):
        answer[i] = where
    return answer


def _first_fit(room: list[int], groups: Sequence[tuple[int, int]]) -> list[list[int]] | None:
    placed: list[list[int]] = []
    for degree, count in groups:
        where: list[int] = []
        for _ in range(count):
            fits = [node for node, free in enumerate(room) if free >= degree]
            if not fits:
                return None
            node = min(fits, key=lambda n: (room[n] % degree, room[n], n))
            room[node] -= degree
            where.append(node)
        placed.append(where)
    return placed


def _search(sizes: tuple[int, ...], groups: tuple[tuple[int, int], ...]) -> list[list[int]] | None:
    """Node after node, every maximal content; what is left is remembered when it cannot be packed."""
    dead: set[tuple[int, tuple[int, ...]]] = set()
    contents: list[tuple[int, ...]] = []

    def fill(node: int, left: tuple[int, ...]) -> bool:
        if not any(left):
            return True
        if node == len(sizes) or (node, left) in dead:
            return False
        if sum(d * n for (d, _), n in zip(groups, left, strict=True)) <= sum(sizes[node:]):
            for content in _contents(sizes[node], [d for d, _ in groups], left):
                contents.append(content)
                if fill(node + 1, tuple(n - c for n, c in zip(left, content, strict=True))):
                    return True
                contents.pop()
        dead.add((node, left))
        return False

    if not fill(0, tuple(count for _, count in groups)):
        return None
    return [[node for node, content in enumerate(contents) for _ in range(content[g])] for g in range(len(groups))]


def _contents(size: int, degrees: Sequence[int], left: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every content of a node to which nothing more can be added."""
    found: list[tuple[int, ...]] = []

    def choose(g: int, free: int, chosen: tuple[int, ...]) -> None:
        if g == len(degrees):
            if all(d > free or chosen[i] == left[i] for i, d in enumerate(degrees)):
                found.append(chosen)
            return
        for count in range(min(left[g], free // degrees[g]), -1, -1):
            choose(g + 1, free - count * degrees[g], (*chosen, count))

    choose(0, size, ())
    return found

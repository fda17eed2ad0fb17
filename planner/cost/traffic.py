"""What a plan sends over the uplinks of a topology at once, and what that leaves to each of its rings and transfers.

An uplink carries its rate in each direction and shares it evenly:
- after the last micro-batch, over the stages that reduce gradients through it (all stages reduce at once);
- in every micro-batch, over the replicas of all stage boundaries that cross it (each needs both directions: activations
  one way, gradients the other), and over the stages that reduce then too (ZeRO-2 and 3); where layers branch, each
  pair of stages of which one feeds the other is a boundary;
- over the all-to-alls of routed experts by the bytes that each sends through it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.uplinks import FREE, Detour

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from planner.cost.crossings import Pair
    from planner.cost.sharding import Degrees, ExpertLayout
    from planner.cost.uplinks import Uplinks

__all__ = ["ChainTraffic", "StageTraffic", "StageWays", "Traffic", "best_detour", "best_ways"]


@dataclass(frozen=True)
class StageTraffic:
    """A stage of a pipeline.

    homes: the switch of every replica.  tensor, context: its degrees.  expert: where its experts live.
    reduces_always: gradients are reduced in every micro-batch (ZeRO-2 and 3).
    """

    homes: tuple[int, ...]
    tensor: int
    context: int
    expert: ExpertLayout
    reduces_always: bool = False

    @property
    def width(self) -> int:
        """Chips of a replica."""
        return self.tensor * self.context


class StageWays(NamedTuple):
    """What uplinks leave to each chip of a stage: to its rings of dense weights and of experts, to its all-to-alls."""

    dense: Detour = FREE
    expert: Detour = FREE
    all_to_all: Detour = FREE


ChainTraffic = tuple[StageTraffic, ...]
"""The stages of one shape of pipeline, along it."""


class Traffic:
    """The traffic of all shapes of a plan. pieces: for each run of layers that the same stages hold, the stage of every
    shape; with one shape each stage is a piece. pairs: of each shape, the stages of which one feeds the other (None:
    neighbours).
    """

    def __init__(
        self,
        uplinks: Uplinks,
        chains: Sequence[ChainTraffic],
        pieces: Sequence[Sequence[int]],
        pairs: Sequence[Sequence[Pair]] | None = None,
    ) -> None:
        self.uplinks, self.chains = uplinks, chains
        self.pairs = [[*pairwise(range(len(chain)))] for chain in chains] if pairs is None else pairs
        self._pieces = [tuple(piece) for piece in pieces]
        self._counts = [[Counter(stage.homes) for stage in chain] for chain in chains]
        self._rings = {piece: self._ring(piece) for piece in self._pieces}
        self._always = [piece for piece in self._pieces if self._reduces_always(piece)]
        self._crossing = self._count_boundaries() + self._count_rings(self._always)
        self._reducing = self._count_rings(self._pieces)
        self._exchanged = self._count_exchanges()

    # --- who crosses which uplink ----------------------------------------------------------------------------------

    def _ring(self, piece: tuple[int, ...]) -> dict[int, int]:
        """The uplinks that a piece's ring crosses: those with some of its chips below and some not; the fewer of them.

        All replicas of all stages that hold the piece form one ring, switch by switch.
        """
        below: Counter[int] = Counter()
        total = 0
        for j, s in enumerate(piece):
            width = self.chains[j][s].width
            total += width * len(self.chains[j][s].homes)
            for home, replicas in self._counts[j][s].items():
                for uplink in self.uplinks.above(home):
                    below[uplink] += width * replicas
        return {uplink: min(chips, total - chips) for uplink, chips in below.items() if chips < total}

    def _reduces_always(self, piece: tuple[int, ...]) -> bool:
        """Whether the stages that hold a piece reduce in every micro-batch; those of several shapes never do."""
        return any(self.chains[j][s].reduces_always for j, s in enumerate(piece))

    def _count_rings(self, pieces: Sequence[tuple[int, ...]]) -> Counter[int]:
        """Stages of these pieces that reduce over each uplink at once: of several shapes those of the one with the
        most.
        """
        most: Counter[int] = Counter()
        for j in range(len(self.chains)):
            own: dict[int, set[int]] = {}
            for piece in pieces:
                own.setdefault(piece[j], set()).update(self._rings[piece])
            most |= Counter(uplink for crossed in own.values() for uplink in crossed)
        return most

    def _count_boundaries(self) -> Counter[int]:
        """Replicas of all boundaries that cross each uplink."""
        crossing: Counter[int] = Counter()
        for chain, pairs in zip(self.chains, self.pairs, strict=True):
            for s, t in pairs:
                for (x, y), ways in Counter(zip(chain[s].homes, chain[t].homes, strict=True)).items():
                    for uplink in self.uplinks.between(x, y):
                        crossing[uplink] += ways
        return crossing

    def _count_exchanges(self) -> Mapping[int, float]:
        """Chips' shares of all-to-alls that leave through each uplink (`_exchange`)."""
        total: dict[int, float] = {}
        for chain in self.chains:
            for stage in chain:
                for exchange in _exchanges(stage):
                    for uplink, shares in self._exchange(stage, exchange).items():
                        total[uplink] = total.get(uplink, 0.0) + shares
        return total

    def _exchange(self, stage: StageTraffic, homes: Sequence[int]) -> dict[int, float]:
        """What one set of chips sends through each uplink, in units of what one of its chips sends in all.

        n chips exchange, k of them below the uplink:  k (n - k) / (n - 1), once a chip that shares an expert
        """
        layout = stage.expert
        chips = layout.all_to_all
        sharing = 1 if layout.tensor == 1 else stage.tensor
        each = chips * sharing / len(homes)
        below: Counter[int] = Counter(uplink for home in homes for uplink in self.uplinks.above(home))
        shares = {uplink: count * each / sharing for uplink, count in below.items() if count < len(homes)}
        return {uplink: sharing * k * (chips - k) / (chips - 1) for uplink, k in shares.items()}

    # --- what is left ----------------------------------------------------------------------------------------------

    def reduction(self, piece: Sequence[int], rings: int) -> Detour:
        """What uplinks leave to each of the rings of a piece's layers:

        least over the uplinks crossed of   rate / stages at once / rings
        at once: after the last micro-batch, and for those that reduce in every one also what crosses then
        of one shape no more rings than there are chips on the smaller side (shards of experts may be on one side alone)
        """
        crossed = self._rings[tuple(piece)]
        if not crossed:
            return FREE
        alone, always = len(self.chains) == 1, self._reduces_always(tuple(piece))
        rate = min(
            self.uplinks.rate[u]
            / (max(self._reducing[u], self._crossing[u]) if always else self._reducing[u])
            / (min(rings, chips) if alone else rings)
            for u, chips in crossed.items()
        )
        homes = [home for j, s in enumerate(piece) for home in self._counts[j][s]]
        return Detour(rate, self.uplinks.ring_latency_s(homes))

    def left(self) -> tuple[object, ...]:
        """All that is left, as a key: placements with equal ones take equally long."""
        shares: list[object] = []
        for j, chain in enumerate(self.chains):
            shares += [self.boundary(j, pair) for pair in self.pairs[j]]
            shares += [self._all_to_all(stage) for stage in chain]
        for piece in self._pieces:
            shares.append(self.reduction(piece, 1))
            stage = self.chains[0][piece[0]]
            if len(self.chains) == 1 and stage.expert.shards > stage.width:
                shares.append(self.reduction(piece, stage.expert.shards))
        return tuple(shares)

    def stage(self, chain: int, index: int) -> StageWays:
        """What uplinks leave to a stage of the only shape."""
        stage = self.chains[chain][index]
        dense, expert = (self.reduction((index,), rings) for rings in (stage.tensor, stage.expert.shards))
        return StageWays(dense, expert, self._all_to_all(stage))

    def _all_to_all(self, stage: StageTraffic) -> Detour:
        """What uplinks leave to each chip's all-to-all, in the slowest of its sets:  rate / shares through it."""
        sets = [*_exchanges(stage)]
        crossed = {uplink for homes in sets for uplink in self._exchange(stage, homes)}
        if not crossed:
            return FREE
        rate = min(self.uplinks.rate[u] / self._exchanged[u] for u in crossed)
        pairs = {pair for homes in sets for pair in combinations(sorted(set(homes)), 2)}
        return Detour(rate, max(self.uplinks.added_latency_s(a, b) for a, b in pairs))

    def boundary(self, chain: int, pair: Pair) -> Detour:
        """What uplinks leave to each replica's transfer between two stages of `pairs`, at its slowest replica:

        least over the uplinks on its way of   rate / replicas that cross it;   the latencies of all of them
        """
        a, b = (self.chains[chain][s] for s in pair)
        rate, latency = FREE
        for x, y in set(zip(a.homes, b.homes, strict=True)):
            crossed = self.uplinks.between(x, y)
            rate = min([rate, *(self.uplinks.rate[u] / self._crossing[u] for u in crossed)])
            latency = max(latency, self.uplinks.added_latency_s(x, y))
        return Detour(rate, latency)


def _exchanges(stage: StageTraffic) -> Iterator[tuple[int, ...]]:
    """The switches of the neighbouring replicas that hold all experts together, set by set."""
    layout = stage.expert
    chips = layout.all_to_all if layout.tensor == 1 else layout.all_to_all * stage.tensor
    span = -(-chips // stage.width)
    if span > 1 and layout.all_to_all > 1:
        for first in range(0, len(stage.homes), span):
            yield stage.homes[first : first + span]


def best_ways(uplinks: Uplinks | None, group: int, slots: int, degrees: Degrees, *, mixed: bool) -> StageWays:
    """What uplinks leave to a stage at the best places for it alone: no placement has faster rings.

    slots: replicas that a node holds. All-to-alls, and rings over several shapes, are taken as unlimited.
    """
    if uplinks is None or mixed:
        return StageWays()
    best = uplinks.best_ring_bytes_per_s(group, -(-degrees.data // slots))
    width = degrees.tensor * degrees.context
    return StageWays(Detour(best / degrees.tensor), Detour(best / min(degrees.expert.shards, width)))


def best_detour(uplinks: Uplinks | None, source: int, target: int, data: int) -> Detour:
    """What uplinks leave to each of `data` replicas between two groups at the best places; no placement leaves more."""
    if uplinks is None or source == target:
        return FREE
    return Detour(uplinks.best_transfer_bytes_per_s(source, target, data))

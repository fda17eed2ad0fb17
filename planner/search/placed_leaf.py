"""A leaf whose stages sit at known nodes of a topology: its numbers are exact there, so splits can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.search.leaf import Leaf

if TYPE_CHECKING:
    from planner.cost.crossings import Pair
    from planner.cost.model import CostModel
    from planner.cost.tables import LayerTable, TransferTable
    from planner.cost.traffic import Traffic

__all__ = ["PlacedLeaf"]


class PlacedLeaf(Leaf):
    """`leaf` with what the uplinks leave to its stages and boundaries where they sit (`traffic`, of this shape alone).

    Memory limits stay those of the leaf's problem. Nothing is proved with it: other places have other numbers. Layers
    form a chain: where they branch, moving one changes which stages share an uplink.
    """

    def __init__(self, leaf: Leaf, cost: CostModel, traffic: Traffic) -> None:
        super().__init__(leaf.root, leaf.order)
        assert self.tensors is None, "layers that branch are not moved"
        self._cost, self._traffic = cost, traffic
        self._tables: dict[int, LayerTable] = {}

    def table(self, stage: int) -> LayerTable:
        """The layer table of a stage where it sits."""
        if stage not in self._tables:
            home, limits = self.stages[stage], super().table(stage)
            ways = self._traffic.stage(0, stage)
            table = self._cost.placed_table(home.group, home.mode, self.setting, ways)
            self._tables[stage] = replace(
                table,
                usable_bytes=limits.usable_bytes,
                usable_host_bytes=limits.usable_host_bytes,
                usable_nvme_bytes=limits.usable_nvme_bytes,
            )
        return self._tables[stage]

    def transfer_of(self, pair: Pair) -> TransferTable:
        """What one stage of a pair sends to the other, from where they sit."""
        if pair not in self._pairs:
            a, b = (self.stages[s] for s in pair)
            detour = self._traffic.boundary(0, pair)
            self._pairs[pair] = self._cost.transfer(
                a.group, a.mode, b.group, b.mode, self.same_node(pair), self.setting, detour
            )
        return self._pairs[pair]

"""The smallest leaf that switches every constraint on: an embedding, three layers and a head on two stages, memory
tight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from planner.cost.tables import Chain, ChipGroup, LayerTable, Mode, Offload, Setting, TransferTable
from planner.search.candidates import Limits, Root
from planner.search.intervals import Intervals
from planner.search.leaf import Leaf

GIB = float(2**30)


CHAIN = Chain(
    ("embedding", "layers.0", "layers.1", "layers.2", "head"), (0, 1, 1, 1, 2), ("embedding", "layer", "head")
)


@dataclass
class TinyProblem:
    """Kinds: embedding, layer, head. A layer takes 2 s forward, 4 s backward; recompute costs its forward again."""

    usable_gib: float = 20.0
    usable_host_gib: float = math.inf
    offloads: bool = False
    usable_drive_gib: float | None = None
    chain: Chain = CHAIN
    groups: tuple[ChipGroup, ...] = (ChipGroup("a", "chip-a", 1, 2, (1,)),)
    policies: tuple[str, ...] = ("none", "full")
    global_batch: int = 4
    settings: tuple[Setting, ...] = (Setting(1, 1),)
    schedules: tuple[str, ...] = ("1f1b",)

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable:
        table = self.on_the_chip() if self.usable_drive_gib is None else self.on_drives(self.usable_drive_gib)
        return table if not self.offloads else self.offloaded(table)

    def offloaded(self, table: LayerTable) -> LayerTable:
        """A third policy: the 3 GiB of a layer go to host memory, 0.5 s of its forward and 1 s of its backward pass
        wait.
        """
        wait = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.5, 1.0]])
        host = np.array([[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 3.0, 1.0]]) * GIB
        return replace(
            table,
            recompute_s=np.vstack([table.recompute_s, [[1.0, 1.0, 1.0]]]),
            saved_bytes=np.vstack([table.saved_bytes, [[0.0, 0.0, 0.0]]]),
            transient_bytes=np.vstack([table.transient_bytes, [[1.0 * GIB, 1.5 * GIB, 3.0 * GIB]]]),
            offload=Offload(wait, host, 2 * host),
        )

    def on_drives(self, usable_gib: float) -> LayerTable:
        """The states on drives, and 8 GiB of buffers in host memory."""
        return replace(
            self.on_the_chip(),
            host_bytes=None,
            host_fixed_bytes=8.0 * GIB,
            nvme_bytes=np.array([2.0, 3.0, 4.0]) * GIB,
            usable_nvme_bytes=usable_gib * GIB,
        )

    def on_the_chip(self) -> LayerTable:
        return LayerTable(
            forward_s=np.array([1.0, 2.0, 3.0]),
            backward_input_s=np.array([1.0, 2.0, 3.0]),
            backward_weight_s=np.array([1.0, 2.0, 3.0]),
            recompute_s=np.array([[0.0, 0.0, 0.0], [1.0, 2.0, 3.0]]),
            static_bytes=np.array([4.0, 2.0, 5.0]) * GIB,
            saved_bytes=np.array([[1.0, 3.0, 1.0], [1.0, 1.0, 1.0]]) * GIB,
            transient_bytes=np.array([[0.5, 0.5, 2.0], [0.5, 1.5, 2.0]]) * GIB,
            reduction_s=np.array([0.5, 0.25, 0.5]),
            optimizer_s=np.array([0.5, 0.25, 0.5]),
            fixed_bytes=1.0 * GIB,
            usable_bytes=self.usable_gib * GIB,
            fixed_update_s=0.125,
            host_bytes=np.array([2.0, 3.0, 4.0]) * GIB,
            usable_host_bytes=self.usable_host_gib * GIB,
        )

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return TransferTable(np.array([0.5, 0.25, 0.25]), np.array([0.5, 0.25, 0.25]))


def tiny_leaf(
    limits: Limits | None = None,
    usable_gib: float = 20.0,
    usable_host_gib: float = math.inf,
    offloads: bool = False,
    usable_drive_gib: float | None = None,
) -> Leaf:
    problem = TinyProblem(usable_gib, usable_host_gib, offloads, usable_drive_gib)
    root = Root(problem, Intervals(problem.chain), problem.settings[0], "1f1b", limits or Limits())
    return Leaf(root, ((0, Mode(1), 2),))

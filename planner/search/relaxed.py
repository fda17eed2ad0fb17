"""A problem with other memory limits: none at all (`--ignore-memory`), or scaled, to see how far a cluster is from
fitting.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

    from planner.cost.tables import (
        Chain,
        ChipGroup,
        Holder,
        LayerTable,
        MixedProblem,
        Mode,
        Reduction,
        Setting,
        TransferTable,
    )

__all__ = ["RelaxedProblem"]


@dataclass(frozen=True)
class RelaxedProblem:
    """`base` with `memory_scale` times the usable memory of every chip, host and drive (inf: no limit)."""

    base: MixedProblem
    memory_scale: float

    @property
    def chain(self) -> Chain:
        return self.base.chain

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def policies(self) -> tuple[str, ...]:
        return self.base.policies

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    @property
    def settings(self) -> tuple[Setting, ...]:
        return self.base.settings

    @property
    def schedules(self) -> tuple[str, ...]:
        return self.base.schedules

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        if table is None:
            return None
        scale = self.memory_scale
        return replace(
            table,
            usable_bytes=table.usable_bytes * scale,
            usable_host_bytes=_scaled(table.usable_host_bytes, scale),
            usable_nvme_bytes=_scaled(table.usable_nvme_bytes, scale),
        )

    def least_layer_s(self, group: int, mode: Mode, setting: Setting) -> Floats | None:
        least = getattr(self.base, "least_layer_s", None)
        return None if least is None else least(group, mode, setting)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)

    @property
    def may_mix(self) -> bool:
        return self.base.may_mix

    @property
    def micro_batch_sizes(self) -> tuple[int, ...]:
        return self.base.micro_batch_sizes

    def reduction(self, own: int, holders: tuple[Holder, ...], setting: Setting, sharing: int = 1) -> Reduction:
        return self.base.reduction(own, holders, setting, sharing)


def _scaled(limit: float, scale: float) -> float:
    """A limit of nothing (chips that share their memory with the host) stays one, however large the scale."""
    return limit * scale if limit else 0.0

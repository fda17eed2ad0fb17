"""A problem's tables for many numbers of replicas at once, and with the reductions of a mix that is likely."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from planner.cost.tables import Holder, Mode, Setting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from planner.cost.tables import ChipGroup, LayerTable, MixedProblem, TransferTable

    Floats = NDArray[np.float64]

__all__ = ["Likely", "Ranged", "Ring"]


@dataclass(frozen=True)
class Ranged:
    """A problem whose tables hold for every number of replicas from `low` to `high`: the least of both ends, as states
    divide by the replicas and reductions grow with them.
    """

    base: MixedProblem
    low: int

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        import numpy as np

        many = self.base.table(group, mode, setting)
        few = self.base.table(group, mode, replace(setting, data_parallel=self.low))
        if many is None or few is None:
            return many or few
        return replace(
            many,
            static_bytes=np.minimum(many.static_bytes, few.static_bytes),
            host_bytes=_least(many.host_bytes, few.host_bytes),
            host_fixed_bytes=min(many.host_fixed_bytes, few.host_fixed_bytes),
            nvme_bytes=_least(many.nvme_bytes, few.nvme_bytes),
            reduction_s=np.minimum(many.reduction_s, few.reduction_s),
            optimizer_s=np.minimum(many.optimizer_s, few.optimizer_s),
            fixed_update_s=min(many.fixed_update_s, few.fixed_update_s),
        )

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)


def _least(one: Floats | None, other: Floats | None) -> Floats | None:
    import numpy as np

    return None if one is None or other is None else np.minimum(one, other)


class Ring(NamedTuple):
    """With whom pipelines reduce gradients: a stage of each of the others. No holders: a guess.

    sharing: stages of the longest pipeline.
    """

    holders: tuple[Holder, ...] = ()
    sharing: int = 1


@dataclass(frozen=True)
class Likely:
    """A problem whose reductions are those of one more pipeline in a ring: no bound, but nearer to what a mix will
    really take than the least. The guess is a mix with one wide replica of another group.
    """

    base: MixedProblem
    ring: Ring

    @property
    def groups(self) -> tuple[ChipGroup, ...]:
        return self.base.groups

    @property
    def global_batch(self) -> int:
        return self.base.global_batch

    def table(self, group: int, mode: Mode, setting: Setting) -> LayerTable | None:
        table = self.base.table(group, mode, setting)
        replicas = setting.data_parallel
        if table is None or replicas < 2:
            return table
        holders = self._joined(group, mode, replicas) if self.ring.holders else self._guessed(group, mode, setting)
        reduced = self.base.reduction(0, holders, setting, self.ring.sharing)
        return replace(table, reduction_s=reduced.seconds, fixed_update_s=reduced.fixed_s)

    def _joined(self, group: int, mode: Mode, replicas: int) -> tuple[Holder, ...]:
        """One replica, in a node of its own where there are several, in the place of one of the ring's: one like it, or
        else of those with most replicas.
        """
        others = [*self.ring.holders]
        surplus = sum(h.replicas for h in others) - (replicas - 1)
        while surplus > 0:
            i = max(range(len(others)), key=lambda i: (others[i][:2] == (group, mode.tensor), others[i].replicas, i))
            one = others.pop(i)
            if one.replicas > 1:
                others.insert(i, one._replace(replicas=one.replicas - 1))
            surplus -= 1
        if others:
            others[0] = others[0]._replace(replicas=others[0].replicas - surplus)
        own = Holder(group, mode.tensor, 1 if others else replicas, 1, 1, 0 if self.groups[group].nodes == 1 else -1)
        return own, *others

    def _guessed(self, group: int, mode: Mode, setting: Setting) -> tuple[Holder, ...]:
        replicas = setting.data_parallel
        other = next((g for g, x in enumerate(self.groups) if g != group and x.tensor_degrees), None)
        slots = self.groups[group].slots_per_node(mode.tensor, setting.context_parallel)
        together = max(1, min(slots, replicas - 1))
        holders = [Holder(group, mode.tensor, replicas, min(2, self.groups[group].nodes), together, 0)]
        if other is not None:
            wide = max(self.groups[other].tensor_degrees)
            holders = [holders[0]._replace(replicas=replicas - 1), Holder(other, wide, 1, 1, 1, 0)]
        return tuple(holders)

    def transfer(
        self, source: int, source_mode: Mode, target: int, target_mode: Mode, same_node: bool, setting: Setting
    ) -> TransferTable:
        return self.base.transfer(source, source_mode, target, target_mode, same_node, setting)

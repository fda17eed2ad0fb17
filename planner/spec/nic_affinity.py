"""Which network card (NIC) of a node each chip is near, and which it uses."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Final

from pydantic import Field

from planner.spec.base import Count, SpecModel, filled

__all__ = ["FAR_NIC_LOSS", "NicAffinity", "NicAffinityEntry"]

FAR_NIC_LOSS: Final = 0.26
"""Share of its rate that a chip loses at a NIC which is not near it: published as 20 to 26 % (DLSlime's chip-to-chip
RDMA reads of 128 MB over one NIC, github.com/DeepLink-org/DLSlime); the greater is taken."""

_Index = Annotated[int, Field(ge=0, le=4095)]
_Indices = Annotated[tuple[_Index, ...], filled("chip", 4096)]


class NicAffinityEntry(SpecModel):
    """Near which NIC each chip of a node sits, and which NIC it uses. Either `nics` or `near`."""

    nics: Count | None = Field(default=None, examples=["4"])
    """NICs of a node; the chips sit near them in equal runs: with 4 NICs and 8 chips, chips 0 and 1 near NIC 0."""

    near: _Indices | None = Field(default=None, examples=["[0, 0, 1, 1]"])
    """The NIC near each chip of a node, in the order of the chips."""

    use: _Indices | None = Field(default=None, examples=["[1, 1, 0, 0]"])
    """The NIC that each chip is made to use. Absent: the near one. Another one costs 26 % of the chip's rate."""


class NicAffinity(SpecModel):
    """NICs of the chips of a node, in the order of the chips."""

    near: tuple[_Index, ...]
    """The NIC near each chip."""

    use: tuple[_Index, ...]
    """The NIC that each chip uses."""

    @property
    def far_chips(self) -> tuple[int, ...]:
        """Chips that use a NIC which is not near them."""
        return tuple(chip for chip, (a, b) in enumerate(zip(self.near, self.use, strict=True)) if a != b)

    @property
    def share(self) -> float:
        """What the slowest chip gets of the NIC rate stated for a chip near its NIC.

        least over chips of   min(1, chips near its near NIC / chips at the NIC it uses) * (1 - loss where it is far)
        """
        near, used = Counter(self.near), Counter(self.use)
        shares = [
            min(1.0, near[a] / used[b]) * (1.0 if a == b else 1 - FAR_NIC_LOSS)
            for a, b in zip(self.near, self.use, strict=True)
        ]
        return min(shares)

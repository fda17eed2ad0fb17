"""Where optimizer states may be: on the chips, in the host's memory, on the drives of the node."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.spec import Training
    from planner.spec.model import StateTier

__all__ = ["Tier", "tiers_asked"]


class Tier(IntEnum):
    """Where a stage's optimizer states and master weights are, nearest first. `Tier.CHIP` is false: nothing leaves."""

    CHIP = 0
    HOST = 1
    NVME = 2

    @property
    def word(self) -> StateTier:
        """As model files and plans name it."""
        return _WORDS[self]

    @property
    def place(self) -> str:
        """For people: `on the chips`, `in host memory`, `on drives`."""
        return _PLACES[self]

    @classmethod
    def of(cls, word: str | None) -> Tier:
        """The tier that a model file or a plan names; nothing said is on the chips."""
        return cls.CHIP if word is None else cls(_WORDS.index(word))


_WORDS: tuple[StateTier, ...] = ("none", "host", "nvme")
_PLACES = ("on the chips", "in host memory", "on drives")
_ASKED = {
    "never": (Tier.CHIP,),
    "allowed": (Tier.CHIP, Tier.HOST, Tier.NVME),
    "always": (Tier.HOST, Tier.NVME),
}


def tiers_asked(training: Training) -> tuple[Tier, ...]:
    """The tiers that `training.offload_optimizer` leaves to choose from, nearest first."""
    asked = training.offload_optimizer
    return _ASKED[asked] if isinstance(asked, str) else tuple(Tier.of(word) for word in asked)

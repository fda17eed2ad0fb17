"""What of the training settings changes a layer's numbers, and which recompute policy frees and reruns what."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from planner.spec.model import Training

__all__ = [
    "ALWAYS",
    "LOSS_CHUNK_TOKENS",
    "NEVER",
    "ONLY_FULL",
    "UNLESS_FULL",
    "Recipe",
    "compute_width_bytes",
    "recipe_of",
]

ALWAYS = frozenset({"none", "selective", "full"})
UNLESS_FULL = frozenset({"none", "selective"})
ONLY_FULL = frozenset({"full"})
NEVER: frozenset[str] = frozenset()

_ONLY_NONE = frozenset({"none"})
_SELECTIVE_AND_FULL = frozenset({"selective", "full"})

LOSS_CHUNK_TOKENS = 1024
"""A chunked loss makes the logits of so many tokens at a time."""


@dataclass(frozen=True)
class Recipe:
    """Training settings as the layers see them.

    The policy `selective` depends on the attention kernel.  `math` keeps scores, which grow with the square of the
    sequence: selective frees them
    and reruns the attention core (arXiv 2205.05198).  `flash` keeps none: selective frees what is cheap to make again,
    norm outputs and the outputs of
    the MLP's activation function.  `full` keeps a layer's input only.
    """

    tokens: int
    attention: Literal["flash", "math"] = "flash"
    loss: Literal["plain", "chunked", "fused"] = "plain"
    dropout: bool | None = None
    compute_width_bytes: int = 2

    @property
    def fp32_widths(self) -> float:
        """Widths of the compute dtype in four bytes."""
        return 4 / self.compute_width_bytes

    @property
    def core_kept(self) -> frozenset[str]:
        """Policies under which the attention core's own tensors stay."""
        return _ONLY_NONE if self.attention == "math" else UNLESS_FULL

    @property
    def core_rerun(self) -> frozenset[str]:
        """Policies under which the attention core runs again."""
        return _SELECTIVE_AND_FULL if self.attention == "math" else ONLY_FULL

    @property
    def cheap_kept(self) -> frozenset[str]:
        """Policies under which the outputs of norms and activation functions stay."""
        return _ONLY_NONE if self.attention == "flash" else UNLESS_FULL

    @property
    def cheap_rerun(self) -> frozenset[str]:
        """Policies under which norms and activation functions run again."""
        return _SELECTIVE_AND_FULL if self.attention == "flash" else ONLY_FULL

    def drops(self, as_configured: bool) -> bool:
        """Whether a dropout runs: the training file's word, else the architecture's."""
        return as_configured if self.dropout is None else self.dropout


def compute_width_bytes(precision: str) -> int:
    """Bytes of an activation. fp8 recipes multiply in one byte and keep activations in two."""
    return 4 if precision == "fp32" else 2


def recipe_of(training: Training) -> Recipe:
    """The settings of a model file."""
    return Recipe(
        tokens=training.sequence_length,
        attention=training.attention,
        loss=training.loss,
        dropout=training.dropout,
        compute_width_bytes=compute_width_bytes(training.precision),
    )

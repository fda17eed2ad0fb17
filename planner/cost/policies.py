"""The recompute policies: what a layer keeps between its forward and its backward pass, and where."""

from __future__ import annotations

__all__ = ["POLICIES", "base_of", "offloads"]

POLICIES: tuple[str, ...] = ("none", "selective", "full", "offload", "selective_offload", "full_offload")
"""In the order in which they are preferred where they cost the same."""

_BASE = {"offload": "none", "selective_offload": "selective", "full_offload": "full"}


def base_of(policy: str) -> str:
    """The policy that says what is freed and run again: an offloading one keeps the same, in host memory."""
    return _BASE.get(policy, policy)


def offloads(policy: str) -> bool:
    """Whether a policy sends what it keeps to host memory."""
    return policy in _BASE

"""The drives of a node, as far as training may use them."""

from __future__ import annotations

from pydantic import Field

from planner.spec.base import Bandwidth, MemoryBytes, SpecModel

__all__ = ["Drives"]


class Drives(SpecModel):
    """All NVMe drives of one node together. Every figure is needed: dplan knows none of its own."""

    capacity_bytes: MemoryBytes = Field(alias="capacity", examples=["7 TiB"])
    """What training may fill of them."""

    read_bytes_per_s: Bandwidth = Field(alias="read", examples=["12 GB/s"])
    """What they read in a second while nothing is written, in large sequential blocks, as a benchmark reaches it."""

    write_bytes_per_s: Bandwidth = Field(alias="write", examples=["6 GB/s"])
    """What they write in a second while nothing is read, for as long as an update takes: a drive's cache fills up."""

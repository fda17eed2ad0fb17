"""Chips: what one chip can do, as its profile says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SerializerFunctionWrapHandler,
    WithJsonSchema,
    model_serializer,
)

from planner.spec.base import (
    Bandwidth,
    Flops,
    Latency,
    MemoryBytes,
    Name,
    Share,
    SpecModel,
    Text,
    Title,
    refusal,
    whole_number,
)
from planner.spec.kinds import QuantityError
from planner.spec.suggest import did_you_mean

__all__ = [
    "PEAK_PRECISIONS",
    "TRUSTS",
    "Chip",
    "ChipEntry",
    "Efficiency",
    "Interconnect",
    "InterconnectEntry",
    "Measured",
    "PeakPrecision",
    "Precision",
    "ProfileFile",
    "Trust",
]

Precision = Literal["bf16", "fp16", "fp32", "fp8"]
"""What training computes in."""

PEAK_PRECISIONS = ("bf16", "fp16", "fp32", "fp8", "tf32")
"""What a chip may have a peak for."""

Trust = Literal["good", "medium", "low", "announced", "user", "reconstructed"]
TRUSTS = ("good", "medium", "low", "announced", "user", "reconstructed")


def _read_precision(value: object) -> str:
    if value in PEAK_PRECISIONS:
        return str(value)
    fix = did_you_mean(str(value), PEAK_PRECISIONS, "known precisions")
    raise refusal(QuantityError(f"unknown precision {str(value)[:40]!r}", "", fix))


def _read_source_key(value: object) -> str:
    text = str(value)
    head, _, rest = text.partition(".")
    known = _figures()
    if head not in known or (rest and rest.split(".")[0] not in known[head]):
        choices = [f"{figure}.{part}" for figure, parts in known.items() for part in parts] + list(known)
        raise refusal(QuantityError(f"unknown figure {text[:40]!r}", "", did_you_mean(text, choices, "figures")))
    return text


PeakPrecision = Annotated[
    str, BeforeValidator(_read_precision), WithJsonSchema({"type": "string", "enum": list(PEAK_PRECISIONS)})
]
_SourceKey = Annotated[str, AfterValidator(_read_source_key)]
_ChipsPerNode = Annotated[
    int, whole_number("the number of chips in a node", 1, 4096), WithJsonSchema({"type": "integer", "minimum": 1})
]


class InterconnectEntry(SpecModel):
    """A link of one chip, or what a cluster file changes about it."""

    bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="bandwidth", examples=["200 GB/s"])
    """Bytes a second of one chip in one direction, e.g. `200 GB/s` or `400 Gbps`. Absent: as the profile has it."""

    latency_s: Latency | None = Field(default=None, alias="latency", examples=["3 us"])
    """Time until the first byte arrives, e.g. `3 us`. Absent: as the profile has it."""


class Interconnect(InterconnectEntry):
    """A link of one chip."""

    bandwidth_bytes_per_s: Bandwidth = Field(alias="bandwidth", examples=["200 GB/s"])
    """Bytes a second of one chip in one direction, e.g. `200 GB/s` or `400 Gbps`."""

    latency_s: Latency = Field(alias="latency", examples=["3 us"])
    """Time until the first byte arrives, e.g. `3 us`."""


class Measured(SpecModel):
    """What was measured on the chip; claimed figures stand beside it, never in its place."""

    matmul_flops_per_s: dict[PeakPrecision, Flops] = Field(default_factory=dict, alias="matmul")
    """The best dense matrix product seen, per precision, e.g. `{bf16: 271.2 TFLOPS}`."""

    memory_bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="memory_bandwidth")
    """Memory bandwidth reached by a copy or stream kernel."""

    allreduce_bytes_per_s: Bandwidth | None = Field(default=None, alias="allreduce")
    """Bus bandwidth of an all-reduce inside a node (nccl-tests' `busbw`)."""


class Efficiency(SpecModel):
    """Share of the peak that real work reaches, per class of operation. Absent: the stated class default."""

    matmul: Share | None = None
    """Dense matrix products, of the precision's peak."""

    attention: Share | None = None
    """The attention core, of the precision's peak."""

    memory: Share | None = None
    """Bandwidth-bound operations, of the memory bandwidth."""

    intra_node: Share | None = None
    """Collectives inside a node, of the intra-node link."""

    network: Share | None = None
    """Transfers and collectives between nodes, of the NIC or link."""


class _ChipFigures(SpecModel):
    """Figures of a chip. One that is not known stays absent; planning that needs it refuses by name."""

    vendor: Title = "custom"
    """Who makes it. Chips of one vendor reach each other by RDMA; two different `custom` chips count as two vendors."""

    memory_bytes: MemoryBytes | None = Field(default=None, alias="memory", examples=["80 GiB"])
    """Memory on one chip as sold, e.g. `80 GiB`. The planner keeps `reserve` of it free."""

    reported_memory_bytes: MemoryBytes | None = Field(default=None, alias="reported_memory", examples=["79.6 GiB"])
    """Memory that the driver reports; where it is known, it is what planning uses."""

    unified_memory: Annotated[bool, Field(strict=True)] = False
    """The memory is shared with the host, which needs part of it."""

    peak_flops_per_s: dict[PeakPrecision, Flops] = Field(
        default_factory=dict, alias="peak", examples=["{bf16: 312 TFLOPS}"]
    )
    """Dense peak per precision (never with sparsity). A precision the hardware lacks is left out."""

    memory_bandwidth_bytes_per_s: Bandwidth | None = Field(
        default=None, alias="memory_bandwidth", examples=["2039 GB/s"]
    )
    """Claimed memory bandwidth."""

    chips_per_node: _ChipsPerNode | None = Field(default=None, examples=["8"])
    """Chips in one node; a node group may say otherwise."""

    host_staging_bytes_per_s: Bandwidth | None = Field(default=None, alias="host_staging", examples=["25 GB/s"])
    """Copy rate between chip and host memory, one direction: what a transfer staged through the host runs at, and an
    offloaded activation."""

    chips_per_host_link: _ChipsPerNode | None = Field(default=None, examples=["2"])
    """Chips of a node that share one link of rate `host_staging` to the host: copies that they make at once share it.
    Absent: each chip has its own."""

    measured: Measured | None = None
    """Measured figures."""

    efficiency: Efficiency | None = None
    """Shares of the peaks that real work reaches."""

    torch_device: Title | None = None
    """PyTorch's name of the accelerator type: `cuda`, `xpu`, `npu`, `mps`, `cpu`."""

    collective_backend: Title | None = None
    """The vendor's collective library as PyTorch names it: `nccl`, `hccl`, `xccl`, `gloo`."""

    trust: Trust = "user"
    """How far to believe the figures; anything but `good` and `user` makes a plan with the chip warn."""

    sources: dict[_SourceKey, Text] = Field(default_factory=dict)
    """Where each figure comes from: `memory: data sheet p. 2`, `peak.bf16: ...`; `nic` covers all of the NIC."""

    notes: Text | None = None
    """What a reader of the figures should know."""


class Chip(_ChipFigures):
    """A chip with everything that is known about it."""

    name: Name
    """The profile's name: vendor-model-memory-form."""

    intra_node: Interconnect | None = None
    """The link to the other chips of the node."""

    nic: Interconnect | None = None
    """The chip's share of the node's network cards."""

    @property
    def capacity_bytes(self) -> int | None:
        """The memory that planning starts from: as reported where known, else as sold."""
        return self.reported_memory_bytes or self.memory_bytes

    @model_serializer(mode="wrap")
    def _without_what_is_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        document: dict[str, Any] = handler(self)
        if self.chips_per_host_link is None:
            document.pop("chips_per_host_link", None)
        return document


class ProfileFile(_ChipFigures):
    """A profile file: one chip. Its name is the file's name."""

    name: Name | None = None
    """May repeat the file's name."""

    intra_node: Interconnect | None = None
    """The link to the other chips of the node."""

    nic: Interconnect | None = None
    """The chip's share of the node's network cards."""


class ChipEntry(_ChipFigures):
    """A chip written in a cluster file: a new one, or changes to a profile. Figures that are left out are inherited."""

    base: Name | None = None
    """The profile to start from. Absent: the profile of this name, if there is one, else nothing."""

    intra_node: InterconnectEntry | None = None
    """The link to the other chips of the node."""

    nic: InterconnectEntry | None = None
    """The chip's share of the node's network cards."""


def _figures() -> dict[str, tuple[str, ...]]:
    """The figures that can have a source, and their parts."""
    link = ("bandwidth", "latency")
    return {
        "memory": (),
        "reported_memory": (),
        "peak": PEAK_PRECISIONS,
        "memory_bandwidth": (),
        "chips_per_node": (),
        "intra_node": link,
        "nic": link,
        "host_staging": (),
        "chips_per_host_link": (),
        "measured": ("matmul", "memory_bandwidth", "allreduce"),
        "efficiency": ("matmul", "attention", "memory", "intra_node", "network"),
        "unified_memory": (),
        "torch_device": (),
        "collective_backend": (),
        "vendor": (),
    }

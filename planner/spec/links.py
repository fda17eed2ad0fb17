"""Links as people write them: between node groups, and between sites."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.spec.base import Bandwidth, Latency, Name, SpecModel, filled, refusal
from planner.spec.kinds import QuantityError

__all__ = ["Link", "LinkFigures", "Sites", "Transport"]

Transport = Literal["rdma", "host"]


def _read_pair(value: Any) -> Any:
    if not isinstance(value, (list, tuple)) or len(value) != 2:
        held = f"joins {len(value)}, not two" if isinstance(value, (list, tuple)) else "is no pair"
        raise refusal(QuantityError(held, "", "write `between: [first, second]`"))
    return tuple(value)


_Pair = Annotated[
    tuple[Name, Name],
    BeforeValidator(_read_pair),
    WithJsonSchema({"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2, "uniqueItems": True}),
]


class LinkFigures(SpecModel):
    """What may be said about a link; what is left out comes from the next more general place."""

    bandwidth_bytes_per_s: Bandwidth | None = Field(default=None, alias="bandwidth", examples=["100 Gbps"])
    """Per pair of communicating chips, one direction, e.g. `100 Gbps`; not what a shared line carries in all: that is
    `total`. Absent: the slower of the two NICs."""

    total_bytes_per_s: Bandwidth | None = Field(default=None, alias="total", examples=["10 Gbps"])
    """What the line carries in each direction for all pairs of chips together, e.g. `10 Gbps`; the replicas that cross
    at once share it. Needed between two sites. Absent between groups of one site: only `bandwidth` and NICs bound."""

    latency_s: Latency | None = Field(default=None, alias="latency", examples=["10 us"])
    """Time until the first byte arrives, e.g. `10 us`. Absent: the larger of the two NICs' latencies."""

    transport: Transport | None = None
    """`rdma` (chip to chip) or `host` (staged through host memory). Absent: `rdma` in a vendor, `host` between two."""

    staging_bytes_per_s: Bandwidth | None = Field(default=None, alias="staging", examples=["20 GB/s"])
    """With `host`: the copy rate between chip and host memory. Absent: the slower of the two chips' `host_staging`."""


class Link(LinkFigures):
    """A link between two node groups, or between two sites."""

    between: _Pair = Field(examples=["[a100, v100]"])
    """The two names."""


class Sites(LinkFigures):
    """What joins the sites. Figures here hold for the line of every pair of sites where `links` has no other.

    `total` is what one line carries in each direction for all pairs of chips together; `bandwidth` bounds one pair.
    """

    links: Annotated[tuple[Link, ...], filled("link", 10_000, empty=True)] = ()
    """Pairs of sites with figures of their own."""

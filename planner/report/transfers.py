"""What crosses between the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table

from planner.report.bars import new_table
from planner.spec.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Mapping

    from planner.plan.schema import Pipeline, Transfer

__all__ = ["transfer_table"]

_TRANSPORTS = {"rdma": "rdma", "host": "via host memory"}
_EQUAL = 0.02
"""Neighbours whose numbers differ by no more than this share are one row."""


@dataclass
class _Row:
    """Transfers one after another that are shown together; sites: the two that they join, if they differ."""

    transfers: list[Transfer]
    between_groups: bool
    sites: str

    def takes(self, other: Transfer) -> bool:
        first, last = self.transfers[0], self.transfers[-1]
        alike = (first.transport, first.same_node) == (other.transport, other.same_node)
        numbers = zip(_numbers(first), _numbers(other), strict=True)
        return alike and last.to_stage == other.from_stage and all(abs(a - b) <= _EQUAL * max(a, b) for a, b in numbers)


def _numbers(transfer: Transfer) -> tuple[float, float, float]:
    return transfer.bytes, transfer.time_s, transfer.backward_time_s


def transfer_table(pipeline: Pipeline, cluster: Mapping[str, Any], full: bool) -> Table:
    """A row a boundary; equal neighbours inside a node group share one unless `full`. cluster: the plan's document."""
    rows = _rows(pipeline, cluster, full)
    each, sites = any(len(row.transfers) > 1 for row in rows), any(row.sites for row in rows)
    names = ["", "size", *([""] if each else []), "onward", "back", "transport", *(["sites"] if sites else [])]
    table = new_table(*names, right=("size", "onward", "back"))
    for row in rows:
        first, last = row.transfers[0], row.transfers[-1]
        table.add_row(
            f"{first.from_stage} -> {last.to_stage}",
            format_bytes(max(t.bytes for t in row.transfers)),
            *(["each" if len(row.transfers) > 1 else ""] if each else []),
            format_duration(max(t.time_s for t in row.transfers)),
            format_duration(max(t.backward_time_s for t in row.transfers)),
            "inside a node" if first.same_node else _TRANSPORTS[first.transport],
            *([row.sites] if sites else []),
        )
    return table


def _rows(pipeline: Pipeline, cluster: Mapping[str, Any], full: bool) -> list[_Row]:
    site_of = {group.get("name"): group.get("site") for group in cluster["node_groups"]}
    groups = dict(enumerate(stage.node_group for stage in pipeline.stages))
    rows: list[_Row] = []
    for transfer in pipeline.transfers:
        source, target = groups.get(transfer.from_stage), groups.get(transfer.to_stage)
        if not full and rows and source == target and not rows[-1].between_groups and rows[-1].takes(transfer):
            rows[-1].transfers.append(transfer)
            continue
        sites = site_of.get(source), site_of.get(target)
        crossing = f"{sites[0]} -> {sites[1]}" if sites[0] != sites[1] else ""
        rows.append(_Row([transfer], source != target, crossing))
    return rows

"""Where a plan sits on a topology: the nodes that it uses at each switch, and the stages on them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from planner.errors import InputError
from planner.plan.idle import number_runs
from planner.plan.ranks import ChipMap
from planner.report.bars import heading, indented, new_table
from planner.report.words import format_exact_duration, plural
from planner.spec.units import format_rate

if TYPE_CHECKING:
    from planner.plan.schema import Plan
    from planner.spec.topology import Topology

__all__ = ["placement_section"]

_MOST_ROWS = 16
"""With more switches than this only the first have a row, unless everything is asked for."""


def placement_section(plan: Plan, full: bool) -> Iterator[RenderableType]:
    """A row a switch that holds nodes itself; nothing without a topology."""
    document = plan.inputs.cluster.document
    if document.get("topology") is None:
        return
    chips = ChipMap(document)
    topology = _topology(document, {name: nodes for name, _, nodes, _ in chips.groups})
    homes = {name: topology.homes(name, nodes) for name, _, nodes, _ in chips.groups}
    used: dict[int, dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    stages: dict[int, dict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for p, pipeline in enumerate(plan.pipelines):
        for s, stage in enumerate(pipeline.stages):
            for ranks in stage.ranks:
                place = chips.place(ranks[0])
                home = homes[place.node_group][place.node]
                used[home][place.node_group].add(place.node)
                stages[home][p].add(s)
    yield Text("")
    yield heading("placement")
    yield from _rule(plan)
    yield indented(_table(topology, list(homes), used, stages, len(plan.pipelines), full))
    rows = len(set(used) | {i for i, switch in enumerate(topology.switches) if switch.nodes})
    if rows > _MOST_ROWS and not full:
        left = rows - _MOST_ROWS
        yield indented(Text(f"and {left:,} more {plural('switch', left)}; --full shows all"))


def _topology(document: Mapping[str, Any], nodes: dict[str, int]) -> Topology:
    from pydantic import ValidationError

    from planner.spec.topology import Topology

    problem: str | None
    try:
        topology = Topology.model_validate(document["topology"])
        problem = topology.problem(nodes)
    except ValidationError as error:
        problem = error.errors()[0]["msg"]
    if problem is not None:
        raise InputError.single(
            path="inputs.cluster.document.topology", what="is no topology", why=problem, fix="solve again"
        )
    return topology


def _rule(plan: Plan) -> Iterator[RenderableType]:
    """How the nodes were chosen, and what that is worth."""
    rule, before = plan.certificate.solver.get("placement"), plan.certificate.solver.get("file_order_step_s")
    if not isinstance(rule, str) or not isinstance(before, float):
        return
    worth = ""
    if before > plan.prediction.step_time_s * (1 + 1e-9):
        worth = f"; in the order of the file a step takes {format_exact_duration(before)}"
    yield indented(Text(f"nodes: {rule}{worth}"))


def _table(
    topology: Topology,
    groups: Sequence[str],
    used: Mapping[int, Mapping[str, set[int]]],
    stages: Mapping[int, Mapping[int, set[int]]],
    pipelines: int,
    full: bool,
) -> Table:
    table = new_table("", "uplink", "nodes", "stages", right=("uplink",))
    rows = [i for i, switch in enumerate(topology.switches) if switch.nodes]
    rows += [-1] if -1 in used else []
    for index in rows if full else rows[:_MOST_ROWS]:
        name, uplink = "core", ""
        if index >= 0:
            name = topology.switches[index].name
            uplink = format_rate(topology.switches[index].uplink_bytes_per_s)
        own_nodes = used.get(index, {})
        nodes = "; ".join(f"{group} {number_runs(sorted(own_nodes[group]))}" for group in groups if group in own_nodes)
        held = [
            f"{number_runs(sorted(own))}" + (f" of pipeline {p + 1}" if pipelines > 1 else "")
            for p, own in sorted(stages.get(index, {}).items())
        ]
        table.add_row(name, uplink, nodes or "idle", "; ".join(held))
    return table

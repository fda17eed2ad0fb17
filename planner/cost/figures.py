"""Figures that planning needs: which node groups have the asked precision, and which profiles lack a figure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.cost.compute import memory_rate, missing_rates
from planner.errors import InputError, Notice, Problem
from planner.spec.suggest import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from planner.graph.layers import Layer, LayerGraph
    from planner.spec import Chip, Cluster, Constraints, ModelSpec

__all__ = ["require_figures", "usable_groups", "wholly_measured"]


def wholly_measured(graph: LayerGraph, chip: str) -> bool:
    """Whether every layer has a measured time on a chip, so that its peak FLOP/s are not needed."""
    return all(chip in layer.measured for layer in graph.layers)


def usable_groups(cluster: Cluster, model: ModelSpec, graph: LayerGraph) -> tuple[list[bool], list[Notice]]:
    """Which node groups can run the model, and a notice for each that cannot; idle ones take no part.

    A chip without a peak for the asked precision is left out, never emulated; so is one without times for a layer that
    is known by its times only, and a group that `constraints.order` does not name. Refused when no group is left, or
    when one of them must be used.
    """
    constraints = model.constraints
    problems = list(_group_name_problems(cluster, model))
    usable: list[bool] = []
    notices: list[Notice] = []
    for group in cluster.node_groups:
        idle = group.name in constraints.idle
        notice = None if idle else _unnamed(group.name, constraints)
        if notice is None and not idle:
            notice = _obstacle(cluster.chips[group.chip], graph, model.training.precision)
        usable.append(notice is None and not idle)
        if notice is not None:
            sentence = f"node group {group.name!r} is left out: {notice.message}"
            notices.append(Notice(notice.code, sentence))
            for field in _fields_that_use(group.name, constraints):
                what = f"node group {group.name!r} must be used, but {notice.message}"
                problems.append(Problem(what, fix="take the group out of the list", path=f"constraints.{field}"))
    if not any(usable) and not problems:
        problems.append(_nothing_left(cluster, model, notices))
    if problems:
        raise InputError(problems)
    return usable, notices


def _unnamed(group: str, constraints: Constraints) -> Notice | None:
    """An order names the groups of the pipeline; one that it does not name has no place there."""
    if not constraints.order or group in constraints.order:
        return None
    return Notice("order", "constraints.order does not name it")


def _fields_that_use(group: str, constraints: Constraints) -> list[str]:
    """Constraints that hold only if the group takes part."""
    asked = {"use": constraints.use, "stages": constraints.stages or ()}
    return [field for field, groups in asked.items() if group in groups]


def _obstacle(chip: Chip, graph: LayerGraph, precision: str) -> Notice | None:
    """Why a chip cannot run the model. A profile without any peak says nothing: `require_figures` refuses it."""
    untimed = [layer.name for layer in graph.layers if layer.measured_only and chip.name not in layer.measured]
    if untimed:
        more = f" and {len(untimed) - 1} more layers" if len(untimed) > 1 else ""
        return Notice("times", f"no time on {chip.name} is given for {untimed[0]!r}{more}, nor FLOPs")
    lacks = chip.peak_flops_per_s and missing_rates(chip, precision) and not wholly_measured(graph, chip.name)
    if not lacks:
        return None
    known = ", ".join(sorted(chip.peak_flops_per_s))
    return Notice("precision", f"{chip.name} has no {precision} (its profile has {known}){_tf32_hint(chip, precision)}")


def _group_name_problems(cluster: Cluster, model: ModelSpec) -> Iterable[Problem]:
    """Node groups that the constraints name and the cluster lacks, or that they want used and idle at once."""
    names, constraints = [group.name for group in cluster.node_groups], model.constraints
    degrees = constraints.tensor_parallel
    named: dict[str, Iterable[str]] = {
        "tensor_parallel": degrees if isinstance(degrees, dict) else (),
        "stages": constraints.stages or (),
        "order": constraints.order or (),
        "idle": constraints.idle,
        "use": constraints.use,
    }
    for field, groups in named.items():
        for group in groups:
            if group not in names:
                fix = did_you_mean(group, names, noun="node groups")
                what = f"{group!r} is no node group of cluster {cluster.name!r}"
                yield Problem(what, fix=fix, path=f"constraints.{field}")
    for group in sorted(set(constraints.idle)):
        for field in _fields_that_use(group, constraints):
            yield Problem(
                f"{group!r} is pinned idle and used", fix="take it out of one list", path=f"constraints.{field}"
            )


def _tf32_hint(chip: Chip, precision: str) -> str:
    if precision == "fp32" and "tf32" in chip.peak_flops_per_s:
        return "; tf32 is not fp32: to plan with it, override the chip's `peak: {fp32: ...}` with its tf32 rate"
    return ""


def _nothing_left(cluster: Cluster, model: ModelSpec, notices: Sequence[Notice]) -> Problem:
    if all(notice.code == "order" for notice in notices):
        what = "every node group is pinned idle" + (" or left out of constraints.order" if notices else "")
        return Problem(what, fix="leave one out of constraints.idle", path="constraints.idle")
    notices = [notice for notice in notices if notice.code != "order"]
    if any(notice.code != "precision" for notice in notices):
        sentences = "; ".join(notice.message for notice in notices[:3])
        return Problem(
            "no node group can run the model", sentences, "give the missing times or FLOPs", path="model.graph"
        )
    chips = ", ".join(sorted({group.chip for group in cluster.node_groups}))
    precision = model.training.precision
    other = "fp16" if precision == "bf16" else "bf16 or fp16"
    return Problem(
        f"no chip of cluster {cluster.name!r} computes in {precision}",
        f"chips: {chips}",
        f"ask for {other}, or add the peak to the chip's profile",
        path="training.precision",
    )


def require_figures(cluster: Cluster, model: ModelSpec, graph: LayerGraph, usable: Sequence[bool]) -> None:
    """Refuse, by name and all at once, every figure that planning on these groups needs and nobody gives."""
    problems: dict[tuple[str, str], Problem] = {}
    for group, wanted in zip(cluster.node_groups, usable, strict=True):
        chip = cluster.chips[group.chip]
        for problem in _missing_in_chip(chip, model, graph) if wanted else ():
            problems.setdefault((problem.path, problem.what), problem)
        if wanted and not any(_takes_time(layer, chip.name) for layer in graph.layers):
            problem = Problem(
                f"no layer takes any time on {chip.name}",
                "there is nothing to plan",
                "give the layers forward_flops, moved, parameters or times",
                path="model.graph.nodes",
            )
            problems.setdefault((problem.path, problem.what), problem)
        if wanted and group.chips_per_node > 1 and group.intra_node is None:
            problem = _missing(chip, "intra_node", "the link between the chips of a node", "300 GB/s")
            problems.setdefault((problem.path, problem.what), problem)
    if problems:
        raise InputError(problems.values())


def _takes_time(layer: Layer, chip: str) -> bool:
    """Whether a layer has a measured time above zero on a chip or, unmeasured, work, bytes to move or to send."""
    if chip in layer.measured:
        return layer.measured[chip].forward_s + layer.measured[chip].backward_s > 0
    work = any(op.flops + op.weight_elements + op.activation_elements > 0 for op in layer.operations)
    return work or bool(layer.collectives) or any(weight.parameters > 0 for weight in layer.weights)


def _missing(chip: Chip, field: str, meaning: str, example: str) -> Problem:
    return Problem(
        f"{chip.name}: {field} is not known",
        f"planning needs {meaning}",
        f"give it in the cluster file, e.g. `chips: {{{chip.name}: {{{field}: {example}}}}}`, or leave the group idle",
        path=f"chips.{chip.name}.{field}",
    )


def _missing_in_chip(chip: Chip, model: ModelSpec, graph: LayerGraph) -> list[Problem]:
    precision, problems = model.training.precision, []
    if chip.memory_bytes is None and chip.reported_memory_bytes is None:
        problems.append(_missing(chip, "memory", "the chip's memory", "80 GiB"))
    if memory_rate(chip) is None:
        problems.append(_missing(chip, "memory_bandwidth", "the rate at which the chip reads its memory", "2 TB/s"))
    no_peak_needed = wholly_measured(graph, chip.name) and model.training.optimizer != "muon"
    if missing_rates(chip, precision) and not no_peak_needed:
        problems.append(_missing(chip, "peak", f"the dense peak in {precision}", f"{{{precision}: 300 TFLOPS}}"))
    return problems

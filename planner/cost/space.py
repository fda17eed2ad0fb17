"""The plan space: tensor parallel degrees of every node group, settings (b, d, c, e), and why no others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from planner.cost.modes import Refusal, mode_refusal, stage_replicas
from planner.cost.offload import offload_choices
from planner.cost.precision import zero_levels
from planner.cost.sharding import ExpertLayout, expert_layout
from planner.cost.tables import ChipGroup, Mode, Setting
from planner.cost.tiers import Tier
from planner.errors import InputError, Notice, Problem
from planner.graph.limits import sequence_refusal, tensor_parallel_refusal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from planner.graph.layers import LayerGraph
    from planner.spec import Cluster, Constraints, ModelSpec, NodeGroup

__all__ = ["PlanSpace", "Refusal", "chip_groups", "divisors_of", "layout_of", "plan_space", "refusal"]

_MAX_REASONS = 5


@dataclass(frozen=True)
class PlanSpace:
    """Groups with their tensor parallel degrees, all settings, and what was left out and why."""

    groups: tuple[ChipGroup, ...]
    settings: tuple[Setting, ...]
    notices: tuple[Notice, ...]


def divisors_of(number: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    small = [i for i in range(1, int(number**0.5) + 1) if number % i == 0]
    return tuple(sorted({*small, *(number // i for i in small)}))


def plan_space(cluster: Cluster, model: ModelSpec, graph: LayerGraph, usable: Sequence[bool]) -> PlanSpace:
    """Everything that the model file and the cluster allow. Refuses, all at once, what the user pins and cannot be."""
    groups, notices = chip_groups(cluster, model, graph, usable)
    problems = _setting_problems(model, graph)
    if problems:
        raise InputError(problems)
    settings: list[Setting] = []
    refusals: list[Refusal] = []
    crowded: list[dict[str, int]] = []
    for setting in _candidates(groups, model, graph):
        reasons = {
            (group, mode): refusal(group, mode, setting, model, graph) for group in groups for mode in group.modes
        }
        most = _most_stages((key for key, reason in reasons.items() if reason is None), setting, len(graph.layers))
        if most and _stages_fit(most, model.constraints):
            settings.append(setting)
        elif most:
            crowded.append(most)
        refusals.extend(reason for reason in reasons.values() if reason is not None)
    if not settings:
        if not crowded:
            raise InputError(_nothing_possible(refusals))
        asked = [reason for reason in refusals if _is_asked_for(reason.path, model)]
        raise InputError([*_nothing_possible(asked), *_crowded(crowded, model.constraints)])
    return PlanSpace(groups, tuple(settings), tuple(notices))


# --- tensor parallel degrees ---------------------------------------------------------------------------------------


def model_refusal(tensor: int, model: ModelSpec, graph: LayerGraph) -> Refusal | None:
    """What of the model a tensor parallel degree breaks: heads, widths, or the sequence under sequence parallelism."""
    sentence = tensor_parallel_refusal(graph, tensor)
    if sentence is not None:
        return Refusal("constraints.tensor_parallel", sentence)
    sentence = sequence_refusal(graph.sequence_length, tensor, 1, model.training.sequence_parallel)
    return None if sentence is None else Refusal("training.sequence_length", sentence)


def _pinned_degrees(constraints: Constraints, group: str) -> tuple[tuple[int, ...] | None, bool]:
    """Degrees that the user pins for a group, and whether they are pinned for this group by name."""
    pinned = constraints.tensor_parallel
    if pinned is None:
        return None, False
    if isinstance(pinned, int):
        return (pinned,), False
    degrees = pinned.get(group)
    if degrees is None:
        return None, False
    return ((degrees,) if isinstance(degrees, int) else tuple(sorted(degrees))), True


def chip_groups(
    cluster: Cluster, model: ModelSpec, graph: LayerGraph, usable: Sequence[bool]
) -> tuple[tuple[ChipGroup, ...], list[Notice]]:
    """Node groups with the tensor parallel degrees that they, the model and the user allow; none where unusable."""
    groups: list[ChipGroup] = []
    notices: list[Notice] = []
    problems: list[Problem] = []
    levels = zero_levels(model.training)
    replicas = stage_replicas(cluster, model, graph, notices, problems)
    for node_group, wanted in zip(cluster.node_groups, usable, strict=True):
        degrees: tuple[int, ...] = ()
        offloads: tuple[Tier, ...] = (Tier.CHIP,)
        if wanted:
            degrees = _group_degrees(node_group, model, graph, notices, problems)
            offloads = offload_choices(cluster, model, graph, len(groups), notices, problems)
        groups.append(
            ChipGroup(
                name=node_group.name,
                chip=node_group.chip,
                nodes=node_group.nodes,
                chips_per_node=node_group.chips_per_node,
                tensor_degrees=degrees,
                price=node_group.price_per_chip_hour,
                zero_levels=levels if len(levels) > 1 else (None,),
                offloads=offloads,
                stage_replicas=replicas,
            )
        )
    if not problems and not any(group.tensor_degrees for group in groups):
        problems.append(_no_degree(model, cluster))
    if problems:
        raise InputError(dict.fromkeys(problems))
    return tuple(groups), list(dict.fromkeys(notices))


def _no_degree(model: ModelSpec, cluster: Cluster) -> Problem:
    largest = max(group.chips_per_node for group in cluster.node_groups)
    return Problem(
        f"tensor_parallel {model.constraints.tensor_parallel} fits no node",
        f"the largest node has {largest} chips, and tensor parallel chips never leave a node",
        "use more stages instead",
        path="constraints.tensor_parallel",
    )


def _group_degrees(
    group: NodeGroup, model: ModelSpec, graph: LayerGraph, notices: list[Notice], problems: list[Problem]
) -> tuple[int, ...]:
    pinned, by_name = _pinned_degrees(model.constraints, group.name)
    if pinned is None:
        return _free_degrees(group, model, graph, notices)
    allowed = []
    for tensor in pinned:
        reason = model_refusal(tensor, model, graph)
        too_large = tensor > group.chips_per_node
        if reason is not None:
            problems.append(
                Problem(reason.sentence, fix="pin another tensor_parallel", path="constraints.tensor_parallel")
            )
        elif too_large and by_name:
            problems.append(
                Problem(
                    f"tensor_parallel {tensor} exceeds the {group.chips_per_node} chips of a node of {group.name!r}",
                    "tensor parallel chips never leave a node",
                    f"pin at most {group.chips_per_node}",
                    path=f"constraints.tensor_parallel.{group.name}",
                )
            )
        elif too_large:
            size = f"its {group.chips_per_node}-chip nodes"
            message = f"node group {group.name!r} is left out: tensor_parallel {tensor} does not fit {size}"
            notices.append(Notice("tensor_parallel", message))
        else:
            allowed.append(tensor)
            _notice_idle_chips(group, tensor, notices)
    return tuple(allowed)


def _notice_idle_chips(group: NodeGroup, tensor: int, notices: list[Notice]) -> None:
    idle = group.chips_per_node % tensor
    if idle:
        notices.append(
            Notice(
                "idle_chips",
                f"node group {group.name!r}: tensor_parallel {tensor} leaves {idle} of {group.chips_per_node} chips"
                " of every node idle",
            )
        )


def _free_degrees(group: NodeGroup, model: ModelSpec, graph: LayerGraph, notices: list[Notice]) -> tuple[int, ...]:
    """Degrees that divide the node, and powers of two that leave chips of it idle (docs/decisions/0002)."""
    powers = {1 << i for i in range(group.chips_per_node.bit_length())}
    allowed = []
    for tensor in sorted(powers | set(divisors_of(group.chips_per_node))):
        reason = model_refusal(tensor, model, graph)
        if reason is None:
            allowed.append(tensor)
        else:
            notices.append(Notice("tensor_parallel", f"{reason.sentence}; this degree is left out"))
    return tuple(allowed)


# --- settings ------------------------------------------------------------------------------------------------------


def micro_batch_sizes(model: ModelSpec) -> tuple[int, ...]:
    pinned = model.constraints.micro_batch_size
    return model.training.micro_batch_sizes if pinned is None else (pinned,)


def _pinned_data(constraints: Constraints) -> tuple[int, ...] | None:
    pinned = constraints.data_parallel
    if pinned is None:
        return None
    return (pinned,) if isinstance(pinned, int) else tuple(sorted(pinned))


def _setting_problems(model: ModelSpec, graph: LayerGraph) -> list[Problem]:
    """Values that the user gives and arithmetic forbids."""
    training, problems = model.training, []
    batch, sizes = training.global_batch, micro_batch_sizes(model)
    where = (
        "training.micro_batch_sizes" if model.constraints.micro_batch_size is None else "constraints.micro_batch_size"
    )
    fitting = [size for size in sizes if batch % size == 0]
    if not fitting:
        listed = ", ".join(map(str, sizes))
        fix = f"use divisors of {batch}: {_some(divisors_of(batch))}"
        problems.append(
            Problem(f"no micro-batch size divides global_batch {batch}", f"asked for: {listed}", fix, path=where)
        )
    for data in _pinned_data(model.constraints) or ():
        if fitting and all(batch % (size * data) for size in fitting):
            problems.append(_data_problem(data, batch, fitting))
    for context in training.context_parallel:
        sentence = sequence_refusal(graph.sequence_length, 1, context, sequence_parallel=False)
        if sentence is not None:
            why = "each chip takes one slice from either end, so that causal attention is balanced"
            problems.append(Problem(sentence, why, "change one of the two", path="training.context_parallel"))
    for expert in training.expert_parallel or ():
        layout = expert_layout(expert, 1, 1, expert, graph.num_experts)
        if isinstance(layout, str):
            fix = f"use divisors of {graph.num_experts}" if graph.num_experts else "leave it out"
            problems.append(Problem(layout, fix=fix, path="training.expert_parallel"))
    return problems


def _data_problem(data: int, batch: int, sizes: Sequence[int]) -> Problem:
    """A pinned number of replicas that the batch does not divide over, whole micro-batches each."""
    if batch % data:
        what, fix = "", f"pin a divisor of {batch}: {_some(divisors_of(batch))}"
    else:
        what, fix = f" x micro-batch size {min(sizes)}", "allow a smaller micro-batch, or pin fewer replicas"
    listed = ", ".join(map(str, sizes))
    why = f"micro-batches of {listed} sequences on {data} replicas do not make up the batch evenly"
    return Problem(
        f"data_parallel {data}{what} does not divide global_batch {batch}", why, fix, path="constraints.data_parallel"
    )


def _some(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return shown if len(numbers) <= 8 else f"{shown}, ..."


def _expert_degrees(model: ModelSpec, graph: LayerGraph) -> tuple[int, ...]:
    if graph.num_experts == 0:
        return (1,)
    asked = model.training.expert_parallel
    return divisors_of(graph.num_experts) if asked is None else tuple(sorted(set(asked)))


def _most_replicas(groups: Sequence[ChipGroup], context: int) -> int:
    """Replicas of a one-stage pipeline that the largest group holds."""
    return max((g.max_stages(g.tensor_degrees[0], 1, context) for g in groups if g.tensor_degrees), default=0)


def _candidates(groups: Sequence[ChipGroup], model: ModelSpec, graph: LayerGraph) -> Iterable[Setting]:
    """Settings that divide the batch, whether they can be placed or not; pinned values however large."""
    batch, pinned = model.training.global_batch, _pinned_data(model.constraints)
    for size in micro_batch_sizes(model):
        if batch % size:
            continue
        for context in model.training.context_parallel:
            most = _most_replicas(groups, context)
            replicas = [d for d in divisors_of(batch // size) if d <= most] or [1]
            if pinned is not None:
                replicas = [d for d in pinned if (batch // size) % d == 0]
            for data in replicas:
                for expert in _expert_degrees(model, graph):
                    yield Setting(size, data, context, expert)


def _most_stages(possible: Iterable[tuple[ChipGroup, Mode]], setting: Setting, num_layers: int) -> dict[str, int]:
    """Stages that each group can hold in the best of its possible modes, at most one a layer."""
    most: dict[str, int] = {}
    for group, mode in possible:
        stages = group.room(mode, setting)
        most[group.name] = max(most.get(group.name, 0), min(stages, num_layers))
    return most


def _stages_fit(most: Mapping[str, int], constraints: Constraints) -> bool:
    """With numbers of stages pinned: whether the groups have the slots."""
    pinned = constraints.stages or {}
    if any(most.get(name, 0) < count for name, count in pinned.items()):
        return False
    return constraints.pipeline_parallel is None or sum(most.values()) >= constraints.pipeline_parallel


def refusal(group: ChipGroup, mode: Mode, setting: Setting, model: ModelSpec, graph: LayerGraph) -> Refusal | None:
    """Why a stage of a group cannot run in this mode under this setting; None when it can."""
    context, data, tensor = setting.context_parallel, setting.data_parallel, mode.tensor
    if tensor not in group.tensor_degrees:
        degrees = ", ".join(map(str, group.tensor_degrees)) or "none"
        return Refusal(
            "constraints.tensor_parallel",
            f"tensor_parallel {tensor} is no choice on {group.name!r} (possible: {degrees})",
        )
    reason = mode_refusal(group, mode, setting, model.training)
    if reason is not None:
        return reason
    if tensor * context > group.chips_per_node:
        return Refusal(
            "training.context_parallel",
            f"tensor_parallel {tensor} x context_parallel {context} exceeds the {group.chips_per_node} chips of a node"
            f" of {group.name!r}; a replica's stage never leaves a node",
        )
    sentence = sequence_refusal(graph.sequence_length, tensor, context, model.training.sequence_parallel)
    if sentence is not None:
        return Refusal("training.sequence_length", sentence)
    needed = mode.replicas * (1 if setting.mixed else data)
    if group.max_stages(tensor, needed, context) < 1:
        slots = group.max_stages(tensor, 1, context)
        if mode.replicas > 1:
            what = f"data_parallel {data} x {mode.replicas} replicas of a stage: {group.name!r} holds {slots}"
            return Refusal("training.stage_replicas", f"{what} at tensor_parallel {tensor}")
        return Refusal(
            "constraints.data_parallel",
            f"data_parallel {data} needs {data} replicas of a stage; {group.name!r} holds {slots}"
            f" at tensor_parallel {tensor}",
        )
    layout = layout_of(tensor, mode.setting(setting), graph)
    return Refusal("training.expert_parallel", layout) if isinstance(layout, str) else None


def layout_of(tensor: int, setting: Setting, graph: LayerGraph) -> ExpertLayout | str:
    """Where the experts of a stage live, or why they cannot."""
    return expert_layout(
        setting.expert_parallel, tensor, setting.context_parallel, setting.data_parallel, graph.num_experts
    )


def _nothing_possible(refusals: Sequence[Refusal]) -> list[Problem]:
    """One problem an input that ruled a setting out, in its own words."""
    distinct: dict[str, Refusal] = {}
    for reason in refusals:
        distinct.setdefault(reason.path, reason)
    return [
        Problem(reason.sentence, "no setting of the plan space is possible", "relax it", path=reason.path)
        for reason in list(distinct.values())[:_MAX_REASONS]
    ]


def _is_asked_for(path: str, model: ModelSpec) -> bool:
    """Whether the user gave the input that rules a setting out; a default is not to blame."""
    if path == "constraints.data_parallel":
        return model.constraints.data_parallel is not None
    return path == "training.expert_parallel" and model.training.expert_parallel is not None


def _crowded(crowded: Sequence[Mapping[str, int]], constraints: Constraints) -> list[Problem]:
    """Pinned numbers of stages that no setting has room for. crowded: the most stages of each group, a setting each."""
    problems = []
    for name, count in (constraints.stages or {}).items():
        most = max(held.get(name, 0) for held in crowded)
        if most < count:
            what, why = f"{count} stages on {name!r} are too many", f"its chips and the layers allow {most}"
            problems.append(Problem(what, why, "pin fewer", path=f"constraints.stages.{name}"))
    pinned, most = constraints.pipeline_parallel, max(sum(held.values()) for held in crowded)
    if pinned is not None and most < pinned:
        what, why = f"pipeline_parallel {pinned} is too many stages", f"the chips and the layers allow {most}"
        problems.append(Problem(what, why, "pin fewer stages", path="constraints.pipeline_parallel"))
    if not problems:
        why = "no micro-batch size and data, context and expert parallel degree has room for all of them"
        problems.append(Problem("the pinned numbers of stages do not go together", why, "relax one", "constraints"))
    return problems

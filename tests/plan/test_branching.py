"""Plans of models whose layers branch: direct transfers, memory of what really arrives, and what the checker says."""

from __future__ import annotations

import random
from typing import Any

import pytest

from planner.cost.branching_recurrence import BranchTimes
from planner.cost.model import CostModel
from planner.cost.schedule import in_flight_counts
from planner.cost.tables import Mode, Setting
from planner.graph import build_graph
from planner.plan import check_plan
from planner.plan.assemble import PipelineChoice, Proved, StageChoice, assemble_plan
from planner.plan.evaluate import PipelineNumbers, evaluate_plan
from planner.plan.layout import shapes_of
from planner.plan.schema import Plan
from planner.spec import Cluster, ModelSpec, parse_cluster, parse_model
from tests.plan.small import CLUSTER, edited
from tests.search.branching.test_branching_recurrence import step_by_longest_path

MB = 10**6


def skipping(sizes: dict[tuple[int, int], int], layers: int) -> ModelSpec:
    """Layers l0, l1, ...; sizes: MB from one to another."""
    nodes = ", ".join(
        f"{{name: l{i}, parameters: 1000, forward_flops: {i + 1} GFLOP, saved: 1 MB, output: 1 MB}}"
        for i in range(layers)
    )
    edges = ", ".join(f"{{source: l{a}, target: l{b}, bytes: {size} MB}}" for (a, b), size in sizes.items())
    text = f"""
name: skipping
model: {{graph: {{nodes: [{nodes}], edges: [{edges}]}}}}
training: {{sequence_length: 64, global_batch: 32, micro_batch_sizes: [1, 2]}}
"""
    return parse_model(text, "skipping.yaml")


def cluster() -> Cluster:
    return parse_cluster(CLUSTER, "cluster.yaml")


def cost_of(model: ModelSpec) -> CostModel:
    return CostModel(cluster(), model, build_graph(model))


def choice_of(held: list[list[int]], size: int = 1) -> PipelineChoice:
    """One stage on `fast`, the others on `slow`; two replicas."""
    stages = tuple(StageChoice.of(int(s > 0), Mode(1), layers, {}) for s, layers in enumerate(held))
    return PipelineChoice("1f1b", Setting(size, 2, single_stage=len(held) == 1), 16 // size, stages)


def numbers_of(model: ModelSpec, choice: PipelineChoice) -> PipelineNumbers:
    cost = cost_of(model)
    return evaluate_plan(cost, shapes_of(cost, [choice]))[0]


U_SHAPE = {(0, 1): 2, (1, 2): 3, (2, 3): 5, (0, 3): 7}


def test_a_tensor_that_skips_a_stage_is_sent_once_past_it() -> None:
    numbers = numbers_of(skipping(U_SHAPE, 4), choice_of([[0], [1], [2, 3]]))
    sent = {(b.source, b.target): b.num_bytes for b in numbers.boundaries}
    assert sent == {(0, 1): 2 * MB, (0, 2): 7 * MB, (1, 2): 3 * MB}


def test_a_stage_between_holds_no_buffer_for_it() -> None:
    numbers = numbers_of(skipping(U_SHAPE, 4), choice_of([[0], [1], [2, 3]]))
    # what arrives, and the gradients that come back: 2 + 7; 2 + 3; 7 + 3
    assert [stage.memory.buffers for stage in numbers.stages] == pytest.approx([9 * MB, 5 * MB, 10 * MB])


def test_one_tensor_for_several_layers_is_sent_to_each_stage_once() -> None:
    sizes = {(0, 1): 4, (0, 2): 4, (0, 3): 4, (1, 2): 1, (2, 3): 1}
    numbers = numbers_of(skipping(sizes, 4), choice_of([[0], [1, 2], [3]]))
    assert {(b.source, b.target): b.num_bytes for b in numbers.boundaries} == {
        (0, 1): 4 * MB,
        (0, 2): 4 * MB,
        (1, 2): 1 * MB,
    }
    assert numbers.stages[0].memory.buffers == pytest.approx(8 * MB)  # a gradient from each of the two


def test_transfers_take_what_the_same_bytes_take_on_a_chain() -> None:
    numbers = numbers_of(skipping(U_SHAPE, 4), choice_of([[0], [1], [2, 3]]))
    for boundary in numbers.boundaries:
        chain = cost_of(skipping({(0, 1): boundary.num_bytes // MB}, 2))
        ends = int(boundary.source > 0), Mode(1), int(boundary.target > 0), Mode(1)
        table = chain.transfer(*ends, boundary.same_node, Setting(1, 2))
        both = table.forward_s[0], table.backward_s[0]
        assert (boundary.onward_s, boundary.back_s) == pytest.approx(both, rel=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_plans_on_random_graphs_equal_a_second_computation(seed: int) -> None:
    r = random.Random(seed)
    n = r.randint(2, 9)
    sizes = {(a, b): r.choice([1, 2, 8]) for b in range(n) for a in range(b) if r.random() < 0.4}
    stage_of = along_edges(r, n, sizes)
    held = [[v for v in range(n) if stage_of[v] == s] for s in range(max(stage_of) + 1)]
    size = r.choice([1, 2])
    model, choice = skipping(sizes, n), choice_of(held, size)
    if build_graph(model).is_chain:
        return
    numbers = numbers_of(model, choice)
    sent: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for (a, b), megabytes in sizes.items():
        if stage_of[a] != stage_of[b]:
            sent.setdefault((stage_of[a], stage_of[b]), set()).add((a, megabytes))
    expected = {pair: size * MB * sum(m for _, m in tensors) for pair, tensors in sent.items()}
    assert {(b.source, b.target): b.num_bytes for b in numbers.boundaries} == expected
    for s, stage in enumerate(numbers.stages):
        assert stage.memory.buffers == pytest.approx(sum(x for pair, x in expected.items() if s in pair)), seed
    times = BranchTimes(
        [stage.time.forward_s for stage in numbers.stages],
        [stage.time.backward_s for stage in numbers.stages],
        [stage.time.update_s for stage in numbers.stages],
        {(b.source, b.target): b.onward_s for b in numbers.boundaries},
        {(b.source, b.target): b.back_s for b in numbers.boundaries},
    )
    counts = in_flight_counts("1f1b", len(held), 16 // size)
    assert numbers.step_time_s == pytest.approx(step_by_longest_path(times, counts, 16 // size), rel=1e-12)


def along_edges(r: random.Random, n: int, sizes: dict[tuple[int, int], int]) -> list[int]:
    """A random stage for every layer, none before what feeds it, none left out."""
    stage_of = [0] * n
    for v in range(n):
        least = max((stage_of[a] for a, b in sizes if b == v), default=0)
        stage_of[v] = r.randint(least, max(least, min(3, v)))
    used = sorted(set(stage_of))
    return [used.index(s) for s in stage_of]


def plan_of(held: list[list[int]], sizes: dict[tuple[int, int], int]) -> Plan:
    model = skipping(sizes, 1 + max(b for _, b in sizes))
    graph = build_graph(model)
    proved = Proved(bound=0.0, gap_asked=1.0, why_stopped="gap", plan_space={})
    return assemble_plan(cluster(), model, graph, cost_of(model), choice_of(held), proved)


TOWERS = {(0, 2): 1, (1, 3): 2, (2, 4): 3, (3, 4): 5}


def test_a_plan_whose_stages_hold_no_ranges_passes() -> None:
    plan = plan_of([[1, 3], [0, 2, 4]], TOWERS)
    assert [stage.layers for stage in plan.pipelines[0].stages] == [("l1", "l3"), ("l0", "l2", "l4")]
    assert check_plan(plan) == ()


def found(plan: Plan) -> str:
    return "; ".join(f"{v.code} {v.render()}" for v in check_plan(plan))


def test_a_layer_before_what_feeds_it_is_found() -> None:
    plan = plan_of([[1, 3], [0, 2], [4]], TOWERS)
    swapped: dict[str, Any] = {"stage_1": {"layers": ["l0", "l4"]}, "stage_2": {"layers": ["l2"]}}
    assert "out of order: l4 on stage 1 needs l2, which is on stage 2" in found(edited(plan, **swapped))


def test_layers_of_a_stage_in_another_order_than_the_models_are_found() -> None:
    plan = plan_of([[1, 3], [0, 2, 4]], TOWERS)
    assert "are not in the order of the model" in found(edited(plan, stage_1={"layers": ["l2", "l0", "l4"]}))


def test_a_missing_layer_is_found() -> None:
    plan = plan_of([[1, 3], [0, 2, 4]], TOWERS)
    assert "missing: l2" in found(edited(plan, stage_1={"layers": ["l0", "l4"]}))


def test_a_tensor_that_is_passed_on_from_stage_to_stage_is_found() -> None:
    plan = plan_of([[0], [1], [2, 3]], U_SHAPE)
    transfers = [t.model_dump(mode="json") for t in plan.pipelines[0].transfers]
    relayed = [t for t in transfers if (t["from_stage"], t["to_stage"]) != (0, 2)]
    assert "the stages that feed each other are (0, 1), (0, 2), (1, 2)" in found(edited(plan, transfers=relayed))
    assert "transfers" in found(edited(plan, transfers=[t | {"bytes": t["bytes"] + 1} for t in transfers]))


def test_a_process_knows_who_sends_it_what_past_its_neighbours() -> None:
    plan = plan_of([[0], [1], [2, 3]], U_SHAPE)
    last = next(view for view in map(plan.for_rank, range(6)) if view.stage == 2)
    assert [peer.stage for peer in last.receives_from] == [0, 1]
    assert last.sends_to == ()
    first = plan.for_rank(last.receives_from[0].ranks[0])
    assert (first.stage, first.replica) == (0, last.replica)
    assert [peer.stage for peer in first.sends_to] == [1, 2]


def test_the_plan_says_that_tensors_go_directly() -> None:
    text = " ".join(plan_of([[0], [1], [2, 3]], U_SHAPE).assumptions)
    assert "a tensor goes once and directly" in text
    assert "two receive buffers" not in text

"""Plans of several pipeline shapes: who sits where, and what they share."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.cost.communication import transfer_s
from planner.cost.links import group_links, link_between
from planner.cost.model import CostModel
from planner.cost.placement import Block, place_blocks
from planner.cost.recurrence import ChainTimes, step_time
from planner.cost.tables import Mode
from planner.graph import build_graph
from planner.plan import check_plan, parse_plan
from planner.plan.assemble import PipelineChoice, Proved, assemble_plan
from planner.plan.evaluate import evaluate_plan
from planner.plan.file import dump_plan
from planner.plan.layout import shapes_of
from planner.plan.ranks import ReductionGroup
from planner.plan.schema import Pipeline, Plan
from planner.spec import load_cluster, load_model, parse_cluster, parse_model
from tests.cost.stand_ins import GB, LinkPath, NodeGroup, cluster_of, cost_model
from tests.plan.mixed import SITES, entry, mixed_plan, three, two
from tests.plan.small import CLUSTER, MODEL, choice, small_plan


@pytest.fixture(scope="module")
def plan() -> Plan:
    return mixed_plan(two())


@pytest.fixture(scope="module")
def of_three() -> Plan:
    return mixed_plan(three())


# ---- one shape ------------------------------------------------------------------------------------------------------


def test_one_shape_in_a_list_is_a_plan_of_one_shape() -> None:
    one = entry(2, 8, 2, *((s.group, s.tensor, s.end) for s in choice().stages), recompute=[{"layers.0": "full"}])
    assert dump_plan(mixed_plan([one])) == dump_plan(small_plan())


# ---- places ---------------------------------------------------------------------------------------------------------


def test_the_widest_stages_of_a_group_come_first_whatever_shape_they_are_of(plan: Plan, of_three: Plan) -> None:
    assert [[stage.ranks for stage in p.stages] for p in plan.pipelines] == [
        [((0, 1),), ((4, 5),)],
        [((2,), (3,)), ((6,), (7,))],
    ]
    assert [[stage.ranks for stage in p.stages] for p in of_three.pipelines] == [
        [((0, 1),), ((4, 5),)],
        [((2, 3),)],
        [((6,), (7,)), ((8,), (9,)), ((10,), (11,))],
    ]
    narrow_first = mixed_plan(two()[::-1])
    assert [[stage.ranks for stage in p.stages] for p in narrow_first.pipelines] == [
        [((2,), (3,)), ((6,), (7,))],
        [((0, 1),), ((4, 5),)],
    ]


def test_each_shape_has_its_own_counts(of_three: Plan) -> None:
    assert [(p.replicas, p.micro_batches, p.micro_batch_size) for p in of_three.pipelines] == [
        (1, 4, 2),
        (1, 4, 4),
        (2, 2, 2),
    ]


def test_a_boundary_is_inside_a_node_when_it_is_in_every_replica(of_three: Plan) -> None:
    # the third shape: 6 | 7 of the first slow node, 8 | 9 and 10 | 11 of the second
    assert [[t.same_node for t in p.transfers] for p in of_three.pipelines] == [[False], [], [False, True]]


def test_chips_that_no_shape_uses_are_idle(plan: Plan, of_three: Plan) -> None:
    assert [(item.node_group, item.chips) for item in plan.idle] == [("slow", 4)]
    assert of_three.idle == ()
    idle = [w.message for w in plan.warnings if w.code == "idle"]
    assert idle == ["4 of the 8 chips of node group slow stay idle: 8-11"]


# ---- time -----------------------------------------------------------------------------------------------------------


def own_step(pipeline: Pipeline) -> float:
    times = [stage.time for stage in pipeline.stages]
    chain = ChainTimes(
        forward=[t.forward_s for t in times],
        backward=[t.backward_input_s + t.backward_weight_s + t.recompute_s for t in times],
        update=[t.reduction_s + t.optimizer_s for t in times],
        send_forward=[t.time_s for t in pipeline.transfers],
        send_backward=[t.backward_time_s for t in pipeline.transfers],
    )
    return step_time(chain, [stage.in_flight for stage in pipeline.stages], pipeline.micro_batches)


def test_a_step_takes_as_long_as_the_slowest_pipeline(of_three: Plan) -> None:
    steps = [own_step(pipeline) for pipeline in of_three.pipelines]
    assert of_three.prediction.step_time_s == pytest.approx(max(steps), rel=1e-12)
    assert len(set(steps)) == 3


def test_prediction_and_price_count_the_chips_of_all_shapes(plan: Plan) -> None:
    prediction = plan.prediction
    assert prediction.tokens_per_s == pytest.approx(32 * 256 / prediction.step_time_s)
    assert prediction.tokens_per_s_per_chip == pytest.approx(prediction.tokens_per_s / 8)
    assert plan.training is not None and plan.training.price_per_hour == 4 * 2.00 + 4 * 1.00
    busy = sum(
        len(stage.ranks) * stage.tensor_parallel * (p.micro_batches * work + t.reduction_s + t.optimizer_s)
        for p in plan.pipelines
        for stage in p.stages
        for t in [stage.time]
        for work in [t.forward_s + t.backward_input_s + t.backward_weight_s + t.recompute_s]
    )
    assert prediction.bubble_fraction == pytest.approx(1 - busy / (8 * prediction.step_time_s))
    # 100 and 50 TFLOPS a chip
    flops = build_cost(CLUSTER).model_flops_per_step
    assert prediction.mfu == pytest.approx(flops / prediction.step_time_s / (4 * 100e12 + 4 * 50e12))


def test_all_pipelines_that_cross_between_two_groups_share_a_line_of_limited_total() -> None:
    plan, cost_free = mixed_plan(two(), SITES), mixed_plan(two())
    cluster = parse_cluster(SITES, "cluster.yaml")
    alone, shared = link_between(cluster, 0, 1, 1), link_between(cluster, 0, 1, 3)
    assert shared.replica_bytes_per_s == pytest.approx(alone.replica_bytes_per_s / 3)
    # 1 + 2 pipelines; the second has micro-batches of one sequence and one chip a stage
    num_bytes = 256 * 512 * 2
    second = plan.pipelines[1].transfers[0]
    assert second.bytes == num_bytes
    assert second.time_s == pytest.approx(transfer_s(num_bytes, 1, 1, 1, shared))
    assert second.time_s > cost_free.pipelines[1].transfers[0].time_s
    assert check_plan(plan) == ()


# ---- gradients ------------------------------------------------------------------------------------------------------


def test_a_layer_is_summed_over_all_replicas_at_the_rate_of_the_slowest() -> None:
    """Ideal chips, 100 GB/s inside a node and NICs of 10 GB/s; four layers of a million parameters, fp32 gradients."""
    cost = cost_model(cluster_of(NodeGroup("a"), NodeGroup("b")), zero=0)
    choices = [entry(1, 8, 1, (0, 2, 3), (1, 2, 4)), entry(2, 4, 1, (0, 1, 2), (1, 1, 4))]
    first, second = evaluate_plan(cost, shapes_of(cost, choices))
    whole = 2 * (3 - 1) / 3 * 4e6  # 2 (R-1)/R * bytes of a layer, R = 3
    # layers 0 and 1: two chips of `a` and two replicas of one chip there, all in one node: 100 GB/s a replica
    inside = whole / 100e9
    # layer 2: the first shape has it on `a`, two rings of a NIC each; the second on `b`, one ring, a NIC of each of
    # its two replicas in the node: 20 GB/s a replica
    across = whole / 20e9
    assert [s.time.reduction_s for s in first.stages] == pytest.approx([2 * inside + across, inside])
    assert [s.time.reduction_s for s in second.stages] == pytest.approx([2 * inside, across + inside])


def test_stages_that_reduce_at_once_share_a_line_of_limited_total() -> None:
    paths = dict.fromkeys([(0, 1), (1, 0)], LinkPath(10 * GB, total_bytes_per_s=6 * GB))
    cost = cost_model(cluster_of(NodeGroup("a"), NodeGroup("b"), paths=paths), zero=0)
    stages = [(1, 1), (1, 2), (1, 4)]
    choices = [entry(1, 8, 1, *((0, t, e) for t, e in stages)), entry(1, 8, 1, *((1, t, e) for t, e in stages))]
    for numbers in evaluate_plan(cost, shapes_of(cost, choices)):
        # three stages, 2 GB/s each; a layer is 4 MB, R = 2: it crosses once each way
        assert [s.time.reduction_s for s in numbers.stages] == pytest.approx([2e-3, 2e-3, 4e-3])


def test_latency_counts_once_for_each_run_of_layers_that_the_same_stages_hold(plan: Plan) -> None:
    cost = build_cost(CLUSTER)
    inside = group_links(parse_cluster(CLUSTER, "cluster.yaml"), 0).inside.latency_s
    shapes = shapes_of(cost, two())
    first = evaluate_plan(cost, shapes)[0].stages[0].time.reduction_s
    # layers 0-2 with the other shape's first stage (inside the node), layer 3 with its second (over the NICs)
    fixed = 2 * (3 - 1) * inside + 2 * (3 - 1) * 5e-6
    table = cost.table(0, Mode(2), shapes[0].setting)
    assert table is not None
    assert first > fixed
    assert fixed > table.fixed_update_s


def build_cost(cluster_text: str, model_text: str = MODEL) -> CostModel:
    model = parse_model(model_text, "model.yaml")
    return CostModel(parse_cluster(cluster_text, "cluster.yaml"), model, build_graph(model))


def test_states_are_spread_over_the_replicas_of_all_shapes(plan: Plan) -> None:
    """ZeRO-1 states of bf16 with fp32 gradients, master weights and two moments: 12 bytes a parameter over R = 3."""
    alone = mixed_plan([entry(2, 16, 1, (0, 1, 3), (1, 1, 9))])
    of_mix, of_one = plan.pipelines[1].stages[0].memory.parts, alone.pipelines[0].stages[0].memory.parts
    assert of_mix["weights"] == of_one["weights"]
    assert of_mix["optimizer"] / of_one["optimizer"] == pytest.approx(2 / 3)


# ---- what a reader must know ----------------------------------------------------------------------------------------


def test_pipelines_that_never_fill_and_tight_stages_are_named_with_their_pipeline(of_three: Plan) -> None:
    (bubble,) = [w.message for w in of_three.warnings if w.code == "bubble"]
    assert bubble.startswith("pipeline 3: 3 stages share 2 micro-batches, so it never fills: ")
    peak = of_three.pipelines[1].stages[0].memory.peak_bytes
    tight = mixed_plan(three(), CLUSTER.replace("16 GiB", f"{round(peak / 0.95 / 0.94 / 2**20)} MiB"))
    messages = [w.message for w in tight.warnings if w.code == "tight"]
    assert any(m.startswith("stage 0 of pipeline 2 on fast is tight: ") for m in messages)


# ---- real inputs ----------------------------------------------------------------------------------------------------


def test_half_a_node_can_run_wide_and_half_narrow_stages_of_a_real_model() -> None:
    cluster = load_cluster("one-node-h100")
    model = load_model("llama-3.1-8b")
    cost = CostModel(cluster, model, build_graph(model))
    last, batch = cost.chain.num_layers, cost.global_batch
    choices = [entry(1, batch // 2, 1, (0, 4, last)), entry(2, batch // 4, 1, (0, 2, last))]
    wide, narrow = evaluate_plan(cost, shapes_of(cost, choices))
    ring = group_links(cluster, 0).inside
    parameters = build_graph(model).parameters
    # 4 + 2 bytes a parameter (fp32 gradients one way, bf16 weights the other), R = 3, all at the rate of two chips
    expected = (3 - 1) / 3 * parameters * 6 / (2 * ring.bytes_per_s) + 2 * 2 * ring.latency_s
    for numbers in (wide, narrow):
        assert numbers.stages[0].time.reduction_s == pytest.approx(expected, rel=2e-3)


def test_a_plan_over_old_and_new_nodes_holds() -> None:
    text = MODEL.replace("tokens: 1 B tokens", "precision: fp16")
    spec, model = load_cluster("mixed-lab"), parse_model(text, "model.yaml")
    graph = build_graph(model)
    choices = [entry(2, 4, 2, (0, 8, 6), (1, 8, 9)), entry(2, 8, 1, (1, 4, 4), (1, 2, 9))]
    proved = Proved(0.0, 0.01, "time", {})
    plan = assemble_plan(spec, model, graph, CostModel(spec, model, graph), choices, proved)
    assert check_plan(plan) == ()
    assert check_plan(parse_plan(dump_plan(plan), "plan.json")) == ()


# ---- what a trainer is told -----------------------------------------------------------------------------------------


def test_gradients_of_a_layer_are_averaged_over_the_stages_of_all_shapes_that_hold_it(plan: Plan) -> None:
    # processes are chips 0-7; 0 holds the left halves of the first four layers, 2 and 3 the first three whole
    view = plan.for_rank(0)
    assert view.reduction_groups == (
        ReductionGroup(("embedding", "layers.0", "layers.1"), (0, 2, 3)),
        ReductionGroup(("layers.2",), (0, 6, 7)),
    )
    view = plan.for_rank(6)
    assert view.reduction_groups == (
        ReductionGroup(("layers.2",), (0, 1, 6, 7)),  # both halves
        ReductionGroup(("layers.3", "layers.4", "layers.5", "norm", "head"), (4, 5, 6, 7)),
    )


def test_sequences_are_shared_out_by_what_each_pipeline_runs(of_three: Plan) -> None:
    views = [of_three.for_rank(rank) for rank in range(12)]
    shares = {(v.pipeline, v.replica): (v.first_sequence, v.num_sequences) for v in views}
    assert shares == {(0, 0): (0, 8), (1, 0): (8, 16), (2, 0): (24, 4), (2, 1): (28, 4)}


def test_local_ranks_count_the_chips_of_all_shapes_in_a_node(of_three: Plan) -> None:
    assert [of_three.for_rank(rank).local_rank for rank in range(12)] == [0, 1, 2, 3] * 3
    assert [of_three.for_rank(rank).node for rank in range(12)] == [0] * 8 + [1] * 4


def test_neighbours_are_of_the_same_shape_and_replica(of_three: Plan) -> None:
    view = of_three.for_rank(9)
    assert (view.pipeline, view.replica, view.stage, view.num_stages) == (2, 1, 1, 3)
    assert (view.previous, view.next) == ((7,), (11,))
    assert (of_three.for_rank(2).previous, of_three.for_rank(2).next) == ((), ())


def test_a_tied_matrix_is_averaged_with_those_who_hold_it_once(of_three: Plan) -> None:
    tied = MODEL.replace("vocab_size: 1024}", "vocab_size: 1024, tie_word_embeddings: true}")
    plan = mixed_plan(three(), model_text=tied)
    # halves on 0 and 5 hold the left slice; chip 2 has the left half of the only copy of its shape
    everybody = ReductionGroup(("embedding", "head"), (0, 2, 4, 6, 7, 10, 11))
    assert [plan.for_rank(rank).tied_groups for rank in (0, 2, 4)] == [(everybody,)] * 3
    assert plan.for_rank(8).tied_groups == ()


def test_routed_experts_of_several_shapes_are_averaged_like_every_other_weight(plan: Plan) -> None:
    assert plan.for_rank(6).expert_group == (6,)
    assert plan.for_rank(6).expert_reduction_group == ()


# ---- any mix --------------------------------------------------------------------------------------------------------


@st.composite
def mixes(draw: st.DrawFn) -> list[PipelineChoice]:
    """Two to four shapes that fit the chips of small.py; micro-batches whatever they are."""
    cost = build_cost(CLUSTER)
    choices: list[PipelineChoice] = []
    blocks: list[Block] = []
    for _ in range(draw(st.integers(2, 6))):
        cuts = sorted(draw(st.sets(st.integers(1, 8), max_size=2)))
        stages, own = [], []
        replicas = draw(st.integers(1, 2))
        for end in [*cuts, 9]:
            group, tensor = draw(st.integers(0, 1)), draw(st.sampled_from([1, 2]))
            stages.append((group, tensor, end))
            own.append(Block(group, tensor, replicas))
        if place_blocks(cost.groups, [*blocks, *own]) is not None:
            blocks += own
            schedule = draw(st.sampled_from(["1f1b", "gpipe"]))
            choices.append(
                entry(replicas, draw(st.integers(1, 4)), draw(st.sampled_from([1, 2])), *stages, schedule=schedule)
            )
    return choices


@settings(deadline=None, max_examples=30)
@given(mix=mixes(), sites=st.booleans())
def test_every_mix_makes_a_plan_that_passes_the_check(mix: list[PipelineChoice], sites: bool) -> None:
    if len(mix) < 2:
        return
    batch = sum(c.num_replicas * c.micro_batches * c.setting.micro_batch_size for c in mix)
    model = MODEL.replace("global_batch: 32", f"global_batch: {batch}").replace(
        "tokens: 1 B tokens", "micro_batch_sizes: [1, 2], schedules: [1f1b, gpipe]"
    )
    plan = mixed_plan(mix, SITES if sites else CLUSTER, model)
    assert check_plan(plan) == ()
    shares = sorted({(v.first_sequence, v.num_sequences) for v in map(plan.for_rank, range(len(plan.used_ranks)))})
    assert all(a + n == b for (a, n), (b, _) in pairwise(shares)) and sum(n for _, n in shares) == batch


@settings(deadline=None, max_examples=30)
@given(mix=mixes(), sites=st.booleans())
def test_tables_of_mixed_settings_are_below_what_any_mix_takes(mix: list[PipelineChoice], sites: bool) -> None:
    if len(mix) < 2:
        return
    cost = build_cost(SITES if sites else CLUSTER)
    shapes = shapes_of(cost, mix)
    for shape, numbers in zip(shapes, evaluate_plan(cost, shapes), strict=True):
        for stage, real in zip(shape.stages, numbers.stages, strict=True):
            table = cost.table(stage.group, stage.mode, shape.setting)
            assert table is not None
            kinds = cost.chain.kinds[stage.first : stage.end]
            least = sum(table.reduction_s[k] for k in kinds) + table.fixed_update_s
            assert least <= real.time.reduction_s * (1 + 1e-12)
        for a, b, boundary in zip(shape.stages, shape.stages[1:], numbers.boundaries, strict=False):
            free = cost.transfer(a.group, a.mode, b.group, b.mode, boundary.same_node, shape.setting)
            assert free.forward_s[cost.chain.kinds[a.end - 1]] <= boundary.onward_s * (1 + 1e-12)


def test_choices_without_room_are_the_callers_mistake() -> None:
    with pytest.raises(AssertionError, match="no room"):
        mixed_plan([entry(1, 8, 2, (0, 2, 9)), entry(2, 8, 1, (0, 2, 9))])

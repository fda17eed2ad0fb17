"""What people see, at 80 columns without colour. With DPLAN_UPDATE_SNAPSHOTS=1 in the environment they are written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, RenderableType

from planner.graph import build_graph
from planner.plan.schema import Plan
from planner.report.chips import chip_report, chip_table
from planner.report.legend import SHORT_POLICY, legend
from planner.report.model import model_numbers, model_report
from planner.report.plan import plan_report
from planner.spec import parse_cluster, parse_model
from tests.plan.handmade import document
from tests.plan.mixed import SITES, entry, mixed_plan, three, two
from tests.plan.small import CLUSTER, MODEL, choice, small_plan
from tests.plan.test_branching import plan_of
from tests.plan.test_drives import on_drives
from tests.plan.test_offload import offloading_plan

SNAPSHOTS = Path(__file__).parent / "snapshots"


def drawn(report: RenderableType, width: int = 80, encoding: str = "utf-8") -> str:
    console = Console(width=width, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(report)
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def compare(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("DPLAN_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(len(line) for line in text.splitlines()) <= 80


def changed(**changes: Any) -> Plan:
    return Plan.model_validate(document() | changes)


def crowded() -> Plan:
    """Long names, all degrees, a stage over its limit, one with little left, memory ignored, a gap that was missed."""
    whole = document()
    whole["ignored_constraints"] = ["memory"]
    whole["inputs"]["cluster"]["name"] = "h100-ascend-with-a-long-name"
    whole["certificate"] |= {"why_stopped": "time", "bound": 0.2, "gap": 0.5}
    whole["prediction"]["mfu"] = None
    whole["training"] = None
    first, second = whole["islands"][0]["pipelines"][0]["stages"]
    names = [f"layers.{i}" for i in range(60)]
    first |= {"node_group": "ascend-east", "chip": "moorethreads-mtt-s4000-48gb", "layers": ["embedding", *names]}
    first["recompute"] = dict.fromkeys(names[:20], "full") | dict.fromkeys(names[20:50], "selective")
    first["memory"]["peak_bytes"] = 80 * 2**30
    for stage in (first, second):
        stage |= {"context_parallel": 2, "expert_parallel": 8}
    second["layers"] = [
        *(f"encoder.layers.{i}" for i in range(3)),
        *(f"decoder.layers.{i}" for i in range(7)),
        "norm",
        "head",
    ]
    return Plan.model_validate(whole)


def test_a_plan() -> None:
    compare("plan", drawn(plan_report(changed())))


def test_a_plan_with_offloaded_layers() -> None:
    compare("plan_offload", drawn(plan_report(offloading_plan())))


def test_a_plan_whose_states_are_on_drives() -> None:
    text = drawn(plan_report(on_drives()))
    assert "  0  fast            4   2  nvme    embedding, layers.0-2  1/3 full" in text
    assert "  1  slow            4   2  chip    layers.3-4             none" in text
    assert "  in host memory, a chip of stage 0: 20.0 MiB\n  on drives, a chip of stage 0: 32.0 MiB\n" in text


def test_a_crowded_plan() -> None:
    compare("plan_crowded", drawn(plan_report(crowded())))


def test_a_plan_for_least_cost() -> None:
    certificate = document()["certificate"] | {"unit": "USD/token", "objective": 1.06e-8, "bound": 1.05e-8, "gap": 0.0}
    training = document()["training"] | {"tokens": None, "steps": None, "days": None, "cost": None}
    compare("plan_cost", drawn(plan_report(changed(certificate=certificate, training=training))))


def long() -> Plan:
    """Seven stages: three tight ones on `a` in the north, four on `b` in the south; a cluster whose order is b, a."""
    whole = document()
    groups = whole["inputs"]["cluster"]["document"]["node_groups"]
    whole["inputs"]["cluster"]["document"] = {
        "node_groups": [groups[1] | {"site": "south"}, groups[0] | {"site": "north"}]
    }
    pipeline = whole["islands"][0]["pipelines"][0]
    first, second = pipeline["stages"]
    first["layers"] = ["embedding", "layers.0"]
    pipeline["stages"] = [first] * 3 + [second] * 4
    transfer = pipeline["transfers"][0]
    pipeline["transfers"] = [
        transfer | {"from_stage": s, "to_stage": s + 1, "time_s": time, "transport": "host" if s == 2 else "rdma"}
        for s, time in enumerate((0.003, 0.003, 0.003, 0.00300, 0.00305, 0.00310))
    ]
    pipeline["reduction_s"] = 0.0
    whole["certificate"]["plan_space"]["tensor_parallel"] = {"a": [1, 2], "b": [1, 2, 4]}
    tight = [
        {"code": "tight", "message": f"stage {s} on a is tight: 6.7 % of its usable memory is left"} for s in range(3)
    ]
    whole["warnings"] += [*tight, {"code": "idle", "message": "1 of the 3 chips of node group a stays idle: 2"}]
    return Plan.model_validate(whole)


def test_a_long_plan_is_short() -> None:
    """Equal transfers share a row, those between groups do not; tight stages share a line; idle chips stand once."""
    text = drawn(plan_report(long()))
    compare("plan_long", text)
    assert "assumptions\n" not in text and "stays idle" not in text


def test_a_long_plan_in_full_hides_nothing() -> None:
    text = drawn(plan_report(long(), full=True))
    compare("plan_full", text)
    assert all(notice.message in text for notice in long().warnings)


def test_a_plan_whose_layers_branch() -> None:
    plan = plan_of([[1, 3], [0], [2, 4]], {(0, 2): 1, (1, 3): 2, (2, 4): 3, (3, 4): 5, (0, 4): 2})
    stated = {"layer_order": "every order that the graph allows: the layers of a stage are contiguous in the graph"}
    certificate = plan.certificate.model_copy(update={"plan_space": stated})
    compare("plan_branching", drawn(plan_report(plan.model_copy(update={"certificate": certificate}), full=False)))


def test_a_plan_of_several_shapes() -> None:
    """Each shape has its tables, without the titles that one shape has; a table before them says who does what."""
    plan = mixed_plan(three(), SITES.replace("16 GiB", "136 MiB"))
    assert [w.code for w in plan.warnings] == ["tight", "bubble"]
    text = drawn(plan_report(plan))
    compare("plan_mixed", text)
    assert "1 of 6 stages has less than 10 % memory left: 0 in pipeline 2" in text


def many(shapes: int) -> Plan:
    """Pipelines of one chip each, with one, two or three micro-batches; no two recompute as many layers of as many
    sequences.
    """
    full = [dict.fromkeys((f"layers.{i}" for i in range(j % 6)), "full") for j in range(shapes)]
    choices = [entry(1, 1 + j % 3, 1 + j // 6, (0 if j < 4 else 1, 1, 9), recompute=[full[j]]) for j in range(shapes)]
    batch = sum(c.micro_batches * c.setting.micro_batch_size for c in choices)
    model = MODEL.replace("global_batch: 32", f"global_batch: {batch}")
    return mixed_plan(choices, CLUSTER.replace("nodes: 2", "nodes: 5"), model)


def test_a_plan_of_many_shapes_is_short() -> None:
    """One row a shape, at most so many; the tables of the slowest."""
    text = drawn(plan_report(many(18)))
    compare("plan_many", text)
    shown = drawn(plan_report(many(18), full=True))
    assert all(f"pipeline {j + 1} of 18: " in shown for j in range(18)) and "more shapes" not in shown


def test_up_to_eight_shapes_are_shown_whole() -> None:
    text = drawn(plan_report(many(8)))
    assert all(f"pipeline {j + 1} of 8: " in text for j in range(8))
    assert len(text.splitlines()) < 90


def alike() -> Plan:
    """Three entries: two pairs of chips in one node, which run 10 and 4 micro-batches, and four chips elsewhere."""
    stages = (1, 1, 4), (1, 1, 9)
    return mixed_plan([entry(1, 10, 1, *stages), entry(1, 4, 1, *stages), entry(1, 1, 18, (0, 4, 9))])


def test_shapes_that_differ_in_micro_batches_alone_are_one() -> None:
    text = drawn(plan_report(alike()))
    compare("plan_alike", text)
    assert "2 shapes of pipeline, 3 replicas in all" in text
    assert "pipelines 1-2 of 3: 1 replica x 4 and 1 x 10 micro-batches of 1 sequence, 1f1b\n" in text
    full = drawn(plan_report(alike(), full=True))
    assert all(f"pipeline {j} of 3: " in full for j in (1, 2, 3))  # the entries of the file, one by one


def test_one_shape_with_unequal_micro_batches_has_the_tables_of_one() -> None:
    stages = (1, 1, 4), (1, 1, 9)
    text = drawn(plan_report(mixed_plan([entry(2, 9, 1, *stages), entry(2, 7, 1, *stages)])))
    assert "pipelines 1-2: 2 replicas x 7 and 2 x 9 micro-batches of 1 sequence, 1f1b\n" in text
    assert "then, once a step" in text and "shapes of pipeline" not in text


def test_many_numbers_of_micro_batches_are_a_range() -> None:
    plan = mixed_plan([entry(1, n, 1, (1, 1, 9)) for n in (2, 3, 5, 10, 12)])
    assert "pipelines 1-5: 5 replicas x 2-12 micro-batches of 1 sequence, 1f1b\n" in drawn(plan_report(plan))


def test_shapes_that_hold_different_memory_are_listed_apart() -> None:
    stages = (1, 1, 4), (1, 1, 9)
    text = drawn(plan_report(mixed_plan([entry(1, 30, 1, *stages), entry(2, 1, 1, *stages)])))
    assert "pipeline 1 of 2: " in text and "pipeline 2 of 2: " in text  # two in flight, and one


def everything() -> Plan:
    """Each abbreviation that can appear in the tables of stages, at once."""
    plan = offloading_plan()
    whole = plan.model_dump(mode="json")
    first, second, third = whole["islands"][0]["pipelines"][0]["stages"]
    policies = ("full", "selective", "offload", "selective_offload", "full_offload")
    first["layers"] = ["embedding", *(f"layers.{i}" for i in range(5))]
    first["recompute"] = {f"layers.{i}": policy for i, policy in enumerate(policies)}
    first |= {"context_parallel": 2, "expert_parallel": 2, "zero": 1, "offload_optimizer": "host", "replicas": 2}
    first["time"]["recompute_s"] = 1e-5
    second["memory"]["peak_bytes"] = 2 * second["memory"]["usable_bytes"]
    third["memory"]["peak_bytes"] = third["memory"]["usable_bytes"]
    return Plan.model_validate(whole)


def test_every_abbreviation_that_appears_is_explained() -> None:
    text = drawn(plan_report(everything()), width=150)
    table = text.split("1f1b\n")[1]
    columns = {"node", "group", "chips", "layers", "recompute"}  # words, no abbreviations
    named = [
        *(set(table.splitlines()[0].split()) - columns),
        *SHORT_POLICY.values(),
        "over",
        "tight",
        "waits",
        "hatched",
    ]
    assert {"tp", "cp", "ep", "ZeRO", "states", "share"} < set(named)
    explained = " ".join(text.split())
    assert [name for name in named if f" {name}: " not in explained] == []
    assert all(f" {short}" in table for short in SHORT_POLICY.values())


def test_nothing_is_explained_that_does_not_appear() -> None:
    assert legend(small_plan(chosen=choice()).pipelines).startswith("tp: tensor parallel degree; n/m: ")
    assert legend(mixed_plan(two()[1:] * 2).pipelines) == "tp: tensor parallel degree"


def test_what_was_trained_stands_under_the_title() -> None:
    first, second, *_ = drawn(plan_report(small_plan())).splitlines()
    assert first == "toy on bench"
    assert second == "  16.8 M parameters, 32 x 256 tokens a step, bf16, adamw, ZeRO 1"


def test_a_plan_without_a_price_for_each_chip_says_which() -> None:
    plan = small_plan(cluster_text=CLUSTER.replace(", steady: 1.00 USD/h", ""))
    text = drawn(plan_report(plan))
    assert "USD" not in text
    assert "no price is known for steady (8 used)" in text


def test_the_memory_of_a_chip_in_the_list_is_the_one_that_planning_uses() -> None:
    chip = parse_cluster(CLUSTER, "cluster.yaml").chips["quick"]
    assert "16.0 GiB" in drawn(chip_table([chip]))
    assert "15.5 GiB" in drawn(chip_table([chip.model_copy(update={"reported_memory_bytes": 31 * 2**29})]))


def test_a_model() -> None:
    spec = parse_model(MODEL.replace("1024}", "1024, tie_word_embeddings: true}"), "model.yaml")
    compare("model", drawn(model_report(model_numbers(spec, build_graph(spec)))))


def test_chips() -> None:
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    compare("chips", drawn(chip_table(list(cluster.chips.values()))))


def test_a_chip() -> None:
    cluster = parse_cluster(CLUSTER, "cluster.yaml")
    sources = {
        "memory": "data sheet, page 2",
        "peak.bf16": "data sheet, page 2",
        "nic.bandwidth": "measured " + "x" * 70,
    }
    chip = cluster.chips["quick"].model_copy(update={"sources": sources, "notes": "A chip that does not exist."})
    compare("chip", drawn(chip_report(chip)))


@pytest.mark.parametrize("width", [60, 100, 200])
def test_any_width_shows_every_stage_and_number(width: int) -> None:
    text = drawn(plan_report(changed()), width)
    assert "400.0 ms" in text and "12.1 %" in text


def test_bars_are_ascii_where_the_terminal_is() -> None:
    from planner.report.bars import Bar

    class Options:
        ascii_only = True

    bar = Bar(((0.5, "cyan"), (0.25, "magenta")), width=8)
    console = Console()
    drawn_bar = "".join(segment.text for segment in bar.__rich_console__(console, Options()))  # type: ignore[arg-type]
    assert drawn_bar == "####++.."


def test_a_plan_on_a_topology_shows_its_nodes_switch_by_switch():
    topology = """
topology:
  - name: pod
    uplink: 2 GB/s
    switches:
      - {name: left, nodes: {fast: 1, slow: 1-1}, uplink: 1 GB/s, latency: 1 us}
      - {name: right, nodes: {slow: 0-0}, uplink: 1 GB/s, latency: 1 us}
"""
    compare("plan_topology", drawn(plan_report(mixed_plan(two(), CLUSTER + topology))))

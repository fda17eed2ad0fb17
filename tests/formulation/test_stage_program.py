"""One golden a constraint family of the stage program, on the tiny leaf of tiny.py (time unit: 3 s)."""

from __future__ import annotations

import inspect

import pytest

from planner.cost.rows import window_rows
from planner.search import program, settle
from planner.search.candidates import Limits
from planner.search.program import StageProgram, build_program
from planner.search.windows import Windows
from tests.formulation.as_text import expression, family_as_text
from tests.formulation.tiny import tiny_leaf

GOLDENS = {
    # windows: stage 0 always holds the embedding (run 0), stage 1 always the head (run 2)
    "add_layer_counts": """
least__s0__r0: take__s0__r0__q0 >= 1
least__s1__r2: take__s1__r2__q0 >= 1
""",
    "place_layers": """
place__r0: take__s0__r0__q0 = 1
place__r1: take__s0__r1__q0 + take__s0__r1__q1 + take__s1__r1__q0 + take__s1__r1__q1 = 3
place__r2: take__s1__r2__q0 = 1
""",
    "keep_order": """
begun__s0__r1: - started__s0__r1 + take__s0__r1__q0 + take__s0__r1__q1 >= 0
finish__s0__r0: - started__s0__r1 + take__s0__r0__q0 >= 0
start__s0__r1: - 3 started__s0__r1 + take__s0__r1__q0 + take__s0__r1__q1 <= 0
""",
    "fill_stages": """
fill__s0: take__s0__r0__q0 + take__s0__r1__q0 + take__s0__r1__q1 >= 1
fill__s1: take__s1__r1__q0 + take__s1__r1__q1 + take__s1__r2__q0 >= 1
""",
    # 20 GiB less 1 GiB of buffers; stage 0 holds two micro-batches: embedding 4 + 2 x 1, layer 2 + 2 x 3, recomputed 2
    # + 2 x 1
    "limit_memory": """
memory__s0: 6 take__s0__r0__q0 + 8 take__s0__r1__q0 + 4 take__s0__r1__q1 + working__s0 <= 19
memory__s1: 5 take__s1__r1__q0 + 3 take__s1__r1__q1 + 6 take__s1__r2__q0 + working__s1 <= 19
""",
    # least working set 0.5 GiB; a recomputed layer needs 1.5, the head 2
    "hold_working_set": """
use__s0__r1__q1: take__s0__r1__q1 - 3 used__s0__r1__q1 <= 0
use__s1__r1__q1: take__s1__r1__q1 - 3 used__s1__r1__q1 <= 0
use__s1__r2__q0: take__s1__r2__q0 - used__s1__r2__q0 <= 0
working__s0__r1__q1: - used__s0__r1__q1 + working__s0 >= 0.5
working__s1__r1__q1: - used__s1__r1__q1 + working__s1 >= 0.5
working__s1__r2__q0: - 1.5 used__s1__r2__q0 + working__s1 >= 0.5
""",
    # 10 GiB of host memory: the states of embedding, layer and head take 2, 3 and 4; an offloaded layer has 3 more
    # for each of two micro-batches on stage 0 and one on stage 1, embedding and head 1
    "limit_host_memory": """
host__s0: 2 take__s0__r0__q0 + 4 take__s0__r0__q2 + 3 take__s0__r1__q0 + 3 take__s0__r1__q1 + 9 take__s0__r1__q2 <= 10
host__s1: 3 take__s1__r1__q0 + 3 take__s1__r1__q1 + 6 take__s1__r1__q2 + 4 take__s1__r2__q0 + 5 take__s1__r2__q2 <= 10
""",
    # 10 GiB of drives, states of 2, 3 and 4
    "limit_drives": """
drives__s0: 2 take__s0__r0__q0 + 3 take__s0__r1__q0 + 3 take__s0__r1__q1 <= 10
drives__s1: 3 take__s1__r1__q0 + 3 take__s1__r1__q1 + 4 take__s1__r2__q0 <= 10
""",
    # both ways at once: 6 GiB of buffers for a layer, 2 for embedding and head
    "hold_staging": """
staging__s0__r0__q2: staging__s0 - 2 used__s0__r0__q2 >= 0
staging__s0__r1__q2: staging__s0 - 6 used__s0__r1__q2 >= 0
staging__s1__r1__q2: staging__s1 - 6 used__s1__r1__q2 >= 0
staging__s1__r2__q2: staging__s1 - 2 used__s1__r2__q2 >= 0
""",
    # stage 0 alone, m = 4, k = 2, no way round: 3 (F + B) + F + B + update = 4 x 3 + 1 = 13 s an embedding (4.33
    # units), 4 x 6 + 0.5 = 24.5 s a layer,
    # 4 x 8 + 0.5 = 32.5 s a recomputed one; the constant is the fixed update of 0.125 s
    "bound_step": """
step__0: step - 4.33333 take__s0__r0__q0 - 8.16667 take__s0__r1__q0 - 10.8333 take__s0__r1__q1 >= 0.0416667
""",
}
FAMILIES = {
    "add_layer_counts": ("least",),
    "place_layers": ("place",),
    "keep_order": ("start", "begun", "finish"),
    "fill_stages": ("fill",),
    "limit_memory": ("memory",),
    "limit_host_memory": ("host",),
    "limit_drives": ("drives",),
    "hold_working_set": ("use", "working"),
    "bound_step": ("step",),
    "hold_staging": ("staging",),
}


ON_HOST = ("limit_host_memory", "hold_staging")
"""Families of leaves whose layers may be offloaded."""


def tiny_program(
    usable_host_gib: float = 10.0, offloads: bool = False, usable_drive_gib: float | None = None
) -> StageProgram:
    leaf = tiny_leaf(usable_host_gib=usable_host_gib, offloads=offloads, usable_drive_gib=usable_drive_gib)
    rows = window_rows(leaf.micro_batches, leaf.in_flight, 0, 0)[:1]
    return build_program(leaf, Windows.whole(leaf), 1000.0, rows)


@pytest.mark.parametrize("family", GOLDENS)
def test_constraint_family_reads_as_its_golden(family: str) -> None:
    m = tiny_program(offloads=family in ON_HOST, usable_drive_gib=10.0 if family == "limit_drives" else None)
    assert family_as_text(m.lp, *FAMILIES[family]) == GOLDENS[family].strip()


def test_pinned_stages_have_their_number_of_layers() -> None:
    leaf = tiny_leaf(Limits(layers_per_stage=(2, 3)))
    m = build_program(leaf, Windows.whole(leaf), 1000.0, [])
    assert family_as_text(m.lp, "pinned") == "\n".join(
        [
            "pinned__s0: take__s0__r0__q0 + take__s0__r1__q0 + take__s0__r1__q1 = 2",
            "pinned__s1: take__s1__r1__q0 + take__s1__r1__q1 + take__s1__r2__q0 = 3",
        ]
    )


def test_transfer_times_follow_the_kind_before_the_cut() -> None:
    # after the embedding 0.5 s = 0.167 units, after a layer 0.25 s = 0.083
    m = tiny_program()
    assert m.send_forward[0].constant == pytest.approx(0.5 / 3)
    assert expression(m.send_forward[0].items()) == "- 0.0833333 started__s0__r1"


def test_offloaded_layers_take_memory_and_time_where_they_wait() -> None:
    # on stage 0: static 2 GiB, nothing for micro-batches; 4 x (2.5 + 5) + 0.5 = 30.5 s of a layer (10.17 units)
    m = tiny_program(offloads=True)
    memory, step = family_as_text(m.lp, "memory"), family_as_text(m.lp, "step")
    assert "memory__s0: staging__s0 + 6 take__s0__r0__q0 + 4 take__s0__r0__q2 + 8 take__s0__r1__q0" in memory
    assert "+ 2 take__s0__r1__q2 + working__s0 <= 19" in memory
    assert "- 10.1667 take__s0__r1__q2" in step


def test_states_alone_take_host_memory() -> None:
    # stage 0 cannot hold the head
    assert family_as_text(tiny_program().lp, "host") == "\n".join(
        [
            "host__s0: 2 take__s0__r0__q0 + 3 take__s0__r1__q0 + 3 take__s0__r1__q1 <= 10",
            "host__s1: 3 take__s1__r1__q0 + 3 take__s1__r1__q1 + 4 take__s1__r2__q0 <= 10",
        ]
    )


def test_buffers_for_states_on_drives_leave_the_rest_of_host_memory_to_activations() -> None:
    # 8 of 10 GiB are buffers; an offloaded layer has 3 GiB for each micro-batch in flight, embedding and head 1
    assert family_as_text(tiny_program(offloads=True, usable_drive_gib=100.0).lp, "host", "drives") == "\n".join(
        [
            "host__s0: 2 take__s0__r0__q2 + 6 take__s0__r1__q2 <= 2",
            "host__s1: 3 take__s1__r1__q2 + take__s1__r2__q2 <= 2",
        ]
    )


def test_host_memory_without_a_limit_has_no_rows() -> None:
    assert family_as_text(tiny_program(float("inf"), offloads=True).lp, "host") == ""


def test_without_memory_pressure_no_recompute_is_offered() -> None:
    leaf = tiny_leaf(usable_gib=1000.0)
    m = build_program(leaf, Windows.whole(leaf), 1000.0, [])
    assert {q for _, _, q in m.take} == {0}


def test_host_memory_that_cannot_bind_has_no_rows() -> None:
    leaf = tiny_leaf(usable_host_gib=13.0)
    assert family_as_text(build_program(leaf, Windows.whole(leaf), 1000.0, []).lp, "host") == ""


def test_the_objective_is_the_step_alone() -> None:
    m = tiny_program()
    assert (expression(m.lp.objective.items()), m.lp.objective.constant) == ("step", 0)


def test_the_tie_break_prefers_layers_on_earlier_stages() -> None:
    m = tiny_program()
    settle.prefer_earlier_stages(m)
    assert expression(m.lp.objective.items()) == "take__s1__r1__q0 + take__s1__r1__q1 + take__s1__r2__q0"


def test_every_constraint_family_has_a_golden() -> None:
    # define_times adds no rows: its expressions are checked through bound_step and the transfer test
    families = {
        name
        for name, f in inspect.getmembers(program, inspect.isfunction)
        if not name.startswith("_") and next(iter(inspect.signature(f).parameters), "") == "m"
    }
    assert families == set(GOLDENS) | {"define_times"}

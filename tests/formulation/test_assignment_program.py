"""One golden a constraint family of the assignment program: three layers in a triangle on two equal chips and a third.

Limit 100, so that a percent is a unit of time. Layer 0 feeds 1 and 2, layer 1 feeds 2. Class 0: slots 0 and 1, class 1:
slot 2, where layer 2 cannot run and transfers are free. Only the rows of one slot are shown where all read alike.
"""

from __future__ import annotations

import inspect
import math

import pytest

from planner.search.branching import BranchingProblem, ChipClass, Tensor, program
from planner.search.branching.merge import coarsen
from planner.search.branching.program import AssignmentProgram, build_assignment
from tests.formulation.as_text import expression, family_as_text

GOLDENS = {
    # layer 2 has no place on slot 2
    "place_units": (
        ("place",),
        "",
        """
place__u0: place__u0__s0 + place__u0__s1 + place__u0__s2 = 1
place__u1: place__u1__s0 + place__u1__s1 + place__u1__s2 = 1
place__u2: place__u2__s0 + place__u2__s1 = 1
""",
    ),
    # slot 2 is of another class: no order between it and slot 1
    "order_equal_chips": (
        ("order",),
        "",
        """
order__u0__s1: place__u0__s1 <= 0
order__u1__s1: - place__u0__s0 + place__u1__s1 <= 0
order__u2__s1: - place__u0__s0 - place__u1__s0 + place__u2__s1 <= 0
""",
    ),
    "keep_contiguous": (
        ("gone", "stay", "leave"),
        "__s1",
        """
gone__v0__s1: left__v0__s1 + place__u0__s1 <= 1
gone__v1__s1: left__v1__s1 + place__u1__s1 <= 1
gone__v2__s1: left__v2__s1 + place__u2__s1 <= 1
leave__v0__v1__s1: - left__v0__s1 + left__v1__s1 - place__u0__s1 + place__u1__s1 >= 0
leave__v0__v2__s1: - left__v0__s1 + left__v2__s1 - place__u0__s1 + place__u2__s1 >= 0
leave__v1__v2__s1: - left__v1__s1 + left__v2__s1 - place__u1__s1 + place__u2__s1 >= 0
stay__v0__v1__s1: - left__v0__s1 + left__v1__s1 >= 0
stay__v0__v2__s1: - left__v0__s1 + left__v2__s1 >= 0
stay__v1__v2__s1: - left__v1__s1 + left__v2__s1 >= 0
""",
    ),
    # sizes 1, 2, 3 of 4; class 1 has no limit
    "limit_size": (
        ("size",),
        "",
        """
size__s0: 0.25 place__u0__s0 + 0.5 place__u1__s0 + 0.75 place__u2__s0 <= 1
size__s1: 0.25 place__u0__s1 + 0.5 place__u1__s1 + 0.75 place__u2__s1 <= 1
""",
    ),
    "limit_load": (
        ("load", "send", "take"),
        "__s1",
        """
load__s1: load - pay__t0__s1 - 2 pay__t1__s1 - 10 place__u0__s1 - 20 place__u1__s1 - 30 place__u2__s1 >= 0
send__t0__u1__s1: pay__t0__s1 - place__u0__s1 + place__u1__s1 >= 0
send__t0__u2__s1: pay__t0__s1 - place__u0__s1 + place__u2__s1 >= 0
send__t1__u2__s1: pay__t1__s1 - place__u1__s1 + place__u2__s1 >= 0
take__t0__u1__s1: pay__t0__s1 + place__u0__s1 - place__u1__s1 >= 0
take__t0__u2__s1: pay__t0__s1 + place__u0__s1 - place__u2__s1 >= 0
take__t1__u2__s1: pay__t1__s1 + place__u1__s1 - place__u2__s1 >= 0
""",
    ),
}


def triangle(parts: tuple[int, int, int] = (0, 0, 0)) -> BranchingProblem:
    equal = ChipClass(2, (10.0, 20.0, 30.0), (1.0, 2.0), 4.0)
    other = ChipClass(1, (40.0, 50.0, math.inf), (0.0, 0.0))
    return BranchingProblem((1.0, 2.0, 3.0), parts, (Tensor(0, (1, 2)), Tensor(1, (2,))), (equal, other))


def tiny_program() -> AssignmentProgram:
    return build_assignment(coarsen(triangle()), 30.0, 100.0)


@pytest.mark.parametrize("family", GOLDENS)
def test_constraint_family_reads_as_its_golden(family: str) -> None:
    prefixes, slot, golden = GOLDENS[family]
    lines = family_as_text(tiny_program().lp, *prefixes).splitlines()
    assert "\n".join(line for line in lines if line.split(":")[0].endswith(slot)) == golden.strip()


def test_free_transfers_leave_the_layers_times_alone() -> None:
    lines = family_as_text(tiny_program().lp, "load", "send", "take").splitlines()
    assert [line for line in lines if "__s2" in line] == ["load__s2: load - 40 place__u0__s2 - 50 place__u1__s2 >= 0"]


def test_the_objective_is_the_load_alone_between_bound_and_limit() -> None:
    m = tiny_program()
    assert (expression(m.lp.objective.items()), m.lp.objective.constant) == ("load", 0)
    assert (m.load.lowBound, m.load.upBound) == (30, 100)


def test_paths_are_only_looked_at_inside_parts_and_once_where_parts_repeat() -> None:
    assert program.path_layers(coarsen(triangle((0, 1, 0)))) == ([0, 2], [(0, 2)])
    # 0 -> 1 -> 2 forward and 3 -> 4 -> 5 backward, unit by unit the same
    tensors = tuple(Tensor(u, (u + 1,)) for u in (0, 1, 3, 4))
    chips = ChipClass(2, (1.0,) * 6, (0.0,) * 4)
    twice = BranchingProblem((0.0,) * 6, (0, 0, 0, 1, 1, 1), tensors, (chips,), ((0, 3), (1, 4), (2, 5)))
    assert program.path_layers(coarsen(twice)) == ([0, 1, 2], [(0, 1), (1, 2)])
    # backward the other way round, 3 <- 4 <- 5: other paths, so both parts count
    turned = (Tensor(0, (1,)), Tensor(1, (2,)), Tensor(4, (3,)), Tensor(5, (4,)))
    both = BranchingProblem((0.0,) * 6, (0, 0, 0, 1, 1, 1), turned, (chips,), ((0, 3), (1, 4), (2, 5)))
    assert program.path_layers(coarsen(both)) == ([0, 1, 2, 3, 4, 5], [(0, 1), (1, 2), (4, 3), (5, 4)])


def test_every_constraint_family_has_a_golden() -> None:
    families = {
        name
        for name, f in inspect.getmembers(program, inspect.isfunction)
        if not name.startswith("_") and next(iter(inspect.signature(f).parameters), "") == "m"
    }
    # add_places adds no rows: its variables are those of the rows of place_units
    assert families == set(GOLDENS) | {"add_places"}

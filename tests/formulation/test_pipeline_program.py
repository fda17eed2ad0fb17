"""One golden a constraint family of the stage program of a branching graph.

Three layers on three stages, limit 100 s, so that a percent is a second. Layer 0 feeds 1 and 2, which share a stage.
Two micro-batches, in flight 2, 2, 1. Forward 1, 2, 3 s, backward twice that, update 0.5, 0.5, 1 s and 0.25 s a stage.
"""

from __future__ import annotations

import inspect

import pytest

from planner.cost.branching_recurrence import branch_critical_path
from planner.search.branching import pipeline_program
from planner.search.branching.pipeline import PipelineProblem, StageTable, times_of
from planner.search.branching.pipeline_program import PipelineProgram, build_pipeline
from planner.search.branching.problem import Tensor
from tests.formulation.as_text import expression, family_as_text

GIB = float(2**30)

GOLDENS = {
    "place_layers": """
place__l0: place__l0__s0 + place__l0__s1 + place__l0__s2 = 1
place__l1: place__l1__s0 + place__l1__s1 + place__l1__s2 = 1
place__l2: place__l2__s0 + place__l2__s1 + place__l2__s2 = 1
""",
    "keep_order": """
order__l0__l1__s0: place__l0__s0 - place__l1__s0 >= 0
order__l0__l1__s1: place__l0__s0 + place__l0__s1 - place__l1__s0 - place__l1__s1 >= 0
order__l0__l2__s0: place__l0__s0 - place__l2__s0 >= 0
order__l0__l2__s1: place__l0__s0 + place__l0__s1 - place__l2__s0 - place__l2__s1 >= 0
""",
    "keep_together": """
together__l1__l2__s0: - place__l1__s0 + place__l2__s0 = 0
together__l1__l2__s1: - place__l1__s1 + place__l2__s1 = 0
together__l1__l2__s2: - place__l1__s2 + place__l2__s2 = 0
""",
    "fill_stages": """
fill__s0: place__l0__s0 + place__l1__s0 + place__l2__s0 >= 1
fill__s1: place__l0__s1 + place__l1__s1 + place__l2__s1 >= 1
fill__s2: place__l0__s2 + place__l1__s2 + place__l2__s2 >= 1
""",
    # static 1, 2, 3 GiB and in flight x (1, 1, 2); working sets 0, 1, 2; 6 GiB usable
    "limit_memory": """
memory__s0: 3 place__l0__s0 + 4 place__l1__s0 + 7 place__l2__s0 + working__s0 <= 6
memory__s1: 3 place__l0__s1 + 4 place__l1__s1 + 7 place__l2__s1 + working__s1 <= 6
memory__s2: 2 place__l0__s2 + 3 place__l1__s2 + 5 place__l2__s2 + working__s2 <= 6
working__l1__s0: - place__l1__s0 + working__s0 >= 0
working__l1__s1: - place__l1__s1 + working__s1 >= 0
working__l1__s2: - place__l1__s2 + working__s2 >= 0
working__l2__s0: - 2 place__l2__s0 + working__s0 >= 0
working__l2__s1: - 2 place__l2__s1 + working__s1 >= 0
working__l2__s2: - 2 place__l2__s2 + working__s2 >= 0
""",
    "send_tensors": """
made__t0__s0__s1: - place__l0__s0 + send__t0__s0__s1 <= 0
made__t0__s0__s2: - place__l0__s0 + send__t0__s0__s2 <= 0
made__t0__s1__s2: - place__l0__s1 + send__t0__s1__s2 <= 0
need__t0__l1__s1: place__l0__s1 - place__l1__s1 + send__t0__s0__s1 >= 0
need__t0__l1__s2: place__l0__s2 - place__l1__s2 + send__t0__s0__s2 + send__t0__s1__s2 >= 0
need__t0__l2__s1: place__l0__s1 - place__l2__s1 + send__t0__s0__s1 >= 0
need__t0__l2__s2: place__l0__s2 - place__l2__s2 + send__t0__s0__s2 + send__t0__s1__s2 >= 0
used__t0__s0__s1: - send__t0__s0__s1 + used__s0__s1 >= 0
used__t0__s0__s2: - send__t0__s0__s2 + used__s0__s2 >= 0
used__t0__s1__s2: - send__t0__s1__s2 + used__s1__s2 >= 0
""",
    # two micro-batches: 2 x (1 + 2) + 0.5, 2 x (2 + 4) + 0.5, 2 x (3 + 6) + 1; the constant is the fixed update
    "bound_stages": """
stage__s0: - 6.5 place__l0__s0 - 12.5 place__l1__s0 - 19 place__l2__s0 + step >= 0.25
stage__s1: - 6.5 place__l0__s1 - 12.5 place__l1__s1 - 19 place__l2__s1 + step >= 0.25
stage__s2: - 6.5 place__l0__s2 - 12.5 place__l1__s2 - 19 place__l2__s2 + step >= 0.25
""",
    # transfers of 1, 2, 3 s for the pairs (0, 1), (0, 2), (1, 2)
    "bound_links": """
back__s0__s1: - 2 send__t0__s0__s1 + step >= 0
back__s0__s2: - 4 send__t0__s0__s2 + step >= 0
back__s1__s2: - 6 send__t0__s1__s2 + step >= 0
there__s0__s1: - 2 send__t0__s0__s1 + step >= 0
there__s0__s2: - 4 send__t0__s0__s2 + step >= 0
there__s1__s2: - 6 send__t0__s1__s2 + step >= 0
""",
    # F0 on stage 0, over to stage 2 (2 s), F0 B0 F1 B1 there, back (2 s), B1 on stage 0 and its update:
    # M = 100 x ((1 + 2 + 2) / 2 + 1) = 350, less the fixed update of 0.25
    "bound_path": """
path__0: - 3.5 place__l0__s0 - 6 place__l0__s2 - 6.5 place__l1__s0 - 12 place__l1__s2 - 10 place__l2__s0 \
- 18 place__l2__s2 - 4 send__t0__s0__s2 + step - 350 used__s0__s2 >= -349.75
""",
}
FAMILIES = {
    "place_layers": ("place",),
    "keep_order": ("order",),
    "keep_together": ("together",),
    "fill_stages": ("fill",),
    "limit_memory": ("memory", "working"),
    "send_tensors": ("made", "need", "used"),
    "bound_stages": ("stage",),
    "bound_links": ("there", "back"),
    "bound_path": ("path",),
}


def tiny_pipeline() -> PipelineProblem:
    table = StageTable(
        forward_s=(1.0, 2.0, 3.0),
        backward_s=(2.0, 4.0, 6.0),
        update_s=(0.5, 0.5, 1.0),
        static_bytes=(1 * GIB, 2 * GIB, 3 * GIB),
        saved_bytes=(1 * GIB, 1 * GIB, 2 * GIB),
        transient_bytes=(0.0, 1 * GIB, 2 * GIB),
        usable_bytes=6 * GIB,
        fixed_update_s=0.25,
    )
    sends = {(0, 1): (1.0,), (0, 2): (2.0,), (1, 2): (3.0,)}
    return PipelineProblem((Tensor(0, (1, 2)),), (table,) * 3, (2, 2, 1), 2, sends, sends, ((1, 2),))


def tiny_program() -> PipelineProgram:
    problem = tiny_pipeline()
    row = branch_critical_path(times_of(problem, (0, 1, 2)), problem.in_flight, problem.micro_batches)
    return build_pipeline(problem, 10.0, 100.0, [row])


@pytest.mark.parametrize("family", GOLDENS)
def test_constraint_family_reads_as_its_golden(family: str) -> None:
    assert family_as_text(tiny_program().lp, *FAMILIES[family]) == GOLDENS[family].strip()


def test_the_objective_is_the_step_alone_between_bound_and_limit() -> None:
    m = tiny_program()
    assert (expression(m.lp.objective.items()), m.lp.objective.constant) == ("step", 0)
    assert (m.step.lowBound, m.step.upBound) == (10, 100)


def test_every_constraint_family_has_a_golden() -> None:
    # define_times adds no rows: its expressions are checked through the rows of stages, links and paths
    families = {
        name
        for name, f in inspect.getmembers(pipeline_program, inspect.isfunction)
        if not name.startswith("_") and next(iter(inspect.signature(f).parameters), "") == "m"
    }
    assert families == set(GOLDENS) | {"define_times"}

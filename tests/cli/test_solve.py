"""`dplan solve`: what it writes, what it says, how it leaves."""

from __future__ import annotations

import itertools
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulp
import pytest

import planner.cli.output
import planner.search
import planner.spec
from planner import Notice, Plan, SolveResult, check_plan, load_cluster
from planner.cli.solve import Solver
from planner.errors import InfeasibleError, InterruptedSolve, NoPlanFoundError
from planner.plan.file import dump_plan, write_atomic
from planner.search.highs import SOLVERS
from tests.cli.running import dplan, dplan_quietly, forked
from tests.plan.small import CLUSTER, MODEL, small_plan

ROOT = Path(__file__).parents[2]
ONE_SHAPE = "constraints: {shapes: identical}\n"
"""Identical pipelines alone take a moment."""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """cluster.yaml and model.yaml in the current directory."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.yaml").write_text(MODEL + ONE_SHAPE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, answer: SolveResult | Exception) -> list[Any]:
    """Let the search answer at once; gives the options that it was asked with."""
    asked: list[Any] = []

    def search(cluster: Any, model: Any, options: Any, progress: Any) -> SolveResult:
        asked.append(options)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(planner.search, "solve", search)
    return asked


def with_certificate(plan: Plan, **changes: Any) -> Plan:
    return plan.model_copy(update={"certificate": plan.certificate.model_copy(update=changes)})


def loose(why: str) -> SolveResult:
    """A plan whose gap of 1 % is above the asked one."""
    return SolveResult(with_certificate(small_plan(), why_stopped=why, gap_asked=0.001), why)  # type: ignore[arg-type]


# ---- a real solve ---------------------------------------------------------------------------------------------------


def test_a_plan_is_found_checked_and_written(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.code == 0, ran.err
    plan = Plan.load("plan.json")
    assert check_plan(plan) == ()
    assert plan.certificate.gap <= 0.01 * (1 + 1e-6)
    assert ran.out.startswith("toy on bench\n")
    assert ran.out.endswith("\nwrote plan.json\n")


def test_equal_inputs_give_equal_bytes(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    for name in ("a.json", "b.json"):
        assert dplan(capsys, "solve", "cluster.yaml", "model.yaml", "-o", name).code == 0
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()


def test_what_show_prints_is_what_solve_printed(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    solved = dplan(capsys, "solve", "cluster.yaml", "model.yaml").out
    assert dplan(capsys, "show").out + "\nwrote plan.json\n" == solved


# ---- outputs --------------------------------------------------------------------------------------------------------


def test_json_prints_the_plan_and_writes_it_too(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--json")
    assert Plan.model_validate(json.loads(ran.out)) == small_plan() == Plan.load("plan.json")


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_a_dash_writes_the_plan_on_stdout_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path, more: list[str]
) -> None:
    pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "-o", "-", *more)
    assert ran.out == dump_plan(small_plan())
    assert not Path("plan.json").exists()


def test_warnings_go_to_stderr_each_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    notices = (Notice("precision", "v100 is left out"), Notice("precision", "v100 is left out"))
    pretend(monkeypatch, SolveResult(small_plan(), "gap", notices))
    assert dplan(capsys, "solve", "cluster.yaml", "model.yaml").err == "warning: v100 is left out\n"


def test_options_reach_the_search_in_base_units(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    asked = pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    options = ["--time-limit", "2 min", "--gap", "0.5 %", "--jobs", "2", "--objective", "cost", "--fixed-order"]
    options += ["--solver", "cbc", "--solver-log", "cbc.log"]
    dplan(capsys, "solve", "cluster.yaml", "model.yaml", *options)
    (given,) = asked
    assert (given.time_limit_s, given.gap, given.jobs) == (120.0, 0.005, 2)
    assert (given.solver, given.solver_log) == ("cbc", "cbc.log")
    assert (given.objective, given.fixed_order, given.ignore_memory) == ("cost", True, False)


# ---- how it leaves --------------------------------------------------------------------------------------------------


def test_a_gap_missed_in_time_is_said_and_leaves_with_0(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, loose("time"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--gap", "0.1 %")
    assert ran.code == 0
    said = "proved to be within 1.00 % of the best; the time limit came first (asked: 0.10 %): more time may help"
    assert ran.err == f"warning: {said}\n"
    assert Path("plan.json").exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"shares_used_up": ("better mixes",)},
            "the share of the time limit for better mixes ran out (asked: 0.10 %): more time may help",
        ),
        ({"why_stopped": "exhausted"}, "all that the search does is done (asked: 0.10 %): more time changes nothing"),
    ],
)
def test_it_is_said_whether_more_time_would_help(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    files: Path,
    changes: dict[str, Any],
    words: str,
) -> None:
    plan = with_certificate(loose("time").plan, **changes)
    pretend(monkeypatch, SolveResult(plan, plan.certificate.why_stopped))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--gap", "0.1 %")
    assert (ran.code, ran.err) == (0, f"warning: proved to be within 1.00 % of the best; {words}\n")
    assert words in " ".join(ran.out.split())


def test_where_more_time_changes_nothing_the_space_that_is_proved_more_closely_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    half = 0.5 * small_plan().certificate.objective
    plan = with_certificate(loose("exhausted").plan, bound=0.0, gap=1.0, identical_bound=half)
    pretend(monkeypatch, SolveResult(plan, "exhausted"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.err.endswith("nothing; `constraints: {shapes: identical}` is proved more closely: 50.00 %\n")
    assert "gap 50.00 %; `constraints: {shapes: identical}` searches these alone" in " ".join(ran.out.split())


def test_a_gap_that_closed_is_no_warning_also_where_the_clock_had_a_part(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    plan = with_certificate(small_plan(), why_stopped="time", gap_asked=1.0)
    pretend(monkeypatch, SolveResult(plan, "time"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.err == ""
    assert "as close as asked, but the clock had a part in it" in ran.out and "limit came" not in ran.out


def on_terminals(directory: Path, *arguments: str) -> str:
    """What a person sees who watches both outputs of `dplan solve`."""
    master, slave = pty.openpty()
    process = start([*arguments], directory, stdout=slave, stderr=slave)
    os.close(slave)
    shown = read_until(master, lambda text: False).decode()
    os.close(master)
    assert process.wait(timeout=60) == 0, shown
    return shown


def test_on_a_terminal_nothing_is_said_twice(files: Path) -> None:
    Path("model.yaml").write_text(MODEL.replace("global_batch: 32", "global_batch: 32, zero: [0, 1]"))
    shown = on_terminals(files, "cluster.yaml", "model.yaml")
    assert shown.count("mixed shapes of pipelines are not searched") == 1
    piped = start(["cluster.yaml", "model.yaml"], files, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, err = piped.communicate(timeout=60)
    assert err.count(b"warning: mixed shapes of pipelines are not searched") == 1


def test_what_was_held_back_on_a_terminal_is_said_where_no_plan_is_found(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    monkeypatch.setattr(planner.cli.output, "one_place", lambda report: report)
    pretend(monkeypatch, NoPlanFoundError("no plan found within 2 s"))
    loaded = load_cluster("cluster.yaml").model_copy(update={"notices": (Notice("nic", "v100 is left out"),)})
    monkeypatch.setattr(planner.spec, "load_cluster", lambda path: loaded)
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.code == 4 and ran.err.startswith("warning: v100 is left out\n")


def test_an_interrupted_search_writes_its_best_plan_and_leaves_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, loose("interrupted"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.code == 130
    assert "interrupted: the best plan so far is in plan.json, proved to be within 1.00 % of the best" in ran.err
    assert Plan.load("plan.json").certificate.why_stopped == "interrupted"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InfeasibleError("no plan fits", "stage 1 needs 91.2 GiB; 77.5 GiB is usable"), 3),
        (NoPlanFoundError("no plan found within 2 s"), 4),
        (InterruptedSolve("interrupted before a plan was found; nothing was written"), 130),
    ],
)
def test_without_a_plan_the_old_one_stays_and_the_reason_is_said(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path, error: Any, code: int
) -> None:
    Path("plan.json").write_text("old")
    pretend(monkeypatch, error)
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == error.render() + "\n"
    assert Path("plan.json").read_text() == "old"


def large_plan() -> Plan:
    """Does not fit the 8 and 16 GiB chips; made with memory ignored."""
    model = MODEL.replace("hidden_size: 512", "hidden_size: 8192").replace("size: 1024, vocab", "size: 28672, vocab")
    return small_plan(model).model_copy(update={"ignored_constraints": ("memory",)})


def test_ignoring_memory_writes_a_marked_plan_and_leaves_with_5_when_it_does_not_fit(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, SolveResult(large_plan(), "gap"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--ignore-memory", "--json")
    assert ran.code == 5
    assert Plan.model_validate(json.loads(ran.out)) == large_plan()  # one document, not two
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--ignore-memory")
    assert ran.code == 5
    assert "planned without regard to memory, and it does not fit" in ran.err
    assert "\n  stage 0 on fast needs" in ran.err
    assert Plan.load("plan.ignore-memory.json").ignored_constraints == ("memory",)
    assert not Path("plan.json").exists()
    assert "MADE WITHOUT REGARD TO MEMORY" in ran.out


def test_ignoring_memory_leaves_with_0_when_the_plan_fits_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    assert dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--ignore-memory").code == 0
    assert dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--ignore-memory", "-o", "plan.json").code == 0
    assert Path("plan.json").exists()


def test_a_plan_that_fails_the_check_is_never_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    Path("plan.json").write_text("old")
    pretend(monkeypatch, SolveResult(with_certificate(small_plan(), gap=0.0), "gap"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.code == 5
    assert "our bug: the plan that was found does not pass the check; nothing was written" in ran.err
    assert "certificate.gap" in ran.err
    assert Path("plan.json").read_text() == "old"


# ---- solvers --------------------------------------------------------------------------------------------------------


def test_every_solver_can_be_asked_for() -> None:
    assert {solver.value for solver in Solver} == set(SOLVERS)


def test_another_solver_proves_the_same_and_leaves_its_log(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    objectives = {}
    for solver in ("highs", "cbc"):
        arguments = ["cluster.yaml", "model.yaml", "--gap", "0 %", "--solver", solver, "--solver-log", f"{solver}.log"]
        assert dplan(capsys, "solve", *arguments).code == 0
        plan = Plan.load("plan.json")
        assert plan.certificate.why_stopped == "gap" and plan.certificate.gap <= 1.01e-6
        objectives[solver] = plan.certificate.objective
    assert objectives["cbc"] == pytest.approx(objectives["highs"], rel=2e-6)
    assert plan.certificate.solver["name"] == "cbc"
    log = Path("cbc.log").read_text()
    assert log.startswith("Logs of cbc") and "constraints, cbc ====" in log


def test_the_logs_of_worker_processes_are_in_the_one_file_which_is_made_anew(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    Path("solver.log").write_text("old")
    ran = dplan(
        capsys, "solve", "cluster.yaml", "model.yaml", "--gap", "0 %", "--jobs", "2", "--solver-log", "solver.log"
    )
    log = Path("solver.log").read_text()
    assert ran.code == 0 and log.startswith("Logs of highs")
    assert log.count("==== stages:") >= Plan.load("plan.json").certificate.solver["programs"] > 0
    assert sorted(p.name for p in files.glob("*.log*")) == ["solver.log"]


def test_a_solver_that_is_not_installed_is_refused_with_the_remedy(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    monkeypatch.setattr(pulp.GUROBI, "available", lambda self: False)
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--solver", "gurobi", "--solver-log", "solver.log")
    assert (ran.code, ran.out) == (2, "")
    assert "--solver: gurobi cannot be called here" in ran.err and "pip install gurobipy" in ran.err
    assert not Path("solver.log").exists() and not Path("plan.json").exists()


# ---- older plans ----------------------------------------------------------------------------------------------------


def test_an_older_plan_reaches_the_search_and_may_be_the_output(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path
) -> None:
    small_plan().save("plan.json")
    asked = pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    assert dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--warm-start", "plan.json").code == 0
    assert asked[0].warm_start == small_plan()


def test_an_older_plan_that_is_no_start_is_a_warning(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    small_plan().save("old.json")
    Path("cluster.yaml").write_text(CLUSTER.replace("name: fast", "name: new"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--warm-start", "old.json", "--gap", "50 %")
    assert ran.code == 0
    assert "warning: the older plan is no start: the cluster has no node group 'fast'" in ran.err


# ---- bad input ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--time-limit", "25"], "--time-limit: '25' has no unit"),
        (["--time-limit", "-1 s"], "--time-limit: '-1 s' is negative"),
        (["--time-limit", "2 sec"], "--time-limit: unknown unit 'sec'"),
        (["--gap", "1"], "--gap: '1' has no unit"),
        (["--gap", "200 %"], "--gap: '200 %' is not a share"),
        (["--jobs", "0"], "'--jobs'"),
        (["--jobs", "two"], "'--jobs'"),
        (["--objective", "speed"], "'--objective'"),
        (["--solver", "guess"], "'--solver'"),
        (["-o", "cluster.yaml"], "--output: cluster.yaml is also CLUSTER"),
        (["-o", "./model.yaml"], "--output: ./model.yaml is also MODEL"),
        (["--solver-log", "-"], "--solver-log: - is no file"),
        (["--solver-log", "./model.yaml"], "--solver-log: ./model.yaml is also MODEL"),
        (["--solver-log", "plan.json"], "--solver-log: plan.json is also --output"),
        (["--solver-log", "no/such/log"], "no/such/log: cannot be written; there is no such directory"),
        (["--warm-start", "no.json"], "no.json: cannot be read; no such file or directory"),
        (["--warm-start", "model.yaml"], "model.yaml:2:1: is not JSON"),
        (["-o", "no/such/place/plan.json"], "no/such/place/plan.json: cannot be written; there is no such directory"),
        (["-o", "."], ".: cannot be written; is a directory; name a file in it, such as plan.json"),
    ],
)
def test_a_wrong_option_is_named_before_any_work(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, files: Path, options: list[str], text: str
) -> None:
    asked = pretend(monkeypatch, SolveResult(small_plan(), "gap"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", *options)
    assert (ran.code, ran.out, asked) == (2, "", [])
    assert text in ran.err
    assert "Traceback" not in ran.err


def test_problems_of_both_files_are_reported_in_one_run(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    Path("cluster.yaml").write_text(CLUSTER.replace("16 GiB", "16 GiX"))
    Path("model.yaml").write_text(MODEL.replace("global_batch: 32", "global_batch: -1"))
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml")
    assert ran.code == 2
    assert "cluster.yaml:7:" in ran.err and "GiX" in ran.err
    assert "model.yaml:" in ran.err and "global_batch" in ran.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["model.yaml", "cluster.yaml"], "model.yaml is a model file; the cluster comes first"),
        (["model.yaml", "no.yaml"], "model.yaml is a model file; the cluster comes first"),
        (["cluster.yaml", "cluster.yaml"], "cluster.yaml is a cluster file; the model comes second"),
        (["llama-3.1-8b", "h100-64"], "llama-3.1-8b is a model; the cluster comes first"),
        (["h100-64", "h100-64"], "h100-64 is a cluster; the model comes second"),
    ],
)
def test_swapped_inputs_are_one_sentence(
    capsys: pytest.CaptureFixture[str], files: Path, arguments: list[str], sentence: str
) -> None:
    ran = dplan(capsys, "solve", *arguments)
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: {sentence}\n")


def test_a_file_that_is_neither_keeps_its_own_errors(capsys: pytest.CaptureFixture[str], files: Path) -> None:
    Path("neither.yaml").write_text("colour: red\n")
    ran = dplan(capsys, "solve", "neither.yaml", "model.yaml")
    assert ran.code == 2
    assert "comes first" not in ran.err and "colour" in ran.err


def test_problems_of_an_older_plan_are_reported_with_the_others(
    capsys: pytest.CaptureFixture[str], files: Path
) -> None:
    Path("model.yaml").write_text(MODEL.replace("global_batch: 32", "global_batch: 0"))
    Path("old.json").write_text("{}")
    ran = dplan(capsys, "solve", "cluster.yaml", "model.yaml", "--warm-start", "old.json")
    assert (ran.code, ran.out) == (2, "")
    assert "global_batch" in ran.err and "old.json: format: is not a dplan plan" in ran.err


def test_there_is_one_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "solve", "cluster.yaml", "-", "--warm-start", "-")
    assert "MODEL, --warm-start: are both `-`" in ran.err
    ran = dplan(capsys, "solve", "-", "-")
    assert ran.code == 2
    assert "CLUSTER, MODEL: are both `-`" in ran.err


# ---- the outside world ----------------------------------------------------------------------------------------------


def start(arguments: list[str], directory: Path, **streams: Any) -> subprocess.Popen[bytes]:
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    command = [sys.executable, "-m", "planner", "solve", *arguments]
    return subprocess.Popen(command, cwd=directory, env=environment, **streams)


def read_until(descriptor: int, done: Callable[[bytes], bool]) -> bytes:
    seen = b""
    while not done(seen):
        try:
            seen += os.read(descriptor, 4096)
        except OSError:  # the other end is closed
            break
    return seen


def test_ctrl_c_leaves_within_a_second_with_the_best_plan_written(tmp_path: Path) -> None:
    """A search that cannot end soon; interrupted when its progress line first shows a plan."""
    master, slave = pty.openpty()
    arguments = ["h100-a100-4096", "llama-3.1-70b", "--gap", "0 %", "--time-limit", "10 min"]
    process = start(arguments, tmp_path, stderr=slave, stdout=subprocess.DEVNULL)
    os.close(slave)
    shown = read_until(master, lambda text: b"step " in text and b"gap" in text)
    assert b"identical pipelines: " in shown and b"gap among these" in shown
    begin = time.monotonic()
    process.send_signal(signal.SIGINT)
    rest = read_until(master, lambda text: b"interrupted: the best plan so far is in plan.json" in text)
    assert process.wait(timeout=30) == 130, rest
    assert time.monotonic() - begin < 1.5  # one second, and half for a busy machine
    os.close(master)
    plan = Plan.load(str(tmp_path / "plan.json"))
    assert plan.certificate.why_stopped == "interrupted"
    assert check_plan(plan) == ()


def test_without_a_terminal_there_is_no_progress(files: Path) -> None:
    process = start(["cluster.yaml", "model.yaml"], files, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, b"")


def test_killing_a_solve_at_any_moment_leaves_the_old_plan_whole(files: Path) -> None:
    chance = random.Random(0)
    old = dump_plan(small_plan())
    (files / "plan.json").write_text(old)
    command = ["solve", "cluster.yaml", "model.yaml", "--gap", "50 %"]
    for _ in range(2):  # the first one waits for the imports
        begin = time.monotonic()
        process = forked(dplan_quietly, *command, "-o", "new.json")
        process.join(60)
        assert process.exitcode == 0
        whole_run = time.monotonic() - begin
    new, endings = (files / "new.json").read_text(), set()
    for _ in range(50):
        process = forked(dplan_quietly, *command)
        process.join(chance.uniform(0, 1.1 * whole_run))
        process.kill()
        process.join(30)
        endings.add(process.exitcode)
        assert (files / "plan.json").read_text() in (old, new)
    assert -signal.SIGKILL in endings


def write_for_ever(path: str) -> None:
    for i in itertools.cycle("ab"):
        write_atomic(path, i * 1_000_000)


def test_killing_a_writer_at_any_moment_leaves_one_of_its_files_whole(tmp_path: Path) -> None:
    chance = random.Random(0)
    path = tmp_path / "plan.json"
    for _ in range(20):
        path.unlink(missing_ok=True)
        process = forked(write_for_ever, str(path))
        while not path.exists() and process.is_alive():  # it is ready
            os.sched_yield()
        process.join(chance.uniform(0.01, 0.1))
        process.kill()
        process.join(30)
        assert process.exitcode == -signal.SIGKILL
        assert path.read_text() in ("a" * 1_000_000, "b" * 1_000_000)

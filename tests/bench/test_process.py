"""A case in a process of its own: it may answer, crash, hang or be interrupted."""

from __future__ import annotations

import io
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.bench.cases import Case
from planner.bench.child import Request, peak_bytes, run
from planner.bench.process import Answer, answer_of
from planner.bench.results import BenchResults
from planner.bench.run import result_of, run_cases
from planner.errors import CheckError
from tests.plan.small import CLUSTER, MODEL

REQUEST = Request("cluster", "model", "identical", 1.0, 0.01)
CASE = Case("toy", "cluster", "model", 1.0, "identical")


def answered(code: str, most_s: float | None = None) -> Answer:
    """What is heard of a process that runs `code` with the request read."""
    script = f"import os, sys, time, json\nrequest = json.load(sys.stdin)\n{code}"
    return answer_of(REQUEST, lambda numbers: None, most_s, ("-c", script))


def small(tmp_path: Path) -> Request:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    (tmp_path / "model.yaml").write_text(MODEL)
    return Request(str(tmp_path / "cluster.yaml"), str(tmp_path / "model.yaml"), "identical", 10.0, 0.01)


def test_progress_and_the_last_line_are_heard() -> None:
    heard: list[dict[str, Any]] = []
    lines = '{"progress": {"solved": 1}}\\n{"found": {"chips": 8}, "peak_bytes": 5}'
    answer = answer_of(REQUEST, heard.append, None, ("-c", f"print('{lines}')"))
    assert heard == [{"solved": 1}]
    assert (answer.found, answer.peak_bytes, answer.failure) == ({"chips": 8}, 5, None)


def test_the_request_arrives() -> None:
    answer = answered('print(json.dumps({"found": request}))')
    assert answer.found == {
        "cluster": "cluster",
        "model": "model",
        "pipelines": "identical",
        "limit_s": 1.0,
        "gap": 0.01,
    }


def test_a_crash_is_a_failure_with_its_last_line() -> None:
    failure = answered('raise ValueError("seven")').failure
    assert failure == {"kind": "crash", "message": "our bug: ValueError: seven"}


def test_a_process_that_is_killed_says_so() -> None:
    failure = answered("os.kill(os.getpid(), 9)").failure
    assert failure == {"kind": "crash", "message": "the process was ended by SIGKILL; was there too little memory?"}


def test_a_process_that_does_not_end_is_killed() -> None:
    begin = time.perf_counter()
    failure = answered("time.sleep(60)", most_s=1.0).failure
    assert time.perf_counter() - begin < 30
    assert failure == {"kind": "overtime", "message": "did not end within 1 s, and was killed"}


def test_an_interrupt_ends_the_process_and_what_it_started() -> None:
    def interrupt(numbers: dict[str, Any]) -> None:
        started.append(numbers["child"])
        raise KeyboardInterrupt

    started: list[int] = []
    code = (
        "import subprocess, sys, json\nchild = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])"
    )
    code += "\nprint(json.dumps({'progress': {'child': child.pid}}), flush=True)\nchild.wait()"
    with pytest.raises(KeyboardInterrupt):
        answer_of(REQUEST, interrupt, None, ("-c", code))
    deadline = time.monotonic() + 10
    while _runs(started[0]) and time.monotonic() < deadline:
        os.sched_yield()
    assert not _runs(started[0])


def _runs(pid: int) -> bool:
    """Not ended; one that ended may wait for its new parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_case_is_planned_in_a_fresh_process(tmp_path: Path) -> None:
    answer = answer_of(small(tmp_path), lambda numbers: None)
    assert answer.failure is None and answer.found is not None
    result = result_of(CASE, 0.01, 10.0, 2.0, answer)
    assert result.found is not None
    assert result.found.gap <= 0.01 * (1 + 1e-6)
    assert result.found.loops == result.found.solve_s / 2.0
    assert result.found.chips_used <= result.found.chips
    assert answer.total_s > result.found.solve_s
    assert answer.peak_bytes is not None and 2**24 < answer.peak_bytes < 2**31


def test_what_the_search_refuses_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    request = small(tmp_path)
    Path(request.cluster).write_text("node_groups: 7\n")
    out = io.StringIO()
    run(request, out)
    (last,) = map(json.loads, out.getvalue().splitlines())
    assert last["failure"]["kind"] == "InputError"
    assert "node_groups" in last["failure"]["message"]


def test_a_plan_that_does_not_pass_the_check_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import planner.plan
    from planner.plan import Violation

    monkeypatch.setattr(planner.plan, "check_plan", lambda plan: (Violation("memory", "stage 0", "too much"),))
    out = io.StringIO()
    run(small(tmp_path), out)
    failure = json.loads(out.getvalue().splitlines()[-1])["failure"]
    assert failure["kind"] == CheckError.__name__
    assert "does not pass the check" in failure["message"] and "too much" in failure["message"]


def test_shapes_are_what_the_case_says() -> None:
    from planner.bench.child import _with_shapes
    from planner.spec import load_model

    model = load_model("llama-3.1-8b")
    assert _with_shapes(model, "identical").constraints.shapes == "identical"
    assert _with_shapes(model, "mixed").constraints.shapes == "mixed"


def test_an_impossible_answer_is_a_failure_of_that_case() -> None:
    result = result_of(CASE, 0.01, 1.0, 2.0, Answer(1.0, None, {"solve_s": 1.0}, None))
    assert result.failure is not None and result.failure.kind == "crash"


def pretended(monkeypatch: pytest.MonkeyPatch, *answers: Answer | BaseException) -> BenchResults:
    """A run of as many cases as there are answers; a calibration loop takes 2 s."""
    left = iter(answers)

    def answer(*arguments: Any) -> Answer:
        said = next(left)
        if isinstance(said, BaseException):
            raise said
        return said

    monkeypatch.setattr("planner.bench.run.calibrate", lambda: 2.0)
    monkeypatch.setattr("planner.bench.run.answer_of", answer)
    return run_cases([Case(f"case-{i}", "c", "m", 1.0) for i in range(len(answers))])


FAILED = Answer(1.0, None, None, {"kind": "crash", "message": "our bug: ValueError: seven"})


def test_a_failure_does_not_stop_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    done = pretended(monkeypatch, FAILED, FAILED, FAILED)
    assert done.complete and [case.name for case in done.cases] == ["case-0", "case-1", "case-2"]


def test_an_interrupted_run_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    done = pretended(monkeypatch, FAILED, KeyboardInterrupt(), FAILED)
    assert not done.complete and [case.name for case in done.cases] == ["case-0"]


def test_an_interrupt_after_a_case_keeps_it(monkeypatch: pytest.MonkeyPatch) -> None:
    loops = iter([2.0])

    def calibrate() -> float:
        for loop in loops:
            return loop
        raise KeyboardInterrupt

    monkeypatch.setattr("planner.bench.run.calibrate", calibrate)
    monkeypatch.setattr("planner.bench.run.answer_of", lambda *arguments: FAILED)
    done = run_cases([CASE, CASE])
    assert not done.complete and [case.calibration_s for case in done.cases] == [2.0]


def test_peak_memory_is_that_of_this_process() -> None:
    before = peak_bytes()
    block = bytearray(64 * 2**20)
    block[::4096] = b"x" * len(block[::4096])
    after = peak_bytes()
    assert before is not None and after is not None and after >= before


def test_a_mix_tells_the_bound_among_identical_pipelines_too(tmp_path: Path) -> None:
    out = io.StringIO()
    run(replace(small(tmp_path), pipelines="mixed", limit_s=3.0), out)
    found = json.loads(out.getvalue().splitlines()[-1])["found"]
    assert found["identical_bound_s"] > 0
    run(small(tmp_path), out)
    assert json.loads(out.getvalue().splitlines()[-1])["found"]["identical_bound_s"] is None

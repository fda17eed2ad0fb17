"""`dplan bench`: what it prints and writes, and how it leaves. Cases answer at once, except in the last test."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.bench.cases import CASES
from planner.bench.compare import compare
from planner.bench.file import dump_results, load_results
from planner.bench.results import BenchResults, CaseResult, Limits, bench_schema
from planner.bench.run import BenchProgress
from planner.cli.bench import line_text
from planner.report.bench import bench_report, cases_table
from planner.search import Progress
from tests.bench.handmade import case, failed, results
from tests.cli.running import dplan
from tests.report.test_snapshots import drawn
from tests.test_startup import HEAVY, loaded_by

ONLY = ("--only", "8-h100")
SNAPSHOTS = Path(__file__).parents[1] / "bench" / "snapshots"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    return tmp_path


def pretend(monkeypatch: pytest.MonkeyPatch, now: BenchResults) -> None:
    """Let the run end at once with these results."""
    monkeypatch.setattr("planner.bench.run.run_cases", lambda *arguments: now)


def written(run: BenchResults, name: str = "base.json") -> str:
    Path(name).write_text(dump_results(run))
    return name


def snapshot(name: str, text: str) -> None:
    """The stored text; with DPLAN_UPDATE_SNAPSHOTS=1 in the environment it is stored."""
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("DPLAN_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(map(len, text.splitlines())) <= 80


# ---- tables ----------------------------------------------------------------------------------------------------------


def large(**changes: Any) -> dict[str, Any]:
    """The widest numbers that a case may have."""
    numbers = {"chips": 131072, "chips_used": 131072, "chip_types": 8, "solve_s": 1799.94, "first_plan_s": 912.34}
    numbers |= {"step_time_s": 1234.5, "bound_s": 1222.2, "programs": 12345, "tokens_per_s_per_chip": 12345.6}
    return case("48-old-and-new", **(numbers | {"peak_bytes": 1023 * 2**20} | changes))


def test_tables_at_80_columns() -> None:
    now = results(case(), large(why_stopped="exhausted"), failed("16-rtx"))
    snapshot("run", drawn(bench_report(now)))


def test_tables_beside_a_baseline_at_80_columns() -> None:
    now = results(case(), large(gap=0.05), failed("16-rtx"), case("32-tight"), case("64-experts", solve_s=60.0))
    base = results(
        case(solve_s=19.0),
        large(solve_s=12.0, step_time_s=50.0, peak_bytes=2**20),
        case("16-rtx"),
        case("64-experts", why_stopped="time"),
        case("131072"),
    )
    compared = now.model_copy(update={"comparison": compare(now, base, Limits())})
    snapshot("beside_a_baseline", drawn(bench_report(compared)))


def test_the_family_fits_80_columns() -> None:
    text = drawn(cases_table(CASES))
    assert max(map(len, text.splitlines())) <= 80
    assert len(text.splitlines()) == len(CASES) + 3
    assert "8-h100 *" in text and "131072  " in text


def test_progress_says_which_case_of_how_many() -> None:
    begin = BenchProgress(2, 17, CASES[0])
    assert line_text(begin) == "2 of 17: 8-h100: llama-3.1-8b on one-node-h100"
    search = BenchProgress(2, 17, CASES[0], Progress(50, 12, 12.3, None, None, 3.0))
    assert line_text(search) == "2 of 17: 8-h100: step 12.3 s, 50 candidates, 12 programs, 3 s"
    done = BenchProgress(2, 17, CASES[0], result=CaseResult.model_validate(case()))
    assert line_text(done) == "2 of 17: 8-h100: 20.0 s, gap 1.00 %"
    lost = BenchProgress(2, 17, CASES[0], result=CaseResult.model_validate(failed()))
    assert line_text(lost) == "2 of 17: 8-h100: no plan: no plan fits"


# ---- the command -----------------------------------------------------------------------------------------------------


def test_list_runs_nothing(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    ran = dplan(capsys, "bench", "--list")
    assert (ran.code, ran.err) == (0, "") and all(each.name in ran.out for each in CASES)
    ran = dplan(capsys, "bench", "--list", "--quick", "--json")
    names = [each["name"] for each in json.loads(ran.out)]
    assert names == [each.name for each in CASES if each.quick]


def test_results_are_printed_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    now = results(case(), failed("16-rtx"))
    pretend(monkeypatch, now)
    ran = dplan(capsys, "bench", "-o", "results.json")
    assert ran.code == 0 and ran.out.endswith("\nwrote results.json\n")
    assert "16-rtx: no plan fits" in ran.out
    assert load_results("results.json") == now


@pytest.mark.parametrize("options", [["--json"], ["-o", "-"], ["--json", "-o", "-"]])
def test_json_is_one_document_of_the_published_schema(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path, options: list[str]
) -> None:
    pretend(monkeypatch, results(case()))
    ran = dplan(capsys, "bench", *options, "--baseline", written(results(case(solve_s=16.0))))
    document = json.loads(ran.out)
    assert ran.code == 0
    jsonschema.Draft202012Validator(bench_schema()).validate(document)
    assert (document["format"], document["format_version"]) == ("dplan-bench", "1.0")
    assert document["comparison"]["changes"][0]["loops_ratio"] == 1.25


def test_a_regression_is_exit_code_7_and_is_written_all_the_same(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    pretend(monkeypatch, results(case(solve_s=36.0, step_time_s=50.1), case("16-rtx")))
    base = written(results(case(), case("16-rtx")))
    ran = dplan(capsys, "bench", "--baseline", base, "-o", "now.json", "--json")
    assert ran.code == 7
    assert ran.err == (
        "error: 1 of 2 cases passed a limit beside the baseline\n"
        "  8-h100: takes 1.80x the time (limit 1.5x), step 0.20 % longer (limit 0.1 %)\n"
    )
    assert json.loads(ran.out)["comparison"]["changes"][0]["regressions"] == ["slower", "plan"]
    assert load_results("now.json").comparison is not None


def test_limits_are_options(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path) -> None:
    pretend(monkeypatch, results(case(solve_s=36.0, step_time_s=50.1)))
    base = written(results(case()))
    assert dplan(capsys, "bench", "--baseline", base, "--max-time", "2", "--max-step", "1 %").code == 0
    ran = dplan(capsys, "bench", "--max-time", "inf", "--max-gap", "wide")
    assert (ran.code, ran.out) == (2, "")
    assert "--max-time" in ran.err and "--max-gap" in ran.err


def test_results_can_be_their_own_baseline(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path
) -> None:
    pretend(monkeypatch, results(case(), failed("16-rtx")))
    assert dplan(capsys, "bench", "-o", "results.json").code == 0
    assert dplan(capsys, "bench", "--baseline", "results.json", "-o", "results.json").code == 0
    assert dplan(capsys, "bench", "--baseline", "results.json").code == 0


@pytest.mark.parametrize("options", [[], ["-o", "results.json"]])
def test_ctrl_c_keeps_what_is_done_and_is_exit_code_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, here: Path, options: list[str]
) -> None:
    pretend(monkeypatch, results(case(), complete=False))
    ran = dplan(capsys, "bench", *options)
    kept = ", results.json holds them" if options else ""
    assert (ran.code, ran.err) == (130, f"interrupted: 1 case is done{kept}\n")
    assert "8-h100" in ran.out
    assert not options or not load_results("results.json").complete


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "8-h10"], "error: --only: no case has the name '8-h10'; did you mean '8-h100'?"),
        (["--only", "131072", "--quick"], "error: --only: '131072' is no quick case"),
        (["--baseline", "no.json"], "no.json: no such file; check the path of the baseline"),
        (["-o", "no/results.json"], "no/results.json: cannot be written; there is no such directory; create"),
        (["--baseline", "bad.json"], "bad.json:1:12: format: is not a results file of dplan"),
        ([*ONLY, "--baseline", "other.json"], "other.json: cases: has none of the cases that would run"),
    ],
)
def test_bad_input_is_exit_code_2_before_any_work(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    here: Path,
    arguments: list[str],
    message: str,
) -> None:
    Path("bad.json").write_text('{"format": "dplan-plan"}')
    written(results(case("16-rtx")), "other.json")
    monkeypatch.setattr("planner.bench.run.run_cases", lambda *given: pytest.fail("it runs"))
    ran = dplan(capsys, "bench", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith(message) and "Traceback" not in ran.err


def test_help_and_bad_options_import_nothing_heavy(here: Path) -> None:
    assert loaded_by("bench", "--help") & HEAVY == set()
    assert loaded_by("bench", "--only", "nonsense") & HEAVY == set()


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "bench", "--help")
    assert ran.code == 0 and "Examples:\n    dplan bench" in ran.out


@pytest.mark.slow
def test_a_quick_case_from_end_to_end(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    ran = dplan(capsys, "bench", *ONLY, "-o", "results.json")
    assert ran.code == 0, ran.err
    assert ran.err.splitlines()[0] == "1 of 1: 8-h100: llama-3.1-8b on one-node-h100"
    assert max(map(len, ran.out.splitlines())) <= 80
    run = load_results("results.json")
    found = run.cases[0].found
    assert run.complete and found is not None, ran.out
    assert found.chips == 8 and found.bound_s <= found.step_time_s
    assert found.first_plan_s is None or found.first_plan_s <= found.solve_s < run.cases[0].total_s
    again = dplan(capsys, "bench", *ONLY, "--baseline", "results.json", "--max-time", "20", "--max-memory", "3")
    assert again.code in (0, 7)
    assert "beside the baseline" in again.out

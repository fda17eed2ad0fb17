"""What each command prints and how it leaves; solving has its own file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from planner.errors import InputError
from planner.plan.file import dump_plan
from planner.plan.schema import Plan
from planner.spec import CLUSTER_TEMPLATE, MODEL_TEMPLATE
from tests.cli.running import dplan
from tests.plan.handmade import document, plan
from tests.plan.small import edited, small_plan

COMMANDS = ["init", "solve", "show", "check", "model", "chips", "schema"]


@pytest.fixture
def plan_file(tmp_path: Path) -> str:
    path = tmp_path / "plan.json"
    path.write_text(dump_plan(plan()))
    return str(path)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_with_examples(capsys: pytest.CaptureFixture[str], command: str) -> None:
    ran = dplan(capsys, command, "--help")
    assert ran.code == 0
    assert f"Examples:\n    dplan {command}" in ran.out


@pytest.mark.parametrize("command", [[], *([command] for command in [*COMMANDS, "bench"])])
def test_help_fits_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = dplan(capsys, *command, "--help").out.splitlines()
    assert len(lines) > 5 and max(map(len, lines)) <= 80


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from planner import __version__

    assert dplan(capsys, "--version").out == f"dplan {__version__}\n"


def test_a_mistyped_command_or_option_is_answered_with_the_right_one(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "slove")
    assert (ran.code, ran.out) == (2, "")
    assert "Did you mean 'solve'?" in ran.err
    ran = dplan(capsys, "solve", "a", "b", "--tme-limit", "1 s")
    assert (ran.code, ran.out) == (2, "")
    assert "--time-limit" in ran.err


# ---- show ------------------------------------------------------------------------------------------------------------


def test_show_prints_tables_on_stdout(capsys: pytest.CaptureFixture[str], plan_file: str) -> None:
    ran = dplan(capsys, "show", plan_file)
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.startswith("toy on bench\n")


def test_show_full_adds_the_plan_space_and_the_assumptions(capsys: pytest.CaptureFixture[str], plan_file: str) -> None:
    short, full = dplan(capsys, "show", plan_file).out, dplan(capsys, "show", plan_file, "--full").out
    for title in ("plan space\n", "assumptions\n"):
        assert title in full and title not in short
    assert short.endswith(f"\nplan space and assumptions: dplan show {plan_file} --full\n")


def test_show_json_is_the_plan(capsys: pytest.CaptureFixture[str], plan_file: str) -> None:
    ran = dplan(capsys, "show", plan_file, "--json")
    assert Plan.model_validate(json.loads(ran.out)) == plan()


def test_a_missing_plan_is_one_message_and_exit_code_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    missing = str(tmp_path / "no.json")
    ran = dplan(capsys, "show", missing)
    assert ran.code == 2
    assert ran.err == (f"{missing}: cannot be read; no such file or directory; name a plan that `dplan solve` wrote\n")


def test_json_gives_one_document_for_a_failure_too(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ran = dplan(capsys, "show", str(tmp_path / "no.json"), "--json")
    error = json.loads(ran.out)["error"]
    assert (error["kind"], error["exit_code"]) == ("InputError", 2)
    assert error["message"] in ran.err


def test_names_from_a_plan_are_shown_as_they_are(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    changed = document()
    changed["inputs"]["cluster"]["name"] = "[bold]lab[/bold] :smile:"
    path = tmp_path / "plan.json"
    path.write_text(dump_plan(Plan.model_validate(changed)))
    assert "toy on [bold]lab[/bold] :smile:" in dplan(capsys, "show", str(path)).out


def test_a_reader_that_goes_away_is_no_failure(plan_file: str) -> None:
    shell = f"{sys.executable} -m planner show {plan_file} --json | head -c 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout in ("{141\n", "{0\n")


@pytest.mark.parametrize("arguments", [["show", "no.json"], ["show", "no.json", "--debug"], ["show", "--nonsense"]])
@pytest.mark.parametrize("both", [False, True])
def test_a_reader_of_messages_that_goes_away_is_no_failure_either(arguments: list[str], both: bool) -> None:
    """`dplan ... 2>&1 | head -1`: what comes after the first line has no reader."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "planner", *arguments]
    done = subprocess.run(command, stderr=writer, stdout=writer if both else subprocess.PIPE, check=False)
    os.close(writer)
    assert done.returncode == 141


def test_a_failed_check_whose_reader_went_away_leaves_like_any_other(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dump_plan(edited(small_plan(), micro_batches=7)))
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "planner", "check", str(path), "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert done.returncode == 141
    assert "Traceback" not in done.stderr and "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("command", [["show", "{plan}"], ["show", "{plan}", "--json"], ["schema", "plan"]])
def test_a_full_disk_behind_standard_output_is_named(plan_file: str, command: list[str]) -> None:
    arguments = [sys.executable, "-m", "planner", *(part.format(plan=plan_file) for part in command)]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(arguments, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "standard output: cannot be written; no space left on device; send it to another place\n"


def test_a_command_runs_without_the_standard_files(plan_file: str) -> None:
    for closed, arguments, code in (
        ("<&-", "check -", 2),
        (">&-", f"show {plan_file}", 0),
        ("2>&-", "check no.json", 2),
    ):
        shell = f"{sys.executable} -m planner {arguments} {closed}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, check=False)
        assert done.returncode == code
        assert "our bug" not in done.stderr and "Traceback" not in done.stderr


# ---- check ----------------------------------------------------------------------------------------------------------


def test_check_says_that_a_plan_holds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dump_plan(small_plan()))
    ran = dplan(capsys, "check", str(path))
    assert (ran.code, ran.out, ran.err) == (0, f"{path}: the plan holds\n", "")
    assert json.loads(dplan(capsys, "check", str(path), "--json").out) == {"violations": []}


def test_check_names_everything_that_does_not_hold_and_leaves_with_5(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(dump_plan(edited(small_plan(), micro_batches=7, stage_0={"in_flight": 1})))
    ran = dplan(capsys, "check", str(path))
    assert (ran.code, ran.out) == (5, "")
    assert ran.err.startswith(f"error: {path}: the plan does not hold\n")
    assert "the global batch is 32" in ran.err and "stages[0].in_flight" in ran.err
    ran = dplan(capsys, "check", str(path), "--json")
    assert ran.code == 5
    assert {violation["code"] for violation in json.loads(ran.out)["violations"]} == {"batch", "schedule"}


# ---- our bugs --------------------------------------------------------------------------------------------------------


def test_an_exception_of_ours_is_one_line_and_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plan_file: str
) -> None:
    def broken(_: str) -> Plan:
        raise KeyError("H100")

    monkeypatch.setattr(Plan, "load", broken)
    ran = dplan(capsys, "show", plan_file)
    assert ran.code == 1
    assert ran.err == "error: our bug: KeyError: 'H100'; run it again with --debug and report what it prints\n"
    assert "Traceback" in dplan(capsys, "show", plan_file, "--debug").err


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    ran = dplan(capsys, "show", str(tmp_path / "no.json"), "--debug")
    assert ran.code == 2
    assert "Traceback" in ran.err


def test_ctrl_c_leaves_with_130(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, plan_file: str
) -> None:
    def interrupted(_: str) -> Plan:
        raise KeyboardInterrupt

    monkeypatch.setattr(Plan, "load", interrupted)
    ran = dplan(capsys, "show", plan_file)
    assert (ran.code, ran.err) == (130, "interrupted; nothing was written\n")


# ---- chips, model, schema, init --------------------------------------------------------------------------------------


def test_chips_lists_every_profile(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "chips")
    assert ran.code == 0
    assert all(name in ran.out for name in ("nvidia-h100-80gb-sxm", "amd-mi300x-192gb", "huawei-ascend-910b-64gb"))
    assert max(len(line) for line in ran.out.splitlines()) <= 80


def test_chips_shows_one_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "chips", "nvidia-a100-80gb-sxm")
    assert "dense peak bf16" in ran.out
    assert "312.0 TFLOPS" in ran.out


def test_every_unknown_chip_is_named_in_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "chips", "nvidia-h100-80gb-smx", "nonsense")
    assert ran.code == 2
    assert "nvidia-h100-80gb-sxm" in ran.err  # did you mean
    assert "nonsense" in ran.err


def test_chips_json_is_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    names = [chip["name"] for chip in json.loads(dplan(capsys, "chips", "--json").out)]
    assert len(names) >= 40 and names == sorted(names)


def test_model_shows_layers_and_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    ran = dplan(capsys, "model", "llama-3.1-8b")
    assert ran.code == 0
    assert "8,030,261,248" in ran.out
    assert "layers.0-31" in ran.out


def test_model_json_counts_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    numbers = json.loads(dplan(capsys, "model", "llama-3.1-8b", "--json").out)
    assert numbers["parameters"] == 8_030_261_248
    assert sum(len(layer["names"]) * layer["parameters"] for layer in numbers["layers"]) == 8_030_261_248


@pytest.mark.parametrize("kind", ["cluster", "model", "profile", "plan"])
def test_schema_prints_a_json_schema(capsys: pytest.CaptureFixture[str], kind: str) -> None:
    schema = json.loads(dplan(capsys, "schema", kind).out)
    jsonschema.Draft202012Validator.check_schema(schema)


def test_the_plan_schema_accepts_what_we_write_and_refuses_what_we_refuse(capsys: pytest.CaptureFixture[str]) -> None:
    schema = json.loads(dplan(capsys, "schema", "plan").out)
    jsonschema.validate(json.loads(dump_plan(plan())), schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document() | {"format_version": "2.0"}, schema)


def test_the_schemas_of_cluster_and_model_accept_the_files_of_init(capsys: pytest.CaptureFixture[str]) -> None:
    for kind, template in (("cluster", CLUSTER_TEMPLATE), ("model", MODEL_TEMPLATE)):
        jsonschema.validate(yaml.safe_load(template), json.loads(dplan(capsys, "schema", kind).out))


def test_init_writes_two_files_that_can_be_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from planner import load_cluster, load_model

    place = str(tmp_path / "new" / "lab")
    ran = dplan(capsys, "init", place)
    assert ran.code == 0
    assert ran.out.splitlines()[-1] == f"next: dplan solve {place}/cluster.yaml {place}/model.yaml"
    assert load_cluster(f"{place}/cluster.yaml").name == "my-cluster"
    assert load_model(f"{place}/model.yaml").training.sequence_length == 8192


def test_init_keeps_what_is_there(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "model.yaml").write_text("mine")
    ran = dplan(capsys, "init", str(tmp_path))
    assert ran.code == 2
    assert "model.yaml: is there already; your work may be in it; choose another directory, or overwrite" in ran.err
    assert (tmp_path / "model.yaml").read_text() == "mine"
    assert not (tmp_path / "cluster.yaml").exists()
    assert dplan(capsys, "init", str(tmp_path), "--force").code == 0


def test_init_says_when_the_place_is_no_directory(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = dplan(capsys, "init", str(tmp_path / "file"))
    assert ran.code == 2
    assert "cannot be made" in ran.err


def test_names_that_no_file_can_have_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["init", "x" * 300], ["init", "a\0b"], ["show", "x" * 300], ["show", "a\0b"]):
        ran = dplan(capsys, *arguments)
        assert ran.code == 2 and "cannot be" in ran.err


def test_errors_know_their_exit_codes() -> None:
    from planner import CheckError, InfeasibleError, InterruptedSolve, NoPlanFoundError

    kinds = (InputError, InfeasibleError, NoPlanFoundError, CheckError, InterruptedSolve)
    assert [kind.exit_code for kind in kinds] == [2, 3, 4, 5, 130]

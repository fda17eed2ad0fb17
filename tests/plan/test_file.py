"""The plan file: the same bytes every time, whole or not at all, and nothing from a stranger that hurts."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.plan import file as plan_file
from planner.plan.file import (
    canonical_json,
    dump_plan,
    parse_plan,
    pretty_json,
    refuse_unwritable,
    sha256_of,
    write_atomic,
)
from planner.plan.schema import Plan
from tests.plan.handmade import document, plan

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def test_canonical_json_has_sorted_keys_no_spaces_and_utf8() -> None:
    assert canonical_json({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'.encode()


def test_the_hash_is_that_of_the_canonical_json() -> None:
    assert sha256_of({"b": 1, "a": 2}) == sha256_of({"a": 2, "b": 1})
    assert sha256_of({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"


def test_short_objects_stay_on_one_line_and_long_lists_are_filled() -> None:
    assert pretty_json({"a": [1, 2], "b": {}}) == '{"a": [1, 2], "b": {}}'
    lines = pretty_json({"ranks": list(range(100))}).splitlines()
    assert lines[0] == "{" and lines[1] == '  "ranks": ['
    assert all(len(line) <= 118 for line in lines)


@given(json_values)
@settings(deadline=None)
def test_pretty_json_reads_back_as_it_was(value: Any) -> None:
    assert json.loads(pretty_json(value)) == value


def test_a_plan_file_ends_with_a_newline_and_has_sorted_keys() -> None:
    text = dump_plan(plan())
    assert text.endswith("}\n")
    assert list(json.loads(text)) == sorted(json.loads(text))


def test_a_plan_reads_back_as_it_was_and_gives_the_same_bytes() -> None:
    text = dump_plan(plan())
    again = parse_plan(text, "plan.json")
    assert again == plan()
    assert dump_plan(again) == text


@given(
    st.floats(min_value=1e-9, max_value=1e9),
    st.integers(min_value=0, max_value=2**50),
    st.text(alphabet=st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=30),
)
@settings(deadline=None)
def test_any_number_and_name_survives_the_file(step: float, size: int, name: str) -> None:
    changed = document()
    changed["prediction"]["step_time_s"] = step
    changed["islands"][0]["pipelines"][0]["stages"][0]["memory"]["peak_bytes"] = size
    changed["islands"][0]["name"] = name
    original = Plan.model_validate(changed)
    assert parse_plan(dump_plan(original), "plan.json") == original


# ---- writing ---------------------------------------------------------------------------------------------------------


def test_save_then_load_gives_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    plan().save(path)
    assert Plan.load(path) == plan() == Plan.load(str(path))
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failure_keeps_the_old_file_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if failing == "fsync":
        monkeypatch.setattr(plan_file.os, "fsync", full)
    else:
        monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InputError, match="no space left on device; free some space"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_an_interrupt_while_writing_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan_file.os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_new_file_has_the_usual_mode_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    mask = os.umask(0o022)
    try:
        write_atomic(path, "new")
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        path.chmod(0o600)
        write_atomic(path, "newer")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    finally:
        os.umask(mask)


def test_a_link_is_followed_not_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "plan.json"
    target.write_text("old")
    link.symlink_to(target)
    write_atomic(link, "new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_pipe_is_written_to_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_atomic(pipe, "whole text")
    reader.join(timeout=10)
    assert read == ["whole text"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("write", [lambda path: write_atomic(path, "x"), refuse_unwritable])
def test_places_that_cannot_be_written_are_refused_with_the_reason(tmp_path: Path, write: Any) -> None:
    (tmp_path / "file").write_text("")
    for name, reason in (("", "is a directory"), ("no/plan.json", "no such"), ("file/plan.json", "not a directory")):
        with pytest.raises(InputError, match=reason):
            write(tmp_path / name)
    for name, reason in (("x" * 300, "name too long"), ("a\0b", "null byte")):
        with pytest.raises(InputError, match=reason):
            write(tmp_path / name)


def test_a_dash_is_standard_output_and_standard_input(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan().save("-")
    text = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert Plan.load("-") == plan()


# ---- reading what strangers wrote ------------------------------------------------------------------------------------


def refused(text: bytes | str, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        parse_plan(text, "plan.json")
    assert caught.value.render().startswith("plan.json:")


def test_what_is_no_plan_is_refused_with_the_reason() -> None:
    refused(b"\x80\x81junk", "is not text; byte 0 is not UTF-8")
    refused("", "plan.json:1:1: is not JSON")
    refused("{", "is not JSON")
    refused("[]", "is not a dplan plan")
    refused('{"format": "dplan-plan", "format": "dplan-plan"}', "key 'format' stands twice")
    refused('{"a": NaN}', "NaN is not a number")
    refused('{"a": 1e999}', "number 1e999 is too large")
    refused("1" * 5000, "plan.json: is not a plan")


def test_deep_nesting_is_refused_not_followed() -> None:
    refused("[" * 200_000, "is nested too deeply")
    refused("[" * 100 + "]" * 100, "is nested too deeply; more than 64 levels")


@pytest.mark.parametrize("version", ["2.0", "1.1", 1.0, None])
def test_an_unknown_version_is_refused(version: Any) -> None:
    changed = document() | {"format_version": version}
    refused(json.dumps(changed), "format_version: version .* is not known; this dplan reads version '1.0'")


def test_every_wrong_field_is_named_in_one_run() -> None:
    changed = document()
    stage = changed["islands"][0]["pipelines"][0]["stages"][1]
    stage["tensor_parallel"] = 0
    stage["colour"] = "red"
    del changed["prediction"]["mfu"]
    with pytest.raises(InputError) as caught:
        parse_plan(json.dumps(changed), "plan.json")
    text = caught.value.render()
    assert "plan.json: islands[0].pipelines[0].stages[1].tensor_parallel: 0 is not possible" in text
    assert "plan.json: islands[0].pipelines[0].stages[1].colour: is not a field of a plan" in text
    assert "plan.json: prediction.mfu: is missing" in text


def test_names_cannot_steer_the_terminal() -> None:
    changed = document()
    changed["islands"][0]["name"] = "\x1b[31mred"
    refused(json.dumps(changed), "islands\\[0\\].name")


def test_missing_files_directories_and_huge_files_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="cannot be read; no such file or directory"):
        Plan.load(str(tmp_path / "plan.json"))
    with pytest.raises(InputError, match="cannot be read; is a directory"):
        Plan.load(str(tmp_path))
    monkeypatch.setattr(plan_file, "MAX_PLAN_BYTES", 2**20)
    (tmp_path / "huge").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        Plan.load(str(tmp_path / "huge"))

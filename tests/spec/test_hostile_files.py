"""Files made to exhaust memory, time or the stack: refused quickly, with one message."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import load_cluster, load_model
from planner.spec.json_reader import parse_json
from planner.spec.tree import LIMITS
from planner.spec.yaml_reader import parse_yaml


def refused(read, *arguments: object) -> str:
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        read(*arguments)
    assert time.monotonic() - started < 60
    message = caught.value.render()
    assert len(message) < 2000
    return message


def test_an_alias_bomb_is_refused_before_it_goes_off():
    # nine levels of nine aliases each: 9^9, about 387 million values
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 10)]
    assert "with aliases written out it has more than" in refused(parse_yaml, "\n".join(lines), "bomb.yaml")


def test_chained_aliases_cannot_build_a_deep_document_from_shallow_lines():
    lines = ["a0: &a0 [x]"] + [f"a{i}: &a{i} {'[' * 50}*a{i - 1}{']' * 50}" for i in range(1, 100)]
    assert "is nested too deeply" in refused(parse_yaml, "\n".join(lines), "deep.yaml")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "? "])
def test_a_hundred_thousand_levels_of_yaml_are_refused(opening: str):
    start = "" if opening in ("- ", "? ") else "a: "
    refused(parse_yaml, start + opening * 100_000, "deep.yaml")


@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_a_hundred_thousand_levels_of_json_are_refused(opening: str):
    assert "is nested too deeply" in refused(parse_json, '{"a":' + opening * 100_000, "deep.json")


def test_more_values_than_a_file_may_have_are_refused():
    text = json.dumps({"a": [0] * (LIMITS.num_values + 1)})
    assert "holds too much" in refused(parse_json, text, "many.json")
    assert "holds too much" in refused(parse_yaml, text, "many.yaml")


def test_more_node_groups_than_a_cluster_may_have_are_refused_quickly(tmp_path: Path):
    file = tmp_path / "many.yaml"
    lines = [f"  - {{name: g{i}, chip: nvidia-a100-80gb-sxm, nodes: 2}}" for i in range(2000)]
    file.write_text("\n".join(["name: many", "node_groups:", *lines]))
    assert "at most 256 are read" in refused(load_cluster, file)


def test_fifty_megabytes_are_refused_without_being_read(tmp_path: Path):
    file = tmp_path / "large.yaml"
    with file.open("wb") as sparse:
        sparse.truncate(50 * 2**20)
    assert "is too large; files may have 4 MiB" in refused(load_cluster, file)


def test_a_file_without_an_end_is_refused(tmp_path: Path):
    endless = Path("/dev/zero")
    if not endless.exists():
        pytest.skip("there is no /dev/zero here")
    assert "is too large" in refused(load_cluster, endless)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\x7fELF\x02\x01\x01\x00", "character U+007F is not text; the file is binary or damaged"),
        (b"name: \x00", "1:7: character U+0000 is not text"),
        (
            b"name: caf\xe9",
            "1:10: byte 0xe9 is not UTF-8; the file is binary or in another encoding; save it as UTF-8 text",
        ),
        ("name: lab".encode("utf-16"), "is written in UTF-16; only UTF-8 is read"),
        ("name: lab".encode("utf-32"), "is written in UTF-32; only UTF-8 is read"),
        (b"name: \x1b[31m", "character U+001B is not text"),
    ],
)
def test_binary_and_other_encodings_are_refused_at_the_first_wrong_byte(tmp_path: Path, content: bytes, message: str):
    file = tmp_path / "lab.yaml"
    file.write_bytes(content)
    assert message in refused(load_cluster, file)


def test_a_byte_order_mark_of_utf_8_is_no_mistake():
    from planner.spec.files import decode

    assert decode(b"\xef\xbb\xbfname: lab", "a.yaml") == "name: lab"


def test_a_missing_file_names_the_one_that_was_meant(tmp_path: Path):
    (tmp_path / "cluster.yaml").write_text("name: lab")
    message = refused(load_cluster, tmp_path / "clutser.yaml")
    assert message == f"{tmp_path}/clutser.yaml: no such file; did you mean '{tmp_path}/cluster.yaml'?"


def test_a_directory_is_refused(tmp_path: Path):
    assert "is a directory; name the cluster file itself" in refused(load_cluster, tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_file_without_permission_is_refused(tmp_path: Path):
    file = tmp_path / "lab.yaml"
    file.write_text("name: lab")
    file.chmod(0)
    assert "cannot be read; permission denied; check its permissions" in refused(load_cluster, file)


def test_a_file_that_the_system_refuses_is_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "lab.yaml"
    file.write_text("name: lab")
    monkeypatch.setattr(Path, "open", refuse)
    assert "cannot be read; permission denied" in refused(load_cluster, file)


def test_a_path_that_no_system_takes_is_explained():
    assert "cannot be read" in refused(load_cluster, "a" * 300 + ".yaml")
    assert "cannot be read" in refused(load_cluster, "a\0.yaml")


def test_standard_input_is_read_for_a_dash(monkeypatch: pytest.MonkeyPatch):
    text = "model: {preset: tiny}\ntraining: {sequence_length: 8, global_batch: 4}"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert load_model("-").training.sequence_length == 8
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"model: 3")))
    assert "<stdin>:1:8: model: '3' is not a mapping" in refused(load_model, "-")


def test_a_file_full_of_mistakes_is_answered_quickly(tmp_path: Path):
    edges = "\n".join(f"      - {{source: nod{i}, target: nodd{i}}}" for i in range(8_000))
    nodes = "\n".join(f"      - {{name: node{i}, parameter: 1}}" for i in range(8_000))
    text = f"model:\n  graph:\n    nodes:\n{nodes}\n    edges:\n{edges}\ntraining: {{}}\n"
    file = tmp_path / "model.yaml"
    file.write_text(text)
    started = time.monotonic()
    with pytest.raises(InputError) as caught:
        load_model(file)
    assert time.monotonic() - started < 60
    assert caught.value.render().splitlines()[-1].startswith("and ")

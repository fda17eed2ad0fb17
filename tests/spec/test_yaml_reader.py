"""YAML: values, positions, and what is refused."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.spec.yaml_reader import parse_yaml


def value(text: str) -> object:
    return parse_yaml(f"key: {text}", "a.yaml").data()["key"]


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_yaml(text, "a.yaml").refuse_duplicates()
    return caught.value.render()


@pytest.mark.parametrize(
    "text", ["yes", "no", "on", "off", "y", "1:30", "010", "0x10", "1_000", "2024-01-01", "0o7", "<"]
)
def test_what_other_readers_turn_into_something_else_stays_text(text: str):
    assert value(text) == text


def test_numbers_booleans_and_null_are_those_of_yaml_1_2():
    assert value("1e9") == 1e9
    assert value("2e-5") == 2e-5
    assert value("-3") == -3
    assert value(".5") == 0.5
    assert value("true") is True
    assert value("~") is None
    assert value("") is None
    assert value(".inf") == math.inf
    assert math.isnan(value(".nan"))  # type: ignore[arg-type]


def test_quoted_values_are_text():
    assert value("'80'") == "80"
    assert value('"true"') == "true"


def test_a_number_of_thousands_of_digits_stays_text():
    assert value("9" * 5000) == "9" * 5000


def test_keys_are_text_as_written():
    assert parse_yaml("on: 1\n8: 2\n1e9: 3", "a.yaml").data() == {"on": 1, "8": 2, "1e9": 3}


def test_every_value_knows_its_line_and_column():
    document = parse_yaml("a:\n  - b: 1\n    c: {d: x}\n", "a.yaml")
    at = document.locate(("a", 0, "c", "d"))
    assert (at.line, at.column) == (3, 12)
    key = document.locate(("a", 0, "c", "d"), key=True)
    assert (key.line, key.column) == (3, 9)


def test_what_is_absent_is_placed_at_its_holder():
    document = parse_yaml("a:\n  - b: 1\n", "a.yaml")
    at = document.locate(("a", 0, "missing", "deeper"))
    assert (at.line, at.column) == (2, 5)


def test_aliases_are_read_as_copies():
    assert parse_yaml("a: &link {b: 1}\nc: *link", "a.yaml").data() == {"a": {"b": 1}, "c": {"b": 1}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "a.yaml: is empty"),
        ("# only a comment\n", "a.yaml: is empty"),
        ("[1]", "a.yaml:1:1: holds a list; a file is a mapping"),
        ("lab", "a.yaml:1:1: holds a single value; a file is a mapping"),
        ("a: 1\nb: 2\na: 3", "a.yaml:3:1: a: key 'a' is given twice; first on line 1; remove one of them"),
        ("x:\n  - {a: 1, a: 2}", "a.yaml:2:12: x[0].a: key 'a' is given twice; first on line 2"),
        ("a:\n\tb: 1", "a.yaml:2:1: a tab stands where YAML wants spaces; replace it with spaces"),
        ("a: b: c", "a.yaml:1:5: a second `:` stands on this line; put the value in quotes"),
        ("a: @b", "a.yaml:1:4: a value cannot start with '@'; put it in quotes"),
        ("a: {b: 1", "is not valid YAML"),
        ("a: 'b", "is not valid YAML"),
        ("a: 1\n---\nb: 2", "a.yaml:2:1: a second document starts here; keep one document in a file"),
        ("<<: {a: 1}", "a.yaml:1:1: a merge key `<<` is not read"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "a.yaml:1:4: tag 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        ("a: *b", "a.yaml:1:4: unknown alias '*b'"),
        ("a: &b [*b]", "a.yaml:1:8: a: alias '*b' stands inside what it names; it would never end"),
        ("? [a]\n: 1", "a.yaml:1:3: a list or mapping stands where a key is expected"),
        ('a: "\\ud800"', "a.yaml:1:4: an escape writes half a character"),
        ("~: 1", "a.yaml:1:1: a key is empty; name it"),
    ],
)
def test_a_file_that_is_no_plain_mapping_is_refused_at_its_place(text: str, message: str):
    assert message in refused(text)


def test_every_duplicate_key_is_named_in_one_run():
    assert len(refused("a: 1\na: 2\nb: {c: 1, c: 2}").splitlines()) == 2


_TEXT = st.text(st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"]), max_size=8)
_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.floats(-1e20, 1e20) | _TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(_TEXT, _PLAIN, min_size=1, max_size=4), st.sampled_from([None, 2]))
def test_json_is_yaml(data: dict[str, object], indent: int | None):
    assert parse_yaml(json.dumps(data, indent=indent), "a.yaml").data() == data

"""JSON: the same limits, places and refusals as YAML."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError
from planner.spec.json_reader import parse_json


def refused(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse_json(text, "config.json").refuse_duplicates()
    return caught.value.render()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "config.json: is empty"),
        ("[1]", "config.json:1:1: holds no object"),
        ('{"a": 1, "a": 2}', "config.json:1:10: a: key 'a' is given twice; first on line 1; remove one of them"),
        ('{"a":\n [1, 2,]}', "config.json:2:7: a comma stands before a closing bracket; JSON has none after the last"),
        ('{"a": 1,\n "b": 2,\n\n}', "config.json:2:8: a comma stands before a closing bracket"),
        ('{"a": [,]}', "config.json:1:8: is not valid JSON: expecting value"),
        ('{"a" 1}', "config.json:1:6: a colon is missing after the key"),
        ('{"a": 1 "b": 2}', "config.json:1:9: a comma or the closing bracket is missing"),
        ("{a: 1}", "config.json:1:2: a key in double quotes is missing"),
        ('{"a": 1} {"b": 2}', "config.json:1:10: more text follows the end"),
        ('{"a": tru}', "config.json:1:7: is not valid JSON"),
        ('{"a": "x', "is not valid JSON: unterminated string"),
        ('{"a": "\\ud800"}', "half a character"),
    ],
)
def test_a_broken_file_is_refused_at_its_place(text: str, message: str):
    assert message in refused(text)


def test_numbers_that_json_does_not_have_become_text():
    data = parse_json('{"a": NaN, "b": -Infinity, "c": 1e999}', "config.json").data()
    assert data == {"a": "NaN", "b": "-Infinity", "c": "1e999"}


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.dictionaries(st.text(max_size=4), _PLAIN, max_size=4), st.sampled_from([None, 2]))
def test_json_reads_as_the_standard_library_reads_it(data: dict[str, object], indent: int | None):
    text = json.dumps(data, indent=indent)
    try:
        read = parse_json(text, "config.json").data()
    except InputError as error:
        assert "half a character" in error.render()
        return
    assert read == {key: _long_numbers_as_text(item) for key, item in json.loads(text).items()}


def _long_numbers_as_text(item: object) -> object:
    if isinstance(item, list):
        return [_long_numbers_as_text(inner) for inner in item]
    if isinstance(item, dict):
        return {key: _long_numbers_as_text(inner) for key, inner in item.items()}
    long = isinstance(item, int) and not isinstance(item, bool) and len(str(item)) > 40
    return str(item) if long else item

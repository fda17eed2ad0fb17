"""The results file: written, read again, and refused with place and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from planner.bench.compare import compare
from planner.bench.file import dump_results, load_results
from planner.bench.results import BenchResults, Limits, bench_schema
from planner.errors import InputError
from tests.bench.handmade import case, failed, results


def compared() -> BenchResults:
    now, base = results(case("a"), failed("b")), results(case("a", solve_s=8.0), case("b"))
    return now.model_copy(update={"comparison": compare(now, base, Limits())})


def refusal(tmp_path: Path, text: str) -> str:
    path = tmp_path / "base.json"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        load_results(str(path))
    return caught.value.render().replace(str(path), "base.json")


def changed(**changes: Any) -> str:
    return json.dumps({**results(case()).model_dump(mode="json"), **changes}, indent=1)


def test_what_is_written_is_read_again_and_obeys_the_schema(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    for run in (results(), results(case(), complete=False), compared()):
        path.write_text(dump_results(run))
        assert load_results(str(path)) == run
        jsonschema.Draft202012Validator(bench_schema()).validate(json.loads(path.read_text()))


def test_the_schema_refuses_unknown_keys_and_other_versions() -> None:
    validator = jsonschema.Draft202012Validator(bench_schema())
    for text in (changed(format_version="2.0"), changed(more=1), changed(cases=[{}])):
        assert not validator.is_valid(json.loads(text))


def test_a_missing_file_says_which() -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: no such file; check the path of the baseline"):
        load_results("nowhere.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "base.json: is empty; name a file that `dplan bench -o` wrote"),
        ('{"format": "dplan-plan"}', "base.json:1:12: format: is not a results file of dplan; results have `format: "),
        ("{}", "base.json:1:1: format: is not a results file of dplan"),
        (changed(format_version="9.0"), "format_version: version '9.0' is not known; this dplan reads '1.0'; run"),
        (changed(complete="perhaps"), "complete: 'perhaps' is not true or false; write `true` or `false`"),
        (changed(cases=7), "cases: '7' is not a list; write `[7]`"),
        (changed(more=1), "more: unknown key 'more'"),
        (
            changed(cases=[{**case(), "calibration_s": 0}]),
            "cases[0].calibration_s: input should be greater than or equal to",
        ),
        (changed(cases=[{**case(), "calibration_s": 4.0}]), "`loops` is 10, but solve_s / calibration_s is 5"),
        (changed(cases=[{**case(), "found": None}]), "a case has either `found` or `failure`"),
        (changed(cases=[case(), case()]), "case '8-h100' is there twice"),
    ],
)
def test_a_bad_file_is_refused_with_place_and_remedy(tmp_path: Path, text: str, message: str) -> None:
    said = refusal(tmp_path, text)
    assert message.casefold() in said.casefold()
    assert said.startswith("base.json")
    assert said.count("\n") == 0 and said.count(";") >= 1


def test_text_that_is_no_json_is_refused_at_its_place(tmp_path: Path) -> None:
    assert refusal(tmp_path, '{\n  "format": dplan\n}').startswith("base.json:2:13: is not valid JSON")


def test_results_from_before_the_bound_among_identical_pipelines_are_read(tmp_path: Path) -> None:
    document = results(case()).model_dump(mode="json")
    del document["cases"][0]["found"]["identical_bound_s"]
    path = tmp_path / "old.json"
    path.write_text(json.dumps(document))
    assert load_results(str(path)) == results(case())

"""Reading and writing a results file."""

from __future__ import annotations

from dataclasses import replace

from planner.bench.results import FORMAT_VERSION, BenchResults
from planner.errors import InputError
from planner.plan.file import pretty_json
from planner.spec.json_reader import read_json
from planner.spec.reading import Collector
from planner.spec.tree import Document

__all__ = ["dump_results", "load_results"]

_FIX = "name a file that `dplan bench -o` wrote"


def dump_results(results: BenchResults) -> str:
    """The text of a results file: equal results give equal text."""
    return pretty_json(results.model_dump(mode="json")) + "\n"


def load_results(path: str) -> BenchResults:
    """Read a results file; `-` is standard input. Raises InputError with every problem, each with its place."""
    try:
        document = read_json(path, "the baseline")
        _refuse_foreign(document)
        collector = Collector(document)
        results = collector.validate(BenchResults, document.data())
        collector.finish()
    except InputError as error:
        raise InputError(replace(problem, fix=problem.fix or _FIX) for problem in error.problems) from None
    assert results is not None, "no results without a problem"
    return results


def _refuse_foreign(document: Document) -> None:
    """Refuse what is no results file, or one of a version that is not known, before its fields are read."""
    data = document.data()
    if data.get("format") != "dplan-bench":
        why = "results have `format: dplan-bench`"
        raise InputError([document.problem(["format"], "is not a results file of dplan", why, _FIX)])
    version = data.get("format_version")
    if version != FORMAT_VERSION:
        what = f"version {str(version)[:40]!r} is not known"
        fix = "run `dplan bench` again with this dplan"
        raise InputError([document.problem(["format_version"], what, f"this dplan reads {FORMAT_VERSION!r}", fix)])

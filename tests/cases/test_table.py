"""The table of public cases names every case once, and exactly the tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
TABLE = (HERE.parents[1] / "docs" / "public-cases.md").read_text("utf-8")
CASES = {"A": 8, "B": 6, "C": 6, "D": 6, "E": 7, "F": 6}


def test_every_case_has_a_row() -> None:
    rows = re.findall(r"^\| ([A-F]\d) \|", TABLE, re.MULTILINE)
    assert rows == [f"{part}{number}" for part, count in CASES.items() for number in range(1, count + 1)]


def test_the_table_names_every_test_of_a_case_in_its_row() -> None:
    named = {}
    for row in re.findall(r"^\| [A-F]\d \|.*$", TABLE, re.MULTILINE):
        named[row[2:4].lower()] = re.findall(r"`(test_\w+)`", row)
    written: dict[str, list[str]] = {case: [] for case in named}
    for file in sorted(HERE.glob("test_part_*.py")):
        for name in re.findall(r"^def (test_([a-f]\d)_\w+)", file.read_text("utf-8"), re.MULTILINE):
            written[name[1]].append(name[0])
    assert named == written


def test_a_case_without_tests_says_what_it_waits_for() -> None:
    for row in re.findall(r"^\| [A-F]\d \|.*$", TABLE, re.MULTILINE):
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 4 and (cells[2] or cells[3]), row

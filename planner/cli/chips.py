"""`dplan chips`: the chip profiles that dplan knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from planner.cli.options import DebugOption, JsonOption

if TYPE_CHECKING:
    from planner.spec import Chip

__all__ = ["chips"]


def chips(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Chips to show in full, or profile files. Without one: list all."),
    ] = None,
    json: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the chip profiles, or show some.

    A chip is shown with every figure and its source; figures that are not known are absent, and never guessed.

    \b
    Examples:
      dplan chips
      dplan chips nvidia-h100-80gb-sxm amd-mi300x-192gb
      dplan chips ./my-chip.yaml
      dplan chips --json | jq '.[].name'
    """
    from planner.cli.output import print_json, print_report
    from planner.spec import profile_names

    found = _load_all(names or list(profile_names()))
    if json:
        print_json([chip.model_dump(mode="json") for chip in found])
        return
    from planner.report.chips import chip_report, chip_table

    if not names:
        print_report(chip_table(found))
        return
    for index, chip in enumerate(found):
        if index:
            print()
        print_report(chip_report(chip))


def _load_all(names: list[str]) -> list[Chip]:
    """Every chip; the problems of all are reported in one run."""
    from planner.errors import InputError, Problem

    chips_found: list[Chip] = []
    problems: list[Problem] = []
    for name in names:
        try:
            chips_found.append(_load(name))
        except InputError as error:
            problems += error.problems
    if problems:
        raise InputError(problems)
    return chips_found


def _load(name: str) -> Chip:
    """A shipped profile by its name, or a file by its path."""
    from pathlib import Path

    from planner.spec import load_profile

    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return load_profile(path.stem, near=path.parent)
    return load_profile(name, near=None)

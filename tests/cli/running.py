"""Runs `dplan` in this process."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from planner.cli.main import main

__all__ = ["Ran", "dplan"]


@dataclass(frozen=True)
class Ran:
    code: int
    out: str
    err: str


def dplan(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """The exit code and both outputs of `dplan ARGUMENTS`."""
    before = sys.argv
    sys.argv = ["dplan", *arguments]
    try:
        with pytest.raises(SystemExit) as left:
            main()
    finally:
        sys.argv = before
    captured = capsys.readouterr()
    code = left.value.code
    return Ran(code if isinstance(code, int) else 0, captured.out, captured.err)

"""Runs `dplan` in this process, or in many that begin with everything imported."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import walk_packages
from typing import Any

import pytest

import planner
from planner.cli.main import main

__all__ = ["Ran", "dplan", "dplan_quietly", "forked"]

_IMPORTED = ["highspy", "networkx", "numpy", "pulp", *(m.name for m in walk_packages(planner.__path__, "planner."))]


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


def forked(target: Any, *arguments: str) -> BaseProcess:
    """A process in this directory that runs `target(*arguments)`: imports, most of a short run, are done before."""
    context = get_context("forkserver")
    context.set_forkserver_preload([name for name in _IMPORTED if not name.endswith("__main__")])
    process = context.Process(target=target, args=arguments)
    process.start()
    return process


def dplan_quietly(*arguments: str) -> None:
    """`dplan ARGUMENTS` without a word; leaves with its exit code."""
    sys.argv = ["dplan", *arguments]
    with Path(os.devnull).open("w") as nowhere:
        sys.stdout = sys.stderr = nowhere
        main()

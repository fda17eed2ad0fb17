"""The family of cases: shipped clusters from 8 to 131,072 chips, of one to eight chip types."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from planner.errors import InputError, Problem
from planner.spec.suggest import did_you_mean

__all__ = ["CASES", "GAP", "Case", "Pipelines", "select"]

Pipelines = Literal["mixed", "identical"]

GAP = 0.01
"""Every case is asked for a plan proved to be within this share of the best."""


@dataclass(frozen=True)
class Case:
    """cluster, model: names of shipped files.  pipelines: what `constraints.shapes` becomes.  quick: takes seconds."""

    name: str
    cluster: str
    model: str
    time_limit_s: float
    pipelines: Pipelines = "mixed"
    quick: bool = False


CASES = (
    Case("8-h100", "one-node-h100", "llama-3.1-8b", 10, "identical", quick=True),
    Case("8-uneven-nodes", "two-three-three", "opt-350m", 10, "identical", quick=True),
    Case("8-uneven-mixed", "two-three-three", "opt-350m", 20),
    Case("16-rtx", "rtx-3090-4090", "llama-3.1-8b-finetune", 10, "identical", quick=True),
    Case("24-idle-chips", "a100-v100", "dense-13b", 20, "identical", quick=True),
    Case("32-tight", "memory-tight", "llama-3.1-70b", 10, "identical", quick=True),
    Case("48-old-and-new", "mixed-lab", "llama-3.1-70b", 20, "identical", quick=True),
    Case("64-experts", "mi300x-h100", "mixtral-8x22b", 60),
    Case("80-3-types", "h100-a100-l40s", "qwen3-32b", 60),
    Case("96-3-sites", "three-sites", "llama-3.1-8b", 60),
    Case("96-kinds", "ascend-a100", "gemma-2-27b", 60),
    Case("1024-identical", "h2-1024-reconstructed", "h2-100b", 120, "identical"),
    Case("1024-mixed", "h2-1024-reconstructed", "h2-100b", 180),
    Case("4096-2-types", "h100-a100-4096", "llama-3.1-405b", 180),
    Case("4096-8-types", "eight-types-4096", "kimi-k2", 180, "identical"),
    Case("16384", "h2-16384-scaled", "h2-100b-16384", 300),
    Case("131072", "h2-131072-scaled", "h2-100b-131072", 600),
)
"""Smallest clusters first: a run that is interrupted has the most cases."""


def select(only: Collection[str] = (), quick: bool = False, family: tuple[Case, ...] = CASES) -> tuple[Case, ...]:
    """The cases that were asked for, in the order of the family. Raises InputError with every name that is unknown."""
    known = [case.name for case in family if case.quick or not quick]
    fix = "`dplan bench --list` shows all"
    problems = []
    for name in only:
        if name in known:
            continue
        if any(case.name == name for case in family):
            problems.append(Problem(f"{name!r} is no quick case", "--quick leaves it out", "leave one of the two out"))
        else:
            meant = did_you_mean(name, known)
            problems.append(Problem(f"no case has the name {name[:60]!r}", "", f"{meant} {fix}" if meant else fix))
    if problems:
        raise InputError(problems).at(path="--only")
    return tuple(case for case in family if case.name in known and (not only or case.name in only))

"""What a comparison looks like, at 80 columns without colour. With DPLAN_UPDATE_SNAPSHOTS=1 snapshots are written."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from planner.report.baselines import baseline_report

SNAPSHOTS = Path(__file__).parent / "snapshots"


def rates(step_s: float | None, tokens_per_s: float | None, chips: int) -> dict[str, Any]:
    per_chip = None if tokens_per_s is None else tokens_per_s / chips
    known = {"step_time_s": step_s, "tokens_per_s": tokens_per_s, "tokens_per_s_per_chip": per_chip}
    return {"chips": chips, **known, "used_chips": chips, "gap": 0.01}


def rule(code: str, title: str, step_s: float | None = None, tokens_per_s: float | None = None) -> dict[str, Any]:
    numbers = rates(step_s, tokens_per_s, 24)
    return {"code": code, "title": title, "status": "planned", "reason": "", "missing_bytes": 0, **numbers}


def cause(code: str, title: str, mixed: float, separate: float, verdict: str, ratio: float | None) -> dict[str, Any]:
    again = {"change": "it took no time", "hetero_speedup_ratio": {"value": ratio, "least": None, "most": None}}
    return {
        "code": code,
        "title": title,
        "what": "what is lost to it",
        "mixed_share": mixed,
        "separate_share": separate,
        "gain": separate - mixed,
        "verdict": verdict,
        "proved": verdict == "confirmed",
        "ablation": None if ratio is None else again,
    }


DOCUMENT: dict[str, Any] = {
    "mixed": rates(7.0, 149_000.0, 24),
    "separate_tokens_per_s": 140_000.0,
    "hetero_speedup_ratio": {"value": 149 / 140, "least": 1.05, "most": 1.08},
    "homogeneous": [
        {"chip": "nvidia-h100-80gb-sxm", "status": "planned", "reason": "", **rates(6.5, 60_000.0, 8)},
        {"chip": "nvidia-a100-40gb-sxm", "status": "planned", "reason": "", **rates(7.5, 80_000.0, 16)},
    ],
    "rules": [
        rule("even", "even split", 9.0, 115_000.0),
        rule("flops", "split by FLOPs", 7.4, 140_000.0),
        rule("memory", "largest memory first", 7.4, 140_000.0),
    ],
    "chip_time": {
        "mixed": {"compute": 0.93},
        "separate": {"compute": 0.88},
        "yield_ratio": 1.003,
    },
    "statements": [
        cause("recompute", "recompute avoided", 0.0, 0.05, "confirmed", 0.99),
        cause("bubble", "bubble added", 0.06, 0.04, "not confirmed", 1.03),
        cause("integrality", "layer integrality", 0.01, 0.0, "undecided", 1.07),
        cause("idle", "idle chips", 0.0, 0.0, "no difference", None),
    ],
    "notes": ["rules of thumb: the fastest over all micro-batch sizes, degrees and replicas, recompute as needed"],
}


def drawn(document: dict[str, Any], width: int = 80) -> str:
    console = Console(width=width, color_system=None, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(baseline_report(document))
    return "".join(f"{line.rstrip()}\n" for line in capture.get().splitlines())


def compare(name: str, text: str) -> None:
    path = SNAPSHOTS / f"{name}.txt"
    if os.environ.get("DPLAN_UPDATE_SNAPSHOTS"):
        path.write_text(text)
    assert text == path.read_text()
    assert max(len(line) for line in text.splitlines()) <= 80


def crowded() -> dict[str, Any]:
    """Long names, large numbers, a type that cannot train alone, rules that do not fit, nothing explained."""
    document = copy.deepcopy(DOCUMENT)
    document["mixed"] = rates(12_345.0, 123_456_789.0, 131_072)
    document["separate_tokens_per_s"] = 123_456_789.0
    missing = {"status": "does not fit", "reason": "nearest: stage 1 of 2 needs 76.0 GiB a chip"}
    document["homogeneous"][0] |= {"chip": "moorethreads-mtt-s4000-48gb", **rates(12_345.0, 123_456_789.0, 131_072)}
    document["homogeneous"][1] |= missing | rates(None, None, 131_072)
    for number in (1, 2):
        over = {"missing_bytes": 3 * 2**29, "reason": "at best stage 0 of 4 on small needs 38.9 GiB a chip"}
        document["rules"][number] |= rates(None, None, 24) | over | {"status": "does not fit"}
    document["rules"][0] |= rates(None, None, 24) | {"status": "not found", "reason": "no choice was looked at"}
    document["hetero_speedup_ratio"]["most"] = None
    document |= {"chip_time": None, "statements": [], "notes": []}
    return document


def test_a_comparison() -> None:
    compare("baselines", drawn(DOCUMENT))


def test_a_crowded_comparison_says_what_is_missing() -> None:
    text = drawn(crowded())
    compare("baselines_crowded", text)
    assert "split by FLOPs, largest memory first does not fit, 1.5 GiB missing" in text


def test_a_ratio_without_anything_to_compare_with_says_why() -> None:
    document = copy.deepcopy(DOCUMENT)
    document |= {"hetero_speedup_ratio": dict.fromkeys(("value", "least", "most")), "separate_tokens_per_s": 0.0}
    document |= {"chip_time": None, "statements": []}
    for baseline in document["homogeneous"]:
        baseline |= {"status": "does not fit", "reason": "too small", **rates(None, None, 8)}
    assert "no chip type can train this model alone" in drawn(document)
    document["homogeneous"][0]["status"] = "not found"
    assert "a chip type was not planned in time" in drawn(document)


@pytest.mark.parametrize("width", [60, 100, 200])
def test_any_width_shows_the_ratio_and_every_plan(width: int) -> None:
    text = drawn(DOCUMENT, width)
    assert "HeteroSpeedupRatio 106.4 %" in text
    assert all(number in text for number in ("149,000", "140,000", "115,000", "60,000", "80,000"))

"""Equal inputs give equal bytes: whatever the hash seed, whatever the number of worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def plan_bytes(folder: Path, pair: tuple[str, str], seed: int, jobs: int) -> bytes:
    output = folder / f"plan-{seed}-{jobs}.json"
    command = [
        sys.executable,
        "-m",
        "planner",
        "solve",
        *pair,
        "-o",
        str(output),
        "--jobs",
        str(jobs),
        "--time-limit",
        "4 min",
    ]
    environment = {**os.environ, "PYTHONHASHSEED": str(seed), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, cwd=folder)
    return output.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("pair", [("mixed-lab", "llama-3.1-70b"), ("rtx-3090-4090", "llama-3.1-8b")])
def test_five_runs_with_other_hash_seeds_and_jobs_give_the_same_bytes(tmp_path: Path, pair: tuple[str, str]) -> None:
    cluster, model = pair
    text = (ROOT / "configs" / "models" / f"{model}.yaml").read_text()
    (tmp_path / "model.yaml").write_text(text + "constraints: {shapes: identical}\n")
    runs = [(0, 1), (1, 2), (2, 1), (77, 2), (4242, 1)]
    assert len({plan_bytes(tmp_path, (cluster, "model.yaml"), seed, jobs) for seed, jobs in runs}) == 1


@pytest.mark.slow
def test_mixed_shapes_give_the_same_bytes_too(tmp_path: Path) -> None:
    runs = [(0, 1), (77, 2)]
    assert len({plan_bytes(tmp_path, ("rtx-3090-4090", "llama-3.1-8b"), seed, jobs) for seed, jobs in runs}) == 1

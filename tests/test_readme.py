"""What README and the guides show is run here."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
GUIDES = [README, *(ROOT / "docs" / name for name in ("guide.md", "mixed-shapes.md", "modes.md", "offload.md"))]


@dataclass(frozen=True)
class CodeBlock:
    language: str
    text: str


def blocks(page: Path, language: str | None = None) -> list[CodeBlock]:
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    return [CodeBlock(name, text) for name, text in found if language in (None, name)]


def run(command: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command line with `dplan` and `python` of this environment and this checkout."""
    line = re.sub(r"\bdplan (?=[a-z-])", f"{shlex.quote(sys.executable)} -m planner ", command)
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(
        ["bash", "-c", line], cwd=directory, env=environment, capture_output=True, text=True, timeout=120
    )


def test_the_set_up_is_two_commands() -> None:
    first, second = blocks(README, "sh")
    assert first.text.startswith("python -m pip install '.[dev]' && dplan solve ")
    assert second.text == "python -m pytest -q -n 2\n"


def test_ci_runs_the_test_command_of_the_readme() -> None:
    assert blocks(README, "sh")[1].text in (ROOT / ".ci" / "run").read_text()


def test_the_first_command_plans_a_mixed_cluster_with_all_its_chips(tmp_path: Path) -> None:
    from planner import Plan

    command = blocks(README, "sh")[0].text.partition(" && ")[2]
    assert command.startswith("dplan solve ")
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    plan = Plan.load(str(tmp_path / "plan.json"))
    assert len({stage.chip for stage in plan.pipelines[0].stages}) > 1
    assert plan.inputs.model.document["source"] == "config"


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: page.name)
def test_files_and_commands_of_a_page_work_in_their_order(page: Path, tmp_path: Path) -> None:
    """A block with `node_groups:` is cluster.yaml, one with `training:` is model.yaml, `$` starts a command."""
    for block in blocks(page):
        if block.language == "yaml":
            name = "cluster.yaml" if "node_groups:" in block.text else "model.yaml"
            (tmp_path / name).write_text(block.text)
        elif block.language == "console":
            for line in block.text.splitlines():
                assert line.startswith("$ ")
                done = run(line[2:], tmp_path)
                assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.slow
@pytest.mark.parametrize("page", [README, ROOT / "docs" / "mixed-shapes.md"], ids=lambda page: page.name)
def test_what_a_page_shows_is_what_solve_prints(page: Path, tmp_path: Path) -> None:
    """Line by line, in their order; with time enough, so that no clock has a part in it."""
    for block in blocks(page, "yaml")[:2]:
        name = "cluster.yaml" if "node_groups:" in block.text else "model.yaml"
        (tmp_path / name).write_text(block.text)
    done = run("dplan solve cluster.yaml model.yaml --time-limit '100 s'", tmp_path)
    assert done.returncode == 0, done.stderr
    printed = [line.strip() for line in done.stdout.splitlines()]
    for line in blocks(page, "text")[0].text.splitlines():
        assert line.strip() in printed, f"{line}\n{done.stdout}"
        printed = printed[printed.index(line.strip()) + 1 :]


@pytest.mark.parametrize("page", [README, ROOT / "docs" / "plan-file.md"], ids=lambda page: page.name)
def test_python_of_a_page_runs(page: Path, tmp_path: Path) -> None:
    from planner.plan.file import dump_plan
    from tests.plan.handmade import plan

    (tmp_path / "plan.json").write_text(dump_plan(plan()))
    for block in blocks(page, "python"):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", block.text]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_the_example_in_python_has_ten_lines_of_code() -> None:
    (block,) = blocks(README, "python")
    assert len([line for line in block.text.splitlines() if line]) == 10


def test_links_between_pages_lead_somewhere() -> None:
    for page in [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"

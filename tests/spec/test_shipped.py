"""Shipped files: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

import pytest

from planner.errors import InputError
from planner.spec import shipped, shipped_dir, shipped_names
from planner.spec.shipped import find_document


def test_every_kind_of_shipped_file_has_a_folder_with_names():
    for kind in ("profiles", "clusters", "models"):
        assert shipped_dir(kind).is_dir()
        assert list(shipped_names(kind)) == sorted(shipped_names(kind)) != []


def test_an_installed_package_finds_its_files_inside_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    module = tmp_path / "planner" / "spec" / "shipped.py"
    clusters = tmp_path / "planner" / "_data" / "configs" / "clusters"
    clusters.mkdir(parents=True)
    (clusters / "lab.yaml").write_text("name: lab")
    monkeypatch.setattr(shipped, "__file__", str(module))
    assert shipped_dir("clusters") == clusters
    assert shipped_names("clusters") == ("lab",)
    assert find_document("lab", "clusters") == clusters / "lab.yaml"


@pytest.mark.parametrize("path", ["-", "lab.yaml", "./lab", "folder/lab", "lab.json"])
def test_a_path_is_taken_as_it_is(path: str):
    assert find_document(path, "clusters") == path


def test_a_bare_name_is_a_shipped_file_before_it_is_a_file_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Path("mine").write_text("name: mine")
    Path("mixed-lab").write_text("name: mine")
    assert find_document("mixed-lab", "clusters") == shipped_dir("clusters") / "mixed-lab.yaml"
    assert find_document("mine", "clusters") == Path("mine")


def test_an_unknown_name_is_answered_with_what_is_shipped():
    with pytest.raises(InputError, match="did you mean 'mixed-lab'\\? shipped: "):
        find_document("mixd-lab", "clusters")

"""Finding and reading profiles: beside the user's files first, then the shipped ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any

from planner.errors import InputError
from planner.spec.base import WRITTEN, is_name
from planner.spec.printing import format_bytes, format_flops, format_rate
from planner.spec.profile import Chip, Measured, ProfileFile
from planner.spec.reading import Collector
from planner.spec.shipped import shipped_dir, shipped_names
from planner.spec.suggest import closest, with_the_parts_of
from planner.spec.tree import Path
from planner.spec.yaml_reader import read_yaml

__all__ = [
    "ProfileSource",
    "check_figures",
    "find_profile",
    "load_profile",
    "merged",
    "profile_names",
    "read_profile",
    "unknown_chip_advice",
]

_FEW = 6
"""Profiles that advice lists at most."""


@dataclass(frozen=True)
class ProfileSource:
    """A profile as its file has it (`data`, ready to be changed by a cluster file), and the chip it describes."""

    data: dict[str, Any]
    chip: Chip
    shadows_shipped: bool = False
    """A user's file that stands in for a shipped profile of the same name."""


def profile_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return shipped_names("profiles")


def load_profile(name: str, near: FilePath | None = None) -> Chip:
    """The chip of that name: `profiles/NAME.yaml` or `NAME.yaml` in the folder `near`, else the shipped profile.

    A name that ends in `.yaml` is the path of a profile file.
    """
    if name.endswith((".yaml", ".yml")):
        return read_profile(FilePath(name)).chip
    source = find_profile(name, near)
    if source is None:
        raise InputError.single(f"unknown chip {name[:60]!r}", "", unknown_chip_advice(name, profile_names()))
    return source.chip


def find_profile(name: str, near: FilePath | None = None) -> ProfileSource | None:
    """The profile of that name, or None when there is none."""
    if not is_name(name):
        return None
    shipped = shipped_dir("profiles") / f"{name}.yaml"
    for folder in (near / "profiles", near) if near is not None else ():
        file = folder / f"{name}.yaml"
        if file.is_file() and not (shipped.is_file() and file.samefile(shipped)) and not _is_other_input(file):
            source = read_profile(file)
            return ProfileSource(source.data, source.chip, shadows_shipped=shipped.is_file())
    return read_profile(shipped) if shipped.is_file() else None


def _is_other_input(file: FilePath) -> bool:
    """A cluster or a model that bears the chip's name, such as `h100.yaml` with a chip `h100` of its own."""
    try:
        return not {"node_groups", "training"}.isdisjoint(read_yaml(file, "the profile").root.entries)
    except InputError:
        return False


def read_profile(file: FilePath) -> ProfileSource:
    """One profile file; its name is the file's."""
    document = read_yaml(file, "the profile")
    collector = Collector(document)
    data = document.data()
    profile = collector.validate(ProfileFile, data)
    if profile is not None and profile.name not in (None, file.stem):
        collector.add(
            ("name",), f"is {profile.name!r}", f"the file is {file.name}", f"write '{file.stem}' or remove it"
        )
    collector.finish()
    data["name"] = file.stem
    chip = Chip.model_validate(data, context=WRITTEN, by_alias=True, by_name=False)
    check_figures(collector, chip, ())
    collector.finish()
    return ProfileSource(data, chip)


def merged(base: dict[str, Any], changes: dict[str, Any], *, keep_nulls: bool = False) -> dict[str, Any]:
    """A profile with a cluster file's changes: mappings key by key, the rest replaced; null takes a figure away."""
    result = dict(base)
    for key, value in changes.items():
        held = result.get(key)
        if value is None and not keep_nulls:
            result.pop(key, None)
        elif isinstance(value, dict):
            inner = merged(held if isinstance(held, dict) else {}, value, keep_nulls=keep_nulls)
            if inner or held is not None or not value:
                result[key] = inner
        else:
            result[key] = value
    return result


def check_figures(collector: Collector, chip: Chip, path: Path) -> None:
    """Measured figures do not pass the claimed ones: one of the two would be wrong."""
    measured = chip.measured or Measured()
    pairs: list[tuple[Path, float, float | None, Callable[[float], str]]] = [
        (("matmul", precision), rate, chip.peak_flops_per_s.get(precision), format_flops)
        for precision, rate in measured.matmul_flops_per_s.items()
    ]
    memory = measured.memory_bandwidth_bytes_per_s
    if memory is not None:
        pairs.append((("memory_bandwidth",), memory, chip.memory_bandwidth_bytes_per_s, format_rate))
    for place, rate, claimed, shown in pairs:
        if claimed is not None and rate > claimed:
            what, why = f"{shown(rate)} was measured, {shown(claimed)} is claimed", "nothing runs above its peak"
            collector.add((*path, "measured", *place), what, why, "correct one of the two")
    if chip.memory_bytes and (chip.reported_memory_bytes or 0) > 1.1 * chip.memory_bytes:
        what = (
            f"{format_bytes(chip.reported_memory_bytes or 0)} is reported, {format_bytes(chip.memory_bytes)} was sold"
        )
        collector.add((*path, "reported_memory"), what, "a driver does not report more", "correct one of the two")


def unknown_chip_advice(name: str, known: tuple[str, ...]) -> str:
    """What to do about a chip that no profile describes."""
    meant = with_the_parts_of(name, known)
    close = closest(name, known)
    if not meant and close is not None:
        meant = [close]
    first, more = ", ".join(f"'{chip}'" for chip in meant[:_FEW]), ", ..." if len(meant) > _FEW else ""
    hint = f"did you mean {'one of ' if len(meant) > 1 else ''}{first}{more}? " if meant else ""
    return f"{hint}`dplan chips` lists the shipped ones; `chips:` or a file profiles/{name[:60]}.yaml adds your own"

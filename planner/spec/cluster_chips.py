"""The chips of a cluster file: its own, changed profiles, profiles beside it, shipped ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from planner.errors import InputError, Notice
from planner.spec.base import is_name
from planner.spec.cluster_file import MAX_CHIPS
from planner.spec.profile import PEAK_PRECISIONS, Chip, ChipEntry
from planner.spec.profiles import ProfileSource, check_figures, find_profile, merged, profile_names, unknown_chip_advice
from planner.spec.reading import Collector, node_at
from planner.spec.tree import MapNode

__all__ = ["ChipFinder"]

_CHANGED = "changed in the cluster file"


class ChipFinder:
    """Finds each chip once and remembers it, also when it is wrong."""

    def __init__(self, collector: Collector, near: Path) -> None:
        self.collector = collector
        self.near = near
        self.notices: list[Notice] = []
        self.own = dict.fromkeys(name for name in collector.keys(("chips",))[:MAX_CHIPS] if is_name(name))
        self.used: set[str] = set()
        self._broken: set[str] = set()
        self._profiles: dict[str, ProfileSource | None] = {}
        self._chips: dict[str, Chip | None] = {}
        for name in self.own:
            self.chip(name)

    def chip(self, name: str) -> Chip | None:
        """The chip, or None when it is unknown or wrong (its problems are collected)."""
        if name not in self._chips:
            source = None if name in self.own else self._profile(name)
            self._chips[name] = self._own(name) if name in self.own else source.chip if source else None
        return self._chips[name]

    def known(self, name: str) -> Chip:
        """A chip that was found before."""
        chip = self._chips[name]
        assert chip is not None, "a file with an unknown chip is refused before"
        return chip

    def exists(self, name: str) -> bool:
        """Whether anything describes the chip, right or wrong."""
        return name in self.own or self._profile(name) is not None or name in self._broken

    def require(self, name: str, path: tuple[str | int, ...]) -> None:
        """Collects a problem when nothing describes the chip."""
        if not is_name(name):
            return
        self.used.add(name)
        if not self.exists(name):
            advice = unknown_chip_advice(name, (*self.own, *profile_names()))
            self.collector.add(path, f"unknown chip {name!r}", "", advice)

    def _profile(self, name: str) -> ProfileSource | None:
        """The profile in a file, read once; a wrong one counts as found, with its problems collected."""
        if name not in self._profiles:
            try:
                source = find_profile(name, self.near)
            except InputError as error:
                self.collector.extend(error.problems)
                self._broken.add(name)
                source = None
            if source is not None and source.shadows_shipped:
                message = f"{name}: your own profile file is used, not the shipped profile of that name"
                self.notices.append(Notice("profile", message))
            self._profiles[name] = source
        return self._profiles[name]

    def _own(self, name: str) -> Chip | None:
        """A chip of the `chips:` section: new, or a profile with changes."""
        here = ("chips", name)
        entry = self.collector.valid(ChipEntry, here)
        if entry is None:
            return None
        base = self._profile(entry.base or name)
        if base is None and entry.base is not None:
            if entry.base not in self._broken:
                advice = unknown_chip_advice(entry.base, profile_names())
                self.collector.add((*here, "base"), f"unknown profile {entry.base!r}", "", advice)
            return None
        node = node_at(self.collector.document, here)
        assert isinstance(node, MapNode), "an entry in order is a mapping"
        changes = node.data()
        changes.pop("base", None)
        data = changes if base is None else merged(base.data, _with_stale_figures_removed(changes))
        if base is not None:
            data["sources"] = _sources(base.data.get("sources") or {}, changes, data)
        chip = self.collector.validate(Chip, data | {"name": name}, here)
        if chip is not None:
            check_figures(self.collector, chip, here)
        return chip


def _with_stale_figures_removed(changes: dict[str, Any]) -> dict[str, Any]:
    """The changes, which also take away what was reported or measured of a claimed figure that they replace."""
    measured: dict[str, Any] = {}
    if "peak" in changes:
        measured["matmul"] = dict.fromkeys(changes["peak"] or PEAK_PRECISIONS)
    if "memory_bandwidth" in changes:
        measured["memory_bandwidth"] = None
    if "intra_node" in changes:
        measured["allreduce"] = None
    stale: dict[str, Any] = {"reported_memory": None} if "memory" in changes else {}
    if measured:
        stale["measured"] = measured
    return merged(stale, changes, keep_nulls=True)


def _sources(inherited: dict[str, str], changes: dict[str, Any], data: dict[str, Any]) -> dict[str, str]:
    """The profile's sources of the figures it still answers for; the cluster file answers for those it changes."""
    changed: list[str] = []
    for key, value in changes.items():
        if isinstance(value, dict) and key != "sources":
            changed += [f"{key}.{part}" for part in value]
        elif key not in ("sources", "trust", "notes", "name"):
            changed.append(key)
    kept = {
        figure: source
        for figure, source in inherited.items()
        if _is_present(data, figure) and not any(figure == key or figure.startswith(f"{key}.") for key in changed)
    }
    own = {key: _CHANGED for key in sorted(changed) if _is_present(data, key)}
    return kept | own | (changes.get("sources") or {})


def _is_present(data: Any, figure: str) -> bool:
    """Whether a profile has the figure at a path such as `measured.matmul.bf16`."""
    for step in figure.split("."):
        if not isinstance(data, dict) or step not in data:
            return False
        data = data[step]
    return True

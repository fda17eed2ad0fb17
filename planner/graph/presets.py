"""Named models: a Hugging Face configuration each, with the exact parameter count and where both come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from planner.graph.fields import refuse
from planner.spec.suggest import did_you_mean

__all__ = ["PRESETS", "Preset", "preset", "preset_config", "preset_names"]

Preset = dict[str, Any]
"""`config`: the Hugging Face dict.  `parameters`: exact count of the main model (tied matrices once, without
prediction layers for later tokens, without vision towers).  `active_parameters`: with experts.  `published`: whether a
source gives the count.  `source`, `note`: where the figures come from, and what to know about them."""

_DATA: dict[str, Preset] = json.loads(Path(__file__).with_name("presets.json").read_text(encoding="utf-8"))

PRESETS: dict[str, dict[str, Any]] = {name: entry["config"] for name, entry in _DATA.items()}
"""Name -> configuration."""


def preset_names() -> tuple[str, ...]:
    """All names, sorted."""
    return tuple(sorted(PRESETS))


def preset(name: str) -> Preset:
    """Everything that is known of a preset. The name exists: ask `preset_names`."""
    return _DATA[name]


def preset_config(name: object, file: str) -> dict[str, Any]:
    """The configuration of a preset; an unknown name is refused with the closest known one."""
    if not isinstance(name, str) or name not in PRESETS:
        fix = did_you_mean(str(name), PRESETS, noun="presets", more=f"presets: {', '.join(preset_names())}")
        refuse(
            file, "model.preset", f"{str(name)[:60]!r} is no preset", "presets are named models with cited sizes", fix
        )
    return PRESETS[name]

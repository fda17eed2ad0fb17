"""What stands beside the language model in a file that nests it: named and, where known, counted, but not planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.graph.fields import ConfigFields

__all__ = ["TOWERS", "siglip_parameters", "tower_notes"]

TOWERS = ("vision_config", "audio_config", "visual", "vision_tower", "audio_encoder")


def tower_notes(fields: ConfigFields, hidden_size: int) -> tuple[str, ...]:
    """One sentence for every tower in the file."""
    notes = []
    for name in TOWERS:
        if fields.raw(name) is None:
            continue
        word = "audio" if "audio" in name else "vision"
        count = siglip_parameters(fields, hidden_size) if name == "vision_config" else None
        size = "" if count is None else f" ({count:,} parameters with its projector)"
        notes.append(f"the {word} tower ({name}){size} is not planned and takes no memory in this plan")
    return tuple(notes)


def siglip_parameters(fields: ConfigFields, hidden_size: int) -> int | None:
    """SigLIP as Gemma 3 uses it, with the projector into the language model; None when the tower is of another kind."""
    vision = fields.section("vision_config")
    if vision.raw("model_type") != "siglip_vision_model" or vision.raw("vision_use_head") is not False:
        return None
    width, inner = vision.whole("hidden_size"), vision.whole("intermediate_size")
    layers, patch = vision.whole("num_hidden_layers"), vision.whole("patch_size")
    image = vision.whole("image_size")
    fields.stop_on_problems()
    layer = 4 * (width * width + width) + 2 * width * inner + inner + width + 2 * 2 * width
    patches = (image // patch) ** 2 * width + 3 * patch * patch * width + width
    projector = width * hidden_size + width
    return layers * layer + patches + 2 * width + projector

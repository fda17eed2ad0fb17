"""What the families share: sizes, heads, sliding windows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.graph.fields import ConfigFields

__all__ = [
    "MAX_LAYERS",
    "Sizes",
    "head_width",
    "layer_windows",
    "read_layer_count",
    "read_prediction_layers",
    "read_sizes",
]

MAX_LAYERS = 10_000
"""Deeper models do not exist; the limit keeps a hostile file from filling the memory."""

_WINDOW_TYPES = {"sliding_attention": True, "full_attention": False}


@dataclass(frozen=True)
class Sizes:
    """The sizes every decoder has. Heads and MLP widths are one entry a layer."""

    hidden_size: int
    vocabulary: int
    num_layers: int
    num_heads: tuple[int, ...]
    num_kv_heads: tuple[int, ...]
    head_dim: tuple[int, ...]
    intermediate_size: tuple[int, ...]


def read_layer_count(fields: ConfigFields, *names: str) -> int:
    """The number of layers, within reason."""
    count = fields.whole(*names)
    if count > MAX_LAYERS:
        name = fields.spelling(*names)
        fields.add(name, f"is {count:,}", f"no model has more than {MAX_LAYERS:,} layers", "correct the number")
        return 1
    return count


def read_prediction_layers(fields: ConfigFields) -> int:
    """Layers for multi-token prediction; none when the file is silent."""
    if not fields.raw("num_nextn_predict_layers"):
        return 0
    return read_layer_count(fields, "num_nextn_predict_layers")


def read_sizes(fields: ConfigFields, intermediate_default: int | None = None) -> Sizes:
    """Sizes under Hugging Face's usual names and their older spellings.

    Raises when one is absent or does not divide.
    """
    hidden = fields.whole("hidden_size", "n_embd", "n_embed", "d_model")
    vocabulary = fields.whole("vocab_size")
    layers = read_layer_count(fields, "num_hidden_layers", "n_layer", "n_layers")
    heads = fields.per_layer("num_attention_heads", "n_head", "n_heads", num_layers=layers, default=None)
    default = None if intermediate_default is None else intermediate_default * hidden
    intermediate = fields.per_layer(
        "intermediate_size", "n_inner", "ffn_hidden_size", "ffn_dim", num_layers=layers, default=default
    )
    kv_names = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
    kv = heads if fields.raw(*kv_names) is None else fields.per_layer(*kv_names, num_layers=layers)
    own = fields.optional_whole("head_dim")
    fields.stop_on_problems()
    width = tuple(own or head_width(fields, hidden, count) for count in heads)
    for count, groups in sorted(set(zip(heads, kv, strict=True))):
        if count % groups:
            fields.add(
                fields.spelling(*kv_names),
                f"is {groups}",
                f"each key/value head serves the same number of the {count} query heads (num_attention_heads)",
                "give a divisor of the head count",
            )
    fields.stop_on_problems()
    return Sizes(hidden, vocabulary, layers, heads, kv, width, intermediate)


def head_width(fields: ConfigFields, hidden: int, heads: int) -> int:
    """hidden_size / num_attention_heads, when the file gives no head_dim."""
    if hidden % heads:
        name = fields.spelling("hidden_size", "n_embd", "n_embed", "d_model")
        fields.add(
            name,
            f"{hidden} does not divide by {heads} heads",
            "the file gives no head_dim of its own",
            "add head_dim or correct one",
        )
    return max(1, hidden // heads)


def layer_windows(
    fields: ConfigFields, num_layers: int, default_types: list[bool] | None = None
) -> tuple[int | None, ...]:
    """The sliding window of every layer, None where a token sees all earlier ones.

    default_types: which layers slide when the file has no `layer_types`; None: all of them.
    A window whose switch `use_sliding_window` is false is void.
    """
    window = fields.raw("sliding_window", "sliding_window_size")
    switched_off = not fields.flag("use_sliding_window", default=True)
    types = _layer_types(fields, num_layers)
    if window is None or switched_off:
        return (None,) * num_layers
    if isinstance(window, list):
        return _listed_windows(fields, window, num_layers)
    size = fields.optional_whole("sliding_window", "sliding_window_size")
    slides = types or default_types or [True] * num_layers
    return tuple(size if slide else None for slide in slides)


def _layer_types(fields: ConfigFields, num_layers: int) -> list[bool] | None:
    """`layer_types`: which layers slide. Any other kind of layer is refused by name."""
    types: Any = fields.raw("layer_types")
    if types is None:
        return None
    if not isinstance(types, list) or len(types) != num_layers:
        found = f"has {len(types)} entries" if isinstance(types, list) else "is no list"
        why = f"the model has {num_layers} layers (num_hidden_layers), and a list holds one entry a layer"
        fields.add("layer_types", found, why, f"give {num_layers} entries or none")
        return None
    unknown = sorted({str(entry) for entry in types if not isinstance(entry, str) or entry not in _WINDOW_TYPES})
    if unknown:
        fields.add(
            "layer_types",
            f"has {', '.join(repr(name[:40]) for name in unknown[:3])}",
            f"only {' and '.join(sorted(_WINDOW_TYPES))} are known",
            "write the model as an explicit graph",
        )
        return None
    return [_WINDOW_TYPES[entry] for entry in types]


def _listed_windows(fields: ConfigFields, window: list[Any], num_layers: int) -> tuple[int | None, ...]:
    """A list of windows, repeated over the layers; null is full attention."""
    if not window or num_layers % len(window):
        why = f"the list repeats over the {num_layers} layers (num_hidden_layers), so its length must divide them"
        fields.add(
            "sliding_window", f"has {len(window)} entries", why, f"give {num_layers} entries or a divisor of them"
        )
        return (None,) * num_layers
    wrong = [
        entry
        for entry in window
        if entry is not None and (isinstance(entry, bool) or not isinstance(entry, int) or entry < 1)
    ]
    if wrong:
        fields.add(
            "sliding_window", f"has {wrong[0]!r:.40}", "an entry is a number of tokens or null", "correct the entry"
        )
        return (None,) * num_layers
    return tuple(window[i % len(window)] for i in range(num_layers))

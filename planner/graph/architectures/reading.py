"""Finds the language model in a configuration, picks its family, and refuses what no family here describes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from planner.graph.architectures import deepseek, experts, gpt, llama, t5
from planner.graph.architectures.known_fields import STRUCTURAL, UNLIKE_LAYERS, WITHOUT_EFFECT
from planner.graph.architectures.vision import TOWERS, tower_notes
from planner.graph.fields import ConfigFields, refuse
from planner.spec.suggest import closest, did_you_mean

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from planner.graph.shapes import TransformerShape

__all__ = ["known_model_types", "read_architecture"]

_READERS: dict[str, Callable[[ConfigFields], TransformerShape]] = {
    "bloom": gpt.read_bloom,
    "dbrx": experts.read_dbrx,
    "deepseek_v2": deepseek.read_deepseek_v2,
    "deepseek_v3": deepseek.read_deepseek_v3,
    "falcon": gpt.read_falcon,
    "RefinedWeb": gpt.read_falcon,
    "RefinedWebModel": gpt.read_falcon,
    "gemma": llama.read_gemma,
    "gemma2": llama.read_gemma2,
    "gemma3": llama.read_gemma3,
    "gemma3_text": llama.read_gemma3,
    "glm4_moe": experts.read_glm4_moe,
    "gpt2": gpt.read_gpt2,
    "gpt_bigcode": gpt.read_gpt_bigcode,
    "gpt_oss": experts.read_gpt_oss,
    "gpt_neox": gpt.read_gpt_neox,
    "grok-1": experts.read_grok1,
    "internlm2": llama.read_internlm2,
    "kimi_k2": deepseek.read_deepseek_v3,
    "llama": llama.read_llama,
    "mistral": llama.read_mistral,
    "mixtral": experts.read_mixtral,
    "mt5": t5.read_t5,
    "olmo2": llama.read_olmo2,
    "opt": gpt.read_opt,
    "phi": gpt.read_phi,
    "phi3": llama.read_phi3,
    "qwen2": llama.read_qwen2,
    "qwen2_moe": experts.read_qwen2_moe,
    "qwen3": llama.read_qwen3,
    "qwen3_moe": experts.read_qwen3_moe,
    "t5": t5.read_t5,
}

_NESTED = (("text_config",), ("language_config",), ("llm_config",), ("thinker_config", "text_config"))


def known_model_types() -> tuple[str, ...]:
    """Every `model_type` that can be read."""
    return tuple(sorted(_READERS))


def read_architecture(config: Mapping[str, Any], file: str, path: str, *, strict: bool = False) -> TransformerShape:
    """The shape of the language model in a configuration.

    path: what the fields are called in messages (`config`, `dimensions`).
    strict: the fields are the user's own (`dimensions`): no `model_type` means Llama, an unknown field is refused.
    """
    fields = ConfigFields(config, file, path)
    fields, notes = _language_model(fields)
    _refuse_unlike_layers(fields)
    family = _family(fields, "llama" if strict else None)
    shape = _READERS[family](fields)
    _check_unread(fields, family, strict)
    fields.stop_on_problems()
    unread = sorted(set(fields.data) - fields.read - WITHOUT_EFFECT - set(TOWERS))
    if unread:
        notes.append(f"fields of the configuration that were not used: {', '.join(name[:40] for name in unread[:20])}")
    return replace(shape, notes=(*shape.notes, *notes, *_tower_notes(config, file, path, shape.hidden_size)))


def _language_model(fields: ConfigFields) -> tuple[ConfigFields, list[str]]:
    """The fields of the language model, which a multimodal file nests;
    switches of the outer file hold where the inner one is silent.
    """
    for keys in _NESTED:
        nested: Any = fields.data
        for key in keys:
            nested = nested.get(key) if isinstance(nested, dict) else None
        if not isinstance(nested, dict):
            continue
        outer = {
            name: fields.data[name] for name in ("tie_word_embeddings", "dtype", "torch_dtype") if name in fields.data
        }
        if "model_type" not in nested and fields.data.get("model_type") == "gemma3":
            outer["model_type"] = "gemma3_text"
        name = ".".join(keys)
        return ConfigFields({**outer, **nested}, fields.file, f"{fields.path}.{name}"), [
            f"the language model is read from {name}"
        ]
    return fields, []


def _family(fields: ConfigFields, default: str | None) -> str:
    """The `model_type`, refused when absent or unknown: layers are never guessed."""
    value = fields.raw("model_type")
    if value is None and default is not None:
        return default
    where = f"{fields.path}.model_type"
    known = ", ".join(known_model_types())
    if value is None:
        refuse(fields.file, where, "is absent", "it says which layers the sizes describe", f"add one of {known}")
    if isinstance(value, str) and value in _READERS:
        return value
    shown = repr(value)[:60]
    close = closest(value, known_model_types()) if isinstance(value, str) else None
    hint = f"did you mean '{close}'? " if close else ""
    fix = f"{hint}known: {known}; any other model can be written as an explicit graph"
    refuse(fields.file, where, f"the architecture {shown} is not known", "its layers would be a guess", fix)


def _refuse_unlike_layers(fields: ConfigFields) -> None:
    for name, why in UNLIKE_LAYERS.items():
        if fields.data.get(name):
            what = f"describes layers that no architecture here has ({str(fields.data.get('model_type'))[:40]!r})"
            fields.add(name, what, why, "write the model as an explicit graph, layer by layer")
    fields.stop_on_problems()


def _check_unread(fields: ConfigFields, family: str, strict: bool) -> None:
    """Fields that no reader asked for: refused where they matter."""
    for name in sorted(set(fields.data) - fields.read):
        if name in STRUCTURAL and fields.data[name]:
            fields.add(
                name,
                f"has no meaning for {family!r}",
                "it changes the layers",
                "correct model_type, or remove the field",
            )
        elif strict and name not in WITHOUT_EFFECT:
            hint = did_you_mean(name, fields.read | WITHOUT_EFFECT, more="use Hugging Face's field names")
            fields.add(name, "is not a known field", f"dimensions of a {family!r} model do not have it", hint)


def _tower_notes(config: Mapping[str, Any], file: str, path: str, hidden_size: int) -> tuple[str, ...]:
    return tower_notes(ConfigFields(config, file, path), hidden_size)

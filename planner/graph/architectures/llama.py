"""Llama and its relatives: RMSNorm, gated MLP, rotary positions, grouped queries."""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.graph.architectures.common import Sizes, layer_windows, read_sizes
from planner.graph.shapes import AttentionShape, FeedForwardShape, LayerShape, TransformerShape

if TYPE_CHECKING:
    from typing import Literal

    from planner.graph.fields import ConfigFields
    from planner.graph.shapes import NormPlacement

__all__ = ["attention_of", "read_gemma", "read_gemma2", "read_gemma3", "read_internlm2", "read_llama"]
__all__ += ["read_mistral", "read_olmo2", "read_phi3", "read_qwen2", "read_qwen3", "window_types_of_qwen"]


def read_llama(fields: ConfigFields) -> TransformerShape:
    """Llama 1, 2 and 3. `attention_bias` puts a bias on all four projections."""
    return _decoder(fields, "llama", mlp_bias=fields.flag("mlp_bias", default=False))


def read_mistral(fields: ConfigFields) -> TransformerShape:
    """Mistral: Llama with a sliding window in every layer, if any, and a head width of its own (Mistral-Nemo)."""
    return _decoder(fields, "mistral")


def read_qwen2(fields: ConfigFields) -> TransformerShape:
    """Qwen 2 and 2.5: a bias on query, key and value, always. The window needs its switch."""
    sizes = read_sizes(fields)
    return _decoder(fields, "qwen2", sizes, biases=(True, False), windows=_qwen_windows(fields, sizes))


def read_qwen3(fields: ConfigFields) -> TransformerShape:
    """Qwen 3: RMSNorm on every query and key head."""
    sizes = read_sizes(fields)
    return _decoder(fields, "qwen3", sizes, query_key_norm="head", windows=_qwen_windows(fields, sizes))


def read_phi3(fields: ConfigFields) -> TransformerShape:
    """Phi-3: fused projections, no bias, a sliding window in every layer."""
    dropout = fields.nonzero("resid_pdrop", default=False)
    return _decoder(fields, "phi3", dropout=dropout)


def read_internlm2(fields: ConfigFields) -> TransformerShape:
    """InternLM2: Llama under other weight names; `bias` is the attention's."""
    bias = fields.flag("bias", "attention_bias", default=False)
    return _decoder(fields, "internlm2", biases=(bias, bias))


def read_olmo2(fields: ConfigFields) -> TransformerShape:
    """OLMo 2: norms on the outputs of attention and MLP only, and over all query and key heads at once."""
    return _decoder(fields, "olmo2", query_key_norm="full", placement="output")


def read_gemma(fields: ConfigFields) -> TransformerShape:
    """Gemma 1: Llama with tied embeddings and wide heads."""
    return _decoder(fields, "gemma", tied=True)


def read_gemma2(fields: ConfigFields) -> TransformerShape:
    """Gemma 2: norms on both sides, every other layer slides, the first one too."""
    sizes = read_sizes(fields)
    windows = layer_windows(fields, sizes.num_layers, [i % 2 == 0 for i in range(sizes.num_layers)])
    return _decoder(fields, "gemma2", sizes, tied=True, placement="both", windows=windows)


def read_gemma3(fields: ConfigFields) -> TransformerShape:
    """Gemma 3: Gemma 2 with a norm on query and key heads; five sliding layers, then a full one."""
    sizes = read_sizes(fields)
    pattern = fields.whole("sliding_window_pattern", "_sliding_window_pattern", default=6)
    windows = layer_windows(fields, sizes.num_layers, [(i + 1) % pattern != 0 for i in range(sizes.num_layers)])
    return _decoder(fields, "gemma3", sizes, tied=True, placement="both", windows=windows, query_key_norm="head")


def window_types_of_qwen(fields: ConfigFields, num_layers: int) -> list[bool]:
    """Qwen: layers from `max_window_layers` on slide (28 unless given)."""
    first = fields.optional_whole("max_window_layers", minimum=0)
    return [i >= (28 if first is None else first) for i in range(num_layers)]


def _qwen_windows(fields: ConfigFields, sizes: Sizes) -> tuple[int | None, ...]:
    types = window_types_of_qwen(fields, sizes.num_layers)
    windows = layer_windows(fields, sizes.num_layers, types)
    return windows if fields.flag("use_sliding_window", default=False) else (None,) * sizes.num_layers


def attention_of(
    sizes: Sizes,
    layer: int,
    window: int | None = None,
    query_key_value_bias: bool = False,
    output_bias: bool = False,
    query_key_norm: Literal["none", "head", "full"] = "none",
    dropout: bool = False,
    rotary: bool = True,
) -> AttentionShape:
    """The attention of one layer; values are as wide as keys."""
    return AttentionShape(
        num_heads=sizes.num_heads[layer],
        num_kv_heads=sizes.num_kv_heads[layer],
        head_dim=sizes.head_dim[layer],
        value_dim=sizes.head_dim[layer],
        window=window,
        query_key_value_bias=query_key_value_bias,
        output_bias=output_bias,
        query_key_norm=query_key_norm,
        dropout=dropout,
        rotary=rotary,
    )


def _decoder(
    fields: ConfigFields,
    family: str,
    sizes: Sizes | None = None,
    *,
    tied: bool = False,
    placement: NormPlacement = "before",
    windows: tuple[int | None, ...] | None = None,
    biases: tuple[bool, bool] | None = None,
    mlp_bias: bool = False,
    query_key_norm: Literal["none", "head", "full"] = "none",
    dropout: bool = False,
) -> TransformerShape:
    """A gated-MLP decoder. tied: the class default of `tie_word_embeddings`; biases: (query, key and value;
    output), None: as `attention_bias` says.
    """
    sizes = sizes or read_sizes(fields)
    windows = windows or layer_windows(fields, sizes.num_layers)
    bias, output_bias = biases or (fields.flag("attention_bias", default=False),) * 2
    attention_dropout = fields.nonzero("attention_dropout", default=False)
    layers = tuple(
        LayerShape(
            label="layer",
            attention=attention_of(sizes, i, windows[i], bias, output_bias, query_key_norm, attention_dropout),
            feed_forward=FeedForwardShape(sizes.intermediate_size[i], gated=True, bias=mlp_bias),
            norm="rms",
            placement=placement,
            dropout=dropout,
        )
        for i in range(sizes.num_layers)
    )
    return TransformerShape(
        family=family,
        hidden_size=sizes.hidden_size,
        vocabulary=sizes.vocabulary,
        layers=layers,
        tied=fields.flag("tie_word_embeddings", default=tied),
        final_norm="rms",
        max_positions=fields.optional_whole("max_position_embeddings"),
    )

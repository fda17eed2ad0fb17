"""T5: an encoder and a decoder, relative position biases, RMSNorm, no other biases."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.graph.architectures.common import read_layer_count
from planner.graph.shapes import AttentionShape, EmbeddingShape, FeedForwardShape, LayerShape, TransformerShape

if TYPE_CHECKING:
    from planner.graph.fields import ConfigFields

__all__ = ["read_t5"]


def read_t5(fields: ConfigFields) -> TransformerShape:
    """T5, T5 v1.1, Flan-T5 and mT5. The first layer of each stack holds the position biases of all."""
    hidden = fields.whole("d_model", "hidden_size")
    heads, width = fields.whole("num_heads", "num_attention_heads"), fields.whole("d_kv", "head_dim")
    num_encoder = read_layer_count(fields, "num_layers", "num_hidden_layers")
    num_decoder = num_encoder
    if fields.raw("num_decoder_layers") is not None:
        num_decoder = read_layer_count(fields, "num_decoder_layers")
    buckets = fields.whole("relative_attention_num_buckets", default=32)
    dropout = fields.nonzero("dropout_rate", default=True)
    feed_forward = _feed_forward(fields, dropout)
    attention = AttentionShape(heads, heads, width, width, causal=False, rotary=False, dropout=dropout)
    encoder = LayerShape("encoder_layer", attention, feed_forward, "rms", dropout=dropout)
    decoder = replace(
        encoder, label="decoder_layer", attention=replace(attention, causal=True), cross_attention=attention
    )
    return TransformerShape(
        family="t5",
        hidden_size=hidden,
        vocabulary=fields.whole("vocab_size"),
        encoder=_stack(encoder, num_encoder, buckets),
        layers=_stack(decoder, num_decoder, buckets),
        tied=fields.flag("tie_word_embeddings", default=True),
        final_norm="rms",
        embedding=EmbeddingShape(dropout=dropout),
        notes=(
            "encoder and decoder both see sequences of sequence_length tokens",
            "relative position biases are added inside the attention kernel",
        ),
    )


def _feed_forward(fields: ConfigFields, dropout: bool) -> FeedForwardShape:
    """`feed_forward_proj` names the activation, with `gated-` in front when there is a third matrix."""
    name = fields.text("feed_forward_proj", default="relu")
    fields.raw("dense_act_fn", "is_gated_act")
    gated = name.startswith("gated-")
    activation = name.removeprefix("gated-")
    return FeedForwardShape(
        intermediate_size=fields.whole("d_ff", "intermediate_size"),
        gated=gated,
        activation="relu" if activation == "relu" and not gated else "smooth",
        inner_dropout=dropout,
    )


def _stack(layer: LayerShape, count: int, buckets: int) -> tuple[LayerShape, ...]:
    first = replace(layer, label=f"{layer.label}_first", attention=replace(layer.attention, relative_buckets=buckets))
    return (first, *(layer,) * (count - 1))

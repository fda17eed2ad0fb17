"""DeepSeek-V2 and V3 (Kimi-K2 too): multi-head latent attention, many small experts, multi-token prediction."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.graph.architectures.common import read_layer_count, read_prediction_layers
from planner.graph.architectures.experts import checked_top_k
from planner.graph.shapes import (
    AttentionShape,
    ExpertShape,
    FeedForwardShape,
    LatentShape,
    LayerShape,
    TransformerShape,
)

if TYPE_CHECKING:
    from planner.graph.fields import ConfigFields

__all__ = ["read_deepseek_v2", "read_deepseek_v3"]


def read_deepseek_v2(fields: ConfigFields) -> TransformerShape:
    """DeepSeek-V2 and V2-Lite (whose queries are not compressed: q_lora_rank null)."""
    return _read(fields, "deepseek_v2", balancing_bias=False)


def read_deepseek_v3(fields: ConfigFields) -> TransformerShape:
    """DeepSeek-V3 and R1: a balancing bias in each router, and `num_nextn_predict_layers` further prediction layers."""
    return _read(fields, "deepseek_v3", balancing_bias=True)


def _read(fields: ConfigFields, family: str, balancing_bias: bool) -> TransformerShape:
    hidden = fields.whole("hidden_size")
    num_layers = read_layer_count(fields, "num_hidden_layers")
    attention = _attention(fields)
    dense = FeedForwardShape(fields.whole("intermediate_size"), gated=True)
    sparse = _experts(fields, balancing_bias)
    first = fields.whole("first_k_dense_replace", default=0, minimum=0)
    every = fields.whole("moe_layer_freq", default=1)
    vocabulary = fields.whole("vocab_size")
    fields.stop_on_problems()
    routed = [sparse is not None and i >= first and i % every == 0 for i in range(num_layers)]
    layers = tuple(LayerShape("layer", attention, sparse if sparse and use else dense, "rms") for use in routed)
    extra = read_prediction_layers(fields)
    return TransformerShape(
        family=family,
        hidden_size=hidden,
        vocabulary=vocabulary,
        layers=layers,
        tied=fields.flag("tie_word_embeddings", default=False),
        final_norm="rms",
        mtp=(replace(layers[-1], label="mtp", feed_forward=sparse or dense),) * extra,
        max_positions=fields.optional_whole("max_position_embeddings"),
    )


def _attention(fields: ConfigFields) -> AttentionShape:
    """Every head has its own key and value, made from the shared narrow vector."""
    heads = fields.whole("num_attention_heads")
    fields.raw("num_key_value_heads", "head_dim")  # latent attention has no groups: the file repeats the head count
    plain, rotary = fields.whole("qk_nope_head_dim"), fields.whole("qk_rope_head_dim")
    latent = LatentShape(
        query_rank=fields.optional_whole("q_lora_rank"),
        key_value_rank=fields.whole("kv_lora_rank"),
        rotary_dim=rotary,
        bias=fields.flag("attention_bias", default=False),
    )
    return AttentionShape(
        num_heads=heads,
        num_kv_heads=heads,
        head_dim=plain + rotary,
        value_dim=fields.whole("v_head_dim"),
        dropout=fields.nonzero("attention_dropout", default=False),
        latent=latent,
    )


def _experts(fields: ConfigFields, balancing_bias: bool) -> ExpertShape | None:
    """None: a dense model (n_routed_experts null)."""
    count = fields.optional_whole("n_routed_experts")
    if count is None:
        return None
    width = fields.whole("moe_intermediate_size")
    shared = fields.optional_whole("n_shared_experts", minimum=0) or 0
    return ExpertShape(
        num_experts=count,
        top_k=checked_top_k(fields, count, "num_experts_per_tok"),
        intermediate_size=width,
        balancing_bias=balancing_bias,
        shared=FeedForwardShape(shared * width, gated=True) if shared else None,
    )

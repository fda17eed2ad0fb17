"""Decoders with routed experts and ordinary attention: Mixtral, Qwen-MoE, GLM-4.5, GPT-OSS, DBRX, Grok-1."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from planner.graph.architectures.common import layer_windows, read_layer_count, read_prediction_layers, read_sizes
from planner.graph.architectures.llama import attention_of, window_types_of_qwen
from planner.graph.shapes import AttentionShape, ExpertShape, FeedForwardShape, LayerShape, TransformerShape

if TYPE_CHECKING:
    from typing import Literal

    from planner.graph.architectures.common import Sizes
    from planner.graph.fields import ConfigFields
    from planner.graph.shapes import NormKind

__all__ = [
    "checked_top_k",
    "read_dbrx",
    "read_glm4_moe",
    "read_gpt_oss",
    "read_grok1",
    "read_mixtral",
    "read_qwen2_moe",
    "read_qwen3_moe",
]


def checked_top_k(fields: ConfigFields, num_experts: int, *names: str) -> int:
    """Experts a token meets: no more than there are."""
    top_k = fields.whole(*names)
    if top_k > num_experts:
        name = fields.spelling(*names)
        fields.add(name, f"is {top_k}", f"the model has {num_experts} experts", "correct one of the two")
    return top_k


def read_mixtral(fields: ConfigFields) -> TransformerShape:
    """Mixtral: every MLP is a set of experts."""
    sizes = read_sizes(fields)
    windows = layer_windows(fields, sizes.num_layers)
    experts = fields.whole("num_local_experts", "num_experts")
    top_k = checked_top_k(fields, experts, "num_experts_per_tok")
    layers = tuple(
        LayerShape(
            "layer", attention_of(sizes, i, windows[i]), ExpertShape(experts, top_k, sizes.intermediate_size[i]), "rms"
        )
        for i in range(sizes.num_layers)
    )
    return _model(fields, "mixtral", sizes, layers)


def read_qwen2_moe(fields: ConfigFields) -> TransformerShape:
    """Qwen1.5-MoE and Qwen2-57B-A14B: query, key and value biases, one shared expert behind a gate."""
    shared = FeedForwardShape(fields.whole("shared_expert_intermediate_size"), gated=True)
    sizes = read_sizes(fields)
    attention = attention_of(sizes, 0, query_key_value_bias=fields.flag("qkv_bias", default=True))
    return _qwen(fields, "qwen2_moe", sizes, attention, shared)


def read_qwen3_moe(fields: ConfigFields) -> TransformerShape:
    """Qwen3-MoE: norms on query and key heads, no shared expert."""
    bias = fields.flag("attention_bias", default=False)
    sizes = read_sizes(fields)
    return _qwen(fields, "qwen3_moe", sizes, attention_of(sizes, 0, None, bias, bias, "head"), None)


def _qwen(
    fields: ConfigFields, family: str, sizes: Sizes, attention: AttentionShape, shared: FeedForwardShape | None
) -> TransformerShape:
    """Every `decoder_sparse_step`-th layer has experts, but those named in `mlp_only_layers`."""
    experts = fields.whole("num_experts", "num_local_experts")
    top_k = checked_top_k(fields, experts, "num_experts_per_tok")
    width = fields.whole("moe_intermediate_size")
    step = fields.whole("decoder_sparse_step", default=1)
    dense = set(fields.numbers("mlp_only_layers"))
    windows = layer_windows(fields, sizes.num_layers, window_types_of_qwen(fields, sizes.num_layers))
    if not fields.flag("use_sliding_window", default=False):
        windows = (None,) * sizes.num_layers
    sparse = ExpertShape(experts, top_k, width, shared=shared, shared_gate=shared is not None)
    layers = tuple(
        LayerShape(
            label="layer",
            attention=replace(attention, window=windows[i]),
            feed_forward=FeedForwardShape(sizes.intermediate_size[i], gated=True)
            if i in dense or (i + 1) % step
            else sparse,
            norm="rms",
        )
        for i in range(sizes.num_layers)
    )
    return _model(fields, family, sizes, layers)


def read_glm4_moe(fields: ConfigFields) -> TransformerShape:
    """GLM-4.5: DeepSeek-like experts, ordinary attention with query, key and value biases."""
    sizes = read_sizes(fields)
    bias = fields.flag("attention_bias", default=False)
    norm: Literal["none", "head"] = "head" if fields.flag("use_qk_norm", default=False) else "none"
    experts = fields.whole("n_routed_experts")
    top_k = checked_top_k(fields, experts, "num_experts_per_tok")
    width = fields.whole("moe_intermediate_size")
    shared = fields.whole("n_shared_experts", default=1)
    first = fields.whole("first_k_dense_replace", default=1, minimum=0)
    sparse = ExpertShape(
        experts, top_k, width, balancing_bias=True, shared=FeedForwardShape(shared * width, gated=True)
    )
    layers = tuple(
        LayerShape(
            label="layer",
            attention=attention_of(sizes, i, None, bias, False, norm),
            feed_forward=FeedForwardShape(sizes.intermediate_size[i], gated=True) if i < first else sparse,
            norm="rms",
        )
        for i in range(sizes.num_layers)
    )
    extra = read_prediction_layers(fields)
    mtp = (replace(layers[-1], feed_forward=sparse, label="mtp"),) * extra
    return replace(_model(fields, "glm4_moe", sizes, layers), mtp=mtp)


def read_gpt_oss(fields: ConfigFields) -> TransformerShape:
    """GPT-OSS: biases everywhere, one learned sink a head, every other layer slides, the first one too."""
    sizes = read_sizes(fields)
    bias = fields.flag("attention_bias", default=True)
    windows = layer_windows(fields, sizes.num_layers, [i % 2 == 0 for i in range(sizes.num_layers)])
    experts = fields.whole("num_local_experts", "num_experts")
    top_k = checked_top_k(fields, experts, "num_experts_per_tok", "experts_per_token")
    layers = tuple(
        LayerShape(
            label="layer",
            attention=replace(attention_of(sizes, i, windows[i], bias, bias), sinks=True),
            feed_forward=ExpertShape(experts, top_k, sizes.intermediate_size[i], bias=True),
            norm="rms",
        )
        for i in range(sizes.num_layers)
    )
    return _model(fields, "gpt_oss", sizes, layers)


def read_dbrx(fields: ConfigFields) -> TransformerShape:
    """DBRX: sizes in `attn_config` and `ffn_config`, LayerNorm without shift."""
    attention, experts = fields.section("attn_config"), fields.section("ffn_config")
    hidden, heads = fields.whole("d_model"), fields.whole("n_heads")
    num_layers = read_layer_count(fields, "n_layers")
    kv = attention.whole("kv_n_heads", default=1)
    count = experts.whole("moe_num_experts")
    top_k = checked_top_k(experts, count, "moe_top_k")
    width = experts.whole("ffn_hidden_size")
    fields.stop_on_problems()
    if hidden % heads or heads % kv:
        fields.add("n_heads", f"is {heads}", f"d_model is {hidden} and kv_n_heads {kv}: heads divide", "correct one")
        fields.stop_on_problems()
    head_dim = hidden // heads
    layer = LayerShape(
        label="layer",
        attention=AttentionShape(heads, kv, head_dim, head_dim),
        feed_forward=ExpertShape(count, top_k, width),
        norm="layer_without_bias",
        dropout=fields.nonzero("resid_pdrop", default=False),
    )
    return TransformerShape(
        family="dbrx",
        hidden_size=hidden,
        vocabulary=fields.whole("vocab_size"),
        layers=(layer,) * num_layers,
        tied=fields.flag("tie_word_embeddings", default=False),
        final_norm="layer_without_bias",
        max_positions=fields.optional_whole("max_seq_len"),
    )


def read_grok1(fields: ConfigFields) -> TransformerShape:
    """Grok-1: norms on both sides of attention and experts, tied embeddings."""
    sizes = read_sizes(fields)
    bias = fields.flag("attention_bias", default=False)
    experts = fields.whole("num_experts", "num_local_experts")
    top_k = checked_top_k(fields, experts, "num_experts_per_tok")
    layers = tuple(
        LayerShape(
            "layer",
            attention_of(sizes, i, None, bias, bias),
            ExpertShape(experts, top_k, sizes.intermediate_size[i]),
            "rms",
            "both",
        )
        for i in range(sizes.num_layers)
    )
    return _model(fields, "grok-1", sizes, layers, tied=True)


def _model(
    fields: ConfigFields,
    family: str,
    sizes: Sizes,
    layers: tuple[LayerShape, ...],
    tied: bool = False,
    norm: NormKind = "rms",
) -> TransformerShape:
    return TransformerShape(
        family=family,
        hidden_size=sizes.hidden_size,
        vocabulary=sizes.vocabulary,
        layers=layers,
        tied=fields.flag("tie_word_embeddings", default=tied),
        final_norm=norm,
        max_positions=fields.optional_whole("max_position_embeddings"),
    )

"""GPT-2 and its relatives: LayerNorm, plain MLP of two matrices, biases."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from planner.graph.architectures.common import layer_windows, read_sizes
from planner.graph.architectures.llama import attention_of
from planner.graph.shapes import EmbeddingShape, FeedForwardShape, LayerShape, TransformerShape

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from planner.graph.architectures.common import Sizes
    from planner.graph.fields import ConfigFields
    from planner.graph.shapes import NormPlacement

__all__ = ["read_bloom", "read_falcon", "read_gpt2", "read_gpt_bigcode", "read_gpt_neox", "read_opt", "read_phi"]


def read_gpt2(fields: ConfigFields) -> TransformerShape:
    """GPT-2 and GPT-3: learned positions, tied embeddings, dropout unless switched off."""
    return _gpt2(fields, "gpt2", read_sizes(fields, intermediate_default=4))


def read_gpt_bigcode(fields: ConfigFields) -> TransformerShape:
    """StarCoder 1: GPT-2 whose query heads share one key/value head."""
    data = dict(fields.data)
    if fields.flag("multi_query", default=True):
        data["num_key_value_heads"] = 1
    return _gpt2(fields, "gpt_bigcode", _sizes_with(fields, data))


def _gpt2(fields: ConfigFields, family: str, sizes: Sizes) -> TransformerShape:
    positions = fields.whole("n_positions", "max_position_embeddings", "n_ctx")
    return _model(
        fields,
        family,
        sizes,
        _Traits(
            tied=True,
            dropout=fields.nonzero("resid_pdrop", default=True),
            attention_dropout=fields.nonzero("attn_pdrop", default=True),
            activation=fields.text("activation_function", default="gelu_new"),
            embedding=EmbeddingShape(positions=positions, dropout=fields.nonzero("embd_pdrop", default=True)),
        ),
    )


def read_gpt_neox(fields: ConfigFields) -> TransformerShape:
    """GPT-NeoX and Pythia: attention and MLP side by side, rotary, untied."""
    parallel = fields.flag("use_parallel_residual", default=True)
    return _model(
        fields,
        "gpt_neox",
        read_sizes(fields),
        _Traits(
            tied=False,
            rotary=True,
            attention_bias=fields.flag("attention_bias", default=True),
            placement="two_shared" if parallel else "before",
            dropout=fields.nonzero("hidden_dropout", default=False),
            attention_dropout=fields.nonzero("attention_dropout", default=False),
            activation=fields.text("hidden_act", default="gelu"),
        ),
    )


def read_bloom(fields: ConfigFields) -> TransformerShape:
    """BLOOM: position slopes inside the attention (no weights), a norm behind the embedding."""
    return _model(
        fields,
        "bloom",
        read_sizes(fields, intermediate_default=4),
        _Traits(
            tied=True,
            dropout=fields.nonzero("hidden_dropout", default=False),
            attention_dropout=fields.nonzero("attention_dropout", default=False),
            embedding=EmbeddingShape(norm="layer"),
        ),
    )


def read_opt(fields: ConfigFields) -> TransformerShape:
    """OPT: learned positions with two spare rows, ReLU.

    The 350M model has its norms behind the additions and a narrow token table.
    """
    sizes = read_sizes(fields)
    before = fields.flag("do_layer_norm_before", default=True)
    removed = fields.flag("_remove_final_layer_norm", default=False)
    width = fields.optional_whole("word_embed_proj_dim")
    dropout = fields.nonzero("dropout", default=True)
    return _model(
        fields,
        "opt",
        sizes,
        _Traits(
            tied=True,
            attention_bias=fields.flag("enable_bias", default=True),
            mlp_bias=fields.flag("enable_bias", default=True),
            placement="before" if before else "after",
            final_norm=before and not removed,
            dropout=dropout,
            attention_dropout=fields.nonzero("attention_dropout", default=False),
            activation=fields.text("activation_function", default="relu"),
            embedding=EmbeddingShape(
                width=None if width == sizes.hidden_size else width,
                positions=fields.whole("max_position_embeddings") + 2,
            ),
        ),
    )


def read_phi(fields: ConfigFields) -> TransformerShape:
    """Phi-1, 1.5 and 2: attention and MLP side by side on one norm, a bias on every matrix, the head included."""
    if fields.flag("qk_layernorm", default=False):
        fields.add("qk_layernorm", "is true", "its weights are not described for phi", "use an explicit graph")
    return _model(
        fields,
        "phi",
        read_sizes(fields),
        _Traits(
            tied=False,
            rotary=True,
            placement="shared",
            head_bias=True,
            dropout=fields.nonzero("resid_pdrop", default=False),
            attention_dropout=fields.nonzero("attention_dropout", default=False),
            activation=fields.text("hidden_act", default="gelu_new"),
            embedding=EmbeddingShape(dropout=fields.nonzero("embd_pdrop", default=False)),
        ),
    )


def read_falcon(fields: ConfigFields) -> TransformerShape:
    """Falcon: the 7B shares one key/value head and one norm; the new decoder (40B, 180B) has groups and two norms."""
    old_name = fields.text("model_type", default="falcon")
    new = fields.flag("new_decoder_architecture", default=old_name == "RefinedWeb")
    multi_query = fields.flag("multi_query", default=True)
    data = dict(fields.data)
    if not new:
        for name in ("num_key_value_heads", "num_kv_heads", "n_head_kv"):
            data.pop(name, None)
        if multi_query:
            data["num_kv_heads"] = 1
    sizes = _sizes_with(fields, data)
    norms = fields.optional_whole("num_ln_in_parallel_attn") or (2 if new else 1)
    parallel = fields.flag("parallel_attn", default=True) or new
    bias = fields.flag("bias", default=False)
    placement: NormPlacement = ("two_shared" if norms == 2 else "shared") if parallel else "before"
    return _model(
        fields,
        "falcon",
        sizes,
        _Traits(
            tied=True,
            rotary=not fields.flag("alibi", default=False),
            attention_bias=bias,
            mlp_bias=bias,
            placement=placement,
            dropout=fields.nonzero("hidden_dropout", default=False),
            attention_dropout=fields.nonzero("attention_dropout", default=False),
            activation=fields.text("activation", default="gelu"),
        ),
    )


def _sizes_with(fields: ConfigFields, data: Mapping[str, Any]) -> Sizes:
    """The sizes, read from the fields as a family's rule rewrites them (MLP width four times the model's unless
    given).
    """
    written = fields.data
    fields.data = data
    sizes = read_sizes(fields, intermediate_default=4)
    fields.data = written
    return sizes


@dataclass(frozen=True)
class _Traits:
    """What sets a family apart. tied: the class default of `tie_word_embeddings`."""

    tied: bool
    rotary: bool = False
    attention_bias: bool = True
    mlp_bias: bool = True
    placement: NormPlacement = "before"
    final_norm: bool = True
    head_bias: bool = False
    dropout: bool = False
    attention_dropout: bool = False
    activation: str = "gelu"
    embedding: EmbeddingShape = field(default_factory=EmbeddingShape)


def _model(fields: ConfigFields, family: str, sizes: Sizes, traits: _Traits) -> TransformerShape:
    """A decoder with LayerNorm."""
    windows = layer_windows(fields, sizes.num_layers)
    return TransformerShape(
        family=family,
        hidden_size=sizes.hidden_size,
        vocabulary=sizes.vocabulary,
        layers=tuple(_layer(sizes, i, windows[i], traits) for i in range(sizes.num_layers)),
        tied=fields.flag("tie_word_embeddings", default=traits.tied),
        final_norm="layer" if traits.final_norm else None,
        embedding=traits.embedding,
        head_bias=traits.head_bias,
        max_positions=fields.optional_whole("max_position_embeddings", "n_positions", "n_ctx", "seq_length"),
    )


def _layer(sizes: Sizes, i: int, window: int | None, traits: _Traits) -> LayerShape:
    bias = traits.attention_bias
    return LayerShape(
        label="layer",
        attention=attention_of(sizes, i, window, bias, bias, dropout=traits.attention_dropout, rotary=traits.rotary),
        feed_forward=FeedForwardShape(
            sizes.intermediate_size[i],
            gated=False,
            bias=traits.mlp_bias,
            activation="relu" if traits.activation == "relu" else "smooth",
        ),
        norm="layer",
        placement=traits.placement,
        dropout=traits.dropout,
    )

"""From a model file to its layer graph."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import gcd
from typing import TYPE_CHECKING, Any

from planner.errors import Notice
from planner.graph.counts import active_parameters
from planner.graph.ends import embedding_layer, head_layer, mtp_layer, norm_layer
from planner.graph.fields import refuse
from planner.graph.frozen import freeze
from planner.graph.kinds import group_kinds
from planner.graph.layers import Edge, Layer, LayerGraph
from planner.graph.recipe import recipe_of
from planner.graph.shapes import ExpertShape, FeedForwardShape
from planner.graph.transformer import transformer_layer

if TYPE_CHECKING:
    from planner.graph.recipe import Recipe
    from planner.graph.shapes import AttentionShape, LayerShape, TransformerShape
    from planner.spec.model import ModelSpec

__all__ = ["build_graph"]

_DTYPES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "float": "fp32", "half": "fp16"}


def build_graph(model: ModelSpec) -> LayerGraph:
    """The layers of a model with its training settings, whatever form the model file has.

    Refuses (InputError) what no family describes: unknown architectures, absent sizes, cyclic graphs, patterns that
    match no layer.
    """
    from planner.graph.architectures import read_architecture
    from planner.graph.explicit import build_explicit
    from planner.graph.presets import preset_config

    if model.source == "graph":
        return build_explicit(model)
    config, path, file = model.architecture, "config", model.config_file or model.name
    if model.source == "preset":
        config, path = preset_config(model.architecture.get("preset"), model.file or model.name), "preset"
        file = model.name
    elif model.source == "dimensions":
        path, file = "dimensions", model.file or model.name
    shape = read_architecture(config, file, path, strict=model.source == "dimensions")
    _check_length(shape, model, path)
    notices = _length_notices(shape, model)
    notes = (
        *shape.notes,
        *_precision_notes(config, model.training.precision),
        *(notice.message for notice in notices),
        *_shape_notes(shape),
    )
    return replace(_graph_of(shape, model, notes), notices=notices)


def _graph_of(shape: TransformerShape, model: ModelSpec, notes: tuple[str, ...]) -> LayerGraph:
    layers, edges = _assemble(_labelled(shape, model.training.sequence_length), recipe_of(model.training))
    stack = (*shape.encoder, *shape.layers)
    experts = {layer.feed_forward.num_experts for layer in stack if isinstance(layer.feed_forward, ExpertShape)}
    divisors = _divisors(shape)
    limits = dict(divisors)
    return LayerGraph(
        name=model.name,
        layers=group_kinds(freeze(layers, edges, model.frozen, model.file or model.name)),
        edges=edges,
        sequence_length=model.training.sequence_length,
        vocabulary=shape.vocabulary,
        num_heads=limits["num_attention_heads"],
        num_kv_heads=limits["num_key_value_heads"],
        num_experts=min(experts, default=0),
        active_parameters=active_parameters(layers, _active_share(stack)),
        tensor_divisors=divisors,
        notes=notes,
    )


def _assemble(shape: TransformerShape, recipe: Recipe) -> tuple[tuple[Layer, ...], tuple[Edge, ...]]:
    """Layers in chain order and the tensors between them;
    an encoder stands in front, and every decoder layer reads its output.
    """
    hidden = shape.hidden_size
    elements = float(recipe.tokens * hidden)
    layers: list[Layer] = []
    edges: list[Edge] = []
    owner, memory = "embedding", None
    if shape.encoder:
        owner = "encoder.embedding"
        _add_stack(layers, edges, shape, shape.encoder, "encoder.", recipe, None)
        memory = layers[-1].name
    prefix = "decoder." if shape.encoder else ""
    _add_stack(layers, edges, shape, shape.layers, prefix, recipe, owner if shape.encoder else None)
    if memory is not None:
        edges += [Edge(memory, f"{prefix}layers.{i}", elements) for i in range(len(shape.layers))]
    last = layers[-1].name
    source = last
    for i, layer in enumerate(shape.mtp):
        layers.append(mtp_layer(f"mtp.{i}", layer, shape, recipe, owner if shape.tied else "head", owner))
        edges.append(Edge(source, f"mtp.{i}", elements))
        source = f"mtp.{i}"
    layers.append(head_layer("head", "head", shape, recipe, owner if shape.tied else None))
    edges.append(Edge(last, "head", elements))
    return tuple(layers), tuple(edges)


def _add_stack(
    layers: list[Layer],
    edges: list[Edge],
    shape: TransformerShape,
    stack: tuple[LayerShape, ...],
    prefix: str,
    recipe: Recipe,
    tied_to: str | None,
) -> None:
    """Embedding, layers and final norm of an encoder or a decoder, one feeding the next."""
    kind = prefix.replace(".", "_")
    new = [embedding_layer(f"{prefix}embedding", f"{kind}embedding", shape, recipe, tied_to)]
    made: dict[LayerShape, Layer] = {}
    for i, layer in enumerate(stack):
        if layer not in made:
            made[layer] = transformer_layer("", layer, shape.hidden_size, recipe)
        new.append(replace(made[layer], name=f"{prefix}layers.{i}"))
    if shape.final_norm is not None:
        dropout = bool(shape.encoder) and shape.embedding.dropout
        new.append(norm_layer(f"{prefix}norm", "norm", shape.final_norm, shape.hidden_size, recipe, dropout))
    elements = float(recipe.tokens * shape.hidden_size)
    edges += [Edge(a.name, b.name, elements) for a, b in pairwise(new)]
    layers += new


def _labelled(shape: TransformerShape, tokens: int) -> TransformerShape:
    """Windows that reach the whole sequence are none; labels say what sets a layer apart from its neighbours:

    `layer_local`, `layer_moe`.
    """

    def narrowed(attention: AttentionShape) -> AttentionShape:
        return (
            replace(attention, window=None)
            if attention.window is not None and attention.window >= tokens
            else attention
        )

    plain = [replace(layer, attention=narrowed(layer.attention)) for layer in shape.layers]
    mixed_windows = len({layer.attention.window for layer in plain}) > 1
    mixed_experts = len({isinstance(layer.feed_forward, ExpertShape) for layer in plain}) > 1
    labelled = []
    for layer in plain:
        local = "_local" if mixed_windows and layer.attention.window is not None else ""
        routed = "_moe" if mixed_experts and isinstance(layer.feed_forward, ExpertShape) else ""
        labelled.append(replace(layer, label=f"{layer.label}{local}{routed}"))
    mtp = tuple(replace(layer, attention=narrowed(layer.attention)) for layer in shape.mtp)
    return replace(shape, layers=tuple(labelled), mtp=mtp)


def _divisors(shape: TransformerShape) -> tuple[tuple[str, int], ...]:
    """What a tensor parallel degree must divide: the greatest common divisor over the layers."""
    stack = (*shape.encoder, *shape.layers, *shape.mtp)
    attentions = [layer.attention for layer in stack]
    widths = [layer.feed_forward for layer in stack if isinstance(layer.feed_forward, FeedForwardShape)]
    widths += [
        layer.feed_forward.shared
        for layer in stack
        if isinstance(layer.feed_forward, ExpertShape) and layer.feed_forward.shared
    ]
    found = [
        ("num_attention_heads", gcd(*(attention.num_heads for attention in attentions))),
        ("num_key_value_heads", gcd(*(attention.num_kv_heads for attention in attentions))),
    ]
    if widths:
        found.append(("intermediate_size", gcd(*(width.intermediate_size for width in widths))))
    return tuple(found)


def _active_share(stack: tuple[LayerShape, ...]) -> float:
    """Share of the routed experts that one token meets."""
    shares = {
        layer.feed_forward.top_k / layer.feed_forward.num_experts
        for layer in stack
        if isinstance(layer.feed_forward, ExpertShape)
    }
    return min(shares, default=1.0)


def _check_length(shape: TransformerShape, model: ModelSpec, path: str) -> None:
    """Learned positions end where their table ends."""
    tokens, rows = model.training.sequence_length, shape.max_positions or shape.embedding.positions
    if shape.embedding.positions and tokens > rows:
        why = f"the model has learned positions for {rows} tokens ({path}) and none beyond"
        fix = f"use at most {rows}, or a longer table"
        refuse(model.file or model.name, "training.sequence_length", f"is {tokens}", why, fix)


def _length_notices(shape: TransformerShape, model: ModelSpec) -> tuple[Notice, ...]:
    """Computed positions go on beyond what the model was made for; the model may not follow."""
    tokens, promised = model.training.sequence_length, shape.max_positions
    if promised is None or tokens <= promised or shape.embedding.positions:
        return ()
    message = f"sequence_length {tokens} is longer than the {promised} tokens of max_position_embeddings"
    return (Notice("sequence-length", message),)


def _shape_notes(shape: TransformerShape) -> tuple[str, ...]:
    notes = []
    if shape.mtp:
        count = len(shape.mtp)
        notes.append(
            f"{count} layer(s) for multi-token prediction are trained too, with the model's embedding and head"
        )
    return tuple(notes)


def _precision_notes(config: dict[str, Any], precision: str) -> tuple[str, ...]:
    """The file's dtype says how weights are stored; how they are trained is the training file's choice."""
    nested = [value for value in config.values() if isinstance(value, dict)]
    notes = []
    for section in (config, *nested):
        stored = section.get("dtype") or section.get("torch_dtype")
        word = str(stored).removeprefix("torch.").lower() if isinstance(stored, str) else ""
        if word in _DTYPES and _DTYPES[word] != precision:
            notes.append(
                f"the configuration stores weights as {word}; training runs in {precision} (training.precision)"
            )
            break
    if any(isinstance(section.get("quantization_config"), dict) for section in (config, *nested)):
        notes.append("quantization_config is ignored: the model is read as unquantised for training")
    return tuple(notes)

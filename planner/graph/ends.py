"""What stands at the ends of the chain:

embedding, final norm, head with its loss, and prediction layers for later tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.graph.layers import Operation
from planner.graph.parts import Parts
from planner.graph.recipe import ALWAYS, LOSS_CHUNK_TOKENS, NEVER, ONLY_FULL, UNLESS_FULL
from planner.graph.transformer import add_transformer

if TYPE_CHECKING:
    from planner.graph.layers import Layer
    from planner.graph.recipe import Recipe
    from planner.graph.shapes import EmbeddingShape, LayerShape, NormKind, TransformerShape

__all__ = ["embedding_layer", "head_layer", "mtp_layer", "norm_layer"]


def embedding_layer(name: str, kind: str, shape: TransformerShape, recipe: Recipe, tied_to: str | None = None) -> Layer:
    """Token table, learned positions, projection from a narrow table, norm and dropout, as far as the model has them.

    tied_to: this embedding is a copy of another layer's (a decoder that shares its table with the encoder).
    """
    parts = Parts(recipe, recomputed=False)
    embedding, hidden = shape.embedding, shape.hidden_size
    width = embedding.width or hidden
    _add_look_up(parts, shape, width, tied_to)
    if tied_to is None:
        _add_positions(parts, embedding, hidden)
    if embedding.width is not None:
        parts.save("embedding_projection_input", recipe.tokens * width)
        parts.matmul("embedding_projection", width, hidden, sharding="sequence")
    if embedding.norm is not None:
        parts.save("embedding_norm_input", recipe.tokens * hidden)
        parts.norm("embedding_norm", embedding.norm, hidden, rerun=NEVER)
    if recipe.drops(embedding.dropout):
        parts.elementwise("embedding_dropout", 2.5 * recipe.tokens * hidden, "sequence", backward_ratio=1.0)
        parts.save("embedding_dropout_mask", recipe.tokens * hidden, width="mask")
    parts.need(float(recipe.tokens * hidden))
    return parts.layer(name, kind)


def _add_look_up(parts: Parts, shape: TransformerShape, width: int, tied_to: str | None) -> None:
    """Each chip of a tensor group looks up its own rows; an all-reduce fills in the others."""
    tokens = parts.recipe.tokens
    parts.weight("embedding", shape.vocabulary * width, tied_to=tied_to, vocabulary=True)
    parts.operations.append(
        Operation(
            name="embedding",
            operation_class="embedding",
            flops=0.0,
            sharding="replicated",
            activation_elements=2.0 * tokens * width,
            rerun=ONLY_FULL if parts.recomputed else NEVER,
        )
    )
    parts.save("token_ids", 2.0 * tokens, "replicated", width="fp32")  # eight bytes a token
    parts.exchange("embedding", "all_reduce", "tensor", tokens * width, backward=0)


def _add_positions(parts: Parts, embedding: EmbeddingShape, hidden: int) -> None:
    if embedding.positions:
        parts.weight("positions", embedding.positions * hidden, "replicated")
        parts.elementwise("positions", 3.0 * parts.recipe.tokens * hidden, "sequence", backward_ratio=1.0)


def norm_layer(name: str, kind: str, norm: NormKind, hidden: int, recipe: Recipe, dropout: bool) -> Layer:
    """The norm behind the last layer of a stack. dropout: T5 drops its result once more."""
    parts = Parts(recipe, recomputed=False)
    parts.save("input", recipe.tokens * hidden)
    parts.norm("norm", norm, hidden)
    if recipe.drops(dropout) and dropout:
        parts.elementwise("norm_dropout", 2.5 * recipe.tokens * hidden, "sequence", backward_ratio=1.0)
        parts.save("norm_dropout_mask", recipe.tokens * hidden, width="mask")
    parts.need(float(recipe.tokens * hidden))
    return parts.layer(name, kind)


def head_layer(name: str, kind: str, shape: TransformerShape, recipe: Recipe, tied_to: str | None) -> Layer:
    """Logits and loss. tied_to: the layer whose token table is the head's matrix."""
    parts = Parts(recipe, recomputed=False)
    width = shape.embedding.width or shape.hidden_size
    if shape.embedding.width is not None:
        parts.save("head_projection_input", recipe.tokens * shape.hidden_size)
        parts.matmul("head_projection", shape.hidden_size, width, sharding="sequence")
    parts.weight("head", shape.vocabulary * width, tied_to=tied_to, vocabulary=True)
    if shape.head_bias:
        parts.weight("head_bias", shape.vocabulary, vocabulary=True)
    _add_logits(parts, width, shape.vocabulary)
    return parts.layer(name, kind)


def mtp_layer(
    name: str, shape: LayerShape, model: TransformerShape, recipe: Recipe, head_owner: str, embedding_owner: str
) -> Layer:
    """Predicts one token further: the last hidden vector and the next token's embedding, each through a norm, joined
    by a projection,
    one transformer layer, a norm, and the logits once more. Its embedding and head are copies of the model's."""
    parts, hidden, tokens = Parts(recipe), model.hidden_size, recipe.tokens
    _add_look_up(parts, model, hidden, embedding_owner)
    for source in ("hidden", "embedding"):
        parts.save(f"mtp_{source}", tokens * hidden, kept=ALWAYS if source == "hidden" else UNLESS_FULL)
        parts.norm(f"mtp_{source}_norm", shape.norm, hidden)
        parts.save(f"mtp_{source}_normed", tokens * hidden, kept=recipe.cheap_kept)
    parts.matmul("mtp_projection", 2 * hidden, hidden)
    parts.exchange("mtp_projection", "all_reduce", "tensor", tokens * hidden)
    add_transformer(parts, shape, hidden, input_kept=UNLESS_FULL)
    parts.recomputed = False
    parts.save("mtp_norm_input", tokens * hidden)
    parts.norm("mtp_norm", shape.norm, hidden)
    if head_owner != embedding_owner:
        parts.weight("head", model.vocabulary * hidden, tied_to=head_owner, vocabulary=True)
    _add_logits(parts, hidden, model.vocabulary)
    return parts.layer(name, shape.label)


def _add_logits(parts: Parts, width: int, vocabulary: int) -> None:
    """The product with the vocabulary and the cross-entropy, by the kind of loss.

    plain: logits of all tokens; a copy of four bytes becomes the softmax in place and stays until the backward pass,
    where it becomes the
    gradient in place; beside it the logits, later their gradient, in compute width (fp32 training needs no copy: one
    tensor in all).
    chunked: the same for 1,024 tokens at a time, nothing kept; the logits are made again in the backward pass.
    fused: inside the kernel, nothing in memory, made again too.
    """
    recipe = parts.recipe
    tokens, loss = recipe.tokens, recipe.loss
    parts.save("head_input", tokens * width)
    elements = float(vocabulary * width)
    ratio = 2.0 if loss == "plain" else 3.0
    parts.multiply("head", width, vocabulary, elements, backward_flops_ratio=ratio, vocabulary=True)
    parts.exchange("head_input", "all_reduce", "tensor", tokens * width, forward=0)
    parts.exchange("loss", "all_reduce", "tensor", 3.0 * recipe.fp32_widths * tokens, backward=0)
    logits = float(tokens * vocabulary)
    copies = recipe.compute_width_bytes < 4
    if loss != "fused":
        copy = 1 + recipe.fp32_widths if copies else 0.0  # read narrow, write wide
        forward = copy + 3 * recipe.fp32_widths  # the maximum reads; the exponential reads and writes in place
        backward = copy + 2 * recipe.fp32_widths
        parts.elementwise("loss", forward * logits, "tensor", backward_ratio=backward / forward, vocabulary=True)
    if loss == "plain":
        parts.save("softmax", logits, "tensor", width="fp32", vocabulary=True)
        parts.need(logits if copies else 0.0, vocabulary=True)
    elif loss == "chunked":
        chunk = float(min(tokens, LOSS_CHUNK_TOKENS) * vocabulary)
        parts.need(chunk if copies else 0.0, chunk, vocabulary=True)
    parts.need(float(tokens * width))

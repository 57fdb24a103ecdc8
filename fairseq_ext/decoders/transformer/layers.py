"""A step of the fast decoder: embedding and all layers, as tensor operations or in one call of the compiled library.

Shapes: S sentences, n rows, W places for rows in each sentence's part of the store (its width), C cells in use, b new tokens a
row, d features, H heads, h = d / H, Q queries of a sentence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.decoders.linear import attend
from fairseq_ext.decoders.transformer.kv_cache import Memory
from fairseq_ext.decoders.transformer.rows import State
from fairseq_ext.decoders.transformer.weights import Weights

if TYPE_CHECKING:
    from fairseq_ext.decoders.transformer.cuda_graph_cache import Graphs


def read_tokens(
    weights: list[Weights], state: State, tokens: Tensor, need_attention: bool = False, graphs: Graphs | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Every row reads its tokens (n, b): each model's features (n x b, features), and its attention (n, source) if needed.

    graphs: recorded steps of these weights; for features alone."""
    b = tokens.size(1)
    position = state.length
    mask = state.append_(b)
    if graphs is not None:
        recorded = graphs.step(state, tokens, position, mask)
        if recorded is not None:
            return recorded, []
        state.close_gaps_()
    features, attentions = [], []
    for model, memory in zip(weights, state.memories, strict=True):
        x = embed(model, tokens.reshape(-1), b, position, state.longest)
        if model.compiled is not None and not need_attention:
            features.append(decode_compiled(model, memory, state, x, b, mask))
            continue
        x, query = decode(model, memory, state, x, b, mask)
        features.append(x)
        if need_attention:  # the last layer's, of the last token, averaged over heads
            seen = attention_weights(query[:, :, b - 1 :: b], memory.layers()[-1][3], memory.source_mask)
            attentions.append(at_rows(seen.flatten(0, 1), state.place, 1))  # (S x W, source) -> (n, source)
    return features, attentions


def decode_compiled(weights: Weights, memory: Memory, state: State, x: Tensor, b: int, mask: Tensor | None) -> Tensor:
    """What `decode` computes, in one call of the compiled library."""
    assert weights.compiled is not None
    before = state.cells - state.width * b
    stores = (memory.source_mask, memory.own, memory.source)
    weights.compiled.decode_(x, b, state.sentences, state.width, state.place, state.slot, before, mask, *stores)
    return x if weights.project_out is None else weights.project_out(x)


def decode(
    weights: Weights, memory: Memory, state: State, x: Tensor, b: int, mask: Tensor | None, cell: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """All layers, x (n x b, d) -> features (n x b, features) and the last layer's queries to the source (S, H, W x b, h).

    cell (W x b,): where in the store the new keys and values go; None: to the last cells in use.
    """
    fill, place = state.row_of_place(), state.place
    shape = (state.sentences, state.width * b, weights.heads, -1)  # (S, W x b, H, h)
    before = state.cells - state.width * b
    pre = weights.pre_norm
    query = x
    for i, (layer, (own, own_key, own_value, key, value)) in enumerate(zip(weights.layers, memory.layers(), strict=True)):
        # the new cells' keys and values join the store, then every token attends to its row's history
        y = layer.self_norm(x) if pre else x
        y = at_rows(layer.self_in(y), fill, b)  # (S x W x b, 3d)
        new = y.view(shape[0], shape[1], 3, shape[2], -1).permute(2, 0, 3, 1, 4)  # (3, S, H, W x b, h)
        if cell is None:
            own.narrow(3, before, shape[1]).copy_(new[1:])
        else:
            own.index_copy_(3, cell, new[1:])
        y = attend(new[0], own_key.narrow(2, 0, state.cells), own_value.narrow(2, 0, state.cells), mask)
        x = layer.self_out(at_rows(y, place, b)).add_(x)
        x = x if pre else layer.self_norm(x)
        # attention to the source
        y = layer.cross_norm(x) if pre else x
        if memory.folded is not None:
            y = memory.folded[i].attend(at_rows(y, fill, b), weights.heads)
            x = at_rows(y, place, b).add_(x)
        else:
            query = at_rows(layer.cross_query(y), fill, b).view(shape).transpose(1, 2)
            y = attend(query, key, value, memory.source_mask)
            x = layer.cross_out(at_rows(y, place, b)).add_(x)
        x = x if pre else layer.cross_norm(x)
        # feed-forward
        y = layer.ffn_norm(x) if pre else x
        y = layer.ffn_in.relu(y) if layer.activation is None else layer.activation(layer.ffn_in(y))
        x = layer.ffn_out(y).add_(x)
        x = x if pre else layer.ffn_norm(x)
    x = x if weights.final_norm is None else weights.final_norm(x)
    return x if weights.project_out is None else weights.project_out(x), query


def embed(weights: Weights, ids: Tensor, b: int, position: int | Tensor, end: int) -> Tensor:
    """Tokens ids (n x b,) that follow position (n,) others -> (n x b, d). end: no position is that high."""
    x = F.embedding(ids, weights.embedding)
    if weights.project_in is not None:
        x = weights.project_in(x * weights.scale)
    make_room(weights, position, b, end)
    if weights.positions is not None:
        if isinstance(position, int):
            where = weights.positions[position : position + b]  # (b, d)
            where = where if b == 1 else where.repeat(ids.numel() // b, 1)
        else:
            index = position[:, None] + torch.arange(b, device=position.device)  # (n, b)
            index.clamp_(max=weights.positions.size(0) - 1)  # behind a row's last position stands what is not used
            where = weights.positions.index_select(0, index.flatten())
        x = torch.add(where, x, alpha=1.0 if weights.project_in is not None else weights.scale)
    elif weights.project_in is None:
        x = x * weights.scale
    return x if weights.embedding_norm is None else weights.embedding_norm(x)


def make_room(weights: Weights, position: int | Tensor, b: int, end: int) -> None:
    """Lengthen the table of positions, or raise IndexError where the model has a limit; arguments as of `embed`."""
    if weights.positions is None:
        return
    if end > weights.positions.size(0) and weights.grow_positions is not None:
        weights.positions = weights.grow_positions(2 * end)
    if isinstance(position, int) and position + b > weights.positions.size(0):
        raise IndexError(f"target position {position + b} is beyond the model's {weights.positions.size(0)}")


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """The weights of `attend` averaged over heads: (S, Q, C)."""
    score = query @ key.transpose(2, 3)
    score = score if mask is None else score + mask
    return score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32)).to(score.dtype).mean(1)


def at_rows(value: Tensor, index: Tensor | None, b: int) -> Tensor:
    """Blocks of b lines (n x b, ...) reordered by index; None: as they are."""
    if index is None:
        return value
    return value.view(-1, b * value.size(1)).index_select(0, index).view(-1, value.size(1))

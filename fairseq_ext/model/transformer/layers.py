"""Layers as tensor operations: embedding, decoder layers, attention weights.

They define the results of the compiled step (kernels/transformer.cpp) and of the recorded step
(cuda_graph.py).

Shapes: S sentences, n rows, W places for rows in each sentence (its width), P positions in use, b
new tokens a row, d features, H heads, h = d / H, Q queries of a sentence.

Compiled twin: kernels/transformer.cpp.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from fairseq_ext.model.transformer.cache import KeyValues
from fairseq_ext.model.transformer.rows import Step
from fairseq_ext.model.transformer.weights import Weights, attend


def decode(
    weights: Weights,
    cache: KeyValues,
    step: Step,
    x: Tensor,
    position: Tensor | None = None,
    queries_only: bool = False,
) -> tuple[Tensor, list[Tensor]]:
    """Run all layers on x (n x b, d); return features (n x b, features) and each layer's queries
    to the source (S, H, W x b, h).

    position (W x b,): where the new keys and values go; None: to the last positions in use.
    queries_only: the features are not needed.
    """
    fill, place, b = step.row_of_place(), step.place, step.b
    shape = (step.sentences, step.width * b, weights.heads, -1)  # (S, W x b, H, h)
    pre = weights.pre_norm
    queries = []
    for layer, views in zip(weights.layers, cache.layers(), strict=True):
        target, target_key, target_value, key, value = views
        # the new tokens' keys and values join the cache, then every token attends
        # to its row's history
        y = layer.self_norm(x) if pre else x
        y = gather_rows(layer.self_in(y), fill, b)  # (S x W x b, 3d)
        # (3, S, H, W x b, h)
        new = y.view(shape[0], shape[1], 3, shape[2], -1).permute(2, 0, 3, 1, 4)
        if position is None:
            target.narrow(3, step.positions_before, shape[1]).copy_(new[1:])
        else:
            target.index_copy_(3, position, new[1:])
        y = attend(
            new[0],
            target_key.narrow(2, 0, step.positions),
            target_value.narrow(2, 0, step.positions),
            step.mask,
        )
        x = layer.self_out(gather_rows(y, place, b)).add_(x)
        x = x if pre else layer.self_norm(x)
        # attention to the source
        y = layer.cross_norm(x) if pre else x
        query = gather_rows(layer.cross_query(y), fill, b).view(shape).transpose(1, 2)
        queries.append(query)
        if queries_only and len(queries) == len(weights.layers):
            return x, queries
        y = attend(query, key, value, cache.source_mask)
        x = layer.cross_out(gather_rows(y, place, b)).add_(x)
        x = x if pre else layer.cross_norm(x)
        x = layer.feed_forward(x, pre)
    x = x if weights.final_norm is None else weights.final_norm(x)
    return x if weights.project_out is None else weights.project_out(x), queries


def embed(weights: Weights, ids: Tensor, b: int, past: int | Tensor) -> Tensor:
    """Return the embeddings (n x b, d) of tokens ids (n x b,), b for each row; past (n,): the
    number of tokens before them."""
    x = F.embedding(ids, weights.embedding)
    if weights.project_in is not None:
        x = weights.project_in(x * weights.scale)
    if weights.positions is not None:
        if isinstance(past, int):
            where = weights.positions[past : past + b]  # (b, d)
            where = where if b == 1 else where.repeat(ids.numel() // b, 1)
        else:
            index = past[:, None] + torch.arange(b, device=past.device)  # (n, b)
            # values after a row's last position are not used
            index.clamp_(max=weights.positions.size(0) - 1)
            where = weights.positions.index_select(0, index.flatten())
        x = torch.add(where, x, alpha=1.0 if weights.project_in is not None else weights.scale)
    elif weights.project_in is None:
        x = x * weights.scale
    return x if weights.embedding_norm is None else weights.embedding_norm(x)


def reserve_positions(weights: Weights, step: Step) -> None:
    """Lengthen the table of position embeddings for a step (raises IndexError beyond the model's
    limit)."""
    if weights.positions is None:
        return
    if step.longest > weights.positions.size(0) and weights.grow_positions is not None:
        weights.positions = weights.grow_positions(2 * step.longest)
    if isinstance(step.past, int) and step.past + step.b > weights.positions.size(0):
        raise IndexError(
            f"target position {step.past + step.b} is beyond the model's "
            f"{weights.positions.size(0)}"
        )


def attention_weights(query: Tensor, key: Tensor, mask: Tensor | None) -> Tensor:
    """Return the attention weights (S, Q, T) of queries (S, H, Q, h) for keys (S, H, T, h),
    averaged over heads."""
    score = query @ key.transpose(2, 3)
    score = score if mask is None else score + mask
    return (
        score.softmax(-1, dtype=torch.promote_types(score.dtype, torch.float32))
        .to(score.dtype)
        .mean(1)
    )


def gather_rows(value: Tensor, index: Tensor | None, b: int) -> Tensor:
    """Return blocks of b lines (n x b, ...) in the order of index; None: unchanged."""
    if index is None:
        return value
    return value.view(-1, b * value.size(1)).index_select(0, index).view(-1, value.size(1))

"""One step of a group of rows: as a recorded CUDA graph, as one call of the compiled library, or layer by layer.

Shapes: S sentences, n rows, W places for rows in each sentence (its width), b new tokens a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.model.transformer.cuda_graph_cache import CudaGraphCache
from fairseq_ext.model.transformer.key_values import KeyValues
from fairseq_ext.model.transformer.layers import at_rows, attention_weights, decode, embed, reserve_positions
from fairseq_ext.model.transformer.rows import RowGroup, Step
from fairseq_ext.model.transformer.weights import Weights


def read_tokens(
    weights: list[Weights], group: RowGroup, tokens: Tensor, need_attention: bool = False, graphs: CudaGraphCache | None = None
) -> tuple[list[Tensor], list[Tensor]]:
    """Read tokens (n, b) in every row; return each model's features (n x b, features), and its attention (n, source) if needed.

    graphs: recorded steps of these weights, which give features and no attention.
    """
    step = group.append_(tokens.size(1))
    for model in weights:
        reserve_positions(model, step)
    if graphs is not None:
        recorded = graphs.read(group.cache, step, tokens)
        if recorded is not None:
            return recorded, []
        group.cache.close_gaps_()
        step.slot = None
    features, attentions = [], []
    for model, cache in zip(weights, group.cache.models, strict=True):
        x = embed(model, tokens.reshape(-1), step.b, step.past)
        if model.compiled is not None and not need_attention:
            features.append(decode_compiled(model, cache, step, x))
            continue
        x, queries = decode(model, cache, step, x)
        features.append(x)
        if need_attention:  # the last layer's, of the last token, averaged over heads
            seen = attention_weights(queries[-1][:, :, step.b - 1 :: step.b], cache.layers()[-1][3], cache.source_mask)
            attentions.append(at_rows(seen.flatten(0, 1), step.place, 1))  # (S x W, source) -> (n, source)
    return features, attentions


def read_attention(weights: list[Weights], group: RowGroup, tokens: Tensor) -> Tensor:
    """Read tokens (n, b) in every row, layer by layer; return how much each attends to the source (n, b, source), averaged over models,
    layers and heads."""
    group.cache.leave_shared_slots_()
    step = group.append_(tokens.size(1))
    seen = []
    for model, cache in zip(weights, group.cache.models, strict=True):
        reserve_positions(model, step)
        _, queries = decode(model, cache, step, embed(model, tokens.reshape(-1), step.b, step.past), queries_only=True)
        keys = [key for _, _, _, key, _ in cache.layers()]
        seen += [attention_weights(query, key, cache.source_mask) for query, key in zip(queries, keys, strict=True)]  # (S, W x b, source)
    mean = torch.stack(seen).mean(0)
    rows = mean.view(step.sentences * step.width, step.b, -1)
    return rows if step.place is None else rows[step.place]


def decode_compiled(weights: Weights, cache: KeyValues, step: Step, x: Tensor) -> Tensor:
    """Compute the features of `layers.decode` in one call of the compiled library."""
    assert weights.compiled is not None
    weights.compiled.decode_(x, step, cache)
    return x if weights.project_out is None else weights.project_out(x)

"""How the incremental states that fairseq's own models keep for two groups of rows become one.

Two kinds are supported: plain Transformer decoders, whose caches have the same length when their rows do, and LSTM decoders, whose
state has no length. Source positions beyond a sentence's own are padding, behind its own ones.

Shapes: S sentences, n rows, d features, H heads, h = d / H.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.lstm import LSTMDecoder
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

State = dict[str, dict[str, Tensor | None]]  # fairseq's incremental state


def longer(x: Tensor, dim: int, length: int, fill: float = 0.0) -> Tensor:
    """Return x padded behind to this length along one dimension."""
    missing = length - x.size(dim)
    return x if not missing else F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, missing], value=fill)


def join_sources(a: Any, b: Any) -> Any:
    """Return two encoder outputs as one: a Transformer's dictionary, an LSTM's tuple, or None of a model without an encoder."""
    if a is None:
        return None
    if isinstance(a, tuple):
        source = max(a[0].size(0), b[0].size(0))
        states = torch.cat([longer(x[0], 0, source) for x in (a, b)], dim=1)  # (source, S, d)
        hidden, cell = (torch.cat([a[i], b[i]], dim=1) for i in (1, 2))  # (layers, S, d)
        masks = [x[3] if x[3] is not None else x[0].new_zeros(x[0].shape[:2], dtype=torch.bool) for x in (a, b)]
        mask = torch.cat([longer(m, 0, source, True) for m in masks], dim=1)  # (source, S)
        return states, hidden, cell, mask  # fairseq reorders it even where nothing is padded
    source = max(x["encoder_out"][0].size(0) for x in (a, b))
    states = torch.cat([longer(x["encoder_out"][0], 0, source) for x in (a, b)], dim=1)
    masks = [x["encoder_padding_mask"][0] if x["encoder_padding_mask"] else no_padding(x["encoder_out"][0]) for x in (a, b)]
    mask = torch.cat([longer(m, 1, source, True) for m in masks])  # (S, source)
    nothing: dict[str, list] = {name: [] for name in a}
    return nothing | {"encoder_out": [states], "encoder_padding_mask": [mask]}


def no_padding(states: Tensor) -> Tensor:
    """Return the padding mask (S, source) of encoder output (source, S, d) without padding."""
    return states.new_zeros(states.size(1), states.size(0), dtype=torch.bool)


def join_attention(module: MultiheadAttention, a: State, b: State, times: list[int]) -> dict:
    """Return the cached keys and values of two groups as one. times: how often each entry of either group's cache is repeated."""
    buffers = []
    for state, n in zip((a, b), times, strict=True):
        buffer = module._get_input_buffer(state)
        if n > 1:
            buffer = {name: None if x is None else x.repeat_interleave(n, dim=0) for name, x in buffer.items()}
        buffers.append(buffer)
    length = max(x["prev_key"].size(2) for x in buffers)  # (n, H, length, h)
    out = {name: torch.cat([longer(x[name], 2, length) for x in buffers]) for name in ("prev_key", "prev_value")}
    masks = [x.get("prev_key_padding_mask") for x in buffers]
    same_length = all(x["prev_key"].size(2) == length for x in buffers)
    if all(m is None for m in masks) and same_length:
        return out | {"prev_key_padding_mask": None}
    full = [
        x["prev_key"].new_zeros(x["prev_key"].size(0), x["prev_key"].size(2)) if m is None else m.to(x["prev_key"].dtype)
        for x, m in zip(buffers, masks, strict=True)
    ]
    mask = torch.cat([longer(m, 1, length, 1.0) for m in full])
    dtypes = {m.dtype for m in masks if m is not None}
    return out | {"prev_key_padding_mask": mask.to(dtypes.pop() if len(dtypes) == 1 else torch.bool)}


def join_lstm(decoder: LSTMDecoder, a: tuple[State, Any], b: tuple[State, Any]) -> State:
    """Return the state of two groups as one, given the incremental state and the encoder output by row of each."""
    joined: dict[str, Tensor | None] = {}
    parts = [started(decoder, state, source) for state, source in (a, b)]
    for name, dim in (("prev_hiddens", 1), ("prev_cells", 1), ("input_feed", 0)):
        both = [part[name] for part in parts]
        joined[name] = None if both[0] is None else torch.cat(both, dim=dim)  # type: ignore[arg-type]
    out: State = {}
    decoder.set_incremental_state(out, "cached_state", joined)
    return out


def started(decoder: LSTMDecoder, state: State, source: Any) -> dict[str, Tensor | None]:
    """Return the state of rows; that of rows that have read nothing comes from the encoder, as in fairseq's first step."""
    if state:
        return decoder.get_incremental_state(state, "cached_state")
    hidden, cell = source[1], source[2]  # (layers, n, d)
    if decoder.encoder_hidden_proj is not None:
        hidden, cell = decoder.encoder_hidden_proj(hidden), decoder.encoder_cell_proj(cell)
    layers = len(nn.ModuleList(decoder.layers))
    feed = hidden.new_zeros(hidden.size(1), decoder.hidden_size)
    return {"prev_hiddens": hidden[:layers], "prev_cells": cell[:layers], "input_feed": feed}

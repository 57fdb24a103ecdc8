"""One fairseq model with the state of its live rows: encoder output and incremental state.

It differs from fairseq in two ways. First, rows are reordered here and not by
`MultiheadAttention.reorder_incremental_state`, which does not reorder the cross-attention cache if
the number of rows is the same. Second, tensors that depend on the source only are kept once per
sentence if the model allows it: encoder output, and the keys and values of the cross-attention,
which fairseq's attention accepts as (sentences, ...) with (sentences x width, ...) queries.

Shapes: S live sentences, n rows, d features, V vocabulary.
"""

from __future__ import annotations

import copy
import dataclasses
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models import FairseqDecoder as StockDecoder
from fairseq.models import (
    FairseqEncoderDecoderModel,
    FairseqIncrementalDecoder,
    FairseqLanguageModel,
    FairseqMultiModel,
)
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.lstm import LSTMDecoder
from fairseq.modules import MultiheadAttention
from torch import Tensor, nn

from fairseq_ext.model.transformer.supported import (
    has_plain_decoder,
    has_plain_softmax,
    output_layer,
)

FEW_SENTENCES = 2


@dataclass(frozen=True)
class SelectionChanges:
    """The parts of the state that a selection of rows changes."""

    rows: bool  # a row may continue another one
    sources: bool  # a row may belong to another sentence than before


@dataclass
class ModelRows:
    """A model's state of a group of rows."""

    source: Any  # encoder output
    row_source: Any  # encoder output as input of the decoder: per sentence, or per row
    state: State  # fairseq's incremental state
    cross_per_row: bool  # the cross-attention cache is per row, not per sentence


class StockModel:
    """One model with the encoder output and incremental state of its live rows."""

    def __init__(self, model: BaseFairseqModel):
        self.model = model
        self.decoder = model.decoder
        self.encoder = getattr(model, "encoder", None)  # a language model has none
        self.incremental = isinstance(self.decoder, FairseqIncrementalDecoder)
        # a plain Transformer decoder reads the encoder output only in the first step, to fill its
        # cross-attention cache
        self.keeps_source_once = has_plain_decoder(model)
        modules = [
            m
            for m in self.decoder.modules()
            if hasattr(m, "reorder_incremental_state") and m is not self.decoder
        ]
        self.attentions = [m for m in modules if isinstance(m, MultiheadAttention)]
        self.other_modules = [m for m in modules if not isinstance(m, MultiheadAttention)]
        self.beam_sized = [
            m
            for m in self.decoder.modules()
            if hasattr(m, "set_beam_size") and m is not self.decoder
        ]
        own = getattr(type(self.decoder), "reorder_incremental_state", None)
        if self.incremental and own is not FairseqIncrementalDecoder.reorder_incremental_state:
            self.other_modules.append(self.decoder)
        # True: features and output layer are separate, so a softmax strategy can score a part of
        # the vocabulary; False: the model's own scores are used
        self.has_output_layer = output_layer(model) is not None
        self.attention: Tensor | None = None
        # whether groups of rows can be joined, and whether even with different lengths: an LSTM
        # starts from its encoder's state, if there is one
        self.joins_any_step = type(self.decoder) is LSTMDecoder and self.encoder is not None
        self.joins = type(self.decoder) is LSTMDecoder or (
            self.keeps_source_once and self.incremental
        )

    def admit(self, net_input: dict[str, Tensor], sentences: int) -> None:
        """Encode a batch of `sentences` sentences; each has one row."""
        # fairseq's commands (BeamableMM of convolutional decoders) or a stock generator (BART) have
        # set the number of neighbouring rows a sentence to `beam`; here this number changes from
        # step to step, and 1 is correct for any number
        for module in self.beam_sized:
            module.set_beam_size(1)
        source = None if self.encoder is None else self.encoder.forward_torchscript(net_input)
        # for very few sentences a copy per row costs less than the wider attention with shared keys
        self.live = ModelRows(
            source, source, {}, not self.keeps_source_once or sentences <= FEW_SENTENCES
        )

    def step(self, tokens: Tensor, need_attention: bool) -> Tensor:
        """Read the last column of tokens (n, L); return features (n, d), or the model's own scores
        (n, V) if it has no separate output layer."""
        state = {"incremental_state": self.live.state} if self.incremental else {}
        if self.has_output_layer:
            out, extra = self.decoder.extract_features(
                tokens, encoder_out=self.live.row_source, **state
            )
        else:
            out, extra = self.decoder(tokens, encoder_out=self.live.row_source, **state)[:2]
        if need_attention:
            attention = extra["attn"] if isinstance(extra, dict) else extra
            attention = attention[0] if isinstance(attention, (list, tuple)) else attention
            self.attention = None if attention is None else attention[:, -1, :]
        return out[:, -1, :]

    def log_probs(self, features: Tensor, temperature: float) -> Tensor:
        """Return the log-probabilities (n, V) of features (n, d), in float32 or better."""
        logits = self.decoder.output_layer(features) if self.has_output_layer else features
        if temperature != 1.0:
            logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / temperature
        if self.plain_softmax():
            return torch.log_softmax(
                logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32)
            )
        return self.model.get_normalized_probs(
            (logits[:, None], None), log_probs=True, sample=None
        )[:, -1]

    def plain_softmax(self) -> bool:
        """Return whether fairseq's common code computes the model's probabilities, as the softmax
        of its output."""
        return (
            isinstance(self.model, (FairseqEncoderDecoderModel, FairseqLanguageModel))
            and has_plain_softmax(self.model)
            and type(self.decoder).get_normalized_probs is StockDecoder.get_normalized_probs
            and getattr(self.decoder, "adaptive_softmax", None) is None
        )

    def select(
        self,
        row: Tensor,
        sentence: Tensor | None,
        sentence_of_row: Tensor | None,
        changes: SelectionChanges,
    ) -> None:
        """Reorder all per-row state by row (n',).

        sentence (S',): indices of the sentences that stay, None for all; sentence_of_row (n',):
        index of each row's sentence among the sentences that stay, None if every sentence has the
        same number of rows.
        """
        if changes.rows:
            for module in self.other_modules:
                module.reorder_incremental_state(self.live.state, row)
        cross = self.cross_index(row, sentence, sentence_of_row, changes)
        for module in self.attentions:
            index = cross if module.encoder_decoder_attention else row if changes.rows else None
            buffer = module._get_input_buffer(self.live.state)
            if buffer and index is not None:
                buffer = {
                    name: None if value is None else value.index_select(0, index)
                    for name, value in buffer.items()
                }
                module._set_input_buffer(self.live.state, buffer)
        self.live.cross_per_row = self.live.cross_per_row or sentence_of_row is not None

    def cross_index(
        self,
        row: Tensor,
        sentence: Tensor | None,
        sentence_of_row: Tensor | None,
        changes: SelectionChanges,
    ) -> Tensor | None:
        """Return the index that reorders the cross-attention cache, which is per sentence while all
        sentences have the same number of rows.

        None: the cache does not change.
        """
        if self.live.cross_per_row:
            return row if changes.sources else None
        if sentence_of_row is not None:
            return sentence_of_row if sentence is None else sentence[sentence_of_row]
        return sentence

    def move_source(self, sentence: Tensor | None, sentence_of_row: Tensor) -> None:
        """Copy the encoder output for each row, for decoders that read it at every step."""
        encoder = self.encoder
        if encoder is None:
            return
        # subtle: convolutional encoders change their input dictionaries, so they receive copies; a
        # stock generator with several rows replaces the method of Transformer encoder objects by
        # one that does nothing, so the method of the class is called
        reorder = type(encoder).reorder_encoder_out
        if sentence is not None:
            self.live.source = reorder(encoder, copy_encoder_output(self.live.source), sentence)
        self.live.row_source = reorder(
            encoder, copy_encoder_output(self.live.source), sentence_of_row
        )

    def copy(self) -> ModelRows:
        """Return a copy of the live rows. Selecting from it does not change this model: buffers are
        replaced, never modified."""
        return dataclasses.replace(
            self.live, state={name: copy.copy(buffer) for name, buffer in self.live.state.items()}
        )

    def join(self, group: ModelRows, width: int, group_width: int) -> None:
        """Append the rows of a group.

        width, group_width: rows of every sentence of the live rows and of the group, 0 if the
        numbers differ.
        """
        a, b = self.live, group
        if isinstance(self.decoder, LSTMDecoder):
            source = join_sources(a.source, b.source)
            joined = (
                join_lstm(self.decoder, (a.state, a.row_source), (b.state, b.row_source))
                if a.state or b.state
                else {}
            )
            self.live = ModelRows(source, join_sources(a.row_source, b.row_source), joined, True)
            return
        per_row = a.cross_per_row or b.cross_per_row or width != group_width or not width
        # a cache per sentence is expanded to rows if the joined cache must be per row
        times = [
            each if per_row and not rows.cross_per_row else 1
            for rows, each in ((a, width), (b, group_width))
        ]
        state: State = {}
        for module in self.attentions if a.state else ():
            of_source = module.encoder_decoder_attention
            module._set_input_buffer(
                state, join_attention(module, a.state, b.state, times if of_source else [1, 1])
            )
        # after the cache is filled, the encoder output is not read any more
        source = a.source if a.state else join_sources(a.source, b.source)
        self.live = ModelRows(source, source, state, per_row)


def model_of_pair(model: BaseFairseqModel) -> BaseFairseqModel:
    """Return the model that generates. If a model holds one for each language pair, that is the
    first one, as in fairseq."""
    if isinstance(model, FairseqMultiModel):
        return model.models[model.keys[0]]  # type: ignore[index]
    return model


def copy_encoder_output(source: Any) -> Any:
    """Return an encoder's output in new dictionaries with the same tensors."""
    return (
        {name: copy_encoder_output(value) for name, value in source.items()}
        if isinstance(source, dict)
        else source
    )


# ---- Joining the incremental states of two groups of rows
#
# Two kinds of fairseq's models are supported: plain Transformer decoders, whose caches have the
# same length if their rows have, and LSTM decoders, whose state has no length. Padding of the
# source comes after a sentence's own positions.
#
# Shapes: S sentences, n rows, d features, H heads, h = d / H.


State = dict[str, dict[str, Tensor | None]]  # fairseq's incremental state


def pad_to(x: Tensor, dim: int, length: int, fill: float = 0.0) -> Tensor:
    """Return x padded at the end to this length along one dimension."""
    missing = length - x.size(dim)
    return x if not missing else F.pad(x, [0, 0] * (x.dim() - 1 - dim) + [0, missing], value=fill)


def join_sources(a: Any, b: Any) -> Any:
    """Return two encoder outputs as one: a Transformer's dictionary, an LSTM's tuple, or None for a
    model without an encoder."""
    if a is None:
        return None
    if isinstance(a, tuple):
        source = max(a[0].size(0), b[0].size(0))
        states = torch.cat([pad_to(x[0], 0, source) for x in (a, b)], dim=1)  # (source, S, d)
        hidden, cell = (torch.cat([a[i], b[i]], dim=1) for i in (1, 2))  # (layers, S, d)
        masks = [
            x[3] if x[3] is not None else x[0].new_zeros(x[0].shape[:2], dtype=torch.bool)
            for x in (a, b)
        ]
        mask = torch.cat([pad_to(m, 0, source, True) for m in masks], dim=1)  # (source, S)
        return states, hidden, cell, mask  # fairseq reorders the mask even without padding
    source = max(x["encoder_out"][0].size(0) for x in (a, b))
    states = torch.cat([pad_to(x["encoder_out"][0], 0, source) for x in (a, b)], dim=1)
    masks = [
        x["encoder_padding_mask"][0]
        if x["encoder_padding_mask"]
        else no_padding(x["encoder_out"][0])
        for x in (a, b)
    ]
    mask = torch.cat([pad_to(m, 1, source, True) for m in masks])  # (S, source)
    nothing: dict[str, list] = {name: [] for name in a}
    return nothing | {"encoder_out": [states], "encoder_padding_mask": [mask]}


def no_padding(states: Tensor) -> Tensor:
    """Return the padding mask (S, source) of encoder output (source, S, d) without padding."""
    return states.new_zeros(states.size(1), states.size(0), dtype=torch.bool)


def join_attention(module: MultiheadAttention, a: State, b: State, times: list[int]) -> dict:
    """Return the cached keys and values of two groups as one.

    times: for each group, the number of repetitions of its cache entries.
    """
    buffers = []
    for state, n in zip((a, b), times, strict=True):
        buffer = module._get_input_buffer(state)
        if n > 1:
            buffer = {
                name: None if x is None else x.repeat_interleave(n, dim=0)
                for name, x in buffer.items()
            }
        buffers.append(buffer)
    length = max(x["prev_key"].size(2) for x in buffers)  # (n, H, length, h)
    out = {
        name: torch.cat([pad_to(x[name], 2, length) for x in buffers])
        for name in ("prev_key", "prev_value")
    }
    masks = [x.get("prev_key_padding_mask") for x in buffers]
    same_length = all(x["prev_key"].size(2) == length for x in buffers)
    if all(m is None for m in masks) and same_length:
        return out | {"prev_key_padding_mask": None}
    full = [
        x["prev_key"].new_zeros(x["prev_key"].size(0), x["prev_key"].size(2))
        if m is None
        else m.to(x["prev_key"].dtype)
        for x, m in zip(buffers, masks, strict=True)
    ]
    mask = torch.cat([pad_to(m, 1, length, 1.0) for m in full])
    dtypes = {m.dtype for m in masks if m is not None}
    return out | {
        "prev_key_padding_mask": mask.to(dtypes.pop() if len(dtypes) == 1 else torch.bool)
    }


def join_lstm(decoder: LSTMDecoder, a: tuple[State, Any], b: tuple[State, Any]) -> State:
    """Return the state of two groups as one. a, b: incremental state and encoder output by row."""
    joined: dict[str, Tensor | None] = {}
    parts = [lstm_state(decoder, state, source) for state, source in (a, b)]
    for name, dim in (("prev_hiddens", 1), ("prev_cells", 1), ("input_feed", 0)):
        both = [part[name] for part in parts]
        joined[name] = None if both[0] is None else torch.cat(both, dim=dim)  # type: ignore
    out: State = {}
    decoder.set_incremental_state(out, "cached_state", joined)
    return out


def lstm_state(decoder: LSTMDecoder, state: State, source: Any) -> dict[str, Tensor | None]:
    """Return the state of rows. Rows that have read nothing get it from the encoder, as in
    fairseq's first step."""
    if state:
        return decoder.get_incremental_state(state, "cached_state")
    hidden, cell = source[1], source[2]  # (layers, n, d)
    if decoder.encoder_hidden_proj is not None:
        hidden, cell = decoder.encoder_hidden_proj(hidden), decoder.encoder_cell_proj(cell)
    layers = len(nn.ModuleList(decoder.layers))
    feed = hidden.new_zeros(hidden.size(1), decoder.hidden_size)
    return {"prev_hiddens": hidden[:layers], "prev_cells": cell[:layers], "input_feed": feed}

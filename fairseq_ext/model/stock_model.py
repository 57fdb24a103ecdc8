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


@dataclass
class ModelRows:
    """A model's state of a group of rows."""

    source: EncoderOutput
    row_source: EncoderOutput  # as input of the decoder: per sentence, or per row
    state: State  # fairseq's incremental state
    cross_per_row: bool  # the cross-attention cache is per row, not per sentence

    def copy(self) -> ModelRows:
        """Return a copy. Selecting from it does not change these rows: buffers are replaced, never
        modified."""
        state = {name: copy.copy(buffer) for name, buffer in self.state.items()}
        return dataclasses.replace(self, state=state)


# a Transformer's dictionary, an LSTM's tuple; None for a model without an encoder
EncoderOutput = Any


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

    def read(self, tokens: Tensor, cached: bool) -> tuple[Tensor, Any]:
        """Read tokens (n, L), of which only the last column is new if the state is cached; return
        the features (n, L or 1, d), or the model's own scores if it has no separate output
        layer, and what else fairseq's decoder returns."""
        state = {"incremental_state": self.live.state} if cached and self.incremental else {}
        forward = self.decoder.extract_features if self.has_output_layer else self.decoder
        return forward(tokens, encoder_out=self.live.row_source, **state)[:2]

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
        same_layout: bool,
        same_rows: bool,
    ) -> None:
        """Reorder all per-row state by row (n',).

        sentence (S',): indices of the sentences that stay, None for all; sentence_of_row (n',):
        index of each row's sentence among the sentences that stay, None if every sentence has the
        same number of rows. same_layout: every row belongs to the same sentence as before;
        same_rows: and continues itself.
        """
        live = self.live
        if not same_rows:
            for module in self.other_modules:
                module.reorder_incremental_state(live.state, row)
        # the cross-attention cache is per sentence while all have the same number of rows
        cross = None if same_layout else row
        if not live.cross_per_row:
            cross = sentence
            if sentence_of_row is not None:
                cross = sentence_of_row if sentence is None else sentence[sentence_of_row]
        own = None if same_rows else row
        for module in self.attentions:
            index = cross if module.encoder_decoder_attention else own
            buffer = module._get_input_buffer(live.state)
            if buffer and index is not None:
                buffer = {
                    name: None if value is None else value.index_select(0, index)
                    for name, value in buffer.items()
                }
                module._set_input_buffer(live.state, buffer)
        live.cross_per_row = live.cross_per_row or sentence_of_row is not None

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

    def join(self, group: ModelRows, width: int, group_width: int) -> None:
        """Append the rows of a group.

        width, group_width: rows of every sentence of the live rows and of the group, 0 if the
        numbers differ.
        """
        a, b = self.live, group
        source, state = a.source, State()
        if isinstance(self.decoder, LSTMDecoder):
            if a.state or b.state:
                state = join_lstm(self.decoder, (a.state, a.row_source), (b.state, b.row_source))
            source = join_sources(a.source, b.source)
            row_source = join_sources(a.row_source, b.row_source)
            self.live = ModelRows(source, row_source, state, True)
            return
        per_row = a.cross_per_row or b.cross_per_row or width != group_width or not width
        # a cache per sentence is expanded to rows if the joined cache must be per row
        times = [
            each if per_row and not rows.cross_per_row else 1
            for rows, each in ((a, width), (b, group_width))
        ]
        for module in self.attentions if a.state else ():
            repeats = times if module.encoder_decoder_attention else [1, 1]
            buffers = [module._get_input_buffer(rows.state) for rows in (a, b)]
            module._set_input_buffer(state, join_attention(buffers, repeats))
        # after the cache is filled, the encoder output is not read any more
        if not a.state:
            source = join_sources(a.source, b.source)
        self.live = ModelRows(source, source, state, per_row)


def model_of_pair(model: BaseFairseqModel) -> BaseFairseqModel:
    """Return the model that generates. If a model holds one for each language pair, that is the
    first one, as in fairseq."""
    if isinstance(model, FairseqMultiModel):
        return model.models[model.keys[0]]  # type: ignore[index]
    return model


def copy_encoder_output(source: EncoderOutput) -> EncoderOutput:
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


def joined(parts: list[Tensor], dim: int, padded: int, fill: float = 0.0) -> Tensor:
    """Return tensors joined along dim, padded at their ends to one length along another one."""
    length = max(x.size(padded) for x in parts)
    return torch.cat(
        [
            F.pad(x, [0, 0] * (x.dim() - 1 - padded) + [0, length - x.size(padded)], value=fill)
            for x in parts
        ],
        dim,
    )


def join_sources(a: EncoderOutput, b: EncoderOutput) -> EncoderOutput:
    """Return two encoder outputs as one: a Transformer's dictionary, an LSTM's tuple, or None for a
    model without an encoder."""
    if a is None:
        return None
    if isinstance(a, tuple):
        states, mask = (joined([a[i], b[i]], 1, 0, fill) for i, fill in ((0, 0.0), (3, 1.0)))
        hidden, cell = (torch.cat([a[i], b[i]], dim=1) for i in (1, 2))  # (layers, S, d)
        return states, hidden, cell, mask  # (source, S, ...)
    outputs = [x["encoder_out"][0] for x in (a, b)]  # (source, S, d)
    masks = [
        each["encoder_padding_mask"][0]
        if each["encoder_padding_mask"]
        else x.new_zeros(x.size(1), x.size(0), dtype=torch.bool)
        for each, x in zip((a, b), outputs, strict=True)
    ]
    nothing: dict[str, list] = {name: [] for name in a}
    return nothing | {
        "encoder_out": [joined(outputs, 1, 0)],
        "encoder_padding_mask": [joined(masks, 0, 1, 1.0)],
    }


def join_attention(buffers: list[dict[str, Tensor]], times: list[int]) -> dict[str, Tensor | None]:
    """Return the cached keys and values of two groups as one.

    times: for each group, the number of repetitions of its cache entries.
    """

    def joined_field(name: str, padded: int, fill: float = 0.0) -> Tensor:
        parts = []
        for buffer, n in zip(buffers, times, strict=True):
            x, key = buffer.get(name), buffer["prev_key"]  # (n, H, length, h)
            if x is None:  # nothing is padding
                x = key.new_zeros(key.size(0), key.size(2), dtype=torch.bool)
            parts.append(x.repeat_interleave(n, dim=0))
        return joined(parts, 0, padded, fill)

    return {
        "prev_key": joined_field("prev_key", 2),
        "prev_value": joined_field("prev_value", 2),
        "prev_key_padding_mask": joined_field("prev_key_padding_mask", 1, 1.0),
    }


def join_lstm(
    decoder: LSTMDecoder, a: tuple[State, EncoderOutput], b: tuple[State, EncoderOutput]
) -> State:
    """Return the state of two groups as one. a, b: incremental state and encoder output by row."""
    joined: dict[str, Tensor | None] = {}
    parts = [lstm_state(decoder, state, source) for state, source in (a, b)]
    for name, dim in (("prev_hiddens", 1), ("prev_cells", 1), ("input_feed", 0)):
        fields = [part[name] for part in parts]
        joined[name] = None if fields[0] is None else torch.cat(fields, dim=dim)  # type: ignore
    out: State = {}
    decoder.set_incremental_state(out, "cached_state", joined)
    return out


def lstm_state(
    decoder: LSTMDecoder, state: State, source: EncoderOutput
) -> dict[str, Tensor | None]:
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

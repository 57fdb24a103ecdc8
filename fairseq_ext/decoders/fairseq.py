"""The reference decoder: any fairseq encoder-decoder, or an ensemble, through its own incremental state.

It adds two things to what fairseq does itself. Rows are reordered here, never through the row-count shortcut of
`MultiheadAttention.reorder_incremental_state`, which leaves the cross-attention cache alone whenever the number of rows happens
to fit. And what depends on the source alone is kept once per sentence where the model allows it: encoder output, and the keys
and values of the cross-attention, which fairseq's attention accepts as (sentences, ...) under (sentences x width, ...) queries.

Shapes: S live sentences, n rows, d features, V vocabulary.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from fairseq.models import FairseqDecoder as StockDecoder
from fairseq.models import FairseqEncoderDecoderModel, FairseqIncrementalDecoder
from fairseq.models.fairseq_model import BaseFairseqModel
from fairseq.models.transformer import TransformerDecoder, TransformerDecoderBase
from fairseq.modules import MultiheadAttention
from torch import Tensor

from fairseq_ext.decoders.transformer_fits import PLAIN_SOFTMAX
from fairseq_ext.search.beam import Pool

FEW_SENTENCES = 2


@dataclass(frozen=True)
class Moves:
    """What a selection of rows really changes."""

    rows: bool  # some row may continue another one
    sources: bool  # some row may belong to another sentence than before


class OneModel:
    """One model's encoder output and incremental state, row by row."""

    def __init__(self, model: BaseFairseqModel):
        self.model = model
        self.decoder = model.decoder
        self.incremental = isinstance(self.decoder, FairseqIncrementalDecoder)
        # a plain Transformer decoder reads the encoder output only to fill its cross-attention cache, in the first step
        self.keeps_source_once = type(self.decoder) in (TransformerDecoder, TransformerDecoderBase)
        modules = [m for m in self.decoder.modules() if hasattr(m, "reorder_incremental_state") and m is not self.decoder]
        self.attentions = [m for m in modules if isinstance(m, MultiheadAttention)]
        self.others = [m for m in modules if not isinstance(m, MultiheadAttention)]
        if type(self.decoder).reorder_incremental_state is not FairseqIncrementalDecoder.reorder_incremental_state:
            self.others.append(self.decoder)
        # features and output layer apart, so that a softmax plug can score a part of the vocabulary; else the model's own scores
        self.has_output_layer = (
            self.keeps_source_once
            and getattr(self.decoder, "adaptive_softmax", None) is None
            and type(model).get_normalized_probs in PLAIN_SOFTMAX
        )
        self.attention: Tensor | None = None

    def admit(self, net_input: dict[str, Tensor], sentences: int) -> None:
        """Encode a batch of this many sentences; each has one row."""
        for module in self.attentions:
            module.set_beam_size(1)  # a stock generator may have left its own sharing of source keys switched on
        self.source = self.model.encoder.forward_torchscript(net_input)
        self.row_source = self.source  # what the decoder is given: per sentence, or per row
        self.state: dict = {}
        # with very few sentences a copy a row costs less than the wider product that shares keys
        self.cross_per_row = not self.keeps_source_once or sentences <= FEW_SENTENCES

    def step(self, tokens: Tensor, need_attention: bool) -> Tensor:
        """Features (n, d) of the last of tokens (n, L); the model's own output scores where it has no separate output layer."""
        state = {"incremental_state": self.state} if self.incremental else {}
        if self.has_output_layer:
            out, extra = self.decoder.extract_features(tokens, encoder_out=self.row_source, **state)
        else:
            out, extra = self.decoder(tokens, encoder_out=self.row_source, **state)[:2]
        if need_attention:
            attention = extra["attn"] if isinstance(extra, dict) else extra
            attention = attention[0] if isinstance(attention, (list, tuple)) else attention
            self.attention = None if attention is None else attention[:, -1, :]
        return out[:, -1, :]

    def log_probs(self, features: Tensor, temperature: float) -> Tensor:
        """(n, d) -> (n, V), in float32 or better."""
        logits = self.decoder.output_layer(features) if self.has_output_layer else features
        if temperature != 1.0:
            logits = logits / temperature
        if self.plain_softmax():
            return torch.log_softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        return self.model.get_normalized_probs((logits[:, None], None), log_probs=True, sample=None)[:, -1]

    def plain_softmax(self) -> bool:
        """Whether the model's probabilities are the softmax of its output, computed by fairseq's common code."""
        return (
            isinstance(self.model, FairseqEncoderDecoderModel)
            and type(self.model).get_normalized_probs in PLAIN_SOFTMAX
            and type(self.decoder).get_normalized_probs is StockDecoder.get_normalized_probs
            and getattr(self.decoder, "adaptive_softmax", None) is None
        )

    def select(self, row: Tensor, sentence: Tensor | None, sentence_of_row: Tensor | None, moves: Moves) -> None:
        """Reorder all per-row state by row (n',). sentence (S',): places of the sentences kept, None for all;
        sentence_of_row (n',): place among the kept; None when every sentence has the same number of rows."""
        if moves.rows:
            for module in self.others:
                module.reorder_incremental_state(self.state, row)
        cross = self.cross_index(row, sentence, sentence_of_row, moves)
        for module in self.attentions:
            index = cross if module.encoder_decoder_attention else row if moves.rows else None
            buffer = module._get_input_buffer(self.state)
            if buffer and index is not None:
                buffer = {name: None if value is None else value.index_select(0, index) for name, value in buffer.items()}
                module._set_input_buffer(self.state, buffer)
        self.cross_per_row = self.cross_per_row or sentence_of_row is not None

    def cross_index(self, row: Tensor, sentence: Tensor | None, sentence_of_row: Tensor | None, moves: Moves) -> Tensor | None:
        """Index for the cross-attention cache, which is per sentence while all sentences have equally many rows; None: leave it."""
        if self.cross_per_row:
            return row if moves.sources else None
        if sentence_of_row is not None:
            return sentence_of_row if sentence is None else sentence[sentence_of_row]
        return sentence

    def move_source(self, sentence: Tensor | None, sentence_of_row: Tensor) -> None:
        """Give a decoder that reads the encoder output at every step one copy a row."""
        # subtle: the convolutional encoder changes the dictionary it is given, so it is given a copy
        if sentence is not None:
            self.source = self.model.encoder.reorder_encoder_out(copy.copy(self.source), sentence)
        self.row_source = self.model.encoder.reorder_encoder_out(copy.copy(self.source), sentence_of_row)


class FairseqDecoder:
    """The loop's view of one or several fairseq models (see search/plugs.py, Decoder)."""

    name = "fairseq"

    def __init__(self, models: list[BaseFairseqModel], need_attention: bool = False):
        self.models = [OneModel(model) for model in models]
        self.need_attention = need_attention
        self.rows = 0
        self.width = 1

    def admit(self, pool: Pool, sentences: list[int]) -> None:
        inputs = {name: value for name, value in pool.net_input.items() if name != "prev_output_tokens"}
        if sentences != list(range(len(pool))):
            index = torch.tensor(sentences, device=pool.length.device)
            inputs = {name: value[index] if isinstance(value, Tensor) else value for name, value in inputs.items()}
            words = inputs["src_tokens"].ne(self.models[0].model.encoder.dictionary.pad())
            inputs["src_tokens"] = inputs["src_tokens"][:, words.any(0)]  # no wider than its longest sentence: an LSTM insists on it
        for model in self.models:
            model.admit(inputs, len(sentences))
        self.rows = len(sentences)
        self.width = 1

    def step(self, tokens: Tensor) -> list[Tensor]:
        return [model.step(tokens, self.need_attention) for model in self.models]

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        scores = [model.log_probs(x, temperature) for model, x in zip(self.models, features, strict=True)]
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        """See search/plugs.py. width: rows of every sentence, 0 when they differ."""
        same_layout = width == self.width and width > 0 and sentence is None
        moves = Moves(rows=not (same_layout and width == 1), sources=not same_layout)
        for model in self.models:
            model.select(row, sentence, sentence_of_row if width == 0 else None, moves)
            if not model.keeps_source_once and moves.sources:
                model.move_source(sentence, sentence_of_row)
        self.rows = row.numel()
        self.width = width

    def attention(self) -> Tensor | None:
        if not self.need_attention:
            return None
        weights = [model.attention for model in self.models if model.attention is not None]
        return torch.stack(weights).mean(0) if weights else None

"""The reference decoder: runs any fairseq encoder-decoder, or an ensemble, by fairseq's modules.

stock_model.py holds one model with its incremental state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.model.stock_model import ModelRows, SelectionChanges, StockModel


@dataclass
class Group:
    """Rows that were set aside."""

    models: list[ModelRows]  # state of each model
    rows: int
    width: int  # rows of every sentence, 0 if the numbers differ


class FairseqBackend:
    """One or several fairseq models as a Regroupable (model/protocol.py)."""

    name = "fairseq"
    is_compiled = False

    def __init__(self, models: list[BaseFairseqModel], need_attention: bool = False):
        self.models = [StockModel(model) for model in models]
        self.need_attention = need_attention
        self.rows = 0
        self.width = 1
        self.joins = all(model.joins for model in self.models)
        self.joins_any_step = all(model.joins_any_step for model in self.models)

    def release_(self) -> bool:
        return False

    def admit(self, inputs: dict[str, Tensor]) -> None:
        sentences = inputs["src_tokens"].size(0)
        for model in self.models:
            model.admit(inputs, sentences)
        self.rows = sentences
        self.width = 1

    def step(self, tokens: Tensor) -> list[Tensor]:
        return [model.step(tokens, self.need_attention) for model in self.models]

    def log_probs(self, features: list[Tensor], temperature: float) -> Tensor:
        scores = [
            model.log_probs(x, temperature) for model, x in zip(self.models, features, strict=True)
        ]
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        same_layout = width == self.width and width > 0 and sentence is None
        changes = SelectionChanges(rows=not (same_layout and width == 1), sources=not same_layout)
        for model in self.models:
            model.select(row, sentence, None if width > 0 else sentence_of_row, changes)
            # before its first step a decoder has no state
            if changes.sources and not (model.keeps_source_once and model.live.state):
                model.move_source(sentence, sentence_of_row)
        self.rows = row.numel()
        self.width = max(width, 0)

    def set_aside(self) -> Group:
        group = Group([model.live for model in self.models], self.rows, self.width)
        self.rows = 0
        return group

    def resume(self, group: Group) -> None:
        for model, rows in zip(self.models, group.models, strict=True):
            model.live = rows
        self.rows, self.width = group.rows, group.width

    def join(self, group: Group) -> None:
        for model, rows in zip(self.models, group.models, strict=True):
            model.join(rows, self.width, group.width)
        self.rows += group.rows
        self.width = self.width if self.width == group.width else 0

    def attending_copy(self) -> None:
        """Return None: fairseq's modules do not return the attention of all layers."""

    @property
    def compiled_output(self) -> None:
        return None

    def row_reader(self) -> None:
        """Return None: there is no faster way to read a single sentence."""

    def batch_reader(self, positions: int) -> Any:
        """Raise NotImplementedError: `is_compiled` is False."""
        raise NotImplementedError

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> Group:
        copies = Group([model.copy() for model in self.models], self.rows, self.width)
        live = self.set_aside()
        self.resume(copies)
        self.select(row, sentence, width, sentence_of_row)
        group = self.set_aside()
        self.resume(live)
        return group

    def attention(self) -> Tensor | None:
        if not self.need_attention:
            return None
        weights = [model.attention for model in self.models if model.attention is not None]
        return torch.stack(weights).mean(0) if weights else None


# ---- Blocks for any fairseq decoder, uncached
#
# Every call reads each row's whole history again, as in training.
#
# The parallel driver (search/parallel/driver.py) uses it for models that the transformer backend
# does not support: recurrent and convolutional decoders, and Transformers with other modules.
# It runs the model's own forward pass, so it is also the reference for blocks.
# The cost of a call grows with the length of the history.
#
# Shapes: n rows, one a sentence, w new tokens a row, T longest history, block included.


class UncachedBackend(FairseqBackend):
    """One or several fairseq models as a BlockDecoder (model/protocol.py).

    Rows that were set aside and resumed have an empty history.
    """

    def admit(self, inputs: dict[str, Tensor]) -> None:
        super().admit(inputs)
        self.device = inputs["src_tokens"].device
        self.start_()
        self.pad = self.models[0].decoder.dictionary.pad()
        self.longest = min(int(model.model.max_decoder_positions()) for model in self.models)

    def start_(self) -> None:
        """Set the history of every row to empty."""
        # (n, T) tokens that each row has read
        self.history = torch.zeros(self.rows, 0, dtype=torch.long, device=self.device)
        self.length = self.history.new_zeros(self.rows)  # (n,)

    def resume(self, group: Group) -> None:
        super().resume(group)
        self.start_()

    def step(
        self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None
    ) -> list[Tensor]:
        if length is not None:
            self.length = (
                torch.as_tensor(length, device=tokens.device).expand(self.rows).minimum(self.length)
            )
        end = int(self.length.max()) + new
        column = torch.arange(end, device=tokens.device)
        history = self.history.new_full((self.rows, end), self.pad)
        history[:, : self.history.size(1)] = self.history[:, :end]
        where = self.length[:, None] + column[:new]  # (n, w)
        history = history.masked_fill_(column >= self.length[:, None], self.pad).scatter_(
            1, where, tokens[:, -new:]
        )
        self.history, self.length = history, self.length + new
        # positions after the model's last one are not part of any answer
        history, where = history[:, : self.longest], where.clamp(max=self.longest - 1)
        out = []
        for model in self.models:
            forward = model.decoder.extract_features if model.has_output_layer else model.decoder
            features = forward(history, encoder_out=model.live.row_source)[0]  # (n, T, d)
            features = features.gather(1, where[:, :, None].expand(-1, -1, features.size(2)))
            out.append(features[:, -1] if new == 1 else features)
        return out

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        for model in self.models:
            model.move_source(sentence, sentence_of_row)
        self.history, self.length, self.rows = self.history[row], self.length[row], row.numel()

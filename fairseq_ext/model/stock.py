"""The reference decoder: any fairseq encoder-decoder, or an ensemble, as fairseq runs it.

stock_model.py holds one model with its incremental state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.model.stock_model import Model, ModelRows, Moves


@dataclass
class Group:
    """Rows that were set aside."""

    models: list[ModelRows]  # what each model keeps of them
    rows: int
    width: int  # rows of every sentence, 0 when the numbers differ


class FairseqBackend:
    """One or several fairseq models as model/protocol.py asks: a Regroupable."""

    name = "fairseq"
    is_compiled = False

    def __init__(self, models: list[BaseFairseqModel], need_attention: bool = False):
        self.models = [Model(model) for model in models]
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
        moves = Moves(rows=not (same_layout and width == 1), sources=not same_layout)
        for model in self.models:
            model.select(row, sentence, sentence_of_row if width == 0 else None, moves)
            # before its first step no decoder keeps anything
            if moves.sources and not (model.keeps_source_once and model.live.state):
                model.move_source(sentence, sentence_of_row)
        self.rows = row.numel()
        self.width = width

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

    def beside(self) -> None:
        """Return None: fairseq's modules do not say what all layers attend to."""

    def row_reader(self) -> None:
        """Return None: there is no quicker way to read a sentence alone."""

    def batch_reader(self, positions: int) -> Any:
        """There is none, as `is_compiled` says."""
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
# It serves the parallel driver (search/parallel/driver.py) where the transformer backend does not
# support a model: recurrent and convolutional decoders, and Transformers with modules of their own.
# It computes the model's own forward pass, so it is also the reference for blocks.
# The price is that a call costs as much as the history is long.
#
# Shapes: n rows, one a sentence, w new tokens a row, T longest history, block included.


class UncachedBackend(FairseqBackend):
    """One or several fairseq models as a BlockDecoder (model/protocol.py).

    Rows that were set aside start again.
    """

    def admit(self, inputs: dict[str, Tensor]) -> None:
        super().admit(inputs)
        self.device = inputs["src_tokens"].device
        self.start_()
        self.pad = self.models[0].decoder.dictionary.pad()
        self.longest = min(int(model.model.max_decoder_positions()) for model in self.models)

    def start_(self) -> None:
        """Every row has read nothing."""
        # (n, T) what each row has read
        self.text = torch.zeros(self.rows, 0, dtype=torch.long, device=self.device)
        self.length = self.text.new_zeros(self.rows)  # (n,)

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
        text = self.text.new_full((self.rows, end), self.pad)
        text[:, : self.text.size(1)] = self.text[:, :end]
        where = self.length[:, None] + column[:new]  # (n, w)
        text = text.masked_fill_(column >= self.length[:, None], self.pad).scatter_(
            1, where, tokens[:, -new:]
        )
        self.text, self.length = text, self.length + new
        # positions beyond the model's last belong to no row's answer
        text, where = text[:, : self.longest], where.clamp(max=self.longest - 1)
        out = []
        for model in self.models:
            forward = model.decoder.extract_features if model.has_output_layer else model.decoder
            features = forward(text, encoder_out=model.live.row_source)[0]  # (n, T, d)
            features = features.gather(1, where[:, :, None].expand(-1, -1, features.size(2)))
            out.append(features[:, -1] if new == 1 else features)
        return out

    def select(
        self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor
    ) -> None:
        for model in self.models:
            model.move_source(sentence, sentence_of_row)
        self.text, self.length, self.rows = self.text[row], self.length[row], row.numel()

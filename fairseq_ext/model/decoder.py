"""The reference decoder: any fairseq encoder-decoder, or an ensemble, through its own incremental state (model.py)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.model.model import Model, ModelRows, Moves


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
        scores = [model.log_probs(x, temperature) for model, x in zip(self.models, features, strict=True)]
        if len(scores) == 1:
            return scores[0]
        return torch.logsumexp(torch.stack(scores), dim=0) - math.log(len(scores))

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        same_layout = width == self.width and width > 0 and sentence is None
        moves = Moves(rows=not (same_layout and width == 1), sources=not same_layout)
        for model in self.models:
            model.select(row, sentence, sentence_of_row if width == 0 else None, moves)
            if moves.sources and not (model.keeps_source_once and model.live.state):  # before its first step no decoder keeps anything
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

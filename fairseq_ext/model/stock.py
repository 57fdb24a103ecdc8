"""The reference decoder: runs any fairseq encoder-decoder, or an ensemble, by fairseq's modules.

stock_model.py holds one model with its incremental state.

Shapes: n rows, w new tokens a row, T tokens of the longest history, d features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.models.fairseq_model import BaseFairseqModel
from torch import Tensor

from fairseq_ext.model.stock_model import ModelRows, StockModel


@dataclass
class Group:
    """Rows that were set aside."""

    models: list[ModelRows]  # state of each model
    width: int  # rows of every sentence, 0 if the numbers differ
    history: Tensor  # (n, T) what each row has read, without `cached`
    length: Tensor  # (n,) its tokens


class FairseqBackend:
    """One or several fairseq models as a Decoder (model/protocol.py).

    cached: the models keep their incremental state; False: every call reads each row's whole
    history again, as in training, so that it may read blocks, one row a sentence. The parallel
    driver (search/parallel/driver.py) needs that of models which the transformer backend does not
    support; it is also the reference for blocks.
    """

    name = "fairseq"
    is_compiled = False

    def __init__(self, models: list[BaseFairseqModel], cached: bool = True):
        self.models = [StockModel(model) for model in models]
        self.cached = cached
        self.joins = all(model.joins for model in self.models)
        self.joins_any_step = all(model.joins_any_step for model in self.models)

    def release_(self) -> bool:
        return False

    def admit(self, inputs: dict[str, Tensor]) -> None:
        rows, self.width = inputs["src_tokens"].size(0), 1
        for model in self.models:
            model.admit(inputs, rows)
        device = inputs["src_tokens"].device
        self.history = torch.zeros(rows, 0, dtype=torch.long, device=device)
        self.length = self.history.new_zeros(rows)

    def step(
        self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None
    ) -> list[Tensor]:
        if self.cached:
            return [model.read(tokens, True)[0][:, -1] for model in self.models]
        if length is not None:
            self.length = torch.as_tensor(length, device=tokens.device).minimum(self.length)
        end, pad = int(self.length.max()) + new, self.models[0].decoder.dictionary.pad()
        where = self.length[:, None] + torch.arange(new, device=tokens.device)  # (n, w)
        # what a row has forgotten stands behind all that it reads
        self.history = F.pad(self.history, [0, end - self.history.size(1)], value=pad)
        self.history.scatter_(1, where, tokens[:, -new:])
        self.length = self.length + new
        # positions after the model's last one are not part of any answer
        longest = min(int(model.decoder.max_positions()) for model in self.models)
        out = []
        for model in self.models:
            x = model.read(self.history[:, :longest], False)[0]  # (n, T, d)
            x = x.gather(1, where.clamp(max=longest - 1)[:, :, None].expand(-1, -1, x.size(2)))
            out.append(x[:, -1] if new == 1 else x)
        return out

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
        for model in self.models:
            if self.cached:
                of_row = None if width > 0 else sentence_of_row
                model.select(row, sentence, of_row, same_layout, same_layout and width == 1)
            # before its first step a decoder has no state
            if not same_layout and not (model.keeps_source_once and model.live.state):
                model.move_source(sentence, sentence_of_row)
        if not self.cached:
            self.history, self.length = self.history[row], self.length[row]
        self.width = max(width, 0)

    def set_aside(self) -> Group:
        live = [model.live for model in self.models]
        return Group(live, self.width, self.history, self.length)

    def resume(self, group: Group) -> None:
        for model, rows in zip(self.models, group.models, strict=True):
            model.live = rows
        self.width, self.history, self.length = group.width, group.history, group.length

    def join(self, group: Group) -> None:
        for model, rows in zip(self.models, group.models, strict=True):
            model.join(rows, self.width, group.width)
        self.width = self.width if self.width == group.width else 0

    def part(self, row: Tensor, sentence: Tensor, width: int, sentence_of_row: Tensor) -> Group:
        live = self.set_aside()
        self.resume(live)
        for model in self.models:
            model.live = model.live.copy()
        self.select(row, sentence, width, sentence_of_row)
        group = self.set_aside()
        self.resume(live)
        return group

    def attention_of(self, inputs: dict[str, Tensor], tokens: Tensor) -> Tensor | None:
        """Read the targets tokens (n, L), one for each source of the encoder's input; return their
        attention to it (n, L, source), averaged over the models that have one. None: no model has.
        """
        self.admit(inputs)
        extras = [model.read(tokens, False)[1] for model in self.models]
        found = [extra["attn"] if isinstance(extra, dict) else extra for extra in extras]
        found = [each[0] if isinstance(each, (list, tuple)) else each for each in found]
        known = [each for each in found if each is not None]
        return torch.stack(known).mean(0) if known else None

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

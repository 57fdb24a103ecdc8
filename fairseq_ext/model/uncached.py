"""Blocks for any fairseq decoder, uncached: every call reads each row's whole history again, as in training.

It serves the parallel driver (search/parallel/driver.py) where the transformer backend does not support a model: recurrent and convolutional
decoders, and Transformers with modules of their own. It computes the model's own forward pass, so it is also the reference for blocks.
The price is that a call costs as much as the history is long.

Shapes: n rows, one a sentence, w new tokens a row, T longest history, block included.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fairseq_ext.model.decoder import FairseqBackend, Group


class UncachedBackend(FairseqBackend):
    """One or several fairseq models as a BlockDecoder (model/protocol.py). Rows that were set aside start again."""

    def admit(self, inputs: dict[str, Tensor]) -> None:
        super().admit(inputs)
        self.device = inputs["src_tokens"].device
        self.start_()
        self.pad = self.models[0].decoder.dictionary.pad()
        self.longest = min(int(model.model.max_decoder_positions()) for model in self.models)

    def start_(self) -> None:
        """Every row has read nothing."""
        self.text = torch.zeros(self.rows, 0, dtype=torch.long, device=self.device)  # (n, T) what each row has read
        self.length = self.text.new_zeros(self.rows)  # (n,)

    def resume(self, group: Group) -> None:
        super().resume(group)
        self.start_()

    def step(self, tokens: Tensor, new: int = 1, length: int | Tensor | None = None) -> list[Tensor]:
        if length is not None:
            self.length = torch.as_tensor(length, device=tokens.device).expand(self.rows).minimum(self.length)
        end = int(self.length.max()) + new
        column = torch.arange(end, device=tokens.device)
        text = self.text.new_full((self.rows, end), self.pad)
        text[:, : self.text.size(1)] = self.text[:, :end]
        where = self.length[:, None] + column[:new]  # (n, w)
        text = text.masked_fill_(column >= self.length[:, None], self.pad).scatter_(1, where, tokens[:, -new:])
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

    def select(self, row: Tensor, sentence: Tensor | None, width: int, sentence_of_row: Tensor) -> None:
        for model in self.models:
            model.move_source(sentence, sentence_of_row)
        self.text, self.length, self.rows = self.text[row], self.length[row], row.numel()

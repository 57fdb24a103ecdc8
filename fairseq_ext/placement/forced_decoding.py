"""Forced decoding (teacher forcing): the log-probabilities of given target tokens, many sentences in one call of the models.

Shapes: N pairs, T source tokens of the longest, L target tokens of the longest.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.stats import Stats

Pair = tuple[Sequence[int], Sequence[int]]  # source and target tokens, EOS included in both
TOKENS = 6000  # most target tokens of one call, padding included
SCORES = 50_000_000  # most log-probabilities of one call, target tokens x vocabulary: 200 MB


class ForcedDecoding:
    """Scores pairs by the models, an ensemble by its mean probability, as fairseq's SequenceScorer does. dictionary: of the target."""

    def __init__(self, models: Sequence, dictionary: Dictionary, left_pad: bool, stats: Stats):
        self.models, self.pad, self.left_pad, self.stats = models, dictionary.pad(), left_pad, stats
        self.tokens = min(TOKENS, SCORES // len(dictionary))
        self.device = next(models[0].parameters()).device

    @torch.no_grad()
    def __call__(self, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """The log-probabilities (L,) of each pair's target tokens, on the CPU; bos: the first input of the decoder."""
        out: list[Tensor] = [torch.empty(0)] * len(pairs)
        # longest sources first: an LSTM's encoder insists on it; equal ones side by side: a source is encoded once
        order = sorted(range(len(pairs)), key=lambda i: (-len(pairs[i][0]), tuple(pairs[i][0])))
        while order:
            widest, count = 0, 0
            for count, i in enumerate(order, 1):
                widest = max(widest, len(pairs[i][1]))
                if widest * (count + 1) > self.tokens:
                    break
            for i, scores in zip(order[:count], self.batch([pairs[i] for i in order[:count]], bos), strict=True):
                out[i] = scores
            order = order[count:]
        return out

    def batch(self, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """The same of pairs that one call takes."""
        numbers: dict[tuple[int, ...], int] = {}
        of_pair = torch.tensor([numbers.setdefault(tuple(s), len(numbers)) for s, _ in pairs], device=self.device)  # (N,)
        source = self.padded(list(numbers), self.left_pad)  # (sources, T)
        lengths = torch.tensor([len(s) for s in numbers], device=self.device)
        target = self.padded([t for _, t in pairs], False)  # (N, L)
        inputs = torch.cat([torch.full_like(target[:, :1], bos), target[:, :-1]], dim=1)
        total = None
        for model in self.models:
            encoded = model.encoder(source, src_lengths=lengths)
            if len(numbers) < len(pairs):
                encoded = model.encoder.reorder_encoder_out(encoded, of_pair)
            scores = model.get_normalized_probs(model.decoder(inputs, encoder_out=encoded), log_probs=True)  # (N, L, V)
            chosen = scores.gather(2, target[:, :, None])[:, :, 0].float()
            total = chosen if total is None else torch.logaddexp(total, chosen)
        assert total is not None
        self.stats.encoder_calls += 1
        self.stats.count_step(*target.shape)
        total = (total - torch.tensor(float(len(self.models))).log().to(total.device)).cpu()
        return [row[: len(t)] for row, (_, t) in zip(total, pairs, strict=True)]

    def padded(self, rows: Sequence[Sequence[int]], left: bool) -> Tensor:
        """Rows of tokens as one tensor."""
        width = max(map(len, rows))
        filled = [[self.pad] * (width - len(r)) + list(r) if left else [*r, *[self.pad] * (width - len(r))] for r in rows]
        return torch.tensor(filled, device=self.device)

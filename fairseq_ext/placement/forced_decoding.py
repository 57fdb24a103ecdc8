"""Forced decoding (teacher forcing): the log-probabilities of given target tokens, and the source tokens that the decoder attends to when
it predicts them; many sentences in one call of the models.

Shapes: N pairs, T source tokens of the longest, L target tokens of the longest.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor, nn

from fairseq_ext.stats import Stats

Encoded = list[tuple[Any, Any]]  # each model, with its encoder's output for N sources
Pair = tuple[int, Sequence[int]]  # the number of a source, and target tokens, EOS included
TOKENS = 2000  # most target tokens of one call, padding included
SCORES = 50_000_000  # most log-probabilities of one call, target tokens x vocabulary: 200 MB


@dataclass
class Sources:
    """Encoded sources."""

    encoded: Encoded
    lengths: list[int]  # EOS included
    row: list[int]  # of each source in the encoders' outputs


class ForcedDecoding:
    """Reads pairs by the models. left_pad: whether sources are padded in front."""

    def __init__(self, models: Sequence, dictionary: Dictionary, left_pad: bool, stats: Stats):
        self.models, self.pad, self.left_pad, self.stats = models, dictionary.pad(), left_pad, stats
        self.tokens = min(TOKENS, SCORES // len(dictionary))
        self.device = next(models[0].parameters()).device
        self.attends = all(map(attention_modules, models))  # whether there is `attention`: the models are Transformers

    @torch.no_grad()
    def encode(self, sources: Sequence[Sequence[int]]) -> Sources:
        """The sources (tokens, EOS included) in one call of the encoders."""
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))  # an LSTM insists on it
        lengths = [len(source) for source in sources]
        inputs = self.padded([sources[i] for i in order], self.left_pad), torch.tensor([lengths[i] for i in order], device=self.device)
        self.stats.encoder_calls += 1
        row = sorted(range(len(order)), key=order.__getitem__)
        return Sources([(model, model.encoder(inputs[0], src_lengths=inputs[1])) for model in self.models], lengths, row)

    def log_probs(self, sources: Sources, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """The log-probabilities (L,) of each pair's target tokens; bos: the first input of the decoder."""
        return [row[: len(target)] for row, (_, target) in zip(self.read(log_probs, sources, pairs, bos), pairs, strict=True)]

    def attention(self, sources: Sources, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """The attention (L, T) to each pair's source in the steps that predict its target tokens."""
        out = []
        for row, (source, target) in zip(self.read(attention, sources, pairs, bos), pairs, strict=True):
            length = sources.lengths[source]
            out.append(row[: len(target), -length:] if self.left_pad else row[: len(target), :length])
        return out

    @torch.no_grad()
    def read(self, reader: Callable[[Encoded, Tensor, Tensor], Tensor], sources: Sources, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """What a reader (`log_probs`, `attention`) says of each pair, padded, on the CPU."""
        out: list[Tensor] = [torch.empty(0)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))
        while order:
            widths = itertools.takewhile(lambda i: (i[0] * len(pairs[i[1]][1])) <= self.tokens, enumerate(order, 1))
            count = max(1, sum(1 for _ in widths))
            numbers, order = order[:count], order[count:]
            rows = torch.tensor([sources.row[pairs[i][0]] for i in numbers], device=self.device)
            encoded = [(model, model.encoder.reorder_encoder_out(output, rows)) for model, output in sources.encoded]
            target = self.padded([pairs[i][1] for i in numbers], False)  # (N, L)
            inputs = torch.cat([torch.full_like(target[:, :1], bos), target[:, :-1]], dim=1)
            self.stats.count_step(*target.shape)
            for i, row in zip(numbers, reader(encoded, inputs, target).cpu(), strict=True):
                out[i] = row
        return out

    def padded(self, rows: Sequence[Sequence[int]], left: bool) -> Tensor:
        """Rows of tokens as one tensor."""
        width = max(map(len, rows))
        filled = [[self.pad] * (width - len(r)) + list(r) if left else [*r, *[self.pad] * (width - len(r))] for r in rows]
        return torch.tensor(filled, device=self.device)


def log_probs(encoded: Encoded, inputs: Tensor, target: Tensor) -> Tensor:
    """Log-probabilities (N, L) of the target after the inputs (N, L); an ensemble by its mean probability, as fairseq's SequenceScorer."""
    each = [model.get_normalized_probs(model.decoder(inputs, encoder_out=out), log_probs=True) for model, out in encoded]
    chosen = torch.stack([scores.gather(2, target[:, :, None])[:, :, 0].float() for scores in each])
    return chosen.logsumexp(0) - math.log(len(each))


def attention(encoded: Encoded, inputs: Tensor, target: Tensor) -> Tensor:
    """Cross-attention (N, L, T) of Transformers that read the inputs (N, L), averaged over models, layers and heads."""
    weights: list[Tensor] = []

    def ask(module: nn.Module, args: tuple, given: dict) -> tuple[tuple, dict]:
        return args, given | {"need_weights": True, "need_head_weights": False}

    with ExitStack() as hooks:
        for model, out in encoded:
            for module in attention_modules(model):
                hooks.callback(module.register_forward_pre_hook(ask, with_kwargs=True).remove)
                hooks.callback(module.register_forward_hook(lambda module, args, found: weights.append(found[1])).remove)
            model.decoder(inputs, encoder_out=out, features_only=True)
    return torch.stack(weights).mean(0)


def attention_modules(model: Any) -> list[nn.Module]:
    """The cross-attention of each decoder layer of a Transformer; none for other models."""
    modules = [getattr(layer, "encoder_attn", None) for layer in getattr(model.decoder, "layers", ())]
    return [] if None in modules else modules  # type: ignore[return-value]

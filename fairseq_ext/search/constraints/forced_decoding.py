"""Forced decoding (teacher forcing): the log-probabilities of given target tokens, and the source
tokens that the decoder attends to when it predicts them; many sentences in one call of the decoder.

Shapes: N pairs, T source tokens of the longest, L target tokens of the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.model.protocol import AttendingDecoder, Decoder
from fairseq_ext.model.transformer.lines import LineReader, NewTokens
from fairseq_ext.search.phrases.sentence import Dictionary

Pair = tuple[int, Sequence[int]]  # the number of a source, and target tokens, EOS included
TOKENS = 2000  # target tokens of one call, padding included, at most
# on a CPU, where padding costs as much as tokens: largest ratio of the lengths of two pairs in a
# call
MAX_LENGTH_RATIO = 1.5
SCORES = 50_000_000  # log-probabilities of one call, target tokens x vocabulary, at most: 200 MB
# on a CPU: tokens whose log-probabilities are computed together, so that they stay in its cache
AT_ONCE = 128
# from the features (m, d) of each model before m target tokens, and these tokens (m,)
OfFeatures = Callable[[list[Tensor], Tensor], Tensor]


NO_POSITIONS = np.empty(0, np.int32)


@dataclass
class Sources:
    """Encoded sources."""

    group: object  # the decoder's, a row each, longest first
    lengths: list[int]  # EOS included
    row: list[int]  # of each source
    device: torch.device
    lines: LineReader | None  # reads the targets, in place of the decoder
    # where it has the tokens of a target that it has read: by source and target
    positions: dict[tuple[int, tuple[int, ...]], np.ndarray] = field(default_factory=dict)


class ForcedDecoding:
    """Forced decoding of pairs by a decoder's models.

    attends: whether the decoder is an AttendingDecoder; left_pad: whether sources are padded on the
    left; temperature: that of the search's log-probabilities.
    """

    def __init__(
        self,
        decoder: Decoder,
        attends: bool,
        dictionary: Dictionary,
        left_pad: bool,
        stats: Stats,
        temperature: float = 1.0,
    ):
        self.decoder, self.attends, self.temperature = decoder, attends, temperature
        self.pad, self.left_pad, self.stats = dictionary.pad(), left_pad, stats
        self.tokens = min(TOKENS, SCORES // len(dictionary))

    @contextmanager
    def keeping(self, sources: Iterable[Sequence[int]]) -> Iterator[None]:
        """Cache the keys and values of these sources in the search, until `forget`."""
        if not self.attends:
            yield
            return
        kept = cast(AttendingDecoder, self.decoder).source_cache
        try:
            kept.update({tuple(source): {} for source in sources})
            yield
        finally:
            kept.clear()

    def forget(self, sources: Iterable[Sequence[int]]) -> None:
        """Drop the cached keys and values of these sources."""
        for source in sources if self.attends else ():
            cast(AttendingDecoder, self.decoder).source_cache.pop(tuple(source), None)

    @torch.no_grad()
    def encode(self, sources: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """Encode the sources (tokens, EOS included) in one call of the encoders."""
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))  # an LSTM requires it
        lengths = [len(source) for source in sources]
        padded = self.padded([sources[i] for i in order], self.left_pad, device)
        self.decoder.admit(
            {
                "src_tokens": padded,
                "src_lengths": torch.tensor([lengths[i] for i in order], device=device),
            }
        )
        self.stats.encoder_calls += 1
        lines = cast(AttendingDecoder, self.decoder).line_reader() if self.attends else None
        return Sources(
            self.decoder.set_aside(),
            lengths,
            sorted(range(len(order)), key=order.__getitem__),
            device,
            lines,
        )

    def log_probs(
        self,
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
        known: Sequence[Tensor] = (),
        drafts: Sequence[Sequence[int]] = (),
    ) -> list[Tensor]:
        """Return the log-probabilities (L,) of each pair's target tokens; bos: the first input of
        the decoder; known: those of each pair's first tokens, which are not computed again; drafts:
        targets with the same first tokens, which `attention` may have read."""
        first = [len(each) for each in known] or [0] * len(pairs)
        shared = zip(pairs, drafts, first, strict=True) if drafts else ()
        read = [
            sources.positions.get((i, tuple(draft)), NO_POSITIONS)[: min(n, len(target) - 1)]
            for (i, target), draft, n in shared
        ]

        def of_targets(features: list[Tensor], target: Tensor) -> Tensor:
            scores = self.decoder.log_probs(features, self.temperature)  # (m, V)
            return scores.gather(1, target[:, None])[:, 0].float()

        found = self.of_features(of_targets, sources, pairs, bos, first, read)
        if not known:
            return found
        return [torch.cat([of.to(new), new]) for of, new in zip(known, found, strict=True)]

    def next_tokens(
        self, sources: Sources, pairs: Sequence[Pair], bos: int, k: int
    ) -> list[Tensor]:
        """Return the k best tokens in the place of each pair's last one: log-probabilities and ids
        (2, k), best first."""

        def best(features: list[Tensor], _: Tensor) -> Tensor:
            found = self.decoder.log_probs(features, self.temperature).topk(k, dim=-1)
            return torch.stack([found.values.double(), found.indices.double()], dim=1)

        first = [len(target) - 1 for _, target in pairs]
        return [each[0] for each in self.of_features(best, sources, pairs, bos, first)]

    def of_tokens(
        self, sources: Sources, pairs: Sequence[Pair], bos: int, tokens: Sequence[int]
    ) -> list[Tensor]:
        """Return the log-probabilities (L, n) of n tokens in the place of each of a pair's
        tokens."""

        def of_wanted(features: list[Tensor], _: Tensor) -> Tensor:
            scores = self.decoder.log_probs(features, self.temperature)
            return scores[:, torch.tensor(tokens, device=scores.device)].float()

        return self.of_features(of_wanted, sources, pairs, bos, [0] * len(pairs))

    def attention(self, sources: Sources, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """Return the attention (L, T) to each pair's source in the steps that predict its target
        tokens, averaged by the decoder. What a LineReader reads is kept for `log_probs`."""
        decoder = cast(AttendingDecoder, self.decoder)
        read = (
            self.read(
                lambda inputs, *others: decoder.source_attention(inputs).cpu(),
                sources,
                pairs,
                bos,
            )
            if sources.lines is None
            else self.attention_of_lines(sources.lines, sources, pairs, bos)
        )
        out = []
        for row, (source, target) in zip(read, pairs, strict=True):
            length = sources.lengths[source]
            out.append(
                row[: len(target), -length:] if self.left_pad else row[: len(target), :length]
            )
        return out

    @torch.no_grad()
    def of_features(
        self,
        function: OfFeatures,
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
        first: Sequence[int],
        read: Sequence[np.ndarray] = (),
    ) -> list[Tensor]:
        """Return for each pair the results (L - first, ...) of a function of features, on the CPU.

        first: number of the first token of each pair that is needed; read: of each pair, where a
        LineReader has its first tokens.
        """

        def results(
            features: list[Tensor], target: Tensor, counts: Sequence[int]
        ) -> Sequence[Tensor]:
            if not sum(counts):
                return [torch.empty(0, dtype=torch.float32)] * len(counts)
            size = AT_ONCE if sources.device.type == "cpu" else len(target)
            blocks = zip(*(x.split(size) for x in features), strict=True)
            each = zip(blocks, target.split(size), strict=True)
            return torch.cat([function(list(x), of) for x, of in each]).cpu().split(counts)

        def reader(inputs: Tensor, target: Tensor, numbers: Sequence[int]) -> Sequence[Tensor]:
            features = self.decoder.step(inputs, inputs.size(1))
            place = torch.arange(target.size(1), device=target.device)
            begin = torch.tensor([first[i] for i in numbers], device=target.device)
            is_needed = target.ne(self.pad) & (place >= begin[:, None])  # (N, L)
            rows = [x.reshape(-1, x.size(-1))[is_needed.flatten()] for x in features]
            return results(rows, target[is_needed], counts_of(numbers))

        def counts_of(numbers: Sequence[int]) -> list[int]:
            return [len(pairs[i][1]) - first[i] for i in numbers]

        if sources.lines is None:
            return self.read(reader, sources, pairs, bos)
        out: list[Tensor] = []
        for numbers, new in self.batches_of_lines(sources, pairs, bos, read):
            features = sources.lines.read(new)
            ends = itertools.accumulate(len(each.tokens) for each in new)
            counts = counts_of(numbers)
            rows = torch.cat(
                [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
            )
            target = torch.tensor([token for i in numbers for token in pairs[i][1][first[i] :]])
            out += results([x[rows] for x in features], target, counts)
        return out

    def batches_of_lines(
        self,
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
        read: Sequence[np.ndarray] = (),
    ) -> Iterator[tuple[list[int], list[NewTokens]]]:
        """Yield the pairs that a LineReader reads in one call, in order: their numbers, and the
        inputs behind those that it has."""
        numbers, new, size = list[int](), list[NewTokens](), 0
        for i, (source, target) in enumerate(pairs):
            known = read[i] if read else NO_POSITIONS
            inputs = [bos, *target[:-1]][len(known) :]
            if numbers and size + len(inputs) > self.tokens:
                self.stats.count_step(size, 1)
                yield numbers, new
                numbers, new, size = [], [], 0
            numbers.append(i)
            new.append(NewTokens(sources.row[source], inputs, known))
            size += len(inputs)
            if i + 1 == len(pairs):
                self.stats.count_step(size, 1)
                yield numbers, new

    @torch.no_grad()
    def attention_of_lines(
        self, lines: LineReader, sources: Sources, pairs: Sequence[Pair], bos: int
    ) -> list[Tensor]:
        """Return the attention (L, source width) of pairs. Their positions are kept."""
        out = list[Tensor]()
        for numbers, new in self.batches_of_lines(sources, pairs, bos):
            position = lines.used
            out += lines.attention(new).split([len(each.tokens) for each in new])
            for source, target in (pairs[i] for i in numbers):
                own = np.arange(position, position + len(target), dtype=np.int32)
                sources.positions[source, tuple(target)] = own
                position += len(target)
        return out

    @torch.no_grad()
    def read(
        self,
        reader: Callable[[Tensor, Tensor, Sequence[int]], Iterable[Tensor]],
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
    ) -> list[Tensor]:
        """Return the results of a reader on the CPU, in batches: it gets inputs (N, L), target
        (N, L), padded, and the numbers of some pairs."""
        out: list[Tensor] = [torch.empty(0, dtype=torch.float32)] * len(pairs)
        length = [len(target) for _, target in pairs]
        order = sorted(range(len(pairs)), key=length.__getitem__)
        while order:
            longest = self.tokens
            if sources.device.type == "cpu":
                longest = int(length[order[0]] * MAX_LENGTH_RATIO) + 1
            fits = (
                n * length[i] <= self.tokens and length[i] <= longest
                for n, i in enumerate(order, 1)
            )
            count = max(1, sum(itertools.takewhile(bool, fits)))
            row_of = {i: sources.row[pairs[i][0]] for i in order[:count]}
            numbers, order = sorted(row_of, key=row_of.__getitem__), order[count:]
            row = torch.tensor([row_of[i] for i in numbers], device=sources.device)
            sentence, of_row = row.unique(return_inverse=True)
            self.decoder.resume(sources.group)
            part = self.decoder.part(row, sentence, int(sentence.numel() == row.numel()), of_row)
            self.decoder.set_aside()
            self.decoder.resume(part)
            # (N, L)
            target = self.padded([pairs[i][1] for i in numbers], False, sources.device)
            first = torch.full((len(numbers), 1), bos, device=sources.device)
            inputs = torch.cat([first, target[:, :-1]], dim=1)
            self.stats.count_step(*target.shape)
            for i, each in zip(numbers, reader(inputs, target, numbers), strict=True):
                out[i] = each
            self.decoder.set_aside()
        return out

    def padded(self, rows: Sequence[Sequence[int]], left: bool, device: torch.device) -> Tensor:
        """Return rows of tokens as one tensor."""
        width = max(map(len, rows))
        filled = [
            [self.pad] * (width - len(r)) + list(r)
            if left
            else [*r, *[self.pad] * (width - len(r))]
            for r in rows
        ]
        return torch.tensor(filled, device=device)

"""Forced decoding (teacher forcing): the log-probabilities of given target tokens, and the source
tokens that the decoder attends to when it predicts them; many sentences in one call of the decoder.

Shapes: N pairs, T source tokens of the longest, L target tokens of the longest.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, cast

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


class Start(NamedTuple):
    """Where the reading of a pair begins: after the first tokens of a row of a group, or of a
    target whose tokens have these positions of a LineReader."""

    group: object  # the decoder's
    row: int
    sentence: int  # of the row in the group
    length: int = 0  # tokens
    positions: np.ndarray = np.empty(0, np.int32)


@dataclass
class Sources:
    """Encoded sources."""

    group: object  # the decoder's, a row each, longest first
    lengths: list[int]  # EOS included
    row: list[int]  # of each source
    device: torch.device
    lines: LineReader | None  # reads the targets, in place of the decoder
    # rows that have read a target: by source and target tokens
    has_read: dict[tuple[int, tuple[int, ...]], Start] = field(default_factory=dict)

    def start(self, source: int, tokens: Sequence[int] = (), length: int = 0) -> Start:
        """Return where to begin a target of a source that shares its first tokens with other ones,
        if they were read; else the start of the target."""
        found = self.has_read.get((source, tuple(tokens)))
        if found is None:
            return Start(self.group, self.row[source], self.row[source])
        return found._replace(length=length)


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
        targets with the same first tokens, of which `attention` may have kept the rows."""
        first = [len(each) for each in known] or [0] * len(pairs)
        shared = zip(pairs, drafts, first, strict=True) if drafts else ()
        starts = [
            sources.start(i, draft, min(n, len(target) - 1)) for (i, target), draft, n in shared
        ]

        def of_targets(features: list[Tensor], target: Tensor) -> Tensor:
            scores = self.decoder.log_probs(features, self.temperature)  # (m, V)
            return scores.gather(1, target[:, None])[:, 0].float()

        found = self.of_features(of_targets, sources, pairs, bos, first, starts)
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
        tokens, averaged by the decoder. The rows are kept for `log_probs`."""
        decoder = cast(AttendingDecoder, self.decoder)
        read = (
            self.read(
                lambda inputs, *others: decoder.source_attention(inputs).cpu(),
                sources,
                pairs,
                bos,
                keeps=True,
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
        starts: Sequence[Start] = (),
    ) -> list[Tensor]:
        """Return for each pair the results (L - first, ...) of a function of features, on the CPU.

        first: number of the first token of each pair that is needed; starts: of each pair, where it
        begins.
        """
        starts = starts or [sources.start(source) for source, _ in pairs]
        needed = [
            n - start.length for n, start in zip(first, starts, strict=True)
        ]  # in what is read

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
            length = None
            if starts[numbers[0]].group is not sources.group:
                length = torch.tensor([starts[i].length for i in numbers], device=target.device)
            features = self.decoder.step(inputs, inputs.size(1), length)
            place = torch.arange(target.size(1), device=target.device)
            begin = torch.tensor([needed[i] for i in numbers], device=target.device)
            is_needed = target.ne(self.pad) & (place >= begin[:, None])  # (N, L)
            rows = [x.reshape(-1, x.size(-1))[is_needed.flatten()] for x in features]
            counts = [len(pairs[i][1]) - first[i] for i in numbers]
            return results(rows, target[is_needed], counts)

        if sources.lines is None:
            return self.read(reader, sources, pairs, bos, starts)
        out: list[Tensor] = []
        for numbers in self.batches_of_lines(pairs, starts):
            new = [new_tokens(sources, pairs[i], starts[i], bos) for i in numbers]
            self.stats.count_step(sum(len(each.tokens) for each in new), 1)
            features = sources.lines.read(new)
            ends = itertools.accumulate(len(each.tokens) for each in new)
            counts = [len(pairs[i][1]) - first[i] for i in numbers]
            rows = torch.cat(
                [torch.arange(end - n, end) for end, n in zip(ends, counts, strict=True)]
            )
            target = torch.tensor([token for i in numbers for token in pairs[i][1][first[i] :]])
            out += results([x[rows] for x in features], target, counts)
        return out

    def batches_of_lines(
        self, pairs: Sequence[Pair], starts: Sequence[Start]
    ) -> Iterator[Sequence[int]]:
        """Yield the numbers of the pairs that are read in one call, in order."""
        numbers: list[int] = []
        size = 0
        for i, ((_, target), start) in enumerate(zip(pairs, starts, strict=True)):
            more = len(target) - start.length
            if numbers and size + more > self.tokens:
                yield numbers
                numbers, size = [], 0
            numbers.append(i)
            size += more
        if numbers:
            yield numbers

    @torch.no_grad()
    def attention_of_lines(
        self, lines: LineReader, sources: Sources, pairs: Sequence[Pair], bos: int
    ) -> list[Tensor]:
        """Return the attention (L, source width) of pairs. Their positions are kept."""
        starts, out = [sources.start(source) for source, _ in pairs], list[Tensor]()
        for numbers in self.batches_of_lines(pairs, starts):
            new = [new_tokens(sources, pairs[i], starts[i], bos) for i in numbers]
            self.stats.count_step(sum(len(each.tokens) for each in new), 1)
            position = lines.used
            out += lines.attention(new).split([len(each.tokens) for each in new])
            for i in numbers:
                source, target = pairs[i]
                own = np.arange(position, position + len(target), dtype=np.int32)
                sources.has_read[source, tuple(target)] = starts[i]._replace(positions=own)
                position += len(target)
        return out

    @torch.no_grad()
    def read(
        self,
        reader: Callable[[Tensor, Tensor, Sequence[int]], Iterable[Tensor]],
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
        starts: Sequence[Start] = (),
        keeps: bool = False,
    ) -> list[Tensor]:
        """Return the results of a reader on the CPU, in batches: it gets inputs (N, L), target
        (N, L), padded, and the numbers of some pairs.

        starts: of each pair, where it begins; keeps: keep the rows in `sources`.
        """
        out: list[Tensor] = [torch.empty(0, dtype=torch.float32)] * len(pairs)
        starts = starts or [sources.start(source) for source, _ in pairs]
        rest = [
            len(target) - start.length for (_, target), start in zip(pairs, starts, strict=True)
        ]
        order = sorted(range(len(pairs)), key=lambda i: (id(starts[i].group), rest[i]))
        while order:
            group, least = starts[order[0]].group, rest[order[0]]
            longest = least * MAX_LENGTH_RATIO + 1 if sources.device.type == "cpu" else self.tokens
            fits = (
                n * rest[i] <= self.tokens and rest[i] <= longest and starts[i].group is group
                for n, i in enumerate(order, 1)
            )
            count = max(1, sum(itertools.takewhile(bool, fits)))
            numbers, order = (
                sorted(order[:count], key=lambda i: starts[i].sentence),
                order[count:],
            )
            row = torch.tensor([starts[i].row for i in numbers], device=sources.device)
            of = torch.tensor([starts[i].sentence for i in numbers], device=sources.device)
            sentence, of_row = of.unique(return_inverse=True)
            self.decoder.resume(group)
            part = self.decoder.part(row, sentence, int(sentence.numel() == row.numel()), of_row)
            self.decoder.set_aside()
            self.decoder.resume(part)
            # (N, L)
            target = self.padded(
                [pairs[i][1][starts[i].length :] for i in numbers], False, sources.device
            )
            before = [[bos, *pairs[i][1]][starts[i].length] for i in numbers]
            first = torch.tensor(before, device=sources.device)[:, None]
            inputs = torch.cat([first, target[:, :-1]], dim=1)
            self.stats.count_step(*target.shape)
            for i, each in zip(numbers, reader(inputs, target, numbers), strict=True):
                out[i] = each
            group = self.decoder.set_aside()
            for place, i in enumerate(numbers if keeps else ()):
                source, tokens = pairs[i]
                sources.has_read[source, tuple(tokens)] = Start(group, place, int(of_row[place]))
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


def new_tokens(sources: Sources, pair: Pair, start: Start, bos: int) -> NewTokens:
    """Return what a LineReader reads of a pair: the inputs behind its first tokens."""
    source, target = pair
    inputs = [bos, *target[:-1]][start.length :]
    return NewTokens(sources.row[source], inputs, start.positions[: start.length])

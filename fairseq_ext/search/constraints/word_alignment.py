"""Which word a source term has become: attention, forced decoding, and a term put in its place.

Attention: the word whose prediction attends to the term, by the cross-attention of all layers and
heads on average: no layer is to be chosen. A step that predicts an article or an adjective looks
ahead to the noun: of neighbours that attend about as much, it is the last. Where that is not sure,
or the model has none, prediction difference:

    X. Li, G. Li, L. Liu, M. Meng and S. Shi. On the Word Alignment from Neural Machine Translation.
    ACL 2019. https://aclanthology.org/P19-1124/
    Section 4.2, without their sampling: the source word is left out.

The word whose log-probability falls most without the term in the source is its translation. A drop
below `DROP` says that the translation has no word for the term, or one that the other words give
away.

A weak model attends to the term in several steps. A word that is nearly the term itself ("priority"
for "priorities") counts twice.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from os.path import commonprefix
from typing import Any, cast

import torch
from torch import Tensor

from fairseq_ext.core.stats import Stats
from fairseq_ext.core.words import is_word, starts_of, words_of
from fairseq_ext.model.protocol import AttendingDecoder, BlockDecoder
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.pieces import folded
from fairseq_ext.search.phrases.places import Span, overlapping
from fairseq_ext.search.phrases.sentence import Dictionary, SentenceConstraints, SourceTerm

SEARCHED = 5  # hypotheses that are searched for a word where the best has none
ATTENDED = 0.25  # least attention to a term's tokens, of 1
AHEAD = 0.5  # of the most attention: with so much of it, a word behind that one is the term's
DROP = 0.5  # nats
WITH_UNKNOWN = re.compile(r"\w*(?:<unk>\w*)+")  # a word with unknown pieces


class WordAlignment:
    """The words of a translation that stand for mentions of source terms, no word for two.

    text: in NFKC; spans: characters of each token; forms: the target forms of each mention's term.
    """

    def __init__(self, text: str, spans: Sequence[Span], forms: Sequence[Sequence[str]]):
        self.text, self.words = text, word_spans(text)
        self.tokens = [overlapping(spans, *word) for word in self.words]
        self.found: list[Span | None] = [None] * len(forms)
        own = [{word for form in each for word in words_of(folded(form))} for each in forms]
        self.weights = [
            [1.0 + is_akin(folded(text[slice(*word)]), each) for word in self.words] for each in own
        ]

    @property
    def unsure(self) -> list[int]:
        """The mentions that have no word."""
        return [mention for mention, word in enumerate(self.found) if word is None]

    def attend_(self, attention: Sequence[Tensor]) -> None:
        """Find words by the attention (L,) to each mention's tokens."""
        scores = {
            m: [float(weights[of].mean()) if of else 0.0 for of in self.tokens]
            for m, weights in enumerate(attention)
        }
        self.take_(scores, ATTENDED, AHEAD)

    def differ_(self, drops: dict[int, Tensor]) -> None:
        """Find words by how far each token's log-probability falls without a mention (L,)."""
        self.take_(
            {
                m: [float(drop[of].sum()) if of else 0.0 for of in self.tokens]
                for m, drop in drops.items()
            },
            DROP,
        )

    def take_(self, scores: dict[int, list[float]], least: float, ahead: float = 2.0) -> None:
        """Give these mentions the free words that score best for them, if that is enough;
        the next one where it has this share of the score (above 1: never). The surest
        mention chooses first."""
        scores = {
            m: [score * weight for score, weight in zip(each, self.weights[m], strict=True)]
            for m, each in scores.items()
        }
        for mention in sorted(scores, key=lambda mention: -max(scores[mention], default=0.0)):
            free = [word for word, span in enumerate(self.words) if span not in self.found]
            best = max(free, key=scores[mention].__getitem__, default=None)
            if best is not None and (most := scores[mention][best]) >= least:
                while (
                    best + 1 in free
                    and scores[mention][best + 1] >= ahead * most
                    and self.leads_on(best, self.weights[mention])
                ):
                    best += 1
                self.found[mention] = self.words[best]

    def leads_on(self, word: int, weights: Sequence[float]) -> bool:
        """Whether a word may look ahead to the next: only space is between them ("cars, while" is
        no article and its noun), and the next counts as much."""
        return (
            weights[word + 1] >= weights[word]
            and self.text[self.words[word][1] : self.words[word + 1][0]].isspace()
        )


def word_spans(text: str) -> list[Span]:
    """Where the words of a text in NFKC stand, punctuation left out; an unknown piece is a part of
    its word (1<unk>2)."""
    unknown = [found.span() for found in WITH_UNKNOWN.finditer(text)]
    words = words_of(text)
    known = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
        if is_word(word) and not any(first <= start < end for first, end in unknown)
    ]
    return sorted(known + unknown)


def is_akin(word: str, others: Collection[str]) -> bool:
    """Whether a word and one of others, all in lower case, begin alike and differ in three
    letters at the end at most."""
    return any(
        len(commonprefix([word, other])) >= max(5, len(word) - 3, len(other) - 3)
        for other in others
    )


def without(source: Sequence[int], places: Sequence[int]) -> list[int]:
    """A source without the tokens at these places."""
    left_out = set(places)
    return [token for place, token in enumerate(source) if place not in left_out]


# ---- Forced decoding (teacher forcing)
#
# The log-probabilities of given target tokens, and the source tokens that the decoder attends to
# when it predicts them; many sentences in one call of the decoder.
#
# Shapes: N pairs, T source tokens of the longest, L target tokens of the longest.


Pair = tuple[int, Sequence[int]]  # the number of a source, and target tokens, EOS included
TOKENS = 2000  # most target tokens of one call, padding included
# on a CPU, where padding costs as much as tokens: the longest pair of a call has so many
# times those of the shortest
ALIKE = 1.1
SCORES = 50_000_000  # most log-probabilities of one call, target tokens x vocabulary: 200 MB


@dataclass
class Sources:
    """Encoded sources."""

    group: Any  # the decoder's, a row each, longest first
    lengths: list[int]  # EOS included
    row: list[int]  # of each source
    device: torch.device


class ForcedDecoding:
    """Reads pairs by a decoder's models.

    attends: whether the decoder is an AttendingDecoder; left_pad: whether sources
    are padded in front; temperature: the search's, which log-probabilities are of.
    """

    def __init__(
        self,
        decoder: BlockDecoder,
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
        """Keep what the search's encoders make of these sources, until it is forgotten."""
        if not self.attends:
            yield
            return
        kept = cast(AttendingDecoder, self.decoder).encoder_cache
        try:
            kept.update({tuple(source): {} for source in sources})
            yield
        finally:
            kept.clear()

    def forget(self, sources: Iterable[Sequence[int]]) -> None:
        """Keep nothing more of these sources."""
        for source in sources if self.attends else ():
            cast(AttendingDecoder, self.decoder).encoder_cache.pop(tuple(source), None)

    @torch.no_grad()
    def encode(self, sources: Sequence[Sequence[int]], device: torch.device) -> Sources:
        """The sources (tokens, EOS included) in one call of the encoders."""
        order = sorted(range(len(sources)), key=lambda i: -len(sources[i]))  # an LSTM insists on it
        lengths = [len(source) for source in sources]
        padded = self.padded([sources[i] for i in order], self.left_pad, device)
        self.decoder.admit(
            {
                "src_tokens": padded,
                "src_lengths": torch.tensor([lengths[i] for i in order], device=device),
            }
        )
        self.stats.encoder_calls += 1
        return Sources(
            self.decoder.set_aside(),
            lengths,
            sorted(range(len(order)), key=order.__getitem__),
            device,
        )

    def log_probs(
        self, sources: Sources, pairs: Sequence[Pair], bos: int, known: Sequence[Tensor] = ()
    ) -> list[Tensor]:
        """The log-probabilities (L,) of each pair's target tokens; bos: the first input of the
        decoder; known: those of each pair's first tokens, which are then not asked for."""

        def reader(inputs: Tensor, target: Tensor, numbers: Sequence[int]) -> Tensor:
            features = self.decoder.step(inputs, inputs.size(1))
            out, is_asked = torch.zeros(target.shape, device=target.device), target.ne(self.pad)
            for row, i in enumerate(numbers if known else ()):
                out[row, : len(known[i])] = known[i]
                is_asked[row, : len(known[i])] = False
            if not bool(is_asked.any()):
                return out
            # (those asked for, V)
            scores = self.decoder.log_probs(
                [x.reshape(-1, x.size(-1))[is_asked.flatten()] for x in features],
                self.temperature,
            )
            out[is_asked] = scores.gather(1, target[is_asked][:, None])[:, 0].float()
            return out

        return [
            row[: len(target)]
            for row, (_, target) in zip(self.read(reader, sources, pairs, bos), pairs, strict=True)
        ]

    def attention(self, sources: Sources, pairs: Sequence[Pair], bos: int) -> list[Tensor]:
        """The attention (L, T) to each pair's source in the steps that predict its target tokens,
        as the decoder averages it."""
        decoder = cast(AttendingDecoder, self.decoder)
        read = self.read(
            lambda inputs, *others: decoder.source_attention(inputs), sources, pairs, bos
        )
        out = []
        for row, (source, target) in zip(read, pairs, strict=True):
            length = sources.lengths[source]
            out.append(
                row[: len(target), -length:] if self.left_pad else row[: len(target), :length]
            )
        return out

    @torch.no_grad()
    def read(
        self,
        reader: Callable[[Tensor, Tensor, Sequence[int]], Tensor],
        sources: Sources,
        pairs: Sequence[Pair],
        bos: int,
    ) -> list[Tensor]:
        """What a reader says of the inputs (N, L) and the target (N, L) of some pairs, padded, and
        of their numbers, on the CPU."""
        out: list[Tensor] = [torch.empty(0)] * len(pairs)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][1]))
        while order:
            lengths = [len(pairs[i][1]) for i in order]
            longest = lengths[0] * ALIKE + 1 if sources.device.type == "cpu" else self.tokens
            fits = (
                n * length <= self.tokens and length <= longest
                for n, length in enumerate(lengths, 1)
            )
            count = max(1, sum(itertools.takewhile(bool, fits)))
            numbers, order = (
                sorted(order[:count], key=lambda i: sources.row[pairs[i][0]]),
                order[count:],
            )
            row = torch.tensor([sources.row[pairs[i][0]] for i in numbers], device=sources.device)
            sentence, of_row = row.unique(return_inverse=True)
            self.decoder.resume(sources.group)
            part = self.decoder.part(row, sentence, int(sentence.numel() == row.numel()), of_row)
            self.decoder.set_aside()
            self.decoder.resume(part)
            target = self.padded([pairs[i][1] for i in numbers], False, sources.device)  # (N, L)
            inputs = torch.cat([torch.full_like(target[:, :1], bos), target[:, :-1]], dim=1)
            self.stats.count_step(*target.shape)
            for i, each in zip(numbers, reader(inputs, target, numbers).cpu(), strict=True):
                out[i] = each
            self.decoder.set_aside()
        return out

    def padded(self, rows: Sequence[Sequence[int]], left: bool, device: torch.device) -> Tensor:
        """Rows of tokens as one tensor."""
        width = max(map(len, rows))
        filled = [
            [self.pad] * (width - len(r)) + list(r)
            if left
            else [*r, *[self.pad] * (width - len(r))]
            for r in rows
        ]
        return torch.tensor(filled, device=device)


def widened(text: str, span: Span, term: str, taken: list[Span]) -> Span:
    """The span with the neighbouring words that the term itself contains ("electric guitar" for the
    term "six-string guitar"). An empty span, where a term is inserted, takes none in."""
    if span[0] == span[1]:
        return span
    words, own = words_of(text), {folded(word) for word in words_of(term)}
    spans = [
        (start, start + len(word))
        for start, word in zip(starts_of(text, words), words, strict=True)
    ]
    start, end = span
    for first, behind in [
        *reversed([each for each in spans if each[1] <= start]),
        *[each for each in spans if each[0] >= end],
    ]:
        is_free = all(behind <= other[0] or first >= other[1] for other in taken if other != span)
        is_near = text[behind:start].isspace() if behind <= start else text[end:first].isspace()
        if is_near and is_free and folded(text[first:behind]) in own:
            start, end = min(start, first), max(end, behind)
    return start, end


@dataclass(eq=False)
class Candidate:
    """A hypothesis of the draft, and what becomes of it."""

    draft: Hypothesis
    tokens: list[int]  # what follows the tokens that the command forces (a language, a prompt)
    text: str  # of these, in NFKC
    held: list[bool]  # whether it has each term already
    words: WordAlignment | None = None  # of each mention; None: not aligned yet
    spans: list[Span] = field(default_factory=list)  # of its tokens in the text, once aligned
    # where terms go that have no word: an empty span
    inserted: dict[SourceTerm, Span] = field(default_factory=dict)
    # with its terms, one for each choice of forms: by their worth
    finals: list[tuple[float, Hypothesis]] = field(default_factory=list)

    def place(self, term: SourceTerm, first: int) -> Span | None:
        """The word of a term whose mentions are numbered from `first`: of the first
        mention that has one."""
        assert self.words is not None
        return next(
            filter(None, self.words.found[first : first + len(term.mentions)]),
            self.inserted.get(term),
        )


@dataclass(eq=False)
class Sentence:
    """A sentence of the pool and its candidates, best draft first."""

    number: int
    constraints: SentenceConstraints
    candidates: list[Candidate]
    nbest: int
    mentions: list[tuple[int, ...]] = field(default_factory=list)
    # terms that the search has brought in, since a first draft had no word for them
    required: tuple[SourceTerm, ...] = ()
    source: int = -1  # its number among the encoded sources

    def places(self, candidate: Candidate) -> list[tuple[SourceTerm, Span | None]]:
        """The terms that a candidate lacks, and the word of each."""
        firsts = itertools.accumulate(
            (len(term.mentions) for term in self.constraints.terms), initial=0
        )
        each = zip(self.constraints.terms, candidate.held, firsts, strict=False)
        return [
            (term, candidate.place(term, first)) for term, is_held, first in each if not is_held
        ]

    def open(self, first: int) -> list[Candidate]:
        """Those of the first candidates that lack a term."""
        return [each for each in self.candidates[:first] if not all(each.held)]

    def rank(self, place: int) -> int:
        """0 for the best candidate, 1 for those that are searched where it lacks a word, 2 for
        others: so that the answer does not depend on how many hypotheses are asked for."""
        return 1 + (place >= SEARCHED) if place else 0

    @property
    def forms(self) -> list[tuple[str, ...]]:
        """The target forms of each mention's term."""
        return [term.targets for term in self.constraints.terms for _ in term.mentions]

    @property
    def wordless(self) -> tuple[SourceTerm, ...]:
        """The terms for which the best draft has no word, but for those that the
        search was to bring in."""
        places = [] if self.candidates[0].words is None else self.places(self.candidates[0])
        return tuple(term for term, word in places if word is None and term not in self.required)

    def lacks(self, rank: int) -> bool:
        """Whether no candidate of this rank or a better one is complete."""
        return not any(
            self.is_complete(candidate)
            for i, candidate in enumerate(self.candidates)
            if self.rank(i) <= rank
        )

    def is_complete(self, candidate: Candidate) -> bool:
        """Whether a candidate has each term, or a word in whose place it can stand."""
        return all(candidate.held) or (
            candidate.words is not None
            and all(word is not None for _, word in self.places(candidate))
        )


def is_english(language: str | None) -> bool:
    """Whether a code, such as en, en_XX or eng_Latn, is one of English."""
    return (language or "").lower().startswith("en")

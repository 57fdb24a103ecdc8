"""Alignment of the words of a translation with those of its source, by cross-attention.

It is found as in search/constraints/word_alignment.py: of each target word, the source word that
the model attends to most when it writes it, on the average of all layers and heads (`assigned`).
All words of a placed glossary term stand for one word of its source term, and no other word stands
for that: the model that reads a term may attend to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import SequenceMatcher
from unicodedata import normalize

import torch
from torch import Tensor

from fairseq_ext.core.words import is_word
from fairseq_ext.plugin.calls import SearchingModel, pool_without_constraints
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.phrases.pieces import normal
from fairseq_ext.search.phrases.places import Span, Text, overlapping, token_spans
from fairseq_ext.search.report import Translation
from fairseq_ext.search.request import Request
from fairseq_ext.text.units import WITH_NEGATIONS

Pairs = list[tuple[Span, Span]]  # characters of the source, and of the translation
LEAST, YIELDS = 0.1, 0.5  # attention to a word, of 1; and to a free one, of that to the best


class Aligner:
    """The words of translations and their sources. translator: a LoadedModel with a generator."""

    def __init__(self, translator: SearchingModel):
        self.translator = translator
        generator = translator.generator
        decoder = generator.made_decoder.attending_copy()
        left_pad = generator.settings.command.left_pad_source
        dictionary = generator.target_text.segmenter().dictionary
        self.attention = (
            None
            if decoder is None
            else ForcedDecoding(decoder, True, dictionary, left_pad, generator.stats)
        )

    def pairs(
        self, sources: Sequence[str], hypotheses: Sequence[Translation]
    ) -> list[Pairs | None]:
        """Return the pairs of words of each translation; None if the model has no attention."""
        if self.attention is None:
            return [None] * len(sources)
        translator, reading = self.translator, self.attention
        device = torch.device("cuda" if translator.cuda else "cpu")
        out: list[Pairs | None] = [[] for _ in sources]
        full = [i for i, each in enumerate(hypotheses) if each.tokens]
        if not full:
            return out
        generator = translator.generator
        dictionary, eos = generator.target_text.segmenter().dictionary, generator.setup.eos
        encoded = [translator.encode(sources[i]) for i in full]
        requests = [Request(tokens=each) for each in encoded]
        # its sentences have the tokens of languages
        pool, order = pool_without_constraints(translator, requests)
        places = sorted(range(len(full)), key=order.__getitem__)
        tokens = [pool.source(place).tolist() for place in places]
        lead = [
            pool.forced(place)[: None if pool.lead is None else pool.lead[place]]
            for place in places
        ]
        targets = [
            [*before, *map(dictionary.index, hypotheses[i].tokens), eos]
            for i, before in zip(full, lead, strict=True)
        ]
        found = reading.attention(
            reading.encode(tokens, device), list(enumerate(targets)), pool.bos
        )
        for i, weights, before, whole, text in zip(full, found, lead, tokens, encoded, strict=True):
            first = whole.index(int(text[0]))
            out[i] = self.of_sentence(
                sources[i], hypotheses[i], weights[len(before) :, first:].float(), first
            )
        return out

    def of_sentence(
        self, source: str, hypothesis: Translation, weights: Tensor, first: int
    ) -> Pairs:
        """Return the pairs of one translation, from the attention (L, T) of its tokens, ends
        included. first: the number of tokens that stand before the source's own."""
        pieces = self.translator.pieces(source, self.translator.bpe)
        sources = self.known_words(source, pieces)
        targets = self.known_words(hypothesis.text, hypothesis.tokens)
        if not sources or not targets:
            return []
        table = torch.stack([weights[of].mean(0) for _, of in targets])  # (targets, T)
        table = torch.stack([table[:, of].sum(1) for _, of in sources], dim=1)  # (targets, sources)
        best = list[tuple[list[int], int]]()  # the words of each term, and their source word
        of_terms = set[int]()
        for words, tokens in placed_terms(hypothesis, [span for span, _ in targets]):
            own = [
                i
                for i, (_, of) in enumerate(sources)
                if not tokens.isdisjoint(token + first for token in of)
            ]
            if own:
                best.append((words, max(own, key=table[words].sum(0).tolist().__getitem__)))
                of_terms.update(own)
        table[:, sorted(of_terms)] = 0.0
        for words, column in best:
            table[words] = 0.0
            table[words, column] = 1.0
        return [
            (sources[column][0], span)
            for (span, _), column in zip(targets, assigned(table), strict=True)
            if column >= 0
        ]

    def known_words(self, text: str, pieces: Sequence[str]) -> list[tuple[Span, list[int]]]:
        """Return the words of a text that have pieces, with the places of these."""
        words = words_in(text, pieces, self.text_of)
        return [(span, of) for span, of in words if of and is_word(text[slice(*span)])]

    def text_of(self, pieces: Sequence[str]) -> str:
        """Pieces as text."""
        return self.translator.decode(" ".join(pieces))


def placed_terms(
    hypothesis: Translation, words: Sequence[Span]
) -> list[tuple[list[int], set[int]]]:
    """Return the words of each placed term of a translation by their numbers, and the source tokens
    of the term's mentions. words: of the translation, by their characters."""
    text, found, taken = Text(hypothesis.text, False), [], set[int]()
    forms = [
        (normal(form), each.term)
        for each in dict.fromkeys(hypothesis.placements)
        if each.term is not None and each.placed_by not in ("left", "compound")
        for form in (*each.term.targets, each.other_form)
        if form
    ]
    for form, term in sorted(forms, key=lambda each: -len(each[0])):
        for start, end in text.places(form, term.case):
            inside = [i for i, word in enumerate(words) if word[0] < end and start < word[1]]
            if inside and taken.isdisjoint(inside):
                taken.update(inside)
                found.append((inside, {token for of in term.mentions for token in of}))
    return found


def assigned(table: Tensor) -> list[int]:
    """Return the source word of each target word, -1 for none, by attention (target, source).

    The surest word chooses first. A source word that has been chosen yields to a free
    one that is attended to nearly as much: "the" is written with an eye on its noun, and
    stands for the article.
    """
    best, taken = table.max(1).values.tolist(), set[int]()
    found = [-1] * len(best)
    for row in sorted(range(len(best)), key=lambda row: -best[row]):
        order = table[row].argsort(descending=True).tolist()
        free = next((column for column in order if column not in taken), order[0])
        column = free if float(table[row][free]) >= YIELDS * best[row] else order[0]
        if best[row] >= LEAST:
            found[row] = column
            taken.add(column)
    return found


def words_in(
    text: str, pieces: Sequence[str], decode: Callable[[Sequence[str]], str]
) -> list[tuple[Span, list[int]]]:
    """Return the words of a text with the places of their pieces; the pieces' own text may be
    normalised otherwise."""
    spans = [match.span() for match in WITH_NEGATIONS.finditer(text)]
    read = normalize("NFKC", decode(pieces)).rstrip()
    there = [match.span() for match in WITH_NEGATIONS.finditer(read)]
    of_pieces = token_spans(pieces, decode)  # type: ignore[arg-type]
    both = (
        [normalize("NFKC", text[slice(*span)]) for span in spans],
        [read[slice(*span)] for span in there],
    )
    found: list[list[int]] = [[] for _ in spans]
    blocks = (
        [(0, 0, len(spans))]
        if both[0] == both[1]
        else SequenceMatcher(None, *both, autojunk=False).get_matching_blocks()
    )
    for ours, theirs, size in blocks:
        for i in range(size):
            found[ours + i] = overlapping(of_pieces, *there[theirs + i])
    return list(zip(spans, found, strict=True))

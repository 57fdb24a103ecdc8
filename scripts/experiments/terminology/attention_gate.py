"""Attention-gated placement next to --select dba: a term is proposed only while the model
attends to its source span.

    E. Hasler, A. de Gispert, G. Iglesias and B. Byrne. Neural Machine Translation Decoding with
    Terminology Constraints. NAACL 2018. https://arxiv.org/abs/1805.03750: the guided decoding with
    attention; its stacks are the banks of dba here.

A row may begin a phrase where the attention of the step (last layer, averaged over heads) gives the
phrase's source span LEAST or more. A row that would end, or write final punctuation, and that has
never attended to a span so far may begin its phrase there: alignments miss words. What the model
begins by itself, among its best continuations, is not held back, and a row with no steps to spare
is DBA's. It is an experiment and no strategy: on the texts measured it loses BLEU and takes more
rows (results/tables.md).

Shapes: n rows, S live sentences of c rows, G phrases of a sentence at most, T source columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from fairseq_ext.core.words import Matcher, starts_of, words_of
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.candidates import Candidates
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import PhraseTable
from fairseq_ext.search.phrases.sentence_ends import end_tokens
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.terms.cases import Term
from fairseq_ext.translator import Translator

LEAST = 0.1  # of the attention
Spans = list[list[tuple[int, int]]]  # of each phrase: source tokens [first, end)


class GatedTable(PhraseTable):
    """A table that proposes no phrase behind a closed gate."""

    is_open: Tensor  # (S, c, G)

    @classmethod
    def of_table(cls, table: PhraseTable, is_open: Tensor) -> GatedTable:
        """The same phrases behind a gate."""
        gated = cls(**{field.name: getattr(table, field.name) for field in fields(PhraseTable)})
        gated.is_open = is_open
        return gated

    def next_token(self, state: Tensor, count: Tensor) -> Tensor:
        """As in PhraseTable, -1 too for a phrase that has not begun and whose gate is closed."""
        wanted = super().next_token(state, count).unflatten(2, (state.size(2), -1))  # (S, c, G, W)
        begun = self.value[self.meet_pending(state, count, None)[0]] > 0
        return wanted.masked_fill(~(self.is_open | begun)[..., None], -1).flatten(2)


class AttentionGate(DBA):
    """The select strategy.

    spans: by the number of a sentence; final (V,): tokens that end a sentence.
    """

    may_compile = False

    def __init__(self, like: DBA, spans: dict[int, Spans], final: Tensor, least: float = LEAST):
        super().__init__(like.k, like.eos, like.vocabulary, like.children, like.even)
        self.spans, self.final, self.least = spans, final, least
        self.is_open = torch.ones(0)

    def __call__(self, beam: Beam, log_probs: LogProbs, pool: Pool) -> Candidates:
        # (n,); before EOS is forbidden to rows that lack something
        would_end = self.final[log_probs.topk(1)[1][:, 0]]
        span, known = self.spans_of(beam, pool)
        sentence = beam.sentence_of_row()
        assert beam.attention is not None
        attended = (
            torch.einsum(
                "nlt,ngt->nlg",
                beam.attention.weights,
                span[sentence].to(beam.attention.weights.dtype),
            )
            >= self.least
        )
        is_open = attended[:, -1] | (would_end[:, None] & ~attended.any(1)) | ~known[sentence]
        self.is_open = beam.by_sentence(is_open, True)
        return super().__call__(beam, log_probs, pool)

    def continuations(
        self,
        k: int,
        beam: Beam,
        log_probs: LogProbs,
        phrases: PhraseTable,
        state: Tensor,
        count: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        return super().continuations(
            k, beam, log_probs, GatedTable.of_table(phrases, self.is_open), state, count
        )

    def spans_of(self, beam: Beam, pool: Pool) -> tuple[Tensor, Tensor]:
        """The source columns (S, G, T) of each phrase, and which phrases have any (S, G)."""
        source = pool.net_input["src_tokens"]
        span = torch.zeros(
            len(beam.live),
            self.tables(pool).phrases.start.size(1),
            source.size(1),
            dtype=torch.bool,
        )
        for i, s in enumerate(beam.live):
            first = int((source[s] != pool.pad).nonzero()[0])  # padding stands in front
            for g, places in enumerate(self.spans.get(int(pool.ids[s]), [])):
                for begin, end in places:
                    span[i, g, first + begin : first + end] = True
        return span, span.any(2)


def find_spans(translator: Translator, source: str, terms: Sequence[Term]) -> Spans:
    """Where a source has each of its different terms, in tokens; nowhere for a term that is not
    found as it is written in any case."""
    pieces = translator.bpe.encode(source).split() if translator.bpe is not None else source.split()
    ends = [len(translator.decode(" ".join(pieces[: i + 1]))) for i in range(len(pieces))]
    text = translator.decode(" ".join(pieces))
    words = words_of(text)
    starts = starts_of(text, words)
    numbers: dict[frozenset[str], int] = {}  # phrases that require the same are one to the search
    found: Spans = []
    for term in terms:
        number = numbers.setdefault(frozenset(term.targets), len(found))
        if number == len(found):
            found.append([])
        matcher = Matcher("casefold")
        matcher.add(words_of(term.source), 0)
        for match in matcher.matches(words)[:1]:
            begin, end = starts[match.start], starts[match.end - 1] + len(words[match.end - 1])
            inside = [
                i for i, stop in enumerate(ends) if stop > begin and (ends[i - 1] if i else 0) < end
            ]
            found[number].append((inside[0], inside[-1] + 1))
    return found


def gated_translator(
    flags: dict[str, Any], sources: Sequence[str], terms: Sequence[Sequence[Term]]
) -> Translator:
    """A Translator of these flags whose dba is gated; it translates these sources, in one call."""
    # the alignment makes the decoder keep attention
    translator = Translator(**flags, constraints="unordered", print_alignment="hard")
    strategies = translator.generator.setup.strategies
    dictionary = translator.task.target_dictionary
    final = end_tokens(dictionary, translator.bpe).final.clone()
    final[dictionary.eos()] = True
    spans = {
        number: find_spans(translator, *each)
        for number, each in enumerate(zip(sources, terms, strict=True))
    }
    strategies.select = AttentionGate(strategies.select, spans, final)
    return translator

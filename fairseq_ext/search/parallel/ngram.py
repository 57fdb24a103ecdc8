"""Draft tokens from an n-gram table (`--draft ngram`), weighted by how likely the source sentence translates to them.

After the last two tokens h the table lists the K likeliest next words with p(e | h), estimated on target-side text (interpolated
Witten-Bell, down to the word alone). Where it was built from parallel text it also holds t(e | f) of IBM model 1, and the draft is

    argmax_e p(e | h) x (sum_f t(e | f) / source length + eps)^lambda / (p(e) + eps)^lambda

The factor of a word falls once it has been translated, so that the next draft offers another word. table.py reads the table; a
sentence alone runs the compiled twin (kernels/parallel.cpp).

Shapes: N sentences, n live rows, K listed words, V target vocabulary.
"""

from __future__ import annotations

import numpy as np

from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledDrafter, CompiledTable
from fairseq_ext.search.parallel.drafter import Draft, Drafter
from fairseq_ext.search.parallel.rows import NONE, Rows
from fairseq_ext.search.parallel.table import Table
from fairseq_ext.search.pool import Pool

LAMBDA = 1.5
EPS = 1e-3
COVERED = 0.2  # what is left of a word's factor when it has been translated


class Ngram(Drafter):
    """Drafts from a table."""

    def __init__(self, table: Table, pad: int, source_pad: int):
        """pad: the target's, which stands before the first token."""
        self.table = table
        self.pad = pad
        self.source_pad = source_pad
        self.V = len(table.unigram)
        # a last row for histories that the text does not hold
        self.token = np.concatenate([table.token, table.any_token[None]]).astype(np.int64)
        self.prob = np.concatenate([table.prob, table.unigram[table.any_token][None].astype(np.float16)]).astype(np.float32)
        self.key = table.key
        self.factor: np.ndarray | None = None  # (slots x V,); only of sentences that have been drafted: a stream's pool has thousands
        self.floor = (EPS / (table.unigram + EPS)) ** LAMBDA  # of a word that translates no source word
        self.compiled_table = self.compile() if library() is not None else None

    def compile(self) -> CompiledTable:
        table = self.table
        arrays = dict(key=self.key, token=self.token, prob=self.prob, floor=self.floor, unigram=table.unigram)
        if table.lexical_start.size:
            names = ("lexical_start", "lexical_token", "lexical_prob")
            arrays |= {name: getattr(table, name) for name in names}
        numbers = dict(source_vocabulary=len(table.lexical_start) - 1, source_pad=self.source_pad, covered=COVERED, eps=EPS)
        return CompiledTable(arrays, numbers | {"lambda": LAMBDA})

    def start(self, pool: Pool) -> None:
        if self.table.lexical_start.size:
            self.source = pool.net_input["src_tokens"].cpu().numpy()
            self.length = np.maximum(pool.length.cpu().numpy(), 1)
            self.told = np.zeros(len(pool), np.int64)  # verified tokens of each sentence that the factors know of
            self.slot = np.full(len(pool), NONE)  # of each sentence in `factor`
            self.factor = np.zeros(0, np.float32)

    def know_(self, live: np.ndarray) -> None:
        """Give these sentences (n,) slots; others lose theirs when a new one comes."""
        old = self.slot[live]
        fresh = live[old == NONE]
        if not len(fresh):
            return
        assert self.factor is not None
        factor, kept = self.factors(fresh), live[old != NONE]
        if len(kept):
            factor = np.concatenate([self.factor.reshape(-1, self.V)[old[old != NONE]].ravel(), factor])
        self.factor = factor
        self.slot[:] = NONE
        self.told[fresh] = 0
        self.slot[np.concatenate([kept, fresh])] = np.arange(len(live))

    def factors(self, sentences: np.ndarray) -> np.ndarray:
        """(n x V,) each word's factor in each of the sentences (n,): how much likelier it is a translation there than by chance."""
        table = self.table
        tokens, lengths = self.source[sentences], self.length[sentences]
        sentence, place = ((tokens != self.source_pad) & (tokens < len(table.lexical_start) - 1)).nonzero()
        word = tokens[sentence, place]
        first, count = table.lexical_start[word], np.diff(table.lexical_start)[word]
        entry = np.repeat(first - (count.cumsum() - count), count) + np.arange(count.sum())  # each word's entries in turn
        target = np.repeat(sentence, count) * self.V + table.lexical_token[entry]
        spoken, which = np.unique(target, return_inverse=True)  # few of all words, so the power is taken of few
        lexical = np.bincount(which, table.lexical_prob[entry], len(spoken))
        length = lengths[spoken // self.V]
        factor = np.tile(self.floor, len(tokens))
        factor[spoken] = ((lexical / length + EPS) / (table.unigram[spoken % self.V] + EPS)) ** LAMBDA
        return factor

    def cover_(self, rows: Rows) -> None:
        """Lower the factors of newly verified tokens."""
        assert self.factor is not None
        fresh = rows.length - self.told[rows.live]
        for back in range(int(fresh.max()), 0, -1):
            row = (fresh >= back).nonzero()[0]
            token = rows.tokens[row, rows.length[row] + 1 - back]
            at = self.slot[rows.live[row]] * self.V + token
            self.factor[at] = np.maximum(self.factor[at] * COVERED, self.floor[token])
        self.told[rows.live] = rows.length

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        n = len(rows)
        if self.factor is not None:
            self.know_(rows.live)
            self.cover_(rows)
            base = (self.slot[rows.live] * self.V)[:, None]
        history = rows.last(2)
        before, last = history[:, 0], history[:, 1]
        before = np.where(before == NONE, self.pad, before)
        every, likely = np.arange(n), np.ones(n)
        tokens: list[np.ndarray] = []
        confidence: list[np.ndarray] = []
        while len(tokens) < most:
            listed = self.find(before, last)
            word, weight = self.token[listed], self.prob[listed]  # (n, K)
            if self.factor is not None:
                factor = self.factor[base + word]
                for drafted in tokens:
                    factor = np.where(word == drafted[:, None], factor * COVERED, factor)
                weight = weight * factor
            best = weight.argmax(1)
            sure = weight[every, best] / weight.sum(1)
            likely = likely * sure
            if likely.mean() < least:
                break
            before, last = last, word[every, best]
            tokens.append(last)
            confidence.append(sure)
        if not tokens:
            return np.zeros((n, 0), np.int64), np.zeros((n, 0))
        return np.stack(tokens, 1), np.stack(confidence, 1)

    def compiled(self, sentence: int) -> CompiledDrafter | None:
        table = self.compiled_table
        if table is None:
            return None
        has_source = self.table.lexical_start.size > 0
        return table.drafter(table.factors(self.source[sentence], int(self.length[sentence])) if has_source else None, self.pad)

    def find(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """(n,) the entry of each history: of both tokens, else of the last, else of none."""
        both = before * self.V + last
        place = self.key.searchsorted(both)
        alone = self.V * self.V + last
        shorter = self.key.searchsorted(alone)
        end = len(self.key)
        shorter = np.where(self.key[np.minimum(shorter, end - 1)] == alone, shorter, end)
        return np.where(self.key[np.minimum(place, end - 1)] == both, place, shorter)

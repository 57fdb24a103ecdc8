"""Draft tokens from an n-gram table (`--draft ngram`), and the file of the table.

They are weighted by the probability that the source sentence translates to them. The table lists
the K likeliest next words after the last two tokens h with p(e | h), estimated on target-side text
(interpolated Witten-Bell, down to the word alone). If it was built from parallel text it also has
t(e | f) of IBM model 1, and the draft is

    argmax_e p(e | h) x (sum_f t(e | f) / source length + eps)^lambda / (p(e) + eps)^lambda

The factor of a word is lowered once it has been translated, so that the next draft has another
word. `Table` reads the table; a single sentence runs the compiled twin (kernels/parallel.cpp).

Shapes: N sentences, n live rows, K listed words, V target vocabulary.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from fairseq_ext.core import array_file
from fairseq_ext.core.array_file import DamagedFile
from fairseq_ext.core.errors import UsageError
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledDrafter, CompiledTable
from fairseq_ext.search.parallel.blocks import NONE, Rows
from fairseq_ext.search.parallel.drafts import Draft, Drafter
from fairseq_ext.search.pool import Pool

LAMBDA = 1.5
EPS = 1e-3
COVERED = 0.2  # a word's factor is multiplied by this when it has been translated


class Ngram(Drafter):
    """Drafts from a table."""

    def __init__(self, table: Table, pad: int, source_pad: int):
        """pad: the target's, which is before the first token."""
        self.table = table
        self.pad = pad
        self.source_pad = source_pad
        self.V = len(table.unigram)
        # a last row for histories that are not in the text
        self.token = np.concatenate([table.token, table.any_token[None]]).astype(np.int64)
        self.prob = np.concatenate(
            [table.prob, table.unigram[table.any_token][None].astype(np.float16)]
        ).astype(np.float32)
        self.key = table.key
        # (slots x V,); only for sentences that have been drafted: a stream's pool has thousands
        self.factor: np.ndarray | None = None
        # factor of a word that translates no source word
        self.floor = (EPS / (table.unigram + EPS)) ** LAMBDA
        self.compiled_table = self.compile() if library() is not None else None

    def compile(self) -> CompiledTable:
        table = self.table
        arrays = dict(
            key=self.key, token=self.token, prob=self.prob, floor=self.floor, unigram=table.unigram
        )
        if table.lexical_start.size:
            names = ("lexical_start", "lexical_token", "lexical_prob")
            arrays |= {name: getattr(table, name) for name in names}
        numbers = dict(
            source_vocabulary=len(table.lexical_start) - 1,
            source_pad=self.source_pad,
            covered=COVERED,
            eps=EPS,
        )
        return CompiledTable(arrays, numbers | {"lambda": LAMBDA})

    def start(self, pool: Pool) -> None:
        if self.table.lexical_start.size:
            self.source = pool.net_input["src_tokens"].cpu().numpy()
            self.length = np.maximum(pool.length.cpu().numpy(), 1)
            # number of each sentence's verified tokens that the factors account for
            self.covered_length = np.zeros(len(pool), np.int64)
            self.slot = np.full(len(pool), NONE)  # of each sentence in `factor`
            self.factor = np.zeros(0, np.float32)

    def assign_slots_(self, live: np.ndarray) -> None:
        """Give these sentences (n,) slots; others lose theirs if a new one needs them."""
        old = self.slot[live]
        fresh = live[old == NONE]
        if not len(fresh):
            return
        assert self.factor is not None
        factor, kept = self.factors(fresh), live[old != NONE]
        if len(kept):
            factor = np.concatenate(
                [self.factor.reshape(-1, self.V)[old[old != NONE]].ravel(), factor]
            )
        self.factor = factor
        self.slot[:] = NONE
        self.covered_length[fresh] = 0
        self.slot[np.concatenate([kept, fresh])] = np.arange(len(live))

    def factors(self, sentences: np.ndarray) -> np.ndarray:
        """Return (n x V,) each word's factor in each of the sentences (n,): how much more probable
        it is as a translation there than by chance."""
        table = self.table
        tokens, lengths = self.source[sentences], self.length[sentences]
        sentence, place = (
            (tokens != self.source_pad) & (tokens < len(table.lexical_start) - 1)
        ).nonzero()
        word = tokens[sentence, place]
        first, count = table.lexical_start[word], np.diff(table.lexical_start)[word]
        # each word's entries in turn
        entry = np.repeat(first - (count.cumsum() - count), count) + np.arange(count.sum())
        target = np.repeat(sentence, count) * self.V + table.lexical_token[entry]
        # few words have entries, so the power is computed for few
        spoken, which = np.unique(target, return_inverse=True)
        lexical = np.bincount(which, table.lexical_prob[entry], len(spoken))
        length = lengths[spoken // self.V]
        factor = np.tile(self.floor, len(tokens))
        factor[spoken] = (
            (lexical / length + EPS) / (table.unigram[spoken % self.V] + EPS)
        ) ** LAMBDA
        return factor

    def lower_factors_(self, rows: Rows) -> None:
        """Lower the factors of newly verified tokens."""
        assert self.factor is not None
        fresh = rows.length - self.covered_length[rows.live]
        for back in range(int(fresh.max()), 0, -1):
            row = (fresh >= back).nonzero()[0]
            token = rows.tokens[row, rows.length[row] + 1 - back]
            at = self.slot[rows.live[row]] * self.V + token
            self.factor[at] = np.maximum(self.factor[at] * COVERED, self.floor[token])
        self.covered_length[rows.live] = rows.length

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        n = len(rows)
        if self.factor is not None:
            self.assign_slots_(rows.live)
            self.lower_factors_(rows)
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
        return table.drafter(
            table.factors(self.source[sentence], int(self.length[sentence]))
            if has_source
            else None,
            self.pad,
        )

    def find(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """Return (n,) the entry of each history: of both tokens, else of the last, else of none."""
        both = before * self.V + last
        place = self.key.searchsorted(both)
        alone = self.V * self.V + last
        shorter = self.key.searchsorted(alone)
        end = len(self.key)
        shorter = np.where(self.key[np.minimum(shorter, end - 1)] == alone, shorter, end)
        return np.where(self.key[np.minimum(place, end - 1)] == both, place, shorter)


# ---- The draft table: next-word probabilities and word translations, by scripts/build_drafts.py
#
# The file holds digests of the dictionaries and of the text that it was made from. Every number
# that a compiled function uses as an index is checked when the file is read.
#
# Shapes: m histories, K listed words, V target vocabulary.


FORMAT, VERSION = "fairseq_ext draft table", 2
INT64, WORDS = ("<i8",), ("<u2", "<i4", "<i8")
LAYOUT = {
    "key": (INT64, 1),
    "token": (WORDS, 2),
    "prob": (("<f2",), 2),
    "unigram": (("<f4",), 1),
    "any_token": (INT64, 1),
    "lexical_start": (INT64, 1),
    "lexical_token": (WORDS, 1),
    "lexical_prob": (("<f2",), 1),
}
REBUILD = "build it with scripts/build_drafts.py"


def fingerprint(dictionary: Any) -> str:
    """Return the fingerprint of a fairseq dictionary: symbols and their order, not their counts."""
    return hashlib.sha256(
        "\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")
    ).hexdigest()[:16]


@dataclass
class Table:
    """The arrays of the file."""

    # (m,) int64, ascending: V x (token before last) + last token; the last token
    # alone as V x V + token
    key: np.ndarray
    token: np.ndarray  # (m, K) next tokens
    prob: np.ndarray  # (m, K) float16: p(e | h)
    unigram: np.ndarray  # (V,) float32: p(e)
    any_token: np.ndarray  # (K,) the likeliest tokens, for a history that is not in the text
    # (source vocabulary + 1,) first entry of each source token; empty without parallel text
    lexical_start: np.ndarray
    lexical_token: np.ndarray  # (entries,)
    lexical_prob: np.ndarray  # (entries,) float16: t(e | f)
    target: str  # fingerprints of the dictionaries
    source: str
    text: str = ""  # a digest of the text

    def save(self, path: str) -> None:
        """Write the file in one step. Errors: OSError."""
        made_from = {"target": self.target, "source": self.source, "text": self.text}
        array_file.save(
            path,
            FORMAT,
            VERSION,
            made_from,
            {name: getattr(self, name) for name in LAYOUT},
            compress=True,
        )

    @staticmethod
    def load(path: str) -> Table:
        """Return the table of a file, its numbers checked.

        Errors: UsageError for a file that is not a valid table of scripts/build_drafts.py.
        """
        try:
            made_from, arrays = array_file.load(path, FORMAT, VERSION, LAYOUT)
            parts: dict[str, Any] = {
                **arrays,
                **{name: made_from.get(name, "") for name in ("target", "source", "text")},
            }
            table = Table(**parts)
            table.check_numbers()
        except OSError as error:
            raise UsageError(
                f"--draft-table {path} cannot be read ({error.strerror or error}): {REBUILD}"
            ) from error
        except DamagedFile as error:
            raise UsageError(
                f"--draft-table {path} is not a draft table, because {error}: {REBUILD}"
            ) from error
        return table

    def check_numbers(self) -> None:
        """Raise DamagedFile unless every token and index is valid."""
        m, V, K = len(self.key), len(self.unigram), len(self.any_token)
        if not (m and V and K) or self.token.shape != (m, K) or self.prob.shape != (m, K):
            raise DamagedFile("its arrays do not fit each other")
        if (
            not 0 <= self.key[0] <= self.key[-1] < V * (V + 1)
            or not (self.key[1:] > self.key[:-1]).all()
        ):
            raise DamagedFile("its histories are not in order")
        start, entries = self.lexical_start, len(self.lexical_token)
        if len(self.lexical_prob) != entries or not len(start) > 1 and (len(start) or entries):
            raise DamagedFile("its arrays do not fit each other")
        if len(start) and (
            start[0] != 0 or start[-1] != entries or not (start[1:] >= start[:-1]).all()
        ):
            raise DamagedFile("its translations are not in order")
        for words in (self.token, self.any_token, self.lexical_token):
            if words.size and not 0 <= int(words.min()) <= int(words.max()) < V:
                raise DamagedFile("it holds a token that is not in its vocabulary")
        for numbers in (self.prob, self.unigram, self.lexical_prob):
            if not ((numbers >= 0) & (numbers <= 1)).all():
                raise DamagedFile("it holds a probability outside 0 to 1")

    def check(self, path: str, target: Any, source: Any) -> None:
        """Check that the table was built with these dictionaries (raises UsageError)."""
        sizes = [
            len(self.unigram),
            len(self.lexical_start) - 1 if self.lexical_start.size else len(source),
        ]
        if (
            sizes != [len(target), len(source)]
            or self.target != fingerprint(target)
            or (self.lexical_start.size and self.source != fingerprint(source))
        ):
            raise UsageError(
                f"--draft-table {path} was built with another dictionary than this model's: build "
                "it again with scripts/build_drafts.py"
            )

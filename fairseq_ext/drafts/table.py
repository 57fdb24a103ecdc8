"""Draft tokens from a table of word sequences, weighted by what the source sentence speaks of.

After the last two tokens h the table lists the K likeliest next words with p(e | h), estimated on target-side text (interpolated
Witten-Bell, down to the word alone). Where it was built from parallel text it also holds t(e | f) of IBM model 1, and the draft is

    argmax_e p(e | h) x (sum_f t(e | f) / source length + eps)^lambda / (p(e) + eps)^lambda

The factor of a word falls once it has been translated, so that the next draft speaks of something else. scripts/build_drafts.py
writes the file; it holds the dictionary's fingerprint and nothing that runs.

Shapes: N sentences, n live rows, K listed words, V target vocabulary.
"""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from fairseq_ext.drafts.source import Draft
from fairseq_ext.errors import UsageError
from fairseq_ext.search.parallel import NONE, Rows
from fairseq_ext.search.pool import Pool

LAMBDA = 1.5
EPS = 1e-3
MOST_SEEN = 100_000  # entries kept as lists
COVERED = 0.2  # what is left of a word's factor when it has been translated


def fingerprint(dictionary: Any) -> str:
    """Of a fairseq dictionary: symbols and their order, not their counts."""
    return hashlib.sha256("\n".join(dictionary.symbols).encode("utf-8", "surrogatepass")).hexdigest()[:16]


@dataclass
class Table:
    """The file's arrays."""

    key: np.ndarray  # (m,) int64, ascending: V x (token before last) + last token; the last token alone as V x V + token
    token: np.ndarray  # (m, K) next tokens
    prob: np.ndarray  # (m, K) float16: p(e | h)
    unigram: np.ndarray  # (V,) float32: p(e)
    any_token: np.ndarray  # (K,) the likeliest tokens, for a history that the text does not hold
    lexical_start: np.ndarray  # (source vocabulary + 1,) where each source token's entries begin; empty without parallel text
    lexical_token: np.ndarray  # (entries,)
    lexical_prob: np.ndarray  # (entries,) float16: t(e | f)
    target: str  # fingerprints of the dictionaries
    source: str

    def save(self, path: str) -> None:
        with open(path, "wb") as out:
            np.savez_compressed(out, **{f.name: getattr(self, f.name) for f in fields(self)})

    @staticmethod
    def load(path: str) -> Table:
        """Raises UsageError for what scripts/build_drafts.py has not written."""
        try:
            with np.load(path, allow_pickle=False) as file:
                parts = {f.name: file[f.name] for f in fields(Table)}
        except OSError as error:
            said = error.strerror or error
            raise UsageError(f"--draft-table {path} cannot be read ({said}): build it with scripts/build_drafts.py") from error
        except (KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"--draft-table {path} is no draft table: build it with scripts/build_drafts.py") from error
        parts |= {name: str(parts[name]) for name in ("target", "source")}
        return Table(**parts)

    def check(self, path: str, target: Any, source: Any) -> None:
        """The dictionaries must be those it was built with (raises UsageError)."""
        if self.target != fingerprint(target) or (self.lexical_start.size and self.source != fingerprint(source)):
            raise UsageError(
                f"--draft-table {path} was built with another dictionary than this model's: build it again with scripts/build_drafts.py"
            )


class Ngram:
    """See drafts/source.py, Source. pad: the target's, which stands before the first token."""

    def __init__(self, table: Table, pad: int, source_pad: int):
        self.table = table
        self.pad = pad
        self.source_pad = source_pad
        self.V = len(table.unigram)
        # a last row for histories that the text does not hold
        self.token = np.concatenate([table.token, table.any_token[None]]).astype(np.int64)
        self.prob = np.concatenate([table.prob, table.unigram[table.any_token][None].astype(np.float16)]).astype(np.float32)
        self.key = table.key
        self.factor: np.ndarray | None = None  # (N x V,)
        self.floor = (EPS / (table.unigram + EPS)) ** LAMBDA  # of a word that the source does not speak of
        self.seen: dict[int, tuple[np.ndarray, list[int], list[float]]] = {}  # what `entry` has found

    def start(self, pool: Pool) -> None:
        table = self.table
        if not table.lexical_start.size:
            return
        tokens = pool.net_input["src_tokens"].cpu().numpy()
        N = len(tokens)
        sentence, place = ((tokens != self.source_pad) & (tokens < len(table.lexical_start) - 1)).nonzero()
        word = tokens[sentence, place]
        first, count = table.lexical_start[word], np.diff(table.lexical_start)[word]
        entry = np.repeat(first - (count.cumsum() - count), count) + np.arange(count.sum())  # each word's entries in turn
        target = np.repeat(sentence, count) * self.V + table.lexical_token[entry]
        lexical = np.bincount(target, table.lexical_prob[entry], N * self.V).reshape(N, self.V)
        length = np.maximum(pool.length.cpu().numpy(), 1)[:, None]
        self.factor = (((lexical / length + EPS) / (table.unigram + EPS)) ** LAMBDA).astype(np.float32).reshape(-1)
        self.told = np.zeros(N, np.int64)  # verified tokens of each sentence that the factors know of

    def cover_(self, rows: Rows) -> None:
        """Lower the factors of newly verified tokens."""
        assert self.factor is not None
        fresh = rows.length - self.told[rows.live]
        for back in range(int(fresh.max()), 0, -1):
            row = (fresh >= back).nonzero()[0]
            token = rows.tokens[row, rows.length[row] + 1 - back]
            at = rows.live[row] * self.V + token
            self.factor[at] = np.maximum(self.factor[at] * COVERED, self.floor[token])
        self.told[rows.live] = rows.length

    def propose(self, rows: Rows, most: int, least: float) -> Draft:
        n = len(rows)
        if self.factor is not None:
            self.cover_(rows)
        if n == 1:
            return self.propose_one(rows, most, least)
        history = rows.last(2)
        before, last = history[:, 0], history[:, 1]
        before = np.where(before == NONE, self.pad, before)
        base = (rows.live * self.V)[:, None]
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

    def propose_one(self, rows: Rows, most: int, least: float) -> Draft:
        """The same for a single row, in plain Python: numpy takes longer to begin than to compute so little."""
        before, last = rows.last(2)[0].tolist()
        before = self.pad if before == NONE else before
        base, likely = int(rows.live[0]) * self.V, 1.0
        tokens: list[int] = []
        confidence: list[float] = []
        while len(tokens) < most:
            words, listed, weight = self.entry(before, last)
            if self.factor is not None:
                weight = [p * f for p, f in zip(weight, self.factor[words + base].tolist(), strict=True)]
                for drafted in tokens:
                    if drafted in listed:
                        weight[listed.index(drafted)] *= COVERED
            best = max(weight)
            sure = best / sum(weight)
            likely *= sure
            if likely < least:
                break
            before, last = last, listed[weight.index(best)]
            tokens.append(last)
            confidence.append(sure)
        return np.array([tokens], np.int64), np.array([confidence])

    def entry(self, before: int, last: int) -> tuple[np.ndarray, list[int], list[float]]:
        """What the table lists after two tokens: words as an array and as a list, and their probabilities."""
        key = before * self.V + last
        if key not in self.seen:
            at = int(self.find(np.array([before]), np.array([last]))[0])
            if len(self.seen) >= MOST_SEEN:
                self.seen.clear()
            self.seen[key] = self.token[at], self.token[at].tolist(), self.prob[at].tolist()
        return self.seen[key]

    def find(self, before: np.ndarray, last: np.ndarray) -> np.ndarray:
        """(n,) the entry of each history: of both tokens, else of the last, else of none."""
        both = before * self.V + last
        place = self.key.searchsorted(both)
        if len(both) == 1 and self.key[place % len(self.key)] == both:
            return place
        alone = self.V * self.V + last
        shorter = self.key.searchsorted(alone)
        end = len(self.key)
        shorter = np.where(self.key[np.minimum(shorter, end - 1)] == alone, shorter, end)
        return np.where(self.key[np.minimum(place, end - 1)] == both, place, shorter)

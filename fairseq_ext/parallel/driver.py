"""The second driver: greedy decoding that reads a block of tokens a call instead of one, with greedy's own output.

A call reads a row's last verified token and draft tokens behind it. What it gives for a position is final when every token it has
read before that position was right, so the first output always is, and each draft token that equals the output before it makes one
more final. Which drafts are offered, how wide a block is and when tokens are committed is a method's business
(strategies/decoding/jacobi.py).

Bookkeeping is numpy on the host, whole rows at a time; the device is waited for once a call. A sentence alone goes to one_sentence.py.

Shapes: N sentences in the pool, n live rows, one a sentence, w block width, T most tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.decoders.protocol import BlockDecoder
from fairseq_ext.parallel.block_processors import apply_rules
from fairseq_ext.parallel.near_ties import Guard, GuardCounts
from fairseq_ext.parallel.one_sentence import search_one
from fairseq_ext.parallel.rows import NONE, Iteration, Row, Rows
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.logits_processors import Rules
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule, Softmax
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.stats import Ratio, Section, Stats


class Method(Protocol):
    """How wide blocks are, what is drafted, what is committed."""

    def start(self, pool: Pool) -> None:
        """A new pool."""

    def draft(self, rows: Rows, most: int) -> np.ndarray:
        """(n, w - 1) draft tokens, w - 1 <= most: what the next call reads behind each row's last token."""

    def commit(self, rows: Rows, verified: np.ndarray, ended: np.ndarray, w: int) -> np.ndarray:
        """(n,) how many of each row's verified outputs (n,), one at least, are kept; the last one is EOS where ended (n,)."""

    def learn(self, rows: Rows, out: np.ndarray, verified: np.ndarray, w: int) -> None:
        """Told before the commit what came of the draft: outputs (n, w), of which the first verified (n,) are right."""

    def draft_one(self, row: Row, most: int) -> list[int]:
        """`draft` for a row that is alone; so are the others."""

    def commit_one(self, row: Row, verified: int, ended: bool, w: int) -> int: ...

    def learn_one(self, row: Row, out: list[int], verified: int) -> None: ...


@dataclass
class ParallelCounts(Section):
    """The `parallel` section of the statistics."""

    key = "parallel"
    calls: int = 0
    tokens: int = 0  # committed
    tokens_per_call: Ratio = Ratio()  # of one row
    drafts_offered: int = 0  # draft tokens read
    drafts_taken: int = 0
    guard: GuardCounts | None = None

    def count(self, calls: int, rows: int, tokens: int, offered: int, taken: int) -> None:
        """Count decoder calls, their rows, and what came of them."""
        self.calls += calls
        self.tokens += tokens
        self.tokens_per_call += Ratio(tokens, rows)
        self.drafts_offered += offered
        self.drafts_taken += taken


@dataclass
class ParallelSearch:
    """The driver. Called with a pool, it gives answer(sentence, hypotheses) each sentence that is wanted as soon as it is finished,
    with one hypothesis, or none where every word was forbidden."""

    decoder: BlockDecoder
    method: Method
    softmax: Softmax
    rules: Rules
    scoring: Scoring
    stats: Stats
    schedule: Schedule
    guard: Guard = field(default_factory=Guard)
    trace: Callable[[Iteration], None] | None = None
    counts: ParallelCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self.stats.section(ParallelCounts)
        if self.guard.margin:
            self.guard.counts = self.counts.guard = self.counts.guard or self.guard.counts

    @torch.no_grad()
    def __call__(self, pool: Pool, answer: Callable[[int, list[Hypothesis]], None]) -> None:
        self.device = pool.length.device
        sentences = list(self.schedule(pool, 0, 0, 0))
        if not sentences:
            return
        self.decoder.admit(pool.inputs(sentences))
        self.stats.encoder_calls += 1
        self.method.start(pool)
        if len(sentences) == len(pool.queue(0)) == 1:
            search_one(self, pool, sentences[0], answer)
        else:
            self.search(pool, sentences, answer)

    def search(self, pool: Pool, sentences: list[int], answer: Callable[[int, list[Hypothesis]], None]) -> None:
        """Sentences side by side, a row each."""
        rows, started = Rows.start(pool, sentences), len(sentences)
        read = rows.length  # tokens that each row of the decoder has read
        while len(rows):
            # (1) the method drafts; a position that must be read alone is
            draft = self.method.draft(rows, 0 if rows.redo.any() else rows.room() - 1)
            w = draft.shape[1] + 1
            # (2) the decoder reads each row's last token and the draft, (3) every position's best word
            out, score, margin = self.best(pool, rows, draft, read)
            self.stats.count_step(len(rows), w)
            read = rows.length + w
            # (4) outputs are right as far as the draft was, (5) and nothing follows EOS or the length limit
            taken = (draft == out[:, :-1]).cumprod(1).sum(1) if w > 1 else np.zeros(len(rows), np.int64)
            verified = taken + 1
            is_end = (out == self.rules.eos) & (np.arange(w) < verified[:, None])
            ended = is_end.any(1)
            verified = np.where(ended, is_end.argmax(1) + 1, verified)
            if self.guard.margin and w > 1:
                trusted = self.guard.trusted(verified, margin)
                rows.redo, ended, verified = trusted < verified, ended & (trusted == verified), trusted
            else:
                rows.redo = np.zeros(len(rows), bool)
            kept = score[:, : max(1, verified.max())]
            if np.isnan(kept).any():
                raise_nan(rows, np.isnan(kept) & (np.arange(kept.shape[1]) < np.maximum(verified, 1)[:, None]))
            self.method.learn(rows, out, verified, w)
            count = self.method.commit(rows, verified, ended, w)
            count = np.where(rows.redo, verified, count)
            if self.trace is not None:
                for r, s in enumerate(rows.live.tolist()):
                    self.trace(Iteration(s, int(rows.length[r]), draft[r].copy(), out[r].copy(), score[r].copy(), int(verified[r])))
            self.counts.count(1, len(rows), int(count.sum()), draft.size, int(np.maximum(count - 1, 0).sum()))
            # (6) what is kept becomes history, the other outputs guesses
            rows.append_(out, score, count)
            behind = count[:, None] + np.arange(w)
            rows.guess = np.where(behind < w, np.take_along_axis(out, np.minimum(behind, w - 1), 1), NONE)
            # (7) finished rows leave
            kept = score[:, : count.max()]
            lost = ((kept == -np.inf) & (np.arange(kept.shape[1]) < count[:, None])).any(1)  # every word was forbidden
            done = (ended & (count == verified)) | lost
            if done.any():
                for r in done.nonzero()[0].tolist():
                    answer(int(rows.live[r]), [] if lost[r] else [self.hypothesis(rows, r, pool)])
                rows, read = self.leave(rows, read, ~done)
            # (8) new sentences start when the schedule says so, also beside others that have just done so: a stream fills up in turns
            if sentences := list(self.schedule(pool, started, len(rows), len(rows))):
                rows, read = self.refill(pool, rows, read, sentences)
                started += len(sentences)

    def best(self, pool: Pool, rows: Rows, draft: np.ndarray, read: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """One call: each position's best word (n, w), its log-probability, and how far it is before the second best (with a guard)."""
        n, w = len(rows), draft.shape[1] + 1
        block = np.concatenate([rows.last(1), np.where(draft == NONE, self.rules.pad, draft)], 1)  # (n, w)
        device = pool.length.device
        length: int | Tensor | None = None
        if (read != rows.length).any():
            first = int(rows.length[0])
            length = first if (rows.length == first).all() else torch.from_numpy(rows.length).to(device)
        features = self.decoder.step(torch.from_numpy(block).to(device), w, length)
        log_probs = self.softmax(self.decoder, [x.reshape(n * w, -1) for x in features], None)
        log_probs = apply_rules(self.rules, log_probs, pool, rows, draft)
        if self.guard.margin:
            value, token = log_probs.topk(2)
            host = torch.stack([token[:, 0].double(), value[:, 0].double(), (value[:, 0] - value[:, 1]).double()]).cpu().numpy()
            out, score, margin = host[0].astype(np.int64), host[1], host[2]
        else:
            out, score = fetch(log_probs)
            margin = score
        self.dtype = log_probs.value.dtype
        return out.reshape(n, w), score.reshape(n, w), margin.reshape(n, w)

    def hypothesis(self, rows: Rows, r: int, pool: Pool) -> Hypothesis:
        """The finished row r."""
        end = int(rows.length[r]) + 1
        return self.finished(int(rows.live[r]), rows.tokens[r, 1:end], rows.score[r, 1:end], pool)

    def finished(self, sentence: int, tokens: np.ndarray | list[int], score: np.ndarray | list[float], pool: Pool) -> Hypothesis:
        """A hypothesis of tokens and log-probabilities (L,)."""
        device = pool.length.device
        total = torch.tensor(float(sum(score)), dtype=torch.float64)
        wanted = self.scoring.wanted(pool, torch.tensor([sentence], device=device)).cpu() if self.scoring.reward else total
        positional = torch.tensor(score, dtype=self.dtype, device=device)
        return Hypothesis(torch.tensor(tokens, device=device), float(self.scoring(total, len(tokens), wanted)), positional)

    def leave(self, rows: Rows, read: np.ndarray, stays: np.ndarray) -> tuple[Rows, np.ndarray]:
        """The rows that stay (n,); the decoder's follow."""
        kept = stays.nonzero()[0]
        if len(kept):
            index = torch.from_numpy(kept).to(self.device)
            self.decoder.select(index, index, 1, torch.arange(len(kept), device=index.device))
        return rows.keep(kept), read[kept]

    def refill(self, pool: Pool, rows: Rows, read: np.ndarray, sentences: list[int]) -> tuple[Rows, np.ndarray]:
        """A row more for each of these sentences, in front of those that go on."""
        if self.stats.refills is not None:
            self.stats.refills += 1
        group = self.decoder.set_aside() if len(rows) else None
        self.decoder.admit(pool.inputs(sentences))
        self.stats.encoder_calls += 1
        fresh = Rows.start(pool, sentences)
        if group is None:
            return fresh, fresh.length
        self.decoder.join(group)
        return Rows.join(fresh, rows), np.concatenate([fresh.length, read])


def fetch(log_probs: LogProbs) -> tuple[np.ndarray, np.ndarray]:
    """Every row's best word and its log-probability, on the host after one transfer."""
    value, column = log_probs.value.max(1)
    token = column if log_probs.ids is None else log_probs.ids[column]
    if value.device.type == "cpu":
        return token.numpy(), value.double().numpy()
    host = torch.stack([token.double(), value.double()]).cpu().numpy()
    return host[0].astype(np.int64), host[1]


def raise_nan(rows: Rows, broken: np.ndarray) -> None:
    """Raise FloatingPointError for the first position of broken (n, w) that is set, if one is."""
    for r, place in zip(*broken.nonzero(), strict=True):
        raise FloatingPointError(f"the model gives NaN at target position {int(rows.length[r] + place)} of sentence {int(rows.live[r])}")

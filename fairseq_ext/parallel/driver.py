"""The driver of parallel decoding: greedy decoding that reads a block of tokens a call instead of one, with greedy's own output.

A call reads a row's last verified token and draft tokens behind it. What it gives for a position is final when every token it has
read before that position was right, so the first output always is, and each draft token that equals the output before it makes one
more final. Which drafts are offered, how wide a block is and when tokens are committed is a method's business
(strategies/decoding/).

Bookkeeping is numpy on the host, whole rows at a time; the device is waited for once a call. This is the definition; a sentence that is
alone runs its compiled twin (one_sentence.py).

Shapes: N sentences in the pool, n live rows, one a sentence, w block width, T most tokens, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch

from fairseq_ext.counters import Ratio, Section
from fairseq_ext.errors import NotANumber, UsageError
from fairseq_ext.parallel.block_reader import BlockReader
from fairseq_ext.parallel.near_ties import NearTieCounts, NearTies
from fairseq_ext.parallel.one_sentence import decode_alone
from fairseq_ext.parallel.protocols import Method, Trace
from fairseq_ext.parallel.rows import Iteration, Rows
from fairseq_ext.search.finished import Hypothesis, OnFinal
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.scoring import Scoring
from fairseq_ext.stats import Stats
from fairseq_ext.upload import upload


@dataclass
class ParallelCounts(Section):
    """The `parallel` section of the statistics."""

    key = "parallel"
    calls: int = 0
    tokens: int = 0  # committed
    tokens_per_call: Ratio = Ratio()  # of one row
    drafts_offered: int = 0  # draft tokens read
    drafts_taken: int = 0
    guard: NearTieCounts | None = None

    def count(self, calls: int, rows: int, tokens: int, offered: int, taken: int) -> None:
        """Count decoder calls, their rows, and what came of them."""
        self.calls += calls
        self.tokens += tokens
        self.tokens_per_call += Ratio(tokens, rows)
        self.drafts_offered += offered
        self.drafts_taken += taken


@dataclass
class ParallelSearch:
    """The driver. Called with a pool, it calls answer(sentence, hypotheses) for each wanted sentence as soon as it is finished.

    A sentence has one hypothesis, or none where every word was forbidden.
    """

    reader: BlockReader
    method: Method
    scoring: Scoring
    stats: Stats
    schedule: Schedule
    near_ties: NearTies = field(default_factory=NearTies)
    trace: Trace | None = None
    counts: ParallelCounts = field(init=False)

    def __post_init__(self) -> None:
        self.counts = self.stats.section(ParallelCounts)
        if self.near_ties.margin:
            self.near_ties.counts = self.counts.guard = self.counts.guard or self.near_ties.counts

    @torch.no_grad()
    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        if any(c.any_of or c.banned or c.prefix for c in pool.constraints or ()):
            raise UsageError("constraints need a beam of rows, and --decoding other than beam has one row: leave one of the two out")
        if pool.alone:
            raise UsageError(
                "--schedule stream encodes each speech sentence alone, and --decoding other than beam starts several at once: "
                "leave one of the two out"
            )
        sentences = list(self.schedule(pool, 0, 0, 0))
        if not sentences:
            return
        self.reader.decoder.admit(pool.inputs(sentences))
        self.stats.encoder_calls += 1
        self.method.start(pool)
        rows = Rows.start(pool, sentences)
        is_alone = len(sentences) == len(pool.queue(0)) == 1
        if not (is_alone and self.search_alone(pool, rows, answer)):
            self.search(pool, rows, answer)

    def search_alone(self, pool: Pool, rows: Rows, answer: OnFinal) -> bool:
        """Decode the only sentence; false where its method has no compiled twin."""
        found = decode_alone(self.method, self.reader, self.near_ties, pool, rows, self.trace)
        if found is None:
            return False
        self.stats.decoder_calls += found.calls
        self.stats.decoder_rows += found.calls
        self.stats.decoder_positions += found.positions
        self.counts.count(found.calls, found.calls, found.kept, found.offered, found.taken)
        answer(int(rows.live[0]), [] if found.lost else [self.hypothesis(rows, 0, pool, found.dtype)])
        return True

    def search(self, pool: Pool, rows: Rows, answer: OnFinal) -> None:
        """Decode sentences side by side, a row each."""
        started, eos, trace = len(rows), self.reader.processors.eos, self.trace
        read = rows.length  # tokens that each row of the decoder has read
        while len(rows):
            # (1) the method drafts, unless some row's next position must be read alone
            draft = self.method.draft(rows, 0 if rows.redo.any() else rows.room() - 1)
            w = draft.shape[1] + 1
            # (2) the decoder reads each row's last token and the draft, (3) every position's best word
            best = self.reader.best(pool, rows, draft, read, self.near_ties.margin > 0)
            out, score = best.word, best.score
            self.stats.count_step(len(rows), w)
            read = rows.length + w
            # (4) outputs are right as far as the draft was, (5) and nothing follows EOS or the length limit
            verified = (draft == out[:, :-1]).cumprod(1).sum(1) + 1
            is_end = (out == eos) & (np.arange(w) < verified[:, None])
            finished = is_end.any(1)
            verified = np.where(finished, is_end.argmax(1) + 1, verified)
            rows.redo = np.zeros(len(rows), bool)
            if self.near_ties.margin and w > 1:
                apart = self.near_ties.verified_before(verified, best.margin)
                rows.redo, finished, verified = apart < verified, finished & (apart == verified), apart
            raise_nan(rows, np.isnan(score) & (np.arange(w) < np.maximum(verified, 1)[:, None]))
            self.method.learn(rows, out, verified, w)
            count = np.where(rows.redo, verified, self.method.commit(rows, verified, finished, w))
            if trace is not None:
                for r, s in enumerate(rows.live.tolist()):
                    trace(Iteration(s, int(rows.length[r]), draft[r].copy(), out[r].copy(), score[r].copy(), int(verified[r])))
            self.counts.count(1, len(rows), int(count.sum()), draft.size, int(np.maximum(count - 1, 0).sum()))
            # (6) what is kept becomes history, the other outputs guesses
            rows.append_(out, score, count)
            # (7) finished rows leave
            lost = ((score == -np.inf) & (np.arange(w) < count[:, None])).any(1)  # every word was forbidden
            done = (finished & (count == verified)) | lost
            if done.any():
                for r in done.nonzero()[0].tolist():
                    answer(int(rows.live[r]), [] if lost[r] else [self.hypothesis(rows, r, pool, best.dtype)])
                rows, read = self.leave(pool, rows, read, ~done)
            # (8) new sentences start when the schedule says so, also beside others that have just done so: a stream fills up in turns
            if sentences := list(self.schedule(pool, started, len(rows), len(rows))):
                rows, read = self.refill(pool, rows, read, sentences)
                started += len(sentences)

    def hypothesis(self, rows: Rows, r: int, pool: Pool, dtype: torch.dtype) -> Hypothesis:
        """The finished row r, its positional scores of this type."""
        device, behind = pool.length.device, int(rows.length[r]) + 1
        tokens, score = rows.tokens[r, 1:behind].tolist(), rows.score[r, 1:behind].tolist()
        total = torch.tensor(sum(score), dtype=torch.float64)
        sentence = upload(rows.live[r : r + 1], device)
        wanted = self.scoring.wanted(pool, sentence).cpu() if self.scoring.reward else total
        positional = torch.tensor(score, dtype=dtype, device=device)
        return Hypothesis(torch.tensor(tokens, device=device), float(self.scoring(total, len(tokens), wanted)), positional)

    def leave(self, pool: Pool, rows: Rows, read: np.ndarray, stays: np.ndarray) -> tuple[Rows, np.ndarray]:
        """Drop the rows that do not stay (n,), here and in the decoder; return the others and what they have read."""
        kept = stays.nonzero()[0]
        if len(kept):
            index = upload(kept, pool.length.device)
            self.reader.decoder.select(index, index, 1, torch.arange(len(kept), device=index.device))
        return rows.keep(kept), read[kept]

    def refill(self, pool: Pool, rows: Rows, read: np.ndarray, sentences: list[int]) -> tuple[Rows, np.ndarray]:
        """Start a row for each of these sentences, in front of those that go on; return all rows and what they have read."""
        decoder = self.reader.decoder
        self.stats.refill()
        group = decoder.set_aside() if len(rows) else None
        decoder.admit(pool.inputs(sentences))
        self.stats.encoder_calls += 1
        fresh = Rows.start(pool, sentences)
        if group is None:
            return fresh, fresh.length
        decoder.join(group)
        return Rows.join(fresh, rows), np.concatenate([fresh.length, read])


def raise_nan(rows: Rows, broken: np.ndarray) -> None:
    """Raise NotANumber for the first position of broken (n, w) that is set, if one is."""
    if broken.any():
        r, place = np.argwhere(broken)[0].tolist()
        raise NotANumber(f"the model gives NaN at target position {int(rows.length[r]) + place}")

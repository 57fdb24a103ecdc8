"""The driver of parallel decoding, for many rows and, by its compiled twin, for a single sentence.

It is greedy decoding that reads a block of tokens a call instead of one, with greedy's own output.
A call reads a row's last verified token and draft tokens after it. Its output for a position is
final if every token that it read before that position was right, so the first output always is, and
each draft token that equals the output before it makes one more final. Final tokens are committed:
no later call reads them again. A method decides which drafts are read and how wide a block is
(search/strategies/decoding/).

Bookkeeping is numpy on the host, whole rows at a time, with one wait for the device a call. This is
the definition; a single sentence runs its compiled twin (below).

Shapes: N sentences in the pool, n live rows, one a sentence, w block width, T most tokens, V
vocabulary.

Compiled twin: kernels/parallel.cpp.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from fairseq_ext.core.errors import NotANumber, UsageError
from fairseq_ext.core.stats import Ratio, Section, Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.kernels.parallel import CompiledRow, Status
from fairseq_ext.search.beam import upload
from fairseq_ext.search.finished import Hypothesis, OnFinal, Scoring
from fairseq_ext.search.parallel.blocks import (
    NONE,
    BlockReader,
    Iteration,
    Method,
    NearTieCounts,
    NearTies,
    Rows,
    Trace,
)
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.scheduler import Entry, Searcher, search_all


@dataclass
class ParallelCounts(Section):
    """The `parallel` section of the statistics."""

    key = "parallel"
    calls: int = 0
    tokens: int = 0  # committed
    tokens_per_call: Ratio = Ratio()  # of one row
    drafts_offered: int = 0  # draft tokens read
    drafts_taken: int = 0  # draft tokens committed
    guard: NearTieCounts | None = None

    def count(self, calls: int, rows: int, tokens: int, offered: int, taken: int) -> None:
        """Count decoder calls, their rows, and their results."""
        self.calls += calls
        self.tokens += tokens
        self.tokens_per_call += Ratio(tokens, rows)
        self.drafts_offered += offered
        self.drafts_taken += taken


@dataclass
class Outputs:
    """The output of the last call for the rows of sentences live (n,), which had `length` (n,)
    tokens: out (n, w), of which verified (n,) are right."""

    live: np.ndarray
    length: np.ndarray
    out: np.ndarray
    verified: np.ndarray


@dataclass(eq=False)
class ParallelSearch(Searcher):
    """Entries of one pool at a time.

    Each has one hypothesis, or none if every word was forbidden.
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
        self.clear()
        self.counts = self.stats.section(ParallelCounts)
        if self.near_ties.margin:
            self.near_ties.counts = self.counts.guard = self.counts.guard or self.near_ties.counts

    @torch.no_grad()
    def __call__(self, pool: Pool, answer: OnFinal) -> None:
        """Run as a driver: decode the pool's sentences `to_decode`; call `answer` with each as soon
        as it is finished."""
        self.clear()
        search_all(self.schedule, self, pool, 1, self.stats, answer)

    def clear(self) -> None:
        """Drop all entries, also those of a call that an exception ended."""
        self.entry_of_sentence: dict[int, Entry] = {}  # by pool number; live or ended
        self.results: dict[Entry, list[Hypothesis]] = {}  # of ended entries

    @property
    def live(self) -> int:
        return len(self.entry_of_sentence)

    @property
    def rows(self) -> int:
        return len(self.entry_of_sentence)

    def admit(self, entries: Sequence[Entry]) -> None:
        pool, decoder = entries[0].batch, self.reader.decoder
        sentences = [entry.sentence for entry in entries]
        if not self.entry_of_sentence:
            refuse(pool)
            self.pool, self.state, self.read = pool, Rows.start(pool, []), np.zeros(0, np.int64)
            self.method.start(pool)
        group = decoder.set_aside() if len(self.state) else None
        decoder.admit(pool.inputs(sentences))
        self.stats.encoder_calls += 1
        fresh = Rows.start(pool, sentences)
        if group is not None:
            decoder.join(group)
        self.state, self.read = (
            Rows.join(fresh, self.state),
            np.concatenate([fresh.length, self.read]),
        )
        self.entry_of_sentence |= zip(sentences, entries, strict=True)
        self.last: Outputs | None = None
        # a single sentence of a pool has a compiled twin
        self.single_decoding: Iterator[Iteration | Decoded] | None = None
        self.is_alone = len(pool.sentences_to_decode()) == 1

    def step(self, most: int = 1) -> list[Entry]:
        if self.is_alone and (ended := self.step_alone(most)) is not None:
            return ended
        for _ in range(most):
            if ended := self.step_rows():
                return ended
        return []

    def step_alone(self, most: int) -> list[Entry] | None:
        """Do the step for a single sentence in compiled code; None without the compiled library."""
        if self.single_decoding is None:
            every = self.trace is not None or most == 1
            self.single_decoding = decode_alone(
                self.method, self.reader, self.near_ties, self.pool, self.state, every
            )
        for call in self.single_decoding:
            if isinstance(call, Decoded):
                return self.end_alone(call)
            self.last = Outputs(
                self.state.live, np.array([call.length]), call.out[None], np.array([call.verified])
            )
            if self.trace is not None:
                self.trace(call)
            if most == 1:
                return []
        self.is_alone = False
        return None

    def end_alone(self, decoded: Decoded) -> list[Entry]:
        """Finish the single sentence after the twin has decoded it."""
        state = decoded.row.struct
        self.stats.decoder_calls += state.calls
        self.stats.decoder_rows += state.calls
        self.stats.decoder_positions += state.positions
        self.counts.count(state.calls, state.calls, state.committed, state.offered, state.accepted)
        entry = self.entry_of_sentence[int(self.state.live[0])]
        self.results[entry] = (
            [] if decoded.all_banned else [self.hypothesis(self.state, 0, self.pool, decoded.dtype)]
        )
        return [entry]

    def step_rows(self) -> list[Entry]:
        """Make one call of the decoder: every row gets at least one token. Return the entries that
        have ended.
        """
        pool, rows, eos = self.pool, self.state, self.reader.processors.eos
        # (1) the method drafts, unless some row's next position must be read alone
        draft = self.method.draft(rows, 0 if rows.redo.any() else rows.room() - 1)
        w = draft.shape[1] + 1
        # (2) the decoder reads each row's last token and the draft, (3) and every
        #     position's best word
        best = self.reader.best(pool, rows, draft, self.read, self.near_ties.margin > 0)
        out, score = best.word, best.score
        self.stats.count_step(len(rows), w)
        read = rows.length + w
        # (4) outputs are right up to the first wrong draft token, (5) and end with EOS or at the
        #     length limit
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
        if self.trace is not None:
            for r, s in enumerate(rows.live.tolist()):
                self.trace(
                    Iteration(
                        s,
                        int(rows.length[r]),
                        draft[r].copy(),
                        out[r].copy(),
                        score[r].copy(),
                        int(verified[r]),
                    )
                )
        self.last = Outputs(rows.live, rows.length, out, verified)
        self.counts.count(
            1,
            len(rows),
            int(verified.sum()),
            int((draft != NONE).sum()),
            int(np.maximum(verified - 1, 0).sum()),
        )
        # (6) verified outputs are history, the others guesses
        rows.append_(out, score, verified)
        # (7) finished rows are removed
        # every word was forbidden
        all_banned = ((score == -np.inf) & (np.arange(w) < verified[:, None])).any(1)
        done = finished | all_banned
        ended = [self.entry_of_sentence[int(rows.live[r])] for r in done.nonzero()[0]]
        for entry, r in zip(ended, done.nonzero()[0].tolist(), strict=True):
            self.results[entry] = (
                [] if all_banned[r] else [self.hypothesis(rows, r, pool, best.dtype)]
            )
        self.read = read
        if ended:
            self.keep_rows(~done)
        return ended

    def take(self, entry: Entry) -> list[Hypothesis]:
        del self.entry_of_sentence[entry.sentence]
        return self.results.pop(entry)

    def cancel(self, entries: Collection[Entry]) -> None:
        for entry in entries:
            del self.entry_of_sentence[entry.sentence]
            self.results.pop(entry, None)
        if self.entry_of_sentence and entries:  # else the next entries start with `clear`
            self.keep_rows(np.isin(self.state.live, list(self.entry_of_sentence)))

    def common_prefix(self, entry: Entry) -> list[int]:
        if self.last is None:
            return []
        r, i = (live.tolist().index(entry.sentence) for live in (self.state.live, self.last.live))
        end = int(self.last.length[i]) + 1
        return [
            *self.state.tokens[r, 1:end].tolist(),
            *self.last.out[i, : int(self.last.verified[i])].tolist(),
        ]

    def hypothesis(self, rows: Rows, r: int, pool: Pool, dtype: torch.dtype) -> Hypothesis:
        """Return the finished row r, with positional scores of this type."""
        device, end = pool.length.device, int(rows.length[r]) + 1
        tokens, score = rows.tokens[r, 1:end].tolist(), rows.score[r, 1:end].tolist()
        total = torch.tensor(sum(score), dtype=torch.float64)
        sentence = upload(rows.live[r : r + 1], device)
        rewarded = self.scoring.rewarded(pool, sentence).cpu() if self.scoring.reward else total
        positional = torch.tensor(score, dtype=dtype, device=device)
        return Hypothesis(
            torch.tensor(tokens, device=device),
            float(self.scoring(total, len(tokens), rewarded)),
            positional,
        )

    def keep_rows(self, stays: np.ndarray) -> None:
        """Drop the rows for which stays (n,) is false, here and in the decoder."""
        kept = stays.nonzero()[0]
        if len(kept):
            index = upload(kept, self.pool.length.device)
            self.reader.decoder.select(
                index, index, 1, torch.arange(len(kept), device=index.device)
            )
        self.state, self.read = self.state.keep(kept), self.read[kept]


def refuse(pool: Pool) -> None:
    """Raise UsageError for sentences that parallel decoding does not support."""
    if any(c.required or c.banned or c.prefix or c.allowed for c in pool.constraints or ()):
        raise UsageError(
            "constraints need a beam of rows, and --decoding other than beam has one row: leave "
            "one of the two out"
        )
    if pool.encodes_separately:
        raise UsageError(
            "--schedule stream encodes each speech sentence alone, and --decoding other than beam "
            "starts several at once: leave one of the two out"
        )


def raise_nan(rows: Rows, broken: np.ndarray) -> None:
    """Raise NotANumber for the first position that is set in broken (n, w), if there is one."""
    if broken.any():
        r, place = np.argwhere(broken)[0].tolist()
        raise NotANumber(f"the model gives NaN at target position {int(rows.length[r]) + place}")


# ---- A single sentence: the calls above by their compiled twin (kernels/parallel.cpp)
#
# The numbered steps are those of `ParallelSearch`. On a CPU in float32, with the full softmax and
# no logits processor but the length limits and --no-repeat-ngram-size, a whole call is one call of
# compiled code. Otherwise the decoder reads as for many rows, and drafting and committing are
# compiled.


@dataclass
class Decoded:
    """A decoded sentence. Its tokens and log-probabilities are in the rows passed to
    `decode_alone`."""

    dtype: torch.dtype  # of the log-probabilities
    all_banned: bool  # every word was forbidden
    row: CompiledRow  # has the counts


def decode_alone(
    method: Method, reader: BlockReader, near_ties: NearTies, pool: Pool, rows: Rows, every: bool
) -> Iterator[Iteration | Decoded]:
    """Decode the single sentence that the decoder has admitted, the only row of `rows`, in place.
    Yield each call if `every` is set, and Decoded after the last; nothing without the compiled
    library.

    Errors: NotANumber if the model gives NaN.
    """
    sentence, limit = int(rows.live[0]), int(rows.limit[0])
    if library() is None:
        return
    processors = reader.processors
    row = CompiledRow(
        rows.tokens,
        rows.score,
        rows.length,
        limit + 2,
        method.compiled(sentence),
        limit=limit,
        min_len=processors.min_len,
        eos=processors.eos,
        pad=processors.pad,
        ngram=processors.no_repeat_ngram,
        every=every,
        least_margin=near_ties.margin,
    )
    state = row.struct
    fast = (
        None
        if near_ties.margin or not takes_full_softmax(reader, pool, limit)
        else reader.decoder.row_reader()
    )
    dtype, read = torch.float32, np.zeros(1, np.int64)  # read: tokens that the decoder has read
    status = Status.GOES_ON
    while status == Status.GOES_ON:
        before = int(rows.length[0])
        if fast is not None:
            # (1) to (7)
            while (status := row.call(fast)) == Status.NO_ROOM:
                fast.reserve_(before, state.w)
        else:
            draft = row.draft()[None]  # (1)
            best = reader.best(pool, rows, draft, read, near_ties.margin > 0)  # (2), (3)
            read[0], dtype = before + draft.shape[1] + 1, best.dtype
            status = row.commit(best.word[0], best.score[0], best.margin[0])  # (4) to (7)
        if status == Status.NOT_A_NUMBER:
            raise NotANumber(f"the model gives NaN at target position {before + state.broken}")
        if every:
            w = state.first_guess + state.guesses
            draft, word, score = (
                row.buffers[name][:m].copy()
                for name, m in (("draft", w - 1), ("word", w), ("word_score", w))
            )
            yield Iteration(sentence, before, draft, word, score, state.verified)
    near_ties.counts.count(state.checked, state.redone)
    yield Decoded(dtype, status == Status.ALL_BANNED, row)


def takes_full_softmax(reader: BlockReader, pool: Pool, limit: int) -> bool:
    """Return whether the best words are those of the full softmax, except for the length limits and
    repeated n-grams."""
    processors, softmax = reader.processors, reader.softmax
    if (
        not softmax.is_full
        or softmax.temperature != 1.0
        or pool.prefix is not None
        or processors.min_len > limit
    ):
        return False
    return processors.is_plain

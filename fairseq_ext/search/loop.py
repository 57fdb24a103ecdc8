"""The one decoding loop: beam search over groups of flat rows, and the state of a search.

Its extension points are in protocols.py. A pass through the numbered steps adds one token to every
row of a group. The host waits for the device once a pass, in step (8). scheduler.py decides when
sentences start (1) and which passes are made; interpreted.py returns hypotheses.

Compiled twin: kernels/beam.cpp.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.search.beam import Beam, upload
from fairseq_ext.search.candidates import StopDecision, next_beam, rows_per_sentence, survivors
from fairseq_ext.search.finished import Finished
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Schedule, Select, Setup


def advance_group(search: Search) -> list[int]:
    """Add a token to every row of one group; return the sentences that are final now."""
    groups = search.groups
    if not groups.groups:
        return []
    before = groups.next()
    after = advance(search, before)
    groups.put(after)
    if len(after.live) == len(before.live):
        return []
    live = set(after.live)
    return [sentence for sentence in before.live if sentence not in live]


def start(search: Search, sentences: list[int]) -> None:
    """(1) Encode these sentences; they are a group of one row each."""
    pool = search.pool
    search.groups.set_aside()
    search.decoder.admit(pool.inputs(sentences))
    search.stats.encoder_calls += 1
    beam = Beam.start(sentences, pool.bos, search.device, torch.float32)
    search.strategies.select.start(beam, pool)
    search.strategies.stop.start(beam, pool)
    if pool.rule is not None:
        pool.rule.start(beam, pool)
    search.groups.add(beam)


def advance(search: Search, beam: Beam) -> Beam:
    """Return the beam with one more token in every row. Finished hypotheses go to
    `search.finished`; final sentences are removed."""
    decoder = search.decoder
    pool = search.pool
    strategies = search.strategies
    stats = search.stats
    finished = search.finished
    # (2) sentences at their length limit may only end
    limits = [pool.max_len[s] <= length for s, length in zip(beam.live, beam.steps(), strict=True)]
    at_limit = upload(limits, beam.device) if any(limits) else None
    # (3) the decoder reads each row's last token
    features = decoder.step(beam.tokens)
    stats.count_step(beam.rows, 1)
    # placeholder rows (score -inf, from a forced prefix) do not count as expansions
    stats.expand(
        beam.rows if search.variable or not beam.longest else (beam.last_score() > -torch.inf).sum()
    )
    # (4) the softmax scores the vocabulary or a shortlist, (5) the logits processors
    #     forbid and force
    log_probs = strategies.softmax(decoder, features, beam, pool)
    search.check_result(strategies.softmax, log_probs, beam)
    broken = log_probs.has_nan()
    log_probs = search.processors(log_probs, beam, pool, at_limit)
    if search.processors.lm is not None:  # the language model may give NaN, too
        broken = broken | log_probs.has_nan(all_words=True)
    # (6) the best continuations of each sentence, (7) without pruned ones
    candidates = strategies.select(beam, log_probs, pool)
    search.check_result(strategies.select, candidates, beam)
    for prune in strategies.prune:
        keep = prune(candidates, beam, pool, finished)
        search.check_result(prune, keep, beam, candidates)
        stats.drop((~keep & (candidates.score > -torch.inf))[:, : candidates.width])
        candidates.score = candidates.score.masked_fill(~keep, -torch.inf)
    # (8) finished candidates, candidates that continue, final sentences: the only wait for the
    #     device
    decision = strategies.stop(candidates, beam, pool, finished, at_limit)
    search.check_result(strategies.stop, decision, beam, candidates)
    done, final, counts, is_broken = fetch(
        decision, broken, rows_per_sentence(candidates, decision) if search.variable else None
    )
    if is_broken:
        source = "the model" if search.processors.lm is None else "the model or the language model"
        which = "one of the sentences" if len(beam.live) > 1 else "the sentence"
        raise NotANumber(f"{source} gives NaN at target position {beam.longest} of {which}")
    if done is not None and bool(done.any()):
        finished.collect_(beam, candidates, done, search.scoring, pool)
    # (9) the surviving candidates are the next beam; the decoder selects their rows
    rows = survivors(candidates, decision, beam.live, final, counts)
    if rows is None:
        return beam.empty()
    following = next_beam(beam, rows)
    decoder.select(
        rows.row,
        rows.sentence_index,
        following.decoder_width,
        following.sentence_of_row(),
    )
    return following


def fetch(
    decision: StopDecision, broken: Tensor, counts: Tensor | None
) -> tuple[Tensor | None, Tensor, Tensor | None, bool]:
    """Return done (S, c), final (S,), counts (S,) of rows and the NaN flag on the host, after one
    transfer."""
    if decision.done is None or decision.done.device.type == "cpu":
        return decision.done, decision.final, counts, bool(broken)
    S, c = decision.done.shape
    parts = [
        decision.done.flatten(),
        decision.final,
        broken[None],
        *([] if counts is None else [counts]),
    ]
    packed = torch.cat(parts).cpu()
    flags = packed[: S * c + S + 1].bool()
    return (
        flags[: S * c].view(S, c),
        flags[S * c : -1],
        None if counts is None else packed[-S:],
        bool(flags[-1]),
    )


# ---- Live rows in groups
#
# The decoder holds one group at a time.
#
# Sentences that start together are one group. Groups are joined if the decoder can step them
# together: if their rows have equally many tokens, or at any time if the decoder allows it and the
# schedule does not step the shortest first. A group too wide for one decoder call is divided.


@dataclass
class Group:
    """Rows that are stepped together."""

    beam: Beam
    # the decoder's rows of a group that is set aside; None while the decoder holds it
    rows: Tensor | None = None


class Groups:
    """All live rows, in groups; the group of the last step is first."""

    def __init__(self, decoder: Decoder, schedule: Schedule, joins_any_step: bool):
        self.decoder = decoder
        self.level = schedule.level
        self.most_rows = schedule.most_rows
        self.longest_first = schedule.longest_first
        self.joins_any_step = joins_any_step and decoder.joins_any_step and not schedule.level
        self.groups: list[Group] = []

    @property
    def live(self) -> int:
        """Number of live sentences of all groups."""
        return sum(len(group.beam.live) for group in self.groups)

    @property
    def rows(self) -> int:
        """Number of live rows of all groups."""
        return sum(group.beam.rows for group in self.groups)

    def set_aside(self) -> None:
        """Take the decoder's rows out of it and keep them with their group, if it holds one."""
        if self.groups and self.groups[0].rows is None:
            self.groups[0].rows = self.decoder.set_aside()

    def add(self, beam: Beam) -> None:
        """Add sentences that the decoder has just admitted as the first group."""
        self.groups.insert(0, Group(beam))

    def put(self, beam: Beam) -> None:
        """Store the beam of the group that was stepped; drop the group if none of its sentences is
        live."""
        if beam.live:
            self.groups[0].beam = beam
        else:
            self.decoder.set_aside()
            del self.groups[0]

    def next(self) -> Beam:
        """Bring the group of the next step into the decoder, joined with all that can be; return
        its beam."""
        if (
            len(self.groups) == 1
            and self.groups[0].rows is None
            and not self.too_wide(self.groups[0].beam)
        ):
            return self.groups[0].beam
        # the group with the fewest tokens, with the most, or the next in turn
        if self.level:
            chosen = min(self.groups, key=lambda g: g.beam.longest)
        elif self.longest_first:
            chosen = max(self.groups, key=lambda g: g.beam.longest)
        else:
            chosen = self.groups[-1]
        if chosen.rows is not None:
            self.set_aside()
            self.decoder.resume(chosen.rows)
            chosen.rows = None
        others = [group for group in self.groups if group is not chosen]
        if self.longest_first:
            others.sort(key=lambda g: g.beam.longest, reverse=True)
        if self.too_wide(chosen.beam):
            others.insert(0, self.divide(chosen))
        self.groups = [chosen]
        for group in others:
            if self.can_join(chosen.beam, group.beam):
                self.decoder.join(group.rows)
                chosen.beam = Beam.join(chosen.beam, group.beam)
            else:
                self.groups.append(group)
        return chosen.beam

    def drop(self, sentences: Collection[int]) -> None:
        """Remove the rows of these sentences from their groups."""
        for group in list(self.groups):
            beam = group.beam
            kept = [i for i, sentence in enumerate(beam.live) if sentence not in sentences]
            if len(kept) == len(beam.live):
                continue
            if group.rows is not None and kept:
                self.set_aside()
                self.decoder.resume(group.rows)
                group.rows = None
            self.groups.remove(group)
            if not kept:
                if group.rows is None:
                    self.decoder.set_aside()
                continue
            group.beam, row = beam.part(kept)
            part, sentence = group.beam, torch.tensor(kept, device=beam.device)
            self.decoder.select(row, sentence, part.decoder_width, part.sentence_of_row())
            self.groups.insert(0, group)  # the decoder holds the first one

    def has_room(self, rows: int) -> bool:
        """Return whether one decoder call may have `rows` rows."""
        return self.most_rows is None or rows <= self.most_rows

    def too_wide(self, beam: Beam) -> bool:
        """Return whether a group must be divided; a single sentence never is."""
        return len(beam.live) > 1 and not self.has_room(beam.rows)

    def can_join(self, a: Beam, b: Beam) -> bool:
        """Return whether two groups may be stepped together."""
        level = a.longest == b.longest and a.lags is None and b.lags is None
        return (self.joins_any_step or (level and self.decoder.joins)) and self.has_room(
            a.rows + b.rows
        )

    def divide(self, group: Group) -> Group:
        """Divide a group: the decoder keeps as many sentences as one call may have; return the
        others."""
        beam = group.beam
        counts = [beam.width] * len(beam.live) if beam.counts is None else beam.counts.tolist()
        steps = beam.steps()
        order = sorted(range(len(counts)), key=lambda i: -steps[i] if self.longest_first else 0)
        taken, rows = 1, counts[order[0]]
        while self.has_room(rows + counts[order[taken]]):
            rows += counts[order[taken]]
            taken += 1
        halves = []
        for places in (sorted(order[:taken]), sorted(order[taken:])):
            part, row = beam.part(places)
            sentence = torch.tensor(places, device=beam.device)
            halves.append(
                (
                    part,
                    (
                        row,
                        sentence,
                        part.decoder_width,
                        part.sentence_of_row(),
                    ),
                )
            )
        (first, arguments), (rest, others) = halves
        left = Group(rest, self.decoder.part(*others))
        self.decoder.select(*arguments)
        group.beam = first
        return left


# ---- The state of a search


def required_ids(select: Select, pool: Pool) -> list[Collection[int]] | None:
    """Return ids that every softmax must score for each sentence of a pool, in addition to EOS;
    None: no others."""
    found = select.required_ids(pool)
    if pool.rule is None:
        return found
    own = pool.rule.required_ids(pool)
    return own if found is None else [{*a, *b} for a, b in zip(found, own, strict=True)]


class Search:
    """One search over a pool, between two steps."""

    def __init__(self, setup: Setup, pool: Pool):
        self.decoder, self.scoring, self.strategies = setup.decoder, setup.scoring, setup.strategies
        self.check_result = setup.check_result
        self.processors, self.stats = setup.processors, setup.stats
        self.pool = pool
        self.device = pool.length.device
        self.finished = Finished.empty(len(pool), setup.nbest, self.device)
        # a language model needs rows of equal length
        self.groups = Groups(
            setup.decoder, setup.strategies.schedule, joins_any_step=setup.processors.lm is None
        )
        if not setup.strategies.softmax.is_full:
            pool.required = required_ids(setup.strategies.select, pool)

    @property
    def variable(self) -> bool:
        """Whether sentences may have fewer rows than the beam, by the strategies and the sentences
        that have started."""
        return self.strategies.variable

"""Live rows in groups, of which the decoder holds one at a time.

Sentences that start together are one group. Groups become one where the decoder can step them together: when their rows have
equally many tokens, or at any time if the decoder allows it and the schedule does not want its sentences level. A group too wide
for one decoder call is divided.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch

from fairseq_ext.model.protocol import Regroupable
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.protocols import Schedule


@dataclass
class Group:
    """Rows that are stepped together."""

    beam: Beam
    rows: Any = None  # what the decoder gave when the group was set aside; None while the decoder holds it


class Groups:
    """All live rows, the group that was stepped last in front."""

    def __init__(self, decoder: Regroupable, schedule: Schedule, joins_any_step: bool):
        self.decoder = decoder
        self.level = schedule.level
        self.most_rows = schedule.most_rows
        self.joins_any_step = joins_any_step and decoder.joins_any_step and not schedule.level
        self.groups: list[Group] = []

    @property
    def live(self) -> int:
        """Live sentences of all groups."""
        return sum(len(group.beam.live) for group in self.groups)

    @property
    def rows(self) -> int:
        """Live rows of all groups."""
        return sum(group.beam.rows for group in self.groups)

    def set_aside(self) -> None:
        """Take the decoder's rows out of it and keep them with their group, if it holds any."""
        if self.groups and self.groups[0].rows is None:
            self.groups[0].rows = self.decoder.set_aside()

    def add(self, beam: Beam) -> None:
        """Put sentences that the decoder has just admitted in front, as a group."""
        self.groups.insert(0, Group(beam))

    def put(self, beam: Beam) -> None:
        """Store the beam of the group that was stepped, in front; drop the group where none of its sentences is live."""
        if beam.live:
            self.groups[0].beam = beam
        else:
            self.decoder.set_aside()
            del self.groups[0]

    def next(self) -> Beam:
        """Bring the group that is stepped next into the decoder, joined with those that fit; return its beam."""
        if len(self.groups) == 1 and self.groups[0].rows is None and not self.too_wide(self.groups[0].beam):
            return self.groups[0].beam
        # the one with the fewest tokens, or the one whose turn it is
        chosen = min(self.groups, key=lambda g: g.beam.longest) if self.level else self.groups[-1]
        if chosen.rows is not None:
            self.set_aside()
            self.decoder.resume(chosen.rows)
            chosen.rows = None
        others = [group for group in self.groups if group is not chosen]
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
        """Take the rows of these sentences out, whichever group they are in."""
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
            self.decoder.select(row, sentence, 0 if part.counts is not None else part.width, part.sentence_of_row())
            self.groups.insert(0, group)  # the one that the decoder holds stands in front

    def has_room(self, rows: int) -> bool:
        """Whether one decoder call may take so many rows."""
        return self.most_rows is None or rows <= self.most_rows

    def too_wide(self, beam: Beam) -> bool:
        """Whether a group must be divided; a sentence is not, however many rows it has."""
        return len(beam.live) > 1 and not self.has_room(beam.rows)

    def can_join(self, a: Beam, b: Beam) -> bool:
        """Whether two groups may be stepped together."""
        level = a.longest == b.longest and a.lags is None and b.lags is None
        return (self.joins_any_step or (level and self.decoder.joins)) and self.has_room(a.rows + b.rows)

    def divide(self, group: Group) -> Group:
        """Leave as many sentences in the group, which the decoder holds, as one call may take; return the others."""
        beam = group.beam
        counts = [beam.width] * len(beam.live) if beam.counts is None else beam.counts.tolist()
        taken, rows = 1, counts[0]
        while self.has_room(rows + counts[taken]):
            rows += counts[taken]
            taken += 1
        halves = []
        for places in (range(taken), range(taken, len(counts))):
            part, row = beam.part(list(places))
            sentence = torch.tensor(list(places), device=beam.device)
            halves.append((part, (row, sentence, 0 if part.counts is not None else part.width, part.sentence_of_row())))
        (first, arguments), (rest, others) = halves
        left = Group(rest, self.decoder.part(*others))
        self.decoder.select(*arguments)
        group.beam = first
        return left

"""Counters of one run and their JSON (`--stats-file`). Counts are of work really done."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

NOT_PLAIN = ("extra", "certificates", "dropped_rows", "saved", "expanded")  # fields that as_dict treats on their own


@dataclass
class Stats:
    """What a run has done so far; strategies add their own sections to `extra`."""

    signature: str = ""
    sentences: int = 0
    target_tokens: int = 0  # of the best hypothesis of each sentence, EOS included
    seconds: float = 0.0  # decoding only
    encoder_calls: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0  # rows, summed over calls
    decoder_positions: int = 0  # rows x block width, summed over calls
    refills: int | None = None  # times that sentences started beside live ones, or after them; only of a streaming schedule
    extra: dict = field(default_factory=dict)
    expanded: int | Tensor = 0  # live hypotheses that the decoder has continued; on the device until read
    dropped_rows: Tensor | None = None  # candidates that would have been rows but for pruning; on the device until read
    certificates: Tensor | None = None  # (3,) sentences proved, sentences open, sum of the open ones' gaps; on the device until read
    # (2,) steps (a token of one sentence each) and rows that the same search would have taken beyond the work done to run on to every
    # sentence's length limit with k rows a step; an upper bound where fewer may be live (--stop-expansion paper, constraints,
    # dictionaries of less than 2k words); on the device until read
    saved: Tensor | None = None

    def drop(self, dropped: Tensor) -> None:
        """Count the rows that pruning has kept from the decoder (any shape, true where one was dropped)."""
        count = dropped.sum()
        self.dropped_rows = count if self.dropped_rows is None else self.dropped_rows + count

    def expand(self, hypotheses: int | Tensor) -> None:
        """Count live hypotheses that are continued."""
        self.expanded = self.expanded + hypotheses

    def useful_rows(self) -> float:
        """The share of decoder rows that were live hypotheses."""
        return int(self.expanded) / max(1, self.decoder_rows)

    def save(self, steps: Tensor, rows: Tensor) -> None:
        """Add to what an early end has saved."""
        counts = torch.stack([steps, rows])
        self.saved = counts if self.saved is None else self.saved + counts

    def count_step(self, rows: int, width: int) -> None:
        """One decoder call over this many rows, each width positions wide."""
        self.decoder_calls += 1
        self.decoder_rows += rows
        self.decoder_positions += rows * width

    def add(self, other: Stats) -> None:
        """Count what another process has done as well. Means are weighted by sentences."""
        before, more = self.sentences, other.sentences
        for name in self.__dataclass_fields__:
            if name == "extra":
                self.extra = added(self.extra, other.extra, before, more)
            elif name != "signature":
                ours, theirs = getattr(self, name), getattr(other, name)
                setattr(self, name, ours if theirs is None else theirs if ours is None else ours + theirs)

    def as_dict(self) -> dict:
        """The JSON object, keys of `extra` at its top."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in NOT_PLAIN}
        plain["expansions"] = int(self.expanded)
        if self.refills is None:
            del plain["refills"]
        if self.dropped_rows is not None:
            plain["dropped_rows"] = int(self.dropped_rows)
        if self.certificates is not None:
            proved, still_open, gap = self.certificates.tolist()
            mean = gap / still_open if still_open else 0.0
            plain["certificates"] = {"proved": round(proved), "open": round(still_open), "gap_mean": mean}
        if self.saved is not None:
            steps, rows = map(round, self.saved.tolist())
            plain["saved"] = {"steps": steps, "rows": rows, "expansions": rows}  # each row would have continued a live hypothesis
        return plain | self.extra

    def write(self, path: str) -> None:
        """Replace the file in one move, so that an interrupted run leaves the last whole one."""
        target = Path(path)
        handle, name = tempfile.mkstemp(dir=target.parent or ".", prefix=target.name, suffix=".part")
        with os.fdopen(handle, "w", encoding="utf-8") as out:
            json.dump(self.as_dict(), out, indent=1)
            out.write("\n")
        os.chmod(name, 0o644)
        os.replace(name, target)


def added(a: dict, b: dict, sentences_a: int, sentences_b: int) -> dict:
    """Two sections of statistics as one: numbers and lists add up, those called a mean or a rate are averaged over sentences."""
    out = dict(a)
    for name, value in b.items():
        if name not in a:
            out[name] = value
        elif isinstance(value, dict):
            out[name] = added(a[name], value, sentences_a, sentences_b)
        elif isinstance(value, (int, float)) and not isinstance(value, bool) and ("_mean" in name or "_per_" in name or "_at_" in name):
            out[name] = (a[name] * sentences_a + value * sentences_b) / max(1, sentences_a + sentences_b)
        elif isinstance(value, (int, float, list, Tensor)) and not isinstance(value, bool):
            out[name] = a[name] + value
    return out

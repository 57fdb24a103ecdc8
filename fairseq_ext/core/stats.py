"""What a run has done (`Stats`), in the counters of counters.py. plugin/stats_file.py writes it as the JSON object of `--stats-file`.

Counts are of work really done. Strategies hold their section and count in it; nobody replaces it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from fairseq_ext.core.counters import Section

S = TypeVar("S", bound=Section)
DECODER_WORK = ("encoder_calls", "decoder_calls", "decoder_rows", "decoder_positions")


@dataclass
class Stats(Section):
    """What a run has done so far. Strategies register sections of their own (`section`), which become attributes."""

    signature: str = ""
    sentences: int = 0
    target_tokens: int = 0  # of the best hypothesis of each sentence, EOS included
    seconds: float = 0.0  # decoding only
    encoder_calls: int = 0
    decoder_calls: int = 0
    decoder_rows: int = 0  # rows, summed over calls
    decoder_positions: int = 0  # rows x block width, summed over calls
    refills: int | None = None  # times that sentences started beside live ones, or after them; only of a streaming schedule
    # of these two, an int, or a tensor that stays on its device until it is read
    expansions: Any = None  # live hypotheses that the decoder has continued; only of beam search
    dropped_rows: Any = None  # candidates that would have been rows but for pruning
    _own_loop: bool = True  # False: fairseq's own loop decodes, which counts no work of the decoder

    def section(self, kind: type[S], *arguments: Any) -> S:
        """The section of this kind, made of the arguments where there is none yet."""
        if kind.key not in vars(self):
            setattr(self, kind.key, kind(*arguments))
        found = getattr(self, kind.key)
        assert isinstance(found, kind), f"the section {kind.key} is of another kind: {type(found).__name__}"
        return found

    def found(self, kind: type[S]) -> S | None:
        """The section of this kind, None where nothing is counted in one."""
        return vars(self).get(kind.key)

    def drop(self, dropped: Any) -> None:
        """Count the rows that pruning has kept from the decoder (a tensor of any shape, true where one was dropped)."""
        count = dropped.sum()
        self.dropped_rows = count if self.dropped_rows is None else self.dropped_rows + count

    def expand(self, hypotheses: Any) -> None:
        """Count live hypotheses that are continued."""
        self.expansions = hypotheses if self.expansions is None else self.expansions + hypotheses

    def refill(self) -> None:
        """Count a time that sentences started beside live ones, or after them."""
        self.refills = (self.refills or 0) + 1

    def useful_rows(self) -> float:
        """The share of decoder rows that were live hypotheses."""
        return int(self.expansions or 0) / max(1, self.decoder_rows)

    def count_step(self, rows: int, width: int) -> None:
        """One decoder call over this many rows, each width positions wide."""
        self.decoder_calls += 1
        self.decoder_rows += rows
        self.decoder_positions += rows * width

    def count_steps(self, calls: int, rows: int) -> None:
        """Steps of live hypotheses: so many decoder calls, of so many rows in all."""
        self.decoder_calls += calls
        self.decoder_rows += rows
        self.decoder_positions += rows
        self.expand(rows)

    def leave_out_decoder(self) -> None:
        """fairseq's own loop decodes, whose calls nobody counts: the counters of the decoder do not apply."""
        self._own_loop = False

    def mark(self) -> dict[str, Any]:
        """What `go_back` needs: of answers alone, so that it costs little to ask before every batch."""
        sections = {section.key: section.mark() for section in self.of_sentences()}
        return {"sentences": self.sentences, "target_tokens": self.target_tokens, **sections}

    def go_back(self, mark: dict[str, Any]) -> None:
        """A search failed after some answers, and its sentences are searched again: its work counts, its answers do not."""
        self.sentences, self.target_tokens = mark["sentences"], mark["target_tokens"]
        for section in self.of_sentences():
            section.go_back(mark.get(section.key, {}))

    def of_sentences(self) -> list[Section]:
        """The sections that count what became of sentences."""
        return [value for value in vars(self).values() if isinstance(value, Section) and value.of_answers]

    def counters(self) -> dict[str, Any]:
        found = super().counters()
        return found if self._own_loop else {name: value for name, value in found.items() if name not in DECODER_WORK}

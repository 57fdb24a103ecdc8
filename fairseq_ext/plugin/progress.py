"""How far a streaming run has come: a bar on a terminal, a line in the log now and then elsewhere."""

from __future__ import annotations

import logging
import time

from tqdm import tqdm

from fairseq_ext.core.stats import Stats

logger = logging.getLogger("fairseq_ext")
SECONDS_BETWEEN_LINES = 30.0


class Progress:
    """Sentences done of one pool. show_bar: whether by a bar on standard error."""

    def __init__(self, sentences: int, stats: Stats, show_bar: bool):
        self.sentences = sentences
        self.stats = stats
        self.done = 0
        self.start = self.told = time.monotonic()
        self.bar = tqdm(total=sentences, unit=" sentences", leave=False, dynamic_ncols=True) if show_bar else None

    def add(self) -> None:
        """One more sentence is done."""
        self.done += 1
        now = time.monotonic()
        if self.bar is not None:
            if now - self.told > 0.5:
                self.told = now
                self.bar.set_postfix_str(f"useful rows {self.stats.useful_rows():.0%}", refresh=False)
            self.bar.update()
        elif now - self.told > SECONDS_BETWEEN_LINES:
            self.told = now
            speed = self.done / (now - self.start)
            logger.info(
                f"sentences: {self.done:,} of {self.sentences:,}, {speed:.1f} a second, useful rows {self.stats.useful_rows():.0%}"
            )

    def close(self) -> None:
        """The pool is done."""
        if self.bar is not None:
            self.bar.close()

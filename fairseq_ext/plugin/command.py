"""What lasts as long as a command (or a Translator): its statistics and their file, its worker processes, what it says at its end."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fairseq_ext.core.errors import UsageError, report
from fairseq_ext.core.exit import at_process_end
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.plugin.results_file import ResultsFile
from fairseq_ext.plugin.run_key import run_key
from fairseq_ext.plugin.stats_file import StatsFile
from fairseq_ext.plugin.workers import Workers

if TYPE_CHECKING:
    from fairseq_ext.core.stats import Stats
    from fairseq_ext.plugin.generator import BeamSearchGenerator

logger = logging.getLogger("fairseq_ext")
SENTENCES_BETWEEN_TRIMS = 4_000  # after so many the memory that is kept for the next step goes back to the system, which costs some 50 ms


class Command:
    """One run: batches go through `decode`, and `end` runs once, when the process ends.

    at_end: called then, with the statistics, after they are written; it returns the status.
    Nothing here keeps a generator or its models alive.
    """

    def __init__(self, flags: Any, at_end: Callable[[Stats], int]):
        # plain values: a look into fairseq's configuration takes 40 us, and every batch asks
        self.stats_path: str | None = flags.stats_file
        self.cpu_workers: int = flags.cpu_workers
        self.at_end = at_end
        self.stats: Stats | None = None
        self.workers: Workers | None = None
        self.stats_file: StatsFile | None = None
        self.since_trim = 0  # sentences decoded since memory was given back
        at_process_end(self.end)

    def use(self, generator: BeamSearchGenerator, models: list) -> None:
        """Go on with this generator.

        Errors: UsageError for a results file or a statistics file that cannot be written.
        """
        flags, stats = generator.flags, generator.stats
        logger.info(stats.signature)
        if flags.results_file:
            made_from, words = run_key(generator, models), len(generator.context.dictionary)
            generator.results = ResultsFile(flags.results_file, flags.resume, stats.signature, made_from, words)
        if self.stats_path:
            self.stats_file = StatsFile(self.stats_path, stats)
        self.stats = stats

    def decode(self, generator: BeamSearchGenerator, decode: Callable[..., list], models: list, pad: int, batch: tuple) -> list:
        """The hypotheses of one batch (sample, prefix tokens, constraints), from the generator's `decode` or from worker processes that
        call it; pad: of the source."""
        if self.cpu_workers > 1:
            if self.workers is None or self.workers.generator is not generator:
                if self.workers is not None:
                    self.workers.stop()
                self.workers = Workers(self.cpu_workers, models, pad, generator, decode)
            out = self.workers(*batch)
        else:
            out = decode(*batch)
        self.since_trim += len(out)
        if self.since_trim >= SENTENCES_BETWEEN_TRIMS:
            give_back_memory()
            self.since_trim = 0
        if self.stats_file is not None:
            self.stats_file.follow()
        return out

    def end(self) -> int:
        """Stop the worker processes, write the statistics a last time, then what the caller wants; the status. Statistics that cannot be
        written make it 1."""
        if self.workers is not None:
            self.workers.stop()
        if self.stats is None:
            return 0
        failed = None
        try:
            if self.stats_file is not None:
                self.stats_file.write()
        except UsageError as error:
            failed = error
        status = self.at_end(self.stats)
        if failed is not None:
            report(type(failed), failed, None)
            return 1
        return status

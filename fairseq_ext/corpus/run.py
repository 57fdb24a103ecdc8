"""One run of a job: translates the lines that the output lacks."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq import options

from fairseq_ext.core.errors import UsageError, counted
from fairseq_ext.core.files import fingerprint, refuse_shared, sha256_of
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.job import (
    SUFFIXES,
    CorpusJob,
    Manifest,
    check_model,
    dictionaries,
    files_read,
    fingerprint_arguments,
)
from fairseq_ext.corpus.output import OutputFolder
from fairseq_ext.corpus.shards import (
    Shard,
    ShardReader,
    Unit,
    UnreadableShard,
    check_columns,
    shards_of,
)
from fairseq_ext.corpus.worker import NOT_MET, Result, died_result, error_entry
from fairseq_ext.plugin.loading.data_folder import SegmentationCheck, kind_of_files
from fairseq_ext.plugin.loading.settings import as_arguments, parse
from fairseq_ext.plugin.results import StatsFile

if TYPE_CHECKING:
    from fairseq_ext.corpus.scheduler import RayWorkers

logger = logging.getLogger("fairseq_ext.corpus")


def translate(job: CorpusJob) -> Progress:
    """Run a job to its end. Finished output is kept in any case; running the same job again
    continues it.

    Errors: UsageError for wrong arguments, a folder that holds other output, a full disk, a
    model that cannot be loaded.
    """
    given = {"task": "translation_ext", **job.flags}
    parse(
        options.get_interactive_generation_parser(),
        [job.data, "--path", job.path, *as_arguments(given)],
    )
    store = OutputFolder(job.output, SUFFIXES[job.format])
    shards = shards_of(job.input, job.constraints_file)
    for shard in shards:
        if (
            store.path(shard).absolute() == Path(shard.path).absolute()
            or store.path(shard) == store.folder / "errors.jsonl"
        ):
            raise UsageError(
                f"the output of {shard.path} would be {store.path(shard)}: name another --output, "
                "or rename the input"
            )
    if job.stats_file:
        refuse_shared([("--stats-file", job.stats_file)], files_read(job, shards))
    check_columns(shards, job.source_field)
    try:
        with store.locked():
            if job.overwrite:
                store.clear()
            return Run(job, store, shards).run()
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or f'to {job.output}'} ({error.strerror or error}): "
            "free disk space or fix the problem, then run the same command again; finished "
            "output is kept"
        ) from error


class Counts(Section):
    """The counters of all workers, with those of earlier runs."""

    def __init__(self) -> None:
        self.signature = ""


class Run:
    """A job that is being run, in the calling thread."""

    def __init__(self, job: CorpusJob, store: OutputFolder, shards: list[Shard]):
        self.job, self.store, self.shards = job, store, shards
        self.manifest = Manifest(store.folder)
        self.progress = Progress(job.progress, shards=len(shards))
        # sentences that have been read and not yet saved, by shard
        self.sentences_in_flight: Counter[str] = Counter()
        self.lines: dict[str, int] = {}  # number of lines of each shard that was read to its end
        # entries of errors.jsonl for shards that cannot be read to their end
        self.unreadable: dict[str, dict[str, Any]] = {}
        self.counts = Counts()
        self.signatures: set[str] = set()  # of the finished parts
        self.stats_file: StatsFile | None = None
        self.warnings: set[str] = set()  # of workers, that have been logged
        kind = None if job.flags.get("bpe") else kind_of_files([*map(str, dictionaries(job.data))])
        self.segmentation_check = SegmentationCheck(kind, job.data.split(":")[0])

    def run(self) -> Progress:
        """Read the existing output, translate what is missing, write the summary; return the
        counts."""
        todo = self.read_progress()
        manifest, progress = self.manifest, self.progress
        if self.job.stats_file:
            # it fails now, not at the end, if it cannot be written
            self.stats_file = StatsFile(self.job.stats_file, self.counts)
        try:
            if todo:
                self.work(todo)
        finally:
            kinds = self.store.write_errors(self.shards, self.unreadable)
            progress.errors, progress.unmet = kinds.total(), kinds[NOT_MET]
            progress.unreadable = [entry["reason"] for entry in self.unreadable.values()]
            progress.shards_done = sum(
                manifest.is_done(shard) and shard.name not in self.unreadable
                for shard in self.shards
            )
            manifest.totals = {
                "sentences": progress.sentences_before + progress.sentences,
                "errors": progress.errors,
                "stats": self.counts.as_dict(),
            }
            manifest.write()
            if self.stats_file is not None:
                self.stats_file.write()
        progress.signature = manifest.signature
        return progress

    def count(self, part: Section, *signatures: str) -> None:
        """Add the counts of what was made with these signatures; while nothing is finished, the
        manifest's holds."""
        self.counts.add(part)
        self.signatures |= {*signatures} - {""}
        self.counts.signature = " and ".join(sorted(self.signatures)) or self.manifest.signature

    def read_progress(self) -> list[Shard]:
        """Read the existing output; return the shards that are not finished."""
        if not self.manifest.path.exists() and self.store.has_parts():
            raise UsageError(
                f"{self.store.folder} has parts of an earlier run, and no manifest.json that says "
                "how they were made: put it back, name another --output, or start again with "
                "--overwrite"
            )
        inputs = {}
        for shard in self.shards:
            try:
                inputs[shard.name] = fingerprint(shard.path)
                self.progress.bytes += os.path.getsize(shard.path)
            except OSError as error:
                self.give_up(shard, 0, error.strerror or str(error))
        readable = [shard for shard in self.shards if shard.name in inputs]
        given = fingerprint_arguments(self.job, self.shards)
        for shard in self.manifest.reconcile(given, readable, inputs):
            if self.store.ranges(shard):
                logger.warning(
                    "%s has changed since a part of it was translated: it is translated again",
                    shard.path,
                )
            self.store.drop_parts(shard)
        self.manifest.write()
        return [shard for shard in readable if not self.is_done(shard)]

    def is_done(self, shard: Shard) -> bool:
        """Return whether the shard's output is there; a missing file is made again.

        The work of earlier runs is counted.
        """
        entry, path = self.manifest.shards[shard.name], self.store.path(shard)
        is_done = self.manifest.is_done(shard)
        if is_done and not (path.is_file() and sha256_of(path) == entry["sha256"]):
            logger.warning(
                "%s does not have the SHA-256 that the manifest gives: it is made again", path
            )
            self.manifest.reopen(shard, entry["input"])
            is_done = False
        if is_done:
            self.store.drop_parts(shard)  # an earlier run may have been killed before this step
            self.progress.bytes_before += os.path.getsize(shard.path)
        found = entry if is_done else self.store.summary(shard)[0]
        try:
            self.count(Section.restored(found["counts"]), *found["signatures"])
        except (ValueError, TypeError, KeyError) as error:
            raise UsageError(
                f"{self.manifest.path} cannot be used, because the counts of {shard.name} cannot "
                f"be read: {error}; name another --output, or start again with --overwrite"
            ) from error
        self.progress.sentences_before += found["lines"]
        return is_done

    def work(self, todo: list[Shard]) -> None:
        """Translate the missing lines of these shards."""
        # check first: Ray takes seconds to start, and a worker even longer to miss the model
        check_model(self.job)
        try:
            from fairseq_ext.corpus.scheduler import RayWorkers, actors_of, ray_for
        except ImportError as error:
            raise UsageError(
                f"this needs Ray ({error}): pip install 'fairseq_ext[cluster]', or pip "
                "install ray pyarrow"
            ) from error
        with ray_for(self.job) as resources:
            size, make_actor = actors_of(self.job, resources)
            workers = RayWorkers(make_actor, size, self.save, self.tick, self.sign)
            try:
                workers.run(self.units(todo))
            finally:
                self.progress.stop(workers)
                workers.close()

    def units(self, todo: list[Shard]) -> Iterator[Unit]:
        """Yield the missing units, shard by shard."""
        for shard in todo:
            position, number = 0.0, 0
            try:
                reader = ShardReader(shard, self.job.source_field)
                for sentences in reader.units(self.job.unit, self.store.ranges(shard)):
                    # lines that an earlier run has done were read together with these
                    input_bytes = (
                        (reader.position - position) * len(sentences) / (reader.number - number)
                    )
                    self.progress.bytes_before += reader.position - position - input_bytes
                    position, number = reader.position, reader.number
                    self.sentences_in_flight[shard.name] += len(sentences)
                    self.segmentation_check.check([each.request.source for each in sentences])
                    yield Unit(shard, sentences, input_bytes)
            except UnreadableShard as error:
                self.give_up(shard, error.lines, error.reason)
            except (UsageError, OSError) as error:
                self.give_up(shard, number, str(error))
            else:
                self.lines[shard.name] = reader.number
                self.join_if_whole(shard)
            self.progress.bytes_before += os.path.getsize(shard.path) - position

    def give_up(self, shard: Shard, lines: int, reason: str) -> None:
        """Record a shard that cannot be read to its end. The lines before are translated and kept
        for a later run."""
        reason = f"{shard.path} cannot be read beyond line {lines} ({reason})"
        logger.warning("%s: repair it and run the same command again", reason)
        self.unreadable[shard.name] = error_entry(shard, lines, None, "unreadable", reason)

    def sign(self, loaded: dict[str, Any]) -> None:
        """Record the signature of a worker that has loaded the model, and log its warnings."""
        known = self.manifest.signature
        self.manifest.sign(loaded["signature"])
        self.count(Section())
        self.log_once(loaded["warnings"])
        if not known:
            self.manifest.write()

    def log_once(self, warnings: Iterable[str]) -> None:
        """Log the warnings of a worker that no worker has had before."""
        for each in dict.fromkeys(warnings):
            if each not in self.warnings:
                self.warnings.add(each)
                logger.warning("%s", each)

    def save(self, unit: Unit, result: Result | None) -> None:
        """Write the result of a finished unit and count it; None: the result of a sentence that
        kills every worker is empty."""
        if result is None:
            result = died_result(unit.shard, unit.sentences[0], self.job.format == "text")
        self.log_once(result.warnings)
        self.store.save(unit.shard, unit.start, unit.end, result)
        self.progress.add(unit, result)
        self.count(result.stats, result.signature)
        self.sentences_in_flight[unit.shard.name] -= len(unit.sentences)
        self.join_if_whole(unit.shard)

    def join_if_whole(self, shard: Shard) -> None:
        """Join the shard's parts if all of them are there: write the errors, then the manifest,
        then remove the parts."""
        if shard.name not in self.lines or self.sentences_in_flight[shard.name]:
            return
        self.manifest.shards[shard.name] |= self.store.finish(shard, self.lines[shard.name])
        self.manifest.write()
        self.store.drop_parts(shard)

    def tick(self, workers: RayWorkers) -> None:
        """Write progress and statistics; called about once a second."""
        self.progress.tick(workers)
        if self.stats_file is not None:
            self.stats_file.write_occasionally()


# ---- Progress lines of a run


@dataclass
class Progress:
    """Counts. interval: seconds between two lines on standard error, 0 for none."""

    interval: float
    shards: int
    shards_done: int = 0
    unreadable: list[str] = field(default_factory=list)  # shards: why
    errors: int = 0  # entries of errors.jsonl
    unmet: int = 0  # of these, constraints that are not met
    sentences_before: int = 0  # done by earlier runs
    sentences: int = 0  # done by this run, like all fields below
    tokens: int = 0  # of the best hypotheses, EOS included
    bytes: int = 0  # of the input
    bytes_before: float = 0.0  # done by earlier runs, or left out
    bytes_done: float = 0.0
    seconds: float = 0.0  # from the start of the first unit to the end of the last
    workers: int = 0
    restarts: int = 0
    signature: str = ""
    last_report_time: float = field(default_factory=time.monotonic)
    reported_sentences: int = -1  # sentences, as the last line with figures had them
    changed: float = 0.0  # when that was

    def add(self, unit: Unit, result: Result) -> None:
        """Count a finished unit."""
        self.sentences += len(unit.sentences)
        self.tokens += result.stats.target_tokens
        self.bytes_done += unit.input_bytes

    def tick(self, workers: RayWorkers) -> None:
        """Print a progress line if the interval has passed: the figures, or for how long they have
        not changed."""
        now = time.monotonic()
        if not self.interval or now - self.last_report_time < self.interval:
            return
        self.last_report_time, self.seconds = now, now - (workers.start_time or now)
        where = f"no other sentence for {clock(now - self.changed)}"
        if self.sentences != self.reported_sentences:
            self.reported_sentences, self.changed, where = self.sentences, now, self.figures()
        alive, size = workers.alive, workers.size
        waiting = "" if alive else " (they are starting, or the cluster has no room for them)"
        line = f"corpus: {where}, {alive} of {counted(size, 'worker')} alive{waiting}"
        print(line, file=sys.stderr, flush=True)

    def figures(self) -> str:
        """Return sentences, speed, share done and time left as a text."""
        share = min((self.bytes_before + self.bytes_done) / max(self.bytes, 1), 1.0)
        bytes_left = self.bytes - self.bytes_before - self.bytes_done
        left = self.seconds * bytes_left / self.bytes_done if self.bytes_done else None
        return (
            f"{counted(self.sentences_before + self.sentences, 'sentence')}, "
            f"{self.rate(self.sentences):.1f} a second, {self.rate(self.tokens):.0f} "
            f"tokens a second, {100 * share:.1f}% done, {clock(left)} left"
        )

    def rate(self, count: int) -> float:
        """Return a count divided by the seconds of decoding."""
        return count / self.seconds if self.seconds else 0.0

    def stop(self, workers: RayWorkers) -> None:
        """Record the time and the workers; called after the last unit."""
        self.seconds = time.monotonic() - workers.start_time if workers.start_time else 0.0
        self.workers, self.restarts = workers.size, workers.restarts


def clock(seconds: float | None) -> str:
    """Return a time as hours, minutes and seconds."""
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"

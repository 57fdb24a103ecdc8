"""One run of a job: translates the lines that the output lacks."""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairseq import options

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.files import fingerprint, refuse_shared, sha256_of
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.job import (
    SUFFIXES,
    CorpusJob,
    Manifest,
    absolute,
    check_model,
    dictionaries,
    files_read,
    fingerprint_arguments,
)
from fairseq_ext.corpus.output import OutputFolder
from fairseq_ext.corpus.progress import Progress, RunStats
from fairseq_ext.corpus.scheduler import ray_for
from fairseq_ext.corpus.shards import Shard, ShardReader, UnreadableShard, check_columns, shards_of
from fairseq_ext.corpus.worker import NOT_MET, Result, died_result
from fairseq_ext.plugin.loading.data_folder import SegmentationCheck, kind_of_files
from fairseq_ext.plugin.loading.settings import as_arguments, parse

if TYPE_CHECKING:
    from fairseq_ext.corpus.scheduler import Unit

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
    store.lock()
    try:
        store.remove_unfinished(shards)
        if job.overwrite:
            store.clear()
        return Run(job, store, shards).run()
    except OSError as error:
        raise UsageError(
            f"cannot write {error.filename or f'to {job.output}'} ({error.strerror or error}): "
            "free disk space or fix the problem, then run the same command again; finished "
            "output is kept"
        ) from error
    finally:
        store.unlock()


class Run:
    """A job that is being run.

    All work is done in the calling thread, except the joining of finished shards.
    """

    def __init__(self, job: CorpusJob, store: OutputFolder, shards: list[Shard]):
        self.job, self.store, self.shards = job, store, shards
        self.manifest = Manifest(store.folder)
        self.progress = Progress(job.progress, shards=len(shards))
        self.joiner = ThreadPoolExecutor(1)
        self.joining: list[tuple[Shard, Future]] = []
        # sentences that have been read and not yet saved, by shard
        self.sentences_in_flight: Counter[str] = Counter()
        self.lines: dict[str, int] = {}  # number of lines of each shard that was read to its end
        self.stats = RunStats(job.stats_file)
        self.worker_notes: set[str] = set()  # notes that have been logged
        kind = (
            None
            if job.flags.get("bpe")
            else kind_of_files([entry.path for entry in dictionaries(job.data)])
        )
        self.segmentation_check = SegmentationCheck(kind, job.data.split(":")[0])

    def run(self) -> Progress:
        """Read the existing output, translate what is missing, write the summary; return the
        counts."""
        todo = self.read_progress()
        if not self.stats.is_stream:
            # fail now, not at the end, if the statistics file cannot be written
            self.stats.write(self.manifest.signature)
        try:
            if todo:
                self.work(todo)
            self.finish_joined_shards(wait=True)
        finally:
            self.joiner.shutdown()
            progress, entries = self.progress, self.manifest.shards.values()
            kinds = self.store.write_errors(self.shards, self.entries)
            progress.errors, progress.unmet = kinds.total(), kinds[NOT_MET]
            progress.unreadable = [
                entry["reason"] for entry in entries if entry["state"] == "unreadable"
            ]
            progress.shards_done = sum(entry["state"] == "done" for entry in entries)
            stats = self.stats.as_dict(self.manifest.signature)
            self.manifest.totals = {
                "sentences": progress.sentences_before + progress.sentences,
                "errors": progress.errors,
                "stats": stats,
            }
            self.manifest.write()
            self.stats.write(self.manifest.signature)
        progress.signature = self.manifest.signature
        return progress

    def read_progress(self) -> list[Shard]:
        """Read the existing output; return the shards that are not finished."""
        job, progress = self.job, self.progress
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
                progress.bytes += os.path.getsize(shard.path)
            except OSError as error:
                self.give_up(shard, 0, error.strerror or str(error))
        readable = [shard for shard in self.shards if shard.name in inputs]
        given = fingerprint_arguments(
            job.path,
            job.data,
            self.shards,
            job.flags,
            format=job.format,
            source_field=job.source_field,
        )
        for shard in self.manifest.reconcile(given, readable, inputs):
            if self.store.ranges(shard):
                logger.warning(
                    "%s has changed since a part of it was translated: it is translated again",
                    shard.path,
                )
            self.store.drop_parts(shard)
        self.manifest.write()
        todo = []
        for shard in readable:
            if self.is_done(shard):
                progress.bytes_before += os.path.getsize(shard.path)
            else:
                todo.append(shard)
        return todo

    def is_done(self, shard: Shard) -> bool:
        """Return whether the shard's output is there; a missing file is made again.

        The work of earlier runs is counted.
        """
        entry = self.manifest.shards[shard.name]
        path = self.store.path(shard)
        if entry["state"] == "done" and not (path.is_file() and sha256_of(path) == entry["sha256"]):
            logger.warning(
                "%s does not have the SHA-256 that the manifest gives: it is made again", path
            )
            entry = self.manifest.shards[shard.name] = {"state": "open", "input": entry["input"]}
        if entry["state"] == "done":
            self.store.drop_parts(shard)  # an earlier run may have been killed before this step
        found = entry if entry["state"] == "done" else self.store.summary(shard)[0]
        try:
            self.stats.add(Section.restored(found["counts"]), *found["signatures"])
        except (ValueError, TypeError, KeyError) as error:
            what = (
                f"{self.manifest.path} cannot be used, because the counts of {shard.name} cannot "
                f"be read: {error}"
            )
            raise UsageError(
                f"{what}; name another --output, or start again with --overwrite"
            ) from error
        self.progress.sentences_before += found["lines"]
        return entry["state"] == "done"

    def work(self, todo: list[Shard]) -> None:
        """Translate the missing lines of these shards."""
        # check first: Ray takes seconds to start, and a worker even longer to miss the model
        check_model(self.job)
        with ray_for(self.job) as workers:
            from fairseq_ext.corpus.scheduler import UnitScheduler, remote_worker

            job = self.job
            flags = {
                name: absolute(value)
                for name, value in {**job.flags, "path": job.path, "data": job.data}.items()
            }
            plain = job.format == "text"

            def make() -> Any:
                return remote_worker(flags, job.threads, plain, workers.gpu)

            scheduler = UnitScheduler(
                make, workers.number, self.save, self.on_sentence_lost, self.tick, self.sign
            )
            try:
                scheduler.run(self.units(todo))
            finally:
                self.progress.stop(scheduler)
                scheduler.close()

    def units(self, todo: list[Shard]) -> Iterator[Unit]:
        """Yield the missing units, shard by shard."""
        from fairseq_ext.corpus.scheduler import Unit

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
                    self.segmentation_check.check([sentence.source for sentence in sentences])
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
        known = self.manifest.shards.get(shard.name, {"input": "", "state": "open"})
        done = known if known["state"] == "done" else known.get("done")
        self.manifest.shards[shard.name] = {
            "input": known["input"],
            "state": "unreadable",
            "reason": reason,
            "line": lines + 1,
            **({"done": done} if done else {}),
        }

    def entries(self, shard: Shard) -> list[dict[str, Any]]:
        """Return the entries of errors.jsonl that concern a shard as a whole."""
        entry = self.manifest.shards.get(shard.name, {})
        if entry.get("state") != "unreadable":
            return []
        return [
            {
                "shard": shard.name,
                "line": entry["line"],
                "id": None,
                "kind": "unreadable",
                "reason": entry["reason"],
            }
        ]

    def sign(self, loaded: dict[str, str]) -> None:
        """Record the signature of a worker that has loaded the model, and log its note."""
        known = self.manifest.signature
        self.manifest.sign(loaded["signature"])
        note = loaded.get("note", "")
        if note and note not in self.worker_notes:
            self.worker_notes.add(note)
            logger.warning(note)
        if not known:
            self.manifest.write()

    def save(self, unit: Unit, result: Result) -> None:
        """Write the result of a finished unit and count it."""
        self.store.save(unit.shard, unit.start, unit.end, result)
        self.progress.add(unit, result)
        self.stats.add(result.stats, result.signature)
        self.sentences_in_flight[unit.shard.name] -= len(unit.sentences)
        self.join_if_whole(unit.shard)

    def on_sentence_lost(self, unit: Unit) -> None:
        """Write an empty result for a unit of one sentence that kills every worker."""
        self.save(unit, died_result(unit.shard, unit.sentences[0], self.job.format == "text"))

    def join_if_whole(self, shard: Shard) -> None:
        """Start joining the shard's parts if all of them are there."""
        if shard.name in self.lines and not self.sentences_in_flight[shard.name]:
            self.joining.append(
                (shard, self.joiner.submit(self.store.finish, shard, self.lines[shard.name]))
            )

    def finish_joined_shards(self, wait: bool = False) -> None:
        """Record the finished shards: write the errors, then the manifest, then remove the
        parts."""
        while self.joining and (wait or self.joining[0][1].done()):
            shard, future = self.joining.pop(0)
            entry, errors = future.result()
            self.store.keep_errors(shard, errors)
            self.manifest.shards[shard.name] = {
                "input": self.manifest.shards[shard.name]["input"],
                **entry,
            }
            self.manifest.write()
            self.joiner.submit(self.store.drop_parts, shard)

    def tick(self, alive: int, size: int, start_time: float) -> None:
        """Record joined shards, and write progress and statistics; called about once a second."""
        self.finish_joined_shards()
        self.progress.tick(alive, size, start_time)
        self.stats.write_occasionally(self.manifest.signature)

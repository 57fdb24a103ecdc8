"""One run: what is missing of the output is translated and put in its place."""

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
    Job,
    Manifest,
    absolute,
    arguments,
    check_model,
    dictionaries,
    files_read,
)
from fairseq_ext.corpus.output import Store
from fairseq_ext.corpus.progress import Progress, RunStats
from fairseq_ext.corpus.scheduler import ray_for
from fairseq_ext.corpus.shards import Reader, Shard, Unreadable, check_columns, shards_of
from fairseq_ext.corpus.worker import Result, refusal
from fairseq_ext.plugin.loading.data_folder import RawText, kind_of_files
from fairseq_ext.plugin.loading.settings import as_arguments, parse

if TYPE_CHECKING:
    from fairseq_ext.corpus.scheduler import Unit

logger = logging.getLogger("fairseq_ext.corpus")


def translate(job: Job) -> Progress:
    """Run a job to its end. What is finished stays whatever happens; the same job again
    goes on from there.

    Errors: UsageError for wrong arguments, a folder that holds other output, a full disk, a
    model that cannot be loaded.
    """
    given = {"task": "translation_ext", **job.flags}
    parse(
        options.get_interactive_generation_parser(),
        [job.data, "--path", job.path, *as_arguments(given)],
    )
    store = Store(job.output, SUFFIXES[job.format])
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
            "make room or mend it, and run the same command again; what is finished is kept"
        ) from error
    finally:
        store.unlock()


class Run:
    """A job under way.

    Everything is done in the calling thread, save the joining of finished shards.
    """

    def __init__(self, job: Job, store: Store, shards: list[Shard]):
        self.job, self.store, self.shards = job, store, shards
        self.manifest = Manifest(store.folder)
        self.progress = Progress(job.progress, shards=len(shards))
        self.joiner = ThreadPoolExecutor(1)
        self.joining: list[tuple[Shard, Future]] = []
        self.under_way: Counter[str] = Counter()  # sentences that are read and not saved, by shard
        self.lines: dict[str, int] = {}  # of the shards that have been read to their end
        self.stats = RunStats(job.stats_file)
        self.notes: set[str] = set()  # of workers, each told once
        kind = (
            None
            if job.flags.get("bpe")
            else kind_of_files([entry.path for entry in dictionaries(job.data)])
        )
        self.raw_text = RawText(kind, job.data.split(":")[0])

    def run(self) -> Progress:
        """Read what is there already, translate what is missing, and write the summary;
        return the counts."""
        todo = self.look()
        if not self.stats.is_stream:
            # a place that cannot be written is better known now than at the end
            self.stats.write(self.manifest.signature)
        try:
            if todo:
                self.work(todo)
            self.take_joined(wait=True)
        finally:
            self.joiner.shutdown()
            progress, entries = self.progress, self.manifest.shards.values()
            progress.errors = self.store.write_errors(self.shards, self.entries)
            progress.unreadable = [
                entry["reason"] for entry in entries if entry["state"] == "unreadable"
            ]
            progress.done = sum(entry["state"] == "done" for entry in entries)
            told = self.stats.as_dict(self.manifest.signature)
            self.manifest.totals = {
                "sentences": progress.before + progress.sentences,
                "errors": progress.errors,
                "stats": told,
            }
            self.manifest.write()
            self.stats.write(self.manifest.signature)
        progress.signature = self.manifest.signature
        return progress

    def look(self) -> list[Shard]:
        """Read what is there already; return the shards that are to be worked on."""
        job, progress = self.job, self.progress
        if not self.manifest.path.exists() and self.store.has_parts():
            raise UsageError(
                f"{self.store.folder} has parts of an earlier run, and no manifest.json that says "
                "how they were made: put it back, name another --output, or start anew with "
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
        given = arguments(
            job.path,
            job.data,
            self.shards,
            job.flags,
            format=job.format,
            source_field=job.source_field,
        )
        for shard in self.manifest.join(given, readable, inputs):
            if self.store.ranges(shard):
                logger.warning(
                    "%s has changed since a part of it was translated: it is translated anew",
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
        """Whether the shard's output is there; one that has gone is made again.

        What was done before is counted.
        """
        entry = self.manifest.shards[shard.name]
        path = self.store.path(shard)
        if entry["state"] == "done" and not (path.is_file() and sha256_of(path) == entry["sha256"]):
            logger.warning(
                "%s does not have the SHA-256 that the manifest gives: it is made again", path
            )
            entry = self.manifest.shards[shard.name] = {"state": "open", "input": entry["input"]}
        if entry["state"] == "done":
            self.store.drop_parts(shard)  # of a run that was killed just before it did so
        found = entry if entry["state"] == "done" else self.store.summary(shard)[0]
        try:
            self.stats.add(Section.restored(found["counts"]), *found["signatures"])
        except (ValueError, TypeError, KeyError) as error:
            what = (
                f"{self.manifest.path} cannot be used, because the counts of {shard.name} cannot "
                f"be read: {error}"
            )
            raise UsageError(
                f"{what}; name another --output, or start anew with --overwrite"
            ) from error
        self.progress.before += found["lines"]
        return entry["state"] == "done"

    def work(self, todo: list[Shard]) -> None:
        """Translate what is missing of these shards."""
        # Ray takes seconds to start, and the workers longer to find it missing
        check_model(self.job)
        with ray_for(self.job) as workers:
            from fairseq_ext.corpus.scheduler import Scheduler, remote_worker

            job = self.job
            flags = {
                name: absolute(value)
                for name, value in {**job.flags, "path": job.path, "data": job.data}.items()
            }
            plain = job.format == "text"

            def make() -> Any:
                return remote_worker(flags, job.threads, plain, workers.gpu)

            scheduler = Scheduler(make, workers.number, self.save, self.lost, self.tick, self.sign)
            try:
                scheduler.run(self.units(todo))
            finally:
                self.progress.stop(scheduler)
                scheduler.close()

    def units(self, todo: list[Shard]) -> Iterator[Unit]:
        """Yield the units that are missing, shard by shard."""
        from fairseq_ext.corpus.scheduler import Unit

        for shard in todo:
            position, number = 0.0, 0
            try:
                reader = Reader(shard, self.job.source_field)
                for sentences in reader.units(self.job.unit, self.store.ranges(shard)):
                    # lines that an earlier run has done were read beside these
                    weight = (
                        (reader.position - position) * len(sentences) / (reader.number - number)
                    )
                    self.progress.bytes_before += reader.position - position - weight
                    position, number = reader.position, reader.number
                    self.under_way[shard.name] += len(sentences)
                    self.raw_text.look([sentence.source for sentence in sentences])
                    yield Unit(shard, sentences, weight)
            except Unreadable as error:
                self.give_up(shard, error.lines, error.reason)
            except (UsageError, OSError) as error:
                self.give_up(shard, number, str(error))
            else:
                self.lines[shard.name] = reader.number
                self.join_if_whole(shard)
            self.progress.bytes_before += os.path.getsize(shard.path) - position

    def give_up(self, shard: Shard, lines: int, reason: str) -> None:
        """Note a shard that cannot be read to its end; what was read of it is translated
        and kept for a later run."""
        reason = f"{shard.path} cannot be read beyond line {lines} ({reason})"
        logger.warning("%s: mend it and run the same command again", reason)
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
        """Return the entries of errors.jsonl that are of a shard as a whole."""
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
        """Note the signature of a worker that has loaded the model."""
        known = self.manifest.signature
        self.manifest.sign(loaded["signature"])
        note = loaded.get("note", "")
        if note and note not in self.notes:
            self.notes.add(note)
            logger.warning(note)
        if not known:
            self.manifest.write()

    def save(self, unit: Unit, result: Result) -> None:
        """Write the result of a finished unit and count it."""
        self.store.save(unit.shard, unit.start, unit.end, result)
        self.progress.add(unit, result)
        self.stats.add(result.stats, result.signature)
        self.under_way[unit.shard.name] -= len(unit.sentences)
        self.join_if_whole(unit.shard)

    def lost(self, unit: Unit) -> None:
        """Write an empty result for a unit of one sentence that no worker survives."""
        self.save(unit, refusal(unit.shard, unit.sentences[0], self.job.format == "text"))

    def join_if_whole(self, shard: Shard) -> None:
        """Have the shard's parts joined when all of them are there."""
        if shard.name in self.lines and not self.under_way[shard.name]:
            self.joining.append(
                (shard, self.joiner.submit(self.store.finish, shard, self.lines[shard.name]))
            )

    def take_joined(self, wait: bool = False) -> None:
        """Note the shards that are finished: errors, then manifest; only then their parts go."""
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

    def tick(self, alive: int, size: int, begun: float) -> None:
        """Take the shards that have been joined, and write progress and statistics; called
        about once a second."""
        self.take_joined()
        self.progress.tick(alive, size, begun)
        self.stats.follow(self.manifest.signature)

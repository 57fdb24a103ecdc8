"""What the tests of fairseq_ext.corpus share: input shards of every kind, jobs over them, and what
a single process makes of them."""

import contextlib
import gzip
import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.stats import Stats
from fairseq_ext.corpus import run
from fairseq_ext.corpus.job import CorpusJob
from fairseq_ext.corpus.shards import Shard, ShardReader
from fairseq_ext.corpus.worker import CorpusWorker, Result, error_entry

ROOT = Path(__file__).resolve().parents[1]
DEMO = ROOT / "checkpoints" / "demo"
FLAGS = {
    "source_lang": "de",
    "target_lang": "en",
    "bpe": "sentencepiece",
    "sentencepiece_model": str(DEMO / "spm.model"),
    "beam": "2",
    "cpu": True,
}


def source_lines(start, end):
    """Lines of the demo's test set, the short ones first; behind the last line, the first again."""
    lines = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    return (sorted(lines, key=len) * (end // len(lines) + 1))[start:end]


def write_text(path, lines):
    """A text shard, compressed if its name says so."""
    raw = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    return path


def job(inputs, output, flags=None, **others):
    """A job on the demo model."""
    settings = {"unit": 10, "workers": 2, "progress": 0.0, **others}
    return CorpusJob(
        str(DEMO / "checkpoint.pt"),
        str(DEMO),
        [str(p) for p in inputs],
        str(output),
        {**FLAGS, **(flags or {})},
        **settings,
    )


def ran(inputs, output, flags=None, **others):
    """What a run of such a job says."""
    return run.translate(job(inputs, output, flags, **others))


def records(path):
    """The lines of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def finals(folder):
    """The output files, by name."""
    files = (
        path
        for path in folder.rglob("*")
        if path.is_file() and ".parts" not in path.parts and path.name != "manifest.json"
    )
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def parts(folder):
    """Finished units of unfinished shards."""
    return [
        path for path in folder.glob(".parts/**/*-*") if path.is_file() and path.suffix != ".part"
    ]


class OneProcess(run.Run):
    """The same run with one worker in this process and no Ray: what reading, writing and resuming
    do can be seen in milliseconds."""

    worker = None  # of the whole session where a test does not bring its own

    def work(self, todo):
        worker = self.worker or CorpusWorker(
            {**self.job.flags, "path": self.job.path, "data": self.job.data},
            1,
            self.job.format == "text",
        )
        is_loaded = not isinstance(worker, CorpusWorker) or worker.translator is not None
        if not is_loaded and "error" in (loaded := worker.load()):
            raise UsageError(loaded["error"])
        for unit in self.units(todo):
            result = worker.translate(unit.shard, unit.sentences)
            self.sign({"signature": "one process", "warnings": ()})
            self.save(unit, result)
            self.tick(SimpleNamespace(alive=1, size=1, start_time=time.monotonic()))


@contextlib.contextmanager
def one_process(monkeypatch, worker):
    """Runs are `OneProcess` with this worker."""
    with monkeypatch.context() as patch:
        patch.setattr(run, "Run", OneProcess)
        patch.setattr(OneProcess, "worker", worker)
        yield


def descendants(pid):
    """The processes below one, with their command lines."""
    parents = {}
    for entry in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            parents[int(entry)] = int(
                Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()[1]
            )
    found = {}
    level = [pid]
    while level:
        level = [child for child, parent in parents.items() if parent in level]
        for child in level:
            with contextlib.suppress(OSError):
                found[child] = (
                    Path(f"/proc/{child}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
    return found


class Echo:
    """A worker that needs no model: upper case is the translation.

    It refuses what a CorpusWorker refuses for its kind.
    """

    calls = 0

    def translate(self, shard, sentences):
        self.calls += 1
        errors = [error_entry(shard, s.number, s.id, *s.error) for s in sentences if s.error]
        lines = [
            json.dumps({"id": s.id, "hypotheses": [] if s.error else [s.request.source.upper()]})
            + "\n"
            for s in sentences
        ]
        stats = Stats(sentences=len(sentences) - len(errors), target_tokens=len(sentences))
        return Result("".join(lines).encode(), errors, stats, "echo")


def read(path, constraints=None, **how):
    """The sentences of a file. constraints: a file of them."""
    shard = Shard(str(path), "x", constraints and str(constraints))
    return [s for unit in ShardReader(shard, **how).units(1000, []) for s in unit]


def text_shards(tmp_path, sizes=(25, 0, 7)):
    return [
        write_text(tmp_path / f"in{i}.txt", [f"{i}: {n}" for n in range(size)])
        for i, size in enumerate(sizes)
    ]


@contextlib.contextmanager
def meanwhile(step):
    """Calls `step` over and over in another thread, until it returns true or the block ends."""
    over = threading.Event()

    def repeat():
        while not over.wait(0.05) and not step():
            pass

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def start_ray():
    """Start Ray with two processors, unless it runs."""
    import ray

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if not ray.is_initialized():
        ray.init(
            address="local",
            num_cpus=2,
            object_store_memory=100 << 20,
            include_dashboard=False,
            log_to_driver=False,
            logging_level="ERROR",
            _node_ip_address="127.0.0.1",
        )

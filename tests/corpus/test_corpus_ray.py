"""Corpus runs on Ray: the same as one process, whatever is killed meanwhile."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time

import pytest
import ray
from corpus_jobs import (
    DEMO,
    FLAGS,
    ROOT,
    descendants,
    finals,
    job,
    meanwhile,
    parts,
    records,
    source_lines,
    start_ray,
    write_text,
)
from sizes import drawn, part_of

from fairseq_ext import Translator
from fairseq_ext.corpus.run import translate
from fairseq_ext.plugin.loading.settings import as_arguments

SCORE = {"abs": 1e-4}


@pytest.fixture(scope="module")
def started():
    start_ray()
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def alone():
    """One process that translates everything at once."""
    return Translator(str(DEMO / "checkpoint.pt"), str(DEMO), **FLAGS)


def same(found, expected):
    """Output records and n-best lists say the same."""
    assert [r["hypotheses"] for r in found] == [[h.text for h in nbest] for nbest in expected]
    assert [r["scores"] for r in found] == [
        pytest.approx([h.score for h in nbest], **SCORE) for nbest in expected
    ]


def workers() -> list[int]:
    """The processes of this session's actors."""
    return [
        pid
        for pid, name in descendants(os.getpid()).items()
        if name.startswith("ray::CorpusWorker")
    ]


def test_workers_killed_at_random_moments_change_nothing(started, alone, tmp_path):
    lines = source_lines(0, len(part_of(400, 120))) * 2
    path, out = write_text(tmp_path / "a.txt", lines), tmp_path / "out"
    chance, killed, seen = random.Random(4), [], [-1]

    def kill():
        """Each time that some more units are finished, a moment later."""
        if len(parts(out)) > seen[0] and (victims := workers()):
            seen[0] = len(parts(out)) + 1
            time.sleep(chance.random() * 0.3)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim := chance.choice(victims), signal.SIGKILL)
                killed.append(victim)
        return len(killed) == 3

    with meanwhile(kill):
        done = translate(job([path], out))
    assert len(killed) == 3 and done.restarts >= 1  # one that was only starting is not counted
    same(records(out / "a.jsonl"), alone.translate(lines))
    assert (done.errors, done.sentences, parts(out)) == (0, len(lines), [])


@drawn(0)  # long
def test_a_killed_run_is_started_again(started, alone, tmp_path, hostile):
    """And neither it nor its workers run a file of the folder in which it was started."""
    lines = source_lines(0, 120)
    parts_of = {"a.txt": lines[:20], "b.txt": lines[20:]}
    inputs = [write_text(tmp_path / name, some) for name, some in parts_of.items()]
    out = tmp_path / "out"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words = [*as_arguments(FLAGS), "--path", DEMO / "checkpoint.pt", "--data", DEMO]
    words += ["--input", *inputs, "--output", out, *"--unit 10 --object-store 100".split()]
    words = [sys.executable, *"-m fairseq_ext.corpus translate".split(), *map(str, words)]
    driver = subprocess.Popen(
        words, cwd=hostile, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while driver.poll() is None and len(parts(out)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    below = descendants(driver.pid).items()
    raylets = [pid for pid, name in below if "raylet/raylet" in name]
    left = raylets + [pid for pid, name in below if name.startswith("ray::CorpusWorker")]
    # one of the two workers may be starting
    assert len(raylets) == 1 and len(left) >= 2
    driver.kill()
    assert driver.wait() == -signal.SIGKILL, driver.stderr.read().decode()
    driver.stderr.close()
    assert not list(hostile.glob("*.run"))
    kept = len(parts(out)) * 10 + 20 * (out / "a.jsonl").exists()
    assert kept and not (out / "b.jsonl").exists()
    # the second run is this process
    done = translate(job(inputs, out))
    assert done.sentences_before >= 20 and done.sentences_before + done.sentences == 120
    same([*records(out / "a.jsonl"), *records(out / "b.jsonl")], alone.translate(lines))
    assert finals(out).keys() == {"a.jsonl", "b.jsonl", "errors.jsonl"} and parts(out) == []
    # the killed run's workers have gone with it
    until = time.monotonic() + 30
    while (
        alive := [pid for pid in left if os.path.exists(f"/proc/{pid}")]
    ) and time.monotonic() < until:
        time.sleep(0.1)
    assert not alive

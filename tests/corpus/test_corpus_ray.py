"""Corpus runs on Ray: the same as one process, whatever is killed meanwhile."""

import contextlib
import json
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
from json_counts import close, untimed
from sizes import ALL, drawn, part_of

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
@pytest.mark.skipif(not os.environ.get(ALL), reason="test_corpus.py has one small case: --all")
def test_samples_of_one_worker_of_two_and_of_killed_ones_are_the_same_bytes(started, tmp_path):
    inputs = [write_text(tmp_path / "a.txt", source_lines(0, 100))]
    flags = {"beam": "4", "nbest": "4", "seed": "5", "sampling": True}
    for n in (1, 2):
        translate(job(inputs, tmp_path / str(n), flags, workers=n))
    killed: list[int] = []

    def kill():
        if parts(tmp_path / "killed") and (victims := workers()):
            os.kill(victims[0], signal.SIGKILL)
            killed.append(victims[0])
        return killed

    with meanwhile(kill):
        translate(job(inputs, tmp_path / "killed", flags))
    one, two, resumed = (finals(tmp_path / name) for name in ("1", "2", "killed"))
    assert killed and one == two == resumed


@drawn(0)  # long
def test_statistics_of_one_and_of_two_workers_are_those_of_all_units(started, tmp_path):
    """Six units, so that each worker has several; the counts of a second run that finds
    all done are the same."""
    # the fourth cannot be required
    phrases = [
        ["hospital"],
        ["the", "green tree"],
        [],
        ["</s>"],
        ["work"],
        ["a very large hospital"],
    ]
    given = zip(source_lines(0, 60), phrases * 10, strict=True)
    lines = [{"source": source, "constraints": some} for source, some in given]
    inputs = [write_text(tmp_path / "a.jsonl", [json.dumps(line) for line in lines])]
    flags = {"stop": "optimal", "softmax": "top", "shortlist_top": "500"}
    flags |= {"shortlist_share": "sentence", "shortlist_recall_every": "1"}
    one, two = tmp_path / "one", tmp_path / "two"
    done = translate(job(inputs, one, flags, workers=1, stats_file=str(tmp_path / "one.json")))
    assert done.errors == 10  # one phrase is refused
    for _ in range(2):
        translate(job(inputs, two, flags, workers=2, stats_file=str(tmp_path / "two.json")))
        of_one, of_two = (
            json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two")
        )
        out = [r for r in records(two / "a.jsonl") if r["hypotheses"]]
        assert of_two["sentences"] == len(out) == 50
        given = [constraint for r in out for constraint in r["constraints"]]
        met = sum(constraint["met"] for constraint in given)
        assert of_two["constraints"] == {"given": 50, "met": met} and len(given) == 50
        assert of_two["certificates"]["proved"] + of_two["certificates"]["open"] == 50
        assert 500 < of_two["softmax"]["vocab_mean"] < 520 and of_two["softmax"]["recall_at_1"] <= 1
        assert of_two["softmax"]["recall_rows"] == of_two["decoder_rows"]
        assert close(untimed(of_two), untimed(of_one))
        manifest = json.loads((two / "manifest.json").read_text())
        for part in (manifest["totals"], manifest["shards"]["a"]):
            assert part["stats"]["constraints"] == of_two["constraints"]


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

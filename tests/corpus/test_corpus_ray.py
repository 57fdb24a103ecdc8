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


@drawn(0)  # long
def test_equal_to_one_process_sentence_by_sentence(started, alone, tmp_path):
    lines = source_lines(0, 45)
    terms = [
        {"constraints": ["hospital"]} if i % 3 else {"avoid": ["the"], "prefix": "Today"}
        for i in range(9)
    ]
    write_text(tmp_path / "a.txt.gz", lines)
    write_text(
        tmp_path / "b.jsonl",
        [json.dumps({"source": s, "id": f"b{i}", **terms[i]}) for i, s in enumerate(lines[:9])],
    )
    (tmp_path / "c.txt").write_bytes(
        b"\xff\n" + "\n".join(lines[:3]).encode() + b"\n" + b"und " * 3000
    )
    inputs = [tmp_path / name for name in ("a.txt.gz", "b.jsonl", "c.txt")]
    done = translate(
        job(inputs, tmp_path / "out", {"nbest": "2"}, stats_file=str(tmp_path / "stats.json"))
    )

    expected = alone.translate(lines, nbest=2)
    found = records(tmp_path / "out/a.jsonl")
    same(found, expected)
    assert [(r["id"], r["source"]) for r in found] == list(enumerate(lines, 1))
    same(records(tmp_path / "out/c.jsonl")[1:4], expected[:3])
    constrained = Translator(
        str(DEMO / "checkpoint.pt"), str(DEMO), **FLAGS, constraints="unordered"
    ).translate(
        lines[:9],
        nbest=2,
        constraints=[t.get("constraints", []) for t in terms],
        avoid=[t.get("avoid", []) for t in terms],
        prefixes=[t.get("prefix") for t in terms],
    )
    found = records(tmp_path / "out/b.jsonl")
    same(found, constrained)
    assert [r["id"] for r in found] == [f"b{i}" for i in range(9)]
    assert all(c["met"] for r in found for c in r["constraints"])
    assert [(e["shard"], e["line"], e["kind"]) for e in records(tmp_path / "out/errors.jsonl")] == [
        ("c", 1, "invalid UTF-8"),
        ("c", 5, "too long"),
    ]
    stats = json.loads((tmp_path / "stats.json").read_text())
    assert stats["sentences"] == 45 + 9 + 3
    tokens = [len(nbest[0].positional_scores) for nbest in [*expected, *expected[:3], *constrained]]
    assert stats["target_tokens"] == sum(tokens)
    assert 0 <= done.waiting < 0.5 and done.restarts == 0


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
    inputs, flags = (
        [write_text(tmp_path / "a.txt", source_lines(0, 100))],
        {"beam": "4", "nbest": "4", "seed": "5", "sampling": True},
    )
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
    assert killed and finals(tmp_path / "1") == finals(tmp_path / "2") == finals(
        tmp_path / "killed"
    )


def command(inputs, out, *more):
    """The same job as a command of its own, with a Ray of its own."""
    words = [
        "--path",
        DEMO / "checkpoint.pt",
        "--data",
        DEMO,
        *as_arguments(FLAGS),
        "--input",
        *inputs,
        "--output",
        out,
    ]
    return [
        sys.executable,
        "-m",
        "fairseq_ext.corpus",
        "translate",
        *map(str, words),
        "--unit",
        "10",
        *more,
    ]


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
    lines = [
        {"source": s, "constraints": phrases[i % 6]} for i, s in enumerate(source_lines(0, 60))
    ]
    inputs = [write_text(tmp_path / "a.jsonl", [json.dumps(line) for line in lines])]
    flags = {
        "stop": "optimal",
        "softmax": "top",
        "shortlist_top": "500",
        "shortlist_share": "sentence",
        "shortlist_recall_every": "1",
    }
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
        assert (
            of_two["constraints"] == {"given": len(given), "met": sum(c["met"] for c in given)}
            and len(given) == 50
        )
        assert of_two["certificates"]["proved"] + of_two["certificates"]["open"] == 50
        assert 500 < of_two["softmax"]["vocab_mean"] < 520 and of_two["softmax"]["recall_at_1"] <= 1
        assert of_two["softmax"]["recall_rows"] == of_two["decoder_rows"]
        assert close(untimed(of_two), untimed(of_one))
        manifest = json.loads((two / "manifest.json").read_text())
        assert (
            manifest["totals"]["stats"]["constraints"]
            == manifest["shards"]["a"]["stats"]["constraints"]
            == of_two["constraints"]
        )


@drawn(0)  # long
def test_a_killed_run_is_started_again(started, alone, tmp_path, hostile):
    """And neither it nor its workers run a file of the folder in which it was started."""
    lines = source_lines(0, 120)
    inputs = [
        write_text(tmp_path / "a.txt", lines[:20]),
        write_text(tmp_path / "b.txt", lines[20:]),
    ]
    out = tmp_path / "out"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    words = command(inputs, out, "--object-store", "100")
    driver = subprocess.Popen(
        words, cwd=hostile, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    until = time.monotonic() + 120
    while driver.poll() is None and len(parts(out)) < 2 and time.monotonic() < until:
        time.sleep(0.02)
    left = descendants(driver.pid)
    left = {
        pid: name
        for pid, name in left.items()
        if "raylet/raylet" in name or name.startswith("ray::CorpusWorker")
    }
    # one of the two workers may be starting
    assert sum("raylet/raylet" in name for name in left.values()) == 1 and len(left) >= 2
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

"""Units over workers that die: in a simulation of Ray's answers, so that hundreds of runs fit in a
second (tests/engine/test_dispatch.py has the state machine of all pools); and on Ray: the same as
one process, whatever is killed meanwhile, also a node."""

import atexit
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from types import SimpleNamespace

import pytest
import ray
from corpus_jobs import (
    DEMO,
    FLAGS,
    ROOT,
    descendants,
    finals,
    meanwhile,
    parts,
    ran,
    records,
    source_lines,
    start_ray,
    write_text,
)
from ray.cluster_utils import Cluster
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError
from sizes import drawn, part_of

from fairseq_ext import Translator, UsageError
from fairseq_ext.core.supervision import State
from fairseq_ext.corpus import run, scheduler
from fairseq_ext.corpus.scheduler import RayWorkers
from fairseq_ext.corpus.shards import Shard, ShardLine, Unit
from fairseq_ext.plugin.loading.settings import as_arguments
from fairseq_ext.search.request import Request

SHARD = Shard("in", "in")


class Named(SimpleNamespace):
    """One that may be a key of a dictionary."""

    __hash__ = object.__hash__


def method(answer):
    """A remote method, whose call will have this answer: a value, or an exception."""
    return Named(remote=lambda *arguments: Named(answer=answer(*arguments)))


def actor(dies=lambda method, numbers: False):
    """Dies as `dies(method, numbers of sentences)` says: False, or what its caller sees."""

    def translate(shard, sentences):
        numbers = [s.number for s in sentences]
        return dies("translate", {*numbers}) or numbers

    return Named(
        load=method(lambda: dies("load", set()) or {"signature": "s"}), translate=method(translate)
    )


class SimulatedRay:
    """Answers one of the calls at a time, in random order; each takes 10 ms of a clock of its
    own. nodes: those of the cluster, or the error of reading them."""

    def __init__(self, monkeypatch, seed, nodes=({"Alive": True, "Resources": {"CPU": 2.0}},)):
        self.chance, self.given, self.now = random.Random(seed), nodes, 100.0
        monkeypatch.setattr(scheduler, "ray", self)
        monkeypatch.setattr(scheduler.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(scheduler.time, "sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def wait(self, calls, num_returns, timeout):
        self.now += 0.01
        return [self.chance.choice(calls)], []

    def get(self, call, timeout):
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, actor):
        pass

    def nodes(self):
        if isinstance(self.given, Exception):
            raise self.given
        return self.given


def units(count, size):
    numbers = [range(i, min(i + size, count)) for i in range(0, count, size)]
    lines = [[ShardLine(Request(n, str(n)), n + 1) for n in part] for part in numbers]
    return [Unit(SHARD, part, float(len(part))) for part in lines]


def run_units(make, workers, take, tick=lambda pool: None, units=None):
    made = RayWorkers(make, workers, take, tick, lambda loaded: None)
    made.run(iter(units))
    return made


def simulate(monkeypatch, seed, dies, count=40, size=8, workers=3):
    """Run units over actors; the numbers translated, the numbers reported as
    lost, the pool."""
    ray = SimulatedRay(monkeypatch, seed)
    taken, lost, weight = [], [], []

    def take(unit, result):
        numbers = [s.number for s in unit.sentences]
        assert numbers == list(range(unit.start, unit.end)) and result in (numbers, None)
        (lost if result is None else taken).extend(numbers)
        weight.append(unit.input_bytes)

    def make():
        return actor(lambda *call: dies(ray.chance, *call))

    made = run_units(make, workers, take, units=units(count, size))
    assert sum(weight) == pytest.approx(count)
    return Counter(taken), Counter(lost), made


GONE = ActorUnavailableError("gone", None)


def task_error(text):
    return RayTaskError("translate", "trace", RuntimeError(text))


@pytest.mark.parametrize("seed", range(60))
def test_every_sentence_once_whatever_dies(monkeypatch, seed):
    rate = (seed % 5) / 10

    def dies(chance, method, numbers):
        if chance.random() < rate * (1 if method == "translate" else 0.2):
            return chance.choice([GONE, ActorDiedError()])
        return False

    taken, lost, _ = simulate(monkeypatch, seed, dies)
    assert taken + lost == Counter(range(40))
    assert not rate or len(lost) < 12


@pytest.mark.parametrize("poison", [{5}, {0, 39}, {8, 9, 10, 17}])
def test_sentences_that_kill_are_isolated_and_only_they_are_lost(monkeypatch, poison):
    deaths = []

    def dies(chance, method, numbers):
        if poison & numbers:
            deaths.append(len(numbers))
            return GONE
        return False

    taken, lost, made = simulate(monkeypatch, 1, dies)
    assert lost == Counter(poison) and taken == Counter(set(range(40)) - poison)
    assert made.restarts == len(deaths)
    assert deaths.count(1) == 2 * len(poison)
    # units of 8: twice, then halves of 4 and 2, then twice by itself
    assert len(deaths) <= 6 * len(poison)


def test_a_process_that_fails_at_everything_is_replaced(monkeypatch):
    errors = [task_error("device-side assert")]

    def dies(chance, method, numbers):
        return errors.pop() if 9 in numbers and errors else False

    taken, lost, made = simulate(monkeypatch, 1, dies)
    assert taken == Counter(range(40)) and not lost and made.restarts == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_sentence_that_breaks_every_process_is_isolated_once_another_unit_is_translated(
    monkeypatch, seed
):
    def dies(chance, method, numbers):
        return 29 in numbers and task_error("device-side assert")

    taken, lost, _ = simulate(monkeypatch, seed, dies, workers=1)
    assert lost == Counter([29]) and taken == Counter(set(range(40)) - {29})


@pytest.mark.parametrize("first", [0, 16])
def test_units_that_fail_in_every_process_end_the_run_by_name(monkeypatch, first):
    """At once where nothing was ever translated, else when too many fail in a row."""

    def dies(chance, method, numbers):
        return any(number >= first for number in numbers) and task_error("no kernel image")

    said = r"lines \d+ to \d+ of in failed in several processes \(RuntimeError: no kernel image\)"
    with pytest.raises(UsageError, match=said):
        simulate(monkeypatch, 1, dies, count=400)


def test_a_mistake_in_the_flags_ends_the_run_with_its_sentence(monkeypatch):
    def dies(chance, method, numbers):
        return method == "load" and {"error": "no dictionary at x"}

    with pytest.raises(UsageError, match="^no dictionary at x$"):
        simulate(monkeypatch, 1, dies)


def test_workers_that_never_come_up_are_given_up(monkeypatch):
    with pytest.raises(UsageError, match="died several times before it had loaded the model"):
        simulate(monkeypatch, 1, lambda *call: ActorDiedError())


def test_one_node_without_the_model_stops_no_other(monkeypatch):
    answers = iter([False, False, {"error": "no such file"}])

    def dies(chance, method, numbers):
        return method == "load" and next(answers, False)

    taken, _, made = simulate(monkeypatch, 1, dies, count=400)
    assert taken == Counter(range(400))
    assert sum(worker.state is State.READY for worker in made.dispatch.workers) >= 2


class Deserted(SimulatedRay):
    """No call is ever answered, as where Ray waits for a node."""

    def wait(self, calls, num_returns, timeout):
        return [], calls


HEAD = {"Alive": True, "Resources": {"CPU": 0.0, "memory": 1e9}}


@pytest.mark.parametrize(
    "nodes",
    [[], [{"Alive": False, "Resources": {"CPU": 2.0}}], [HEAD], RuntimeError("no GCS")],
    ids=str,
)
def test_a_run_whose_last_node_is_gone_ends_within_a_minute(monkeypatch, nodes):
    ray = Deserted(monkeypatch, 1, nodes)

    def tick(pool):
        ray.now += 1

    with pytest.raises(UsageError, match="all nodes of Ray on which workers could run are gone: "):
        run_units(actor, 2, print, tick, units(40, 8))
    assert 20 < ray.now - 100 < 60


def test_a_run_waits_for_a_node_that_comes_back_in_time(monkeypatch):
    """As an autoscaler's does."""
    answered = SimulatedRay(monkeypatch, 1)
    ray, taken = Deserted(monkeypatch, 1, []), []

    def tick(pool):
        ray.now += 1
        if ray.now > 125:
            ray.wait, ray.given = answered.wait, answered.given

    def take(unit, result):
        taken.extend(result)

    run_units(actor, 2, take, tick, units(40, 8))
    assert Counter(taken) == Counter(range(40))


def test_progress_lines_repeat_no_figure_that_has_not_changed(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(run.time, "monotonic", lambda: now[0])
    shown = run.Progress(10.0, shards=1, bytes=1000, last_report_time=100.0)
    for alive, sentences in ((2, 100), (2, 100), (0, 100), (0, 100), (0, 100), (1, 150)):
        now[0] += 10
        shown.sentences, shown.bytes_done = sentences, float(sentences)
        shown.tick(SimpleNamespace(alive=alive, size=2, start_time=100.0))
    said = capsys.readouterr().err.splitlines()
    changes = ["corpus: 1" in line for line in said]
    assert changes == [True, False, False, False, False, True]
    assert said[1] == "corpus: no other sentence for 0:00:10, 2 of 2 workers alive"
    assert said[4].startswith("corpus: no other sentence for 0:00:40, 0 of 2 workers alive (they")


# ---- On Ray

REPEATED = 15  # a worker of a lost node may go on for some seconds: the job must outlast them
# what Ray does at the end: a forked child forgets its parent's (forked.py), and Ray's
# clients do not outlive that
HELD = []


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
    for record, nbest in zip(found, expected, strict=True):
        assert record["scores"] == pytest.approx([h.score for h in nbest], abs=1e-4)


def workers():
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
        done = ran([path], out)
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
    words = [*"-m fairseq_ext.corpus translate --unit 10 --input".split()]
    words += [*inputs, "--output", out, "--path", DEMO / "checkpoint.pt", "--data", DEMO]
    words = [sys.executable, *map(str, words), *as_arguments(FLAGS)]
    how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    driver = subprocess.Popen(words, cwd=hostile, env=environment, **how)
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
    done = ran(inputs, out)
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


# ---- two nodes


@pytest.fixture
def cluster(monkeypatch):
    ray.shutdown()  # of the tests before
    register = atexit.register

    def held(function, *given, **named):
        HELD.append(function)
        return register(function, *given, **named)

    monkeypatch.setattr(atexit, "register", held)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    small = {"object_store_memory": 80 << 20}
    made = Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, **small})
    made.nodes_to_lose = [made.add_node(num_cpus=1, **small) for _ in range(2)]
    yield made
    made.shutdown()


@drawn(0)  # long
def test_a_node_that_goes_away_takes_nothing_with_it(cluster, alone, tmp_path):
    lines = source_lines(0, 400)
    path, out = write_text(tmp_path / "a.txt", lines * REPEATED), tmp_path / "out"
    lost = []

    def lose():
        if len(parts(out)) >= 3:
            lost.append(len(parts(out)))
            cluster.remove_node(cluster.nodes_to_lose[1], allow_graceful=False)
        return lost

    with meanwhile(lose):
        done = ran([path], out, address=cluster.address, workers=None)
    assert lost and lost[0] < 40 * REPEATED and done.workers == 2 and done.restarts >= 1
    same(records(out / "a.jsonl"), alone.translate(lines) * REPEATED)
    assert (done.errors, done.sentences_before, parts(out)) == (0, 0, [])


@drawn(0)  # long
def test_a_run_whose_nodes_are_all_gone_ends_and_keeps_what_is_finished(
    cluster, tmp_path, monkeypatch
):
    """The node that is left has no processor for workers."""
    monkeypatch.setattr(scheduler, "WITHOUT_NODES", 2.0)
    path, out = write_text(tmp_path / "a.txt", source_lines(0, 400) * REPEATED), tmp_path / "out"

    def lose():
        if len(parts(out)) < 3:
            return False
        for node in cluster.nodes_to_lose:
            cluster.remove_node(node, allow_graceful=False)
        return True

    said = "all nodes of Ray on which workers could run are gone"
    with meanwhile(lose), pytest.raises(UsageError, match=said):
        ran([path], out, address=cluster.address, workers=None)
    assert len(parts(out)) >= 3

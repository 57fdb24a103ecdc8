"""Units over workers that die: in a simulation of Ray's answers, so that hundreds of
runs fit in a second. tests/engine/test_dispatch.py has the state machine of all pools."""

import random
from collections import Counter
from types import SimpleNamespace

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from fairseq_ext import UsageError
from fairseq_ext.core.supervision import State
from fairseq_ext.corpus import run, scheduler
from fairseq_ext.corpus.scheduler import RayWorkers
from fairseq_ext.corpus.shards import Shard, ShardLine, Unit
from fairseq_ext.search.request import Request

SHARD = Shard("in", "in")


class Call:
    """What a simulated actor will answer: a value, or an exception."""

    def __init__(self, answer):
        self.answer = answer


class Method:
    def __init__(self, answer):
        self.answer = answer

    def remote(self, *arguments):
        return Call(self.answer(*arguments))


class Actor:
    """Dies as `dies(method, sentences)` says: False, or the exception that its caller sees."""

    def __init__(self, dies):
        self.load = Method(lambda: dies("load", []) or {"signature": "s"})
        self.translate = Method(
            lambda shard, sentences: dies("translate", sentences) or [s.number for s in sentences]
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
    return [
        Unit(SHARD, [ShardLine(Request(n, str(n)), n + 1) for n in part], float(len(part)))
        for part in numbers
    ]


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
        return Actor(lambda *call: dies(ray.chance, *call))

    made = RayWorkers(make, workers, take, lambda pool: None, lambda loaded: None)
    made.run(iter(units(count, size)))
    assert sum(weight) == pytest.approx(count)
    return Counter(taken), Counter(lost), made


def unavailable():
    return ActorUnavailableError("gone", None)


def task_error(text):
    return RayTaskError("translate", "trace", RuntimeError(text))


@pytest.mark.parametrize("seed", range(60))
def test_every_sentence_once_whatever_dies(monkeypatch, seed):
    rate = (seed % 5) / 10

    def dies(chance, method, sentences):
        if chance.random() < rate * (1 if method == "translate" else 0.2):
            return chance.choice([unavailable(), ActorDiedError()])
        return False

    taken, lost, _ = simulate(monkeypatch, seed, dies)
    assert taken + lost == Counter(range(40))
    assert not rate or len(lost) < 12


@pytest.mark.parametrize("poison", [{5}, {0, 39}, {8, 9, 10, 17}])
def test_sentences_that_kill_are_isolated_and_only_they_are_lost(monkeypatch, poison):
    deaths = []

    def dies(chance, method, sentences):
        if poison & {s.number for s in sentences}:
            deaths.append(len(sentences))
            return unavailable()
        return False

    taken, lost, made = simulate(monkeypatch, 1, dies)
    assert lost == Counter(poison) and taken == Counter(set(range(40)) - poison)
    assert made.restarts == len(deaths)
    assert deaths.count(1) == 2 * len(poison)
    # units of 8: twice, then halves of 4 and 2, then twice by itself
    assert len(deaths) <= 6 * len(poison)


def test_a_process_that_fails_at_everything_is_replaced(monkeypatch):
    left = [1]

    def dies(chance, method, sentences):
        if any(s.number == 9 for s in sentences) and left[0]:
            left[0] -= 1
            return task_error("device-side assert")
        return False

    taken, lost, made = simulate(monkeypatch, 1, dies)
    assert taken == Counter(range(40)) and not lost and made.restarts == 1


@pytest.mark.parametrize("seed", range(10))
def test_a_sentence_that_breaks_every_process_is_isolated_once_another_unit_is_translated(
    monkeypatch, seed
):
    def dies(chance, method, sentences):
        return task_error("device-side assert") if any(s.number == 29 for s in sentences) else False

    taken, lost, _ = simulate(monkeypatch, seed, dies, workers=1)
    assert lost == Counter([29]) and taken == Counter(set(range(40)) - {29})


@pytest.mark.parametrize("first", [0, 16])
def test_units_that_fail_in_every_process_end_the_run_by_name(monkeypatch, first):
    """At once where nothing was ever translated, else when too many fail in a row."""

    def dies(chance, method, sentences):
        return task_error("no kernel image") if any(s.number >= first for s in sentences) else False

    with pytest.raises(
        UsageError,
        match=r"lines \d+ to \d+ of in failed in several processes \(RuntimeError: "
        r"no kernel image\)",
    ):
        simulate(monkeypatch, 1, dies, count=400)


def test_a_mistake_in_the_flags_ends_the_run_with_its_sentence(monkeypatch):
    def dies(chance, method, sentences):
        return {"error": "no dictionary at x"} if method == "load" else False

    with pytest.raises(UsageError, match="^no dictionary at x$"):
        simulate(monkeypatch, 1, dies)


def test_workers_that_never_come_up_are_given_up(monkeypatch):
    with pytest.raises(UsageError, match="died several times before it had loaded the model"):
        simulate(monkeypatch, 1, lambda chance, called, sentences: ActorDiedError())


def test_one_node_without_the_model_stops_no_other(monkeypatch):
    answers = iter([False, False, {"error": "no such file"}])

    def dies(chance, method, sentences):
        return next(answers, False) if method == "load" else False

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

    made = RayWorkers(lambda: Actor(lambda *call: False), 2, print, tick, lambda loaded: None)
    with pytest.raises(UsageError, match="all nodes of Ray on which workers could run are gone: "):
        made.run(iter(units(40, 8)))
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

    RayWorkers(lambda: Actor(lambda *call: False), 2, take, tick, lambda loaded: None).run(
        iter(units(40, 8))
    )
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

"""A worker: its heartbeat, what requests leave behind in its memory, and when that goes back to the
system."""

import contextlib
import gc
import hashlib
import itertools
import pickle
import socket
import threading
import time
from types import SimpleNamespace

import demo_model
import pytest
from demo_model import ROOT

from fairseq_ext.core.channel import Channel
from fairseq_ext.core.errors import UsageError
from fairseq_ext.engine import requirements, worker
from fairseq_ext.engine.tickets import Work
from fairseq_ext.kernels.library import give_back_memory
from fairseq_ext.search.checks import refused_by_engine
from fairseq_ext.search.report import Report
from fairseq_ext.search.request import GlossaryFile, Request, TextConstraints

FLAGS = demo_model.FLAGS | dict(beam=2)
LINES = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()[:6]


@pytest.fixture(scope="module")
def decoding():
    return worker.load({**FLAGS, "stream_width": 4})


@pytest.mark.parametrize("flag", refused_by_engine())
def test_a_flag_of_whole_runs_is_refused(flag):
    """Before anything is loaded."""
    with pytest.raises(UsageError, match=f"--{flag.replace('_', '-')} .*: leave it out"):
        worker.load({**FLAGS, "path": "no such file", flag: True})


def job(source):
    return Request(0, source, TextConstraints(("the",)), submitted=time.monotonic())


def answer_all(decoding):
    for number, line in enumerate(LINES):
        decoding.add(number, job(line))
    while decoding.busy:
        decoding.work()
    assert all(isinstance(what, Report) for _, what in decoding.events)
    decoding.events = []


def test_requests_leave_nothing_for_the_garbage_collector(decoding):
    """It hardly runs in a worker, so that the circles of a hundred thousand requests are
    memory that is gone."""
    answer_all(decoding)
    gc.collect()
    gc.disable()
    try:
        answer_all(decoding)
        give_back_memory()
        assert gc.collect() == 0
    finally:
        gc.enable()


@contextlib.contextmanager
def served(decoding):
    """The engine's end of the pipe to a worker, which lives in a thread."""
    ours, theirs = map(Channel, socket.socketpair())

    def serve():
        with contextlib.suppress(EOFError):
            worker.serve(theirs, decoding)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ours.receive()  # what it has loaded
    yield ours
    ours.close()
    thread.join(10)
    assert not thread.is_alive()


def until_answered(ours):
    """What a worker sends, up to an answer or error."""
    found = []
    while not any(isinstance(what, (Report, Exception)) for what in found):
        found += [what for message in ours.receive() for _, what in pickle.loads(message)]
    return found


def test_a_worker_that_works_sends_counts_between_steps(decoding, monkeypatch):
    """They are its heartbeat."""
    monkeypatch.setattr(worker, "REPORT", 0.0)
    decoding.take_work()  # of the tests before
    with served(decoding) as ours:
        ours.send(pickle.dumps(("add", 0, job(" ".join(LINES)))))
        found = until_answered(ours)
    at = next(i for i, what in enumerate(found) if isinstance(what, Report))
    before = [what.steps for what in found[:at] if isinstance(what, Work)]
    assert len(before) > 10 and max(before) < 5


def serve(monkeypatch, receive, **how):
    """A worker, to the end of its pipe. how: its decoding."""
    pipe = SimpleNamespace(receive=receive, send=lambda _: None, is_readable=lambda _: True)
    monkeypatch.setattr(worker, "description", lambda _: None)
    with pytest.raises(EOFError):
        worker.serve(pipe, SimpleNamespace(events=[], take_work=Work, **how))


def test_requests_are_read_for_half_of_the_time(monkeypatch):
    """However many arrive; one that was cancelled before is not read."""
    now, read, numbers = [0.0], list[int](), itertools.count()

    def take(seconds):
        now[0] += seconds

    def add(number, job):
        read.append(number)
        take(1.0)

    def receive(_=-1):
        if now[0] > 50:
            raise EOFError
        one, two = next(numbers), next(numbers)
        made = [("add", one, job("a")), ("add", two, job("a")), ("cancel", two)]
        return list(map(pickle.dumps, made))

    monkeypatch.setattr(worker, "time", SimpleNamespace(monotonic=lambda: now[0]))
    serve(monkeypatch, receive, busy=True, add=add, work=lambda: take(0.01), cancel=print)
    assert 20 < len(read) < 30 and not any(number % 2 for number in read)


LARGE = Request(source="a", terms=tuple((f"Wort {i}", "word") for i in range(9000)))


def test_requests_with_many_terms_are_read_behind_those_that_wait_for_them(monkeypatch):
    """Not behind those that come much later."""
    monkeypatch.setattr(worker, "SMALLER_BEFORE", 4)
    read = []
    jobs = enumerate([LARGE, job("a"), LARGE, *[job("a")] * 5])
    arrived = [[pickle.dumps(("add", *each)) for each in jobs]]

    def receive(_=-1):
        if not arrived:
            raise EOFError
        return arrived.pop()

    serve(monkeypatch, receive, busy=False, add=lambda number, _: read.append(number))
    assert read == [1, 3, 0, 4, 5, 2, 6, 7]


def test_a_worker_without_requests_gives_memory_back_once(decoding, monkeypatch):
    given_back = []
    monkeypatch.setattr(worker, "give_back_memory", lambda: given_back.append(time.monotonic()))
    monkeypatch.setattr(worker, "IDLE_MS", 200)
    with served(decoding) as ours:
        for number in range(2):
            ours.send(pickle.dumps(("add", number, job(LINES[0]))))
            until_answered(ours)
            answered = time.monotonic()
            # a collection takes seconds next to other tests' objects
            while len(given_back) == number and time.monotonic() < answered + 60:
                time.sleep(0.02)
            time.sleep(0.5)  # and not again
            assert len(given_back) == number + 1 and given_back[-1] - answered > 0.15


def test_glossaries_of_requests_are_kept_by_their_size(decoding, monkeypatch):
    kept = decoding.requirements
    monkeypatch.setattr(requirements, "CACHE_BYTES", 1000)
    for number in range(20):
        terms = {f"Wort{number} {i}": "word" for i in range(20)}
        kept.named(Request(terms=tuple(terms.items())))
        sizes = [size for _, size in kept.glossaries.values()]
        assert sum(sizes) <= 1000 and len(sizes) <= 4
    large = Request(terms=tuple((f"Wort {i}", "word") for i in range(500)))
    assert kept.named(large) == kept.named(large) and len(kept.glossaries) == 1, (
        "the one in use stays"
    )


def test_a_glossary_that_is_replaced_while_it_is_read_is_kept_as_what_it_is(
    decoding, tmp_path, monkeypatch
):
    """Not as the new one under the digest of the old one."""
    path, old, new = tmp_path / "x.tsv", b"Haus\thouse\n", b"Haus\tbuilding\n"
    digests = [hashlib.sha256(content).hexdigest() for content in (old, new)]
    path.write_bytes(old)
    read = []

    class Replaced(requirements.Glossary):
        def __init__(self, *given):
            if not read:
                path.write_bytes(new)
            read.append(given)
            super().__init__(*given)

    monkeypatch.setattr(requirements, "Glossary", Replaced)
    kept = decoding.requirements
    found = kept.glossary(digests[0], GlossaryFile(str(path), digests[0]))
    assert [digest for digest, _ in kept.glossaries if digest in digests] == [digests[1]]
    assert found is kept.glossary(digests[1], GlossaryFile("none", digests[1])) and len(read) == 2

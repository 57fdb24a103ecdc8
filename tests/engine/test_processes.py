"""An engine whose processes are stopped, killed, starved or forked with it: requests are answered,
and nothing waits for ever."""

import math
import os
import pickle
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from conftest import limited
from forked import in_fork
from sizes import drawn
from test_decoding import FLAGS, LINES
from test_engine import PATIENCE, answers, submitted, texts_of, until, workers_of

from fairseq_ext import Engine, Translator, UsageError
from fairseq_ext.core.channel import Channel
from fairseq_ext.core.process_pool import Event, ForkServer, Pool, Process, cpu_seconds
from fairseq_ext.engine.loop import Loop
from fairseq_ext.engine.tickets import Closed, Description
from fairseq_ext.search.request import Request


@pytest.fixture(scope="module")
def engine():
    with Engine(**FLAGS, stream_width=4, cpu_workers=2, worker_timeout=1.0) as made:
        made.wait(PATIENCE)
        until(lambda: len(workers_of(made)) == 2)
        yield made


def both_there(engine):
    until(lambda: len(workers_of(engine)) == 2)


@pytest.fixture(scope="module")
def expected():
    return [found[0].text for found in Translator(**FLAGS).translate(LINES[:8])]


def test_the_fork_server_has_one_thread_when_it_forks(engine):
    assert len(os.listdir(f"/proc/{engine.fork_server.process.pid}/task")) == 1


def test_requests_and_answers_larger_than_a_pipe_pass_each_other(engine):
    """800 KB each way, as the report quotes the phrases, and small messages between: no thread
    writes while another one, which it waits for, writes to it."""
    phrases = [f"{'word' * 20} {number}" for number in range(10000)]
    end, failed = time.monotonic() + 3, []
    streamed = {"source": " ".join(LINES[:6]), "prefix": "The", "on_partial": lambda part: None}

    def repeat(count, request):
        try:
            while time.monotonic() < end:
                for future in [engine.submit(**request) for _ in range(count)]:
                    found = future.result(PATIENCE).constraints
                    assert found[0].phrase == request.get("prefix", "|".join(phrases))
        except BaseException as error:
            failed.append(error)

    large = (3, {"source": "", "any_of": [phrases]})
    threads = [
        threading.Thread(target=repeat, args=given)
        for given in (*[(1, streamed)] * 4, *[large] * 3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not failed and not any(thread.is_alive() for thread in threads)


def test_a_worker_that_is_stopped_is_replaced_and_its_requests_are_answered(engine, expected):
    """More requests than both workers take; `submit`, `ready` and `cancel` do not wait."""
    restarts, stopped = engine.restarts, workers_of(engine)[0]
    os.kill(stopped, signal.SIGSTOP)
    begin = time.monotonic()
    futures = submitted(engine, LINES[:8] * 5)
    futures[7].cancel()
    assert engine.ready and engine.pending and time.monotonic() - begin < 0.5
    del futures[7]
    texts = expected[:7] + expected * 4
    assert texts_of(futures) == texts
    assert engine.restarts == restarts + 1 and engine.pending == 0
    until(lambda: len(workers_of(engine)) == 2 and stopped not in workers_of(engine))


@drawn(2)
@pytest.mark.parametrize("stopped", ["worker", "fork server", ""])
def test_closing_waits_for_no_process_that_is_stopped_and_leaves_none(warm_processes, stopped):
    engine = Engine(**FLAGS)
    engine.wait(PATIENCE)
    until(lambda: len(workers_of(engine)) == 1)
    pids = {"worker": workers_of(engine)[0], "fork server": engine.fork_server.process.pid}
    futures = [engine.submit(LINES[0]) for _ in range(50 * bool(stopped))]
    if stopped:
        os.kill(pids[stopped], signal.SIGSTOP)
    begin = time.monotonic()
    engine.close(0.0 if stopped else math.inf)  # there is nothing to wait for
    assert time.monotonic() - begin < 3
    for future in futures:
        assert isinstance(future.exception(0), Closed) or future.result().text
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids.values()))


def test_the_signals_of_a_process_group_are_not_for_workers(engine, expected):
    """systemd and shells send SIGTERM and SIGINT to all processes at once; the server then answers
    what it has."""
    restarts = engine.restarts
    futures = submitted(engine, LINES[:8])
    for pid in (*workers_of(engine), engine.fork_server.process.pid):
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert texts_of(futures) == expected
    assert engine.restarts == restarts


def test_a_forked_child_is_refused_and_takes_nothing_from_the_parent(engine, expected):
    """It shares the pipes, and would read the answers to others; another thread has the lock of the
    engine when it is forked, and has no copy that releases it."""
    read, write = os.pipe()
    running = engine.submit(" ".join(LINES[:4]))

    def use():
        said = []
        for call in (engine.submit, engine.submit_text, lambda line: next(engine.stream(line))):
            with pytest.raises(UsageError) as raised:
                call(LINES[0])
            said.append(str(raised.value))
        with pytest.raises(UsageError) as raised:
            engine.wait()
        running.cancel()
        assert engine.waiting >= 0
        engine.close()  # of the parent's
        os.write(write, "\n".join([*said, str(raised.value)]).encode())

    taken, go = threading.Event(), threading.Event()

    def hold():
        with engine.loop.lock:
            taken.set()
            go.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    assert taken.wait(PATIENCE)
    pid = in_fork(use)
    go.set()
    holder.join(PATIENCE)
    texts = answers(engine, LINES[:8] * 3)
    os.close(write)
    with open(read, encoding="utf-8") as file:
        said = file.read().splitlines()
    assert os.waitpid(pid, 0)[1] == 0 and len(said) == 4 and len(set(said)) == 1
    assert said[0].startswith("the engine belongs to the process that made it")
    assert texts == expected * 3 and running.result(PATIENCE).text


def test_some_seconds_without_file_descriptors_end_nothing(engine, expected):
    both_there(engine)
    victims = workers_of(engine)
    with limited(resource.RLIMIT_NOFILE, 3):  # those that are open stay
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
        time.sleep(1.5)
        errors = [str(worker.error) for worker in engine.loop.dispatch.workers]
        waiting = submitted(engine, LINES[:8])
    assert all("Too many open files" in error for error in errors)
    assert texts_of(waiting) == expected
    both_there(engine)


def test_a_fork_server_that_is_killed_while_it_loads_is_replaced(expected):
    with Engine(**FLAGS, cpu_workers=3) as engine:
        waiting = submitted(engine, LINES[:8])
        killed = set()
        for seconds in (0.0, 0.5, 1.0):
            until(
                lambda: engine.fork_server.process and engine.fork_server.process.pid not in killed
            )
            time.sleep(seconds)
            killed.add(engine.fork_server.process.pid)
            engine.fork_server.process.kill()
        assert texts_of(waiting) == expected


def test_workers_with_weights_of_a_killed_fork_server_are_replaced(
    warm_processes, engine, expected, monkeypatch
):
    """Each fork server loads the weights again: old workers would keep the old copy."""
    for worker in engine.loop.dispatch.workers:  # one that loads may wait for a processor
        monkeypatch.setattr(worker, "timeout", 20.0)
    old = workers_of(engine)
    busy = submitted(engine, LINES[:8])
    engine.fork_server.process.kill()
    os.kill(old[0], signal.SIGKILL)
    assert [each.result(PATIENCE).text for each in busy] == expected
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old))
    both_there(engine)
    assert answers(engine, LINES[:8]) == expected


@pytest.fixture
def pool():
    made = Pool()
    yield made
    made.end()


@pytest.fixture
def pair():
    """A channel, and the socket at its other end."""
    channel, theirs = Channel.pair()
    yield channel, theirs
    theirs.close()


@pytest.fixture
def pretended(pair):
    """The loop of an engine with two workers, and a fork server that has requests for both; all
    processes are pretended."""
    loop = Loop(None, 2, 60.0)
    loop.fork_server.process = Process(pair[0])
    loop.pool.add(loop.fork_server.process)
    loop.carry_out(0.0)
    yield loop
    loop.pool.end()


def forked(loop, number):
    """The fork server says that it has forked a worker."""
    message = pickle.dumps(("forked", number, os.getpid(), True))
    loop.on_event(Event(loop.fork_server.process, [message], False), 0.0)


def is_loaded(loop, worker):
    message = pickle.dumps(Description("", "", "", 1, 1, 4, None, ""))
    loop.on_event(Event(loop.processes[worker], [message], False), 0.0)


@pytest.mark.parametrize("is_named_first", [True, False])
def test_old_workers_are_outdated_whichever_message_of_a_new_one_comes_first(
    pretended, is_named_first
):
    """The fork server and the worker write to two pipes."""
    old, new = pretended.dispatch.workers
    forked(pretended, 1)
    is_loaded(pretended, old)
    pretended.on_event(Event(pretended.fork_server.process, [], True), 0.0)
    channel, theirs = Channel.pair()
    pretended.fork_server.process = Process(channel)
    pretended.dispatch.on_time(1.0, lambda worker: None)
    pretended.carry_out(1.0)
    steps = [partial(forked, pretended, 3), partial(is_loaded, pretended, new)]
    for step in steps if is_named_first else steps[::-1]:
        step()
    assert old.is_outdated and not new.is_outdated
    theirs.close()


def test_a_worker_that_answers_before_its_fork_server_has_named_it_loses_no_request(pretended):
    """The fork server is killed between the two; the worker's process id is not known."""
    worker, _ = pretended.dispatch.workers
    is_loaded(pretended, worker)
    future = pretended.submit(Request(), None, None)
    pretended.turn()
    assert list(worker.tickets) == [1]
    pretended.on_event(Event(pretended.fork_server.process, [], True), 0.0)
    assert not worker.tickets and list(pretended.dispatch.suspects) == [1]
    future.cancel()


def test_workers_whose_end_was_read_before_that_of_the_fork_server_are_not_named_again(pool, pair):
    fork_server = ForkServer(pool, "none", None)
    fork_server.process = Process(pair[0])
    pool.add(fork_server.process)
    workers = [fork_server.fork() for _ in range(2)]
    pool.remove(workers[0])
    assert fork_server.end() == workers[1:] and fork_server.end() == []


@pytest.mark.parametrize("step", ["on_time", "publish"])
def test_a_fault_in_the_thread_of_an_engine_answers_what_it_had_in_hand(monkeypatch, step, caplog):
    """Requests out of the inbox, and answers that were to be given."""
    loop = Loop(None, 1, 60.0)
    monkeypatch.setattr(loop, "start_process", lambda worker, now: None)

    def fail(*given):
        raise MemoryError("a fault of ours")

    monkeypatch.setattr(loop if step == "publish" else loop.dispatch, step, fail)
    futures = [loop.submit(Request(), None, None) for _ in range(3)]
    if step == "publish":
        loop.dispatch.closes_at = math.inf  # each is answered with Closed in this turn
    loop.run()
    kind = Closed if step == "publish" else RuntimeError
    assert all(isinstance(future.exception(0), kind) for future in futures)
    assert "the thread of an engine has failed" in caplog.text


def test_ctrl_c_while_the_thread_is_woken_leaves_the_bell_rung(monkeypatch, pool):
    write = os.eventfd_write

    def interrupted(fd, value):
        monkeypatch.setattr(os, "eventfd_write", write)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "eventfd_write", interrupted)
    with pytest.raises(KeyboardInterrupt):
        pool.wake()
    begin = time.monotonic()
    pool.wait(PATIENCE)
    assert time.monotonic() - begin < PATIENCE / 2


def test_a_fork_server_that_cannot_be_watched_is_started_again(monkeypatch, pool):
    fork_server = ForkServer(pool, "none", None)
    errors, register = [OSError(28, "No space left on device")], pool.selector.register

    def refused(*given):
        if errors:
            raise errors.pop()
        return register(*given)

    monkeypatch.setattr(pool.selector, "register", refused)
    with pytest.raises(OSError, match="No space left"):
        fork_server.fork()
    assert fork_server.process is None and not pool.processes
    worker = fork_server.fork()
    assert fork_server.process is not None and pool.processes == {worker, fork_server.process}


def test_nothing_is_read_from_a_pipe_that_was_closed_and_whose_number_another_file_has(pool, pair):
    channel, theirs = pair
    process = Process(channel)
    pool.add(process)
    number = channel.fileno()
    Channel(theirs).send(b"too late")
    pool.remove(process)
    ours, others = socket.socketpair()
    os.dup2(ours.fileno(), number)
    others.sendall(message := b"\1\0\0\0\0\0\0\0x")
    assert pool.wait(0) == [] and channel.read() == ([], True)
    assert os.read(number, 100) == message
    os.close(number)


def test_a_channel_that_is_closed_ends_although_a_forked_process_has_it_too(pair):
    channel, theirs = pair
    shared = os.dup(channel.fileno())
    channel.close()
    assert Channel(theirs).read() == ([], True)
    os.close(shared)


def test_a_file_descriptor_that_the_system_drops_is_not_taken_for_the_next_one(pair):
    ours, theirs = pair
    receiver, found = Channel(theirs), []
    for limit in (3, resource.getrlimit(resource.RLIMIT_NOFILE)[0]):  # those that are open stay
        ours.put(b"it comes with a file", socket.socket())
        assert ours.flush()
        with limited(resource.RLIMIT_NOFILE, limit):
            while len(found) < 1 + (limit > 3):
                found += receiver.receive(1000)
    assert len(found) == 2 and receiver.fds[0] == -1 and receiver.fds[1] >= 0
    ours.close()


def test_a_program_that_ignores_the_end_of_its_children_has_an_engine_that_does_not():
    """Else no check of the library that runs in a process has a status while the model loads."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with Engine(**FLAGS) as engine:
            assert engine.submit(LINES[0]).result(PATIENCE).text
            status = Path(f"/proc/{engine.fork_server.process.pid}/status").read_text()
            ignored = int(status.split("SigIgn:")[1].split()[0], 16)
            assert not ignored >> (signal.SIGCHLD - 1) & 1
            os.kill(workers_of(engine)[0], signal.SIGKILL)
            assert engine.submit(LINES[0]).result(PATIENCE).text
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_cpu_time_is_that_of_a_process_and_of_what_it_has_started():
    """A loading worker may wait for a compiler, which is no silence."""
    burn = "import time\nwhile time.process_time() < 0.3: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        until(lambda: (cpu_seconds(process.pid, True) or 0) >= 0.3)
        time.sleep(0.1)
        own = cpu_seconds(process.pid, False)
        assert own is not None and cpu_seconds(process.pid, True) >= own + 0.25
        process.communicate(b"\n")
    assert cpu_seconds(process.pid, True) is None

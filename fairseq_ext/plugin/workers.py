"""`--cpu-workers N`: the sentences of each batch are divided among N processes of one thread each.

On a CPU, separate processes are faster than threads that share each linear layer. They are forked
with the first batch, so that they share the loaded weights and have the generator as it was built,
whatever its strategies. Sentence i of a batch goes to worker i modulo N: batches are sorted by
length, so the shares are alike. A process that ends or stops responding is replaced, and its share
is decoded again once. A sentence's results do not depend on the others, except for shortlists that
a batch shares (`--lsh-share batch`, `--shortlist-share batch`).

Neutral setting: --cpu-workers 1, no other process.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.channel import Channel
from fairseq_ext.core.errors import SentenceError, UsageError
from fairseq_ext.core.process_pool import Event, Pool, Process, fork
from fairseq_ext.core.stats import Stats
from fairseq_ext.core.supervision import State, Supervision
from fairseq_ext.plugin.pools import source_of

SILENCE = 60.0  # seconds without CPU time, after which a process that has work is replaced
TICK = 1.0  # seconds between two checks of that
WORKER_STOPPED = (
    "a process of --cpu-workers was stopped ({how}); if memory ran out, take fewer workers "
    "or smaller batches"
)
NO_PROCESS = "--cpu-workers cannot start a process ({why}): end others, or take fewer workers"


def select_sentences(value: Any, n: int, index: list[int]) -> Any:
    """Return the part of a sample, or of one of its values, for sentences `index` of n."""
    if isinstance(value, dict):
        return {name: select_sentences(part, n, index) for name, part in value.items()}
    if isinstance(value, Tensor):
        return value[index] if value.dim() and value.size(0) == n else value
    if isinstance(value, list) and len(value) == n:
        return [value[i] for i in index]
    return value


def select_batch(batch: tuple, n: int, index: list[int], pad: int) -> tuple:
    """Return the part of a batch (sample, prefix tokens, constraints) for sentences `index` of n.
    Its source is no wider than its longest sentence, as an LSTM requires. pad: of the source."""
    part, *others = (select_sentences(each, n, index) for each in batch)
    tokens = part["net_input"]["src_tokens"]
    if tokens.dim() == 2:
        part["net_input"]["src_tokens"] = tokens[:, tokens.ne(pad).any(0)]
    return part, *others


def convert_values(
    hypotheses: list[list[dict]], kind: type, function: Callable
) -> list[list[dict]]:
    """Return hypotheses with their values of one kind converted: arrays are pickled in a fraction
    of a tensor's time."""
    return [
        [{k: function(v) if isinstance(v, kind) else v for k, v in h.items()} for h in sentence]
        for sentence in hypotheses
    ]


class Worker(Supervision):
    """One worker and its current process."""

    def __init__(self) -> None:
        super().__init__(SILENCE)
        self.process: Process | None = None
        self.share = b""  # pickled sentences that it decodes
        self.deaths = 0  # processes that ended with this share
        self.answer: Any = None  # the result of this share

    def send(self, pool: Pool) -> None:
        """Send the worker its share, if it has one and a process."""
        if self.share and self.process is not None:
            pool.send(self.process, self.share)
            self.on_message()


class CpuWorkers:
    """The processes of --cpu-workers, which decode the batches of one generator.

    decode: (sample, prefix tokens, constraints) -> hypotheses, counted in the generator's
    statistics.
    """

    def __init__(self, count: int, models: list, generator: Any, decode: Callable[..., list]):
        self.count, self.models, self.generator, self.decode = count, models, generator, decode
        self.stats: Stats = generator.stats
        if any(p.device.type != "cpu" for model in models for p in model.parameters()):
            raise UsageError(
                "--cpu-workers is for the CPU, and the model is on another device: leave "
                "it out or add --cpu"
            )
        self.pool: Pool | None = None
        self.workers: list[Worker] = []
        self.parameter_snapshot: list[Tensor] = []

    @property
    def processes(self) -> list[Process]:
        """Return the running processes."""
        return [worker.process for worker in self.workers if worker.process is not None]

    def bias_parameters(self) -> list[Tensor]:
        """Return parameters that change when a model is trained further, moved or cast."""
        return [p.detach() for model in self.models for p in model.parameters() if p.dim() == 1]

    def start(self) -> Pool:
        """Fork the processes, unless that is done and the models are unchanged."""
        small = self.bias_parameters()
        if self.pool is None or not all(
            p.dtype == q.dtype and torch.equal(p, q)
            for p, q in zip(small, self.parameter_snapshot, strict=True)
        ):
            self.stop()
            self.parameter_snapshot = [p.clone() for p in small]
            self.pool = Pool()
            self.workers = [Worker() for _ in range(self.count)]
            self.start_processes(self.pool)
        return self.pool

    def start_processes(self, pool: Pool) -> None:
        """Fork the processes whose pause is over. Errors: UsageError if the system cannot start one
        for a minute."""
        now = time.monotonic()
        for worker in self.workers:
            if worker.state is not State.PAUSED or now < worker.start_at:
                continue
            try:
                worker.process = fork(pool, self.serve)
            except OSError as error:
                worker.on_failed_start(now, error, is_final=False)
                if worker.state is State.FAILED:
                    raise UsageError(NO_PROCESS.format(why=error.strerror or error)) from None
            else:
                worker.on_ready()
                worker.send(pool)

    def serve(self, channel: Channel) -> None:
        """Run a worker process until the command ends."""
        torch.set_num_threads(1)
        while True:
            for message in channel.receive():
                before = self.stats.copy()
                try:
                    found = self.decode(*pickle.loads(message))
                    hypotheses = convert_values(found, Tensor, Tensor.numpy)
                    answer = pickle.dumps((hypotheses, self.stats.since(before)))
                except Exception as error:  # passed to the command, which raises it
                    answer = pickle.dumps(
                        error
                        if isinstance(error, (UsageError, ArithmeticError))
                        else RuntimeError(repr(error))
                    )
                channel.send(answer)

    def __call__(self, sample: dict, prefix: Tensor | None, constraints: Tensor | None) -> list:
        """Return the hypotheses of a batch, in its order.

        Errors: that of the first worker with one; for all but SentenceError, all workers are
        stopped.
        """
        begin, before = time.perf_counter(), self.stats.seconds
        n = len(source_of(sample))
        shares = [list(range(n))[i :: self.count] for i in range(min(self.count, n))]
        out: list = [None] * n
        try:
            pool = self.start()
            workers = self.workers[: len(shares)]
            for worker, index in zip(workers, shares, strict=True):
                worker.share = pickle.dumps(
                    select_batch((sample, prefix, constraints), n, index, self.generator.pad)
                )
                worker.deaths, worker.answer = 0, None
                worker.send(pool)
            self.wait(pool)
            answers = [worker.answer for worker in workers]
            for answer in answers:  # before any is counted: parts of the batch may be decoded again
                if isinstance(answer, BaseException):
                    raise answer
            for i, (hypotheses, stats) in enumerate(answers):
                self.stats.add(stats)
                out[i :: self.count] = convert_values(hypotheses, np.ndarray, torch.from_numpy)
        except SentenceError:  # workers continue
            raise
        except BaseException:
            self.stop()
            raise
        self.stats.seconds = before + time.perf_counter() - begin
        return out

    def wait(self, pool: Pool) -> None:
        """Wait until all shares are decoded (raises UsageError for one that two processes ended
        with)."""
        looked = time.monotonic()
        while any(worker.share for worker in self.workers):
            now = time.monotonic()
            if now >= looked + TICK:
                # subtle: if this process did not run for a while, the workers are not silent
                elapsed, looked = min(now - looked, 2 * TICK), now
                for worker in self.workers:
                    self.end_silent(worker, elapsed)
            pauses = [w.start_at - now for w in self.workers if w.state is State.PAUSED]
            for event in pool.wait(max(0.0, min([looked + TICK - now, *pauses]))):
                self.on_event(pool, event)
            self.start_processes(pool)

    def on_event(self, pool: Pool, event: Event) -> None:
        """Take an answer, or replace a process that has ended."""
        worker = next((w for w in self.workers if w.process is event.process), None)
        if worker is None:
            return
        for message in event.messages:
            worker.answer, worker.share = pickle.loads(message), b""
            worker.on_answer()
        if event.is_over:
            status = event.process.wait(1.0)
            pool.remove(event.process)
            worker.process = None
            worker.deaths += bool(worker.share)
            if worker.deaths == 2:
                name = "signal" if (status or 0) < 0 else "status"
                how = "its pipe broke" if status is None else f"{name} {abs(status)}"
                raise UsageError(WORKER_STOPPED.format(how=how))
            worker.on_exit(time.monotonic(), has_answered=not worker.deaths)

    def end_silent(self, worker: Worker, elapsed: float) -> None:
        """Kill a process that has work and uses no CPU time; an event reports its end."""
        if worker.share and worker.process is not None:
            cpu = worker.process.cpu_seconds()
            if worker.is_silent(elapsed, cpu, has_heartbeat=False):
                worker.process.kill()

    def stop(self) -> None:
        """Stop all workers."""
        if self.pool is not None:
            self.pool.end(grace=0.0)
        self.pool, self.workers = None, []


# ---- The lock of a Translator's calls, which also detects forks
#
# A forked process has a copy of the Translator and only the thread that forked. The copy can be
# used if no other thread was in a call. Its first call sets torch to one thread, since a call that
# shares its work among threads would wait for ever for those of the parent. If another thread was
# in a call, the copy is in the middle of that call's search, and is refused.

PAUSE = 0.1  # seconds between two checks of the lock
loaded_in = os.getpid()  # the process that torch's threads belong to


def use_one_thread_after_a_fork() -> None:
    """Set torch to one thread in a process that was forked after this module was imported."""
    global loaded_in
    if loaded_in != os.getpid():
        torch.set_num_threads(1)
        loaded_in = os.getpid()


class CallLock(type(threading.RLock())):  # type: ignore[misc]
    """A lock that its thread may take again. Ctrl-C cannot leave it taken: the C code of `RLock`
    releases it, and an interrupt does not stop C code.

    Errors: UsageError in a forked process, if a thread of the parent had the lock.
    """

    def __init__(self) -> None:
        use_one_thread_after_a_fork()
        self.process = os.getpid()  # of the last thread that took it

    def __enter__(self) -> bool:
        while not self.acquire(timeout=PAUSE):
            if self.process != os.getpid():
                raise UsageError(
                    "this process was forked while another thread used the Translator: make a "
                    "Translator in this process, or fork while no call is under way"
                )
        try:
            self.process = os.getpid()
            use_one_thread_after_a_fork()
        except BaseException:
            self.release()
            raise
        return True


@contextmanager
def without_autocast() -> Iterator[None]:
    """Compute in the model's types, whatever `torch.autocast` of the calling program says."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)

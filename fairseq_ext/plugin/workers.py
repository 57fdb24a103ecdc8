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
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.channel import Channel
from fairseq_ext.core.dispatch import Ticket, Worker, WorkerDied
from fairseq_ext.core.errors import SentenceError, UsageError
from fairseq_ext.core.process_pool import Process, fork
from fairseq_ext.core.stats import Stats
from fairseq_ext.core.worker_pool import ProcessWorkers
from fairseq_ext.plugin.generator import BeamSearchGenerator, source_of

SILENCE = 60.0  # seconds without CPU time, after which a process that has work is replaced
WORKER_STOPPED = (
    "a process of --cpu-workers was stopped ({how}); if memory ran out, take fewer workers "
    "or smaller batches"
)
NO_PROCESS = "--cpu-workers cannot start a process ({why}): end others, or take fewer workers"


def select_sentences(value: object, n: int, index: list[int]) -> Any:
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


class Forked(ProcessWorkers):
    """The processes of --cpu-workers, which share what this process has loaded.

    decode: that of CpuWorkers, which counts in `stats`.
    """

    def __init__(self, count: int, decode: Callable[..., list], stats: Stats):
        super().__init__(count, SILENCE)
        self.decode, self.stats = decode, stats
        self.stopped: Exception | None = None  # why the last process has ended
        self.answers: dict[int, object] = {}  # results of the shares of a batch, by number

    def decoded(self, shares: list[object]) -> list:
        """Return the result of each share of a batch, or its error. Sentences of a share that a
        process died over are decoded again once."""
        self.answers.clear()
        for number, share in enumerate(shares):
            self.dispatch.on_submit(Ticket(number, pickle.dumps((number, share)), 1))
        self.carry_out(time.monotonic())
        while len(self.answers) < len(shares):
            events = self.wait(self.dispatch.next_event(time.monotonic()))
            self.handle(events, time.monotonic())
        return [self.answers[number] for number in range(len(shares))]

    def serve(self, channel: Channel) -> None:
        """Run a worker process until the command ends."""
        torch.set_num_threads(1)
        while True:
            for message in channel.receive():
                number, share = pickle.loads(message)
                before = self.stats.copy()
                try:
                    hypotheses = convert_values(self.decode(*share), Tensor, Tensor.numpy)
                    answer = pickle.dumps((number, (hypotheses, self.stats.since(before))))
                except Exception as error:  # passed to the command, which raises it
                    is_known = isinstance(error, (UsageError, ArithmeticError))
                    known = error if is_known else RuntimeError(repr(error))
                    answer = pickle.dumps((number, known))
                channel.send(answer)

    # ---- what the pool does with a process

    def start_process(self, worker: Worker, now: float) -> None:
        super().start_process(worker, now)
        if worker in self.processes:
            self.dispatch.on_ready(worker, 1, now)

    def new_process(self) -> Process:
        try:
            return fork(self.pool, self.serve)
        except OSError as error:
            raise UsageError(NO_PROCESS.format(why=error.strerror or error)) from None

    def exit_error(self, process: Process) -> Exception:
        status = process.wait(1.0)
        name = "signal" if (status or 0) < 0 else "status"
        how = "its pipe broke" if status is None else f"{name} {abs(status)}"
        self.stopped = UsageError(WORKER_STOPPED.format(how=how))
        return self.stopped

    def cpu_seconds(self, worker: Worker) -> float | None:
        """Return the CPU time of a worker's process, which is its heartbeat: it sends nothing while
        it decodes."""
        found = super().cpu_seconds(worker)
        if found != worker.cpu:
            worker.quiet = 0.0
        return found

    def kill(self, worker: Worker, process: Process, now: float) -> None:
        process.kill()
        super().kill(worker, process, now)

    def on_message(self, worker: Worker, message: Any, now: float) -> None:
        self.dispatch.on_answer(worker, *message)

    def answer(self, ticket: Ticket, what: object) -> None:
        self.answers[ticket.number] = self.stopped if isinstance(what, WorkerDied) else what


class CpuWorkers:
    """The processes of --cpu-workers, which decode the batches of one generator.

    decode: (sample, prefix tokens, constraints) -> hypotheses, counted in the generator's
    statistics.
    """

    def __init__(
        self, count: int, models: list, generator: BeamSearchGenerator, decode: Callable[..., list]
    ):
        self.count, self.models, self.generator, self.decode = count, models, generator, decode
        self.stats: Stats = generator.stats
        if any(p.device.type != "cpu" for model in models for p in model.parameters()):
            raise UsageError(
                "--cpu-workers is for the CPU, and the model is on another device: leave "
                "it out or add --cpu"
            )
        self.pool: Forked | None = None
        self.parameter_snapshot: list[Tensor] = []

    @property
    def processes(self) -> list[Process]:
        """Return the running processes."""
        return [] if self.pool is None else [*self.pool.processes.values()]

    def bias_parameters(self) -> list[Tensor]:
        """Return parameters that change when a model is trained further, moved or cast."""
        return [p.detach() for model in self.models for p in model.parameters() if p.dim() == 1]

    def start(self) -> Forked:
        """Fork the processes, unless that is done and the models are unchanged."""
        small = self.bias_parameters()
        if self.pool is None or not all(
            p.dtype == q.dtype and torch.equal(p, q)
            for p, q in zip(small, self.parameter_snapshot, strict=True)
        ):
            self.stop()
            self.parameter_snapshot = [p.clone() for p in small]
            self.pool = Forked(self.count, self.decode, self.stats)
            self.pool.carry_out(time.monotonic())
        return self.pool

    def __call__(self, sample: dict, prefix: Tensor | None, constraints: Tensor | None) -> list:
        """Return the hypotheses of a batch, in its order.

        Errors: that of the first worker with one; for all but SentenceError, all workers are
        stopped.
        """
        begin, before = time.perf_counter(), self.stats.seconds
        n = len(source_of(sample))
        if "requests" in sample:  # the batch has their tokens
            requests = [replace(each, tokens=None) for each in sample["requests"]]
            sample = {**sample, "requests": requests}
        given, pad = (sample, prefix, constraints), self.generator.pad
        out: list = [None] * n
        try:
            shares = [list(range(n))[i :: self.count] for i in range(min(self.count, n))]
            answers = self.start().decoded([select_batch(given, n, i, pad) for i in shares])
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

    def stop(self) -> None:
        """Stop all workers."""
        if self.pool is not None:
            self.pool.pool.end(grace=0.0)
        self.pool = None


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
def with_torch_as_usual() -> Iterator[None]:
    """Compute in the model's types, and make tensors on the CPU where no device is named, whatever
    `torch.autocast` and `torch.set_default_device` of the calling program say."""
    kinds = [kind for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)]
    # only where needed: a device that is set slows each call of torch
    is_usual = torch.get_default_device().type == "cpu"
    for kind in kinds:
        torch.set_autocast_enabled(kind, False)
    try:
        with nullcontext() if is_usual else torch.device("cpu"):
            yield
    finally:
        for kind in kinds:
            torch.set_autocast_enabled(kind, True)

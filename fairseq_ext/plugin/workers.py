"""`--cpu-workers N`: the sentences of each batch shared out among N processes of one thread each.

On a CPU, processes that decode apart beat threads that share each linear layer. They are forked
when the first batch comes, so that they share the loaded weights and hold the generator as it
was built, whatever its strategies. Sentence i of a batch goes to worker i modulo N: batches are
sorted by length, so the shares are alike. A sentence's results do not depend on the others, but for
shortlists that a batch shares (`--lsh-share batch`, `--shortlist-share batch`).

Neutral setting: --cpu-workers 1, no other process.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError
from fairseq_ext.core.process_pool import standard_streams_open
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin.search_setup import source_of

STOPPED = (
    "a process of --cpu-workers was stopped ({how}); if memory ran out, take fewer workers "
    "or smaller batches"
)


def share(value: Any, n: int, index: list[int]) -> Any:
    """What belongs to sentences `index` in a sample, or a part of one, of n sentences."""
    if isinstance(value, dict):
        return {name: share(part, n, index) for name, part in value.items()}
    if isinstance(value, Tensor):
        return value[index] if value.dim() and value.size(0) == n else value
    if isinstance(value, list) and len(value) == n:
        return [value[i] for i in index]
    return value


def share_of(batch: tuple, n: int, index: list[int], pad: int) -> tuple:
    """What belongs to sentences `index` in a batch (sample, prefix tokens, constraints)
    of n sentences, its source no wider than its longest sentence: an LSTM insists on it.
    pad: of the source."""
    part, *others = (share(each, n, index) for each in batch)
    tokens = part["net_input"]["src_tokens"]
    if tokens.dim() == 2:
        part["net_input"]["src_tokens"] = tokens[:, tokens.ne(pad).any(0)]
    return part, *others


def converted(hypotheses: list[list[dict]], kind: type, function: Callable) -> list[list[dict]]:
    """Hypotheses with their values of one kind converted: arrays are pickled in a fraction
    of a tensor's time."""
    return [
        [{k: function(v) if isinstance(v, kind) else v for k, v in h.items()} for h in sentence]
        for sentence in hypotheses
    ]


class Workers:
    """The processes of one generator.

    decode: (sample, prefix tokens, constraints) -> hypotheses, counted in the generator's
    statistics; pad: of the source.
    """

    def __init__(
        self, count: int, models: list, pad: int, generator: Any, decode: Callable[..., list]
    ):
        self.count, self.models, self.pad, self.generator, self.decode = (
            count,
            models,
            pad,
            generator,
            decode,
        )
        self.stats: Stats = generator.stats
        if any(p.device.type != "cpu" for model in models for p in model.parameters()):
            raise UsageError(
                "--cpu-workers is for the CPU, and the model is on another device: leave "
                "it out or add --cpu"
            )
        self.pipes: list[Connection] = []
        self.processes: list[Any] = []
        self.seen: list[Tensor] = []

    def small(self) -> list[Tensor]:
        """Parameters that change when a model is trained further, moved or cast."""
        return [p.detach() for model in self.models for p in model.parameters() if p.dim() == 1]

    def start(self) -> None:
        """Fork, if that has not been done or the models have changed since."""
        small = self.small()
        if self.processes and all(
            p.dtype == q.dtype and torch.equal(p, q) for p, q in zip(small, self.seen, strict=True)
        ):
            return
        self.stop()
        self.seen = [p.clone() for p in small]
        context = multiprocessing.get_context("fork")
        for _ in range(self.count):
            with standard_streams_open():
                ours, theirs = context.Pipe()
            process = context.Process(
                target=self.serve, args=(theirs, [*self.pipes, ours]), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def serve(self, pipe: Connection, others: list[Connection]) -> None:
        """A worker's life: it ends when the command does, however that ends."""
        # Ctrl-C reaches the command, which then closes the pipe
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for other in others:
            other.close()
        torch.set_num_threads(1)
        while True:
            try:
                arguments = pickle.loads(pipe.recv_bytes())
            except (EOFError, OSError):
                os._exit(0)
            before = self.stats.copy()
            try:
                hypotheses = converted(self.decode(*arguments), Tensor, Tensor.numpy)
                answer = pickle.dumps((hypotheses, self.stats.since(before)))
            except Exception as error:  # told to the command, which raises it
                answer = pickle.dumps(
                    error
                    if isinstance(error, (UsageError, ArithmeticError))
                    else RuntimeError(repr(error))
                )
            try:
                pipe.send_bytes(answer)
            except OSError:
                os._exit(0)

    def __call__(self, sample: dict, prefix: Tensor | None, constraints: Tensor | None) -> list:
        """The hypotheses of a batch, in its order.

        Errors: the first worker's that has one; no worker is left then.
        """
        begin, before = time.perf_counter(), self.stats.seconds
        self.start()
        n = len(source_of(sample))
        shares = [list(range(n))[i :: self.count] for i in range(min(self.count, n))]
        out: list = [None] * n
        try:
            for pipe, index in zip(self.pipes, shares, strict=False):
                pipe.send_bytes(
                    pickle.dumps(share_of((sample, prefix, constraints), n, index, self.pad))
                )
            answers = [pickle.loads(self.pipes[i].recv_bytes()) for i in range(len(shares))]
            for answer in answers:  # before any is counted: the batch may be decoded again in parts
                if isinstance(answer, BaseException):
                    raise answer
            for index, answer in zip(shares, answers, strict=True):
                hypotheses, stats = converted(answer[0], np.ndarray, torch.from_numpy), answer[1]
                self.stats.add(stats)
                for place, found in zip(index, hypotheses, strict=True):
                    out[place] = found
        except (EOFError, OSError) as error:
            ended = multiprocessing.connection.wait(
                [process.sentinel for process in self.processes], timeout=1
            )
            for process in self.processes:
                process.join(1 if process.sentinel in ended else 0)
            codes = [process.exitcode for process in self.processes if process.exitcode]
            how = (
                f"signal {-codes[0]}"
                if codes and codes[0] < 0
                else f"status {codes[0]}"
                if codes
                else "its pipe broke"
            )
            self.stop()
            raise UsageError(STOPPED.format(how=how)) from error
        except SentenceError:  # a worker lives on through it
            raise
        except BaseException:
            self.stop()
            raise
        self.stats.seconds = before + time.perf_counter() - begin
        return out

    def stop(self) -> None:
        """End all workers."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.join()
        self.pipes, self.processes = [], []

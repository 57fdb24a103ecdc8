"""What runs in a Ray actor: one loaded model, which takes units of sentences (unit.py) and gives finished output records."""

from __future__ import annotations

import os
import time
from typing import Any, NamedTuple

import torch

from fairseq_ext.core.errors import UsageError, explain
from fairseq_ext.core.stats import Section
from fairseq_ext.corpus.reading import Sentence
from fairseq_ext.corpus.shards import Shard
from fairseq_ext.corpus.unit import UnitTranslation
from fairseq_ext.search.constraints.report import ConstraintCounts


class Result(NamedTuple):
    """A finished unit."""

    payload: bytes  # output records, a line a sentence
    errors: list[dict[str, Any]]  # entries of errors.jsonl
    stats: Section  # of this unit alone
    translated: int
    tokens: int  # of the best hypotheses, EOS included
    seconds: float  # that the worker spent on it
    processor: float  # of which the processor worked for it
    waited: float  # seconds since it had ended the one before
    signature: str


class Worker:
    """An actor. flags: of `Translator`; threads: of torch on the CPU; plain: text lines instead of JSONL."""

    def __init__(self, flags: dict[str, Any], threads: int, plain: bool):
        self.flags, self.threads, self.plain = flags, threads, plain
        self.translator: Any = None
        self.ended = 0.0  # when the last unit was finished

    def hello(self) -> int:
        """The process id, as soon as there is a process."""
        return os.getpid()

    def load(self) -> dict[str, str]:
        """Load the model: {"signature": ..., "note": what the user should know or nothing}, or {"error": one sentence} for a mistake
        that no other process would mend."""
        try:
            torch.set_num_threads(self.threads)
            self.translator = load(self.flags)
        except (Exception, SystemExit) as error:
            return {"error": explain(error) or f"the model cannot be loaded: {type(error).__name__}: {error}"}
        return {"signature": self.translator.signature, "note": self.translator.note}

    def translate(self, shard: Shard, sentences: list[Sentence]) -> Result:
        """Translate the sentences of one unit; return its result."""
        start, processor = time.perf_counter(), time.process_time()
        if self.translator is None:
            found = self.load()
            if "error" in found:
                raise RuntimeError(found["error"])
        before = self.translator.stats.copy()
        unit = UnitTranslation(self.translator, shard, sentences)
        unit.decode()
        stats = self.translator.stats.since(before)
        stats.signature = ""  # units with constraints of their own and others may differ in it; the result has it
        of_unit, of_all = (each.found(ConstraintCounts) for each in (stats, self.translator.stats))
        if of_unit is not None and of_all is not None:  # errors.jsonl lists them; here they would grow for ever
            del of_unit.unmet
            of_all.unmet.clear()
        payload = "".join(unit.line(s) if self.plain else unit.record(s) for s in sentences).encode("utf-8")
        waited, self.ended = start - (self.ended or start), time.perf_counter()
        seconds, processor = self.ended - start, time.process_time() - processor
        counts = (stats.sentences, stats.target_tokens)
        return Result(payload, unit.errors, stats, *counts, seconds, processor, waited, self.translator.signature)


def load(flags: dict[str, Any]) -> Any:
    """A Translator, with the streaming schedule where it fits the other flags and none is named."""
    from fairseq_ext.translator import Translator

    class UnitTranslator(Translator):
        note = ""

        def build_generator(self) -> Any:
            own = self.task.flags()
            if "schedule" in flags:
                return super().build_generator()
            own.schedule = "stream"
            try:
                return super().build_generator()
            except UsageError as error:
                own.schedule = "batch"
                generator = super().build_generator()  # where it was not the schedule's fault, the error comes again
                self.note = f"units are decoded batch by batch, because the streaming schedule does not fit: {error}"
                return generator

    return UnitTranslator(**flags)


def refusal(shard: Shard, sentence: Sentence, plain: bool) -> Result:
    """The result of a sentence that no worker survives."""
    unit = UnitTranslation(None, shard, [sentence])
    unit.refuse(sentence, "worker died", f"each worker that was to translate {unit.where(sentence)} died")
    payload = unit.line(sentence) if plain else unit.record(sentence)
    return Result(payload.encode("utf-8"), unit.errors, Section(), 0, 0, 0.0, 0.0, 0.0, "")

"""The code of a Ray actor: one loaded model, which turns units of sentences into finished output
records."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fairseq_ext.core.errors import SentenceError, UsageError, explain, isolated
from fairseq_ext.core.stats import Stats
from fairseq_ext.corpus.shards import Shard, ShardLine
from fairseq_ext.search.constraints.report import ConstraintCounts
from fairseq_ext.search.report import Translation, constraint_json, shown
from fairseq_ext.search.request import Request

logger = logging.getLogger("fairseq_ext")
NOT_MET = "constraint not met"  # the kind of such an entry of errors.jsonl


@dataclass(frozen=True)
class Result:
    """The result of a finished unit."""

    payload: bytes  # output records, a line a sentence
    errors: list[dict[str, object]] = field(default_factory=list)  # entries of errors.jsonl
    stats: Stats = field(default_factory=Stats)  # of this unit alone
    signature: str = ""
    warnings: tuple[str, ...] = ()  # that it has logged meanwhile


class Warnings(logging.Handler):
    """Keeps the warnings of its context, which the user of a worker does not see, for the run to
    log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: dict[str, None] = {}

    def emit(self, record: logging.LogRecord) -> None:
        self.messages[record.getMessage()] = None

    def __enter__(self) -> None:
        logger.addHandler(self)

    def __exit__(self, *error: object) -> None:
        logger.removeHandler(self)

    def take(self) -> tuple[str, ...]:
        """Return the messages since the last call, each once."""
        messages, self.messages = self.messages, {}
        return tuple(messages)


class CorpusWorker:
    """An actor. flags: of `Translator`; threads: of torch on the CPU; plain: text
    lines instead of JSONL."""

    def __init__(self, flags: dict[str, object], threads: int, plain: bool):
        self.flags, self.threads, self.plain = flags, threads, plain
        self.translator: Any = None
        self.warnings = Warnings()

    def load(self) -> dict[str, object]:
        """Load the model. Return {"signature": ..., "warnings": messages for the user}, or
        {"error": one sentence} for an error that every process would have."""
        try:
            torch.set_num_threads(self.threads)
            with self.warnings:
                self.translator = load(self.flags)
        except (Exception, SystemExit) as error:
            return {
                "error": explain(error)
                or f"the model cannot be loaded: {type(error).__name__}: {error}"
            }
        return {"signature": self.translator.signature, "warnings": self.warnings.take()}

    def translate(self, shard: Shard, sentences: list[ShardLine]) -> Result:
        """Translate the sentences of one unit; return its result."""
        stats = self.translator.stats
        before = stats.copy()
        unit = UnitTranslation(self.translator, shard, sentences)
        with self.warnings:
            unit.decode()
        own = stats.since(before)
        # it may differ between units with and without own constraints; the result has it
        own.signature = ""
        of_unit, of_all = (each.find_section(ConstraintCounts) for each in (own, stats))
        # errors.jsonl lists them; a copy here would grow without limit
        if of_unit is not None and of_all is not None:
            del of_unit.unmet
            of_all.unmet.clear()
        payload = unit.payload(self.plain)
        return Result(payload, unit.errors, own, self.translator.signature, self.warnings.take())


def load(flags: dict[str, Any]) -> object:
    """Return a Translator. Without --schedule it streams if the other flags allow it."""
    from fairseq_ext.plugin.generator import BeamSearchGenerator
    from fairseq_ext.translator import Translator

    class UnitTranslator(Translator):
        def build_generator(self) -> BeamSearchGenerator:
            if "schedule" in flags:
                return super().build_generator()
            settings = self.task.flags()
            own, settings.schedule = settings.schedule, "stream"
            try:
                return super().build_generator()
            except UsageError as error:
                settings.schedule = own
                # if another flag caused the error, it is raised again
                generator = super().build_generator()
                logger.warning(
                    "units are decoded batch by batch, because the streaming schedule does not "
                    "fit: %s",
                    error,
                )
                return generator

    return UnitTranslator(**flags)


def died_result(shard: Shard, sentence: ShardLine, plain: bool) -> Result:
    """Return the result of a sentence that kills every worker."""
    unit = UnitTranslation(None, shard, [sentence])
    reason = f"each worker that was to translate {unit.where(sentence)} died"
    unit.refuse(sentence.number, "worker died", reason)
    return Result(unit.payload(plain), unit.errors)


# ---- A unit of sentences
#
# A Translator turns it into output records and entries of errors.jsonl.
#
# A sentence that cannot be translated does not affect the others. Problems that are known before
# the search (too many tokens, a phrase that the dictionary lacks) are checked sentence by sentence.
# Problems that only the search shows (out of memory on the device, an error of a check) are
# isolated by halving the unit. If no sentence of a unit could be translated and an error is
# unexpected, the process translates a sentence of one word. If that works, the errors belong to
# the sentences; if not, the error is raised, and scheduler.py gives the unit to a fresh process.


# characters at which some programs end a line
SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


class UnitTranslation:
    """The translation of one unit; `decode` fills `hypotheses` and `refused`, which are by the
    sentence's number, as the other fields are."""

    def __init__(self, translator: Any, shard: Shard, sentences: list[ShardLine]):
        self.translator, self.shard, self.sentences = translator, shard, sentences
        self.requests: dict[int, Request] = {}  # prepared
        self.hypotheses: dict[int, list[Translation]] = {}
        # kind and reason, as in errors.jsonl, of sentences without hypotheses
        self.refused: dict[int, tuple[str, str]] = {}

    def decode(self) -> None:
        """Translate every sentence that can be translated."""
        failed: dict[int, Exception] = {}
        refusal = ""  # of sentences with constraints of their own
        try:
            if any(sentence.request.own_constraints for sentence in self.sentences):
                self.translator.use_constraints()
        except UsageError as error:
            refusal = f" has constraints, and {error}"
        for sentence in self.sentences:
            request, number, where = sentence.request, sentence.number, self.where(sentence)
            try:
                if sentence.error:
                    self.refuse(number, *sentence.error)
                elif refusal and request.own_constraints:
                    self.refuse(number, "constraint", where + refusal)
                else:
                    self.requests[number] = self.translator.prepared(request, where)
            except UsageError as error:
                is_long = isinstance(error, SentenceError)
                self.refuse(number, "too long" if is_long else "constraint", str(error))
            except Exception as error:
                failed[number] = error
        good = [*self.requests]
        results = isolated(good, self.search, Exception) if good else []
        for number, result in zip(good, results, strict=True):
            if isinstance(result, Exception):
                failed[number] = result
            else:
                self.hypotheses[number] = result
        if not self.hypotheses:
            for problem in failed.values():
                if explain(problem) is None and "out of memory" not in str(problem).lower():
                    self.check_process(problem)
                    break
        for number, problem in failed.items():
            reason = explain(problem) or f"{type(problem).__name__}: {problem}".splitlines()[0]
            self.refuse(number, "failed", reason)

    def check_process(self, problem: Exception) -> None:
        """Raise the problem if this process cannot translate a single word either; then the process
        is broken, not the sentences."""
        dictionary = self.translator.task.source_dictionary
        before = self.translator.stats.mark()
        word = min(dictionary.nspecial, len(dictionary) - 1)
        try:
            self.translator.search([Request(tokens=torch.tensor([word, dictionary.eos()]))])
        except Exception:
            raise problem from None
        finally:
            self.translator.stats.rollback(before)

    def where(self, sentence: ShardLine) -> str:
        """Return a sentence's place, for messages."""
        return f"line {sentence.number + 1} of {self.shard.path}"

    def refuse(self, number: int, kind: str, reason: str) -> None:
        """Record that a sentence is not translated."""
        # a message may quote a lone surrogate
        self.refused[number] = kind, reason.encode("utf-8", "replace").decode()

    def search(self, numbers: Sequence[int]) -> list:
        """Return the hypotheses of sentences that are decoded together."""
        stats = self.translator.stats
        mark = stats.mark()
        try:
            return self.translator.search([self.requests[number] for number in numbers])
        except Exception:
            stats.rollback(mark)
            raise

    @property
    def errors(self) -> list[dict[str, object]]:
        """The entries of errors.jsonl."""
        found = []
        for sentence in self.sentences:
            nbest = self.hypotheses.get(sentence.number)
            entries = [self.refused[sentence.number]] if sentence.number in self.refused else []
            for phrase, reason in nbest[0].unmet if nbest else ():
                where = f"'{phrase}' in {self.where(sentence)}"
                entries.append((NOT_MET, f"{where} is not met: {reason}"))
            found += [error_entry(self.shard, sentence.number, sentence.id, *e) for e in entries]
        return found

    def payload(self, plain: bool) -> bytes:
        """Return the output of all sentences. plain: as text."""
        of_sentence = self.line if plain else self.record
        return "".join(map(of_sentence, self.sentences)).encode("utf-8")

    def record(self, sentence: ShardLine) -> str:
        """Return the sentence's line of JSONL output."""
        nbest = self.hypotheses.get(sentence.number, [])
        record: dict[str, object] = {"id": sentence.id, "source": sentence.request.source}
        record["hypotheses"] = [h.text for h in nbest]
        record["scores"] = [round(h.score, 6) for h in nbest]
        if nbest:
            for name, value in shown(nbest[0]).items():
                record[name] = round(value, 6) if isinstance(value, float) else value
        request = self.requests.get(sentence.number)
        if request is not None and request.constraints is not None and nbest:
            reports = self.translator.sentences.report(request, nbest[0], nbest[0].text)
            record["constraints"] = list(map(constraint_json, reports))
        if sentence.number in self.refused:
            record["error"] = self.refused[sentence.number][1]
        return json.dumps(record, ensure_ascii=False).translate(SEPARATORS) + "\n"

    def line(self, sentence: ShardLine) -> str:
        """Return the sentence's line of plain text: the best hypothesis, or an empty line if it
        could not be translated."""
        nbest = self.hypotheses.get(sentence.number)
        return (" ".join(nbest[0].text.splitlines()) if nbest else "") + "\n"


def error_entry(shard: Shard, line: int, id: object, kind: str, reason: str) -> dict[str, object]:
    """Return an entry of errors.jsonl. line: counted from 0."""
    return {"shard": shard.name, "line": line + 1, "id": id, "kind": kind, "reason": reason}

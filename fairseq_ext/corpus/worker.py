"""What runs in a Ray actor: one loaded model, which makes finished output records
of units of sentences."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fairseq_ext.core.errors import UsageError, explain, isolated
from fairseq_ext.core.stats import Section, Stats
from fairseq_ext.corpus.shards import Sentence, Shard
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
    """An actor. flags: of `Translator`; threads: of torch on the CPU; plain: text
    lines instead of JSONL."""

    def __init__(self, flags: dict[str, Any], threads: int, plain: bool):
        self.flags, self.threads, self.plain = flags, threads, plain
        self.translator: Any = None
        self.ended = 0.0  # when the last unit was finished

    def hello(self) -> int:
        """The process id, as soon as there is a process."""
        return os.getpid()

    def load(self) -> dict[str, str]:
        """Load the model: {"signature": ..., "note": what the user should know or nothing}, or
        {"error": one sentence} for a mistake that no other process would mend."""
        try:
            torch.set_num_threads(self.threads)
            self.translator = load(self.flags)
        except (Exception, SystemExit) as error:
            return {
                "error": explain(error)
                or f"the model cannot be loaded: {type(error).__name__}: {error}"
            }
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
        # units with constraints of their own and others may differ in it; the result has it
        stats.signature = ""
        of_unit, of_all = (each.found(ConstraintCounts) for each in (stats, self.translator.stats))
        # errors.jsonl lists them; here they would grow for ever
        if of_unit is not None and of_all is not None:
            del of_unit.unmet
            of_all.unmet.clear()
        payload = "".join(unit.line(s) if self.plain else unit.record(s) for s in sentences).encode(
            "utf-8"
        )
        waited, self.ended = start - (self.ended or start), time.perf_counter()
        seconds, processor = self.ended - start, time.process_time() - processor
        counts = (stats.sentences, stats.target_tokens)
        return Result(
            payload,
            unit.errors,
            stats,
            *counts,
            seconds,
            processor,
            waited,
            self.translator.signature,
        )


def load(flags: dict[str, Any]) -> Any:
    """A Translator, with the streaming schedule where it fits the other flags and none is named."""
    from fairseq_ext.translator import Translator

    class UnitTranslator(Translator):
        note = ""

        def build_generator(self) -> Any:
            session = self.task.session
            own = session.flags
            if "schedule" in flags:
                return super().build_generator()
            session.flags = replace(own, schedule="stream")
            try:
                return super().build_generator()
            except UsageError as error:
                session.flags = own
                # where it was not the schedule's fault, the error comes again
                generator = super().build_generator()
                self.note = (
                    "units are decoded batch by batch, because the streaming schedule does "
                    f"not fit: {error}"
                )
                return generator

    return UnitTranslator(**flags)


def refusal(shard: Shard, sentence: Sentence, plain: bool) -> Result:
    """The result of a sentence that no worker survives."""
    unit = UnitTranslation(None, shard, [sentence])
    unit.refuse(
        sentence, "worker died", f"each worker that was to translate {unit.where(sentence)} died"
    )
    payload = unit.line(sentence) if plain else unit.record(sentence)
    return Result(payload.encode("utf-8"), unit.errors, Section(), 0, 0, 0.0, 0.0, 0.0, "")


# ---- A unit of sentences
#
# It goes through a Translator, to output records and entries of errors.jsonl.
#
# A sentence that cannot be translated costs no other one its translation. What can be told
# beforehand (too many tokens, a phrase that the dictionary lacks) is looked at sentence by
# sentence; what only the search finds out (out of memory on the device, an error of a check) is
# cornered by halving the unit. When nothing in a unit can be translated and an error is unexpected,
# the process translates a sentence of one word. Where it can, the errors are those of the
# sentences; where it cannot, the error goes up, and scheduler.py gives the unit to a fresh process.


# some readers end lines there
SEPARATORS = str.maketrans({"\u2028": "\\u2028", "\u2029": "\\u2029", "\x85": "\\u0085"})


class UnitTranslation:
    """Sentences on their way through a Translator; `hypotheses` and `errors` fill up."""

    def __init__(self, translator: Any, shard: Shard, sentences: list[Sentence]):
        self.translator, self.shard, self.sentences = translator, shard, sentences
        self.hypotheses: dict[int, list] = {}  # by the sentence's number
        self.reasons: dict[int, str] = {}  # of sentences without hypotheses
        self.wanted: dict[int, Any] = {}  # SentenceConstraints
        self.unmet: dict[int, list[tuple[str, str]]] = {}
        self.errors: list[dict[str, Any]] = []

    def decode(self) -> None:
        """Translate all that can be translated."""
        good, tokens = [], []
        failed: list[tuple[Sentence, Exception]] = []
        constrained = self.use_constraints()
        for sentence in self.sentences:
            if sentence.error:
                self.refuse(sentence, *sentence.error)
                continue
            if sentence.fields and constrained is not None:
                self.refuse(
                    sentence,
                    "constraint",
                    f"{self.where(sentence)} has constraints, and {constrained}",
                )
                continue
            kind = "too long"
            try:
                encoded = self.translator.encode(sentence.source)
                self.translator.check_length(encoded, self.where(sentence))
                kind = "constraint"
                self.constrain(sentence, encoded)
            except UsageError as error:
                self.refuse(sentence, kind, str(error))
            except Exception as error:
                failed.append((sentence, error))
            else:
                good.append(sentence)
                tokens.append(encoded)
        failed += self.search(good, tokens)
        unexpected = [
            problem
            for _, problem in failed
            if explain(problem) is None and not out_of_memory(problem)
        ]
        if unexpected and not self.hypotheses:
            self.check_process(unexpected[0])
        for sentence, problem in failed:
            self.refuse(
                sentence,
                "failed",
                explain(problem) or f"{type(problem).__name__}: {problem}".splitlines()[0],
            )
        self.errors.sort(key=lambda entry: entry["line"])

    def use_constraints(self) -> UsageError | None:
        """Have the translator search with constraints where a sentence has some; the error where
        the flags do not allow it."""
        try:
            if any(sentence.fields for sentence in self.sentences):
                self.translator.use_constraints()
        except UsageError as error:
            return error
        return None

    def check_process(self, problem: Exception) -> None:
        """Raise the problem if this process cannot translate a word by itself, so that the
        sentences are not to blame for it."""
        dictionary, stats = self.translator.task.source_dictionary, self.translator.stats
        before = stats.mark()
        try:
            self.translator.search(
                [torch.tensor([min(dictionary.nspecial, len(dictionary) - 1), dictionary.eos()])],
                None,
                1,
            )
        except Exception:
            raise problem from None
        finally:
            stats.go_back(before)

    def where(self, sentence: Sentence) -> str:
        """How messages name a sentence."""
        return f"line {sentence.number + 1} of {self.shard.path}"

    def refuse(self, sentence: Sentence, kind: str, reason: str) -> None:
        """Note that a sentence is not translated."""
        # a message may quote what is no character
        reason = reason.encode("utf-8", "replace").decode()
        self.reasons[sentence.number] = reason
        self.note(sentence, kind, reason)

    def note(self, sentence: Sentence, kind: str, reason: str) -> None:
        """An entry of errors.jsonl."""
        entry = {
            "shard": self.shard.name,
            "line": sentence.number + 1,
            "id": sentence.id,
            "kind": kind,
            "reason": reason,
        }
        self.errors.append(entry)

    def constrain(self, sentence: Sentence, tokens: Any) -> None:
        """The sentence's constraints, those of --glossary and --avoid-file included."""
        if not self.translator.task.session.sentences.constrained:
            return
        source = self.translator.task.session.sentences.constraint_source()
        own = [source.of_fields(sentence.fields, self.where(sentence))] if sentence.fields else []
        self.wanted[sentence.number] = source.sentence(sentence.number, tokens, *own)

    def search(
        self, sentences: Sequence[Sentence], tokens: Sequence[Any]
    ) -> list[tuple[Sentence, Exception]]:
        """Decode; return the sentences whose decoding fails by themselves."""
        tokens_of = dict(zip((s.number for s in sentences), tokens, strict=True))
        stats, nbest = self.translator.stats, self.translator.cfg.generation.nbest

        def decode(part: Sequence[Sentence]) -> list[Any]:
            numbers = [sentence.number for sentence in part]
            wanted = [self.wanted[number] for number in numbers] if self.wanted else None
            before, mark = stats.copy(), stats.mark()
            try:
                found = self.translator.search(
                    [tokens_of[number] for number in numbers], wanted, nbest, numbers=numbers
                )
            except Exception:
                stats.go_back(mark)
                raise
            self.hypotheses.update(zip(numbers, found, strict=True))
            self.take_report(part, before)
            return found

        results = isolated(sentences, decode, Exception) if sentences else []
        return [
            (sentence, result)
            for sentence, result in zip(sentences, results, strict=True)
            if isinstance(result, Exception)
        ]

    def take_report(self, sentences: Sequence[Sentence], before: Stats) -> None:
        """Which constraints a search has not met, from the statistics."""
        counts = self.translator.stats.since(before).found(ConstraintCounts)
        of_number = {sentence.number: sentence for sentence in sentences}
        for number, phrase, reason in counts.unmet if counts is not None else ():
            sentence = of_number[number]
            self.unmet.setdefault(sentence.number, []).append((phrase, reason))
            self.note(
                sentence,
                "constraint not met",
                f"'{phrase}' in {self.where(sentence)} is not met: {reason}",
            )

    def record(self, sentence: Sentence) -> str:
        """The sentence's line of JSONL output."""
        nbest = self.hypotheses.get(sentence.number, [])
        record: dict[str, Any] = {"id": sentence.id, "source": sentence.source}
        record["hypotheses"] = [h.text for h in nbest]
        record["scores"] = [round(h.score, 6) for h in nbest]
        if nbest and nbest[0].utility is not None:
            record["utility"] = round(nbest[0].utility, 6)
        wanted = self.wanted.get(sentence.number)
        if wanted is not None and nbest:
            left = Counter(phrase for phrase, _ in self.unmet.get(sentence.number, []))
            given = [
                *[wanted.prefix_text] * bool(wanted.prefix),
                *wanted.text,
                *(text for text, _ in wanted.unmet),
            ]
            record["constraints"] = []
            # of equal phrases, the last ones are those that are not met
            for text in reversed(given):
                record["constraints"].insert(0, {"phrase": text, "met": not left[text]})
                left[text] -= left[text] > 0
        if sentence.number in self.reasons:
            record["error"] = self.reasons[sentence.number]
        return json.dumps(record, ensure_ascii=False).translate(SEPARATORS) + "\n"

    def line(self, sentence: Sentence) -> str:
        """The sentence's line of plain text: the best hypothesis, nothing for one that
        could not be translated."""
        nbest = self.hypotheses.get(sentence.number)
        return (" ".join(nbest[0].text.splitlines()) if nbest else "") + "\n"


def out_of_memory(error: Exception) -> bool:
    """Whether a device had no room for a batch."""
    return "out of memory" in str(error).lower()

"""A sentence that cannot be translated does not affect the others.

Such a sentence (invalid bytes, too many tokens, a constraint that cannot be used, NaN in the
model's output) is reported on standard error, as `E-<number>` and the reason. Its hypothesis is
empty, so that outputs stay aligned, and the command ends with status 3. With --strict, the command
prints the sentences before it and ends with status 1.

Errors that do not need a search are found sentence by sentence. For an error of the search, the
batch is halved until the sentence that fails is alone.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from fairseq.data import FairseqDataset
from fairseq.data.iterators import EpochBatchIterator

from fairseq_ext.core.command_line import is_loaded
from fairseq_ext.core.errors import SentenceError, UsageError, damaged_data, isolated, report
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin.flags_dataclass import RunFlags
from fairseq_ext.plugin.generator import dictionary_of
from fairseq_ext.plugin.loading.settings import Task
from fairseq_ext.plugin.sentences import Batch, Sentences
from fairseq_ext.plugin.workers import select_batch
from fairseq_ext.search.finished import no_hypothesis
from fairseq_ext.search.settings import Settings

BAD_SENTENCES = 3  # the status of a command with sentences that cannot be translated


def decode_isolating_errors(
    batch: Batch, n: int, pad: int, decode: Callable[[Batch], list]
) -> list:
    """Return the hypotheses of each of a batch's n sentences, or its own SentenceError (raises
    every other error of `decode`)."""

    def decode_part(index: Sequence[int]) -> list:
        return decode(batch if len(index) == n else select_batch(batch, n, list(index), pad))

    return isolated(range(n), decode_part, SentenceError)


class RaisesWhenPrinted(list):
    """The n-best list of a sentence whose error ends an interactive session: `len` raises it.

    fairseq-interactive calls `len` when it prints the sentence, after all lines before it."""

    def __init__(self, hypotheses: list[dict[str, object]], raise_error: Callable[[], NoReturn]):
        super().__init__(hypotheses)
        self.raise_error = raise_error

    def __len__(self) -> int:
        self.raise_error()


class BadSentences:
    """The errors of sentences, in fairseq-generate and fairseq-interactive.

    sentences: numbers and constraints of the sentences.
    """

    def __init__(self, task: Task, sentences: Sentences):
        self.task, self.sentences = task, sentences
        self.is_interactive = False  # this is fairseq-interactive
        self.is_generate = False  # this is fairseq-generate
        self.strict = False
        # the error of the first sentence that was not translated, to be raised later
        self.pending_error: UsageError | None = None
        # numbers of the sentences that cannot be translated and were reported
        self.reported: set[int] = set()
        self.too_long: dict[int, UsageError] = {}  # errors of the data set's sentences, by number
        self.max_tokens: int | None = None  # --max-tokens

    def use_settings(self, settings: Settings) -> None:
        """Read the settings of a generator."""
        self.strict = settings.get(RunFlags).strict
        is_stream = settings.choice("schedule") == "stream"
        self.max_tokens = None if is_stream else settings.command.max_tokens

    # ---- sentences of a data set

    def note_dataset(self, split: str) -> None:
        """Note that a data set was loaded (fairseq-train and fairseq-validate load theirs, too)."""
        self.is_generate = (
            is_loaded("fairseq_cli.generate") and self.task.session.settings.command.subset == split
        )

    def filter(self, indices: object, dataset: FairseqDataset, max_positions: object) -> object:
        """Return the sentences of a data set that the model takes; note errors of the others."""
        kept, ignored = dataset.filter_indices_by_size(indices, max_positions)
        limit = max_positions[0] if isinstance(max_positions, (tuple, list)) else max_positions
        # some tasks have a limit for each language
        limit = limit if isinstance(limit, (int, float)) else None
        for i in map(int, ignored):
            size = dataset.size(i)
            source, target = size if isinstance(size, tuple) else (size, 0)
            of_target = f" and its reference {target}" if limit is None or source <= limit else ""
            self.too_long[i] = SentenceError(
                f"sentence {i + 1} has {source} tokens{of_target}, and the model takes "
                f"{max_positions}: shorten or split it, or leave it out with "
                "--skip-invalid-size-inputs-valid-test"
            )
        if self.max_tokens:
            for i in [i for i in map(int, kept) if dataset.num_tokens(i) > self.max_tokens]:
                self.too_long[i] = SentenceError(
                    f"sentence {i + 1} has {dataset.num_tokens(i)} tokens and --max-tokens takes "
                    f"{self.max_tokens}: raise it, or split the sentence"
                )
            kept = kept[[int(i) not in self.too_long for i in kept]]
        return kept

    def with_too_long(self, batches: EpochBatchIterator) -> EpochBatchIterator:
        """Add a batch for each sentence that is too long to fairseq's batches: its lines are
        printed, and it is not decoded."""
        if self.too_long:
            batches._frozen_batches = (
                *batches.frozen_batches,
                *([i] for i in sorted(self.too_long)),
            )
        return batches

    def refuse_unknown_words(self, sample: dict, error: IndexError) -> None:
        """Raise UsageError instead of `error` if a batch has words beyond the dictionaries."""
        task, source = self.task, sample["net_input"].get("src_tokens")
        for words, tokens in (
            (task.source_dictionary, source),
            (task.target_dictionary, sample.get("target")),
        ):
            if words is not None and tokens is not None and int(tokens.max()) >= len(words):
                raise UsageError(
                    damaged_data(f"word {int(tokens.max())} of a dictionary of {len(words)}")
                ) from error

    # ---- batches

    def decode_usable(self, batch: Batch, decode: Callable[[Batch], list]) -> list:
        """Return the hypotheses of a batch; an empty one for each sentence that cannot be
        translated (raises its SentenceError outside the two commands)."""
        if self.pending_error is not None and self.is_generate:
            pending, self.pending_error = self.pending_error, None
            raise pending
        sample = batch[0]
        n = len(sample["net_input"]["src_tokens"]) if "src_tokens" in sample["net_input"] else 0
        if not n or not (self.is_interactive or self.is_generate):
            for known_error in self.sentences.batch_errors.values():
                raise SentenceError(str(known_error)) from known_error
            return decode(batch)
        # speech has no source dictionary
        pad = (self.task.source_dictionary or self.task.target_dictionary).pad()
        known = self.known_errors(sample)
        usable = [i for i in range(n) if i not in known]
        found: dict[int, list | UsageError] = dict(known)
        if usable:
            part = batch if len(usable) == n else select_batch(batch, n, usable, pad)
            decoded = decode_isolating_errors(part, len(usable), pad, decode)
            found |= zip(usable, decoded, strict=True)
        errors = {i: each for i, each in found.items() if isinstance(each, UsageError)}
        if not errors:
            return decoded
        if self.strict and self.is_interactive:
            return [
                RaisesWhenPrinted(self.empty_hypotheses(), partial(self.raise_now, errors[i]))
                if i in errors
                else found[i]
                for i in range(n)
            ]
        if self.strict:
            place = min(errors)
            return self.hypotheses_before(place, errors[place], sample, [*map(found.get, range(n))])
        for i in sorted(errors):
            self.report_sentence(int(sample["id"][i]), errors[i])
        return [self.empty_hypotheses() if i in errors else found[i] for i in range(n)]

    def known_errors(self, sample: dict) -> dict[int, UsageError]:
        """Return the errors of a batch's sentences that are known before the search, by place."""
        numbers = sample["id"].tolist() if "id" in sample else []
        return {
            **{
                i: self.too_long[number]
                for i, number in enumerate(numbers)
                if number in self.too_long
            },
            **self.sentences.batch_errors,
        }

    def report_sentence(self, number: int, error: UsageError) -> None:
        """Report the error of a sentence, once."""
        if number not in self.reported:
            self.reported.add(number)
            sys.stdout.flush()
            print(f"E-{number}\t{error}", file=sys.stderr, flush=True)

    def raise_now(self, error: UsageError) -> NoReturn:
        """End the session by this error; an error of a later line is not reported."""
        self.pending_error = None
        raise error

    def hypotheses_before(self, place: int, error: UsageError, sample: dict, found: list) -> list:
        """Return the hypotheses before the first bad sentence of a data set's batch; its error is
        raised with the next batch, or reported at the end.

        subtle: fairseq-generate prints as many sentences as the sample has numbers.
        """
        if not place:
            raise error
        self.pending_error = error
        sample["id"] = sample["id"][:place]
        return found[:place]

    def empty_hypotheses(self) -> list[dict[str, object]]:
        """Return the n-best list of a sentence that is not translated."""
        return [dictionary_of(no_hypothesis(self.task.target_dictionary.eos()))]

    def report_at_end(self, stats: Stats) -> int:
        """Report unmet constraints and a pending error at the end of the process; return the
        status."""
        if self.sentences.constrained:
            self.sentences.report_unmet(stats)
        if self.pending_error is not None:
            report(type(self.pending_error), self.pending_error, None)
        return 1 if self.pending_error is not None else BAD_SENTENCES if self.reported else 0

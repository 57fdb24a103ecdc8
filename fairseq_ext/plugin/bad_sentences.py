"""Sentences that cannot be translated cost no other one its translation.

Such a sentence (invalid bytes, too many tokens, a constraint that cannot be used, NaN in the
model's output) is told on standard error, `E-<number>` and the reason, and has an empty hypothesis,
so that outputs stay aligned; the status is 3 at the end. With --strict the first one ends the
command, with status 1, once what came before it is printed.

What can be told beforehand is looked at sentence by sentence. What only the search finds out is
cornered by halving the batch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NoReturn

import torch

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import SentenceError, UsageError, damaged_data, isolated, report
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin.compat.repairs import is_loaded
from fairseq_ext.plugin.options import Options
from fairseq_ext.plugin.sentences import Batch, Sentences
from fairseq_ext.plugin.workers import share_of
from fairseq_ext.search.registry import choice

BAD_SENTENCES = 3  # the status of a command with sentences that cannot be translated


def decode_each(
    batch: Batch,
    n: int,
    pad: int,
    decode: Callable[[Batch], list],
    error: SentenceError | None = None,
) -> list[Any]:
    """The hypotheses of each of a batch's n sentences, or the SentenceError that it has by itself.

    error: that of the whole batch, where it has been decoded. Errors: any other that `decode` has.
    """

    def decode_part(index: Sequence[int]) -> list:
        return decode(batch if len(index) == n else share_of(batch, n, list(index), pad))

    return isolated(range(n), decode_part, SentenceError, error)


class EndsHere(list):
    """The n-best list at which a session ends, by an error: fairseq-interactive asks for its
    length when it comes to print it, behind all lines before it, whatever batches they were in.
    end: called then; it raises."""

    def __init__(self, hypotheses: list[dict[str, Any]], end: Callable[[], NoReturn]):
        super().__init__(hypotheses)
        self.end = end

    def __len__(self) -> int:
        self.end()


class BadSentences:
    """Keeps bad sentences apart, in fairseq-generate and fairseq-interactive.

    sentences: what is known of them.
    """

    def __init__(self, task: Any, sentences: Sentences):
        self.task, self.sentences = task, sentences
        self.is_interactive = False  # this is fairseq-interactive
        self.translates_corpus = False  # this is fairseq-generate
        self.strict = False
        # what the first sentence that was not translated is to blame for
        self.held: UsageError | None = None
        # numbers of the sentences that cannot be translated, all that were told
        self.refused: set[int] = set()
        self.too_long: dict[int, UsageError] = {}  # of the data set, by number
        self.room: int | None = None  # --max-tokens

    def use_options(self, options: Options) -> None:
        """Read the settings of a generator. Errors: UsageError for a closed standard output."""
        prints = is_loaded("fairseq_cli.generate") or is_loaded("fairseq_cli.interactive")
        if command_line.own_command and sys.stdout is None and prints:
            raise UsageError(
                "standard output is closed, and translations are printed there: send it to a file"
            )
        self.strict = options.flags.strict
        is_stream = choice(options.flags, "schedule") == "stream"
        self.room = None if is_stream else options.settings.max_tokens

    # ---- sentences of a data set

    def look(self, split: str) -> None:
        """A data set was loaded; fairseq-train and -validate load theirs, too."""
        self.translates_corpus = (
            is_loaded("fairseq_cli.generate") and self.task.session.settings.subset == split
        )

    def filter(self, indices: Any, dataset: Any, max_positions: Any) -> Any:
        """The sentences of a data set that the model takes; the others are kept in mind."""
        kept, ignored = dataset.filter_indices_by_size(indices, max_positions)
        limit = max_positions[0] if isinstance(max_positions, (tuple, list)) else max_positions
        # some tasks have one for each language
        limit = limit if isinstance(limit, (int, float)) else None
        for i in map(int, ignored):
            size = dataset.size(i)
            source, target = size if isinstance(size, tuple) else (size, 0)
            of_target = f" and its reference {target}" if limit is None or source <= limit else ""
            self.too_long[i] = SentenceError(
                f"sentence {i} has {source} tokens{of_target}, and the model takes {max_positions}"
                ": shorten or split it, or leave it out with --skip-invalid-size-inputs-valid-test"
            )
        if self.room:
            for i in [i for i in map(int, kept) if dataset.num_tokens(i) > self.room]:
                self.too_long[i] = SentenceError(
                    f"sentence {i} has {dataset.num_tokens(i)} tokens and --max-tokens takes "
                    f"{self.room}: raise it, or split the sentence"
                )
            kept = kept[[int(i) not in self.too_long for i in kept]]
        return kept

    def with_too_long(self, batches: Any) -> Any:
        """fairseq's batches, and one for each sentence that is too long: its lines are printed,
        and it is not decoded."""
        if self.too_long:
            batches._frozen_batches = (
                *batches.frozen_batches,
                *([i] for i in sorted(self.too_long)),
            )
        return batches

    def refuse_unknown_words(self, sample: dict, error: IndexError) -> None:
        """UsageError, in place of this error, where a batch has words beyond the dictionaries."""
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

    def decode_usable(
        self, batch: Batch, decode: Callable[[Batch], list], error: SentenceError | None = None
    ) -> list:
        """The hypotheses of a batch; an empty one for each sentence that cannot be translated.

        error: that of the whole batch, where it has been decoded and has no known errors.
        Errors: those of a sentence go on where no command has asked: the caller has
        an answer of its own.
        """
        if self.held is not None and self.translates_corpus:
            held, self.held = self.held, None
            raise held
        sample = batch[0]
        n = len(sample["net_input"]["src_tokens"]) if "src_tokens" in sample["net_input"] else 0
        if not n or not (self.is_interactive or self.translates_corpus):
            for known_error in self.sentences.errors_here.values():
                raise SentenceError(str(known_error)) from known_error
            if error is not None:
                raise error
            return decode(batch)
        # speech has no source dictionary
        pad = (self.task.source_dictionary or self.task.target_dictionary).pad()
        known = self.known_errors(sample)
        usable = [i for i in range(n) if i not in known]
        if usable:
            part = batch if len(usable) == n else share_of(batch, n, usable, pad)
            found = dict(
                zip(usable, decode_each(part, len(usable), pad, decode, error), strict=True)
            )
            if len(usable) == n and not any(
                isinstance(each, UsageError) for each in found.values()
            ):
                return list(found.values())
        else:
            found = {}
        errors = {**known, **{i: each for i, each in found.items() if isinstance(each, UsageError)}}
        if self.strict and self.is_interactive:
            return [
                EndsHere(self.empty_hypotheses(), partial(self.end_by, errors[i]))
                if i in errors
                else found[i]
                for i in range(n)
            ]
        if self.strict:
            return self.cut_before(
                min(errors), errors[min(errors)], sample, [found.get(i) for i in range(n)]
            )
        for number, i in zip(self.numbers_of(sample, sorted(errors)), sorted(errors), strict=True):
            self.tell(number, errors[i])
        return [self.empty_hypotheses() if i in errors else found[i] for i in range(n)]

    def known_errors(self, sample: dict) -> dict[int, UsageError]:
        """place -> what is known to be wrong with a batch's sentences."""
        numbers = sample["id"].tolist() if "id" in sample else []
        return {
            **{
                i: self.too_long[number]
                for i, number in enumerate(numbers)
                if number in self.too_long
            },
            **self.sentences.errors_here,
        }

    def numbers_of(self, sample: dict, places: Sequence[int]) -> list[int]:
        """The numbers of sentences of a batch."""
        return [int(sample["id"][i]) for i in places]

    def tell(self, number: int, error: UsageError) -> None:
        """Say once what is wrong with a sentence."""
        if number not in self.refused:
            self.refused.add(number)
            sys.stdout.flush()
            print(f"E-{number}\t{error}", file=sys.stderr, flush=True)

    def end_by(self, error: UsageError) -> NoReturn:
        """End the session by this error; one of a line behind it is not told."""
        self.held = None
        raise error

    def cut_before(self, place: int, error: UsageError, sample: dict, found: list) -> list:
        """What comes before the first bad sentence of a data set's batch; its error is raised with
        the next one, or told at the end.

        subtle: fairseq-generate prints as many sentences as the sample has numbers.
        """
        if not place:
            raise error
        self.held = error
        sample["id"] = sample["id"][:place]
        return found[:place]

    def empty_hypotheses(self) -> list[dict[str, Any]]:
        """The n-best list of a sentence that is not translated."""
        lost = torch.tensor([-float("inf")])
        tokens, nothing = torch.tensor([self.task.target_dictionary.eos()]), torch.empty(0)
        return [
            {
                "tokens": tokens,
                "score": lost[0],
                "attention": nothing,
                "alignment": nothing,
                "positional_scores": lost.clone(),
            }
        ]

    def tell_at_end(self, stats: Stats) -> int:
        """At the end of the process: warn of what was not met, and tell an error that is
        still held; the status."""
        if self.sentences.constrained:
            self.sentences.tell_unmet(stats)
        if self.held is not None:
            report(type(self.held), self.held, None)
        return 1 if self.held is not None else BAD_SENTENCES if self.refused else 0

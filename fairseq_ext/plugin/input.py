"""The lines of `fairseq-interactive`, and the batches of a task's sentences.

fairseq-interactive reads a buffer of lines, makes batches of it, and prints when all of them are
decoded. A line that cannot be used does not affect the others (bad_sentences.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from fairseq.data import FairseqDataset, LanguagePairDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.token_generation_constraints import pack_constraints
from torch import Tensor

from fairseq_ext.core import command_line
from fairseq_ext.core.errors import LONE_SURROGATE, SentenceError, UsageError, cut
from fairseq_ext.plugin.bad_sentences import BadSentences
from fairseq_ext.plugin.compat.patches import TypedLines, read_lines_as_typed
from fairseq_ext.plugin.loading.settings import Task, max_tokens_limit, too_long
from fairseq_ext.plugin.sentences import Sentences
from fairseq_ext.search.constraints.documents import BatchesByLevel
from fairseq_ext.search.constraints.glossary import GlossaryFlags
from fairseq_ext.search.constraints.lines import from_packed, parse_tabs
from fairseq_ext.search.constraints.required import check_phrases
from fairseq_ext.search.phrases.sentence import Phrase, SentenceConstraints
from fairseq_ext.search.registry import refills
from fairseq_ext.search.request import NO_TEXT, Request
from fairseq_ext.search.settings import Settings

# ---- The batches of an *_ext task
#
# They are fairseq's batches, except for a stream, which takes many sentences, and a single line.


STREAM_POOL_SIZE = 10_000  # sentences from which a stream takes its next ones
SPEECH_POOL_SIZE = 256  # the same for speech, whose features take up to 2 MB a sentence


class InteractiveLines(BadSentences):
    """The lines of an interactive session, and the batches of these and of data sets."""

    def __init__(self, task: Task, sentences: Sentences):
        super().__init__(task, sentences)
        self.max_source_tokens: int | None = None  # limit of the models
        # errors of lines of the current buffer, by their places
        self.line_errors: dict[int, UsageError] = {}
        self.sources: list[str] = []  # its lines as text, without their phrases
        self.phrases: list[str] = []  # what is typed after each of them
        self.buffer_start = 0  # the number of its first line
        self.batch_numbers: list[int] = []  # of the lines of the batch that is decoded
        self.may_sample = True  # the search may draw random numbers

    def use_settings(self, settings: Settings) -> None:
        super().use_settings(settings)
        if (
            command_line.own_command
            and sys.stdin is None
            and command_line.is_loaded(command_line.INTERACTIVE)
            and settings.command.input == "-"
        ):
            raise UsageError(
                "standard input is closed: give lines there, or name a file by --input"
            )
        if command_line.is_loaded(command_line.INTERACTIVE):
            read_lines_as_typed()

    def read(
        self, lines: Iterable[str], encode: Callable[[list[str]], tuple[list, list]]
    ) -> tuple[list, list]:
        """Return a buffer's lines as tokens, by the stock task's `encode`, and their lengths.

        A line that cannot be used is empty; under --strict it and the lines after it are left out.
        """
        if not self.is_interactive:
            self.begin()
        if self.pending_error is not None:
            pending, self.pending_error = self.pending_error, None
            raise pending
        self.line_errors = {}
        typed = lines.typed if isinstance(lines, TypedLines) else []
        self.phrases = [line.partition("\t")[2] for line in typed]
        lines = list(lines)
        if self.sentences.segmentation_check.kind is not None:
            self.sentences.segmentation_check.check(lines)
        for i, line in enumerate(lines):
            if LONE_SURROGATE.search(line):
                said = (
                    f"a line of the input is not valid UTF-8 ({cut(ascii(line))}): convert it, for "
                    "example with iconv -t utf-8"
                )
                if self.refuse(SentenceError(said), i):
                    lines = lines[:i]
                    break
                lines[i] = ""
        tokens, lengths = encode(lines)
        self.sources = lines
        limits = [limit for limit in (self.max_source_tokens, self.max_tokens) if limit is not None]
        for i, length in enumerate(lengths):
            if length <= min(limits, default=length):
                continue
            error = too_long(
                f"line {self.sentences.lines_read + i + 1} of the input",
                length,
                self.max_source_tokens,
                self.max_tokens,
            )
            assert error is not None
            if self.refuse(error, i):
                return tokens[:i], lengths[:i]
            tokens[i], lengths[i] = self.empty_line(), 1
        return tokens, lengths

    def begin(self) -> None:
        """Begin a session (raises UsageError for flags that are for data sets only)."""
        settings = self.task.session.settings
        check_phrases(settings, False)
        self.is_interactive = True
        if settings.generation.print_alignment == "soft":
            raise UsageError(
                "--print-alignment soft is what fairseq-generate alone prints: use hard, "
                "or leave it out"
            )
        if settings.command.scores_reference:
            raise UsageError(
                "--score-reference scores the translations of a data set, and lines have none: "
                "use fairseq-generate"
            )

    def dataset(
        self,
        src_tokens: list,
        src_lengths: list,
        constraints: Tensor | None,
        build: Callable[[list, list], FairseqDataset],
    ) -> object:
        """Return the data set of a buffer's lines, by the stock task's `build`.

        constraints: fairseq's, which it prints; in their place it gets those of the lines.
        """
        if self.is_interactive and self.sentences.constrained:
            src_tokens, constraints = self.constrained(src_tokens, constraints)
        n = len(src_tokens)
        for place, error in sorted(self.line_errors.items()):
            self.report_sentence(self.sentences.lines_read + place, error)
        self.buffer_start = self.sentences.lines_read
        self.sentences.lines_read += n if self.is_interactive else 0
        # a line that cannot be used is an empty one now; a speech file has as many frames as the
        # stock task says
        lengths = [
            len(line) if isinstance(line, Tensor) else n
            for line, n in zip(src_tokens, src_lengths, strict=False)
        ]
        dataset = build(src_tokens, lengths)
        if constraints is not None:  # added afterwards: some stock tasks refuse them
            dataset.collater = partial(with_constraints, dataset.collater, constraints[:n])
        return dataset

    def constrained(
        self, src_tokens: list[Tensor], packed: Tensor | None
    ) -> tuple[list[Tensor], Tensor | None]:
        """Note the constraints of a buffer's lines. Return the lines that can be decoded, and their
        packed constraints, if fairseq prints them; packed: fairseq's, of the lines' own phrases."""
        sentences, first = self.sentences, self.sentences.lines_read
        sentences.constraint_source()  # raises errors of the files, which are of no line
        requests: list[Request] = []
        for i, tokens in enumerate(src_tokens):
            request = Request(first + i, self.sources[i] if i < len(self.sources) else "")
            if i in self.line_errors:
                requests.append(request)
                continue
            try:
                requests.append(self.constrained_line(request, tokens, i, packed))
            except UsageError as error:
                if self.refuse(error, i):
                    src_tokens = src_tokens[:i]
                    break
                src_tokens[i] = self.empty_line()
                requests.append(request)
        sentences.requests = {each.number: each for each in requests}
        if packed is not None:
            packed = pack([each.all_constraints for each in requests], sentences.printed_phrase)
        return src_tokens, packed

    def constrained_line(
        self, request: Request, tokens: Tensor, place: int, packed: Tensor | None
    ) -> Request:
        """Return the request of a line of the buffer with its constraints, also those that are
        typed after it (raises UsageError)."""
        # packed: fairseq has cut phrases off its lines; our own reading has kept them as typed
        where, own, given = f"line {request.number + 1} of the input", None, NO_TEXT
        if packed is not None and not self.phrases:  # a program of others has read them
            own = from_packed(packed[place], self.task.target_dictionary, request.number)
        elif packed is not None and self.phrases[place]:
            given = parse_tabs(self.phrases[place], where)
        # typed speech is the path of a file
        known = tokens if isinstance(tokens, Tensor) else None
        request = replace(request, own_constraints=given, tokens=known)
        return self.sentences.with_constraints(request, where, own)

    def refuse(self, error: UsageError, place: int) -> bool:
        """Note that a line of the buffer cannot be used. Return whether the session ends there
        (--strict).
        """
        # an empty line of speech cannot be represented
        if self.strict or self.task.source_dictionary is None:
            self.raise_or_defer(error, place)
            return True
        self.line_errors[place] = error
        return False

    def empty_line(self) -> Tensor:
        """Return the tokens of an empty line."""
        return torch.tensor([self.task.source_dictionary.eos()])

    def known_errors(self, sample: dict) -> dict[int, UsageError]:
        if not self.is_interactive:
            return super().known_errors(sample)
        places = enumerate(number - self.buffer_start for number in sample["id"].tolist())
        return {i: self.line_errors[at] for i, at in places if at in self.line_errors}

    def with_numbers(self, sample: dict) -> dict:
        """Return a batch with the numbers of its lines, which fairseq-interactive leaves out."""
        if "id" in sample or len(self.batch_numbers) != len(sample["net_input"]["src_tokens"]):
            return sample
        return {**sample, "id": torch.tensor(self.batch_numbers)}

    def raise_or_defer(self, error: UsageError, before: int) -> None:
        """Raise the error at once, or, if lines of the session come before it, with the next buffer
        or at the end."""
        if not (self.is_interactive and before):
            raise error
        self.pending_error = error

    # ---- batches: fairseq's, except for a stream, which takes many sentences, and a single line

    def batches(
        self,
        build: Callable[..., EpochBatchIterator],
        dataset: FairseqDataset,
        *sizes: int | None,
        **more: Any,
    ) -> object:
        """Return fairseq's batches of a data set, by the stock task's `build`; those of a buffer
        have the numbers of lines. Arguments: those of FairseqTask.get_batch_iterator."""
        made = self.made_batches(build, dataset, *sizes, **more)
        is_buffer = self.is_interactive and not self.sentences.is_corpus(dataset)
        return NumberedBatches(made, self) if is_buffer else made

    def made_batches(
        self,
        build: Callable[..., EpochBatchIterator],
        dataset: FairseqDataset,
        max_tokens: int | None,
        max_sentences: int | None,
        *args: object,
        **kwargs: Any,
    ) -> object:
        """Return the batches. A stream takes its sentences from batches of many thousand, and
        encodes a few at a time."""
        documents = self.task.session.settings.get(GlossaryFlags).glossary_documents
        # fairseq-generate makes batches before it builds a generator
        if refills(self.task.session.settings):
            pool = STREAM_POOL_SIZE if "source tokens" not in self.task.lacks else SPEECH_POOL_SIZE
            max_tokens, max_sentences = None, max(pool, max_sentences or 0)
            # else the last few sentences form a batch of their own
            kwargs["required_batch_size_multiple"] = 1
        elif (
            not args
            and not documents
            and (alone := self.batch_of_line(dataset, max_tokens, **kwargs)) is not None
        ):
            return alone
        self.max_tokens = max_tokens_limit(max_tokens)
        batches = build(dataset, max_tokens, max_sentences, *args, **kwargs)
        if self.sentences.is_corpus(dataset):
            batches = self.with_too_long(batches)
        else:  # fairseq would keep those of a buffer's lines to the end
            self.task.dataset_to_epoch_iter.pop(dataset, None)
        if not documents:
            return batches
        if kwargs.get("num_shards", 1) > 1:
            raise UsageError(
                "--glossary-documents needs all lines of a document in one run, and "
                "--distributed-world-size shares them out: leave it out"
            )
        return BatchesByLevel(dataset, batches.frozen_batches, self.levels)

    def levels(self, dataset: FairseqDataset) -> list[int]:
        """Return the level of each sentence of a data set: all of a level can be decoded together
        (search/constraints/documents.py)."""
        known, documents = self.sentences, self.sentences.documents
        if documents is None:  # no constraints in this run
            return [0] * len(dataset)
        source = known.constraint_source()
        if known.is_corpus(dataset):
            documents.check_size(len(dataset))
        # a data set's own sentences have none yet
        requests = list(known.requests.values()) or [Request(i) for i in range(len(dataset))]

        def terms(place: int) -> list[str] | None:
            unknown = requests[place].all_constraints.unknown
            text = source.source_text.text(dataset[place]["source"], unknown)
            if not text.strip() and place not in self.line_errors:
                return None
            return [
                each.term.source for each in source.required(text) if len(each.term.targets) > 1
            ]

        found = documents.levels((each.number, terms(i)) for i, each in enumerate(requests))
        return [found[each.number] for each in requests]

    def batch_of_line(
        self,
        dataset: FairseqDataset,
        max_tokens: int | None,
        max_positions: tuple | int | None = None,
        **others: object,
    ) -> SingleBatchIterator | None:
        """Return the only batch of a data set of one line, as fairseq's batch iterator makes it, in
        a twentieth of the time.

        None if the line may be too long, or if the search samples: fairseq's iterator filters
        lines, and draws a random number. Arguments: those of FairseqTask.get_batch_iterator.
        """
        if (
            self.may_sample
            or others.keys() - {"ignore_invalid_inputs"}
            or type(dataset) is not LanguagePairDataset
            or len(dataset) != 1
        ):
            return None
        longest = max_positions[0] if isinstance(max_positions, tuple) else max_positions
        too_long = any(
            limit is not None and int(dataset.src_sizes[0]) > limit
            for limit in (max_tokens, longest)
        )
        if too_long or dataset.tgt is not None or dataset.buckets is not None:
            return None
        more = dataset.src_lang_id, dataset.tgt_lang_id, dataset.constraints
        is_plain = dataset.pad_to_multiple == 1 and "collater" not in vars(dataset)
        if any(each is not None for each in more) or not is_plain:
            return SingleBatchIterator(dataset.collater([dataset[0]]))
        source = dataset[0]["source"]
        length = source.ne(dataset.src_dict.pad()).sum()
        net_input = {"src_tokens": source[None], "src_lengths": length[None]}
        batch = {"id": torch.zeros(1, dtype=torch.long), "nsentences": 1, "ntokens": int(length)}
        return SingleBatchIterator(batch | {"net_input": net_input, "target": None})


def pack(
    sentences: Sequence[SentenceConstraints], printed: Callable[[tuple[Phrase, ...]], Phrase]
) -> Tensor:
    """Return fairseq's packed constraints (N, W); printed: which phrase of several is printed."""
    return pack_constraints(
        [[torch.tensor(printed(alternatives)) for alternatives in s.any_of] for s in sentences]
    )


def with_constraints(collater: Callable[[list], dict], constraints: Tensor, samples: list) -> dict:
    """Return a batch of a data set with its sentences' packed constraints; constraints (N, W): of
    all sentences, by number."""
    batch = collater(samples)
    return {**batch, "constraints": constraints[batch["id"]]} if batch else batch


@dataclass
class NumberedBatches:
    """The batches of a buffer. The numbers of the lines of the one that is decoded are those of
    the batch that was yielded last: fairseq's own iterator may read ahead, and this one does not.
    """

    batches: EpochBatchIterator
    lines: InteractiveLines

    def next_epoch_itr(self, shuffle: bool = True) -> Iterator[dict[str, object]]:
        for batch in self.batches.next_epoch_itr(shuffle=shuffle):
            first = self.lines.buffer_start
            self.lines.batch_numbers = [first + place for place in batch["id"].tolist()]
            yield batch


@dataclass
class SingleBatchIterator:
    """An iterator of one batch, in place of fairseq's EpochBatchIterator."""

    batch: dict[str, object]

    def next_epoch_itr(self, shuffle: bool = True) -> list[dict[str, object]]:
        return [self.batch]

"""The batches in which an *_ext task's sentences come: fairseq's, except where a stream wants many at once or a line comes alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from fairseq.data import LanguagePairDataset

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.interactive import Lines
from fairseq_ext.plugin.loading.lengths import limit_of
from fairseq_ext.search.registry import refills

POOL = 10_000  # sentences among which a stream finds its next ones
SPEECH_POOL = 256  # the same of speech, which lies in memory as features: a sentence is up to 2 MB


@dataclass
class OneBatch:
    """Stands for fairseq's EpochBatchIterator."""

    batch: dict[str, Any]

    def next_epoch_itr(self, shuffle: bool = True) -> list[dict[str, Any]]:
        return [self.batch]


@dataclass
class ByLevel:
    """Stands for fairseq's EpochBatchIterator: a sentence comes behind those that decide a term's form for it (search/constraints/glossary.py).

    levels: of the data set's sentences, asked for when the first batch is.
    """

    dataset: Any
    batches: Sequence[Sequence[int]]
    levels: Callable[[Any], list[int]]

    def next_epoch_itr(self, shuffle: bool = True) -> ByLevel:
        return self

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        level = self.levels(self.dataset)
        for each in range(max(level, default=0) + 1):
            for batch in self.batches:
                if part := [i for i in batch if level[i] == each]:
                    yield self.dataset.collater([self.dataset[i] for i in part])


class Batches:
    """Makes the batches of a task. lines: those of its session."""

    def __init__(self, task: Any, lines: Lines):
        self.task, self.lines, self.sentences = task, lines, lines.sentences
        self.samples = True  # the search draws random numbers, for all that is known

    def make(
        self, build: Callable[..., Any], dataset: Any, max_tokens: int | None, max_sentences: int | None, *args: Any, **kwargs: Any
    ) -> Any:
        """fairseq's batches, by the stock task's `build`; a stream takes its sentences from batches of many thousand, of which it encodes
        few at a time. Arguments: of FairseqTask.get_batch_iterator."""
        flags = self.task.flags()
        if refills(flags):  # fairseq-generate asks for batches before it builds a generator
            pool = POOL if "source tokens" not in self.task.lacks else SPEECH_POOL
            max_tokens, max_sentences = None, max(pool, max_sentences or 0)
            kwargs["required_batch_size_multiple"] = 1  # else the last few sentences are a batch of their own
        elif not args and not flags.glossary_documents and (alone := self.batch_of_line(dataset, max_tokens, **kwargs)) is not None:
            return alone
        self.lines.room = limit_of(max_tokens)
        batches = build(dataset, max_tokens, max_sentences, *args, **kwargs)
        self.lines.forget(dataset)
        batches = self.lines.with_too_long(batches) if self.sentences.is_corpus(dataset) else batches
        if not flags.glossary_documents:
            return batches
        if kwargs.get("num_shards", 1) > 1:
            raise UsageError(
                "--glossary-documents needs all lines of a document in one run, and --distributed-world-size shares them out: leave it out"
            )
        return ByLevel(dataset, batches.frozen_batches, self.levels)

    def levels(self, dataset: Any) -> list[int]:
        """When the sentences of a data set can be decoded (search/constraints/glossary.py)."""
        known, documents, first = self.sentences, self.sentences.documents, self.lines.buffer_start
        if documents is None:  # no constraints in this run
            return [0] * len(dataset)
        source = known.constraint_source()
        if known.is_corpus(dataset):
            documents.check_size(len(dataset))
        numbers = known.line_numbers or range(first, first + len(dataset))

        def terms(place: int) -> list[str] | None:
            text = source.source_text(dataset[place]["source"])
            if not text.strip() and place not in self.lines.refused_here:
                return None
            return [each.term.source for each in source.required(text) if len(each.term.targets) > 1]

        found = documents.levels((number, terms(place)) for place, number in enumerate(numbers))
        return [found[number] for number in numbers]

    def batch_of_line(self, dataset: Any, max_tokens: int | None, max_positions: Any = None, **others: Any) -> OneBatch | None:
        """The only batch of a data set that holds one line, as fairseq's batch iterator makes it, in a twentieth of the time.

        None where that iterator must do it: it filters lines that are too long, and it draws a random number, which counts where the
        search draws some, too. Arguments: of FairseqTask.get_batch_iterator.
        """
        if self.samples or others.keys() - {"ignore_invalid_inputs"} or type(dataset) is not LanguagePairDataset or len(dataset) != 1:
            return None
        longest = max_positions[0] if isinstance(max_positions, tuple) else max_positions
        too_long = any(limit is not None and int(dataset.src_sizes[0]) > limit for limit in (max_tokens, longest))
        if too_long or dataset.tgt is not None or dataset.buckets is not None:
            return None
        return OneBatch(dataset.collater([dataset[0]]))

"""What a task knows of each sentence besides its source: its number, its constraints, its line of a draft file.

`fairseq-interactive` reads a buffer of lines, makes batches of it and prints when all of them are decoded. A line that cannot be used
costs no other one its translation: it is told on standard error, `E-<number>` and the reason, it is not decoded and has an empty
hypothesis, and the status is 3 at the end. With --strict it ends the session instead, once the lines before it are printed.
"""

from __future__ import annotations

import functools
import io
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from fairseq.data import Dictionary, LanguagePairDataset
from torch import Tensor

from fairseq_ext.constraints.boundaries import Boundaries, find_boundaries, plain
from fairseq_ext.constraints.files import ConstraintSource
from fairseq_ext.constraints.flags import glossary_options
from fairseq_ext.constraints.glossary_report import GlossaryReport
from fairseq_ext.constraints.packed import from_packed, keys_of, pack
from fairseq_ext.constraints.phrase import Phrase
from fairseq_ext.constraints.report import ConstraintCounts
from fairseq_ext.constraints.sentence import EMPTY, SentenceConstraints, merge
from fairseq_ext.errors import UsageError, report
from fairseq_ext.session.cpu_workers import share
from fairseq_ext.session.target_dictionary import TargetDictionary
from fairseq_ext.stats import Stats

logger = logging.getLogger("fairseq_ext")
BAD_LINES = 3  # the status of a session with lines that could not be used


class Sentences:
    """The part of an *_ext task that gives sentences their numbers, constraints and drafts."""

    source_dictionary: Any
    target_dictionary: Any
    tgt_dict: Any = None
    tokenizer_used: Any = None
    bpe_used: Any = None
    source: ConstraintSource | None = None
    constrained = False
    corpus_size = 0  # sentences of the data set that fairseq-generate translates
    numbered = False  # lines of an interactive session carry their numbers
    lines_read = 0  # of such a session
    draft_lines_read = 0
    report_path: str | None = None  # --glossary-report
    glossary_report: GlossaryReport | None = None
    talks = False  # this is fairseq-interactive
    held: UsageError | None = None  # what the first line that was not translated is to blame for
    of_line: dict[int, SentenceConstraints]
    draft_file: str | None = None
    strict = False
    longest: int | None = None  # source tokens that the models take
    refused: set[int]  # numbers of the lines that cannot be used
    refused_here: dict[int, UsageError]  # those of the buffer at hand, by their places

    def __init__(self, *arguments, **more):
        super().__init__(*arguments, **more)
        self.refused, self.refused_here = set(), {}
        if isinstance(self.tgt_dict, Dictionary):
            self.tgt_dict = TargetDictionary.of(self.tgt_dict)

    def flags(self) -> Any:
        raise NotImplementedError

    def use_flags(self, flags: Any, constrained: bool) -> None:
        """Note what the flags ask for besides the search; constrained: sentences have constraints, which our own search obeys."""
        self.constrained = constrained
        self.numbered = self.constrained or bool(flags.results_file) or bool(flags.ddg_dir)
        self.draft_file, self.report_path = flags.draft_file, flags.glossary_report
        self.strict = flags.strict
        if "fairseq_cli.interactive" in sys.modules and isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # an invalid byte is its line's fault, not the session's
        if self.constrained and isinstance(self.tgt_dict, TargetDictionary):
            self.tgt_dict.noting = True

    def complete(self, sample: dict, constraints: Tensor | None) -> tuple[dict, Tensor | None]:
        """A batch with all that is known of its sentences, and the packed constraints that are still to be read."""
        numbered = constraints is not None and (self.numbered or self.refused_here)
        if (self.constrained or numbered) and "sentence_constraints" not in sample:
            sample, constraints = self.add_constraints(sample, constraints), None
        if self.draft_file and "id" not in sample:
            sample = {**sample, "draft_lines": self.draft_lines(sample["net_input"]["src_tokens"])}
        return sample, constraints

    def text(self, tokens: Tensor, left_out: Any) -> str:
        """Target tokens (L,) as text, without segmentation where the command undoes it by --bpe and --tokenizer; left_out: symbols that
        no reader sees."""
        out = self.target_dictionary.string(tokens.int().cpu(), extra_symbols_to_ignore=left_out)
        for step in (self.bpe_used, self.tokenizer_used):
            out = step.decode(out) if step is not None else out
        return out

    @functools.cached_property
    def boundaries(self) -> Boundaries | None:
        """Where the target's words begin and end, if phrases count as words; None where they do not, or where that is not known."""
        mode = self.flags().constraint_boundary
        return find_boundaries(self.target_dictionary, self.bpe_used, None if mode is None else str(mode))

    def plain(self, tokens: Sequence[int], left_out: Any) -> str:
        """Target tokens as plain text, also where the command does not undo their segmentation."""
        if self.bpe_used is not None:
            return self.text(torch.tensor(tokens, dtype=torch.long), left_out)
        out = self.target_dictionary.string(torch.tensor(tokens), extra_symbols_to_ignore=left_out)
        return plain(out, self.boundaries.kind) if self.boundaries is not None else out

    def constraint_source(self) -> ConstraintSource:
        """The command's constraint files, segmented as its tokenizer and bpe segment text (read when first needed)."""
        if self.source is None:
            flags = self.flags()
            files = (flags.constraints_file, flags.avoid_file, glossary_options(flags))
            self.source = ConstraintSource(*files, self.target_dictionary, self.source_dictionary, self.tokenizer_used, self.bpe_used)
            self.source.check_lines()
        return self.source

    @functools.cached_property
    def draft_line(self) -> dict[tuple[int, ...], int]:
        """Line number of each source of an interactive session with --draft-file."""
        return {}

    def draft_lines(self, rows: Tensor) -> list[int]:
        """Lines of the draft file that belong to these sources (S, T); of equal sources, the last one's."""
        pad = self.source_dictionary.pad()
        return [self.draft_line.get(tuple(row[row != pad].tolist()), -1) for row in rows]

    def get_interactive_tokens_and_lengths(self, lines, encode_fn):
        """A buffer's lines as tokens. One that cannot be used is empty; under --strict it and those behind it are left out."""
        self.talks = True
        if self.held is not None:
            held, self.held = self.held, None
            raise held
        self.refused_here = {}
        lines = list(lines)
        for i, line in enumerate(lines):
            if not line.isascii() and any("\ud800" <= character <= "\udfff" for character in line):
                said = f"a line of the input is not valid UTF-8 ({line[:60]!a}): convert it, for example with iconv -t utf-8"
                if self.refuse(UsageError(said), i):
                    lines = lines[:i]
                    break
                lines[i] = ""
        tokens, lengths = super().get_interactive_tokens_and_lengths(lines, encode_fn)  # type: ignore[misc]
        for i, length in enumerate(lengths):
            if self.longest is not None and length > self.longest:
                where = f"line {self.lines_read + i + 1} of the input"
                said = f"{where} has {length} tokens and the model takes {self.longest}: shorten or split it"
                if self.refuse(UsageError(said), i):
                    return tokens[:i], lengths[:i]
                tokens[i], lengths[i] = self.nothing(), 1
        return tokens, lengths

    def build_dataset_for_inference(self, src_tokens, src_lengths, constraints=None):
        """The lines' constraints travel by number, in a last column that fairseq does not read."""
        if self.numbered or self.refused_here:
            src_tokens, constraints = self.number(src_tokens, constraints)
        n = len(src_tokens)
        if self.flags().draft_file:
            good = {tuple(tokens.tolist()): i for i, tokens in enumerate(src_tokens) if i not in self.refused_here}
            self.draft_line |= {tokens: self.draft_lines_read + i for tokens, i in good.items()}
            self.draft_lines_read += n
        for place, error in sorted(self.refused_here.items()):
            self.refused.add(self.lines_read + place)
            print(f"E-{self.lines_read + place}\t{error}", file=sys.stderr, flush=True)
        self.lines_read += n if self.talks else 0
        dataset = super().build_dataset_for_inference(src_tokens, [len(t) for t in src_tokens])  # type: ignore[misc]
        if constraints is not None:  # put in afterwards: some stock tasks refuse to take them
            pairs = dataset
            while not isinstance(pairs, LanguagePairDataset):
                pairs = pairs.dataset
            pairs.constraints = constraints[:n]
        return dataset

    def number(self, src_tokens: list[Tensor], typed: Tensor | None) -> tuple[list[Tensor], Tensor]:
        """The lines that can be decoded, and their packed constraints; typed: fairseq's, of the lines' own fields."""
        first, of_line = self.lines_read, {}
        unknown = list(self.unknown_words())
        self.constraint_source()  # what is wrong with a file is no line's fault
        for i, tokens in enumerate(src_tokens):
            of_line[first + i] = EMPTY
            row = None if typed is None else typed[i]
            if i not in self.refused_here:
                try:
                    of_line[first + i] = self.constraints_of_line(first + i, tokens, row, unknown)
                except UsageError as error:
                    if self.refuse(error, i):
                        del of_line[first + i]
                        src_tokens = src_tokens[:i]
                        break
                    src_tokens[i] = self.nothing()
            if row is not None:
                del unknown[: int((row[1:] == self.target_dictionary.unk()).sum())]  # those of this line
        self.unknown_words().clear()
        self.of_line = of_line
        if isinstance(self.target_dictionary, TargetDictionary):
            self.target_dictionary.alternatives.clear()
        return src_tokens, pack(list(of_line.values()), list(of_line), self.shown)

    def refuse(self, error: UsageError, place: int) -> bool:
        """A line of the buffer cannot be used. Whether the session ends there, which --strict asks for."""
        if self.strict:
            self.hold(error, place)
            return True
        self.refused_here[place] = error
        return False

    def nothing(self) -> Tensor:
        """The tokens of an empty line."""
        return torch.tensor([self.source_dictionary.eos()])

    def decode_usable(self, batch: tuple[dict, Tensor | None, Tensor | None], decode: Callable[[tuple], list]) -> list:
        """The hypotheses of a batch (sample, prefix tokens, constraints); an empty one for each line that cannot be used."""
        numbers = batch[0].get("sentence_numbers") if self.refused_here else None
        if numbers is None or self.refused.isdisjoint(numbers.tolist()):
            return decode(batch)
        n = len(numbers)
        usable = [i for i, number in enumerate(numbers.tolist()) if number not in self.refused]
        found = dict(zip(usable, decode(tuple(share(part, n, usable) for part in batch)) if usable else [], strict=True))
        lost = torch.tensor(-float("inf"))
        tokens = torch.tensor([self.target_dictionary.eos()])
        empty = {"tokens": tokens, "score": lost, "attention": torch.empty(0), "alignment": torch.empty(0)}
        return [found.get(i) or [{**empty, "positional_scores": lost[None].clone()}] for i in range(n)]

    def unknown_words(self) -> list[str]:
        """The words of typed phrases that the dictionary lacks, as it has noted them."""
        return self.target_dictionary.unknown if isinstance(self.target_dictionary, TargetDictionary) else []

    def constraints_of_line(self, number: int, tokens: Tensor, typed: Tensor | None, unknown: list[str]) -> SentenceConstraints:
        """Those of the command's files, and those that were typed behind the line."""
        source = self.constraint_source()
        found = source.sentence(number, tokens)
        if typed is None:
            return found
        return merge(found, from_packed(typed, self.target_dictionary, number, source.segmenter, unknown))

    def shown(self, alternatives: tuple[Phrase, ...]) -> Phrase:
        """What stands for a constraint in fairseq's C- lines: its phrase, or a number that is printed as all of them."""
        dictionary = self.target_dictionary
        if len(alternatives) == 1 or not isinstance(dictionary, TargetDictionary):
            return alternatives[0]
        decode = self.constraint_source().segmenter.decode
        # forms of one phrase (segmenter.py) are the same text, and shown once
        distinct = {decode(dictionary.string(torch.tensor(phrase))).strip(): phrase for phrase in reversed(alternatives)}
        return alternatives[0] if len(distinct) == 1 else (dictionary.number_of(tuple(reversed(distinct.values()))),)

    def add_constraints(self, sample: dict, packed: Tensor | None) -> dict:
        """The batch with each sentence's constraints and number."""
        if packed is not None:
            numbers = keys_of(packed)
            given = [self.of_line[n] for n in numbers]
            if not self.constrained:
                return {**sample, "sentence_numbers": torch.tensor(numbers)}
        else:
            source, numbers = self.constraint_source(), sample["id"].tolist()
            if self.corpus_size and not source:
                raise UsageError(
                    "--constraints alone gives fairseq-generate no phrases: add --constraints-file, --avoid-file or --glossary, "
                    "or leave --constraints out"
                )
            if self.corpus_size:
                source.check_size(self.corpus_size)
            rows = sample["net_input"]["src_tokens"]
            given = [source.sentence(n, row[row != self.source_dictionary.pad()]) for n, row in zip(numbers, rows, strict=True)]
            if self.corpus_size:
                for number, constraints in zip(numbers, given, strict=True):
                    for text in constraints.text:
                        print(f"C-{number}\t{text}")
        return {**sample, "sentence_constraints": given, "sentence_numbers": torch.tensor(numbers)}

    def report_glossary(self, sample: dict, translations: list[str]) -> None:
        """Write a batch's lines of --glossary-report; translations: the best of each of its sentences, as text."""
        source = self.constraint_source()
        if self.glossary_report is None:
            self.glossary_report = GlossaryReport(str(self.report_path), source.segmenter.takes_pieces)
        numbers = sample["sentence_numbers" if "sentence_numbers" in sample else "id"].tolist()
        for number, row, translation in zip(numbers, sample["net_input"]["src_tokens"], translations, strict=True):
            text = source.source_text(row)
            self.glossary_report.add(number, text, translation, source.required(text))

    def hold(self, error: UsageError, before: int) -> None:
        """Raise the error; in a session whose buffer has lines before it, later: with the next buffer, or at the end."""
        if not (self.talks and before):
            raise error
        self.held = error

    def tell_at_end(self, stats: Stats) -> int:
        """At the end of the process: warn of what was not met, and tell an error that is still held; the status."""
        if self.constrained:
            self.tell_unmet(stats)
        if self.held is not None:
            report(type(self.held), self.held, None)
        return 1 if self.held is not None else BAD_LINES if self.refused else 0

    def tell_unmet(self, stats: Stats) -> None:
        """Warn of constraints that were not met, and of lines of the constraints file that no sentence has asked for."""
        counts = stats.found(ConstraintCounts)
        if counts is not None and counts.unmet:
            number, phrase, reason = counts.unmet[0]
            logger.warning(
                "%d of %d constraints are not met, the first in sentence %d, '%s': %s (all: --stats-file)",
                len(counts.unmet), counts.given, number, phrase, reason,
            )  # fmt: skip
        if self.source is not None and 0 < self.lines_read < len(self.source):
            logger.warning("the constraints file has %d lines, and %d sentences were read", len(self.source), self.lines_read)

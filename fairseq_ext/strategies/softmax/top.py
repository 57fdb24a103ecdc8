"""Two shortlists to compare LSH with: the most frequent words, and a lexical table's (`--softmax top`, `--softmax lexical`).

    TOP and WA in X. Shi, S. Xu and K. Knight. Fast Locality Sensitive Hashing for Beam Search on GPU. AAAI 2019,
    https://arxiv.org/abs/1806.00588; the lexical list after X. Shi and K. Knight. Speeding Up Neural Machine Translation Decoding by
    Shrinking Run-time Vocabulary. ACL 2017, https://aclanthology.org/P17-2091/

`top` scores the T most frequent target words. `lexical` adds, for every word of the source, its likeliest translations in a
table that scripts/lexical_table.py learns from a parallel corpus. EOS, unk and what prefixes and constraints need are always
scored; probabilities are normalised over the list.

| symbol | flag |
| --- | --- |
| T | --shortlist-top |
| translations of a source word | --shortlist-words, --shortlist-file |
| the list of all rows of a call, or of a sentence's | --shortlist-share batch, sentence |

Neutral setting: --softmax full; or a T of the vocabulary's size or more.
"""

import logging
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor

from fairseq_ext.errors import UsageError
from fairseq_ext.registry import register
from fairseq_ext.search.beam import Beam
from fairseq_ext.search.pool import Pool
from fairseq_ext.softmax.output_layer import output_layers
from fairseq_ext.softmax.shortlist import ListSoftmax, most_frequent, needs_beam
from fairseq_ext.softmax.shortlist_stats import Measured

logger = logging.getLogger("fairseq_ext")
Text = Optional[str]  # noqa: UP045


@dataclass
class ListFlags(FairseqDataclass):
    """What every shortlist shares."""

    shortlist_counts: Text = field(
        default=None,
        metadata={"help": "lines 'word count' of the target side, for the most frequent words (default: the target dictionary's counts)"},
    )
    shortlist_recall_every: int = field(
        default=128,
        metadata={"help": "for --stats-file: calls from one check against the full softmax to the next (default: 128; neutral: 0, never)"},
    )


@dataclass
class ShortlistFlags(ListFlags):
    shortlist_file: Text = field(
        default=None,
        metadata={"help": "--softmax lexical: lines 'source word, target word, probability' of a lexical table (default: none)"},
    )
    shortlist_top: int = field(
        default=2000, metadata={"help": "most frequent target words on every list (default: 2000; neutral: the vocabulary's size)"}
    )
    shortlist_words: int = field(default=20, metadata={"help": "--softmax lexical: translations of each source word (default: 20)"})
    shortlist_share: ChoiceEnum(["batch", "sentence"]) = field(  # type: ignore[valid-type]
        default="batch", metadata={"help": "one list for all rows that are decoded together, or one for each sentence (default: batch)"}
    )


def target_counts(flags, context) -> list[int]:
    """How often each target word occurs, by id."""
    dictionary = context.dictionary
    if not flags.shortlist_counts:
        if context.joined_dictionary:
            logger.warning(
                "the dictionary is joined, so its counts include the source side, and frequent target words may miss the shortlist: "
                "give counts of the target side with --shortlist-counts"
            )
        return list(dictionary.count)
    counts = [0] * len(dictionary)
    for number, (word, count) in enumerate(table_lines(flags.shortlist_counts, "--shortlist-counts", 2), 1):
        index = dictionary.index(word)
        try:
            if index != dictionary.unk():
                counts[index] = int(count)
        except ValueError as error:
            raise UsageError(f"--shortlist-counts {flags.shortlist_counts}, line {number}: '{count}' is no count") from error
    return counts


def table_lines(path: str, flag: str, columns: int):
    """The columns of each line of a file; raises UsageError where it cannot be read or a line has fewer."""
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                parts = line.split()
                if len(parts) < columns:
                    raise UsageError(f"{flag} {path}, line {number} has {len(parts)} columns and needs {columns}: '{line.strip()[:60]}'")
                yield parts[:columns]
    except OSError as error:
        raise UsageError(f"{flag} {path} cannot be read ({error.strerror}): name an existing file") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{flag} {path} is not valid UTF-8 ({error}): convert it first") from error


def read_table(path: str, source, target, words: int) -> Tensor:
    """(source vocabulary, words) ids of each source word's likeliest translations, padded with -1."""
    found: dict[int, list[tuple[float, int]]] = {}
    for number, (left, right, probability) in enumerate(table_lines(path, "--shortlist-file", 3), 1):
        i, j = source.index(left), target.index(right)
        try:
            if i != source.unk() and j != target.unk():
                found.setdefault(i, []).append((-float(probability), j))
        except ValueError as error:
            raise UsageError(f"--shortlist-file {path}, line {number}: '{probability}' is no probability") from error
    if not found:
        raise UsageError(f"--shortlist-file {path} has no word of these dictionaries: it must be segmented as the model's data are")
    out = torch.full((len(source), words), -1)
    for i, pairs in found.items():
        best = [j for _, j in sorted(pairs)[:words]]
        out[i, : len(best)] = torch.tensor(best)
    return out


class Lexical(ListSoftmax):
    """The fixed part and the translations of each sentence's source words."""

    table: Tensor  # (source vocabulary, words)

    def translations(self, pool: Pool) -> Tensor:
        """(N, V) true for the translations of each sentence's words; made once a pool."""
        if "lexical" not in pool.aux:
            found = self.table[pool.net_input["src_tokens"]].flatten(1)  # (N, source x words)
            mask = torch.zeros(found.size(0), self.V + 1, dtype=torch.bool, device=found.device)
            pool.aux["lexical"] = mask.scatter_(1, found.masked_fill(found < 0, self.V), True)[:, : self.V]
        return pool.aux["lexical"]

    def words(self, features: list[Tensor], beam: Beam | None, pool: Pool | None) -> Tensor | None:
        if pool is None:
            raise UsageError("--softmax lexical needs the source of every row, which this --decoding does not tell: use --softmax top")
        mask = self.translations(pool)
        mask = mask if beam is None else mask[beam.live_index()]
        return mask if self.by_sentence else mask.any(0, keepdim=True)


def list_arguments(flags, context, T: int, flag: str) -> dict:
    """What every ListSoftmax is made of."""
    layers = output_layers(context.models, flag)
    base = most_frequent(target_counts(flags, context), T, (context.eos, context.unk))
    temperature = getattr(context.generation, "temperature", 1.0)
    measured = Measured(context.stats, context.k, flags.shortlist_recall_every)
    return dict(layers=layers, base=base, temperature=temperature, measured=measured)


def check(flags, generation) -> None:
    """Refuse sizes below zero and a lexical list without its table (raises UsageError)."""
    needs_beam(flags)
    if flags.shortlist_top < 0 or flags.shortlist_words < 1:
        raise UsageError("--shortlist-top takes 0 or more words, and --shortlist-words 1 or more")
    if flags.softmax == "lexical" and not flags.shortlist_file:
        raise UsageError("--softmax lexical needs a table: make one with scripts/lexical_table.py and name it with --shortlist-file")
    if flags.softmax == "top" and flags.shortlist_file:
        raise UsageError("--shortlist-file belongs to --softmax lexical, and --softmax top reads none: leave it out")


@register("softmax", "top", ShortlistFlags, check)
def top(flags, context) -> ListSoftmax:
    return ListSoftmax(share=str(flags.shortlist_share), **list_arguments(flags, context, flags.shortlist_top, "--softmax top"))


@register("softmax", "lexical", ShortlistFlags, check)
def lexical(flags, context) -> Lexical:
    out = Lexical(share=str(flags.shortlist_share), **list_arguments(flags, context, flags.shortlist_top, "--softmax lexical"))
    if context.source_dictionary is None:
        raise UsageError("--softmax lexical needs the task's source dictionary, which this task has none of: use --softmax top")
    table = read_table(flags.shortlist_file, context.source_dictionary, context.dictionary, flags.shortlist_words)
    out.table = table.to(out.base.device)
    return out

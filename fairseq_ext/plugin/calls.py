"""What Translator and Engine share: a loaded model, its generators, pools, scores,
and `Translation`."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, RoundRobinZipDatasets
from fairseq.data.data_utils import collate_tokens
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationTask
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.core.errors import SentenceError, UsageError, cut
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin.bad_sentences import decode_each
from fairseq_ext.plugin.call_lock import CallLock
from fairseq_ext.plugin.loading.model import LoadedModel
from fairseq_ext.plugin.workers import share_of
from fairseq_ext.search.constraints.report import report_unsearched
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.pool import Pool

# ---- What the Python API returns for a line: `Translation`


@dataclass
class Translation:
    """One hypothesis of one line."""

    text: str  # without subword segmentation
    tokens: list[str] = field(repr=False)  # subword tokens, EOS left out
    score: float  # natural logarithm; length-normalised unless unnormalized=True
    positional_scores: list[float] = field(repr=False)  # of each token, EOS included
    # (source, target) positions, with print_alignment="hard"
    alignment: list[tuple[int, int]] | None = field(default=None, repr=False)
    # characters of source and target words
    words: list[tuple[tuple[int, int], tuple[int, int]]] | None = field(default=None, repr=False)
    # that stand for each other, where they were asked for
    utility: float | None = None  # expected, with mbr=...
    # constraints that it does not meet: text, reason
    unmet: list[tuple[str, str]] = field(default_factory=list)
    # glossary terms that no word had to make place for: they may read oddly
    elsewhere: list[str] = field(default_factory=list, repr=False)

    def __repr__(self) -> str:
        lacks = f", unmet={self.unmet!r}" if self.unmet else ""
        return f"Translation({self.text!r}, score={self.score:.4f}{lacks})"


def empty(unmet: list[tuple[str, str]]) -> Translation:
    """The translation of an empty line: no text, which is certain (score 0).

    unmet: the line's constraints, each with the reason.
    """
    return Translation("", [], 0.0, [], unmet=unmet)


# ---- The generators of one Translator
#
# Each beam and length of n-best lists has its own, and all share one decoder and its weights.


KEPT = 8  # generators of other beams than the flags'


def width_and_length(
    beam: int | None, nbest: int | None, of_flags: tuple[int, int]
) -> tuple[int, int]:
    """The beam and the length of the n-best lists of a call that may name its own; of_flags: both,
    by the flags (raises UsageError)."""
    for name, given in (("beam", beam), ("nbest", nbest)):
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int) or given < 1
        ):
            raise UsageError(
                f"{name} is {cut(repr(given))}: give a whole number of hypotheses, 1 or more"
            )
    width = beam or of_flags[0]
    length = nbest or (min(of_flags[1], width) if beam else of_flags[1])
    if length > width:
        raise UsageError(
            f"nbest={length} asks for more hypotheses than beam={width} keeps: raise "
            "beam or lower nbest"
        )
    return width, length


class Generators:
    """Generators of a task and its models by (beam, length of n-best lists).

    first: that of the flags, with which the others share statistics and decoder; generation:
    fairseq's GenerationConfig, by the flags.
    """

    def __init__(self, task: Any, models: list, generation: Any, first: Any):
        self.task, self.models, self.generation = task, models, generation
        self.results_file = task.session.flags.results_file
        self.of_flags = (generation.beam, generation.nbest)
        self.current = first
        self.made = {self.of_flags: first}

    def use(self, beam: int | None, nbest: int | None) -> tuple[Any, int]:
        """The generator of a call's beam, and the length of its n-best lists; the generator's may
        be longer. A stop strategy may drop what a shorter list has no place for.

        Errors: UsageError for numbers that cannot be, and for another beam where the
        search cannot change.
        """
        width, length = width_and_length(beam, nbest, self.of_flags)
        usual, longest = self.of_flags
        if self.results_file and width != usual:
            raise UsageError(
                "results_file holds the results of one search, and another beam is another search: "
                "leave one of the two out"
            )
        if self.current.runs_stock_loop and width != usual:
            raise UsageError(
                "beam is fixed where fairseq's own search runs (match_source_len, diversity_rate): "
                "make another Translator"
            )
        key = width, longest if self.results_file else max(length, min(longest, width))
        if key not in self.made:
            if len(self.made) > KEPT:
                del self.made[next(other for other in self.made if other != self.of_flags)]
            self.made[key] = self.rebuilt(*key)
        generator = self.made[key]
        if generator is not self.current:
            self.current = generator
            # BART shares source keys among the rows of a beam
            generator.model.set_decoder_beam_size(generator.beam_size)
        return generator, length

    def rebuilt(self, beam: int, nbest: int) -> Any:
        """A generator of another beam, or with other flags than before, that goes on with the
        statistics and shares the decoder."""
        generation = copy.deepcopy(self.generation)
        generation.beam, generation.nbest = beam, nbest
        return self.task.build_generator(
            self.models, generation, extra_gen_cls_kwargs={"share": self.current}
        )

    def constrain(self) -> Any:
        """The generator in use, which from now on searches with constraints, whatever the flags
        said (raises UsageError)."""
        if self.task.session.sentences.constrained:
            return self.current
        if self.current.results is not None:
            raise UsageError(
                "results_file holds the results of one search, and the first constraints change "
                'the search: make the Translator with constraints="unordered"'
            )
        key = next(key for key, generator in self.made.items() if generator is self.current)
        before = self.generation.constraints
        self.generation.constraints = "unordered"
        try:
            self.current = self.rebuilt(*key)
        except BaseException:
            # the flags do not allow it, or Ctrl-C has come: all is as before
            self.generation.constraints, self.task.session.sentences.constrained = before, False
            raise
        self.made = {key: self.current}
        return self.current


# ---- Encoded lines as the pool that a search takes
#
# The pool is made as the task makes a batch of them, without the search.


def pool_of(
    translator: Any, tokens: Sequence[Tensor], wanted: Sequence[SentenceConstraints | None]
) -> Pool:
    """The pool of a `Translator`'s encoded lines, each (L,), whose ids are their places here;
    wanted: the constraints of each, or None for all."""
    task, generator, caught = translator.task, translator.generator, []
    dataset = task.build_dataset_for_inference(list(tokens), [t.numel() for t in tokens])
    if isinstance(dataset, RoundRobinZipDatasets):
        dataset.ordered_indices()  # which it wants to have been asked for first
    batch = dataset.collater([dataset[i] for i in range(len(tokens))])
    # subtle: where the task has given it one, they refer to each other and would stay as garbage
    vars(dataset).pop("collater", None)
    batch = utils.move_to_cuda(batch) if translator.cuda else batch
    numbers = batch["id"].tolist()
    if wanted[0] is not None:
        batch["sentence_constraints"] = [wanted[i] for i in numbers]

    def take(pool: Pool) -> list:
        caught.append(pool)
        return [[] for _ in numbers]

    generator.take = take
    try:
        task.inference_step(generator, translator.models, batch)
    finally:
        generator.take = None
    return caught[0]


def pool_without_constraints(translator: Any, tokens: Sequence[Tensor]) -> Pool:
    """As `pool_of`, of lines without constraints.

    A task that adds nothing to its lines is not asked, which would take longer
    than to collate them.
    """
    if translator.task.registered != "translation_ext":
        pool = pool_of(translator, tokens, [None] * len(tokens))
        # a task that takes constraints gives every sentence some, if empty ones
        pool.constraints = None
        return pool
    generator = translator.generator
    source = collate_tokens(list(tokens), generator.spec.pad, left_pad=True)
    inputs = {"src_tokens": source, "src_lengths": torch.tensor([t.numel() for t in tokens])}
    return generator.pools.pool(
        {"net_input": utils.move_to_cuda(inputs) if translator.cuda else inputs}, None, None
    )


# ---- Scores of translations that are there already
#
# Log-probabilities as `fairseq-generate --score-reference` computes them.


MAX_TOKENS = 12_000  # of a batch, where the flags name no size: that of fairseq-generate


def check_task(task: Any) -> None:
    """Refuse a task whose sentence pairs have more in them than the two texts
    (raises UsageError)."""
    theirs = (kind for kind in type(task).__mro__ if not kind.__module__.startswith("fairseq_ext."))
    if (
        next((vars(kind)["load_dataset"] for kind in theirs if "load_dataset" in vars(kind)), None)
        is not TranslationTask.load_dataset
    ):
        name = type(task).__name__.removesuffix("Ext")
        raise UsageError(
            f"score() pairs plain sentences, and {name} adds tokens of its own: use "
            "fairseq-generate --score-reference"
        )


def score_pairs(
    task: Any, models: list, sources: list[Tensor], targets: list[Tensor], sizes: Any, cuda: bool
) -> list[dict[str, Any]]:
    """fairseq's dictionary of each pair: tokens (L,) and positional_scores (L,), EOS included,
    and score, their mean.

    sources, targets: tokens of each sentence, EOS included, (T,) and (L,). sizes: fairseq's
    DatasetConfig, which limits batches.
    """
    settings = task.flags()
    pairs = LanguagePairDataset(
        sources,
        [tokens.numel() for tokens in sources],
        task.source_dictionary,
        targets,
        [tokens.numel() for tokens in targets],
        task.target_dictionary,
        left_pad_source=settings.left_pad_source,
        left_pad_target=settings.left_pad_target,
        shuffle=False,
    )
    max_tokens = sizes.max_tokens or (None if sizes.batch_size else MAX_TOKENS)
    scorer = SequenceScorer(task.target_dictionary)
    out: list[dict[str, Any]] = [{} for _ in sources]
    for index in pairs.batch_by_size(
        pairs.ordered_indices(), max_tokens=max_tokens, max_sentences=sizes.batch_size
    ):
        batch = pairs.collater([pairs[int(i)] for i in index])
        batch = utils.move_to_cuda(batch) if cuda else batch
        for number, (found,) in zip(
            batch["id"].tolist(), scorer.generate(models, batch), strict=True
        ):
            out[number] = found
    return out


# ---- A loaded model that searches


class SearchingModel(LoadedModel):
    """A loaded model with one setting of the flags, which searches encoded lines.

    The constructor of a subclass sets what stands here.
    """

    cfg: Any
    generator: Any  # of the call that is under way
    generators: Generators
    lock: CallLock  # held while a call uses task, generator or models
    aligns: bool  # whether translations get alignments

    def build_generator(self) -> Any:
        """The generator of the flags (raises UsageError)."""
        return self.task.build_generator(self.models, self.cfg.generation)

    @property
    def known(self) -> Any:
        """What the task knows of its sentences (plugin/sentences.py)."""
        return self.task.session.sentences

    @property
    def stats(self) -> Stats:
        """Counts and times of all calls so far."""
        return self.generator.stats

    @property
    def signature(self) -> str:
        """One line that says how translations are made."""
        return self.generator.stats.signature

    def search(
        self,
        tokens: list[Tensor],
        wanted: Sequence[SentenceConstraints] | None,
        nbest: int,
        cornering: bool = False,
        progress: bool = False,
        numbers: Sequence[int] | None = None,
        seed: int | None = None,
    ) -> list[Any]:
        """The n-best lists of encoded lines, each (L,); wanted: each line's constraints
        (`use_constraints` first), None for none.

        numbers: of the lines in statistics and files (default: from 0). seed: of samples.
        Errors: SentenceError for a line that cannot be translated; with cornering it is in the
        place of its n-best list.
        """
        numbers, pad = (
            range(len(tokens)) if numbers is None else numbers,
            self.task.source_dictionary.pad(),
        )

        def decode(given: tuple) -> list[Any]:
            return self.task.inference_step(self.generator, self.models, given[0])

        # subtle: tqdm has locks that all threads and forked processes share, and Ctrl-C, or the end
        # of such a process, can leave them taken for ever: no bar is made that is not shown
        is_shown = progress and sys.stderr is not None
        with (
            self.lock,
            tqdm(total=len(tokens), unit=" sentences", dynamic_ncols=True)
            if is_shown
            else nullcontext() as bar,
        ):
            self.generator.on_answer = None if bar is None else bar.update
            out: list[Any] = [None] * len(tokens)
            for i, line in enumerate(tokens):
                # EOS; an empty prompt may be gone on with
                if line.numel() == 1 and "source sentence" not in self.task.lacks:
                    out[i] = [self.nothing(numbers[i], wanted[i] if wanted else EMPTY)]
            self.known.line_numbers = numbers
            self.known.of_line = dict(zip(numbers, wanted or (), strict=False))
            for batch in self.batches(tokens) if None in out else ():
                here = batch["id"].tolist()
                places = [place for place, i in enumerate(here) if out[i] is None]
                if not places:
                    continue
                sample, here = (
                    share_of((batch, None, None), len(here), places, pad)[0],
                    [here[place] for place in places],
                )
                sample["id"] = torch.tensor([numbers[i] for i in here])
                if seed is not None:
                    sample["seeds"] = [seed] * len(here)
                if wanted is not None:
                    sample["sentence_constraints"] = [wanted[i] for i in here]
                given = (utils.move_to_cuda(sample) if self.cuda else sample, None, None)
                found = decode_each(given, len(here), pad, decode) if cornering else decode(given)
                for i, each in zip(here, found, strict=True):
                    out[i] = (
                        each
                        if isinstance(each, SentenceError)
                        else [self.translation(h) for h in each[:nbest]]
                    )
                if bar is not None:
                    bar.update(len(out) - out.count(None) - bar.n)
        return out

    def nothing(self, number: int, wanted: SentenceConstraints) -> Translation:
        """The translation of an empty line, which is not searched."""
        self.stats.sentences += 1
        return empty(report_unsearched(number, wanted, self.stats, "the line is empty"))

    def use_constraints(self) -> None:
        """Search with constraints from now on, whatever the flags said; a line without any
        is translated as before."""
        with self.lock:
            self.generator = self.generators.constrain()

    def translation(self, hypothesis: dict) -> Translation:
        """From fairseq's dictionary to text."""
        text = self.generator.target_text.pieces(hypothesis["tokens"])
        alignment = hypothesis["alignment"]
        pairs = (
            [tuple(pair) for pair in alignment] if self.aligns and alignment is not None else None
        )
        return Translation(
            text=self.decode(text),
            tokens=text.split(),
            score=float(hypothesis["score"]),
            positional_scores=hypothesis["positional_scores"].tolist(),
            alignment=pairs,  # type: ignore[arg-type]
            utility=hypothesis.get("utility"),
            unmet=hypothesis.get("unmet", []),
            elsewhere=hypothesis.get("elsewhere", []),
        )

"""Common parts of Translator and Engine: a loaded model, its generators, pools and scores."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import torch
from fairseq import utils
from fairseq.data import LanguagePairDataset, RoundRobinZipDatasets
from fairseq.data.data_utils import collate_tokens
from fairseq.dataclass.configs import DatasetConfig, GenerationConfig
from fairseq.sequence_scorer import SequenceScorer
from fairseq.tasks.translation import TranslationTask
from torch import Tensor
from tqdm import tqdm

from fairseq_ext.core.errors import SentenceError, UsageError, cut
from fairseq_ext.core.stats import Stats
from fairseq_ext.plugin.bad_sentences import decode_isolating_errors
from fairseq_ext.plugin.flags_dataclass import RunFlags
from fairseq_ext.plugin.generator import BeamSearchGenerator, hypothesis_of
from fairseq_ext.plugin.input import SingleBatchIterator
from fairseq_ext.plugin.loading.model import LoadedModel
from fairseq_ext.plugin.loading.settings import HypothesisDict, Sample, Task
from fairseq_ext.plugin.sentences import Sentences
from fairseq_ext.plugin.workers import CallLock, select_batch
from fairseq_ext.search.constraints.report import report_skipped_sentence
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.report import Outcome, Translation, named
from fairseq_ext.search.request import Request

# ---- The generators of one Translator
#
# There is one for each beam and length of n-best lists; all share one decoder and its weights.


CACHE_SIZE = 8  # generators of beams other than that of the flags


def width_and_length(
    beam: int | None, nbest: int | None, default_size: tuple[int, int]
) -> tuple[int, int]:
    """Return the beam and the length of the n-best lists of a call that may name its own;
    default_size: both, by the flags (raises UsageError)."""
    for name, given in (("beam", beam), ("nbest", nbest)):
        if given is not None and (
            isinstance(given, bool) or not isinstance(given, int) or given < 1
        ):
            raise UsageError(
                f"{name} is {cut(repr(given))}: give a whole number of hypotheses, 1 or more"
            )
    width = beam or default_size[0]
    length = nbest or (min(default_size[1], width) if beam else default_size[1])
    if length > width:
        raise UsageError(
            f"nbest={length} is more than beam={width} keeps: raise beam or lower nbest"
        )
    return width, length


class Generators:
    """Generators of a task and its models by (beam, length of n-best lists).

    first: that of the flags; the others share its statistics and decoder. generation: fairseq's
    GenerationConfig, by the flags.
    """

    def __init__(
        self, task: Task, models: list, generation: GenerationConfig, first: BeamSearchGenerator
    ):
        self.task, self.models, self.generation = task, models, generation
        self.results_file = task.session.settings.get(RunFlags).results_file
        self.default_size = (generation.beam, generation.nbest)
        self.current = first
        self.cache = {self.default_size: first}

    def use(self, beam: int | None, nbest: int | None) -> tuple[BeamSearchGenerator, int]:
        """Return the generator of a call's beam, and the length of its n-best lists, which may be
        shorter than the generator's. A stop strategy may drop hypotheses for which a shorter list
        has no place.

        Errors: UsageError for invalid numbers, and for another beam if the search cannot change.
        """
        width, length = width_and_length(beam, nbest, self.default_size)
        usual, longest = self.default_size
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
        if key not in self.cache:
            if len(self.cache) > CACHE_SIZE:
                del self.cache[next(other for other in self.cache if other != self.default_size)]
            self.cache[key] = self.rebuild(*key)
        generator = self.cache[key]
        if generator is not self.current:
            self.current = generator
            # BART shares source keys among the rows of a beam
            generator.model.set_decoder_beam_size(generator.beam_size)
        return generator, length

    def rebuild(self, beam: int, nbest: int) -> BeamSearchGenerator:
        """Return a generator of another beam, or with other flags than before, with the same
        statistics and decoder."""
        generation = copy.deepcopy(self.generation)
        generation.beam, generation.nbest = beam, nbest
        return self.task.build_generator(
            self.models, generation, extra_gen_cls_kwargs={"share": self.current}
        )

    def constrain(self) -> BeamSearchGenerator:
        """Return the generator in use, which searches with constraints from now on, whatever the
        flags are (raises UsageError)."""
        if self.task.session.sentences.constrained:
            return self.current
        if self.current.results is not None:
            raise UsageError(
                "results_file holds the results of one search, and the first constraints change "
                'the search: make the Translator with constraints="unordered"'
            )
        key = next(key for key, generator in self.cache.items() if generator is self.current)
        before = self.generation.constraints
        self.generation.constraints = "unordered"
        try:
            self.current = self.rebuild(*key)
        except BaseException:
            # the flags do not allow it, or Ctrl-C was pressed: restore the settings
            self.generation.constraints, self.task.session.sentences.constrained = before, False
            raise
        self.cache = {key: self.current}
        return self.current


# ---- Encoded lines as a pool


@dataclass
class PoolMaker:
    """Stands for a generator in a task's inference_step, which adds what its models need to a
    batch, and makes a pool of the batch instead of searching it."""

    generator: BeamSearchGenerator
    pool: Pool | None = None

    def generate(self, models: list, sample: dict[str, object], **more: object) -> list[list]:
        self.pool = self.generator.pool(sample, **more)
        return [[] for _ in self.pool.max_len]


def make_pool(translator: SearchingModel, requests: Sequence[Request]) -> tuple[Pool, list[int]]:
    """Return the pool of requests to a `Translator`, and the request of each of its sentences, by
    its place in the list."""
    task, maker = translator.task, PoolMaker(translator.generator)
    tokens = [tokens_of(each) for each in requests]
    dataset = task.build_dataset_for_inference(tokens, [t.numel() for t in tokens])
    if isinstance(dataset, RoundRobinZipDatasets):
        dataset.ordered_indices()  # prepares its items
    batch = dataset.collater([dataset[i] for i in range(len(tokens))])
    # subtle: the data set and a collater of the task refer to each other: garbage for the collector
    vars(dataset).pop("collater", None)
    batch = utils.move_to_cuda(batch) if translator.cuda else batch
    places = batch["id"].tolist()
    add_requests_(batch, [requests[i] for i in places])
    task.inference_step(maker, translator.models, batch)
    assert maker.pool is not None
    return maker.pool, places


def pool_without_constraints(
    translator: SearchingModel, requests: Sequence[Request]
) -> tuple[Pool, list[int]]:
    """Return the pool of requests without constraints, as `make_pool` does.

    For a task that adds nothing to its lines, the tokens are collated here, which is faster.
    """
    if translator.task.registered != "translation_ext":
        return make_pool(translator, requests)
    tokens = [tokens_of(each) for each in requests]
    source = collate_tokens(tokens, translator.generator.setup.pad, left_pad=True)
    inputs = {"src_tokens": source, "src_lengths": torch.tensor([t.numel() for t in tokens])}
    batch = {"net_input": utils.move_to_cuda(inputs) if translator.cuda else inputs}
    add_requests_(batch, requests)
    return translator.generator.unconstrained_pool(batch), list(range(len(requests)))


def tokens_of(request: Request) -> Tensor:
    """Return the tokens (L,) of a request that is prepared."""
    assert request.tokens is not None
    return request.tokens


def add_requests_(batch: dict[str, object], requests: Sequence[Request]) -> None:
    """Add the requests of its sentences to one of fairseq's batches."""
    batch["requests"] = list(requests)
    batch["id"] = torch.tensor([each.number for each in requests])


# ---- Scores of existing translations
#
# Log-probabilities as `fairseq-generate --score-reference` computes them.


MAX_TOKENS = 12_000  # tokens of a batch without --max-tokens, as in fairseq-generate


def check_task(task: object) -> None:
    """Refuse a task whose sentence pairs have more than the two texts (raises UsageError)."""
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
    task: Task,
    models: list,
    sources: list[Tensor],
    targets: list[Tensor],
    sizes: DatasetConfig,
    cuda: bool,
) -> list[dict[str, object]]:
    """Return fairseq's dictionary of each pair: tokens (L,) and positional_scores (L,), EOS
    included, and score, their mean.

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
    out: list[dict[str, object]] = [{} for _ in sources]
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

    The constructor of a subclass sets these attributes.
    """

    generator: BeamSearchGenerator  # of the current call
    generators: Generators
    lock: CallLock  # held while a call uses task, generator or models
    aligns: bool  # whether translations get alignments

    def build_generator(self) -> BeamSearchGenerator:
        """Build the generator of the flags (raises UsageError)."""
        return self.task.build_generator(self.models, self.cfg.generation)

    @property
    def sentences(self) -> Sentences:
        """Return the numbers, constraints and drafts of the task's sentences."""
        return self.task.session.sentences

    @property
    def stats(self) -> Stats:
        """Return counts and times of all calls so far."""
        return self.generator.stats

    @property
    def signature(self) -> str:
        """Return one line that says how translations are made."""
        return self.generator.stats.signature

    def prepared(self, request: Request, where: str) -> Request:
        """Return a request with its tokens and constraints. where: its place, for messages.

        Errors: SentenceError for a source that cannot be translated, UsageError for constraints
        that cannot be used.
        """
        request = replace(request, tokens=self.checked(request.source, where))
        given = self.sentences
        return given.with_constraints(request, where) if given.constrained else request

    def search(
        self,
        requests: Sequence[Request],
        isolates_errors: bool = False,
        progress: bool = False,
    ) -> list[list[Translation] | SentenceError]:
        """Return the n-best lists of requests that are `prepared`; where any may have constraints,
        call `use_constraints` first.

        Errors: SentenceError for a line that cannot be translated; with isolates_errors it takes
        the place of the line's n-best list.
        """
        pad, tokens = self.task.source_dictionary.pad(), [tokens_of(each) for each in requests]

        def decode(given: tuple) -> list:
            return self.task.inference_step(self.generator, self.models, given[0])

        # subtle: tqdm's locks are shared by all threads and forked processes; Ctrl-C, or the end of
        # such a process, can leave them locked for ever: no bar is made unless it is shown
        is_shown = progress and sys.stderr is not None
        with (
            self.lock,
            tqdm(total=len(tokens), unit=" sentences", dynamic_ncols=True)
            if is_shown
            else nullcontext() as bar,
        ):
            self.generator.on_answer = None if bar is None else bar.update
            out: list = [None] * len(tokens)
            for i, line in enumerate(tokens):
                # EOS alone; a language model may continue an empty prompt
                if line.numel() == 1 and "source sentence" not in self.task.lacks:
                    out[i] = [self.empty_translation(requests[i])]
            self.sentences.requests = {each.number: each for each in requests}
            for batch in self.batches(tokens) if None in out else ():
                here = batch["id"].tolist()
                places = [place for place, i in enumerate(here) if out[i] is None]
                if not places:
                    continue
                sample = batch
                if len(places) < len(here):
                    sample = select_batch((batch, None, None), len(here), places, pad)[0]
                    here = [here[place] for place in places]
                add_requests_(sample, [requests[i] for i in here])
                given = (utils.move_to_cuda(sample) if self.cuda else sample, None, None)
                found = (
                    decode_isolating_errors(given, len(here), pad, decode)
                    if isolates_errors
                    else decode(given)
                )
                for i, each in zip(here, found, strict=True):
                    nbest = requests[i].nbest or self.cfg.generation.nbest
                    out[i] = (
                        each
                        if isinstance(each, SentenceError)
                        else [self.translation_of(h) for h in each[:nbest]]
                    )
                if bar is not None:
                    bar.update(len(out) - out.count(None) - bar.n)
            self.sentences.requests = {}
        return out

    def batches(self, tokens: list[Tensor]) -> Iterator[Sample]:
        """Yield fairseq's batches of encoded lines, each (L,)."""
        dataset = self.task.build_dataset_for_inference(tokens, [t.numel() for t in tokens])
        epochs = self.task.get_batch_iterator(
            dataset=dataset,
            max_tokens=self.max_tokens,
            max_sentences=self.max_sentences,
            max_positions=self.max_positions,
        )
        if isinstance(epochs, SingleBatchIterator):
            return iter(epochs.next_epoch_itr())
        # torch's loader draws a seed as it starts: keep the caller's random state
        with torch.random.fork_rng(devices=[]):
            return epochs.next_epoch_itr(shuffle=False)

    def empty_translation(self, request: Request) -> Translation:
        """Return the translation of an empty line, which is not searched."""
        self.stats.sentences += 1
        wanted, reason = request.all_constraints, "the line is empty"
        unmet = report_skipped_sentence(request.number, wanted, self.stats, reason)
        return Translation("", [], 0.0, [], unmet=unmet)

    def use_constraints(self) -> None:
        """Search with constraints from now on, whatever the flags are; a line without constraints
        is translated as before."""
        with self.lock:
            self.generator = self.generators.constrain()

    def translation_of(self, found: HypothesisDict) -> Translation:
        """Return the translation of fairseq's dictionary of a hypothesis."""
        return self.translation(hypothesis_of(found), found["alignment"] if self.aligns else None)

    def translation(
        self, hypothesis: Hypothesis, alignment: Sequence[Sequence[int]] | None = None
    ) -> Translation:
        """Return a hypothesis as a Translation."""
        text = self.generator.target_text.pieces(hypothesis.tokens)
        return Translation(
            text=self.decode(text),
            tokens=text.split(),
            score=hypothesis.score,
            positional_scores=hypothesis.positional_scores.tolist(),
            alignment=None if alignment is None else [(i, j) for i, j in alignment],
            **named(hypothesis, Outcome),
        )

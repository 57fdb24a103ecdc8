"""`BeamSearchGenerator`: fairseq's SequenceGenerator, with our drivers (search/) as its search.

The interface of fairseq's commands, tasks and scorers stays: the constructor,
`generate(models, sample, prefix_tokens, constraints)`, and the dictionaries that it returns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cached_property

import torch
from fairseq import search as stock_search
from fairseq.data import Dictionary
from fairseq.sequence_generator import (
    SequenceGenerator,
    SequenceGeneratorWithAlignment,
)
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fairseq_ext.core.errors import SentenceError, UsageError, counted
from fairseq_ext.core.stats import Stats
from fairseq_ext.model.choose import check_finite, make_decoder, refuse_other_batches
from fairseq_ext.model.protocol import Decoder
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.model.stock_model import model_of_pair
from fairseq_ext.plugin.flags_dataclass import RunFlags
from fairseq_ext.plugin.loading.settings import HypothesisDict, Sample
from fairseq_ext.plugin.options import search_spec, signature, signature_versions
from fairseq_ext.plugin.results import Progress, ResultsFile, checksum
from fairseq_ext.plugin.search_setup import may_read_models, with_strategies
from fairseq_ext.plugin.steps import Parts, steps_of
from fairseq_ext.search.constraints.allowed_product import Products
from fairseq_ext.search.constraints.banned import AvoidFlags
from fairseq_ext.search.constraints.glossary import places_terms
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.constraints.report import (
    SentenceGoal,
    count_constraints,
    report_constraints,
)
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.constraints.sentence_end import EndFlags
from fairseq_ext.search.constraints.sources import is_ordered
from fairseq_ext.search.finished import Hypothesis, no_hypothesis
from fairseq_ext.search.mbr import BayesRisk, CandidateFlags
from fairseq_ext.search.phrases.places import meets_in_text
from fairseq_ext.search.phrases.segmenter import Segmenter, TargetText
from fairseq_ext.search.phrases.sentence import Meets, SentenceConstraints, met
from fairseq_ext.search.phrases.sentence_ends import EndsOfSources
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import Setup, Strategies
from fairseq_ext.search.report import ConstraintReport, Outcome, Report, named
from fairseq_ext.search.request import Request
from fairseq_ext.search.settings import Settings

# the stock searches that our drivers replace
OWN_LOOP = (
    stock_search.BeamSearch,
    stock_search.LexicallyConstrainedBeamSearch,
    stock_search.Sampling,
    stock_search.DiverseBeamSearch,
)


def source_of(sample: Sample) -> Tensor:
    """Return the batch's source tokens (N, T), or features of speech (N, T, F) (raises UsageError
    for a batch of something else)."""
    if "src_tokens" not in sample["net_input"]:
        found = ", ".join(sample["net_input"])
        raise UsageError(
            f"this search reads source tokens (src_tokens), and the batch has {found}: use "
            "fairseq's task for such data"
        )
    return sample["net_input"]["src_tokens"]


def dictionary_of(hypothesis: Hypothesis) -> dict[str, object]:
    """Return a hypothesis as fairseq's commands read it, and its `Outcome`, which they do not."""
    nothing, h = torch.empty(0, dtype=torch.float32), hypothesis
    return {
        "tokens": h.tokens,
        "score": torch.tensor(h.score, dtype=h.positional_scores.dtype),
        "attention": nothing,
        "alignment": nothing,
        "positional_scores": h.positional_scores,
        **named(h, Outcome),
    }


def hypothesis_of(found: HypothesisDict) -> Hypothesis:
    """Return the hypothesis of a dictionary, which may be of fairseq's own search."""
    outcome = {each.name: found[each.name] for each in fields(Outcome) if each.name in found}
    score = float(found["score"])
    return Hypothesis(found["tokens"], score, found["positional_scores"], **outcome)


class BeamSearchGenerator(SequenceGenerator):
    """Decoding with the strategies of the flags; without any, fairseq's results token for token.

    One deliberate difference: with `--max-len-a` above 0, fairseq computes the length limit from
    the padded width of the batch, so that its output depends on how sentences were batched. Here
    every sentence has its own limit, from its own length.

    settings: of the run; source: the source dictionary, if the task has one; share: another
    generator of the same models and flags, whose statistics and decoder this one uses.
    """

    target_text: TargetText

    def __init__(
        self,
        models,
        tgt_dict,
        *,
        settings: Settings,
        source: Dictionary | None = None,
        share: BeamSearchGenerator | None = None,
        **stock,
    ):
        super().__init__(models, tgt_dict, **stock)
        self.settings, run = settings, settings.get(RunFlags)
        self.stats: Stats = Stats() if share is None else share.stats
        # searches of fairseq's own, such as diverse beams, run in fairseq's loop
        self.runs_stock_loop = type(self.search) not in OWN_LOOP
        backend: str = "fairseq" if self.runs_stock_loop else run.decoder_backend
        searched = [model_of_pair(model) for model in self.model.models]
        refuse_other_batches(searched, settings.choice("schedule"), run.cpu_workers)
        if share is None:
            check_finite([*searched, *([] if self.lm_model is None else [self.lm_model])])
            self.made_decoder: Decoder = make_decoder(searched, backend, run.int8, run.cuda_graphs)[
                0
            ]
        else:
            self.made_decoder = share.made_decoder
        backend = "stock" if self.runs_stock_loop else self.made_decoder.name
        self.stats.signature = "|".join(
            (signature(settings, backend), signature_versions(settings.generation, searched))
        )
        if self.runs_stock_loop:
            self.stats.exclude_decoder_counters()
        self.setup = with_strategies(
            Setup(
                **vars(search_spec(settings, self)),
                settings=settings,
                decoder=self.made_decoder,
                models=searched,
                dictionary=tgt_dict,
                source_dictionary=source,
                processors=LogitsProcessors(
                    self.pad,
                    self.unk,
                    self.eos,
                    self.unk_penalty,
                    self.min_len,
                    getattr(self.repeat_ngram_blocker, "no_repeat_ngram_size", 0),
                    self.token_indices_to_suppress,
                    self.lm_model,
                    self.lm_weight,
                ),
                stats=self.stats,
            )
        )
        # the task replaces it after the generator is built
        text = (lambda: self.target_text) if places_terms(settings) else None
        self.steps = steps_of(Parts(self.setup, self.meets, self.detokenize, text))
        self.driver = self.steps.driver
        self.results: ResultsFile | None = None  # for results as sentences finish
        # the task replaces it by one that knows --bpe and --tokenizer (run.py)
        self.target_text = TargetText(
            lambda: Segmenter(tgt_dict), self.symbols_to_strip_from_output, "none"
        )
        self.in_text: Meets | None = None  # finds the constraints that a text meets
        self.bayes_risk: BayesRisk | None = None  # with --mbr
        if (risk := settings.get(CandidateFlags)).mbr is not None:
            self.bayes_risk = (
                BayesRisk(risk, lambda tokens: self.target_text.text(tokens))
                if share is None
                else share.bayes_risk
            )
        # reports a request's constraints; the task replaces it, too
        self.report: Callable[..., Sequence[ConstraintReport]] = lambda *of: ()
        self.show_bar = False  # a progress bar for a stream
        self.on_answer: Callable[[], object] | None = None  # called for each finished sentence

    @property
    def decoder(self) -> Decoder:
        """The decoder that runs the model."""
        return self.setup.decoder

    @property
    def strategies(self) -> Strategies:
        """The strategies that the flags name."""
        return self.setup.strategies

    def release_models(self) -> bool:
        """Release weights that are also packed; afterwards only this generator can run the models.
        Return whether it did."""
        return not may_read_models(self.settings) and self.made_decoder.release_()

    @torch.no_grad()
    def _generate(
        self, sample, prefix_tokens=None, constraints=None, bos_token=None
    ) -> list[list[dict[str, object]]]:
        """Return each sentence's hypotheses, best first, as fairseq's commands read them; fairseq's
        `generate` calls this method. Arguments: those of `pool`."""
        start = time.perf_counter()
        if self.runs_stock_loop:
            try:
                out = super()._generate(sample, prefix_tokens, constraints, bos_token)
            except AssertionError as error:
                if not str(error).startswith("min_len cannot be larger"):
                    raise
                raise SentenceError(
                    f"--min-len {self.min_len} is above the length limit of a sentence: lower it, "
                    "or leave --match-source-len out"
                ) from None
            self.stats.sentences += len(out)
            self.stats.target_tokens += sum(hypotheses[0]["tokens"].numel() for hypotheses in out)
        else:
            out = self.search_pool(self.pool(sample, prefix_tokens, constraints, bos_token))
            # subtle: our decoder switches off BART's sharing of source keys; other users of the
            # model get it back
            self.model.set_decoder_beam_size(self.beam_size)
        self.stats.seconds += time.perf_counter() - start
        return out

    def pool(self, sample, prefix_tokens=None, constraints=None, bos_token=None) -> Pool:
        """Return a batch as a pool. constraints: packed, as fairseq's commands pass them; others:
        see `unconstrained_pool`."""
        pool = self.unconstrained_pool(sample, prefix_tokens, bos_token)
        self.constrain_(pool, sample, constraints)
        return pool

    def unconstrained_pool(
        self, sample: Sample, prefix_tokens: Tensor | None = None, bos_token: int | None = None
    ) -> Pool:
        """Return a batch as a pool, without constraints.

        prefix_tokens (N, P): target tokens with which each translation must begin; bos_token: the
        decoder's first input, None for EOS. Errors: SentenceError for a minimum length above a
        sentence's limit.
        """
        setup, net_input, source = self.setup, sample["net_input"], source_of(sample)
        # EOS is one of the tokens
        length = source.ne(setup.pad).sum(1) if source.dim() == 2 else net_input["src_lengths"]
        lengths = length.tolist()
        max_len = [
            min(int(setup.max_len_a * n + setup.max_len_b), setup.max_len - 1) for n in lengths
        ]
        for n, limit in zip(lengths, max_len, strict=True):
            if setup.min_len > limit:
                raise SentenceError(
                    f"--min-len {setup.min_len} is above the length limit {limit} of a sentence of "
                    f"{counted(n, 'token')}: raise --max-len-b or lower --min-len"
                )
        found = sample.get("id")  # a program that is not ours may give no numbers
        ids, numbered = (
            (found, True) if isinstance(found, Tensor) else (torch.arange(len(lengths)), False)
        )
        bos = setup.eos if bos_token is None else bos_token
        pool = Pool(
            net_input, length, max_len, ids, bos, prefix_tokens, pad=setup.pad, numbered=numbered
        )
        # speech: padding changes the encoder's output, and in a stream it depends on the others
        pool.encodes_separately = source.dim() == 3 and setup.refills
        requests = sample.get("requests")
        seeds = [None] * len(lengths) if requests is None else [each.seed for each in requests]
        pool.seeds = [setup.seed if each is None else each for each in seeds]
        return pool

    def constrain_(self, pool: Pool, sample: Sample, packed: Tensor | None) -> None:
        """Set the pool's constraints: from the task, or packed as fairseq's commands pass them."""
        requests, given = sample.get("requests"), None
        if requests is not None and any(each.constraints is not None for each in requests):
            given = [each.all_constraints for each in requests]
        if requests is None and packed is not None:
            given = [
                from_packed(row, self.setup.dictionary, number)
                for row, number in zip(packed, pool.ids.tolist(), strict=True)
            ]
        if given is None:
            return
        pool.constraints, pool.ordered = given, is_ordered(self.settings)
        pool.boundaries = self.target_text.boundaries
        pool.banned_in_any_case = self.settings.get(AvoidFlags).avoid_case == "any"
        if self.settings.get(EndFlags).constraint_end:
            pool.ends = self.ends(
                [row[row != self.setup.pad].tolist() for row in pool.net_input["src_tokens"].cpu()]
            )
        pool.lead = None if pool.prefix is None else [len(pool.forced(i)) for i in range(len(pool))]
        if any(c.prefix for c in given):
            pool.extend_prefix_([c.beginning for c in given])
            pool.min_len_after_own_prefix = True
        if any(c.allowed is not None for c in given):
            self.products.use_(pool)

    @cached_property
    def products(self) -> Products:
        """The products of allowed outputs with other constraints."""
        setup, unseen = self.setup, self.target_text.left_out
        soft = self.settings.get(ConstraintFlags).constraint_bonus is not None
        return Products(len(setup.dictionary), setup.eos, setup.min_len, unseen, soft)

    @cached_property
    def ends(self) -> EndsOfSources:
        """The sentence ends that --constraint-end allows for each source."""
        segmenter = self.target_text.segmenter()
        return EndsOfSources(segmenter.dictionary, self.setup.source_dictionary, segmenter.bpe)

    def search_pool(self, pool: Pool) -> list[list[dict[str, object]]]:
        """Return every sentence's hypotheses as fairseq's commands read them; those of an earlier
        run come from the results file."""
        device, ids = pool.length.device, pool.ids.tolist()
        out: list[Sequence[Hypothesis]] = [() for _ in ids]
        before = self.stats.mark()
        if self.results is not None:
            for i, number in enumerate(ids):
                out[i] = self.results.hypotheses(number, self.checksum(pool, i), device)
                if out[i]:
                    self.count(pool, i, out[i][0])
            pool.to_decode = [i for i, found in enumerate(out) if not found]
            if (
                pool.to_decode
                and pool.net_input["src_tokens"].dim() == 3
                and not pool.encodes_separately
            ):
                # speech is encoded in its whole batch, on which its results depend
                pool.to_decode = None
        missing = len(pool.sentences_to_decode())
        shown = self.setup.refills and missing > 1 and self.on_answer is None
        progress = Progress(missing, self.show_bar) if shown else None

        def store_results(sentence: int, found: list[Hypothesis]) -> None:
            if out[sentence]:  # from the results file of an earlier run
                return
            out[sentence] = self.answer(pool, sentence, found)
            if self.results is not None:
                given, text = Request(ids[sentence]), self.target_text.text(out[sentence][0].tokens)
                if (constraints := self.constraints_of(pool, sentence)) is not None:
                    given = replace(given, tokens=pool.source(sentence), constraints=constraints)
                report = Report(out[sentence], self.report(given, out[sentence][0], text))
                self.results.add(ids[sentence], self.checksum(pool, sentence), text, report)
            if progress is not None:
                progress.add()
            if self.on_answer is not None:
                self.on_answer()

        try:
            self.driver(pool, store_results)
        except SentenceError:  # the other sentences are searched again
            self.stats.rollback(before)
            raise
        if self.results is not None:
            self.results.forget(ids)
        if progress is not None:
            progress.close()
        return [list(map(dictionary_of, found)) for found in out]

    def answer(self, pool: Pool, sentence: int, found: list[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses of a sentence with their outcomes, those first that meet the
        constraints."""
        constraints = self.constraints_of(pool, sentence)
        if not found and constraints is not None and constraints.allowed is not None:
            raise SentenceError(
                "every allowed output is forbidden by another flag, such as "
                "--no-repeat-ngram-size: leave it out"
            )
        found = found or [no_hypothesis(self.eos, pool.length.device)]
        if constraints is not None:
            goal = SentenceGoal(constraints, pool.max_len[sentence], pool.lead_of(sentence))
            soft = self.strategies.select.soft
            found = report_constraints(goal, found, pool.ordered, self.meets(pool), soft)
        if self.bayes_risk is not None:
            found = self.bayes_risk(found, self.source_text(pool, sentence))
        self.count(pool, sentence, found[0])
        self.stats.sentences += 1
        self.stats.target_tokens += found[0].tokens.numel()
        return found

    def count(self, pool: Pool, sentence: int, best: Hypothesis) -> None:
        """Count the answer of a sentence, be it from an earlier run."""
        if best.ending is not None:
            self.strategies.stop.count_ending(best.ending)
        if (constraints := self.constraints_of(pool, sentence)) is not None:
            is_placed, number = places_terms(self.settings), int(pool.ids[sentence])
            count_constraints(number, constraints, best, self.stats, is_placed)

    def constraints_of(self, pool: Pool, sentence: int) -> SentenceConstraints | None:
        """Return the constraints of a sentence as they were given."""
        given = pool.original_constraints or pool.constraints
        return None if given is None else given[sentence]

    def source_text(self, pool: Pool, sentence: int) -> str:
        """Return a sentence's source as text; "" for speech."""
        words = self.setup.source_dictionary
        return "" if words is None else self.detokenize(words.string(pool.source(sentence)))

    def checksum(self, pool: Pool, sentence: int) -> str:
        """Return a checksum of all that a sentence's results depend on: source, constraints,
        prefix."""
        constraints = self.constraints_of(pool, sentence)
        prefix = pool.prefix[sentence] if pool.prefix is not None else None
        return checksum(
            pool.source(sentence),
            constraints,
            None if prefix is None else prefix[prefix != self.pad],
        )

    def detokenize(self, pieces: str) -> str:
        """Return symbols of the dictionary, separated by spaces, as text."""
        return self.target_text.segmenter().decode(pieces)

    def meets(self, pool: Pool) -> Meets:
        """Return the function that counts the constraints that a hypothesis meets: in its text if
        the target's words are known, else in its tokens."""
        if pool.boundaries is None:
            return met
        if self.in_text is None:
            self.in_text = meets_in_text(self.target_text.words, pool.boundaries.whole_words)
        return self.in_text


# ---- `--print-alignment`: which source token each target token comes from


ALIGNED_TOKENS = 1 << 14  # of a forced pass, on the longer side: a stream is one batch


class AlignedBeamSearchGenerator(SequenceGeneratorWithAlignment, BeamSearchGenerator):
    """`BeamSearchGenerator` with the alignment of each hypothesis, from the attention of forced
    passes over all (`--print-alignment`)."""

    @torch.no_grad()
    def generate(self, models, sample, **kwargs):
        hypotheses = self._generate(sample, **kwargs)
        source, lengths = (sample["net_input"][name] for name in ("src_tokens", "src_lengths"))
        flat = [(i, h) for i, sentence in enumerate(hypotheses) for h in sentence]
        first = self.eos if kwargs.get("bos_token") is None else kwargs["bos_token"]
        targets = [torch.cat([h["tokens"].new_tensor([first]), h["tokens"][:-1]]) for _, h in flat]
        source_sizes = lengths.tolist()
        size = [max(source_sizes[i], len(h["tokens"])) for i, h in flat]
        order = sorted(range(len(flat)), key=lambda i: -size[i])
        while order:
            count = max(1, ALIGNED_TOKENS // size[order[0]])
            # in the batch's order, by which an LSTM has the longest sources first
            some, order = sorted(order[:count]), order[count:]
            owner = torch.tensor([flat[i][0] for i in some], device=source.device)
            columns = source[owner].ne(self.pad).any(0)
            attention = self.attention_of(
                source[owner][:, columns],
                lengths[owner],
                pad_sequence([targets[i] for i in some], True, self.pad),
            ).cpu()
            for i, weights in zip(some, attention, strict=True):
                sentence, hypothesis = flat[i]
                tokens = hypothesis["tokens"].cpu()
                seen = weights.new_zeros(len(tokens), source.size(1))  # (L, source)
                seen[:, columns.cpu()] = weights[: len(tokens)]
                hypothesis["attention"] = seen.t()
                hypothesis["alignment"] = self.extract_alignment(
                    seen, source[sentence].cpu(), tokens, self.pad, self.eos
                )
        self.model.set_decoder_beam_size(self.beam_size)  # as `_generate` leaves it
        return hypotheses

    def attention_of(self, source: Tensor, lengths: Tensor, previous: Tensor) -> Tensor:
        """Return the attention (n, L, source) of targets `previous` (n, L) to their sources."""
        if any(getattr(m, "full_context_alignment", False) for m in self.model.models):
            return self.model.forward_align(source, lengths, previous)
        reading = FairseqBackend(self.setup.models, cached=False)
        found = reading.attention_of({"src_tokens": source, "src_lengths": lengths}, previous)
        if found is None:
            raise UsageError(
                "--print-alignment reads a model's attention to the source, and this model has "
                "none: leave it out"
            )
        return found

"""Batches of fairseq as pools of the search, and hypotheses as the dictionaries that fairseq
reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import cached_property

import torch
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError, counted
from fairseq_ext.plugin.loading.settings import HypothesisDict, Sample
from fairseq_ext.search.constraints.allowed_product import Products
from fairseq_ext.search.constraints.banned import AvoidFlags
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.constraints.required import ConstraintFlags
from fairseq_ext.search.constraints.sentence_end import EndFlags
from fairseq_ext.search.constraints.sources import is_ordered
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence_ends import EndsOfSources
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.report import Outcome, named


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


class PoolBuilder:
    """A builder of pools from batches. text: returns what has the word boundaries of the target
    side, once a search begins."""

    def __init__(self, setup: Setup, text: Callable[[], TargetText]):
        self.setup, self.text = setup, text
        self.flags = setup.settings.get(ConstraintFlags)

    def pool(self, sample: Sample, prefix_tokens: Tensor | None, bos_token: int | None) -> Pool:
        """Return the batch as a pool.

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
        settings = self.setup.settings
        pool.constraints, pool.ordered = given, is_ordered(settings)
        pool.boundaries = self.text().boundaries
        pool.banned_in_any_case = settings.get(AvoidFlags).avoid_case == "any"
        if settings.get(EndFlags).constraint_end:
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
        setup = self.setup
        unseen, soft = self.text().left_out, self.flags.constraint_bonus is not None
        return Products(len(setup.dictionary), setup.eos, setup.min_len, unseen, soft)

    @cached_property
    def ends(self) -> EndsOfSources:
        """The sentence ends that --constraint-end allows for each source."""
        segmenter = self.text().segmenter()
        return EndsOfSources(segmenter.dictionary, self.setup.source_dictionary, segmenter.bpe)

"""The compiled twin of the loop for sentences with required phrases (kernels/constrained.cpp).

It runs dynamic beam allocation and the early end, and no other strategy. The loop (loop.py) is the
definition: hypotheses are equal, to the last bit. It is faster for the many steps with a few rows.
Sentences that start together are a group with a KV cache of its own.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from fairseq_ext.core.errors import NotANumber
from fairseq_ext.kernels.banks import Banks
from fairseq_ext.kernels.beam import SearchResult
from fairseq_ext.kernels.constrained import CompiledConstrainedSearch, ConstrainedSettings
from fairseq_ext.search.compiled import FIRST_POSITIONS, FIRST_STEPS
from fairseq_ext.search.finished import Hypothesis, n_best
from fairseq_ext.search.log_probs import MANY
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.pool import PerPoolCache, Pool
from fairseq_ext.search.protocols import SearchSetup
from fairseq_ext.search.scheduler import CompiledSearcher, Request, common_prefix


class ConstrainedSearch(CompiledSearcher):
    """Beam search of sentences with required phrases and no other constraints."""

    def __init__(self, setup: SearchSetup):
        self.setup = setup
        self.banks = PerPoolCache(setup.strategies.select.banks)
        self.clear()

    def clear(self) -> None:
        """Drop all requests, also those of a call that an exception ended."""
        # the group of each request, and its place there
        self.place_of_request: dict[Request, tuple[ConstrainedGroup, int]] = {}

    @staticmethod
    def supports(setup: SearchSetup) -> bool:
        """Whether kernels/constrained.cpp supports a generator's search; decoder and phrases are
        checked later."""
        strategies = setup.strategies
        return (
            strategies.stop.estimate is not None
            and strategies.softmax.is_full
            and not strategies.prune
            and strategies.schedule.most_rows is None  # groups are not divided
            and setup.processors.is_plain
            and not setup.spec.scoring.reward
            and 2 * setup.spec.k <= MANY
        )

    @property
    def live(self) -> int:
        return len(self.place_of_request)

    @property
    def rows(self) -> int:
        return sum(group.rows for group in self.groups())

    def groups(self) -> list[ConstrainedGroup]:
        """Return the groups that have requests."""
        return list(dict.fromkeys(group for group, _ in self.place_of_request.values()))

    def supports_constraints(self, constraints: SentenceConstraints | None) -> bool:
        if constraints is None or constraints.banned or constraints.prefix:
            return False
        return bool(constraints.any_of) and self.setup.decoder.is_compiled

    def supports_pool(self, pool: Pool) -> bool:
        is_known = (
            pool.prefix is None
            and not pool.encodes_separately
            and pool.length.device.type == "cpu"
            and self.setup.decoder.is_compiled
        )
        return (
            is_known
            and any(c.any_of for c in pool.constraints or ())
            and self.banks(pool) is not None
        )

    @torch.no_grad()
    def admit(self, requests: Sequence[Request]) -> None:
        banks = self.banks(requests[0].batch)
        assert banks is not None
        group = ConstrainedGroup(self.setup, banks, requests)
        self.place_of_request |= {request: (group, i) for i, request in enumerate(requests)}

    def step(self, most: int = 1) -> list[Request]:
        groups = self.groups()
        return [
            group.requests[i]
            for group in groups
            for i in group.step(most if len(groups) == 1 else 1)
        ]

    def take(self, request: Request) -> list[Hypothesis]:
        group, i = self.place_of_request.pop(request)
        return group.hypotheses(i)

    def cancel(self, requests: Collection[Request]) -> None:
        for request in requests:
            group, i = self.place_of_request.pop(request)
            group.search.drop_(i)

    def common_prefix(self, request: Request) -> list[int]:
        group, i = self.place_of_request[request]
        return common_prefix(
            [
                *group.search.tokens(i),
                *(tokens.tolist() for tokens, _ in group.search.hypotheses(i)),
            ]
        )


class ConstrainedGroup:
    """Requests of a pool that start together. banks: the pool's phrases."""

    def __init__(self, setup: SearchSetup, banks: Banks, requests: Sequence[Request]):
        self.setup, self.requests = setup, requests
        pool, sentences = requests[0].batch, [request.sentence for request in requests]
        setup.decoder.admit(pool.inputs(sentences))
        self.reader = setup.decoder.batch_reader(FIRST_POSITIONS + FIRST_STEPS * setup.spec.k)
        setup.decoder.set_aside()
        setup.stats.encoder_calls += 1
        limits = [pool.max_len[s] for s in sentences]
        lists = [request.nbest for request in requests]
        settings = self.settings(max(limits), banks.highest, max(lists))
        self.search = CompiledConstrainedSearch(settings, banks, sentences, limits, pool.bos, lists)
        self.most_rows = len(limits) * setup.spec.k
        self.returned = 0  # number of ended sentences that were returned

    def settings(self, limit: int, highest: int, nbest: int) -> ConstrainedSettings:
        """Return the settings for sentences with at most `limit` tokens before EOS, at most
        `highest` required ones, and an n-best list of `nbest`."""
        setup = self.setup
        known = self.setup.processors
        estimate = self.setup.strategies.stop.estimate
        assert estimate is not None
        return ConstrainedSettings(
            setup.spec.k,
            nbest,
            known.min_len,
            known.eos,
            known.pad,
            known.no_repeat_ngram,
            setup.strategies.softmax.temperature,
            estimate,
            *setup.spec.scoring.divisors(limit + highest + estimate.max_extra_tokens + 3),
        )

    @property
    def rows(self) -> int:
        """Number of rows of the sentences that have not ended."""
        return int(self.search.arrays["first"][self.search.struct.live])

    def step(self, most: int = 1) -> list[int]:
        """Add at most `most` tokens to every row. Return the places in the group of the sentences
        that have ended.

        Raises NotANumber if the model gives NaN.
        """
        search = self.search
        reader = self.reader
        state = self.search.struct
        stats = self.setup.stats
        while (result := search.run_steps(reader, reader.step, most)) == SearchResult.NO_ROOM:
            if not (search.lengthen_() or reader.reserve_rows_(self.most_rows, state.length + 1)):
                reader.enlarge_(range(reader.slots), state.used)
        stats.count_steps(*search.take_counts())
        if state.full:
            stats.drop(torch.tensor(state.dropped))
            state.dropped = 0
        if result == SearchResult.NOT_A_NUMBER:
            which = "one of the sentences" if state.live > 1 else "the sentence"
            raise NotANumber(f"the model gives NaN at target position {state.length} of {which}")
        ended = search.ended_sentences(self.returned)
        self.returned += len(ended)
        return ended

    def hypotheses(self, i: int) -> list[Hypothesis]:
        """Return the hypotheses of the i-th sentence, best first."""
        return n_best(self.search.hypotheses(i), self.setup.spec.scoring)

"""What a generator searches with: strategies (`setup_of`), a driver (`driver_of`),
and batches as pools.

The flags name the strategies, and --decoding the driver.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from fairseq_ext.core.errors import SentenceError, UsageError, counted
from fairseq_ext.model.protocol import Regroupable
from fairseq_ext.model.stock import UncachedBackend
from fairseq_ext.plugin.options import Context
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.constraints.placement import Driver, GlossaryPlacement
from fairseq_ext.search.constraints.sentence_end import EndsOfSources
from fairseq_ext.search.constraints.word_alignment import SEARCHED, ForcedDecoding, is_english
from fairseq_ext.search.outside import watched
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import Meets
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import SearchSetup, SearchSpec, Strategies
from fairseq_ext.search.registry import (
    DEFAULT,
    OUTSIDE,
    PRUNERS,
    STRATEGIES,
    Strategy,
    changed,
    choice,
    refills,
)
from fairseq_ext.search.strategies.stop.early import Shorter


def build(point: str, flags: Any, context: Context) -> Any:
    """The strategy that the flags name at an extension point."""
    return built(STRATEGIES[point][choice(flags, point)], flags, context)


def built(strategy: Strategy, flags: Any, context: Context) -> Any:
    """What a strategy's builder makes."""
    made = strategy.build(flags, context)
    return (
        made
        if made is None and strategy.point == "prune"
        else watched(strategy, made, context.eos, len(context.dictionary))
    )


def setup_of(
    flags: Any, context: Context, decoder: Regroupable, processors: LogitsProcessors
) -> SearchSetup:
    """The strategies of all extension points, and the decoder that they work with.

    Errors: UsageError for a decoder that cannot do so.
    """
    prune = [built(s, flags, context) for s in PRUNERS.values() if changed(flags, s)]
    select, stop, schedule, softmax = (
        build(point, flags, context) for point in ("select", "stop", "schedule", "softmax")
    )
    strategies = Strategies(
        select, select.ending(stop), schedule, softmax, [p for p in prune if p is not None]
    )
    if refills(flags):
        context.stats.refills = context.stats.refills or 0  # none so far
    return SearchSetup(
        reads_blocks(flags, context, decoder),
        context,
        strategies,
        processors,
        context.stats,
        refills(flags),
    )


def may_read_models(flags: Any) -> bool:
    """Whether a strategy may run the models' own modules: --lsh-normalise exact does, and those
    outside the package may."""
    return choice(flags, "softmax") != DEFAULT["softmax"] or OUTSIDE in os.environ


def reads_blocks(flags: Any, context: Context, decoder: Regroupable) -> Regroupable:
    """The decoder, or one that also reads several tokens a call where --decoding needs that.

    Errors: UsageError where a schedule does not allow it.
    """
    method = choice(flags, "decoding")
    if method == "beam" or decoder.name != "fairseq":
        return decoder
    if refills(flags):
        raise UsageError(
            f"--schedule {flags.schedule} with --decoding {method} needs rows of different lengths "
            "in one call, which only the transformer backend can read: leave one of the two out"
        )
    return UncachedBackend(context.models)


def driver_of(
    flags: Any,
    context: Context,
    setup: SearchSetup,
    meets: Callable[[Pool], Meets],
    decoded: Callable[[str], str],
    text: Callable[[], TargetText] | None,
) -> Driver:
    """The driver that --decoding names, and around it those that repeat a search which came to its
    length limit, place glossary terms, and write graphs. meets: how it is counted which constraints
    a hypothesis of a pool meets; decoded: target symbols as text; text: how the target side is
    read, where terms are placed."""
    make = build("decoding", flags, context)
    driver = make(setup)
    if [choice(flags, point) for point in ("select", "stop", "decoding")] == [
        "dba",
        "early",
        "beam",
    ]:
        driver = Shorter(driver, meets, setup.spec.min_len)
    if text is not None:
        beside, left_pad = setup.decoder.beside(), getattr(flags, "left_pad_source", True)
        reading = UncachedBackend(context.models) if beside is None else beside
        score = ForcedDecoding(
            reading,
            beside is not None,
            context.dictionary,
            left_pad,
            context.stats,
            setup.spec.temperature,
        )
        english = is_english(getattr(flags, "target_lang", None))
        reuses = choice(flags, "softmax") == DEFAULT["softmax"] and setup.processors.is_plain
        driver = GlossaryPlacement(
            make(free_setup(setup)), driver, score, setup.spec, text, meets, english, reuses
        )
    if flags.ddg_dir is None:
        return driver
    from fairseq_ext.search.parallel.graph import GraphWriter  # of few runs

    source = context.source_dictionary
    assert source is not None  # --ddg-dir needs source tokens
    return GraphWriter(
        driver, flags.ddg_dir, choice(flags, "decoding"), source, context.dictionary, decoded
    )


def free_setup(setup: SearchSetup) -> SearchSetup:
    """What makes the drafts of --glossary-placement align: the search without phrases, its lists
    long enough to choose from."""
    strategies = replace(
        setup.strategies,
        select=setup.strategies.select.unconstrained(),
        stop=setup.strategies.stop.unconstrained(),
    )
    return replace(
        setup,
        strategies=strategies,
        spec=replace(setup.spec, nbest=min(setup.spec.k, max(setup.spec.nbest, SEARCHED))),
    )


def source_of(sample: dict[str, Any]) -> Tensor:
    """The batch's source tokens (N, T), or features of speech (N, T, F); UsageError for a
    batch of something else."""
    if "src_tokens" not in sample["net_input"]:
        found = ", ".join(sample["net_input"])
        raise UsageError(
            f"this search reads source tokens (src_tokens), and the batch has {found}: use "
            "fairseq's task for such data"
        )
    return sample["net_input"]["src_tokens"]


class Pools:
    """Makes pools of batches.

    flags: ours; ordered: whether required phrases must come in the order given; source, target:
    dictionaries, the first of tasks that have one.
    """

    def __init__(
        self,
        flags: Any,
        spec: SearchSpec,
        ordered: bool,
        source: Dictionary | None,
        target: Dictionary,
    ):
        self.flags, self.spec, self.ordered = flags, spec, ordered
        self.source, self.target = source, target
        self.ends: EndsOfSources | None = None

    def pool(
        self, sample: dict[str, Any], prefix_tokens: Tensor | None, bos_token: int | None
    ) -> Pool:
        """The batch as a pool.

        prefix_tokens (N, P): forced first. Errors: SentenceError for a minimum length
        above a sentence's limit.
        """
        spec, net_input, source = self.spec, sample["net_input"], source_of(sample)
        # EOS counts
        length = source.ne(spec.pad).sum(1) if source.dim() == 2 else net_input["src_lengths"]
        lengths = length.tolist()
        max_len = [spec.limit(n) for n in lengths]
        for n, limit in zip(lengths, max_len, strict=True):
            if spec.min_len > limit:
                raise SentenceError(
                    f"--min-len {spec.min_len} is above the length limit {limit} of a sentence of "
                    f"{counted(n, 'token')}: raise --max-len-b or lower --min-len"
                )
        # an interactive command or the API gives no numbers
        found = sample.get("sentence_numbers", sample.get("id"))
        ids, numbered = (
            (found, True) if isinstance(found, Tensor) else (torch.arange(len(lengths)), False)
        )
        bos = spec.eos if bos_token is None else bos_token
        pool = Pool(
            net_input, length, max_len, ids, bos, prefix_tokens, pad=spec.pad, numbered=numbered
        )
        # else the stream would change results
        pool.alone = source.dim() == 3 and refills(self.flags)
        pool.draft_lines = sample.get("draft_lines")  # of an interactive session
        # a call of the API may have its own
        pool.seeds = sample.get("seeds", [spec.seed] * len(lengths))
        return pool

    def constrain_(
        self, pool: Pool, sample: dict[str, Any], packed: Tensor | None, text: TargetText
    ) -> None:
        """Give the pool its sentences' constraints: from the task, or packed as fairseq's commands
        pass them. text: how the target side is read."""
        given = sample.get("sentence_constraints")
        if given is None and packed is not None:
            given = [
                from_packed(row, self.target, number)
                for row, number in zip(packed, pool.ids.tolist(), strict=True)
            ]
        if given is None:
            return
        pool.constraints, pool.ordered = given, self.ordered
        pool.boundaries, pool.banned_in_any_case = (
            text.boundaries,
            str(self.flags.avoid_case) == "any",
        )
        if self.flags.constraint_end:
            pool.ends = self.ends_in(text)(
                [row[row != self.spec.pad].tolist() for row in pool.net_input["src_tokens"].cpu()]
            )
        pool.lead = None if pool.prefix is None else [len(pool.forced(i)) for i in range(len(pool))]
        if any(c.prefix for c in given):
            pool.force_behind_([c.prefix for c in given])
            pool.min_len_beside_prefix = True

    def ends_in(self, text: TargetText) -> EndsOfSources:
        """What translations keep to under --constraint-end."""
        if self.ends is None:
            segmenter = text.segmenter()
            self.ends = EndsOfSources(segmenter.dictionary, self.source, segmenter.bpe)
        return self.ends

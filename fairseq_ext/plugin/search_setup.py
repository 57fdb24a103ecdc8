"""The parts of a generator's search: strategies (`with_strategies`) and driver (`driver_of`), by
the flags."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.language_codes import two_letters
from fairseq_ext.model.protocol import Regroupable
from fairseq_ext.model.stock import FairseqBackend
from fairseq_ext.search.compiled import without_constraints
from fairseq_ext.search.constraints.drafts import SEARCHED
from fairseq_ext.search.constraints.forced_decoding import ForcedDecoding
from fairseq_ext.search.constraints.placement import Driver, GlossaryPlacement
from fairseq_ext.search.constraints.two_searches import TwoSearches
from fairseq_ext.search.outside import check_made, check_result
from fairseq_ext.search.parallel.driver import ParallelSearch
from fairseq_ext.search.phrases.segmenter import TargetText
from fairseq_ext.search.phrases.sentence import Meets
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup, Strategies
from fairseq_ext.search.registry import (
    OUTSIDE,
    Strategy,
    chosen,
    strategies_in_use,
)
from fairseq_ext.search.settings import DEFAULT, Settings
from fairseq_ext.search.strategies.decoding._parallel import ParallelFlags
from fairseq_ext.search.strategies.select.dba import DBAFlags
from fairseq_ext.search.strategies.stop.early import LengthRetry


def build(strategy: Strategy, setup: Setup) -> Any:
    """Build a strategy; None for a pruner whose flag the select strategy reads. Its type is checked
    if its file is outside the package (search/outside.py)."""
    made = strategy.build(setup.settings.get(strategy.flags), setup)
    if strategy.is_outside and not (made is None and strategy.point == "prune"):
        check_made(strategy, made)
    return made


def with_strategies(setup: Setup) -> Setup:
    """Return the setup with the strategies of all extension points, and a decoder that works with
    them.

    Errors: UsageError for a decoder that cannot.
    """
    named = [each for each in strategies_in_use(setup.settings) if each.point != "decoding"]
    built = [build(strategy, setup) for strategy in named]
    select, stop, schedule, softmax, *prune = built
    strategies = Strategies(
        select, select.ending(stop), schedule, softmax, [p for p in prune if p is not None]
    )
    checks: dict[int, Callable] = {
        id(made): partial(check_result, strategy, len(setup.dictionary))
        for strategy, made in zip(named, built, strict=True)
        if strategy.is_outside
    }
    if setup.refills:
        setup.stats.refills = setup.stats.refills or 0  # none so far
    return replace(setup, decoder=block_decoder(setup), strategies=strategies, checks=checks)


def may_read_models(settings: Settings) -> bool:
    """Return whether a strategy may read the models' own modules: the output layer does where it is
    not scored in full, and strategies outside the package may read any."""
    return settings.choice("softmax") != DEFAULT["softmax"] or OUTSIDE in os.environ


def block_decoder(setup: Setup) -> Regroupable:
    """Return the decoder, or one that also reads several tokens a call if --decoding needs that.

    Errors: UsageError where a schedule does not allow it.
    """
    method = setup.settings.choice("decoding")
    if method == "beam" or setup.decoder.name != "fairseq":
        return setup.decoder
    if setup.refills:
        raise UsageError(
            f"--schedule {setup.settings.choice('schedule')} with --decoding {method} needs "
            "rows of different lengths in one call, which only the transformer backend can read: "
            "leave one of the two out"
        )
    return FairseqBackend(setup.models, cached=False)


def driver_of(
    setup: Setup,
    meets: Callable[[Pool], Meets],
    decoded: Callable[[str], str],
    text: Callable[[], TargetText] | None,
) -> Driver:
    """Return the driver: a function of a pool and of a callback for each sentence that is final.

    --decoding names it (BeamSearch in search/scheduler.py by default). Flags wrap it in others:
    LengthRetry searches a sentence again that reached its length limit, TwoSearches searches it
    without its phrases too, GlossaryPlacement places terms, GraphWriter writes graphs.

    meets: returns the function that counts the constraints that a hypothesis of a pool meets;
    decoded: returns target symbols as text; text: returns the generator's `target_text`, None if no
    terms are placed.
    """
    settings = setup.settings
    make = partial(build, chosen(settings, "decoding"))
    strategies = [settings.choice(point) for point in ("select", "stop", "decoding")]
    compete = settings.get(DBAFlags).constraint_compete

    def search_with_phrases(of: Setup) -> Driver:
        is_cut_short = strategies == ["dba", "early", "beam"]
        search = make(of)
        constrained = LengthRetry(search, meets, of.min_len) if is_cut_short else search
        if strategies[0] != "dba" or compete != "search":
            return constrained
        return TwoSearches(search, constrained, meets, of.nbest)

    driver = search_with_phrases(setup)
    if text is not None:
        attending = setup.decoder.attending_copy()
        reading = FairseqBackend(setup.models, cached=False) if attending is None else attending
        score = ForcedDecoding(
            reading,
            attending is not None,
            setup.dictionary,
            settings.command.left_pad_source,
            setup.stats,
            setup.temperature,
        )
        pair = settings.command.languages
        reuses = settings.choice("softmax") == DEFAULT["softmax"] and setup.processors.is_plain
        driver = GlossaryPlacement(
            make(draft_setup(without_constraints(setup))),
            search_with_phrases(draft_setup(setup)),
            driver,
            score,
            setup,
            text,
            meets,
            (two_letters(pair.source or ""), two_letters(pair.target or "")),
            reuses,
        )
    graphs = settings.get(ParallelFlags).ddg_dir
    if graphs is None:
        return driver
    from fairseq_ext.search.parallel.graph import GraphWriter  # few runs need it

    source = setup.source_dictionary
    # --ddg-dir needs source tokens, and belongs to parallel decoding
    assert source is not None and isinstance(driver, ParallelSearch)
    return GraphWriter(
        driver, graphs, settings.choice("decoding"), source, setup.dictionary, decoded
    )


def draft_setup(setup: Setup) -> Setup:
    """Return the search for the drafts of --glossary-placement align, whose n-best lists are long
    enough to choose from."""
    return replace(setup, nbest=min(setup.k, max(setup.nbest, SEARCHED)))

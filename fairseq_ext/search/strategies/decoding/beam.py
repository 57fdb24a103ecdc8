"""Beam search (`--decoding beam`, the default), by the compiled searches and the loop."""

from __future__ import annotations

import torch

from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.finished import OnFinal
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.protocols import Setup
from fairseq_ext.search.registry import register
from fairseq_ext.search.scheduler import BeamSearch, Searchers, search_all
from fairseq_ext.search.settings import NoFlags


@register("decoding", "beam", neutral=({"decoding": "beam"},), paper="fairseq's own")
def build(flags: NoFlags, setup: Setup) -> BeamSearch:
    """Return the driver (pool, answer)."""
    return BeamSearch(setup, compiled(setup), LoopSearch)


def compiled(setup: Setup) -> list[CompiledSearch]:
    """Return the compiled search if it supports a generator's strategies, else nothing."""
    return [CompiledSearch(setup)] if CompiledSearch.supports(setup) else []


@torch.no_grad()
def beam_search(setup: Setup, pool: Pool, answer: OnFinal) -> None:
    """Run the driver of --decoding beam without the compiled searches: the definition."""
    search_all(
        setup.strategies.schedule,
        Searchers([LoopSearch(setup, pool)]),
        pool,
        setup.nbest,
        setup.stats,
        answer,
    )

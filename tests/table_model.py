"""Toy models for tests of the search: next-token probabilities straight from a table, in double
precision, without a network.

    # $ ends a sentence
    table = lattice({"": {"a": 0.45, "b": 0.55}, "a": {"$": 1.0}, "b": {"c": 0.5, "$": 0.5}})
    found = search([table], k=2, stop=stop_plug("count", 2))
    words(found.lists[0][0].tokens), found.step[0], found.rows[0]            # "b", and what it took

A table is a function from a prefix (a tuple of words) to the log-probabilities of all words.
`lattice` writes one down, `random_table` draws one. One sentence of the pool is one table; several
tables are decoded together, each with its own limit. Select and prune strategies that look at
`pool.constraints`, `pool.prefix` or `beam.aux` work here as they do on a model.
"""

from __future__ import annotations

import copy
import functools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from fairseq_ext.core.stats import Stats
from fairseq_ext.search.finished import Hypothesis, Scoring
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.processors import LogitsProcessors
from fairseq_ext.search.protocols import SearchSpec, Setup, Stop, Strategies
from fairseq_ext.search.registry import STRATEGIES
from fairseq_ext.search.settings import Settings
from fairseq_ext.search.strategies.decoding.beam import beam_search
from fairseq_ext.search.strategies.schedule import WholeBatch
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.softmax.full import FullSoftmax

BOS, PAD, EOS, UNK = range(4)  # fairseq's order; the words follow
FIRST_WORD = 4
RAW = Scoring(normalize=False)
Table = Callable[[tuple[int, ...]], list[float]]


def number(letter):
    """$ is EOS; a, b, c, ... are the words."""
    return EOS if letter == "$" else FIRST_WORD + ord(letter) - ord("a")


def words(tokens):
    """'a c d' for a hypothesis' tokens, EOS left out."""
    return " ".join(
        chr(ord("a") + t - FIRST_WORD) for t in torch.as_tensor(tokens).tolist() if t != EOS
    )


def lattice(arcs, vocabulary=8):
    """The table of these arcs, {prefix: {next word: probability}}; after any other prefix
    a sentence can only end."""
    known = {
        tuple(number(x) for x in prefix): {number(x): p for x, p in out.items()}
        for prefix, out in arcs.items()
    }

    def table(prefix):
        after = known.get(prefix, {EOS: 1.0})
        return [
            math.log(after[w]) if after.get(w) else -math.inf
            for w in range(FIRST_WORD + vocabulary)
        ]

    return table


def random_table(seed, possible=4, spread=1.5, ending=0.3, vocabulary=8):
    """Independent random probabilities of EOS and the first `possible` words after every
    prefix; EOS grows likelier by `ending` nats a token. Tables that are decoded together
    have the same vocabulary."""

    @functools.cache
    def table(prefix):
        draw = random.Random(f"{seed} {prefix}")
        logits = {w: draw.gauss(0, spread) for w in range(FIRST_WORD, FIRST_WORD + possible)}
        logits[EOS] = draw.gauss(0, spread) - 1.5 + ending * len(prefix)
        norm = math.log(sum(math.exp(x) for x in logits.values()))
        return [
            logits[w] - norm if w in logits else -math.inf for w in range(FIRST_WORD + vocabulary)
        ]

    return table


class TableDecoder:
    """The loop's Decoder over tables, one a sentence of the pool.

    Its features are the log-probabilities themselves.
    """

    joins = joins_any_step = True
    dtype = torch.float64

    def __init__(self, tables):
        self.tables = tables
        self.live = torch.zeros(0, dtype=torch.long)  # (S,) pool number of each live sentence
        self.sentence = torch.zeros(0, dtype=torch.long)  # (n,) pool number of each row

    @property
    def rows(self):
        return self.sentence.numel()

    def admit(self, inputs):
        self.live = self.sentence = inputs["src_tokens"][:, 0] - FIRST_WORD

    def step(self, tokens):
        assert tokens.size(0) == self.rows
        rows = zip(self.sentence.tolist(), tokens[:, 1:].tolist(), strict=True)
        return [
            torch.tensor([self.tables[s](tuple(prefix)) for s, prefix in rows], dtype=self.dtype)
        ]

    def log_probs(self, features, temperature):
        return features[0] if temperature == 1.0 else (features[0] / temperature).log_softmax(-1)

    def select(self, row, sentence, width, sentence_of_row):
        """As the Protocol says, and what the loop says of the new rows must be true."""
        self.live = self.live if sentence is None else self.live[sentence]
        self.sentence = self.sentence[row]
        assert torch.equal(self.sentence, self.live[sentence_of_row]), (
            "a row has moved to another sentence"
        )
        if width > 0:
            assert self.rows == width * self.live.numel()
        elif width < 0:
            assert int(sentence_of_row.bincount().max()) == -width

    def set_aside(self):
        group = self.live, self.sentence
        self.live = self.sentence = torch.zeros(0, dtype=torch.long)
        return group

    def resume(self, group):
        self.live, self.sentence = group

    def join(self, group):
        self.live, self.sentence = (
            torch.cat(both) for both in zip((self.live, self.sentence), group, strict=True)
        )

    def part(self, row, sentence, width, sentence_of_row):
        return self.live[sentence], self.sentence[row]

    def attention(self):
        return None


@dataclass
class Found:
    """What a search found and what it took, by sentence."""

    lists: list[list[Hypothesis]]
    step: list[int]  # decoder calls until the sentence was final
    rows: list[int]  # summed over those calls
    stats: Stats


@dataclass
class Watched(Stop):
    """A stop plug that notes when each sentence ends and how many rows it had."""

    plug: Any
    step: list[int]
    rows: list[int] = field(default_factory=list)

    @property
    def variable(self):  # a plug may know it only once sentences start
        return self.plug.variable

    def __post_init__(self):
        self.start, self.answers = self.plug.start, self.plug.answers

    def __call__(self, candidates, beam, pool, finished, at_limit):
        decision = self.plug(candidates, beam, pool, finished, at_limit)
        for place in beam.sentence_of_row().tolist():
            self.rows[beam.live[place]] += 1
        for s, final in zip(beam.live, decision.final.tolist(), strict=True):
            if final:
                self.step[s] = beam.longest + 1
        return decision


def called_through(plug, call):
    """The same plug, whose calls go to `call`."""
    other = copy.copy(plug)
    other.__class__ = type(type(plug).__name__, (type(plug),), {"__call__": staticmethod(call)})
    return other


def spec(k, nbest=1, scoring=RAW):
    """The settings of a search over tables; the pool has the limits."""
    limits = dict(max_len_a=0, max_len_b=200, max_len=200, min_len=1)
    return SearchSpec(
        k, nbest, PAD, UNK, EOS, **limits, temperature=1.0, unk_penalty=0.0, scoring=scoring
    )


def stop_plug(name, k, scoring=RAW, stats=None, nbest=1, **flags):
    """What `--stop NAME` and these flags build."""
    strategy, settings = STRATEGIES["stop"][name], Settings(flags)
    stats = stats or Stats()
    setup = SimpleNamespace(**vars(spec(k, nbest, scoring)), stats=stats, settings=settings)
    return strategy.build(settings.get(strategy.flags), setup)


def search(
    tables,
    k,
    stop,
    max_len=10,
    source=5,
    nbest=1,
    scoring=RAW,
    select=None,
    prune=(),
    stats=None,
    min_len=1,
    constraints=None,
    boundaries=None,
    banned_in_any_case=False,
    ends=None,
    ordered=False,
    prefix=None,
    softmax=None,
):
    """Decode one sentence a table.

    max_len: target tokens before EOS; source: source tokens without EOS (one value, or one each);
    constraints: SentenceConstraints, one each; boundaries, banned_in_any_case, ends: as the pool
    has them. A stop plug that counts wants its own `stats` here.
    """
    each = len(tables)
    limits = [max_len] * each if isinstance(max_len, int) else list(max_len)
    lengths = [source] * each if isinstance(source, int) else list(source)
    # (N, 1) a sentence's only token says which one it is
    names = {"src_tokens": FIRST_WORD + torch.arange(each)[:, None]}
    pool = Pool(names, torch.tensor(lengths) + 1, limits, torch.arange(each), EOS, prefix)
    pool.constraints, pool.ordered, pool.boundaries = constraints, ordered, boundaries
    pool.banned_in_any_case = banned_in_any_case
    pool.ends, pool.seeds = ends, [5] * each
    watched = Watched(stop, [0] * each, [0] * each)
    strategies = Strategies(
        select or TopK(k), watched, WholeBatch(), softmax or FullSoftmax(), list(prune)
    )
    stats = stats if stats is not None else Stats()
    lists = [[] for _ in tables]
    setup = Setup(
        **vars(spec(k, nbest, scoring)),
        settings=Settings(),
        decoder=TableDecoder(tables),
        models=[],
        dictionary=None,
        source_dictionary=None,
        processors=LogitsProcessors(PAD, UNK, EOS, min_len=min_len),
        stats=stats,
        strategies=strategies,
    )

    def keep(sentence, found):
        lists[sentence] = found
        if found and found[0].ending is not None:
            stop.count_ending(found[0].ending)

    beam_search(setup, pool, keep)
    return Found(lists, watched.step, watched.rows, stats)

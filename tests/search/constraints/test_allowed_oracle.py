"""With a beam as wide as the set of allowed outputs, the n-best list is the ranking of the whole
set by the model: alone, and with required and banned phrases and a prefix.

The expected ranking is made by teacher forcing of every output, and by plain comparison of tokens.
fairseq makes no beam wider than the vocabulary, which has 6 to 12 tokens here; this limit is
lifted.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from models import DEVICE, batch, build, dictionary, forced, generators, requests_of, run
from required_phrases import prefix_of, required_phrases
from search.test_compiled import both
from sizes import part_of

from fairseq_ext import UsageError
from fairseq_ext.core.errors import SentenceError
from fairseq_ext.kernels.library import library
from fairseq_ext.plugin import generator
from fairseq_ext.plugin.options import search_spec
from fairseq_ext.search.constraints import allowed_product
from fairseq_ext.search.constraints.allowed_product import Demands, Matcher, product
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints, met
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, minimal

CASES, BY_DEFAULT = 5_000, 30


@dataclass
class Case:
    """A random model, source and set of outputs, with phrases over the same words."""

    words: int
    outputs: list[tuple[int, ...]]
    constraints: SentenceConstraints
    seed: int
    min_len: int
    max_len: int

    @property
    def expected(self) -> list[tuple[int, ...]]:
        """The outputs that meet all."""
        return [
            each
            for each in self.outputs
            if all(met(each, self.constraints, ordered=False))
            and not any(has(each, banned) for banned in self.constraints.banned)
            and each[: len(self.constraints.beginning)] == self.constraints.beginning
            and self.min_len <= len(each) <= self.max_len
        ]


def has(output: tuple[int, ...], phrase: tuple[int, ...]) -> bool:
    """Whether an output has a phrase as neighbours."""
    n = len(phrase)
    return any(output[i : i + n] == phrase for i in range(len(output) - n + 1))


def automaton(outputs: list[tuple[int, ...]], vocabulary: int) -> TokenAutomaton:
    flat = np.array([token for each in outputs for token in each])
    return minimal(flat, np.array(list(map(len, outputs))), vocabulary)


def drawn_case(seed: int) -> Case:
    chance = random.Random(seed)
    words = chance.randint(2, 8)  # a vocabulary of 6 to 12
    first, last = dictionary(words).nspecial, dictionary(words).nspecial + words - 1
    size = chance.choice([1, 2, 5, 20, 60, 60, 300] if seed % 10 == 0 else [1, 2, 5, 20, 40])
    outputs = list(
        {
            tuple(chance.randint(first, last) for _ in range(chance.randint(1, 6)))
            for _ in range(size)
        }
    )

    def phrases(most: int, long: int = 3) -> list[tuple[int, ...]]:
        found = []
        for _ in range(chance.randint(0, most)):
            of = chance.choice(outputs)
            start = chance.randrange(len(of))
            found.append(of[start : start + chance.randint(1, long)])
        return found

    required, banned, prefix = [], [], ()
    kind = seed % 4
    if kind in (1, 3):
        required = phrases(2)
    if kind in (2, 3):
        banned = [phrase for phrase in phrases(2) if phrase not in required]
    if kind == 3 or chance.random() < 0.2:
        of = chance.choice(outputs)
        prefix = of[: chance.randint(1, len(of))]
    constraints = SentenceConstraints(
        required_phrases(tuple((phrase,) for phrase in required), tuple(map(str, required))),
        banned={each: str(each) for each in banned},
        prefix=prefix_of(prefix),
        allowed=automaton(outputs, first + words),
    )
    min_len = chance.choice([1, 1, 1, 2, 3])
    return Case(words, outputs, constraints, seed, min_len, chance.choice([12, 12, 12, 4]))


def ranked(model, sample: dict, outputs: list[tuple[int, ...]]) -> list[tuple[float, tuple]]:
    """The outputs by the mean log-probability of their tokens and EOS, best first."""
    eos = 2
    width = max(map(len, outputs), default=0)
    rows = [[eos, *each, *[eos] * (width - len(each))] for each in outputs]
    log_probs = forced(model, sample, rows) if rows else torch.zeros(0)
    found = []
    for each, values in zip(outputs, log_probs, strict=True):
        tokens = torch.tensor([*each, eos], device=DEVICE)
        of_tokens = values[: len(tokens)].gather(1, tokens[:, None])
        found.append((float(of_tokens.mean()), (*each, eos)))
    return sorted(found, reverse=True)


def last_step(model, sample: dict, case: Case, n: int) -> int:
    """The step in which a search that ranks the whole set can prove its n best outputs: no prefix
    that goes on can beat them with the mean over its longest output."""
    eos, outputs = 2, replace(case, max_len=99).expected
    width = max(map(len, outputs))
    rows = [[eos, *each, *[eos] * (width - len(each))] for each in outputs]
    totals = []
    for each, values in zip(outputs, forced(model, sample, rows), strict=True):
        tokens = torch.tensor([*each, eos], device=DEVICE)
        totals.append(values[: len(tokens)].gather(1, tokens[:, None]).cumsum(0)[:, 0].tolist())
    for t in range(1, case.max_len + 1):
        done = sorted(
            (of[-1] / len(of) for of in totals if len(of) <= min(t, case.max_len + 1)), reverse=True
        )
        reach = -float("inf")
        for each, of in zip(outputs, totals, strict=True):
            if t <= len(each) and any(len(x) <= case.max_len for x in outputs if x[:t] == each[:t]):
                most = max(len(other) for other in outputs if other[:t] == each[:t])
                reach = max(reach, of[t - 1] / (min(most, case.max_len) + 1))
        if (done[n - 1] if len(done) >= n else -float("inf")) >= reach:
            return t
    return case.max_len + 1


def check(seed: int) -> None:
    case = drawn_case(seed)
    # in single precision the search is compiled
    dtype, tolerance = (torch.float32, 1e-5) if seed // 4 % 2 else (torch.float64, 1e-9)
    model = build("transformer", seed % 50, dtype, words=case.words)
    sample = batch([1 + seed % 5], seed, words=case.words)
    expected = ranked(model, sample, case.expected)
    k = len(case.outputs)
    proves = seed % 3 == 0  # --stop optimal
    n = 1 + seed % k if proves else k
    generation = {
        "beam": k,
        "nbest": n,
        "max_len_b": case.max_len,
        "min_len": case.min_len,
    }

    def wide(settings, stock):
        return replace(search_spec(settings, stock), k=k, nbest=n)

    with patch.object(generator, "search_spec", wide):
        strategy = {"stop": "optimal"} if proves else {}
        ours = generators([model], strategy, words=case.words, **generation).ours
    given = {**sample, "requests": requests_of([case.constraints])}
    if not expected:
        with pytest.raises(UsageError) as refused:
            run(ours, given)
        assert "allowed output" in str(refused.value)
        return
    got = run(ours, given)[0][:n]
    assert [tuple(h["tokens"].tolist()) for h in got] == [tokens for _, tokens in expected[:n]]
    if proves:
        saved = case.max_len + 1 - last_step(model, sample, case, n)
        assert ours.stats.as_dict()["saved"]["steps"] == saved
    for h, (score, _) in zip(got, expected[:n], strict=True):
        assert float(h["score"]) == pytest.approx(
            score, abs=1e-9 if dtype == torch.float64 else 1e-5
        )


@pytest.mark.parametrize("part", range(10))
def test_a_beam_as_wide_as_the_set_ranks_the_whole_set(part):
    for number in part_of(CASES // 10, BY_DEFAULT // 10):
        check(part * (CASES // 10) + number)


@pytest.mark.skipif(library() is None, reason="there is no compiled library")
@pytest.mark.usefixtures("on_the_cpu")
def test_a_narrow_beam_has_no_row_that_cannot_end_in_time():
    """Compiled, it finds what the loop does, the length limit being that of some outputs."""
    for seed in part_of(1000, 60):
        case = drawn_case(seed)
        limit = min(map(len, case.outputs)) + seed % 2
        k = 1 + seed % 3
        generation = {"beam": k, "nbest": k, "max_len_b": limit, "sampling": seed % 5 == 0}
        model = build("transformer", seed % 50, torch.float32, words=case.words)
        ours = generators([model], words=case.words, **generation).ours
        constraints = replace(EMPTY, allowed=case.constraints.allowed)
        sample = batch([1 + seed % 5], seed, words=case.words)
        given = {**sample, "requests": requests_of([constraints])}
        assert both(ours, given, counted=())


def test_a_product_has_room_for_what_matters_of_a_large_vocabulary(monkeypatch):
    """Of 256,000 tokens 24 are in the 12 phrases; all others are of one kind."""
    phrases = [(2 * i, 2 * i + 1) for i in range(2, 14)]
    demands = Demands(required_phrases([[phrase] for phrase in phrases]))
    matcher = Matcher(demands, Compiler(), 256_000)
    tokens = np.arange(256_000)
    after = matcher.advance(np.zeros_like(tokens), tokens)
    assert set(np.flatnonzero(after != after[-1])) == {phrase[0] for phrase in phrases}
    assert matcher.next.shape[1] < 30
    rows = [sum(random.sample(phrases, 12), ()) for _ in range(50)]
    found = product(automaton(rows, 256_000), demands, None, 256_000)
    assert found is not None and all(map(found.accepts, rows))
    monkeypatch.setattr(allowed_product, "MOST", 10_000)
    with pytest.raises(SentenceError, match="take too much memory: require fewer phrases"):
        product(automaton(rows, 256_000), demands, None, 256_000)

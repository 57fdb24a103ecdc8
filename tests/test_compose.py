"""Strategies two by two: each pair keeps its properties, or is refused in one sentence.

A strategy declares its examples and what it needs and denies (registry.py); which pairs are refused
follows from that. Every pair runs on the same random models and batch.
"""

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from models import (
    alone,
    batch,
    build,
    dictionary,
    generators,
    is_search_of_fairseqs,
    refused,
    run,
    same,
    separated,
    settings,
    with_files,
)
from required_phrases import required_phrases
from sizes import covering, drawn, part_of

from fairseq_ext import UsageError
from fairseq_ext.search.candidates import Candidates, best_of_sentences
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met
from fairseq_ext.search.phrases.token_automaton import TokenAutomaton, minimal
from fairseq_ext.search.protocols import Select
from fairseq_ext.search.registry import STRATEGIES, flags_of
from fairseq_ext.search.strategies.softmax.screened import Screened


def complete(got: list[list[dict]]) -> None:
    """Every sentence has an answer that ends in EOS, best first."""
    assert len(got) == len(LENGTHS)
    for nbest in got:
        assert nbest and all(h["tokens"][-1] == dictionary().eos() for h in nbest)
        assert [float(h["score"]) for h in nbest] == sorted(
            (float(h["score"]) for h in nbest), reverse=True
        )


def meets(got: list[list[dict]]) -> None:
    """Every hypothesis holds its sentence's phrases."""
    for nbest, constraints in zip(got, CONSTRAINTS, strict=True):
        for h in nbest:
            assert all(met(h["tokens"].tolist(), constraints, ordered=False))


def phrases(*each: tuple[int, ...]) -> SentenceConstraints:
    return SentenceConstraints(required_phrases(tuple((p,) for p in each), tuple(map(str, each))))


LENGTHS = [7, 5, 3, 1, 0]
CONSTRAINTS = [phrases((9, 10)), phrases(), phrases((8,), (11, 8)), phrases((12,)), phrases()]
RAW = {"unnormalized": True}
EXAMPLES = settings("example") | {
    "no flag of ours": {},
    "fairseq's modules": {"decoder_backend": "fairseq"},
}
TAKE_CONSTRAINTS = {s.name for s in STRATEGIES["select"].values() if s.constrained}


def pairs() -> list[tuple[str, str]]:
    """All pairs but those that set one flag to two values, which no command can."""
    agree = {
        (a, b)
        for a in EXAMPLES
        for b in EXAMPLES
        if all(EXAMPLES[b].get(f, v) == v for f, v in EXAMPLES[a].items())
    }
    return [pair for pair in combinations_with_replacement(EXAMPLES, 2) if pair in agree]


def decode(
    generator, sample: dict, constraints: list[SentenceConstraints] | None
) -> list[list[dict]]:
    return run(
        generator,
        sample if constraints is None else {**sample, "sentence_constraints": constraints},
    )


@drawn(25)
@pytest.mark.parametrize("first, second", pairs())
def test_pair_keeps_its_properties_or_is_refused(first, second, tmp_path):
    """What the declared needs do not refuse must work."""
    flags, needed = separated(with_files(EXAMPLES[first] | EXAMPLES[second], tmp_path))
    generation = {"beam": 4, "max_len_b": 10, **needed}
    models = [build("transformer", seed=2)]
    if refused(flags, generation) is not None or is_unused(flags):
        with pytest.raises(UsageError):
            generators(models, flags, **generation)
        return
    ours, sample = generators(models, flags, **generation).ours, batch(LENGTHS)
    constraints = CONSTRAINTS if flags.get("select") in TAKE_CONSTRAINTS else None
    got = decode(ours, sample, constraints)
    complete(got)
    if constraints is not None and not ours.strategies.select.soft:
        meets(got)
    for i in part_of(len(got), 3):  # no pair lets a sentence depend on those next to it
        nbest = got[i]
        [single] = decode(ours, alone(sample, i), constraints and constraints[i : i + 1])
        assert single[0]["tokens"].tolist() == nbest[0]["tokens"].tolist()
        assert float(single[0]["score"]) == pytest.approx(float(nbest[0]["score"]), abs=1e-9)


ALLOWED = [(5, 6), (5, 7, 7), (9, 10), (9, 10, 11, 12), (13,), (8, 11, 8), (12, 5), (20, 21, 22)]


def automaton(outputs: list[tuple[int, ...]]) -> TokenAutomaton:
    flat = np.array([token for each in outputs for token in each])
    return minimal(flat, np.array(list(map(len, outputs))), len(dictionary()))


@drawn(12)
@pytest.mark.parametrize("name", EXAMPLES)
def test_every_setting_keeps_to_the_allowed_outputs_or_is_refused(name, tmp_path):
    """What the registry does not refuse must work, alone and with required phrases."""
    flags, needed = separated(with_files(EXAMPLES[name], tmp_path))
    flags, generation = flags | {"allowed_file": "set.txt"}, {"beam": 4, "max_len_b": 10, **needed}
    models, outputs = [build("transformer", seed=2)], automaton(ALLOWED)
    if (said := refused(flags, generation)) is not None:
        with pytest.raises(UsageError, match="--allowed-file") as error:
            generators(models, flags, **generation)
        assert str(error.value) == said
        return
    ours, sample = generators(models, flags, **generation).ours, batch(LENGTHS)
    free = SentenceConstraints(allowed=outputs)
    given = [free, SentenceConstraints(), free, free, free]
    if flags.get("select") in TAKE_CONSTRAINTS:
        given[0] = replace(CONSTRAINTS[0], allowed=outputs)
    got = decode(ours, sample, given)
    complete(got)
    for i, nbest in enumerate(got):
        found = [tuple(h["tokens"].tolist()[:-1]) for h in nbest]
        assert i == 1 or set(found) <= set(ALLOWED)
        if given[i].any_of and not ours.strategies.select.soft:
            assert all((9, 10) == each[:2] for each in found)
        [single] = decode(ours, alone(sample, i), given[i : i + 1])
        assert single[0]["tokens"].tolist() == nbest[0]["tokens"].tolist()


def is_unused(flags: dict) -> bool:
    """Whether one of the two sets a flag whose strategy the other replaces (--patience
    next to --stop first)."""
    stop = flags.get("stop", "count")
    return any(
        name not in flags_of(STRATEGIES["stop"][stop])
        for name in flags
        if name in flags_of(STRATEGIES["stop"]["count"])
    )


MUST_WORK = [
    ("select", "stop"),
    ("select", "schedule"),
    ("select", "softmax"),
    ("stop", "schedule"),
    ("stop", "softmax"),
    ("schedule", "softmax"),
    ("schedule", "decoding"),
]


@pytest.mark.parametrize("first, second", MUST_WORK)
def test_no_two_plug_points_rule_each_other_out(first, second):
    """Needs could refuse everything, and the test above would pass: at these points nearly all
    pairs of beam searches work."""
    beams = [e for e in EXAMPLES.values() if not is_search_of_fairseqs(e)]
    ours = [[e for e in beams if point in e] for point in (first, second)]
    works = [refused(*separated(a | b)) is None for a in ours[0] for b in ours[1]]
    assert len(works) >= 3
    assert sum(works) >= 0.8 * len(works)


@covering(1)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("generation", [RAW, {}, {"lenpen": 0.5}], ids=str)
@pytest.mark.parametrize("select", ["topk", "dba", "gbs", "cbs"])
def test_certified_answers_equal_those_of_a_search_that_never_stops_early(select, generation, seed):
    """--stop optimal, with and without --prune-bound, against --stop count that waits for more
    hypotheses than max_len allows."""
    models, sample = [build("transformer", seed)], batch(LENGTHS, seed)
    constraints = None if select == "topk" else CONSTRAINTS
    stops: list[dict] = [
        {"patience": 1000},
        {"stop": "optimal"},
        {"stop": "optimal", "prune_bound": True},
    ]
    full, certified, pruned = (
        decode(
            generators(
                models, {"select": select, **stop}, beam=4, nbest=2, max_len_b=10, **generation
            ).ours,
            sample,
            constraints,
        )
        for stop in stops
    )
    for expected, *others in zip(full, certified, pruned, strict=True):
        for got in others:
            assert [h["tokens"].tolist() for h in got[:2]] == [
                h["tokens"].tolist() for h in expected[:2]
            ]


SOFTMAXES = {"full": {}} | {
    flags["softmax"]: flags
    for flags in reversed(settings("example").values())
    if "softmax" in flags
}
OF_BEAM = (
    "select",
    "stop",
    "constraint_end",
    "patience",
    "prune_children",
    "prune_finished",
    "prune_threshold",
)
NEUTRAL = [flags for flags in settings("neutral").values() if set(flags) & set(OF_BEAM)]


class OfAllWords(Select):
    """--select topk as a stranger writes it, from `dense`."""

    def __call__(self, beam, log_probs, pool):
        every = log_probs.dense()
        return Candidates(
            *best_of_sentences(8, beam, every, torch.arange(every.size(1)).expand_as(every)), 4
        )


@drawn(2)
@pytest.mark.parametrize("softmax", SOFTMAXES)
def test_a_neutral_setting_next_to_a_softmax_is_that_softmax_alone(softmax, tmp_path, monkeypatch):
    """Columns of shortlists are no words and inexact scores no scores, for any reader.

    In float32, which --softmax screened reads.
    """
    monkeypatch.setattr(Screened, "is_faster", lambda *_: True)
    models, sample = (
        [build("transformer", 2, torch.float32, words=300, peak=2.0)],
        batch(LENGTHS, words=300),
    )

    def generator(flags):
        ours = with_files(SOFTMAXES[softmax] | flags, tmp_path)
        return generators(models, ours, words=300, beam=4, nbest=2, max_len_b=8).ours

    expected = run(generator({}), sample)
    neutral = [flags for flags in NEUTRAL if not is_search_of_fairseqs(flags)]
    allowed = [flags for flags in neutral if refused(SOFTMAXES[softmax] | flags, {}) is None]
    assert len(allowed) >= len(neutral) - 1  # bonus raises what screened has ruled out
    for flags in allowed:
        same(expected, run(generator(flags), sample), 1e-4)
    stranger = generator({})
    stranger.strategies.select = OfAllWords()
    same(expected, run(stranger, sample), 1e-4)

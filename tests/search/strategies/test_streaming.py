"""--schedule stream changes no result: it equals the whole batch and one sentence at a time;
bad flags are refused."""

import pytest
import torch
from models import alone, batch, build, dictionary, forced, generators, near_ties, run, same
from sizes import covering, drawn
from streams import APART, JOINED, LENGTHS, LOOSE, PRUNED, expansions, ours, stream
from table_model import EOS

from fairseq_ext import UsageError
from fairseq_ext.search import scheduler
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.strategies.schedule import Stream


@covering(1)
@pytest.mark.parametrize("threshold", [1 / 12, 1 / 6, 1 / 4, 1 / 2])
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize(
    "variable", [{}, PRUNED, PRUNED | {"stop": "ranked"}], ids=["fixed", "pruned", "ranked"]
)
@pytest.mark.parametrize(("seed", "width"), [(1, 2), (2, 5), (3, 12)])
def test_equals_the_whole_batch_and_one_sentence_at_a_time(
    threshold, order, backend, variable, seed, width
):
    sample = batch(LENGTHS, seed)
    fixed = ours("transformer", seed, decoder_backend=backend, **variable)
    streamed = ours(
        "transformer",
        seed,
        decoder_backend=backend,
        **variable,
        **stream(width, threshold, stream_order=order),
    )
    expected = run(fixed, sample)
    same(expected, run(streamed, sample), 1e-9)
    assert expansions(streamed) == expansions(fixed) and streamed.stats.refills > 0
    if threshold == 1 / 6:
        for i in range(len(LENGTHS)):
            same(run(fixed, alone(sample, i)), expected[i : i + 1], 1e-9)


@drawn(2)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [None, 6, 11])
@pytest.mark.parametrize("architecture", JOINED + APART)
def test_equals_the_whole_batch_for_every_architecture(architecture, order, rows):
    for variable in ({}, PRUNED, PRUNED | {"stop": "ranked"}):
        fixed = ours(architecture, decoder_backend="fairseq", **variable)
        streamed = ours(
            architecture,
            decoder_backend="fairseq",
            **variable,
            **stream(stream_order=order, stream_rows=rows),
        )
        sample = batch(LENGTHS, 4)
        same(run(fixed, sample), run(streamed, sample), LOOSE.get(architecture, 1e-9))
        assert expansions(streamed) == expansions(fixed)


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [None, 7])
@pytest.mark.parametrize(
    "names",
    [("transformer", "transformer-tied"), ("transformer", "lstm"), ("lstm", "fconv")],
    ids=str,
)
def test_ensembles_equal_the_whole_batch(names, order, rows):
    models = [build(name, i + 1) for i, name in enumerate(names)]
    sample = batch(LENGTHS, 5)
    fixed = generators(models, {}, beam=4, max_len_b=12).ours
    streamed = generators(
        models, stream(stream_order=order, stream_rows=rows), beam=4, max_len_b=12
    ).ours
    same(run(fixed, sample), run(streamed, sample), 1e-5)


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize(
    "flags",
    [
        {"min_len": 4},
        {"no_repeat_ngram_size": 1},
        {"no_repeat_ngram_size": 2},
        {"unnormalized": True},
        {"lenpen": 0.6},
        {"beam": 1},
        {"beam": 40},
        {"stop": "optimal", "unnormalized": True, "length_reward": 0.4},
        {"stop": "optimal", "prune_bound": True},
        {
            "stop": "optimal",
            "unnormalized": True,
            "length_reward": 0.2,
            "length_reward_unbounded": True,
        },
        {"stop": "first"},
        {"stop": "shrink"},
        {"patience": 2},
    ],
    ids=str,
)
def test_equals_the_whole_batch_under_other_flags(flags, order):
    sample = batch(LENGTHS, 6)
    same(
        run(ours(**flags), sample),
        run(ours(**flags, **stream(5, stream_order=order)), sample),
        1e-9,
    )


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("architecture", ["transformer", "lstm"])
def test_prefixes_and_late_starts(architecture, order):
    d = dictionary()
    prefixes = torch.tensor(
        [[7, 8, 9], [9, d.pad(), d.pad()], [5, 5, d.pad()], [7, d.eos(), d.pad()]]
    )[torch.arange(len(LENGTHS)) % 4]
    sample = batch(LENGTHS, 7)
    for flags in ({}, {"min_len": 5}):
        expected = run(ours(architecture, **flags), sample, prefix_tokens=prefixes)
        got = run(
            ours(architecture, **flags, **stream(5, stream_order=order)),
            sample,
            prefix_tokens=prefixes,
        )
        same(expected, got, LOOSE.get(architecture, 1e-9))


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
def test_alignments_are_those_of_the_whole_batch(backend, order):
    models, sample = [build("transformer")], batch(LENGTHS, 8)
    each = []
    for flags in ({}, stream(4, stream_order=order)):
        flags = {"decoder_backend": backend, **flags}
        each.append(
            run(
                generators(models, flags, beam=3, max_len_b=12, print_alignment="hard").ours, sample
            )
        )
    for expected, got in zip(*each, strict=True):
        assert [h["alignment"] for h in got] == [h["alignment"] for h in expected]
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b["attention"], a["attention"], rtol=0, atol=1e-9)


@drawn(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
def test_single_precision_agrees_but_for_near_ties(order):
    """What is listed as a near-tie must be a hypothesis with its true score, and rare."""
    ties = hypotheses = 0
    for seed in range(3, 9):
        model, sample = build("transformer", seed, torch.float32), batch(LENGTHS, seed)
        fixed, got = (
            run(generators([model], flags, beam=4, max_len_b=12).ours, sample)
            for flags in ({}, stream(stream_order=order))
        )
        hypotheses += sum(map(len, fixed))
        found = near_ties(fixed, got)
        ties += len(found)
        for i, rank in [*found, (0, 0)]:
            tokens = got[i][rank]["tokens"].tolist()
            scores = forced(model, alone(sample, i), [[EOS, *tokens[:-1]]])[0]
            true = sum(float(scores[place, token]) for place, token in enumerate(tokens)) / len(
                tokens
            )
            assert float(got[i][rank]["score"]) == pytest.approx(true, abs=1e-4), (seed, i, rank)
    assert ties <= 0.02 * hypotheses


def test_a_difference_that_is_no_near_tie_fails():
    sample = batch([4, 2], 3)
    expected = run(ours(), sample)

    def changed(rank: int, **values) -> list[list[dict]]:
        return [
            expected[0],
            [{**h, **values} if i == rank else h for i, h in enumerate(expected[1])],
        ]

    first, second = expected[1][:2]
    assert abs(float(first["score"]) - float(second["score"])) > 1e-3
    assert near_ties(expected, expected) == []
    assert near_ties(
        expected, changed(0, tokens=second["tokens"], score=first["score"] + 5e-5)
    ) == [(1, 0)]
    wrong = [
        # another hypothesis, as far off as it is
        changed(0, tokens=second["tokens"], score=second["score"]),
        changed(0, score=first["score"] + 1e-3),
        changed(1, positional_scores=second["positional_scores"] + 1e-3),
        [expected[0], expected[1][:-1]],
        [expected[0], [second, first, *expected[1][2:]]],
    ]
    for got in wrong:
        with pytest.raises(AssertionError):
            near_ties(expected, got)


# ---- which sentences are decoded


class Watched:
    """A decoder that notes the lengths of its live sentences and those of each call."""

    def __init__(self, monkeypatch):
        self.calls: list[tuple[list[int], list[int]]] = []
        step_all = CompiledSearch.step_all

        def watched(search, most):
            live = [s.struct.length for s in search.sentences.values() if s.is_live]
            self.calls.append((live, [s.struct.length for s in search.batch.live]))
            return step_all(search, most)

        monkeypatch.setattr(CompiledSearch, "step_all", watched)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
def test_where_not_all_rows_fit_fifo_takes_the_longest_and_shortest_the_shortest(
    order, monkeypatch
):
    """Appendix A.2: starting with the beam of the most tokens, up to the capacity."""
    watched = Watched(monkeypatch)
    model = [build("transformer", 2, torch.float32)]
    flags = stream(stream_order=order, stream_rows=9, threshold=0.9)
    fixed, streamed = (generators(model, f, beam=4, max_len_b=12).ours for f in ({}, flags))
    sample = batch(LENGTHS, 3)
    expected = run(fixed, sample)
    watched.calls.clear()
    same(expected, run(streamed, sample), 1e-4)
    chosen = 0
    for live, taken in watched.calls:
        if len(taken) < len(live):
            left = list(live)
            for length in taken:
                left.remove(length)
            if len(set(live)) > 1:
                chosen += 1
                assert min(taken) >= max(left) if order == "fifo" else max(taken) <= min(left)
    assert chosen > 3


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
def test_a_flush_finishes_all_live_sentences_before_others_start(backend, monkeypatch):
    """Footnote 3: at most N start between two moments without a live sentence."""
    started: list[tuple[int, int]] = []
    start = scheduler.Scheduler.start

    def watched(self, live, rows):
        found = start(self, live, rows)
        started.append((live, len(found)))
        return found

    monkeypatch.setattr(scheduler.Scheduler, "start", watched)
    sample = batch(LENGTHS, 4)
    expected = run(ours(decoder_backend=backend), sample)
    most = {}
    flushed = 3
    for flush in (None, flushed):
        started.clear()
        flags = stream(4, 0.5, stream_flush=flush)
        same(expected, run(ours(decoder_backend=backend, **flags), sample), 1e-9)
        assert sum(n for _, n in started) == len(LENGTHS)
        since = most[flush] = 0
        for live, n in started:
            since = n if not live else since + n
            most[flush] = max(most[flush], since)
    assert most[flushed] <= flushed < most[None]


# ---- bad input


def test_references_are_not_scored_in_one_batch_of_the_whole_pool():
    """A stream's batches have thousands of sentences, which nothing but a search
    takes a few at a time."""
    with pytest.raises(
        UsageError, match="--score-reference .* so --schedule stream has nothing to do"
    ):
        ours(**stream(), score_reference=True)
    pair = generators([build("transformer", 1)], {}, score_reference=True)
    assert type(pair.ours) is type(pair.stock)


def test_schedule_of_algorithm_1():
    """At most epsilon n are left: n (1 - epsilon) start."""
    plan = Stream(12, 1 / 6, True, None)
    assert plan(100, 0, 0, 1) == 10 and plan(90, 2, 9, 1) == 10 and plan(7, 2, 9, 1) == 7
    assert plan(90, 3, 9, 1) == plan(0, 0, 0, 1) == 0
    full = Stream(12, 1.0, False, None, steps=8, fills=True)
    assert (full(100, 0, 0, 1), full(100, 5, 9, 8), full(100, 5, 9, 7), full(100, 12, 60, 99)) == (
        12,
        7,
        0,
        0,
    )

"""Streaming and variable width: nothing changes by the stream; pruning and the finishing rule against brute force."""

import gc
import math
import random
import weakref

import models as made
import pytest
import torch
from models import alone, batch, build, dictionary, forced, generators, near_ties, run, same
from table_model import EOS, called_through, lattice, random_table, search, stop_plug, words

from fairseq_ext import UsageError
from fairseq_ext.decoders.transformer.encoder import FastEncoder
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.strategies.prune.threshold import PruneThreshold
from fairseq_ext.strategies.schedule.stream import Stream
from fairseq_ext.strategies.select.topk import TopK
from fairseq_ext.strategies.stop.ranked import Ranked

LENGTHS = [9, 8, 7, 7, 6, 5, 4, 4, 3, 2, 1, 1, 0]  # longest first, as fairseq's batches are
STOCK = ("unnormalized", "min_len", "no_repeat_ngram_size", "lenpen", "score_reference")
LOOSE = {"lstm": 1e-5, "fconv": 1e-5}
JOINED = ["transformer", "transformer-tied", "bart", "lstm"]  # groups can become one
APART = ["fconv", "lightconv"]  # they cannot
PRUNED = {"prune_threshold": 1.0, "prune_children": 3}


def ours(architecture: str = "transformer", seed: int = 2, **flags):
    stock = {name: flags.pop(name) for name in list(flags) if name in STOCK}
    beam = flags.pop("beam", 4)
    return generators([build(architecture, seed)], flags, **({"beam": beam, "max_len_b": 12} | stock)).ours


def stream(width: int = 4, threshold: float = 1 / 6, **flags) -> dict:
    return {"schedule": "stream", "stream_width": width, "refill_threshold": threshold, **flags}


def expansions(generator) -> int:
    return generator.stats.as_dict()["expansions"]


# ---- the stream changes nothing


@pytest.mark.parametrize("threshold", [1 / 12, 1 / 6, 1 / 4, 1 / 2])
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("variable", [{}, PRUNED, PRUNED | {"stop": "ranked"}], ids=["fixed", "pruned", "ranked"])
def test_equals_the_whole_batch_and_one_sentence_at_a_time(threshold, order, backend, variable):
    for seed, width in ((1, 2), (2, 5), (3, 12)):
        sample = batch(LENGTHS, seed)
        fixed = ours("transformer", seed, decoder_backend=backend, **variable)
        streamed = ours("transformer", seed, decoder_backend=backend, **variable, **stream(width, threshold, stream_order=order))
        expected = run(fixed, sample)
        same(expected, run(streamed, sample), 1e-9)
        assert expansions(streamed) == expansions(fixed) and streamed.stats.refills > 0
        if threshold == 1 / 6:
            for i in range(len(LENGTHS)):
                same(run(fixed, alone(sample, i)), expected[i : i + 1], 1e-9)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [None, 6, 11])
@pytest.mark.parametrize("architecture", JOINED + APART)
def test_equals_the_whole_batch_for_every_architecture(architecture, order, rows):
    for variable in ({}, PRUNED, PRUNED | {"stop": "ranked"}):
        fixed = ours(architecture, decoder_backend="fairseq", **variable)
        streamed = ours(architecture, decoder_backend="fairseq", **variable, **stream(stream_order=order, stream_rows=rows))
        sample = batch(LENGTHS, 4)
        same(run(fixed, sample), run(streamed, sample), LOOSE.get(architecture, 1e-9))
        assert expansions(streamed) == expansions(fixed)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [None, 7])
@pytest.mark.parametrize("names", [("transformer", "transformer-tied"), ("transformer", "lstm"), ("lstm", "fconv")], ids=str)
def test_ensembles_equal_the_whole_batch(names, order, rows):
    models = [build(name, i + 1) for i, name in enumerate(names)]
    sample = batch(LENGTHS, 5)
    fixed = generators(models, {}, beam=4, max_len_b=12).ours
    streamed = generators(models, stream(stream_order=order, stream_rows=rows), beam=4, max_len_b=12).ours
    same(run(fixed, sample), run(streamed, sample), 1e-5)


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
        {"stop": "optimal", "unnormalized": True, "length_reward": 0.2, "length_reward_unbounded": True},
        {"stop": "first"},
        {"stop": "shrink"},
        {"patience": 2},
    ],
    ids=str,
)
def test_equals_the_whole_batch_under_other_flags(flags, order):
    sample = batch(LENGTHS, 6)
    same(run(ours(**flags), sample), run(ours(**flags, **stream(5, stream_order=order)), sample), 1e-9)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("architecture", ["transformer", "lstm"])
def test_prefixes_and_late_starts(architecture, order):
    d = dictionary()
    prefixes = torch.tensor([[7, 8, 9], [9, d.pad(), d.pad()], [5, 5, d.pad()], [7, d.eos(), d.pad()]])[torch.arange(len(LENGTHS)) % 4]
    sample = batch(LENGTHS, 7)
    for flags in ({}, {"min_len": 5}):
        expected = run(ours(architecture, **flags), sample, prefix_tokens=prefixes)
        got = run(ours(architecture, **flags, **stream(5, stream_order=order)), sample, prefix_tokens=prefixes)
        same(expected, got, LOOSE.get(architecture, 1e-9))


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
def test_alignments_are_those_of_the_whole_batch(backend, order):
    models, sample = [build("transformer")], batch(LENGTHS, 8)
    each = []
    for flags in ({}, stream(4, stream_order=order)):
        flags = {"decoder_backend": backend, **flags}
        each.append(run(generators(models, flags, beam=3, max_len_b=12, print_alignment="hard").ours, sample))
    for expected, got in zip(*each, strict=True):
        assert [h["alignment"] for h in got] == [h["alignment"] for h in expected]
        for a, b in zip(expected, got, strict=True):
            torch.testing.assert_close(b["attention"], a["attention"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("limit", [{"width": 4}, {"width": 9, "threshold": 0.9}, {"stream_rows": 11, "threshold": 0.8}], ids=str)
def test_single_precision_agrees_within_rounding(order, limit):
    """The compiled step, whose groups lie in slots of one KV cache."""
    for seed, variable in ((3, {}), (4, PRUNED), (5, PRUNED | {"stop": "ranked"})):
        model, sample = build("transformer", seed, torch.float32), batch(LENGTHS + LENGTHS, seed)
        fixed = generators([model], variable, beam=4, max_len_b=12).ours
        streamed = generators([model], variable | stream(stream_order=order, **limit), beam=4, max_len_b=12).ours
        same(run(fixed, sample), run(streamed, sample), 1e-4)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
def test_single_precision_agrees_but_for_near_ties(order):
    """What is listed as a near-tie must be a hypothesis with its true score, and rare."""
    ties = hypotheses = 0
    for seed in range(3, 9):
        model, sample = build("transformer", seed, torch.float32), batch(LENGTHS, seed)
        fixed, got = (
            run(generators([model], flags, beam=4, max_len_b=12).ours, sample) for flags in ({}, stream(stream_order=order))
        )
        hypotheses += sum(map(len, fixed))
        found = near_ties(fixed, got)
        ties += len(found)
        for i, rank in [*found, (0, 0)]:
            tokens = got[i][rank]["tokens"].tolist()
            scores = forced(model, alone(sample, i), [[EOS, *tokens[:-1]]])[0]
            true = sum(float(scores[place, token]) for place, token in enumerate(tokens)) / len(tokens)
            assert float(got[i][rank]["score"]) == pytest.approx(true, abs=1e-4), (seed, i, rank)
    assert ties <= 0.02 * hypotheses


def test_a_difference_that_is_no_near_tie_fails():
    sample = batch([4, 2], 3)
    expected = run(ours(), sample)

    def changed(rank: int, **values) -> list[list[dict]]:
        return [expected[0], [{**h, **values} if i == rank else h for i, h in enumerate(expected[1])]]

    first, second = expected[1][:2]
    assert abs(float(first["score"]) - float(second["score"])) > 1e-3
    assert near_ties(expected, expected) == []
    assert near_ties(expected, changed(0, tokens=second["tokens"], score=first["score"] + 5e-5)) == [(1, 0)]
    wrong = [
        changed(0, tokens=second["tokens"], score=second["score"]),  # another hypothesis, as far off as it is
        changed(0, score=first["score"] + 1e-3),
        changed(1, positional_scores=second["positional_scores"] + 1e-3),
        [expected[0], expected[1][:-1]],
        [expected[0], [second, first, *expected[1][2:]]],
    ]
    for got in wrong:
        with pytest.raises(AssertionError):
            near_ties(expected, got)


def test_single_precision_ensembles_agree_within_rounding():
    models = [build("transformer", 1, torch.float32), build("transformer-tied", 2, torch.float32)]
    sample = batch(LENGTHS, 5)
    for variable in ({}, PRUNED):
        expected = run(generators(models, variable, beam=4, max_len_b=12).ours, sample)
        for rows in (None, 7):
            streamed = generators(models, variable | stream(5, 1 / 2, stream_order="fifo", stream_rows=rows), beam=4, max_len_b=12).ours
            same(expected, run(streamed, sample), 1e-4)


# ---- what is done when


class Watch(Schedule):
    """A schedule and a select plug that take notes."""

    def __init__(self, generator):
        self.steps: dict[int, int] = {}  # tokens of each live sentence
        self.lines: list[tuple[int, list[int]]] = []  # at each step: fewest tokens of any live sentence, and those of the sentences stepped
        self.rows: list[int] = []
        self.select, self.schedule = generator.plugs.select, generator.plugs.schedule
        self.level, self.most_rows = self.schedule.level, self.schedule.most_rows
        generator.plugs.select, generator.plugs.schedule = called_through(self.select, self.look), self

    def __call__(self, pool, started, live, rows):
        new = self.schedule(pool, started, live, rows)
        if new and self.most_rows is None:
            assert live <= self.schedule.threshold * self.schedule.width and live + len(new) <= self.schedule.width
        self.steps |= dict.fromkeys(new, 0)
        self.live = live + len(new)
        return new

    def look(self, beam, log_probs, pool):
        self.rows.append(beam.rows)
        self.lines.append((min(self.steps.values()), beam.steps()))
        for s, step in zip(beam.live, beam.steps(), strict=True):
            assert self.steps[s] == step
            self.steps[s] += 1
        return self.select(beam, log_probs, pool)


def watched(**flags) -> Watch:
    generator = ours(**flags)
    watch = Watch(generator)
    stop = generator.plugs.stop

    def forget(candidates, beam, pool, finished, at_limit):
        decision = stop(candidates, beam, pool, finished, at_limit)
        for s, final in zip(beam.live, decision.final.tolist(), strict=True):
            if final:
                del watch.steps[s]
        return decision

    generator.plugs.stop = called_through(stop, forget)
    run(generator, batch(LENGTHS, 9))
    return watch


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("flags", [stream(3, 1 / 12), stream(3, 1 / 2, stream_order="fifo"), stream(stream_rows=9)], ids=str)
def test_every_sentence_is_encoded_once(backend, flags, monkeypatch):
    """What the decoder is asked to admit, and the sources that reach the encoder."""
    generator, sample = ours(decoder_backend=backend, **flags), batch(LENGTHS, 9)
    admitted: list[list[int]] = []
    encoded: list[list[int]] = []

    def note(owner, name: str, take) -> None:
        known = getattr(owner, name)

        def noted(*args):
            take(*args)
            return known(*args)

        monkeypatch.setattr(owner, name, noted)

    def without_padding(tokens) -> list[list[int]]:
        return [row[row != dictionary().pad()].tolist() for row in tokens]

    note(generator.decoder, "admit", lambda inputs: admitted.extend(without_padding(inputs["src_tokens"])))
    note(FastEncoder, "__call__", lambda self, tokens: encoded.extend(without_padding(tokens)))
    encoder = generator.model.models[0].encoder
    note(encoder, "forward_torchscript", lambda inputs: encoded.extend(without_padding(inputs["src_tokens"])))
    run(generator, sample)
    assert admitted == encoded == without_padding(sample["net_input"]["src_tokens"])
    assert generator.stats.encoder_calls > 1


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("rows", [None, 9])
def test_shortest_advances_no_longer_sentence_before_the_shorter_have_caught_up(backend, rows):
    watch = watched(decoder_backend=backend, **stream(5, 1 / 2, stream_rows=rows))
    assert all(set(steps) == {fewest} for fewest, steps in watch.lines)


def test_fifo_advances_all_sentences_where_the_decoder_can():
    watch = watched(**stream(5, 1 / 2, stream_order="fifo"))
    assert any(len(set(steps)) > 1 for _, steps in watch.lines)
    again = watched(decoder_backend="fairseq", **stream(5, 1 / 2, stream_order="fifo"))
    assert all(len(set(steps)) == 1 for _, steps in again.lines)


@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [4, 6, 11, 100])
def test_no_decoder_call_has_more_rows_than_allowed(rows, order):
    watch = watched(**stream(stream_rows=rows, stream_order=order))
    assert max(watch.rows) <= rows


def test_lines_of_an_interactive_session_are_not_kept():
    """fairseq's tasks remember the batches of every data set they were asked for, and so its sentences."""
    task = made.task("translation_ext")

    def ask(dataset) -> None:
        list(task.get_batch_iterator(dataset=dataset, max_sentences=2).next_epoch_itr(shuffle=False))

    typed = task.build_dataset_for_inference([torch.tensor([5, 6, 2])], [3])
    ask(typed)
    seen = weakref.ref(typed)
    del typed
    gc.collect()
    assert seen() is None
    task.datasets["test"] = task.build_dataset_for_inference([torch.tensor([5, 6, 2])], [3])
    ask(task.datasets["test"])
    assert list(task.dataset_to_epoch_iter) == [task.datasets["test"]]


# ---- pruning and the finishing rule, by brute force


def brute_force(table, k: int, delta: float, M: int, ranked: bool, max_len: int) -> list[tuple[tuple[int, ...], float]]:
    """The paper's variable-width search over one table: (tokens, sum of log-probabilities) of each answer."""
    beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]  # live and, when ranked, finished
    answers: list[tuple[tuple[int, ...], float]] = []
    ended: list[float] = []
    for step in range(max_len + 1):
        waiting = [(score, row) for score, row in beam if row[-1:] == (EOS,)]
        candidates = []
        for score, row in beam:
            if row[-1:] == (EOS,):
                continue
            values = table(row)
            children = [w for w in range(len(values)) if values[w] > -math.inf and (step or w != EOS)]
            if step == max_len:
                children = [w for w in children if w == EOS]
            children.sort(key=lambda w: -values[w])
            candidates += [(score + values[w], (*row, w)) for w in children[:M]]
        candidates.sort(key=lambda c: -c[0])
        if not ranked:
            candidates = candidates[: 2 * k]
        best = max([*(score for score, _ in candidates), *ended], default=-math.inf)
        dropped = [i for i, (score, _) in enumerate(candidates) if score < best - delta]
        if ranked:
            kept = [c for i, c in enumerate(candidates) if i not in dropped]
            beam = sorted(waiting + kept, key=lambda c: -c[0])[: k - len(answers)]
            ended += [score for score, row in beam if row[-1] == EOS and (score, row) not in waiting]
            while beam and beam[0][1][-1] == EOS:
                answers.append((beam[0][1], beam[0][0]))
                del beam[0]
            if len(answers) == k or not any(row[-1] != EOS for _, row in beam):
                answers += [(row, score) for score, row in beam if row[-1] == EOS]
                break
        else:
            for i, (score, row) in enumerate(candidates[:k]):
                if row[-1] == EOS and i not in dropped and len(answers) < k:
                    answers.append((row, score))
                    ended.append(score)
            beam = [c for i, c in enumerate(candidates) if i not in dropped and c[1][-1] != EOS][:k]
            if len(answers) == k or not beam:
                break
    return sorted(answers, key=lambda a: -a[1])


@pytest.mark.parametrize("ranked", [False, True], ids=["count", "ranked"])
@pytest.mark.parametrize("delta", [0.0, 0.5, 1.5, 4.0, math.inf])
@pytest.mark.parametrize("k, M", [(1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (8, 3)])
def test_variable_width_equals_brute_force(k, M, delta, ranked):
    draw = random.Random(f"{k} {M} {delta} {ranked}")
    tables = [random_table(draw.randrange(10**6), possible=5, ending=draw.choice([0.1, 0.6])) for _ in range(12)]
    limits = [draw.choice([2, 5, 9]) for _ in tables]
    stop = Ranked(k, EOS) if ranked else stop_plug("count", k)
    select = TopK(k, M if M < k else None)
    found = search(tables, k, stop, limits, nbest=k, select=select, prune=[PruneThreshold(delta)]).lists
    for table, limit, hypotheses in zip(tables, limits, found, strict=True):
        expected = brute_force(table, k, delta, M if M < k else 99, ranked, limit)
        assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx([score for _, score in expected], abs=1e-5)


def test_the_finishing_rule_lets_better_ones_push_a_finished_one_off():
    """With k = 2, `b$` (0.22) ends below `a c` (0.48), both of whose children (0.24) are then better."""
    table = lattice({"": {"a": 0.6, "b": 0.4}, "b": {"$": 0.55, "c": 0.45}, "a": {"c": 0.8, "d": 0.2}, "ac": {"e": 0.5, "f": 0.5}})
    ranked = search([table], 2, Ranked(2, EOS), 5, nbest=2).lists[0]
    counted = search([table], 2, stop_plug("count", 2), 5, nbest=2).lists[0]
    assert {words(h.tokens) for h in ranked} == {"a c e", "a c f"}
    assert "b" in {words(h.tokens) for h in counted}


def test_no_limit_on_width_and_children_gives_the_fixed_search():
    sample = batch(LENGTHS, 1)
    for k in (1, 3, 5):
        expected = run(ours(beam=k), sample)
        same(expected, run(ours(beam=k, prune_threshold=math.inf, prune_children=k, **stream(4)), sample))


def test_delta_of_zero_is_greedy():
    sample = batch(LENGTHS, 2)
    greedy = run(ours(beam=1), sample)
    thin = run(ours(beam=5, prune_threshold=0.0), sample)
    assert [n[0]["tokens"].tolist() for n in thin] == [n[0]["tokens"].tolist() for n in greedy]


# ---- bad input


@pytest.mark.parametrize(
    "flags, said",
    [
        (stream(0), "--stream-width 0 is no number of sentences"),
        (stream(4, 1.0), "--refill-threshold 1.0 is not a share"),
        (stream(4, -0.5), "--refill-threshold -0.5 is not a share"),
        (stream(stream_rows=3), "--stream-rows 3 is below the beam of 4"),
        ({"prune_threshold": -1.0}, "--prune-threshold -1.0 is not a distance"),
        ({"prune_threshold": math.nan}, "--prune-threshold is not a number"),
        ({"prune_children": 0}, "--prune-children 0 would leave no hypothesis"),
        ({"stop": "ranked", "select": "gbs"}, "--stop ranked compares all hypotheses"),
        ({"stream_width": 5}, "--stream-width belongs to --schedule stream"),
        ({"resume": True}, "--resume goes on with a results file and none is named"),
    ],
    ids=str,
)
def test_bad_flags_are_refused_in_one_sentence(flags, said):
    with pytest.raises(UsageError, match=said):
        ours(**flags)


def test_references_are_not_scored_in_one_batch_of_the_whole_pool():
    """A stream's batches have thousands of sentences, which nothing but a search takes a few at a time."""
    with pytest.raises(UsageError, match="--score-reference .* so --schedule stream has nothing to do"):
        ours(**stream(), score_reference=True)
    pair = generators([build("transformer", 1)], {}, score_reference=True)
    assert type(pair.ours) is type(pair.stock)


def test_schedule_of_algorithm_1():
    """At most epsilon n are left: n (1 - epsilon) start."""
    from types import SimpleNamespace

    pool = SimpleNamespace(queue=lambda started: range(started, 100))
    plan = Stream(12, 1 / 6, True, None)
    assert list(plan(pool, 0, 0, 0)) == list(range(10))
    assert not plan(pool, 10, 3, 9) and list(plan(pool, 10, 2, 9)) == list(range(10, 20))
    assert not plan(pool, 100, 0, 0)

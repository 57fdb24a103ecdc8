"""What a stream does when, and beams of variable width against brute force. That it changes no
result: test_random_flags.py."""

import gc
import math
import random
import weakref
from collections import Counter

import models as made
import pytest
import torch
from models import batch, build, dictionary, generators, run, same
from sizes import covering, drawn
from table_model import EOS, called_through, random_table, search, stop_plug

from fairseq_ext.model.transformer.encoder import FastEncoder
from fairseq_ext.search import scheduler
from fairseq_ext.search.compiled import CompiledSearch
from fairseq_ext.search.protocols import Schedule
from fairseq_ext.search.strategies.prune import PruneFinished, PruneThreshold
from fairseq_ext.search.strategies.schedule import Stream
from fairseq_ext.search.strategies.select.topk import TopK

LENGTHS = [9, 8, 7, 7, 6, 5, 4, 4, 3, 2, 1, 1, 0]  # longest first, as fairseq's batches are


def ours(**flags):
    return generators([build("transformer", 2)], flags, beam=4, max_len_b=12).ours


def stream(width: int = 4, threshold: float = 1 / 6, **flags) -> dict:
    return {"schedule": "stream", "stream_width": width, "refill_threshold": threshold, **flags}


# ---- which sentences are decoded


@pytest.mark.parametrize("order", ["shortest", "fifo"])
def test_where_not_all_rows_fit_fifo_takes_the_longest_and_shortest_the_shortest(
    order, monkeypatch
):
    """Appendix A.2: starting with the beam of the most tokens, up to the capacity."""
    calls = []  # lengths of live sentences, and of those taken
    step_all = CompiledSearch.step_all

    def watched(search, most):
        live = [s.struct.length for s in search.sentences.values() if s.is_live]
        calls.append((live, [s.struct.length for s in search.batch.live]))
        return step_all(search, most)

    model, sample = [build("transformer", 2, torch.float32)], batch(LENGTHS, 3)
    flags = stream(stream_order=order, stream_rows=9, threshold=0.9)
    fixed, streamed = (generators(model, f, beam=4, max_len_b=12).ours for f in ({}, flags))
    expected = run(fixed, sample)
    monkeypatch.setattr(CompiledSearch, "step_all", watched)
    same(expected, run(streamed, sample), 1e-4)
    chosen = 0
    for live, taken in calls:
        left = [*(Counter(live) - Counter(taken)).elements()]
        if left and len(set(live)) > 1:
            chosen += 1
            assert min(taken) >= max(left) if order == "fifo" else max(taken) <= min(left)
    assert chosen > 3


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
def test_a_flush_finishes_all_live_sentences_before_others_start(backend, monkeypatch):
    """Footnote 3: at most N start between two moments without a live sentence."""
    started = []
    start = scheduler.Scheduler.start

    def watched(self, live, rows):
        found = start(self, live, rows)
        started.append((live, len(found)))
        return found

    monkeypatch.setattr(scheduler.Scheduler, "start", watched)
    sample, most = batch(LENGTHS, 4), {}
    expected = run(ours(decoder_backend=backend), sample)
    for flush in (None, 3):
        started.clear()
        flags = stream(4, 0.5, stream_flush=flush)
        same(expected, run(ours(decoder_backend=backend, **flags), sample), 1e-9)
        assert sum(n for _, n in started) == len(LENGTHS)
        since = [0]
        for live, n in started:
            since.append(since[-1] + n if live else n)
        most[flush] = max(since)
    assert most[3] <= 3 < most[None]


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


class Watch(Schedule):
    """A schedule, and a select and a stop plug, that take notes while a sample is searched."""

    def __init__(self, **flags):
        generator = ours(**flags)
        self.steps: dict[int, int] = {}  # tokens of each live sentence
        # at each step: fewest tokens of any live sentence, and those of the sentences stepped
        self.lines, self.rows = [], []
        self.started = self.noted = 0
        plugs = generator.strategies
        self.select, self.stop, self.schedule = plugs.select, plugs.stop, plugs.schedule
        self.level, self.most_rows = self.schedule.level, self.schedule.most_rows
        plugs.select = called_through(self.select, self.look)
        plugs.stop = called_through(self.stop, self.forget)
        plugs.schedule = self
        run(generator, batch(LENGTHS, 9))

    def __call__(self, waiting, live, rows, since):
        new, plan = self.schedule(waiting, live, rows, since), self.schedule
        if new and self.most_rows is None:
            assert live <= plan.threshold * plan.width and live + new <= plan.width
        self.started = max(self.started, len(LENGTHS) - waiting + new)
        return new

    def look(self, beam, log_probs, pool):
        self.steps |= dict.fromkeys(range(self.noted, self.started), 0)
        self.noted = self.started
        self.rows.append(beam.rows)
        self.lines.append((min(self.steps.values()), beam.steps()))
        for s, step in zip(beam.live, beam.steps(), strict=True):
            assert self.steps[s] == step
            self.steps[s] += 1
        return self.select(beam, log_probs, pool)

    def forget(self, candidates, beam, *given):
        decision = self.stop(candidates, beam, *given)
        for s, final in zip(beam.live, decision.final.tolist(), strict=True):
            if final:
                del self.steps[s]
        return decision


@covering(1)
@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize(
    "flags",
    [stream(3, 1 / 12), stream(3, 1 / 2, stream_order="fifo"), stream(stream_rows=9)],
    ids=str,
)
def test_every_sentence_is_encoded_once(backend, flags, monkeypatch):
    """What the decoder must admit, and the sources that reach the encoder."""
    generator, sample = ours(decoder_backend=backend, **flags), batch(LENGTHS, 9)
    admitted, encoded = [], []
    encoder = generator.model.models[0].encoder

    def note(owner, name: str, noted: list) -> None:
        known = getattr(owner, name)

        def noting(*args):
            tokens = args[-1] if torch.is_tensor(args[-1]) else args[-1]["src_tokens"]
            noted.extend(row[row != dictionary().pad()].tolist() for row in tokens)
            return known(*args)

        monkeypatch.setattr(owner, name, noting)

    note(generator.decoder, "admit", admitted)
    note(FastEncoder, "__call__", encoded)
    note(encoder, "forward_torchscript", encoded)
    run(generator, sample)
    sources = sample["net_input"]["src_tokens"]
    assert admitted == encoded == [row[row != dictionary().pad()].tolist() for row in sources]
    assert generator.stats.encoder_calls > 1


@pytest.mark.parametrize("backend", ["transformer", "fairseq"])
@pytest.mark.parametrize("rows", [None, 9])
def test_shortest_advances_no_longer_sentence_before_the_shorter_have_caught_up(backend, rows):
    watch = Watch(decoder_backend=backend, **stream(5, 1 / 2, stream_rows=rows))
    assert all(set(steps) == {fewest} for fewest, steps in watch.lines)


def test_fifo_advances_all_sentences_where_the_decoder_can():
    watch = Watch(**stream(5, 1 / 2, stream_order="fifo"))
    assert any(len(set(steps)) > 1 for _, steps in watch.lines)
    again = Watch(decoder_backend="fairseq", **stream(5, 1 / 2, stream_order="fifo"))
    assert all(len(set(steps)) == 1 for _, steps in again.lines)


@covering(1)
@pytest.mark.parametrize("order", ["shortest", "fifo"])
@pytest.mark.parametrize("rows", [4, 6, 11, 100])
def test_no_decoder_call_has_more_rows_than_allowed(rows, order):
    watch = Watch(**stream(stream_rows=rows, stream_order=order))
    assert max(watch.rows) <= rows


def test_lines_of_an_interactive_session_are_not_kept():
    """fairseq's tasks remember the batches of every data set that they were given,
    and so its sentences."""
    task, kept = made.task("translation_ext"), None
    for name in (None, "test"):
        dataset = task.build_dataset_for_inference([torch.tensor([5, 6, 2])], [3])
        if name:
            kept = task.datasets[name] = dataset
        list(
            task.get_batch_iterator(dataset=dataset, max_sentences=2).next_epoch_itr(shuffle=False)
        )
        seen = weakref.ref(dataset)
        del dataset
        gc.collect()
        assert seen() is kept
    assert list(task.dataset_to_epoch_iter) == [kept]


# ---- beams of variable width


def brute_force(
    table, k: int, delta: float, M: int, rule: str, max_len: int
) -> list[tuple[tuple[int, ...], float]]:
    """The paper's variable-width search over one table: (tokens, sum of log-probabilities)
    of each answer. rule: ranked, count, or finished: what is worse than the best finished
    hypothesis by more than delta goes."""
    ranked = rule == "ranked"
    beam = [(0.0, ())]  # scores and rows, live and, when ranked, finished
    answers, ended = [], []

    def ends(candidate) -> bool:
        return candidate[1][-1:] == (EOS,)

    for step in range(max_len + 1):
        waiting, candidates = list(filter(ends, beam)), []
        for score, row in (each for each in beam if not ends(each)):
            values = table(row)
            children = [
                w
                for w in range(len(values))
                if values[w] > -math.inf and (w != EOS or step) and (w == EOS or step < max_len)
            ]
            children.sort(key=lambda w: -values[w])
            candidates += [(score + values[w], (*row, w)) for w in children[:M]]
        candidates.sort(key=lambda c: -c[0])
        if not ranked:
            candidates = candidates[: 2 * k]
        rivals = [] if rule == "finished" else [score for score, _ in candidates]
        best = max([*rivals, *ended], default=-math.inf)
        kept = [c for c in candidates if c[0] >= best - delta]
        if ranked:
            beam = sorted(waiting + kept, key=lambda c: -c[0])[: k - len(answers)]
            ended += [c[0] for c in beam if ends(c) and c not in waiting]
            while beam and ends(beam[0]):
                answers.append(beam.pop(0)[::-1])
            if len(answers) == k or all(map(ends, beam)):
                answers += [c[::-1] for c in beam]
                break
        else:
            for c in candidates[:k]:
                if ends(c) and c in kept and len(answers) < k:
                    answers.append(c[::-1])
                    ended.append(c[0])
            beam = [c for c in kept if not ends(c)][:k]
            if len(answers) == k or not beam:
                break
    return sorted(answers, key=lambda a: -a[1])


PRUNE = {"count": PruneThreshold, "ranked": PruneThreshold, "finished": PruneFinished}


@drawn(18)
@pytest.mark.parametrize("rule", PRUNE)
@pytest.mark.parametrize("delta", [0.0, 0.5, 1.5, 4.0, 20.0, math.inf])
@pytest.mark.parametrize("k, M", [(1, 1), (2, 1), (3, 2), (4, 3), (5, 5), (8, 3)])
def test_variable_width_equals_brute_force(k, M, delta, rule):
    draw = random.Random(f"{k} {M} {delta} {rule}")
    tables = [
        random_table(draw.randrange(10**6), possible=5, ending=draw.choice([0.1, 0.6]))
        for _ in range(12)
    ]
    limits = [draw.choice([2, 5, 9]) for _ in tables]
    stop = stop_plug("ranked" if rule == "ranked" else "count", k)
    select = TopK(k, M if M < k else None)
    found = search(
        tables, k, stop, limits, nbest=k, select=select, prune=[PRUNE[rule](delta)]
    ).lists
    for table, limit, hypotheses in zip(tables, limits, found, strict=True):
        expected = brute_force(table, k, delta, M if M < k else 99, rule, limit)
        assert [tuple(h.tokens.tolist()) for h in hypotheses] == [tokens for tokens, _ in expected]
        assert [h.score for h in hypotheses] == pytest.approx(
            [score for _, score in expected], abs=1e-5
        )

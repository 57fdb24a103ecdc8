"""The compiled search (search/compiled.py) gives the loop's hypotheses to the last bit, with its
counts: a sentence in one call, batches and streams, with and without required phrases.

`COMPILED_CASES=9000 COMPILED_SEED=7 pytest tests/search/test_compiled.py` tries others.
"""

import functools
import os
import random
from collections import Counter

import numpy as np
import pytest
import torch
from models import batch, build, dictionary, generators, requests_of, run, same, with_ties
from required_phrases import required_phrases
from search.phrases.test_segmentations import BOUNDARIES_12, SEARCHED, together
from search.phrases.test_segmentations import CASES as LETTER_CASES
from sizes import drawn, part_of

from fairseq_ext.core.stats import Stats
from fairseq_ext.kernels.library import library
from fairseq_ext.plugin.steps import without_phrases
from fairseq_ext.search.compiled import CompiledSearch, supports_phrases
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.phrases.pieces import Boundaries
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints, met
from fairseq_ext.search.phrases.token_automaton import minimal
from fairseq_ext.search.strategies.decoding.beam import beam_search
from fairseq_ext.search.strategies.select.topk import TopK
from fairseq_ext.search.strategies.stop.count import Count
from fairseq_ext.search.strategies.stop.first import First
from fairseq_ext.search.strategies.stop.ranked import Ranked
from fairseq_ext.search.strategies.stop.shrink import Shrink

pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiled library"),
    pytest.mark.usefixtures("on_the_cpu"),
]
CASES = int(os.environ.get("COMPILED_CASES", "600"))  # 9,000 take some minutes
SEED = int(os.environ.get("COMPILED_SEED", "3"))
WORD = dictionary().nspecial
CALLS = ("encoder_calls", "decoder_calls", "refills")
COUNTS = (*CALLS, "decoder_rows", "decoder_positions", "expansions", "sentences", "target_tokens")
COUNTS += ("dropped_rows",)
ARCHITECTURES = ["transformer", "transformer-pre-norm", "transformer-tied", "bart"]
ENDINGS: list[dict] = [{}, *({"stop": name} for name in ("ranked", "first", "shrink", "optimal"))]
ENDINGS += [ENDINGS[-1] | {"prune_bound": True}, ENDINGS[-1] | {"stop_expansion": "paper"}]


@functools.cache
def model(architecture: str, seed: int, words: int = 21, eos: float = 2.0):
    return build(architecture, seed, torch.float32, words, eos=eos)


def phrases(draw: random.Random, most: int) -> SentenceConstraints:
    """Up to `most` phrases, some with an alternative."""
    given = [
        tuple(
            tuple(draw.randrange(WORD, WORD + 8) for _ in range(draw.choice([1, 1, 2, 3])))
            for _ in range(draw.choice([1, 1, 2]))
        )
        for _ in range(draw.randint(0, most))
    ]
    return SentenceConstraints(required_phrases(given, map(str, given)))


def allowed(draw: random.Random, words: int) -> SentenceConstraints:
    """Outputs of up to 6 of these words, at most one of these counts of them; 0: all. One has a
    word alone, which fits under any limit, and others may not."""
    count = draw.choice([0, 1, 5, 40])
    outputs = {
        tuple(draw.randrange(WORD, WORD + words) for _ in range(i and draw.randint(1, 6) or 1))
        for i in range(count)
    }
    flat, lengths = np.array([t for each in outputs for t in each]), [*map(len, outputs)]
    automaton = minimal(flat, np.array(lengths), WORD + words) if count else None
    return SentenceConstraints(allowed=automaton)


def both(
    ours,
    sample: dict,
    wanted: list[int] | None = None,
    boundaries: Boundaries | None = None,
    counted: tuple = COUNTS,
) -> bool:
    """Whether the driver has searched without the loop: then hypotheses and counts must be the
    loop's. wanted: sentences to decode."""
    looped, found, counts = [], [], []
    once = getattr(ours.driver, "search", ours.driver)  # not what LengthRetry searches again
    admit = LoopSearch.admit
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            LoopSearch, "admit", lambda self, given: looped.append(search) or admit(self, given)
        )
        for search in (once, functools.partial(beam_search, ours.setup)):
            pool, answers, before = ours.pool(sample), {}, ours.stats.copy()
            pool.to_decode, pool.boundaries = wanted, boundaries
            search(pool, answers.__setitem__)
            found.append(answers)
            counts.append(ours.stats.since(before))
    some, others = found
    assert some.keys() == others.keys() and some.keys() <= {*(wanted or some)}
    is_compiled = once not in looped
    for sentence, hypotheses in some.items():
        # with --stop optimal, and of few allowed outputs, the loop has more than the n best
        n = ours.setup.nbest if hasattr(counts[0], "certificates") or not counted else None
        for a, b in zip(hypotheses[:n], others[sentence][:n], strict=True):
            assert a.score == b.score and torch.equal(a.tokens, b.tokens)
            assert torch.equal(a.positional_scores, b.positional_scores)
    if is_compiled:
        mine, loops = counts
        assert not counted or mine.decoder_rows <= loops.decoder_rows
        for name in counted:
            assert getattr(mine, name, None) == getattr(loops, name, None), name
        if hasattr(mine, "certificates"):
            a, b = mine.certificates, loops.certificates
            assert (a.proved, a.open, mine.saved) == (b.proved, b.open, loops.saved)
            # powers are rounded in two ways
            assert a.gap_mean.numerator == pytest.approx(b.gap_mean.numerator, abs=1e-9)
    return is_compiled


def drawn_search(draw: random.Random, has_phrases: bool, table: str) -> tuple[dict, dict]:
    """Flags of ours and of fairseq's."""
    chance = draw.random
    stock = {
        "beam": draw.choice([1, 2, 3, 3, 5, 8, 12]),
        "max_len_b": draw.choice([*[draw.randint(2, 18)] * 8, 58]),
        "lenpen": draw.choice([0.0, 0.6, 1.0, 2.0]),
        "unnormalized": chance() < 0.2,
        "temperature": draw.choice([1.0, 1.0, 0.7, 1.9]),
        "no_repeat_ngram_size": draw.choice([0, 0, 1, 2, 3]),
    }
    stock["min_len"] = draw.choice([1, 1, 0, draw.randint(1, stock["max_len_b"])])
    stock["nbest"] = draw.randint(1, stock["beam"])
    ours: dict = {"int8": True} if chance() < 0.2 else {}
    if chance() < 0.3:
        order, refill = draw.choice(["fifo", "shortest"]), draw.choice([0.5, 0.6])
        ours |= {"schedule": "stream", "stream_order": order, "refill_threshold": refill}
        ours |= draw.choice([{"stream_width": draw.choice([2, 5])}, {"stream_rows": 14}])
    if has_phrases:
        ours |= {
            "select": "dba",
            "dba_allocation": draw.choice(["even", "even", "paper"]),
            "constraint_compete": draw.choice(["rows", "rows", "off"]),
            "constraint_rows": draw.choice([0, 0, 1, 3]),
        }
        return ours, stock | {"constraints": draw.choice(["ordered", "unordered"])}
    if chance() < 0.15:
        stock |= {"sampling": True, "nbest": stock["beam"]}
        if chance() < 0.3:
            return ours | {"sampling_epsilon": 0.1}, stock
        return ours, stock | draw.choice([{}, {"sampling_topk": 3}, {"sampling_topp": 0.8}])
    ours |= draw.choice(ENDINGS)
    for name, values in (
        ("prune_threshold", [0.0, 0.5, 2.5, 10.0]),
        ("prune_children", [1, 2, 3]),
        ("prune_finished", [0.0, 1.0, 20.0]),
    ):
        ours |= {name: draw.choice(values)} if chance() < 0.35 else {}
    if stock["unnormalized"] and chance() < 0.7:
        reward, ratio = draw.choice([0.3, 1.2]), draw.choice([0.7, 1.0, 3.0])
        offset = draw.choice([0.0, 2.5])
        ours |= {"length_reward": reward, "length_ratio": ratio, "length_offset": offset}
    if chance() < 0.2:
        ours |= {"shortlist_share": "sentence", "shortlist_recall_every": 5}
        ours |= draw.choice(
            [
                {"softmax": "lexical", "shortlist_file": table, "shortlist_top": 10},
                {"softmax": "top", "shortlist_top": draw.choice([14, 45])},
            ]
        )
    return ours, stock


@pytest.mark.parametrize("has_phrases", [False, True])
def test_random_searches_give_the_loops_bits(has_phrases, tmp_path, monkeypatch):
    """A limit on the rows of a call holds. Cases of equal flags share a generator."""
    draw, compiled, rows = random.Random(f"{SEED} {has_phrases}"), Counter(), []
    table = "".join(f"w{i} w{j * i % 60} 0.5\n" for i in range(60) for j in (2, 3))
    (tmp_path / "table").write_text(table)
    count, tried = Stats.count_steps, Counter()

    def noted(self, calls, n):
        rows.append(n / calls)
        count(self, calls, n)

    monkeypatch.setattr(Stats, "count_steps", noted)
    for case in part_of(CASES, 75):
        if case % 3 == 0:
            monkeypatch.setattr("fairseq_ext.kernels.beam.FIRST_PLACES", draw.choice([2, 9, 64]))
            strategy, stock = drawn_search(draw, has_phrases, str(tmp_path / "table"))
            in_text = has_phrases and draw.random() < 0.3
            words = SEARCHED + 2 if in_text else 60 if "softmax" in strategy else 21
            of = model(draw.choice(ARCHITECTURES), draw.randint(1, 9), words, draw.choice([0.5, 2]))
            if draw.random() < 0.2:
                of = build("transformer", case, torch.float32, words, draw.choice([1.0, 3.0, 40.0]))
                of, layer = with_ties(of, case % 2 == 0), of.decoder.output_projection
                if draw.random() < 0.5:  # the end is as likely as a word
                    layer.weight.data[2] = layer.weight.data[4]
            ours = generators([of], strategy, words=words, **stock).ours
        lengths = [draw.randint(1, 12) for _ in range(draw.choice([1, 1, 2, 4, 6]))]
        sample, mode = batch(lengths, case, words), draw.choice([*BOUNDARIES_12])
        if has_phrases:
            sample["requests"] = requests_of([phrases(draw, 4) for _ in lengths])
        if in_text:
            texts = ["ab", "a ab", "ab a", "a"]
            given = [
                [(draw.choice(texts), draw.choice(LETTER_CASES)) for _ in range(draw.randint(1, 3))]
                for _ in lengths
            ]
            sample["requests"] = requests_of(list(map(together, given)))
        may_have = not has_phrases and stock["min_len"] <= 1
        has_set = may_have and "softmax" not in strategy and draw.random() < 0.3
        if has_set:
            # of few outputs a beam keeps all
            few = draw.choice([3, words])
            sample["requests"] = requests_of([allowed(draw, few) for _ in lengths])
        wanted = None
        if "schedule" not in strategy and draw.random() < 0.2:
            wanted = draw.sample(range(len(lengths)), draw.randint(0, len(lengths)))
        refills = has_phrases and "schedule" in strategy
        of_calls = len(CALLS) * ("stream_rows" in strategy or refills)
        rows.clear()
        was_compiled = both(
            ours,
            sample,
            wanted,
            BOUNDARIES_12[mode] if in_text else None,
            # outputs that cannot win are not read to their ends, and equal samples share a row; a
            # limit on the rows of a call, and phrases in a stream, divide the calls in two ways
            COUNTS[of_calls:] if not (has_set or "sampling" in stock) else (),
        )
        names = {name for name in strategy if name != "select"} | {f"beam {stock['beam']}"}
        names |= {*stock} & {"sampling"}
        tried.update(names)
        if was_compiled:
            compiled.update(names)
        # a sentence has a beam of rows, and with phrases rows that compete with it
        if "stream_rows" in strategy and stock["beam"] <= 5 and not has_phrases:
            assert max(rows, default=0) <= 14
    # the widest beams want more continuations than a list of words has
    del tried["beam 12"]
    assert all(compiled[name] > 0.5 * n for name, n in tried.items()), (compiled, tried)
    assert {"int8", "stream_rows", "stream_width"} <= compiled.keys()
    assert has_phrases or compiled["sampling"]


def test_a_batch_without_phrases_does_not_go_through_the_loop(monkeypatch):
    monkeypatch.setattr(LoopSearch, "admit", lambda *_: pytest.fail("the loop searches"))
    for compete in ("rows", "off", "search"):
        flags = {"select": "dba", "constraint_compete": compete}
        pair = generators([model("transformer", 2)], flags, beam=5, max_len_b=12)
        given = {**batch([8, 5, 3]), "requests": requests_of([EMPTY] * 3)}
        same(run(pair.stock, batch([8, 5, 3])), run(pair.ours, given), 1e-4)


DBA = {"select": "dba"}
ONE = SentenceConstraints(required_phrases([((WORD,),)], ["a"]))
MODULES, SCREENED = {"decoder_backend": "fairseq"}, {"softmax": "screened"}
LOOPED: list[tuple[dict, dict, SentenceConstraints | None]] = [
    *((flags, {}, None) for flags in ({"patience": 2}, MODULES, SCREENED)),
    ({}, {"unkpen": 0.5}, None),
    ({"stop": "optimal"}, {"lenpen": -0.5}, None),
    ({"length_reward": 0.5, "length_reward_unbounded": True}, {"unnormalized": True}, None),
    *((DBA | flags, {}, ONE) for flags in ({"stop": "count"}, {"patience": 2}, MODULES, SCREENED)),
    *((DBA | {name: 2}, {}, ONE) for name in ("prune_finished", "prune_children")),
    ({"select": "gbs"}, {}, ONE),
    (DBA, {}, SentenceConstraints(ONE.required, banned={(WORD + 1,): "b"})),
]


@pytest.mark.parametrize(("strategy", "stock", "constraints"), LOOPED, ids=str)
def test_other_searches_go_through_the_loop(strategy, stock, constraints):
    ours = generators([model("transformer", 1)], strategy, beam=3, max_len_b=8, **stock).ours
    sample = batch([5, 3])
    if constraints is not None:
        sample["requests"] = requests_of([constraints] * 2)
    assert not both(ours, sample)


def test_ensembles_go_through_the_loop():
    several = [model("transformer", 1), model("transformer", 2)]
    assert not both(generators(several, beam=3, max_len_b=8).ours, batch([5]))


def test_beams_of_more_candidates_than_compiled_code_ranks_go_through_the_loop():
    for beam, knows in ((128, True), (129, False)):  # twice as many candidates
        ours = generators([model("transformer", 1, 300)], DBA, beam=beam, words=300).ours
        assert supports_phrases(ours.setup) == knows


@pytest.mark.parametrize(
    ("kind", "arguments"),
    [(TopK, (5,)), (Count, (2,)), (First, (2,)), (Shrink, (5, 2)), (Ranked, (5, 2))],
    ids=str,
)
def test_who_derives_from_a_strategy_is_called_itself(kind, arguments):
    derived = type("Mine", (kind,), {"__call__": kind.__call__})
    assert kind(*arguments).rules is not None and derived(*arguments).rules is None


def test_sentences_that_the_compiled_search_cannot_decode_are_left_to_the_loop(monkeypatch):
    ours, taken = generators([model("transformer", 1)], beam=3, max_len_b=12).ours, []
    take = CompiledSearch.take

    def every_second(self, request):
        taken.append(request)
        return take(self, request) if len(taken) % 2 else self.cancel([request])

    monkeypatch.setattr(CompiledSearch, "take", every_second)
    assert not both(ours, batch([9, 7, 5, 3, 2])) and len(taken) == 5


WAYS: dict[str, dict] = {
    "compiled": {},
    "stream": {"schedule": "stream", "stream_width": 2},
    "loop": {"decoder_backend": "fairseq"},
    "optimal": {"stop": "optimal"},
}


@drawn(2)
@pytest.mark.parametrize("way", WAYS)
def test_the_answer_of_two_searches_is_the_better_one(way):
    """--constraint-compete search, against each search by itself: with all phrases, with none, and
    with all but one."""
    draw, skipped, searched = random.Random(8), 0, 0
    stock = {"beam": 4, "max_len_b": 12, "nbest": 3}

    def scores(found) -> list[float]:
        return sorted((float(h["score"]) for h in found), reverse=True)[:3]

    for seed in range(6 if way == "compiled" else 3):
        of, sample = [model("transformer", seed)], batch([9, 5, 3, 2], seed)

        def found(compete: str, constraints, of=of, sample=sample):
            ours = generators(of, DBA | {"constraint_compete": compete} | WAYS[way], **stock).ours
            return run(ours, {**sample, "requests": requests_of(constraints)})

        plain = run(generators(of, WAYS[way] if way == "optimal" else {}, **stock).ours, sample)
        given = [phrases(draw, 2) for _ in range(4)]
        # phrases that the output without phrases has, or the hypothesis behind it alone
        for i in (0, 1):
            first, own = (set(plain[i][rank]["tokens"].tolist()[:-1]) for rank in (0, i))
            if words := sorted(own - first if i else own):
                given[i] = SentenceConstraints(required_phrases([((draw.choice(words),),)]))
        fewer = [
            found("rows", [without_phrases(each, place) for each in given]) for place in (0, 1)
        ]
        better, rows = found("search", given), found("rows", given)
        for i, each in enumerate(given):

            def meets(h, each=each) -> bool:
                return all(met(h["tokens"].tolist(), each, False))

            if not each.any_of:
                continue
            own, others = better[i][:3], plain[i][:3]
            assert all(map(meets, own)) and scores(own) == [float(h["score"]) for h in own]
            if all(map(meets, others)):  # it is not searched again
                skipped += 1
            else:
                searched += 1
                more = [h for of in fewer for h in of[i]] if len(each.any_of) > 1 else []
                others = [*filter(meets, [*plain[i], *more]), *rows[i]]
                others = {tuple(h["tokens"].tolist()): h for h in others}.values()
            assert scores(own) == pytest.approx(scores(others), abs=1e-5)
    assert searched and (skipped or way != "compiled")

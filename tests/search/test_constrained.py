"""Batches with required phrases are searched in compiled calls, and get the loop's hypotheses to
the last bit (search/compiled.py)."""

import functools
import itertools
import os
import random

import pytest
import torch
from models import alone, batch, build, dictionary, forced, generators, run, same, with_ties
from required_phrases import required_phrases
from search.phrases.test_segmentations import BOUNDARIES_12, MODES, SEARCHED, required
from search.phrases.test_segmentations import CASES as CASE_MODES
from sizes import covering, drawn, part_of

from fairseq_ext.kernels.library import library
from fairseq_ext.search.compiled import supports_phrases
from fairseq_ext.search.constraints.two_searches import without_phrases
from fairseq_ext.search.interpreted import LoopSearch
from fairseq_ext.search.phrases.pieces import Boundaries
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints, met
from fairseq_ext.search.strategies.decoding.beam import beam_search

pytestmark = [
    pytest.mark.skipif(library() is None, reason="there is no compiled library"),
    pytest.mark.usefixtures("on_the_cpu"),
]
CASES = int(os.environ.get("CONSTRAINED_CASES", "75"))  # 25 without --all
SEED = int(os.environ.get("CONSTRAINED_SEED", "5"))
BOS, UNK, WORD = dictionary().bos(), dictionary().unk(), dictionary().nspecial
COUNTS = (
    "encoder_calls",
    "decoder_calls",
    "decoder_rows",
    "decoder_positions",
    "expansions",
    "dropped_rows",
    "sentences",
    "target_tokens",
)


@functools.cache
def model(architecture: str, seed: int, eos: float = 2.0):
    return build(architecture, seed, dtype=torch.float32, eos=eos)


def phrases(draw: random.Random, most: int, **more) -> SentenceConstraints:
    """Up to `most` phrases, some with an alternative."""
    given = []
    for _ in range(draw.randint(0, most)):
        of_phrase = [
            tuple(draw.randrange(WORD, WORD + 8) for _ in range(draw.choice([1, 1, 2, 3])))
            for _ in range(draw.choice([1, 1, 2]))
        ]
        given.append(tuple(of_phrase))
    return SentenceConstraints(required_phrases(tuple(given), tuple(map(str, given))), **more)


def make_pool(ours, sample: dict):
    """The pool that the generator makes of a sample."""
    return ours.pool(sample)


def both(
    ours,
    sample: dict,
    monkeypatch,
    wanted: list[int] | None = None,
    in_order: bool = True,
    counted: tuple = COUNTS,
    boundaries: Boundaries | None = None,
) -> bool:
    """Whether the driver has searched without the loop; its hypotheses and its counts must be the
    loop's, and their order if it is compared."""
    called: list = []
    admit = LoopSearch.admit
    monkeypatch.setattr(
        LoopSearch, "admit", lambda self, requests: called.append(search) or admit(self, requests)
    )
    found, counts = [], []
    once = getattr(ours.driver, "search", ours.driver)  # not what LengthRetry searches again
    for search in (once, functools.partial(beam_search, ours.setup)):
        pool, answers, before = make_pool(ours, sample), [], ours.stats.copy()
        pool.to_decode, pool.boundaries = wanted, boundaries
        search(
            pool,
            lambda sentence, hypotheses, answers=answers: answers.append((sentence, hypotheses)),
        )
        found.append(answers)
        counts.append({name: vars(ours.stats.since(before)).get(name) for name in counted})
    compiled, loop = found if in_order else map(sorted, found)
    assert [sentence for sentence, _ in compiled] == [sentence for sentence, _ in loop]
    for (_, some), (_, others) in zip(compiled, loop, strict=True):
        assert [h.score for h in some] == [h.score for h in others]
        for a, b in zip(some, others, strict=True):
            assert torch.equal(a.tokens, b.tokens) and torch.equal(
                a.positional_scores, b.positional_scores
            )
    assert {name: None if n is None else int(n) for name, n in counts[0].items()} == {
        name: None if n is None else int(n) for name, n in counts[1].items()
    }
    return once not in called


def test_random_batches_give_the_loops_bits(monkeypatch):
    draw = random.Random(SEED)
    for case in part_of(CASES, 25):
        if case % 5 == 0:
            generation = dict(
                beam=draw.choice([1, 2, 3, 5, 8, 15]),
                max_len_b=draw.randint(2, 25),
                lenpen=draw.choice([0.0, 0.6, 1.0, 2.0]),
                unnormalized=draw.random() < 0.2,
                temperature=draw.choice([1.0, 1.0, 0.7, 1.9]),
                no_repeat_ngram_size=draw.choice([0, 0, 0, 2, 3]),
                constraints=draw.choice(["ordered", "unordered"]),
            )
            generation["min_len"] = draw.choice([1, 1, 0, draw.randint(1, generation["max_len_b"])])
            generation["nbest"] = draw.randint(1, generation["beam"])
            strategy = {
                "select": "dba",
                "dba_allocation": draw.choice(["even", "even", "paper"]),
                "constraint_compete": draw.choice(["rows", "rows", "off"]),
                "constraint_rows": draw.choice([0, 0, 1, 3]),
            }
            architecture = draw.choice(
                ["transformer", "transformer-pre-norm", "transformer-tied", "bart"]
            )
            ours = generators(
                [model(architecture, draw.randint(1, 9), draw.choice([0.5, 2.0]))],
                strategy,
                **generation,
            ).ours
        sample = batch([draw.randint(1, 12) for _ in range(draw.choice([1, 2, 5, 9]))], seed=case)
        constraints = [phrases(draw, 4) for _ in range(sample["nsentences"])]
        assert both(ours, {**sample, "sentence_constraints": constraints}, monkeypatch)


def test_equal_scores_have_the_loops_order(monkeypatch):
    draw = random.Random(SEED)
    for case in range(20):
        ours = generators(
            [with_ties(build("transformer", case, dtype=torch.float32))],
            {"select": "dba", "constraint_compete": draw.choice(["rows", "off"])},
            beam=draw.choice([2, 3, 5]),
            max_len_b=12,
            constraints="unordered",
        ).ours
        sample = batch([draw.randint(1, 9) for _ in range(5)], seed=case)
        constraints = [phrases(draw, 3) for _ in range(sample["nsentences"])]
        assert both(ours, {**sample, "sentence_constraints": constraints}, monkeypatch)


@drawn(6)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(12))
def test_phrases_as_words_in_any_segmentation_and_case(seed, mode, monkeypatch):
    draw = random.Random(seed)
    strategy = {"select": "dba", "dba_allocation": draw.choice(["even", "even", "paper"])}
    ours = generators(
        [build("transformer", seed, dtype=torch.float32, words=SEARCHED + 2, eos=0.5)],
        strategy,
        words=SEARCHED + 2,
        beam=draw.choice([2, 5, 8]),
        max_len_b=12,
        constraints=draw.choice(["ordered", "unordered"]),
    ).ours
    sample = batch([9, 5, 3, 1], words=SEARCHED + 2)
    texts = ["ab", "a ab", "ab a", "a"]
    given = [
        [required(draw.choice(texts), draw.choice(CASE_MODES)) for _ in range(n)]
        for n in (2, 3, 1, 2)
    ]
    sample["sentence_constraints"] = [
        SentenceConstraints(tuple(each.required[0] for each in parts)) for parts in given
    ]
    assert both(ours, sample, monkeypatch, boundaries=BOUNDARIES_12[mode])


@covering(1)
@pytest.mark.parametrize("places", [2, 9, 64])
@pytest.mark.parametrize("beam", [1, 4, 12])
def test_long_sentences_outgrow_the_cache_and_the_places_for_tokens(beam, places, monkeypatch):
    monkeypatch.setattr("fairseq_ext.kernels.beam.FIRST_PLACES", places)
    draw = random.Random(beam)
    ours = generators(
        [model("transformer", 3)],
        {"select": "dba"},
        beam=beam,
        min_len=draw.choice([1, 45]),
        nbest=beam,
        max_len_b=58,
    ).ours
    sample = batch([9, 5, 3, 1])
    assert both(
        ours, {**sample, "sentence_constraints": [phrases(draw, 3) for _ in range(4)]}, monkeypatch
    )


def test_some_sentences_of_a_batch_in_another_order(monkeypatch):
    draw = random.Random(2)
    ours = generators([model("transformer", 3)], {"select": "dba"}, beam=5, max_len_b=15).ours
    sample = {
        **batch([9, 5, 3, 2, 1]),
        "sentence_constraints": [phrases(draw, 3) for _ in range(5)],
    }
    for wanted in ([3, 0], [2], [4, 3, 2, 1, 0], []):
        assert both(ours, sample, monkeypatch, wanted)


STREAM = {"schedule": "stream", "refill_threshold": 0.5}


@pytest.mark.parametrize(
    "flags", [STREAM | {"stream_width": 3}, STREAM | {"stream_rows": 9}, {"int8": True}], ids=str
)
def test_a_stream_and_int8_give_the_loops_bits(flags, monkeypatch):
    draw = random.Random(6)
    ours = generators(
        [model("transformer", 3)], {"select": "dba"} | flags, beam=4, max_len_b=15
    ).ours
    sample = batch([9, 7, 6, 5, 5, 3, 2, 1])
    given = {**sample, "sentence_constraints": [phrases(draw, 3) for _ in range(8)]}
    # a limit on the rows of a call divides the calls in two ways
    counted = COUNTS[2:] if "stream_rows" in flags else COUNTS
    assert both(ours, given, monkeypatch, in_order=False, counted=counted)
    assert ours.stats.refills or "int8" in flags


@pytest.mark.parametrize("compete", ["rows", "off", "search"])
def test_a_batch_without_phrases_does_not_go_through_the_loop(compete, monkeypatch):
    strategy = {"select": "dba", "constraint_compete": compete}
    pair = generators([model("transformer", 2)], strategy, beam=5, max_len_b=12)
    sample = batch([8, 5, 3])
    given = {**sample, "sentence_constraints": [EMPTY] * 3}
    monkeypatch.setattr(LoopSearch, "admit", lambda *_: pytest.fail("the loop searches"))
    same(run(pair.stock, sample), run(pair.ours, given), 1e-4)


FLAGS: list[dict] = [
    {"stop": "count"},
    {"patience": 2},
    {"prune_finished": 5.0},
    {"prune_children": 2},
    {"select": "gbs"},
    {"decoder_backend": "fairseq"},
    {"softmax": "screened"},
]


def test_beams_of_more_candidates_than_compiled_code_ranks_go_through_the_loop():
    wide = build("transformer", dtype=torch.float32, words=300)
    for beam, knows in ((128, True), (129, False)):  # twice as many candidates
        ours = generators([wide], {"select": "dba"}, beam=beam, words=300).ours
        assert supports_phrases(ours.setup) == knows


@pytest.mark.parametrize("strategy", FLAGS, ids=str)
def test_other_searches_go_through_the_loop(strategy, monkeypatch):
    draw = random.Random(4)
    ours = generators(
        [model("transformer", 1)], {"select": "dba"} | strategy, beam=3, max_len_b=12
    ).ours
    sample = batch([5, 3])
    assert not both(
        ours, {**sample, "sentence_constraints": [phrases(draw, 2), phrases(draw, 2)]}, monkeypatch
    )


def test_banned_phrases_go_through_the_loop(monkeypatch):
    ours = generators([model("transformer", 1)], {"select": "dba"}, beam=3, max_len_b=12).ours
    given = SentenceConstraints(
        required_phrases((((WORD,),),), ("a",)), banned=((WORD + 1,),), banned_text=("b",)
    )
    assert not both(ours, {**batch([5]), "sentence_constraints": [given]}, monkeypatch)


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
    draw = random.Random(8)
    flags = {"beam": 4, "max_len_b": 12, "nbest": 3}
    skipped = searched = 0
    for seed in range(6 if way == "compiled" else 3):
        of = [model("transformer", seed)]
        made = {
            compete: generators(
                of, {"select": "dba", "constraint_compete": compete, **WAYS[way]}, **flags
            ).ours
            for compete in ("search", "rows")
        }
        sample = batch([9, 5, 3, 2], seed=seed)
        plain = run(generators(of, WAYS[way] if way == "optimal" else {}, **flags).ours, sample)
        given = [phrases(draw, 2) for _ in range(4)]
        # phrases that the output without phrases has, or the hypothesis behind it alone
        for i in (0, 1):
            first, own = (set(plain[i][rank]["tokens"].tolist()[:-1]) for rank in (0, i))
            if words := sorted(own - first if i else own):
                given[i] = SentenceConstraints(
                    required_phrases((((draw.choice(words),),),), ("own",))
                )
        sample["sentence_constraints"] = given
        found = {compete: run(ours, sample) for compete, ours in made.items()}
        fewer = []
        for place in range(2):
            sample["sentence_constraints"] = [without_phrases(each, place) for each in given]
            fewer.append(run(made["rows"], sample))
        for i, each in enumerate(given):
            if not each.any_of:
                continue
            lists = {"free": plain[i], **{name: lists[i] for name, lists in found.items()}}
            scores = {name: [float(h["score"]) for h in hs[:3]] for name, hs in lists.items()}
            own = found["search"][i][:3]
            assert all(all(met(h["tokens"].tolist(), each, False)) for h in own)
            assert scores["search"] == sorted(scores["search"], reverse=True)
            meets = [all(met(h["tokens"].tolist(), each, False)) for h in plain[i]]
            meeting = [h for h, is_met in zip(plain[i], meets, strict=True) if is_met]
            if all(meets[:3]):  # it is not searched again
                skipped += 1
                assert scores["search"] == pytest.approx(scores["free"], abs=1e-5)
                continue
            more = [h for of in fewer if len(each.any_of) > 1 for h in of[i]]
            meeting += [h for h in more if all(met(h["tokens"].tolist(), each, False))]
            every = {tuple(h["tokens"].tolist()): float(h["score"]) for h in meeting}
            every |= {tuple(h["tokens"].tolist()): float(h["score"]) for h in found["rows"][i]}
            best = sorted(every.values(), reverse=True)[:3]
            assert scores["search"] == pytest.approx(best, abs=1e-5)
            searched += 1
    assert searched and (skipped or way != "compiled")


@pytest.mark.parametrize("compete", ["rows", "search", "off"])
@pytest.mark.parametrize("way", WAYS)
def test_a_beam_of_all_sequences_finds_the_best_that_meets_its_phrases(way, compete):
    """Of all sequences of up to three tokens, each scored by teacher forcing."""
    words, longest = 3, 3
    made = build("transformer", 3, dtype=torch.float32, words=words, eos=2.0)
    vocabulary = [BOS, UNK, *range(WORD, len(dictionary(words)))]
    eos = dictionary().eos()
    flags = {"select": "dba", "constraint_compete": compete, **WAYS[way]}
    generation = {"beam": 120, "max_len_b": longest, "unnormalized": way == "optimal"}
    ours = generators([made], flags, words=words, **generation).ours
    sample = batch([3, 2, 1], words=words)
    given = [((WORD,),), ((WORD + 1, WORD),), ((WORD + 2,), (WORD,))]
    sample["sentence_constraints"] = [
        SentenceConstraints(
            required_phrases(tuple((phrase,) for phrase in each), tuple(map(str, each)))
        )
        for each in given
    ]
    found = run(ours, sample)
    for i, constraints in enumerate(sample["sentence_constraints"]):
        sequences = [
            [*tokens, eos]
            for n in range(1, longest + 1)
            for tokens in itertools.product(vocabulary, repeat=n)
            if all(met(tokens, constraints, False))
        ]
        rows = [[eos, *each[:-1], *[eos] * (longest + 1 - len(each))] for each in sequences]
        values = forced(made, alone(sample, i), rows)
        means = {}
        for each, line in zip(sequences, values, strict=True):
            total = float(sum(line[at, token] for at, token in enumerate(each)))
            means[tuple(each)] = total if way == "optimal" else total / len(each)
        best = found[i][0]
        assert float(best["score"]) == pytest.approx(max(means.values()), abs=1e-4)
        assert means[tuple(best["tokens"].tolist())] == pytest.approx(
            float(best["score"]), abs=1e-4
        )

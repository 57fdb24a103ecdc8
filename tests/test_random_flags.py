"""Random compositions of flags, on random models, sentences and phrases: a sentence has the n-best
list that it has by itself, whatever stands next to it; and where the beam has room for every
sequence, its best is the best of all that keep to the constraints, by brute force.

`COMPOSITIONS=200 COMPOSITIONS_SEED=7 pytest tests/test_random_flags.py` tries others.
"""

import functools
import itertools
import os
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import (
    MASKED_IN_FLOAT32,
    WORDS,
    alone,
    batch,
    build,
    dictionary,
    generators,
    is_search_of_fairseqs,
    near_ties,
    piece,
    refused,
    requests_of,
    run,
    same,
    separated,
    settings,
    totals,
    with_files,
)
from required_phrases import prefix_of, required_phrases
from sizes import covering, drawn

from fairseq_ext import UsageError
from fairseq_ext.search.phrases.phrase_table import Compiler, build_table
from fairseq_ext.search.phrases.pieces import join_pieces
from fairseq_ext.search.phrases.sentence import (
    Cased,
    SentenceConstraints,
    banned_in_tokens,
    met,
    without_conflicts,
)
from fairseq_ext.search.phrases.token_automaton import minimal
from fairseq_ext.search.registry import STRATEGIES

# where a fault was: results that depended on the batch, a sequence that was lost
FOUND = ["12-30", "12-79", "13-37", "11-27"]
CASES = FOUND + [
    f"{os.environ.get('COMPOSITIONS_SEED', '1')}-{i}"
    for i in range(int(os.environ.get("COMPOSITIONS", "8")))
]
FIRST, EOS = dictionary().nspecial, dictionary().eos()
ARCHITECTURES = ["transformer", "transformer", "transformer-pre-norm", "bart", "lstm"]
EXAMPLES = [
    setting
    for setting in settings("example").values()
    if not {"select", "decoding", "schedule"} & set(setting)
]
GREEDY = [setting for setting in settings("example").values() if "decoding" in setting]


def drawn_search(draw):
    """Flags of ours and of stock, but those that give constraints."""
    some = {"beam": draw.choice([1, 2, 3, 5, 8]), "max_len_b": draw.randint(3, 14)}
    some["nbest"] = draw.randint(1, some["beam"])
    some |= draw.choice([{}, {"lenpen": draw.choice([0.0, 0.6, 2.0])}, {"unnormalized": True}])
    some |= draw.choice(
        [
            {},
            {},
            {"min_len": draw.randint(0, 3)},
            {"no_repeat_ngram_size": draw.randint(2, 3)},
            {"unkpen": 1.0},
        ]
    )
    some |= draw.choice(
        [{}, {}, {}, {"decoder_backend": "fairseq"}, {"temperature": 1.4}, {"int8": True}]
    )
    if draw.random() < 0.1:
        return some | {"beam": 1, "nbest": 1} | draw.choice(GREEDY)
    for setting in draw.sample(EXAMPLES, draw.choice([0, 1, 2, 2])):
        some |= setting
    if some.get("unnormalized") and draw.random() < 0.5:
        some |= drawn_reward(draw)
    if draw.random() < 0.5:
        some |= {"schedule": "stream", "stream_order": draw.choice(["shortest", "fifo"])}
        some |= draw.choice(
            [
                {"stream_width": draw.randint(1, 6)},
                {"stream_rows": some["beam"] + draw.randint(0, 9)},
            ]
        )
        some |= {"refill_threshold": draw.choice([0.0, 1 / 6, 0.5])}
    return some


def drawn_reward(draw):
    """A length reward; some sentences want a length below 0."""
    return {
        "length_reward": 0.7,
        "length_ratio": draw.choice([0.8, 1.0]),
        "length_offset": draw.choice([-4.0, 0.0, 1.5]),
    }


def drawn_select(draw, *selects):
    """How continuations are chosen, and what counts as a phrase."""
    select = draw.choice(selects)
    if select == "topk":
        return {}
    some = {"select": select, "constraints": draw.choice(["unordered", "unordered", "ordered"])}
    some |= draw.choice([{}, {"constraint_boundary": "prefix"}, {"constraint_boundary": "none"}])
    some |= draw.choice([{}, {"avoid_case": "exact"}])
    if select == "dba":
        some |= draw.choice([{}, {"dba_allocation": "paper"}])
        some |= draw.choice([{}, {"constraint_compete": draw.choice(["off", "search"])}])
    return some | {"gbs": {"gbs_base": draw.randint(1, 4)}, "bonus": {"constraint_bonus": 1.5}}.get(
        select, {}
    )


def drawn_constraints(draw, words, longest, cases=("exact",)):
    """Phrases of mixed lengths: alternatives, one that is requested twice,
    banned ones, a prefix."""

    def phrase(most):
        return tuple(FIRST + draw.randrange(words) for _ in range(draw.randint(1, most)))

    any_of, cased = [], []
    while len(any_of) < 3 and draw.random() < 0.6:
        alternatives = tuple(dict.fromkeys(phrase(longest) for _ in range(draw.choice([1, 1, 2]))))
        case = draw.choice(cases)
        # ▁a as ▁A
        spelt = tuple(
            (FIRST + 4, *each[1:]) for each in alternatives if each[0] == FIRST and case != "exact"
        )
        for _ in range(draw.choice([1, 1, 1, 2])):
            any_of.append(alternatives)
            cased.append(Cased(case, spelt))
    banned = tuple(dict.fromkeys(phrase(2) for _ in range(draw.choice([0, 0, 1, 3]))))
    prefix = phrase(2) if draw.random() < 0.2 else ()
    texts = [tuple(map(str, each)) for each in (any_of, banned, prefix)]
    found = SentenceConstraints(
        required_phrases(tuple(any_of), texts[0], tuple(cased)),
        banned=dict(zip(banned, texts[1], strict=True)),
        prefix=prefix_of(prefix),
    )
    return without_conflicts(found, banned_in_tokens)


def constrained(sample, constraints):
    return sample if constraints is None else {**sample, "requests": requests_of(constraints)}


@functools.cache
def model(architecture, seed, dtype):
    return build(architecture, seed, dtype)


def made(draw, flags, folder, models, **more):
    """Our generator with these flags; None where they rule each other out."""
    strategy, generation = separated(with_files(flags, folder))
    try:
        return generators(models, strategy, **generation, **more).ours
    except UsageError as error:
        # of the declared needs, of a flag whose strategy is another, or of these models
        said = refused(strategy, generation)
        assert said in (None, str(error)) and "\n" not in str(error)
        return None


@drawn(12)
@pytest.mark.parametrize("case", CASES)
def test_a_sentence_is_searched_as_if_it_were_alone(case, tmp_path):
    draw, ours = random.Random(case), None
    while ours is None:
        flags, pieces = drawn_search(draw), draw.random() < 0.7
        if "decoding" not in flags:
            flags |= drawn_select(draw, "topk", "dba", "dba", "gbs", "cbs", "bonus") | draw.choice(
                [{}, {}, {"constraint_end": True}]
            )
        # in float32 rounding may change which words a hash code finds
        dtype = draw.choice(
            [
                torch.float64,
                torch.float64,
                torch.float64 if flags.get("softmax") == "lsh" else torch.float32,
            ]
        )
        several = draw.choice([1, 1, 1, 2])
        names = [draw.choice(ARCHITECTURES) for _ in range(several)]
        models = [model(name, draw.randint(1, 6), dtype) for name in names]
        ours = made(draw, flags, tmp_path, models, pieces=pieces)
    sample = batch([draw.randint(0, 9) for _ in range(draw.randint(2, 9))], draw.randint(1, 99))
    cases = ("exact", "initial", "any") if pieces else ("exact",)
    given = (
        [drawn_constraints(draw, WORDS, min(4, flags["max_len_b"]), cases) for _ in sample["id"]]
        if "constraints" in flags
        else None
    )
    together = run(ours, constrained(sample, given))
    for i, nbest in enumerate(together):
        assert nbest and all(h["tokens"][-1] == EOS for h in nbest)
        # best first, of those that lack no phrase
        scores = [float(h["score"]) for h in nbest if not h.get("unmet")]
        assert scores == sorted(scores, reverse=True)
        if given and not pieces and not ours.strategies.select.soft:
            is_ordered = flags["constraints"] == "ordered"
            for h in nbest:
                assert h.get("unmet") or all(met(h["tokens"].tolist(), given[i], is_ordered))
        [single] = run(ours, constrained(alone(sample, i), given and given[i : i + 1]))
        try:
            assert [h.get("unmet") for h in single] == [h.get("unmet") for h in nbest]
            if dtype == torch.float64:
                same([single], [nbest], 1e-5 if {*names} & {*MASKED_IN_FLOAT32} else 1e-9)
            else:
                near_ties([single], [nbest])
        except AssertionError as error:
            raise AssertionError(
                f"sentence {i} of {flags}, phrases {given and given[i]}"
            ) from error


ALLOWED = [(5, 6), (5, 7, 7), (9, 10), (9, 10, 11, 12), (13,), (8, 11, 8), (12, 5), (20, 21, 22)]
NAMED = settings("example") | {"none": {}, "fairseq's modules": {"decoder_backend": "fairseq"}}


@drawn(12)
@pytest.mark.parametrize("name", NAMED)
def test_every_setting_keeps_to_the_allowed_outputs_or_is_refused(name, tmp_path):
    """What the registry does not refuse must work, alone and with required phrases."""
    flags, needed = separated(with_files(NAMED[name], tmp_path))
    flags, generation = flags | {"allowed_file": "set.txt"}, {"beam": 4, "max_len_b": 10, **needed}
    models = [model("transformer", 2, torch.float64)]
    if (said := refused(flags, generation)) is not None:
        with pytest.raises(UsageError, match="--allowed-file") as error:
            generators(models, flags, **generation)
        assert str(error.value) == said
        return
    tokens, lengths = np.array([t for each in ALLOWED for t in each]), list(map(len, ALLOWED))
    free = SentenceConstraints(allowed=minimal(tokens, np.array(lengths), len(dictionary())))
    ours, sample = generators(models, flags, **generation).ours, batch([7, 5, 3, 1, 0])
    given = [free, SentenceConstraints(), free, free, free]
    is_constrained = STRATEGIES["select"][flags.get("select", "topk")].constrained
    if is_constrained:
        given[0] = replace(free, required=required_phrases([((9, 10),)]))
    for i, nbest in enumerate(run(ours, constrained(sample, given))):
        found = [tuple(h["tokens"].tolist()[:-1]) for h in nbest]
        assert found and (i == 1 or {*found} <= {*ALLOWED})
        if i == 0 and is_constrained and not ours.strategies.select.soft:
            assert all((9, 10) == each[:2] for each in found)
        [single] = run(ours, constrained(alone(sample, i), given[i : i + 1]))
        assert single[0]["tokens"].tolist() == nbest[0]["tokens"].tolist()


MUST_WORK = "select stop|select schedule|select softmax|stop schedule|stop softmax"
MUST_WORK += "|schedule softmax|schedule decoding"


@pytest.mark.parametrize("points", MUST_WORK.split("|"))
def test_no_two_plug_points_rule_each_other_out(points):
    """Needs could refuse everything, and the tests above would pass: at these points nearly all
    pairs of beam searches work."""
    beams = [each for each in NAMED.values() if not is_search_of_fairseqs(each)]
    first, second = ([each for each in beams if point in each] for point in points.split())
    works = [refused(*separated(a | b)) is None for a in first for b in second]
    assert len(works) >= 3 and sum(works) >= 0.8 * len(works)


STOPS = [{"patience": 1000}, {"stop": "optimal"}, {"stop": "optimal", "prune_bound": True}]


@covering(1)
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("generation", [{"unnormalized": True}, {}, {"lenpen": 0.5}], ids=str)
@pytest.mark.parametrize("select", ["topk", "dba", "gbs", "cbs"])
def test_certified_answers_equal_those_of_a_search_that_never_stops_early(select, generation, seed):
    """--stop optimal, with and without --prune-bound, against --stop count that waits for more
    hypotheses than max_len allows; for dba also with more rows."""
    flags = {"select": select} | ({"constraint_rows": seed % 3} if select == "dba" else {})
    phrases = [[(9, 10)], [], [(8,), (11, 8)], [(12,)], []]
    given = [SentenceConstraints(required_phrases([(p,) for p in each])) for each in phrases]
    sample = constrained(batch([7, 5, 3, 1, 0], seed), None if select == "topk" else given)
    full, *others = (
        [
            [h["tokens"].tolist() for h in nbest[:2]]
            for nbest in run(
                generators(
                    [build("transformer", seed)],
                    flags | stop,
                    beam=4,
                    nbest=2,
                    max_len_b=10,
                    **generation,
                ).ours,
                sample,
            )
        ]
        for stop in STOPS
    )
    assert all(other == full for other in others)


# ---- brute force

FEW = 4  # words: the first of PIECES, and <unk>; the others are suppressed
LIMIT = 4  # tokens before EOS
# hypotheses, more than there are sequences; fairseq's beam has fewer than the vocabulary has words
ALL = 800


def spans(text, phrase, mode, any_case=False):
    """Where a phrase stands in a text: rows of tokens, or text in which it starts a word and,
    for mode word, ends one."""
    if mode == "none":
        return [
            (i, i + len(phrase)) for i in range(len(text)) if text[i : i + len(phrase)] == phrase
        ]
    before, behind = (
        r"(?<![a-zA-Z])" * phrase[0].isalpha(),
        r"(?![a-zA-Z])" * (mode == "word" and phrase[-1].isalpha()),
    )
    expression = re.compile(
        f"{before}(?={re.escape(phrase)}{behind})", re.IGNORECASE if any_case else 0
    )
    return [(found.start(), found.start() + len(phrase)) for found in expression.finditer(text)]


def keeps_to(tokens, given, mode, ordered, any_case):
    """Whether a sequence has all that is required, equal phrases in disjoint places, and
    nothing that is banned."""
    read = tuple if mode == "none" else reader
    text, reached = read(tokens), {}
    if tokens[: len(given.beginning)] != given.beginning or any(
        spans(text, read(phrase), mode, any_case) for phrase in given.banned
    ):
        return False
    for alternatives in given.any_of:
        key = None if ordered else frozenset(alternatives)
        found = [
            span
            for each in alternatives
            for span in spans(text, read(each), mode)
            if span[0] >= reached.get(key, 0)
        ]
        if not found:
            return False
        reached[key] = min(end for _, end in found)
    return True


def reader(tokens):
    """A sequence of pieces as a reader sees it."""
    return join_pieces(" ".join(dictionary(ALL, True)[t] for t in tokens), "sentencepiece")


def in_time(tokens, given, ordered, boundaries):
    """Whether the sequence leaves room for what it lacks, at every place, as dba.py counts it:
    phrases one after another, in the pieces in which they are given."""
    table = build_table([given.required], ordered, torch.device("cpu"), Compiler(boundaries))
    place, count = (x[None] for x in table.begin(torch.tensor([0])))
    if int(table.total - table.bank_after([given.beginning])) + len(given.beginning) > LIMIT:
        return False
    for n, token in enumerate(tokens):
        place, count = table.advance(place, count, torch.tensor([[token]]))
        if int(table.total) - int(table.bank(place, count)) > LIMIT - n - 1 and n >= len(
            given.beginning
        ):
            return False
    return True


def unrepeated(tokens, n):
    """Whether no n-gram comes twice."""
    grams = [tokens[i : i + n] for i in range(len(tokens) - n + 1)] if n else []
    return len(grams) == len(set(grams))


def scored(model, sample, sequences, flags):
    """The scores of sequences that EOS follows."""
    words = int(sample["net_input"]["src_lengths"]) - 1
    wanted = words * flags.get("length_ratio", 1.0) + flags.get("length_offset", 0.0)
    out = []
    for tokens, total in zip(sequences, totals(model, sample, sequences), strict=True):
        length = len(tokens) + 1
        reward = flags.get("length_reward", 0.0) * min(length, max(0.0, wanted))
        norm = 1 if flags.get("unnormalized") else length ** flags.get("lenpen", 1.0)
        out.append(total / norm + reward)
    return out


@drawn(8)
@pytest.mark.parametrize("case", CASES)
def test_a_beam_with_room_for_all_finds_the_best_of_all(case, tmp_path):
    draw, ours = random.Random(f"{case} all"), None
    ending = [
        {"stop": "optimal"},
        {"stop": "optimal", "prune_bound": True},
        {"stop": "early", "nbest": ALL},
        {"stop": "count"},
    ]
    raw, suppressed = {"unnormalized": True}, ("<s>", *map(piece, range(FEW, ALL)))
    while ours is None:
        flags = draw.choice(ending) | draw.choice(
            [{}, {"lenpen": 0.6}, raw, raw | drawn_reward(draw)]
        )
        flags |= draw.choice([{}, {"min_len": 2}, {"no_repeat_ngram_size": 2}]) | drawn_select(
            draw, "topk", "dba", "gbs", "cbs"
        )
        flags |= {"beam": ALL, "max_len_b": LIMIT} | (
            {"gbs_base": ALL} if flags.get("select") == "gbs" else {}
        )
        of = build("transformer", draw.randint(1, 99), words=ALL)
        ours = made(
            draw,
            flags,
            tmp_path,
            [of],
            words=ALL,
            pieces=True,
            extra={"tokens_to_suppress": suppressed},
        )
    sample = batch([draw.randint(0, 5) for _ in range(2)], draw.randint(1, 99), words=ALL)
    given = [drawn_constraints(draw, FEW, 2) for _ in sample["id"]] if "select" in flags else None
    found = run(ours, constrained(sample, given))
    mode, ordered = flags.get("constraint_boundary", "word"), flags.get("constraints") == "ordered"
    any_case = flags.get("avoid_case", "any") == "any"
    boundaries = None if mode == "none" else ours.target_text.boundaries
    words = range(FIRST - 1, FIRST + FEW)  # <unk>, and the pieces
    every = [
        s
        for n in range(LIMIT + 1)
        for s in itertools.product(words, repeat=n)
        if n + 1 > flags.get("min_len", 1)
    ]
    for i, [best, *_] in enumerate(found):
        kept = [s for s in every if unrepeated(s, flags.get("no_repeat_ngram_size"))]
        if given is not None:
            kept = [
                s
                for s in kept
                if keeps_to(s, given[i], mode, ordered, any_case)
                and in_time(s, given[i], ordered, boundaries)
            ]
        if not kept:  # the search counts it as infeasible
            continue
        scores = scored(of, alone(sample, i), kept, flags)
        at = scores.index(max(scores))
        got = tuple(best["tokens"].tolist()[:-1]), float(best["score"])
        assert got == (kept[at], pytest.approx(scores[at], abs=1e-9)), (
            f"sentence {i} of {flags}, phrases {given and given[i]}"
        )

"""The baselines with fixed slots: neutral without constraints, everything met with them, and as
large as they are said to be."""

import random

import pytest
import torch
from demo_model import FLAGS, ROOT
from models import batch, build, generators, run, same
from search.phrases.test_segmentations import (
    BOUNDARIES_12,
    occurrences,
    read,
    required,
    usual,
    violates,
)
from search.strategies.select.test_dba import (
    all_met,
    decode,
    outputs,
    random_constraints,
    satisfying,
    wanted,
)
from search.strategies.select.test_dba_models import LENGTHS, constrained, random_phrases, tokens
from search.strategies.select.test_dba_models import wanted as phrases
from sizes import covering, drawn
from table_model import EOS, FIRST_WORD, lattice, random_table, search, stop_plug

from fairseq_ext import Translator, UsageError
from fairseq_ext.search.phrases.sentence import SentenceConstraints, met
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam

SELECTS = {"gbs": GridBeam, "cbs": ConstrainedBeam}


def flags(select: str, k: int) -> dict:
    """gbs takes its beam from --gbs-base."""
    return {"select": select, "gbs_base": k} if select == "gbs" else {"select": select}


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("select", SELECTS)
def test_sentences_without_constraints_are_plain_beam_search_next_to_others(select, k):
    draw = random.Random(k)
    constraints = [
        phrases(*random_phrases(draw, *n)) for n in ([], [1], [2, 1], [], [3], [], [1, 1], [2])
    ]
    pair = generators([build("transformer", 2)], flags(select, k), beam=k, max_len_b=12)
    got, stock = (
        run(pair.ours, constrained(batch(LENGTHS), constraints)),
        run(pair.stock, batch(LENGTHS)),
    )
    for i, c in enumerate(constraints):
        assert got[i] and all(all(met(row, c, False)) for row in tokens(got[i]))
        if not c.any_of:
            same(stock[i : i + 1], got[i : i + 1])


@covering(1)
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("select", SELECTS)
def test_everything_is_met(select, seed, ordered):
    draw = random.Random(seed)
    tables = [random_table(100 * seed + i) for i in range(3)]
    limits = [draw.randint(1, 7) for _ in tables]
    constraints = [random_constraints(draw, limit) for limit in limits]
    found = decode(tables, constraints, draw.randint(1, 3), limits, ordered, select=SELECTS[select])
    for nbest, c in zip(found.lists, constraints, strict=True):
        assert nbest and all(all_met(h, c, ordered) for h in nbest)


@pytest.mark.parametrize("wishes", [["c"], ["ab", "c"], ["ab|c"], ["a", "a"], ["ab", "ba"]])
@pytest.mark.parametrize("select", SELECTS)
def test_a_large_base_beam_finds_all_that_satisfy(select, wishes):
    table = random_table(5, possible=3)
    expected = satisfying(table, wanted(*wishes), 4, False, 3, deadline=True)
    (got,) = outputs(decode([table], [wanted(*wishes)], 100, 4, select=SELECTS[select]))
    assert dict(got) == pytest.approx(expected)


def test_grid_beam_has_b_rows_for_each_of_its_banks():
    """Four words that are all possible: from the third step on, each of the three banks is full."""
    found = decode(
        [random_table(1, possible=8, ending=0)], [wanted("a", "b")], 2, 12, select=GridBeam
    )
    assert max(found.rows) <= 12 * 6 and found.rows[0] >= 6 * (found.step[0] - 3)


def test_more_phrases_than_cbs_has_banks_for_are_refused():
    generator = generators([build("transformer")], {"select": "cbs"}, beam=2, max_len_b=12).ours
    six, seven = (phrases(*([w] for w in range(5, 5 + n))) for n in (6, 7))
    run(generator, constrained(batch([2]), [six]))
    with pytest.raises(UsageError, match="7 constraints .* at most 6, or --select dba"):
        run(generator, constrained(batch([2]), [seven]))


def test_a_base_beam_of_nothing_is_refused():
    with pytest.raises(UsageError, match="--gbs-base .*not 0"):
        generators([build("transformer")], {"select": "gbs", "gbs_base": 0}, beam=2)


@drawn(1)
@pytest.mark.parametrize("select", ["dba", *SELECTS])
def test_a_translation_does_not_depend_on_the_phrases_next_to_it(select):
    """Whole words, which have pieces of several lengths; under cbs the third sentence had other
    banks next to the others than alone."""
    source = (ROOT / "data" / "demo" / "test.de").read_text(encoding="utf-8").splitlines()
    numbers = [27, 91, 104, 128, 140]
    required = [[], ["electrical current"], ["an encryption", "creates a"], [], ["The"]]
    found = {}
    for size in (1, 5):
        translator = Translator(**FLAGS, beam=3, select=select, batch_size=size)
        lists = translator.translate([source[i] for i in numbers], constraints=required)
        found[size] = [[hypothesis.text for hypothesis in nbest] for nbest in lists]
    assert found[1] == found[5]


# ---- Rows behind a banned word that only its end completes:  few of them, and none that the mod


A = SentenceConstraints(banned={usual("a"): "a"})


END = {"$": 1.0}


SPLIT = (*usual("a"), FIRST_WORD + 1)  # "ab" as " a b"


def found(tables, constraints, k: int, max_len: int, select=DBA, nbest: int = 1, **more):
    pool = {
        "constraints": constraints,
        "boundaries": BOUNDARIES_12["word"],
        "banned_in_any_case": False,
        **more,
    }
    lists = search(
        tables, k, stop_plug("count", k), max_len, nbest=nbest, select=select(k, EOS, 12), **pool
    ).lists
    return [[tuple(h.tokens.tolist()[:-1]) for h in each] for each in lists]


@pytest.mark.parametrize("k", [1, 2, 3])
def test_bad_continuations_do_not_drive_out_other_words(k):
    """The three likeliest words are banned, and the model would rather write "b" than go
    on with one of them."""
    banned = SentenceConstraints(banned={usual(each): each for each in ("a", "A", "ab")})
    goes_on = {"$": 0.999, "d": 0.001}
    arcs = {"": {"c": 0.5, "e": 0.3, "a": 0.1, "b": 0.06, "f": 0.04}, "b": END, "f": END}
    after = {word: goes_on for word in "cea"} | {f"{word} d": END for word in "cea"}
    assert read(found([lattice(arcs | after)], [banned], k, 4)[0][0]) == "b"


@pytest.mark.parametrize(
    "k, p, through", [(1, 0.2, False), (4, 0.2, True), (8, 0.2, True), (4, 0.05, False)]
)
def test_a_banned_word_is_continued_where_the_model_would_and_there_is_room(k, p, through):
    """ "ab" as " a b" is the likeliest allowed text in every line: the model gives "b" behind
    " a" the probability p."""
    any_word = {word: 1 / 7 for word in "abcdef$"}
    arcs = {
        "": {"c": 0.9, "b": 0.05, "f": 0.05},
        "c": {"$": 1 - p, "b": p},
        "c b": END,
        "b": any_word,
        "f": any_word,
    }
    assert (found([lattice(arcs)], [A], k, 4)[0][0] == SPLIT) == through


@pytest.mark.parametrize("k", range(1, 10))
def test_a_quarter_of_the_rows_may_be_pending(k):
    seen = [0]

    class Counting(DBA):
        def __call__(self, beam, log_probs, pool):
            pending = self.tables(pool).banned.automata.pending[beam.aux["banned"]]
            pending &= beam.last_score() > -torch.inf  # others are placeholders
            for s in range(len(beam.live)):
                seen.append(int(pending[beam.sentence_of_row() == s].sum()))
            return super().__call__(beam, log_probs, pool)

    found([random_table(seed, possible=6) for seed in range(12)], [A] * 12, k, 6, Counting)
    assert max(seen) == k // 4


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_required_word_that_begins_with_a_banned_one_is_met(k):
    part = required("aa", "exact")
    wanted = SentenceConstraints(
        part.required,
        banned=A.banned,
    )
    for seed in range(5):
        (each,) = found([random_table(seed, possible=6)], [wanted], k, 6)
        assert each
        for best in each:
            assert occurrences(read(best), "aa", "word", "exact") and not violates(
                read(best), ["a"], "word", "exact", True
            )


def test_a_prefix_may_go_through_a_banned_word():
    for seed in range(5):
        ((best,),) = found(
            [random_table(seed, possible=6)], [A], 1, 6, prefix=torch.tensor([SPLIT])
        )
        assert best[:2] == SPLIT


def test_a_required_word_ends_though_the_model_would_rather_continue_it():
    """Behind " a" the three likeliest pieces go on with the word; the best text that has the word
    "a" is "a.", the other ". a"."""
    arcs = {"": {"f": 0.9, "e": 0.0999, "c": 1e-4}, "f": {"f": 0.6, "e": 0.2, "a": 0.2, "c": 1e-7}}
    arcs["c"] = {"b": 0.45, "d": 0.3, "h": 0.2, "f": 0.05}
    assert read(found([lattice(arcs)], [required("a", "exact")], 2, 4)[0][0]) == "a."

"""Required and banned phrases in any segmentation of their text and in any case, against all
sequences of a small vocabulary read as text; and where sentences end.

What a text holds is found by regular expressions here. The pieces write "ab" as one piece and as
two, with and without a space in front, and as "Ab" in two; "b.a", "a b" and " a." have the end of a
word inside them, and " " is a space alone.
"""

import re
from functools import partial
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import example, given, settings
from hypothesis import strategies as st
from required_phrases import Row, accepts, required_phrases
from search.constraints.test_constraint_files import words
from sizes import covering, examples
from table_model import BOS, EOS, FIRST_WORD, random_table, search, stop_plug

from fairseq_ext.search.constraints import allowed_product
from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.pieces import IN, Boundaries, Pieces, find_boundaries
from fairseq_ext.search.phrases.places import meets_in_text
from fairseq_ext.search.phrases.sentence import Cased, SentenceConstraints
from fairseq_ext.search.phrases.sentence_ends import EndTokens, SentenceEnds, end_tokens
from fairseq_ext.search.phrases.token_automaton import minimal
from fairseq_ext.search.strategies.select.bonus import Bonus
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam

PIECES = [" ab", "b", " a", "a", " A", ".", " ", "b.a", "a b", " a."]
WORDS = FIRST_WORD + PIECES.index("b.a")  # from here on they may hold two
V = FIRST_WORD + len(PIECES)
BOUNDARIES = {
    mode: Boundaries(Pieces([""] * FIRST_WORD + PIECES), mode == "word", "sentencepiece", (BOS,))
    for mode in ("word", "prefix")
}
CPU = torch.device("cpu")
MODES = ["word", "prefix"]
CASES = ["exact", "initial", "any"]
TEXTS = ["ab", "a", "a b", "ab ab", "b", "a.", ".", "ba", "a. b", ". a"]


def read(tokens) -> str:
    """A sequence as a reader sees it."""
    return spaced(tokens).strip()


def spaced(tokens) -> str:
    """The same, with a space at the end: what stands before it is over."""
    pieces = "".join(PIECES[t - FIRST_WORD] for t in tokens if t != BOS)
    return re.sub(" +", " ", pieces).lstrip()


def usual(text: str) -> tuple[int, ...]:
    """The segmentation that takes the longest piece each time, with a space in front."""
    left, out = " " + text, []
    while left:
        piece = max((p for p in PIECES if left.startswith(p)), key=len)
        out.append(FIRST_WORD + PIECES.index(piece))
        left = left[len(piece) :]
    return tuple(out)


def pattern(text: str, mode: str) -> str:
    """A regular expression for a phrase that starts a word and, for mode word, ends one."""
    before = r"(?<![aAbB])" if text[0] in "aAbB" else ""
    behind = r"(?![aAbB])" if mode == "word" and text[-1] in "aAbB" else ""
    return before + re.escape(text) + behind


def places(text: str, phrase: str, mode: str, case: str) -> list[tuple[int, int]]:
    """Where a text has a phrase."""
    flags = re.IGNORECASE if case == "any" else 0
    found = re.finditer(f"(?={pattern(phrase, mode)})", text, flags)
    starts = {match.start() for match in found}
    if case == "initial" and re.match(pattern(phrase[0].upper() + phrase[1:], mode), text):
        starts.add(0)
    return [(start, start + len(phrase)) for start in sorted(starts)]


def met_by_hand(text: str, constraints, mode: str, ordered: bool = False) -> list[bool]:
    """Which of (alternatives, case) are met, taking places from the left: disjoint ones for equal
    constraints, one after another where they are ordered."""
    reached: dict = {}
    out = []
    for each in constraints:
        key = None if ordered else each
        ends = [
            end
            for phrase in each[0].split("|")
            for start, end in places(text, phrase, mode, each[1])
            if start >= reached.get(key, 0)
        ]
        reached[key] = min(ends, default=99)
        out.append(bool(ends))
    return out


def required(alternatives: str, case: str = "exact") -> SentenceConstraints:
    """A constraint, which any of the phrases between bars meets."""
    phrases = alternatives.split("|")
    spelt = [p[0].upper() + p[1:] for p in phrases if case != "exact"]
    spelt += [p.upper() for p in phrases if case == "any"]
    forms = tuple(usual(each) for each in spelt if {*each} <= {*"abA ."} and each not in phrases)
    any_of = (tuple(map(usual, phrases)),)
    return SentenceConstraints(required_phrases(any_of, (alternatives,), (Cased(case, forms),)))


def together(constraints) -> SentenceConstraints:
    return SentenceConstraints(sum((required(*each).required for each in constraints), ()))


tokens_ = st.lists(st.sampled_from([BOS, *range(FIRST_WORD, V)]), max_size=6)
constraint = st.tuples(
    st.sets(st.sampled_from(TEXTS), min_size=1, max_size=2).map(sorted).map("|".join),
    st.sampled_from(CASES),
)


@settings(max_examples=examples(900), deadline=None)
@given(
    st.lists(constraint, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(MODES),
    tokens_,
)
def test_required_phrases_are_met_when_their_text_is_there(constraints, ordered, mode, tokens):
    """After every token as if the text ended there: the search's state, the report, and the text
    agree. BOS is in no text."""
    wanted = together(constraints)
    row = Row(wanted.required, ordered, Compiler(BOUNDARIES[mode]))
    report = meets_in_text(read, mode == "word")
    # a piece moves a search on by one place of equal or ordered phrases
    if ordered or len({*constraints}) < len(constraints):
        tokens = [token for token in tokens if token < WORDS]
    for n, token in enumerate(tokens):
        lacks = row.read(token)
        by_hand = met_by_hand(read(tokens[: n + 1]), constraints, mode, ordered)
        assert sum(row.counts()) == sum(by_hand) and (lacks == 0) == all(by_hand)
        assert report(tokens[: n + 1], wanted, ordered) == by_hand


@settings(max_examples=examples(300), deadline=None)
@given(st.sampled_from(TEXTS), st.sampled_from(CASES), st.sampled_from(MODES), tokens_)
def test_proposed_tokens_bring_a_row_to_the_end(phrase, case, mode, tokens):
    """Wherever a row stands, total - bank of the tokens that are proposed meet the phrase,
    unless none may start there."""
    row = Row(required(phrase, case).required, compiler=Compiler(BOUNDARIES[mode]))
    for token in tokens:
        row.read(token)
    while row.bank() < row.total:
        row.step()


def violates(text: str, phrases, mode: str, case: str, ended: bool) -> bool:
    """Whether a text has a banned phrase.

    ended: what stands at its end counts, too, where a word might go on.
    """
    found = [
        m
        for p in phrases
        for m in re.finditer(pattern(p, mode), text, re.IGNORECASE if case == "any" else 0)
    ]
    return any(
        ended or mode == "prefix" or m.end() < len(text) or text[-1] not in "aAbB" for m in found
    )


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sets(
        st.lists(st.integers(FIRST_WORD, V - 1), min_size=1, max_size=5).map(tuple), min_size=1
    ),
    st.sampled_from(TEXTS),
    st.sampled_from(TEXTS),
    st.sampled_from(CASES),
    st.sampled_from(MODES),
)
def test_allowed_outputs_that_meet_all_are_those_whose_texts_do(
    outputs, phrase, avoided, case, mode
):
    rows = list(outputs)
    flat = np.array([token for row in rows for token in row])
    allowed = minimal(flat, np.array(list(map(len, rows))), V)
    demands = allowed_product.Demands(
        required(phrase, case).required, (usual(avoided),), in_any_case=case == "any"
    )
    found = allowed_product.product(allowed, demands, BOUNDARIES[mode], V)
    expected = [
        bool(places(read(row), phrase, mode, case))
        and not violates(read(row), [avoided], mode, case, ended=True)
        for row in rows
    ]
    assert [found is not None and accepts(found, row) for row in rows] == expected


@settings(max_examples=examples(400), deadline=None)
# a token that ends one phrase's word and begins another phrase
@example(["a. b", ". a"], "exact", "word", [FIRST_WORD + PIECES.index(" a.")] * 2)
@given(
    st.lists(st.sampled_from(TEXTS), min_size=1, unique=True),
    st.sampled_from(["exact", "any"]),
    st.sampled_from(MODES),
    tokens_,
)
def test_a_token_is_banned_exactly_when_the_text_would_have_a_banned_phrase(
    phrases, case, mode, wished
):
    table = build_banned(
        [[usual(p) for p in phrases]], CPU, Compiler(BOUNDARIES[mode], case == "any")
    )
    state, tokens = table.start[:1], []
    for token in wished:
        log_probs = LogProbs(torch.zeros(1, V))
        table.ban_(log_probs, state)
        banned = (log_probs.dense()[0] == -torch.inf).nonzero()[:, 0].tolist()
        follow = [
            t
            for t in range(FIRST_WORD, V)
            if violates(spaced([*tokens, t]), phrases, mode, case, False)
        ]
        assert [t for t in banned if t >= FIRST_WORD] == follow
        assert (EOS in banned) == violates(read(tokens), phrases, mode, case, True)
        if token in banned:
            continue
        tokens.append(token)
        state = table.advance(state, torch.tensor([token]))


# ---- searches

SEARCHED = 6  # pieces of the searches: all but the space and "b.a"
BOUNDARIES_12 = {
    mode: Boundaries(
        Pieces([""] * FIRST_WORD + PIECES[:SEARCHED] + ["q", "r"]), mode == "word", "spm", (BOS,)
    )
    for mode in MODES
}


def decode(
    constraints, k: int, max_len: int, select=DBA, table=(3, SEARCHED), **pool
) -> dict[tuple[int, ...], float]:
    """The sequences that a search finds, with their scores. table: seed, and number of words."""
    stop, plug = stop_plug("count", k), select(k, EOS, 12)
    pool |= {"constraints": [constraints], "nbest": 5000, "select": plug}
    (found,) = search([random_table(table[0], possible=table[1])], k, stop, max_len, **pool).lists
    return {tuple(h.tokens.tolist()[:-1]): h.score for h in found}


def every(max_len: int, seed: int = 3, possible: int = SEARCHED) -> dict[tuple[int, ...], float]:
    """The score of each sequence."""
    table, words = random_table(seed, possible=possible), range(FIRST_WORD, FIRST_WORD + possible)
    sequences = (s for n in range(1, max_len + 1) for s in product(words, repeat=n))
    return {s: sum(table(s[:i])[t] for i, t in enumerate((*s, EOS))) for s in sequences}


@covering(1)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "phrase, case", [("ab", "any"), ("ab", "initial"), ("a ab", "exact"), ("ab", "exact")]
)
def test_a_large_beam_finds_every_sequence_whose_text_has_the_phrase(phrase, case, mode):
    """But those that the deadline cuts, which counts usual pieces only; other segmentations
    are among what is found."""
    wanted, own = required(phrase, case), usual(phrase)
    got = decode(wanted, 1500, 3, boundaries=BOUNDARIES_12[mode])

    def in_time(sequence) -> bool:
        row = Row(wanted.required, compiler=Compiler(BOUNDARIES_12[mode]))
        return all(row.read(token) <= 3 - n for n, token in enumerate(sequence, 1))

    expected = {s: x for s, x in every(3).items() if places(read(s), phrase, mode, case)}
    assert got == pytest.approx({s: score for s, score in expected.items() if in_time(s)})
    others = [s for s in got if all(own != s[i : i + len(own)] for i in range(len(s)))]
    assert others and len(others) < len(got)


@pytest.mark.parametrize("select", [DBA, GridBeam], ids=["dba", "gbs"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "phrases, case", [(["ab"], "any"), (["ab"], "exact"), (["a", "ab a"], "any")]
)
def test_a_large_beam_finds_every_sequence_without_a_banned_phrase(phrases, case, mode, select):
    """Up to the last token before the limit, behind which no word can go on."""
    banned = SentenceConstraints(banned={usual(each): each for each in phrases})
    how = dict(boundaries=BOUNDARIES_12[mode], banned_in_any_case=case == "any")
    allowed = {
        s: x for s, x in every(3).items() if not violates(read(s), phrases, mode, case, True)
    }
    assert decode(banned, 1500, 3, select, **how) == pytest.approx(allowed)


# ---- --constraint-end; words here: A B are words, d is a digit, . ends a sentence, ' closes a
#      quotation

SYMBOLS = "ABd.'"


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(FIRST_WORD + SYMBOLS.index(symbol) for symbol in text)


def mask(symbols: str) -> torch.Tensor:
    return torch.zeros(12, dtype=torch.bool).index_fill(0, torch.tensor(tokens_of(symbols)), True)


TOKENS = EndTokens(mask("."), mask("'"), mask("."), mask("d"))


def keeps(text: str, phrases: tuple[str, ...], allowed: int) -> bool:
    """The rule, read off a text whose phrases hold no end: all of them before the last end that it
    may have, and only . and ' behind it."""
    ends = [
        i
        for i, symbol in enumerate(text)
        if symbol == "." and text[i - 1 : i] != "d" and not in_run(text, i)
    ]
    if len(ends) < allowed:
        return True
    last = ends[allowed - 1]
    return set(text[last:]) <= set(".'") and all(phrase in text[:last] for phrase in phrases)


def in_run(text: str, i: int) -> bool:
    """Whether an end stands behind another one, with nothing but closing quotes between them."""
    before = text[:i].rstrip("'")
    return before.endswith(".") and not before.endswith("d.")


def ended(phrases: tuple[str, ...], k: int, max_len: int, allowed: int, select=DBA):
    """The texts that a search finds, with their scores."""
    of = [(tokens_of(phrase),) for phrase in phrases]
    constraints, ends = required_phrases(of, phrases), SentenceEnds(TOKENS, torch.tensor([allowed]))
    got = decode(SentenceConstraints(constraints), k, max_len, select, (5, 5), ends=ends)
    return {as_text(tokens): score for tokens, score in got.items()}


def as_text(tokens) -> str:
    return "".join(SYMBOLS[token - FIRST_WORD] for token in tokens)


@covering(1)
@pytest.mark.parametrize("select", [DBA, GridBeam, ConstrainedBeam], ids=["dba", "gbs", "cbs"])
@pytest.mark.parametrize("allowed", [1, 2])
@pytest.mark.parametrize("phrases", [("A",), ("AB",), ("A", "B"), ("dA",)], ids=" ".join)
def test_a_large_beam_finds_every_sequence_that_keeps_to_the_rule(phrases, allowed, select):
    texts = {as_text(tokens): score for tokens, score in every(4, 5, 5).items()}
    expected = {
        text: score
        for text, score in texts.items()
        if all(phrase in text for phrase in phrases) and keeps(text, phrases, allowed)
    }
    got = ended(phrases, 800, 4, allowed, select)
    # what the deadline forbids is no matter of this rule: those that have room for their
    # phrases at every step
    missing = set(expected) - set(got)
    assert set(got) <= set(expected) and all(late(text, phrases) for text in missing)
    assert got == pytest.approx({text: expected[text] for text in got})


def late(text: str, phrases: tuple[str, ...], max_len: int = 4) -> bool:
    """Whether a prefix of the text leaves no room for the phrases that it lacks."""

    def begun(text: str, phrase: str) -> int:
        return max(n for n in range(len(phrase)) if text.endswith(phrase[:n]))

    return any(
        sum(len(p) - begun(text[:n], p) for p in phrases if p not in text[:n]) > max_len - n
        for n in range(1, len(text) + 1)
    )


def test_an_end_inside_a_phrase_is_none():
    """A phrase that holds a period can be met, and the sentence goes on behind it."""
    got = {*ended(("A.B",), 800, 4, 1)}
    assert {"A.B", "A.B.", "BA.B", "A.BB", "A.BA"} <= got and "A.B.B" not in got
    assert {"A.", "AA.", "A.."} <= {*ended(("A.",), 800, 3, 1)}


def test_soft_phrases_do_not_hold_up_the_end_and_do_not_follow_it():
    got = {*ended(("AB",), 800, 4, 1, partial(Bonus, 1.0))}
    assert {"B.", "AB.", "B..'"} <= got and "B.AB" not in got


@pytest.mark.parametrize(
    "text, ends",
    [
        *(("", 0), ("A", 0), ("A.", 1), ("A.'.", 1), ("A.B.", 2), ("d.A", 0), ("d..", 1)),
        *(("'A", 0), ("A...B", 1)),
    ],
)
def test_sentence_ends_of_a_source(text, ends):
    assert TOKENS.count(tokens_of(text)) == ends


# ---- what is known of each segmentation


def contexts(found: Boundaries) -> str:
    """Of each token whether it continues a word (+) and whether it may be continued (+)."""
    both = zip(found.continues_word, found.context_after == IN, strict=True)
    return " ".join("-+"[bool(one)] + "-+"[bool(other)] for one, other in both)


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ("▁the re ▁ , ▁( 's t ▁中 文", "-+ ++ -- -- -- -+ ++ -- --"),
        ("the re@@ , -@@ 5", "+- ++ -- -- +-"),
    ],
)
def test_marks_say_where_words_begin(symbols, expected):
    found = find_boundaries(words(symbols), None, None)
    assert found is not None and found.whole_words
    # <s> is not printed; no translation goes on after <pad> and </s>; <unk>
    assert contexts(found).split(" ", 4)[4] == expected
    assert contexts(found).split()[1:3] == ["--", "--"]


def test_byte_pieces_are_read_through_their_encoder():
    texts = {"11": " the", "12": "re", "13": ",", "14": " ("}
    bpe = type("GPT2BPE", (), {"decode": staticmethod(texts.__getitem__)})()
    found = find_boundaries(words(" ".join(texts)), bpe, "prefix")
    assert found is not None and not found.whole_words and found.kind == "gpt2"
    assert contexts(found).split(" ", 4)[4] == "-+ ++ -- --"


def test_what_is_not_known_is_said(caplog):
    plain = words("the cat")
    assert find_boundaries(plain, None, "none") is None and not caplog.records
    assert (
        find_boundaries(plain, None, "word") is None and "segmentation is not known" in caplog.text
    )
    assert find_boundaries(plain, SimpleNamespace(), None) is None


@pytest.mark.parametrize(
    ("symbols", "final", "closer", "abbreviates"),
    [
        (
            '▁the ▁J s . ▁. ... ." " ▁" ” “ ) ▁3 5 ?! Mr. ,',
            '. ▁. ... ." ?!',
            '" ” “ )',
            "▁J ▁3 5",
        ),
        # as Moses writes it
        ("the re@@ . &quot; &apos; 3@@ 3 U.S. !", ". !", "&quot; &apos;", "3@@"),
    ],
    ids=["sentencepiece", "subword-nmt"],
)
def test_what_ends_a_sentence(symbols, final, closer, abbreviates):
    found = end_tokens(words(symbols), None)
    for expected, mask in (
        (final, found.final),
        (closer, found.closer),
        (".", found.period),
        (abbreviates, found.abbreviates),
    ):
        at = mask[Dictionary().nspecial :].nonzero()[:, 0].tolist()
        assert [symbols.split()[i] for i in at] == expected.split()

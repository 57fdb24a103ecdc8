"""Required phrases as whole words: automata against reading the text, searches against brute force
over all sequences, and what is known of each segmentation.

Words of these tests are written in two kinds of pieces: A B C D start a word, a b c d continue one;
"Ab" is the word of A and b.
"""

import math
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from hypothesis import given, settings
from hypothesis import strategies as st
from required_phrases import required_phrases
from search.strategies.select.test_dba import VOCABULARY
from sizes import covering, examples
from table_model import BOS, EOS, FIRST_WORD, random_table, search, stop_plug

from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.phrases.phrase_table import Compiler, build_table
from fairseq_ext.search.phrases.pieces import Boundaries, Pieces, find_boundaries
from fairseq_ext.search.phrases.places import InText
from fairseq_ext.search.phrases.sentence import SentenceConstraints
from fairseq_ext.search.strategies.select.cbs import ConstrainedBeam
from fairseq_ext.search.strategies.select.dba import DBA
from fairseq_ext.search.strategies.select.gbs import GridBeam

SYMBOLS = "ABab"  # the tables' words: two that start a word, two that continue one
MODES = ["word", "prefix"]


def number(symbol: str) -> int:
    return FIRST_WORD + SYMBOLS.index(symbol)


def tokens_of(phrase: str) -> tuple[int, ...]:
    return tuple(map(number, phrase))


def boundaries(mode: str) -> Boundaries:
    texts = [""] * VOCABULARY
    for symbol in SYMBOLS:
        texts[number(symbol)] = f" {symbol}" if symbol.isupper() else symbol
    return Boundaries(Pieces(texts), mode == "word", "sentencepiece", (BOS,))


def words(tokens) -> list[str]:
    """The words of a sequence; letters that continue nothing are a word too."""
    out: list[str] = []
    for token in tokens:
        symbol = SYMBOLS[token - FIRST_WORD]
        if symbol.islower() and out:
            out[-1] += symbol
        else:
            out.append(symbol)
    return out


def ends_of(phrase: str, tokens, mode: str) -> list[tuple[int, int]]:
    """Where a phrase stands in a sequence, as first and last token, read off the words: it starts
    a word, and ends one (prefix: or not)."""
    text = "".join(SYMBOLS[t - FIRST_WORD] for t in tokens)
    starts = {0, *(i for i, symbol in enumerate(text) if symbol.isupper())}
    found = [
        i
        for i in range(len(text) - len(phrase) + 1)
        if text[i : i + len(phrase)] == phrase and i in starts
    ]
    whole = [i for i in found if i + len(phrase) in starts or i + len(phrase) == len(text)]
    return [(i, i + len(phrase)) for i in (whole if mode == "word" else found)]


def met_by_hand(constraints: list[list[str]], tokens, mode: str, ordered: bool) -> list[bool]:
    """Taking occurrences from the left: disjoint ones for equal constraints, one after another
    where they are ordered."""
    reached: dict = {}
    out = []
    for alternatives in constraints:
        key = None if ordered else tuple(sorted(alternatives))
        ends = [
            end
            for phrase in alternatives
            for start, end in ends_of(phrase, tokens, mode)
            if start >= reached.get(key, 0)
        ]
        reached[key] = min(ends, default=10**6)
        out.append(bool(ends))
    return out


def required(constraints: list[list[str]]) -> SentenceConstraints:
    any_of = tuple(tuple(map(tokens_of, alternatives)) for alternatives in constraints)
    return SentenceConstraints(
        required_phrases(any_of, tuple("|".join(alternatives) for alternatives in constraints))
    )


# ---- automata

phrase = st.text(SYMBOLS, min_size=1, max_size=3)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.lists(phrase, min_size=1, max_size=2, unique=True), min_size=1, max_size=3),
    st.text(SYMBOLS, max_size=9),
    st.sampled_from(MODES),
    st.booleans(),
)
def test_a_row_has_met_what_its_words_say(constraints, text, mode, ordered):
    """After every token as if the sentence ended there: what waits is met."""
    known = {}
    # equal phrases of different constraints are another matter (test_phrases.py)
    for alternatives in constraints:
        known.setdefault(tuple(sorted(alternatives)), alternatives)
    constraints = list(known.values())
    table = build_table(
        [required(constraints).required], ordered, torch.device("cpu"), Compiler(boundaries(mode))
    )
    place, count = (x[None] for x in table.begin(torch.tensor([0])))
    for n, token in enumerate(tokens_of(text)):
        now = torch.tensor([[token]])
        place, count = table.advance(place, count, now)
        hand = met_by_hand(constraints, tokens_of(text[: n + 1]), mode, ordered)
        settled = table.advance(place, count, torch.tensor([[EOS]]))[1]
        assert (int(table.bank(place, count)) == int(table.total)) == all(hand)
        if not ordered:
            assert settled[0, 0, : len(constraints)].tolist() == [int(h) for h in hand]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.lists(phrase, min_size=1, max_size=2, unique=True), min_size=1, max_size=3),
    st.lists(phrase, min_size=1, max_size=3),
    st.lists(st.sampled_from([BOS, *tokens_of(SYMBOLS)]), max_size=9),
    st.sampled_from(MODES),
    st.booleans(),
)
def test_a_token_that_no_reader_sees_changes_nothing(constraints, avoided, tokens, mode, ordered):
    """What stands on the two sides of BOS stands side by side in the text, so required and banned
    phrases are read across it."""
    table = build_table(
        [required(constraints).required], ordered, torch.device("cpu"), Compiler(boundaries(mode))
    )
    banned = build_banned(
        [list(map(tokens_of, avoided))], torch.device("cpu"), Compiler(boundaries(mode))
    )
    ends = []
    for row in (tokens, [token for token in tokens if token != BOS]):
        state, count = (x[None] for x in table.begin(torch.tensor([0])))
        forbidden = banned.start
        for token in row:
            state, count = table.advance(state, count, torch.tensor([[token]]))
            forbidden = banned.advance(forbidden, torch.tensor([token]))
        ends.append((state.tolist(), count.tolist(), forbidden.tolist()))
    assert ends[0] == ends[1]


# ---- searches

CASES = {
    "a word that may be continued": [["A"]],
    "a word of two pieces": [["Ab"]],
    "two words": [["A"], ["B"]],
    "two words side by side": [["AB"]],
    "a word inside another": [["A"], ["Ab"]],
    "alternatives": [["Aa", "B"]],
    "the same word twice": [["A"], ["A"]],
    "a piece that never starts a word": [["a", "B"]],
}


def decode(table, constraints, k: int, max_len: int, mode: str, select=DBA, ordered: bool = False):
    plug = select(k, EOS, VOCABULARY)
    more = {
        "constraints": [required(constraints)],
        "ordered": ordered,
        "boundaries": boundaries(mode),
    }
    (found,) = search(
        [table], k, stop_plug("count", k), max_len, nbest=1000, select=plug, **more
    ).lists
    return {tuple(h.tokens.tolist()[:-1]): h.score for h in found}


@covering(1)
@pytest.mark.parametrize("select", [DBA, GridBeam, ConstrainedBeam], ids=["dba", "gbs", "cbs"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("case", CASES)
def test_a_large_beam_finds_every_sequence_whose_words_satisfy(case, mode, select):
    """All sequences of up to four pieces, with their scores; the last step leaves no room
    for what would unwind."""
    constraints, table = CASES[case], random_table(3, possible=4)
    expected = {}
    for n in range(1, 5):
        for sequence in product(range(FIRST_WORD, FIRST_WORD + 4), repeat=n):
            if all(met_by_hand(constraints, sequence, mode, False)):
                expected[sequence] = sum(
                    table(sequence[:i])[token] for i, token in enumerate((*sequence, EOS))
                )
    got = decode(table, constraints, 400, 4, mode, select)
    assert got == pytest.approx(
        {s: score for s, score in expected.items() if in_time(s, constraints, mode, 4)}
    )


def in_time(sequence, constraints, mode: str, max_len: int) -> bool:
    """Whether every prefix leaves room for the tokens that it lacks, one phrase behind the other,
    as the deadline of dba.py requests."""
    table = build_table(
        [required(constraints).required], False, torch.device("cpu"), Compiler(boundaries(mode))
    )
    place, count = (x[None] for x in table.begin(torch.tensor([0])))
    for n, token in enumerate(sequence):
        now = torch.tensor([[token]])
        place, count = table.advance(place, count, now)
        if int(table.total) - int(table.bank(place, count)) > max_len - n - 1:
            return False
    return True


@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("seed", range(8))
def test_bos_ends_no_required_word(seed, k):
    """Text leaves it out, so that A, BOS, b reads Ab."""
    others = random_table(seed)
    found = decode(
        lambda prefix: [math.log(0.7), *(p + math.log(0.3) for p in others(prefix)[1:])],
        [["A"]],
        k,
        8,
        "word",
    )
    assert any(BOS in sequence for sequence in found)
    assert all(
        met_by_hand([["A"]], [token for token in sequence if token != BOS], "word", False) == [True]
        for sequence in found
    )


# ---- text


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.lists(phrase, min_size=1, max_size=2, unique=True), min_size=1, max_size=3),
    st.text(SYMBOLS, max_size=9),
    st.sampled_from(MODES),
    st.booleans(),
)
def test_the_report_reads_the_words(constraints, text, mode, ordered):
    """Its text parts words by spaces; a phrase whose first piece continues a word counts
    where it starts one."""
    reader = InText(lambda tokens: " ".join(words(tokens)), mode == "word")
    assert reader(tokens_of(text), required(constraints), ordered) == met_by_hand(
        constraints, tokens_of(text), mode, ordered
    )


# ---- segmentations


def dictionary(*symbols: str) -> Dictionary:
    out = Dictionary()
    for symbol in symbols:
        out.add_symbol(symbol)
    return out


@pytest.mark.parametrize(
    "symbols",
    [["▁the", "re", "▁", ",", "▁(", "'s", "t", "▁中", "文"], ["the", "re@@", ",", "-@@", "5"]],
)
def test_marks_say_where_words_begin(symbols):
    found = find_boundaries(dictionary(*symbols), None, None)
    assert found is not None and found.whole_words
    first = Dictionary().nspecial
    expected = {
        "▁the": (False, True),
        "re": (True, True),
        "▁": (False, False),
        ",": (False, False),
        "▁(": (False, False),
        "'s": (False, True),
        "t": (True, True),
        "▁中": (False, False),
        "文": (False, False),
        "the": (True, False),
        "re@@": (True, True),
        "-@@": (False, False),
        "5": (True, False),
    }
    for i, symbol in enumerate(symbols):
        assert (
            bool(found.continues_word[first + i]),
            bool(found.may_be_continued[first + i]),
        ) == expected[symbol], symbol
    assert (
        not found.continues_word[Dictionary().eos()]
        and not found.may_be_continued[Dictionary().bos()]
    )


def test_byte_pieces_are_read_through_their_encoder():
    texts = {"11": " the", "12": "re", "13": ",", "14": " ("}
    bpe = type("GPT2BPE", (), {"decode": staticmethod(texts.__getitem__)})()
    found = find_boundaries(dictionary(*texts), bpe, "prefix")
    assert found is not None and not found.whole_words and found.kind == "gpt2"
    first = Dictionary().nspecial
    assert found.continues_word[first:].tolist() == [
        False,
        True,
        False,
        False,
    ] and found.may_be_continued[first:].tolist() == [True, True, False, False]


def test_what_is_not_known_is_said(caplog):
    plain = dictionary("the", "cat")
    assert find_boundaries(plain, None, "none") is None and not caplog.records
    assert (
        find_boundaries(plain, None, "word") is None and "segmentation is not known" in caplog.text
    )
    assert find_boundaries(plain, SimpleNamespace(), None) is None

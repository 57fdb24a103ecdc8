"""The automata of phrases against the plainest reading of what they say, and the smallest automaton
of allowed outputs: its language, its size, its lengths, its file."""

import itertools
import pickle
import random
import re
import unicodedata
from collections import Counter
from operator import mul

import numpy as np
import pytest
import torch
from fairseq.token_generation_constraints import pack_constraints, unpack_constraints
from hypothesis import given, settings
from hypothesis import strategies as st
from required_phrases import Row, accepts, prefix_of, required_phrases
from search.constraints.test_constraint_files import ids, words
from sizes import examples

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.input import pack
from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases import token_automaton
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.pieces import is_letter
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Text,
    match_phrases_in_order,
)
from fairseq_ext.search.phrases.sentence import SentenceConstraints, merge, met
from fairseq_ext.search.phrases.token_automaton import (
    TokenAutomaton,
    minimal,
    opened,
)


def plain(constraints, tokens, ordered: bool) -> tuple[list[int], int, int, set[int]]:
    """The counts, bank, total and proposals of a `Row` without automata: a constraint looks at the
    tokens read since it was last met (ordered: since it became current)."""
    kinds = [tuple(sorted({*each})) for each in constraints]
    groups = [(kind, 1) for kind in kinds] if ordered else list(Counter(kinds).items())
    met, start = [0] * len(groups), [0] * len(groups)

    def active() -> list[int]:
        found = [g for g, (_, need) in enumerate(groups) if met[g] < need]
        return found[:1] if ordered else found

    def begun(phrase, g: int, n: int, end: int) -> bool:
        return n <= end - start[g] and tokens[end - n : end] == phrase[:n]

    for end in range(1, len(tokens) + 1):
        for g in active():
            if any(begun(p, g, len(p), end) for p in groups[g][0]):
                met[g] += 1
                for other in range(len(groups)) if ordered else [g]:
                    start[other] = end
    at = {
        (g, p): max(n for n in range(len(p)) if begun(p, g, n, len(tokens)))
        for g in active()
        for p in groups[g][0]
    }
    shortest = [min(map(len, phrases)) for phrases, _ in groups]
    # tokens of met constraints, and what the closest phrase of an open one has
    partial = max([0, *(shortest[g] - len(p) + n for (g, p), n in at.items())])
    bank = sum(map(mul, met, shortest)) + partial
    total = sum(map(mul, (need for _, need in groups), shortest))
    return met, bank, total, {p[n] for (_, p), n in at.items()}


# ---- brute force on random strings over tiny alphabets

letters = st.integers(1, 3)
phrase = st.lists(letters, min_size=1, max_size=4).map(tuple)
constraint = st.lists(phrase, min_size=1, max_size=3).map(tuple)
constraints_ = st.one_of(
    st.lists(phrase.map(lambda p: (p,)), min_size=0, max_size=4),  # plain, copies likely
    st.lists(constraint, min_size=0, max_size=3),
)


@settings(max_examples=examples(400), deadline=None)
@given(constraints_, st.lists(letters, max_size=14), st.booleans())
def test_equals_looking_at_every_suffix(constraints, tokens, ordered):
    row, tokens = Row(required_phrases(constraints), ordered), tuple(tokens)
    for n in range(1, len(tokens) + 1):
        row.read(tokens[n - 1])
        counts, *facts = plain(constraints, tokens[:n], ordered)
        assert row.counts()[: len(counts)] == counts
        assert [row.bank(), row.total, row.proposed()] == facts


@settings(max_examples=examples(200), deadline=None)
@given(constraints_, st.lists(letters, max_size=10), st.booleans())
def test_some_wanted_token_always_brings_a_row_closer(constraints, tokens, ordered):
    """What the deadline rests on: total - bank steps are enough, wherever a row stands."""
    row = Row(required_phrases(constraints), ordered)
    for token in tokens:
        row.read(token)
    while row.bank() < row.total:
        row.step()


# ---- places of phrases in a text


@given(st.characters(min_codepoint=0x3000, max_codepoint=0x30FF) | st.sampled_from("ｰｱﾝ一龥"))
def test_no_sign_of_these_scripts_joins_a_word(sign):
    script = unicodedata.name(sign, "")
    if re.match("(HALFWIDTH )?(HIRAGANA|KATAKANA)|CJK UNIFIED|IDEOGRAPHIC", script):
        assert not is_letter(sign), script


def comes(words: list[str], phrases: list[set[str]]) -> bool:
    """Whether some words stand for the phrases one after another."""
    choices = itertools.combinations(words, len(phrases))
    return any(
        all(word in each for word, each in zip(chosen, phrases, strict=True)) for chosen in choices
    )


@given(
    st.lists(st.sampled_from("abc"), max_size=5),
    st.lists(st.sets(st.sampled_from("abc"), min_size=1), max_size=4),
)
def test_phrases_in_order_have_places_as_far_as_they_come(words, phrases):
    text = " ".join(words)
    found = match_phrases_in_order(
        Text(text, segmented=False), [PhraseToFind(sorted(each), "exact") for each in phrases]
    )
    come = [comes(words, phrases[:n]) for n in range(1, len(phrases) + 1)]
    assert [place is not None for place in found] == come
    spans = [place[1] for place in found if place is not None]
    assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
    for place, each in zip(found, phrases, strict=True):
        assert place is None or text[slice(*place[1])] == sorted(each)[place[0]] in each


# ---- the smallest automaton of a list of token sequences


def language(automaton: TokenAutomaton, state: int) -> frozenset[tuple[int, ...]]:
    """All that may follow in a state."""
    found = {()} if automaton.final[state] else set()
    for arc in range(automaton.first[state], automaton.first[state + 1]):
        below = language(automaton, int(automaton.target[arc]))
        found |= {(int(automaton.token[arc]), *rest) for rest in below}
    return frozenset(found)


def drawn_list(seed: int) -> tuple[list[tuple[int, ...]], int]:
    chance = random.Random(seed)
    vocabulary = chance.choice([1, 2, 3, 6, 70_000])
    tokens = [chance.randrange(vocabulary) for _ in range(6)]
    found = [
        tuple(chance.choice(tokens) for _ in range(chance.randint(1, 5)))
        for _ in range(chance.randint(1, 60))
    ]
    return found, vocabulary


def made(sequences, vocabulary: int) -> TokenAutomaton:
    flat = np.array([token for each in sequences for token in each])
    return minimal(flat, np.array(list(map(len, sequences))), vocabulary)


@pytest.mark.parametrize("part", range(4))
def test_it_allows_the_list_alone_and_no_two_states_are_equal(part):
    for seed in range(part * 50, part * 50 + 50):
        sequences, vocabulary = drawn_list(seed)
        automaton = made(sequences, vocabulary)
        assert language(automaton, 0) == set(sequences)
        languages = [language(automaton, state) for state in range(len(automaton))]
        assert len(set(languages)) == len(languages)
        assert automaton.shortest.tolist() == [min(map(len, each)) for each in languages]
        assert automaton.longest.tolist() == [max(map(len, each)) for each in languages]
        assert all(accepts(automaton, each) for each in sequences)


def test_equal_hashes_of_different_states_are_noticed(monkeypatch):
    """The first seed gives every node the same hash."""
    mixed, calls = token_automaton.mixed, []

    def poor(value: np.ndarray) -> np.ndarray:
        calls.append(1)
        return np.zeros_like(value) if len(calls) < 4 else mixed(value)

    monkeypatch.setattr(token_automaton, "mixed", poor)
    sequences = [(1, 2, 3), (1, 3), (2, 2), (3,)]
    assert language(made(sequences, 5), 0) == set(sequences)


def test_a_file_and_another_process_have_the_same_automaton(tmp_path, monkeypatch):
    automaton = made(*drawn_list(3))
    automaton.write(str(tmp_path / "a"))
    again = opened(str(tmp_path / "a"))
    monkeypatch.setattr(token_automaton, "LARGE", 0)
    for each in (again, pickle.loads(pickle.dumps(automaton)), pickle.loads(pickle.dumps(again))):
        assert each.digest == automaton.digest and language(each, 0) == language(automaton, 0)


# ---- the automaton of banned phrases against brute force

V = 6
CPU = torch.device("cpu")


def banned_now(table, state: torch.Tensor) -> list[set[int]]:
    """Tokens that `ban_` makes impossible in rows of these states."""
    log_probs = LogProbs(torch.zeros(state.numel(), V))
    table.ban_(log_probs, state)
    return [set((row == -torch.inf).nonzero()[:, 0].tolist()) for row in log_probs.dense()]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(st.lists(phrase, max_size=5), min_size=1, max_size=3), st.lists(letters, max_size=14)
)
def test_banned_is_what_would_finish_a_phrase(sentences, wished):
    table = build_banned(sentences, CPU)
    for s, phrases in enumerate(sentences):
        state, tokens = table.start[s : s + 1], []
        for token in wished:
            # by definition: tokens behind which some banned phrase stands
            ending = {t: tuple([*tokens, t]) for t in range(V)}
            banned = {t for t in ending if any(ending[t][-len(p) :] == p for p in phrases)}
            assert banned_now(table, state) == [banned]
            if token not in banned:  # else the search cannot take it
                tokens.append(token)
                state = table.advance(state, torch.tensor([token]))


def test_a_shortlist_is_banned_by_word_not_by_column():
    table = build_banned([[(4,), (2,)]], CPU)
    log_probs = LogProbs(torch.zeros(1, 3), torch.tensor([1, 4, 5]), V)  # 2 is not on it
    table.ban_(log_probs, table.start)
    assert log_probs.dense()[0, [1, 4, 5]].tolist() == [0.0, -torch.inf, 0.0]


def test_a_table_that_has_all_lists_is_used_again():
    first, second = [(1, 2), (3,)], [(2, 3)]
    compiler = Compiler()
    table = build_banned([first, second, []], CPU, compiler)
    again = build_banned([[], [(3,), (1, 2)], first], CPU, compiler)
    assert again.automata is table.automata and again.start.tolist() == [
        table.start[i] for i in (2, 0, 0)
    ]
    assert table.start[0] == again.start[1] and banned_now(again, again.start) == [set(), {3}, {3}]
    other = build_banned([first, [(1,)]], CPU, compiler)
    assert other.automata is not table.automata and banned_now(other, other.start) == [{3}, {1}]


# ---- constraints of a hypothesis: which are met

kinds = st.lists(st.lists(phrase, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3)
# equal ones are frequent
constraint_lists = kinds.flatmap(lambda few: st.lists(st.sampled_from(few), max_size=4))
hypotheses = st.lists(letters, max_size=10)


def constraints(any_of) -> SentenceConstraints:
    return SentenceConstraints(required_phrases(any_of, map(str, any_of)))


def spans_of(tokens, alternatives):
    return [
        (i, i + len(p))
        for p in alternatives
        for i in range(len(tokens))
        if tuple(tokens[i : i + len(p)]) == p
    ]


def most_disjoint(spans) -> int:
    """By trying every choice."""
    return max(
        (
            1 + most_disjoint([s for s in spans[i + 1 :] if s[1] <= start or s[0] >= end])
            for i, (start, end) in enumerate(spans)
        ),
        default=0,
    )


def longest_chain(tokens, any_of, start=0) -> int:
    """Constraints from the first on that can be laid one after another, by
    trying every choice."""
    if not any_of:
        return 0
    spans = [s for s in spans_of(tokens, any_of[0]) if s[0] >= start]
    return max((1 + longest_chain(tokens, any_of[1:], end) for _, end in spans), default=0)


@given(constraint_lists, hypotheses)
def test_met_equals_trying_every_choice(any_of, tokens):
    count = longest_chain(tokens, any_of)
    in_order = met(tokens, constraints(any_of), ordered=True)
    assert in_order == [True] * count + [False] * (len(any_of) - count)
    answer = met(tokens, constraints(any_of), ordered=False)
    for kind in {frozenset(c) for c in any_of}:
        copies = [found for found, c in zip(answer, any_of, strict=True) if frozenset(c) == kind]
        count = min(len(copies), most_disjoint(sorted(set(spans_of(tokens, kind)))))
        assert copies == [True] * count + [False] * (len(copies) - count)


# ---- packed tensors


words_ = st.lists(st.integers(4, 9), min_size=1, max_size=4).map(tuple)
of_words = st.lists(st.lists(words_, min_size=1, max_size=2).map(tuple), max_size=4)


@given(st.lists(of_words.map(constraints), min_size=1, max_size=3))
def test_fairseq_unpacks_the_printed_alternatives_and_they_come_back(sentences):
    packed = pack(sentences, lambda alternatives: alternatives[-1])
    for sentence, row in zip(sentences, packed, strict=True):
        printed = [alternatives[-1] for alternatives in sentence.any_of]
        assert [tuple(p.tolist()) for p in unpack_constraints(row)] == printed
        assert from_packed(row, words(), 0).any_of == tuple((phrase,) for phrase in printed)


@pytest.mark.parametrize("width", [1, 20])
def test_a_field_that_starts_with_s_is_a_prefix(width):
    """As fairseq-interactive packs it, with a sentence whose constraints make the tensor wider."""
    dictionary = words()
    fields = [torch.tensor(ids(dictionary, field)) for field in ("a b", "<s> c d", "e")]
    packed = pack_constraints([fields, [torch.full((width,), 9)]])[0]
    found = from_packed(packed, dictionary, 0)
    assert found.any_of == (((4, 5),), ((8,),))
    assert found.prefix == prefix_of((6, 7), "c d")
    assert found.text == ("a b", "e")


# ---- merging and conflicts


def test_what_the_other_side_bans_becomes_unmet():
    banning = SentenceConstraints(banned={(2, 3): "bad words"})
    required = required_phrases((((1, 2, 3),), ((2,),)), ("one bad words", "fine"))
    prefix = prefix_of((2, 3), "bad words")
    both = merge(banning, SentenceConstraints(required, prefix=prefix))
    assert both.any_of == (((2,),),) and both.text == ("fine",)
    assert both.prefix == ()
    reason = "conflicts with the banned phrase 'bad words'"
    assert both.unmet == (("one bad words", reason), ("bad words", reason))


@given(st.lists(phrase, min_size=1, max_size=3, unique=True), constraint_lists)
def test_nothing_kept_contains_a_banned_phrase(banned, any_of):
    banning = SentenceConstraints(banned={each: str(each) for each in banned})
    both = merge(banning, constraints(any_of))
    # in the same order, with duplicates
    clean = [[p for p in c if not any(spans_of(p, [a]) for a in banned)] for c in any_of]
    assert [list(c) for c in both.any_of] == [c for c in clean if c]
    assert len(both.unmet) + len(both.any_of) == len(any_of)


def test_two_prefixes_are_refused_and_too_many_constraints():
    with pytest.raises(UsageError, match="two target prefixes"):
        merge(*(SentenceConstraints(prefix=prefix_of((token,))) for token in (1, 2)))
    with pytest.raises(UsageError, match="has 66 phrases"):
        merge(*(constraints([((token,),)] * 33) for token in (1, 2)))

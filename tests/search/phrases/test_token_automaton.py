"""The smallest automaton of a list of token sequences: its language, its size, its lengths, its
file."""

import pickle
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sizes import drawn, examples

from fairseq_ext.search.constraints.banned import build_banned
from fairseq_ext.search.log_probs import LogProbs
from fairseq_ext.search.phrases import automaton, token_automaton
from fairseq_ext.search.phrases.automaton import (
    NO_ITEMS,
    Pattern,
    PatternReader,
    PhraseAutomata,
    compile_automaton,
)
from fairseq_ext.search.phrases.phrase_table import Compiler
from fairseq_ext.search.phrases.pieces import IN, LED, OUT, SPACE, START, Boundaries, Pieces
from fairseq_ext.search.phrases.token_automaton import (
    AllowedTable,
    TokenAutomaton,
    minimal,
    opened,
)


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
        assert all(automaton.accepts(each) for each in sequences)


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


@pytest.mark.parametrize("seed", range(20))
def test_rows_of_several_automata_in_one_table(seed):
    lists = [drawn_list(10 * seed + i)[0] for i in range(3)]
    automata = [made(each, 70_000) for each in lists]
    of_rows = [automata[0], None, automata[1], automata[2], automata[1]]
    table = AllowedTable(automata, torch.device("cpu"))
    chance, state = random.Random(seed), table.starts_of(of_rows)
    histories: list[tuple[int, ...]] = [()] * 5
    for step in range(4):
        left = torch.tensor([chance.randint(0, 4) for _ in range(5)])
        row, token = table.allowed(state, left, eos=-7)
        assert 1 not in row
        found = {i: set() for i in range(5)}
        for i, t in zip(row.tolist(), token.tolist(), strict=True):
            found[i].add(t)
        chosen = []
        for i, trie in enumerate(of_rows):
            if trie is None:
                chosen.append(chance.randrange(9))
                continue
            own = {each for each in language(trie, 0) if each[:step] == histories[i]}
            expected = {
                each[step] for each in own if len(each) > step and len(each) - step <= left[i]
            }
            assert found[i] == expected | ({-7} if histories[i] in own else set())
            following = sorted(each[step] for each in own if len(each) > step)
            chosen.append(chance.choice(following) if following else 69_999)
            histories[i] = (*histories[i], chosen[-1])
        state = table.advance(state, torch.tensor(chosen))


# ---- The automaton of banned phrases against brute force:  a token is banned exactly when it


V = 6


letter = st.integers(1, 4)


phrase = st.lists(letter, min_size=1, max_size=4).map(tuple)


phrases = st.lists(phrase, max_size=5)


CPU = torch.device("cpu")


def banned_now(table, state: torch.Tensor) -> list[set[int]]:
    """Tokens that `ban_` makes impossible in rows of these states."""
    log_probs = LogProbs(torch.zeros(state.numel(), V))
    table.ban_(log_probs, state)
    return [set((row == -torch.inf).nonzero()[:, 0].tolist()) for row in log_probs.dense()]


def completing_tokens(phrases, tokens) -> set[int]:
    """By definition: tokens behind which some banned phrase stands."""
    return {t for t in range(V) if any(tuple([*tokens, t][-len(p) :]) == p for p in phrases)}


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(phrases, min_size=1, max_size=3), st.lists(letter, max_size=14))
def test_banned_is_what_would_finish_a_phrase(sentences, wished):
    table = build_banned(sentences, CPU)
    for s, phrases in enumerate(sentences):
        state, tokens = table.start[s : s + 1], []
        for token in wished:
            banned = banned_now(table, state)[0]
            assert banned == completing_tokens(phrases, tokens)
            if token in banned:
                continue  # the search cannot take it
            tokens.append(token)
            state = table.advance(state, torch.tensor([token]))
        assert not any(
            tuple(tokens[i : i + len(p)]) == p for p in phrases for i in range(len(tokens))
        )


def test_equal_lists_share_an_automaton_and_empty_ones_ban_nothing():
    table = build_banned([[(1, 2), (3,)], [], [(3,), (1, 2)]], CPU)
    assert table.start[0] == table.start[2] != table.start[1]
    assert banned_now(table, table.start) == [{3}, set(), {3}]


def test_states_advance_in_any_shape():
    table = build_banned([[(1, 2)], [(2, 3)]], CPU)
    # (S, c)
    state = table.advance(table.start[:, None].expand(2, 3), torch.tensor([[1, 2, 5]] * 2))
    assert [banned_now(table, row) for row in state] == [[{2}, set(), set()], [set(), {3}, set()]]


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
    other = build_banned([first, [(1,)]], CPU, compiler)
    assert other.automata is not table.automata and banned_now(other, other.start) == [{3}, {1}]


# ---- Banned phrases that are read as a tree are met where they are when each is read by itself


TEXTS = [
    "a",
    "b",
    "ab",
    "ba",
    " a",
    " b",
    " ab",
    " ba",
    " ",
    "!",
    " !",
    "a!",
    "aa",
    " aab",
    "-",
    "b a",
    "b-",
]


class OneByOne(PatternReader):
    """Reads tokens unit by unit, each pattern by itself: an item is (pattern, units
    of it that have come)."""

    def __init__(self, patterns, boundaries, any_case):
        super().__init__(patterns, boundaries, any_case)
        self.lengths = [len(pattern.units) for pattern in patterns]
        self.pends = [
            self.whole_words and self.is_letter(pattern.units[-1]) for pattern in patterns
        ]
        self.starting = {}
        for p, pattern in enumerate(patterns):
            self.starting.setdefault(pattern.units[0], []).append(p)

    def context_after(self, token):
        """The context behind a token with which nothing has begun."""
        last = self.units(token)[-1]
        return SPACE if last == " " else IN if self.is_letter(last) else OUT

    def is_pending(self, items):
        """Whether all of a pattern has come."""
        return any([at == self.lengths[p] for p, at in items])

    def continuing(self, items):
        """Tokens that may lead on with one of the items."""
        found = set()
        for p, at in items:
            units = self.patterns[p].units
            if at < len(units):
                found.update(self.next_tokens(units[at:], False))
                if units[at - 1] == " ":  # several spaces are one
                    found.update(self.next_tokens(" " + str(units[at:]), False))
        return found

    def advance_token(self, items, context, token):
        """How often the patterns are met inside a token, and the items and context behind it."""
        units = self.units(token)
        hits = 0
        for unit in units:
            met, items, context = self.advance_unit(items, context, unit)
            hits += met
        return hits, items, context

    def advance_unit(self, items, context, unit):
        """The same of one unit."""
        blank = unit == " "
        if blank and context in (START, LED):
            return 0, items, LED
        letter = self.is_letter(unit)
        hits = 0
        after = set()
        for p, at in items:
            units = self.patterns[p].units
            if at == len(units):
                hits |= not letter
            elif units[at] == unit:
                after.add((p, at + 1))
            elif blank and units[at - 1] == " ":
                after.add((p, at))
        if hits:
            after.clear()
        if not (letter and context == IN):
            for p in self.starting.get(unit, ()):
                if not self.patterns[p].at_start or context in (START, LED):
                    after.add((p, 1))
        if any(at == self.lengths[p] and not self.pends[p] for p, at in after):
            hits += 1
            after.clear()
        return (
            int(hits),
            frozenset(after) if after else NO_ITEMS,
            SPACE if blank else IN if letter else OUT,
        )


def shared(patterns, boundaries) -> PhraseAutomata:
    """The automaton of patterns as a table."""
    made = compile_automaton(patterns, boundaries, False).automaton
    return PhraseAutomata([made], boundaries, torch.device("cpu"))


@pytest.fixture
def one_by_one(monkeypatch):
    """`shared` by the plain reader."""

    def make(patterns, boundaries) -> PhraseAutomata:
        with monkeypatch.context() as patch:
            patch.setattr(automaton, "PatternReader", OneByOne)
            return shared(patterns, boundaries)

    return make


def met(automata, tokens: list[list[int]]) -> list[list[tuple[bool, bool]]]:
    """Of each token of translations: whether a pattern is met in it, and whether the next one
    decides."""
    state, out = torch.full((len(tokens),), START), []
    for column in torch.tensor(tokens).T:
        state, hits, _ = automata.advance(state, column)
        out.append([*zip((hits > 0).tolist(), automata.pending[state].tolist(), strict=True)])
    return out


@drawn(10)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("seed", range(25))
def test_texts_are_met_in_the_same_tokens(seed, whole, one_by_one):
    chance = random.Random(seed)
    texts = {
        "".join(chance.choice("aab! -") for _ in range(chance.randint(1, 6))).strip()
        for _ in range(chance.randint(1, 12))
    }
    patterns = [
        Pattern(" ".join(text.split()), at_start=chance.random() < 0.2)
        for text in sorted(texts)
        if text
    ]
    boundaries = Boundaries(Pieces(TEXTS), whole, "sentencepiece")
    tokens = [[chance.randrange(len(TEXTS)) for _ in range(12)] for _ in range(300)]
    expected = met(one_by_one(patterns, boundaries), tokens)
    assert met(shared(patterns, boundaries), tokens) == expected, patterns
    assert any(hit for each in expected for hit, _ in each) or len(patterns) < 4


@pytest.mark.parametrize("seed", range(10))
def test_rows_of_tokens_are_met_in_the_same_places(seed, one_by_one):
    chance = random.Random(seed)
    rows = {tuple(chance.randrange(5) for _ in range(chance.randint(1, 4))) for _ in range(12)}
    patterns = [Pattern(row) for row in sorted(rows)]
    tokens = [[chance.randrange(5) for _ in range(12)] for _ in range(200)]
    assert met(shared(patterns, None), tokens) == met(one_by_one(patterns, None), tokens)

"""The smallest automaton of a list of token sequences: its language, its size, its lengths, its
file."""

import pickle
import random

import numpy as np
import pytest
import torch

from fairseq_ext.search.phrases import token_automaton
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
        for i, automaton in enumerate(of_rows):
            if automaton is None:
                chosen.append(chance.randrange(9))
                continue
            own = {each for each in language(automaton, 0) if each[:step] == histories[i]}
            expected = {
                each[step] for each in own if len(each) > step and len(each) - step <= left[i]
            }
            assert found[i] == expected | ({-7} if histories[i] in own else set())
            following = sorted(each[step] for each in own if len(each) > step)
            chosen.append(chance.choice(following) if following else 69_999)
            histories[i] = (*histories[i], chosen[-1])
        state = table.advance(state, torch.tensor(chosen))

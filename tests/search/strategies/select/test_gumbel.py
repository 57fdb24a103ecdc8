"""--select gumbel: ordered samples without replacement against their exact probabilities."""

import itertools
import os
from collections import Counter

import pytest
from sizes import ALL
from table_model import EOS, lattice, random_table, search, stop_plug
from test_sampling import chi_square, sentences

from fairseq_ext.search.finished import Finished
from fairseq_ext.search.strategies.select.gumbel import Gumbel


def ordered(monkeypatch, table, k: int, n: int, longest: int) -> list[tuple]:
    """Of n sentences of a table, the hypotheses in the order in which they are drawn; those
    found are the same, by score."""
    drawn, take = {}, Finished.take

    def watched(self, sentence, answers):
        drawn[sentence] = tuple(
            tuple(step.hypothesis(i).tokens.tolist())
            for step, i in (self.of[sentence][a] for a in answers)
        )
        return take(self, sentence, answers)

    monkeypatch.setattr(Finished, "take", watched)
    select = Gumbel(k, EOS)
    found = search(
        [table] * n, k, select.ending(stop_plug("count", k)), longest, nbest=k, select=select
    ).lists
    for i, nbest in enumerate(found):
        names = drawn[i]
        assert {tuple(h.tokens.tolist()) for h in nbest} == set(names) and len(nbest) == len(names)
        assert [h.score for h in nbest] == sorted((h.score for h in nbest), reverse=True)
    return list(drawn.values())


@pytest.mark.parametrize("seed, k", [(0, 1), (1, 2), (2, 3)])
def test_ordered_samples_have_the_probability_of_drawing_without_replacement(seed, k, monkeypatch):
    n, table = 100_000 if os.environ.get(ALL) else 3_000, random_table(seed, possible=2)
    leaves = sentences(table, "all words", 2)
    assert len(leaves) == 6
    exact = {}
    for names in itertools.permutations(leaves, k):
        exact[names], left = 1.0, 1.0
        for name in names:
            exact[names] *= leaves[name] / left
            left -= leaves[name]
    found = ordered(monkeypatch, table, k, n, 2)
    assert chi_square(Counter(found), exact, n) > 1e-3
    inclusion = {name: sum(p for names, p in exact.items() if name in names) for name in leaves}
    for name, p in inclusion.items():
        assert sum(name in names for names in found) / n == pytest.approx(
            p, abs=4 * (p * (1 - p) / n) ** 0.5 + 1e-9
        )


def test_a_beam_wider_than_the_tree_finds_every_sentence_once(monkeypatch):
    table = random_table(4, possible=2)
    for names in ordered(monkeypatch, table, 9, 3, 2):
        assert set(names) == set(sentences(table, "all words", 2)) and len(names) == 6


def test_scores_are_the_models_own_where_words_are_forbidden(monkeypatch):
    """A sentence that may only end has its probability of ending in its score, and draws
    as if that were 1."""
    table = lattice(
        {"": {"a": 0.5, "b": 0.5}, "a": {"c": 0.9, "$": 0.1}, "b": {"c": 0.1, "$": 0.9}}
    )
    found = ordered(monkeypatch, table, 1, 2_000, 1)
    assert chi_square(Counter(found), {((4, EOS),): 0.5, ((5, EOS),): 0.5}, 2_000) > 1e-3

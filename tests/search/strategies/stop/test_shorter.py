"""A sentence whose constrained search ran to its length limit is searched again with less room;
others are answered as they are found."""

import torch
from required_phrases import required_phrases

from fairseq_ext.search.constraints.report import met
from fairseq_ext.search.finished import Hypothesis
from fairseq_ext.search.phrases.sentence import EMPTY, SentenceConstraints
from fairseq_ext.search.pool import Pool
from fairseq_ext.search.strategies.stop.early import LengthRetry

EOS, LIMIT = 2, 200
WORD = SentenceConstraints(required_phrases((((7,), (8, 9)),), ("word",)))


def hypothesis(*tokens: int) -> Hypothesis:
    return Hypothesis(torch.tensor([*tokens, EOS]), -1.0, torch.zeros(len(tokens) + 1))


RAMBLES = hypothesis(*[5] * (LIMIT - 1), 7)


def searched(
    second: Hypothesis,
    length: int = 20,
    constraints: SentenceConstraints = WORD,
    first: Hypothesis = RAMBLES,
    min_len: int = 1,
):
    """The answers for two sentences, of which the first is in question, and the pools
    that were searched."""
    pools = []

    def search(pool, answer):
        pools.append(pool)
        for number in pool.sentences_to_decode():
            answer(number, [hypothesis(7, 5) if number else first if len(pools) == 1 else second])

    pool = Pool(
        {},
        torch.tensor([length, 4]),
        [LIMIT, LIMIT],
        torch.arange(2),
        EOS,
        constraints=[constraints, WORD],
    )
    answers = {}
    LengthRetry(search, lambda pool: met, min_len)(pool, answers.__setitem__)
    return {number: found[0].tokens.tolist() for number, found in answers.items()}, pools


def test_a_sentence_at_its_limit_gets_room_for_its_source_and_its_words():
    answers, (_, again) = searched(hypothesis(5, 8, 9))
    assert answers == {0: [5, 8, 9, EOS], 1: [7, 5, EOS]}
    # 20 source tokens, and the shorter form
    assert (again.to_decode, again.max_len[0], again.limit()[0]) == ([0], 21, 21)


def test_what_then_lacks_a_word_is_not_taken():
    answers, pools = searched(hypothesis(5, 6))
    assert len(pools) == 2 and answers[0] == RAMBLES.tokens.tolist()


def test_other_sentences_are_searched_once():
    assert len(searched(hypothesis(7), length=LIMIT)[1]) == 1  # as long as that anyway
    assert len(searched(hypothesis(7), min_len=22)[1]) == 1  # and 21 would be too few
    assert len(searched(hypothesis(7), constraints=EMPTY)[1]) == 1  # no one requests a word
    assert len(searched(hypothesis(7), first=hypothesis(*[5] * 100, 7))[1]) == 1  # ended by itself

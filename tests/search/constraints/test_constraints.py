"""Constraints as tokens: which are met, conflicts with banned phrases, merging,
fairseq's packed tensors."""

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.token_generation_constraints import pack_constraints, unpack_constraints
from hypothesis import given
from hypothesis import strategies as st
from required_phrases import prefix_of, required_phrases

from fairseq_ext.core.errors import UsageError
from fairseq_ext.plugin.input import pack
from fairseq_ext.search.constraints.lines import from_packed
from fairseq_ext.search.phrases.sentence import (
    EMPTY,
    SentenceConstraints,
    merge,
    met,
)

phrases = st.lists(st.integers(1, 3), min_size=1, max_size=3).map(tuple)
kinds = st.lists(st.lists(phrases, min_size=1, max_size=2).map(tuple), min_size=1, max_size=3)
# equal ones are frequent
constraint_lists = kinds.flatmap(lambda few: st.lists(st.sampled_from(few), max_size=4))
hypotheses = st.lists(st.integers(1, 3), max_size=10)


def constraints(any_of, **more) -> SentenceConstraints:
    return SentenceConstraints(
        required_phrases(tuple(any_of), tuple(str(c) for c in any_of)), **more
    )


def plain(*phrases) -> SentenceConstraints:
    """One phrase a constraint."""
    return constraints([(tuple(p),) for p in phrases])


def letters(words="a b c d e f g h") -> Dictionary:
    dictionary = Dictionary()
    for word in words.split():
        dictionary.add_symbol(word)
    return dictionary


# -- met -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wanted", "hypothesis", "answer"),
    [
        # the sequences of ALGORITHMS.md on which both public implementations are wrong
        ([[1, 2, 3]], [1, 1, 2, 3], [True]),
        ([[1, 2, 3]], [1, 2, 1, 2, 3], [True]),
        ([[1, 1, 2]], [1, 1, 1, 2], [True]),
        ([[1, 2, 3], [2, 4]], [1, 2, 4], [False, True]),
        ([[1, 2], [2, 3]], [1, 2, 3], [True, True]),
        ([[11, 12]], [11, 11, 12], [True]),
        ([[1, 2], [1]], [1, 9], [False, True]),
        # equal phrases need disjoint occurrences
        ([[1], [1]], [1], [True, False]),
        ([[1], [1]], [1, 2, 1], [True, True]),
        ([[1, 1], [1, 1]], [1, 1, 1], [True, False]),
        ([[1, 1], [2], [1, 1]], [1, 1, 1, 1], [True, False, True]),
        ([[1]], [], [False]),
    ],
)
def test_met_is_containment(wanted, hypothesis, answer):
    assert met(hypothesis, plain(*wanted), ordered=False) == answer


def test_any_alternative_meets_a_constraint():
    assert met(
        [1, 2, 3, 5], constraints([((1, 2, 3, 4), (2, 3, 5), (3, 6), (7,))]), ordered=False
    ) == [True]


def test_of_alternatives_the_one_that_ends_first_counts():
    twice = constraints([((1, 2, 3, 4), (2,), (3, 4))] * 2)
    assert (
        met([1, 2, 3, 4], twice, ordered=False)
        == met([1, 2, 3, 4], twice, ordered=True)
        == [True, True]
    )


def places(tokens, alternatives):
    return [
        (i, i + len(p))
        for p in alternatives
        for i in range(len(tokens))
        if tuple(tokens[i : i + len(p)]) == p
    ]


def most_disjoint(spans) -> int:
    """By trying every choice."""
    if not spans:
        return 0
    (start, end), rest = spans[0], spans[1:]
    return max(
        most_disjoint(rest), 1 + most_disjoint([s for s in rest if s[1] <= start or s[0] >= end])
    )


def longest_chain(tokens, any_of, start=0) -> int:
    """Constraints from the first on that can be laid one after another, by
    trying every choice."""
    if not any_of:
        return 0
    spans = [s for s in places(tokens, any_of[0]) if s[0] >= start]
    return max((1 + longest_chain(tokens, any_of[1:], end) for _, end in spans), default=0)


@given(constraint_lists, hypotheses)
def test_met_equals_trying_every_choice(any_of, tokens):
    answer = met(tokens, constraints(any_of), ordered=False)
    for kind in {frozenset(c) for c in any_of}:
        copies = [found for found, c in zip(answer, any_of, strict=True) if frozenset(c) == kind]
        count = min(len(copies), most_disjoint(sorted(set(places(tokens, kind)))))
        assert copies == [True] * count + [False] * (len(copies) - count)


@given(constraint_lists, hypotheses)
def test_met_in_order_equals_trying_every_choice(any_of, tokens):
    count = longest_chain(tokens, any_of)
    assert met(tokens, constraints(any_of), ordered=True) == [True] * count + [False] * (
        len(any_of) - count
    )


# -- packed tensors --------------------------------------------------------------------------------


@given(st.lists(constraint_lists.map(constraints), max_size=4))
def test_fairseq_unpacks_the_printed_alternatives(sentences):
    packed = pack(sentences, lambda alternatives: alternatives[-1])
    assert [[tuple(p.tolist()) for p in unpack_constraints(row)] for row in packed] == [
        [c[-1] for c in s.any_of] for s in sentences
    ]


@given(
    st.lists(
        st.lists(st.lists(st.integers(4, 9), min_size=1, max_size=4), max_size=4),
        min_size=1,
        max_size=3,
    )
)
def test_packed_constraints_come_back(batch):
    packed = pack_constraints([[torch.tensor(p) for p in sentence] for sentence in batch])
    for sentence, row in zip(batch, packed, strict=True):
        assert from_packed(row, letters(), 0).any_of == tuple((tuple(p),) for p in sentence)


def packed_fields(fields: list[str], dictionary: Dictionary, width: int = 0) -> torch.Tensor:
    """As fairseq-interactive does it, with a sentence whose constraints make the tensor wider."""
    encoded = [dictionary.encode_line(f, append_eos=False, add_if_not_exist=False) for f in fields]
    return pack_constraints([encoded, [torch.full((width,), 9)]])[0]


@pytest.mark.parametrize("width", [1, 20])
def test_a_field_that_starts_with_s_is_a_prefix(width):
    dictionary = letters()
    found = from_packed(packed_fields(["a b", "<s> c d", "e"], dictionary, width), dictionary, 0)
    assert found.any_of == (((4, 5),), ((8,),))
    assert found.prefix == prefix_of((6, 7), "c d")
    assert found.text == ("a b", "e")


# -- merging and conflicts -------------------------------------------------------------------------


def test_merging_with_nothing_changes_nothing():
    some = constraints([((1, 2), (3,))], banned={(4,): "x"}, prefix=prefix_of((5,), "p"))
    assert merge(some, EMPTY) == merge(EMPTY, some) == some


def test_merging_keeps_order_and_duplicates():
    assert merge(plain([1], [2]), plain([1])).any_of == (((1,),), ((2,),), ((1,),))


def test_what_the_other_side_bans_becomes_unmet():
    banning = SentenceConstraints(banned={(2, 3): "bad words"})
    both = merge(
        banning,
        SentenceConstraints(
            required_phrases((((1, 2, 3),), ((2,),)), ("one bad words", "fine")),
            prefix=prefix_of((2, 3), "bad words"),
        ),
    )
    assert both.any_of == (((2,),),) and both.text == ("fine",)
    assert both.prefix == ()
    reason = "conflicts with the banned phrase 'bad words'"
    assert both.unmet == (("one bad words", reason), ("bad words", reason))


def test_only_the_conflicting_alternative_is_dropped():
    both = merge(SentenceConstraints(banned={(2,): "x"}), constraints([((1, 2), (3,))]))
    assert both.any_of == (((3,),),) and both.unmet == ()


@given(st.lists(phrases, min_size=1, max_size=3, unique=True), constraint_lists)
def test_nothing_kept_contains_a_banned_phrase(banned, any_of):
    both = merge(
        SentenceConstraints(banned={each: str(each) for each in banned}),
        constraints(any_of),
    )
    clean = [[p for p in c if not any(places(p, [a]) for a in banned)] for c in any_of]
    assert [list(c) for c in both.any_of] == [c for c in clean if c]
    assert len(both.unmet) + len(both.any_of) == len(any_of)


def test_two_prefixes_are_refused_and_too_many_constraints():
    with pytest.raises(UsageError, match="two target prefixes"):
        merge(*(SentenceConstraints(prefix=prefix_of((token,))) for token in (1, 2)))
    with pytest.raises(UsageError, match="has 66 phrases"):
        merge(plain(*[[1]] * 33), plain(*[[2]] * 33))

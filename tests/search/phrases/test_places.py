"""Places of phrases that must come in order, by trying every choice of places; the others are
in test_glossary_report.py."""

import itertools
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairseq_ext.search.phrases.pieces import is_letter
from fairseq_ext.search.phrases.places import (
    PhraseToFind,
    Text,
    find_phrase,
    match_phrases_in_order,
)


@pytest.mark.parametrize(
    ("phrase", "text"),
    [
        ("コーヒー", "コーヒー2杯"),
        ("コーヒー", "熱いコーヒーを2杯"),
        ("ラーメン", "3ラーメン"),
        ("人々", "5人々"),
        ("ｶﾚｰ", "ｶﾚｰ1"),
    ],
)
def test_signs_of_scripts_without_spaces_are_part_of_no_word(phrase, text):
    """The long mark of Katakana is of no script of its own (Unicode Standard Annex 24)."""
    at = text.index(phrase)
    assert find_phrase(phrase, text, 0, True) == (at, at + len(phrase))


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

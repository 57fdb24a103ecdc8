"""The English words around a term that takes the place of a noun."""

from __future__ import annotations

import pytest

from fairseq_ext.search.phrases.noun_phrases import (
    BARE,
    is_plural_in_german,
    lacks_article,
    verb_behind,
)


@pytest.mark.parametrize(
    ("text", "noun", "form", "expected"),
    [
        ("The log is read.", "log", "minutes", "The minutes are read."),
        (
            "The last meeting log has errors.",
            "log",
            "minutes",
            "The last meeting minutes have errors.",
        ),
        ("The logs are read.", "logs", "minutes", "The minutes are read."),
        ("The log is read.", "log", "report", "The report is read."),
        ("The list of the log is long.", "log", "minutes", "The list of the minutes is long."),
        ("This log is read.", "log", "minutes", "This minutes is read."),
        ("A log is read.", "log", "minutes", "A minutes are read."),  # which loses its article
        ("Two of a log is read.", "log", "minutes", "Two of a minutes is read."),
        ("The log is read.", "log", "logs", "The logs is read."),
        ("The log isn't read.", "log", "minutes", "The minutes isn't read."),
        ("The two section have ended.", "section", "part", "The two part have ended."),
    ],
)
def test_a_verb_agrees_with_the_plural_before_it(text, noun, form, expected):
    start = text.index(noun)
    (first, end), verb = verb_behind(text, (start, start + len(noun)), form, [])
    assert text[:first] + form + verb + text[end:] == expected


def test_a_verb_in_the_place_of_another_term_stays():
    assert verb_behind("The log is read.", (4, 7), "minutes", [(8, 10)]) == ((4, 7), "")
    assert verb_behind("The is read.", (3, 3), "minutes", []) == ((3, 3), ""), "inserted"


def test_a_singular_may_need_an_article_behind_a_preposition():
    assert lacks_article("front desk", "ready for ")
    assert not lacks_article("front desk", "ready for the ")
    assert not lacks_article("front desks", "ready for ")
    assert not lacks_article("front desk", "The therefor ")


def test_a_german_plural_is_known_by_its_ending():
    assert is_plural_in_german("Störung", "Störungen")
    assert not is_plural_in_german("Störung", "Störung")
    assert not is_plural_in_german("Mensch", "Menschen"), "it may be a singular"


@pytest.mark.parametrize("before", ["Fix ", "list of ", "logs and "])
def test_a_noun_without_a_determiner_may_be_a_plural(before):
    assert BARE.search(before)


@pytest.mark.parametrize("before", ["The ", "a ", "Every ", "On a ", "The big ", "One "])
def test_a_noun_with_a_determiner_is_a_singular(before):
    assert not BARE.search(before)

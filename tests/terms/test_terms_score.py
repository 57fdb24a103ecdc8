"""The scores of small test sets, against values worked out by hand, brute force, and sacrebleu."""

import functools

import pytest

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import lemmatizer
from fairseq_ext.terms.cases import Sentence, Term, cases_of, claim, lemma_places
from fairseq_ext.terms.score import (
    after_final_punctuation,
    score,
    share,
    success,
    success_words,
    window_overlap,
)

lemmas = functools.cache(lemmatizer)  # of a language, read by the first test that needs them


def english(word: str) -> str:
    return lemmas("en", "--lemmas")(word)


def german(word: str) -> str:
    return lemmas("de", "--lemmas")(word)


SET = [
    Sentence("The dogs bark.", "Die Hunde bellen.", (Term("dog", ("Hund",)),)),
    Sentence("The bookshop is open.", "Der Laden ist offen.", (Term("bookshop", ("Laden",)),)),
    Sentence("A tree.", "Ein Baum.", (Term("cat", ("Katze",)),)),  # no cat there: does not count
    Sentence("Two houses.", "Zwei Häuser.", (Term("house", ("Haus", "Gebäude")),)),
    Sentence(
        "The child sees the child.",
        "Das Kind sieht das Kind.",
        (Term("child", ("Kind",)), Term("the child", ("das Kind",))),
    ),
]
OUT = [
    "Hunde bellen.",
    "Der Buchladening ist offen.",
    "Ein Baum.",
    "Zwei Burgen.",
    "Sie sieht das Kind.",
]
BARE = cases_of(SET, OUT, None, None)


def test_term_success_is_the_task_s_and_words_are_whole_words():
    # "hund" in "hunde", "laden" in "buchladening"; no Haus; both terms of the last line
    cases = cases_of(SET, OUT, english, german)
    assert success(cases) == [(1, 1), (1, 1), (0, 0), (0, 1), (2, 2)]
    # Hunde has the lemma Hund; Buchladening is no Laden
    assert success_words(cases) == [(1, 1), (0, 1), (0, 0), (0, 1), (2, 2)]
    assert success_words(BARE) == [(0, 1), (0, 1), (0, 0), (0, 1), (2, 2)]
    assert share(success(cases)) == 4 / 5 and share([]) is None


def test_a_source_term_is_found_in_another_form():
    mice = [Sentence("Two mice.", "Zwei Mäuse.", (Term("mouse", ("Maus",)),))]
    assert success(cases_of(mice, ["Mäuse."], english, german)) == [(1, 1)]
    assert success(cases_of(mice, ["Mäuse."], None, None)) == [(0, 0)]


@pytest.mark.parametrize(
    ("terms", "text", "once", "overlapping"),
    [
        (["tension", "tension artérielle"], "la tension artérielle", 1, 2),
        # tension takes the first of its places
        (["tension", "tension artérielle"], "tension et tension artérielle", 2, 2),
        (["tension", "tension", "tension artérielle"], "tension et tension artérielle", 2, 3),
        (["tension artérielle", "tension"], "tension et tension artérielle", 2, 2),
        (["eau", "eau"], "eau", 1, 2),
        (["eau", "eau"], "eau eau", 2, 2),
        (["x"], "eau", 0, 0),
    ],
)
def test_claims_in_the_order_of_the_terms(terms, text, once, overlapping):
    sentence = Sentence(None, text, tuple(Term(str(i), (term,)) for i, term in enumerate(terms)))
    (found,) = cases_of([sentence], [text], None, None)
    assert len(claim(found.required, found.hypothesis, lemma_places)) == once
    assert success_words([found]) == [(overlapping, len(terms))]


def case(reference, hypothesis, *targets):
    terms = tuple(
        Term(target.split("=")[0], tuple(target.split("=")[-1].split("|"))) for target in targets
    )
    return cases_of([Sentence(None, reference, terms)], [hypothesis], None, None)[0]


def test_window_overlap_by_hand():
    #  reference window of 2: {a, b | d, e}; translation: {b, x | d, f}: 2 of 4
    one = case("a b T , d e", "x b T d f", "T")
    assert window_overlap([one], 2) == 2 / 4
    # of 3 the reference has a b | d e and the translation x b | d f
    assert window_overlap([one], 3) == 2 / 4
    # the translation lacks the term: 0; the reference lacks it: the line does not count
    assert window_overlap([one, case("T a", "a", "T"), case("a", "T", "T")], 2) == (2 / 4 + 0) / 2
    assert window_overlap([case("a", "T", "T")], 2) is None


def test_window_overlap_pairs_occurrences_by_falling_overlap():
    # reference places: [a T b] and [c T d]; translation: [c T b] and [a T x]. Every overlap but
    # the last is 1/2: pairs are taken in order, and so (first, first) and (second, second) are
    both = case("a T b . . c T d", "c T b . . a T x", "1=T", "2=T")
    assert window_overlap([both], 1) == (1 / 2 + 0) / 2


@pytest.mark.parametrize(
    ("reference", "hypothesis", "share_behind"),
    [
        ("Two dogs.", "Two jumping. canine.", 1),
        ("Two dogs.", "Two canine jumping. canine.", 0),
        ("A. Two dogs.", "A. Two canine.", 0),  # the second of two sentences
        ("A dog", "He said: “No.” canine", 1),
        ("A dog", "Version 3.5 canine", 0),
        ("A dog", "No dog.", None),
    ],
)
def test_terms_behind_the_final_punctuation(reference, hypothesis, share_behind):
    assert after_final_punctuation([case(reference, hypothesis, "dog=canine")]) == share_behind


def test_another_number_of_lines_is_refused():
    with pytest.raises(
        UsageError, match="--hypotheses has 1 translation and --references has 5 lines"
    ):
        score(SET, ["x"], "", None, None)


def test_lemmas_of_an_unknown_language_are_refused():
    with pytest.raises(UsageError, match="no lemmas for the language 'tlh'"):
        lemmatizer("tlh", "--lemmas")

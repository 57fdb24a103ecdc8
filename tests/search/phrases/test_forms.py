"""Inflected forms of terms, and the words that agree with them: facts of German grammar (Duden)."""

from pathlib import Path

import pytest
from fairseq.data import Dictionary

from fairseq_ext.core.errors import UsageError
from fairseq_ext.core.lemmas import in_memory
from fairseq_ext.core.words import has_own_case
from fairseq_ext.search.constraints.lines import parse_tabs
from fairseq_ext.search.constraints.sources import ConstraintSource
from fairseq_ext.search.phrases.agreement import (
    beginnings,
    fits,
    is_possible,
    noun_after,
    noun_of,
    numbers_of,
)
from fairseq_ext.search.phrases.forms import TermForms, forms_of_language
from fairseq_ext.search.phrases.letter_case import fitted, keeps_case
from fairseq_ext.search.phrases.places import Text, compounds, edited
from fairseq_ext.search.phrases.segmenter import Segmenter, nearest_spelling

LINES = Path(__file__).with_name("facts.tsv").read_text("utf-8").split("\n")


def facts(names: str):
    """A test of each row of facts.tsv with the kind that comes first; names: of its other cells."""
    kind, *names = names.split(", ")
    rows = [line.split("\t")[1:] for line in LINES if line.startswith(kind + "\t")]
    return pytest.mark.parametrize(names, rows)


def listed(cell: str) -> list[str]:
    return cell.split("|") if cell else []


def marked(text: str, span) -> str:
    """The words of a span, "" for none."""
    return text[slice(*span)] if span else ""


@pytest.fixture(scope="module")
def german():
    return forms_of_language("de-AT")


@facts("forms, term, others")
def test_german_terms_have_their_forms(german, term, others):
    first, *found = german(term)
    assert first == term and set(found) == set(listed(others))


def test_labels_are_adjectives_and_verbs_in_small_letters(german):
    assert {"offen", "offene", "offenen"} <= set(german("Offen"))
    assert "suche" not in german("Suche") and "Suchen" in german("Suche")
    phrases = german("Offene Rechnung")
    assert {"offene Rechnung", "offenen Rechnung", "offener Rechnungen"} <= set(phrases)
    assert german("Art der Rechnung") == ("Art der Rechnung", "Arten der Rechnung")


def test_a_language_without_forms_has_none():
    assert forms_of_language("en") is None and forms_of_language("tlh") is None


def test_unknown_words_have_the_edits_of_similar_ones():
    stems = [f"{letter}{vowel}rkoll" for letter in "bdfghklmnp" for vowel in "ae"]
    table = {word: word for word in map(str.capitalize, stems)}
    table |= {word + "s": word for word in list(table)}
    assert TermForms("de", in_memory(table))("Dunkoll") == ("Dunkoll", "Dunkolls")


def written(text, word, language="de"):
    """The beginnings of a text before a word, with their changes."""
    behind = len(text) - text.index(word)
    found = beginnings(text, text.index(word), language)
    return [edited(text, sorted(each.changes))[:-behind] for each in found]


@facts("beginning, text, word, some, never")
def test_determiners_and_adjectives_agree(text, word, some, never):
    found = written(text, word)
    assert found[0] == text[: text.index(word)]  # the text as it is
    assert set(listed(some)) <= set(found) and set(listed(never)).isdisjoint(found)
    assert len(found) == len(set(found))


def test_other_languages_and_other_terms_stay():
    assert written("la bonne clinique", "clinique", "fr") == ["la bonne "]
    text = "die gute Klinik"
    changes = {span for b in beginnings(text, 9, "de", taken=[(4, 8)]) for span, _ in b.changes}
    assert changes == {(0, 3)}


def test_an_adjective_of_a_term_agrees_with_the_article():
    ein = next(b for b in beginnings("einer Rechnung", 6, "de") if b.changes == (((0, 5), "ein"),))
    assert fits("offener Betrag", ein.endings) and not fits("offene Betrag", ein.endings)


@facts("noun of adjective, text, adjective, noun")
def test_the_noun_of_an_adjective(text, adjective, noun):
    end = text.index(adjective) + len(adjective)
    assert marked(text, noun_after(text, end, "de")) == noun


@pytest.mark.parametrize(
    ("forms", "numbers"),
    [
        ("Verband Verbandes Verbands Diuretikum Ergebnisses Konto", {"singular"}),
        ("Verbände Verbänden Diuretika Zellen Rechnungen Geschäften", {"plural"}),
        ("Kunden Mittel", {"singular", "plural"}),  # "dem Kunden"
        ("offen", set()),
    ],
)
def test_numbers_of_forms(forms, numbers):
    assert [numbers_of(form) for form in forms.split()] == [numbers] * len(forms.split())


@facts("compound, noun, text, words")
def test_a_noun_is_a_part_of_longer_words(noun, text, words):
    assert [marked(text, span) for span in compounds(noun, text)] == listed(words)
    for segmented in (True, False):
        found = Text(text, segmented).places(noun, "exact", in_compounds=True)
        assert {*listed(words)} <= {marked(text, span) for span in found}


@facts("noun, before, nouns, others")
def test_a_noun_goes_with_the_words_before_it(before, nouns, others):
    possible = [noun for noun in listed(nouns) + listed(others) if is_possible(before, noun)]
    assert possible == listed(nouns)


@facts("object, before, noun, behind, is_right")
def test_a_noun_behind_the_subject_is_an_object(before, noun, behind, is_right):
    assert is_possible(before, noun, behind) == (is_right == "yes")


@facts("head, form, noun")
def test_the_noun_of_a_term(form, noun):
    assert marked(form, noun_of(form)) == noun


# ---- A term takes the case of the words that it replaces; a word with a case of its own keeps it


@facts("case, term, draft, displaced, output")
def test_a_placed_term_takes_the_case_of_what_it_displaces(term, draft, displaced, output):
    span = draft.index(displaced), draft.index(displaced) + len(displaced)
    assert edited(draft, [(span, fitted(term, draft, span))]) == output


@pytest.mark.parametrize(
    ("term", "text", "span", "language", "output"),
    [
        ("Sales Order", "A client pays.", (8, 8), "en", "sales order"),  # inserted
        # where nouns have capitals, the model decides what is a noun
        ("Kunde", "Der Käufer zahlt.", (4, 10), "de", "Kunde"),
        ("Offen", "Er ist auf.", (7, 10), "de", "Offen"),
        ("offen", "Auf ist er.", (0, 3), "de", "Offen"),
        ("Kunde", "Der zahlt.", (3, 3), "de", "Kunde"),
    ],
)
def test_inserted_terms_and_languages_whose_nouns_have_capitals(term, text, span, language, output):
    assert fitted(term, text, span, language) == output


def test_a_capital_inside_capitals_only_and_digits_are_a_case_of_its_own():
    assert all(map(has_own_case, "API FastTab iPad B2B ISO9001 eBay".split()))
    assert not any(map(has_own_case, "Customer customer 365 A Übersicht".split()))
    assert keeps_case("API") and keeps_case("vitamin C") is False and not keeps_case("API user")


# ---- The nearest spelling that a dictionary can write, and where it is reported


@facts("spelling, text, letters, expected")
def test_the_most_similar_writable_spelling(text, letters, expected):
    found = nearest_spelling(text, lambda each: set(each) <= set(letters), [])
    assert (found or "") == expected


def segmenter_of(*words: str) -> Segmenter:
    dictionary = Dictionary()
    for word in words:
        dictionary.add_symbol(word)
    return Segmenter(dictionary)


def test_a_word_that_the_dictionary_lacks_gives_way_to_a_similar_one():
    segmenter = segmenter_of("vein", "veins", "green", "▁lode", "art@@")
    assert segmenter.writable("green veins")
    assert not segmenter.writable("green veinss") and not segmenter.writable("<s> vein")
    with pytest.raises(UsageError) as error:
        segmenter.phrases("xyz", "line 3 of g")
    assert "nearest" not in str(error.value)


def test_a_typed_phrase_gets_the_same_help():
    segmenter = segmenter_of("vein", "veins", "green")
    source = ConstraintSource(None, None, None, segmenter, segmenter.dictionary)
    where = "line 5 of the input"
    with pytest.raises(UsageError) as error:
        source.of_text(parse_tabs("green veinss", where), where)
    assert str(error.value).startswith(
        "in line 5 of the input, the phrase 'green veinss' contains the piece 'veinss', which the "
        "target dictionary lacks"
    )
    assert "; the nearest spelling that works is 'green veins';" in str(error.value)

"""Inflected forms of terms, and the words that agree with them: facts of German grammar (Duden)."""

import pytest

from fairseq_ext.search.phrases.agreement import (
    beginnings,
    dative_plurals,
    fits,
    is_feminine_with_other_article,
    is_nominal,
    noun_after,
    numbers_of,
)
from fairseq_ext.search.phrases.forms import Table, TermForms, forms_of_language
from fairseq_ext.search.phrases.places import compounds

ADJECTIVE = ("e", "em", "en", "er", "es")


@pytest.fixture(scope="module")
def german():
    return forms_of_language("de-AT")


@pytest.mark.parametrize(
    ("term", "others"),
    [
        ("Kunde", {"Kunden"}),
        ("Land", {"Landes", "Lands", "Länder", "Ländern"}),  # "dem Lande" is out of use
        ("Rechnung", {"Rechnungen"}),  # the s of "Rechnungsdatum" is no inflection
        ("Verband", {"Verbandes", "Verbands", "Verbände", "Verbänden"}),
        ("Thema", {"Themas", "Themen", "Themata"}),
        ("Fachkunde", {"Fachkunden"}),
        ("API-Schlüssel", {"API-Schlüsseln", "API-Schlüssels"}),
        ("offen", {"offen" + ending for ending in ADJECTIVE} | {"offner"}),  # no "offenere"
        ("randomisiert", {"randomisiert" + ending for ending in ADJECTIVE}),
        ("Kinder", {"Kindern", "Kindes", "Kind"}),
        ("API", set()),
        ("Teams 2.0", set()),
    ],
)
def test_german_terms_have_their_forms(german, term, others):
    first, *found = german(term)
    assert first == term
    assert set(found) == others or (term == "Kinder" and others <= {*found, "Kindes", "Kind"})


def test_labels_are_adjectives_and_verbs_in_small_letters(german):
    assert {"offen", "offene", "offenen"} <= set(german("Offen"))
    assert "suche" not in german("Suche") and "Suchen" in german("Suche")
    phrases = german("Offene Rechnung")
    assert {"offene Rechnung", "offenen Rechnung", "offener Rechnungen"} <= set(phrases)


def test_the_head_of_a_phrase_is_inflected(german):
    assert german("Art der Rechnung") == ("Art der Rechnung", "Arten der Rechnung")


def test_a_language_without_forms_has_none():
    assert forms_of_language("en") is None and forms_of_language("tlh") is None


def test_unknown_words_have_the_edits_of_similar_ones():
    stems = [f"{letter}{vowel}rkoll" for letter in "bdfghklmnp" for vowel in "ae"]
    table = {word: word for word in map(str.capitalize, stems)}
    table |= {word + "s": word for word in list(table)}
    assert TermForms("de", Table(table))("Dunkoll") == ("Dunkoll", "Dunkolls")


def written(text, word, language="de"):
    """The beginnings of a text before a word, with their changes."""
    out = []
    for each in beginnings(text, text.index(word), language):
        new = text
        for (start, end), changed in sorted(each.changes, reverse=True):
            new = new[:start] + changed + new[end:]
        out.append(new[: len(new) - len(text) + text.index(word)])
    return out


@pytest.mark.parametrize(
    ("text", "word", "some", "never"),
    [
        ("mit der Gruppe", "Gruppe", ["mit der ", "mit dem ", "mit den "], ["mit einem "]),
        ("Zur Klinik", "Klinik", ["Zur ", "Zum ", "Zu den "], ["zum "]),
        ("in der Klinik", "Klinik", ["in der ", "im ", "in den "], ["in des "]),
        (
            "eine gute Klinik",
            "Klinik",
            ["eine gute ", "ein gutes ", "ein guter ", "einen guten "],
            ["ein gute ", "einen guter "],
        ),
        (
            "die gute Klinik",
            "Klinik",
            ["die gute ", "die guten ", "dem guten ", "das gute "],
            ["das gutes ", "dem gutem "],
        ),
        ("mit großer Sorgfalt", "Sorgfalt", ["mit großer ", "mit großem "], ["mit groß "]),
        ("ohne Sorgfalt", "Sorgfalt", ["ohne "], []),
    ],
)
def test_determiners_and_adjectives_agree(text, word, some, never):
    found = written(text, word)
    assert found[0] == text[: text.index(word)]  # the text as it is
    assert set(some) <= set(found) and set(never).isdisjoint(found)
    assert len(found) == len(set(found))


def test_other_languages_and_other_terms_stay():
    assert written("la bonne clinique", "clinique", "fr") == ["la bonne "]
    text = "die gute Klinik"
    changes = {span for b in beginnings(text, 9, "de", taken=[(4, 8)]) for span, _ in b.changes}
    assert changes == {(0, 3)}


def test_an_adjective_of_a_term_agrees_with_the_article():
    ein = next(b for b in beginnings("einer Rechnung", 6, "de") if b.changes == (((0, 5), "ein"),))
    assert fits("offener Betrag", ein.endings) and not fits("offene Betrag", ein.endings)


@pytest.mark.parametrize(
    ("text", "adjective", "noun"),
    [
        ("die neue Studie", "neue", "Studie"),
        ("neue, große und alte Studien", "neue", "Studien"),
        ("Es wird gebucht", "gebucht", None),
        ("ist neu in Studien", "neu", None),
    ],
)
def test_the_noun_of_an_adjective(text, adjective, noun):
    found = noun_after(text, text.index(adjective) + len(adjective), "de")
    assert (found and text[slice(*found)]) == noun


def test_number_and_case_of_forms():
    forms = ("Verband", "Verbandes", "Verbands", "Verbände", "Verbänden")
    assert [numbers_of(form, forms)[0] for form in forms] == ["singular"] * 3 + ["plural"] * 2
    assert dative_plurals(forms, "mit großen ") == ("Verbänden",)
    assert dative_plurals(forms, "die großen ") == ()
    assert numbers_of("Kunden", ("Kunde", "Kunden")) == ("plural", "singular")  # "dem Kunden"
    assert numbers_of("Rechnungen", ("Rechnung", "Rechnungen")) == ("plural",)
    assert numbers_of("Mittel", ("Mittel", "Mitteln", "Mittels")) == ("singular", "plural")


@pytest.mark.parametrize(
    ("noun", "text", "words"),
    [
        ("Kunde", "Kundenkonto, Stammkunde", ["Kundenkonto", "Stammkunde"]),
        ("Zahl", "Anzahl, Zahlung, zahlreich und Zahlenreihe", ["zahlreich", "Zahlenreihe"]),
        ("Kunde", "Kunde und kunden", []),
        ("Zahlung", "Zahlungs- und Rabattbuch", ["Zahlungs"]),
        ("API", "APIschlüssel", []),
        ("offen", "offenlegen", []),
    ],
)
def test_a_noun_is_a_part_of_longer_words(noun, text, words):
    assert [text[slice(*span)] for span in compounds(noun, text)] == words


def test_a_noun_has_no_form_in_small_letters():
    assert is_nominal(("Kunde", "Kunden"))
    assert not is_nominal(("Gefiltert", "gefiltert"))


@pytest.mark.parametrize(
    ("before", "noun", "is_wrong"),
    [
        ("Es gibt einen ", "Differenz", True),
        ("mit dem großen ", "Leistung", True),
        ("Es gibt eine ", "Differenz", False),
        ("mit den großen ", "Leistungen", False),
        ("mit dem großen ", "Wert", False),
        ("", "Differenz", False),
    ],
)
def test_articles_of_feminine_nouns(before, noun, is_wrong):
    assert is_feminine_with_other_article(noun, before) == is_wrong

"""Inflected forms of terms, and the words that agree with them: facts of German grammar (Duden)."""

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
from fairseq_ext.search.phrases.places import compounds
from fairseq_ext.search.phrases.segmenter import Segmenter, nearest_spelling

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
        ("genehmigen", {"genehmig" + e for e in ("e", "end", "t", "te", "ten")}),  # no "genehmig"
        ("Selektionsbias", set()),  # no "Selektionsbiäser"
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
    assert TermForms("de", in_memory(table))("Dunkoll") == ("Dunkoll", "Dunkolls")


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


def test_numbers_of_forms():
    forms = ("Verband", "Verbandes", "Verbands", "Verbände", "Verbänden")
    assert [numbers_of(form, forms)[0] for form in forms] == ["singular"] * 3 + ["plural"] * 2
    assert numbers_of("Trials", ("Trial", "Trials")) == ("singular", "plural")
    assert numbers_of("Kunden", ("Kunde", "Kunden")) == ("plural", "singular")  # "dem Kunden"
    diuretics = ("Schleifendiuretika", "Schleifendiuretikum", "Schleifendiuretikums")
    assert [numbers_of(form, diuretics)[0] for form in diuretics] == ["plural"] + ["singular"] * 2
    assert numbers_of("Zellen", ("Zellen", "Zelle")) == ("plural",)
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


@pytest.mark.parametrize(
    ("before", "nouns", "others"),
    [
        ("Es gibt einen ", ["Wert", "Kunden"], ["Differenz", "Dokument", "Werte", "Kunde"]),
        ("mit dem großen ", ["Wert", "Konto"], ["Leistung", "Werte", "Werten", "Kunde"]),
        ("mit den großen ", ["Leistungen", "Werten"], ["Leistung", "Werte"]),
        ("die vorhandene ", ["Ressource", "Spalte"], ["Ressourcen", "Debitoren", "Konto"]),
        ("die vorhandenen ", ["Ressourcen", "Konten"], ["Ressource"]),
        ("der postoperative ", ["Schmerz"], ["Komplikationen", "Komplikation", "Dokument"]),
        ("der postoperativen ", ["Komplikationen", "Komplikation"], ["Dokument"]),
        ("Verträge enthalten odontologische ", ["Geräte", "Leistungen"], ["Geräten", "Gerät"]),
        ("Verträge enthalten odontologischen ", ["Wert"], ["Geräte", "Geräten"]),
        ("von ", ["Kunden", "Konten"], ["Kunde", "Werte"]),
        ("für ", ["Kunden", "Werte"], ["Werten", "Werts"]),
        ("ein neues ", ["Kundenkonto"], ["Debitor", "Buchung", "Kundenkonten"]),
        ("eine klinisch nachweisbare ", ["Studie"], ["Studien", "Konto"]),
        ("die zwei neuen ", ["Konten"], ["Konto"]),
        ("neun randomisierte ", ["Studien"], ["Konto"]),
        ("alte und neuen ", ["Konten"], []),
        ("das ", ["Konto", "Dokument"], ["Konten", "Beleg", "Vergleich", "Benutzer", "Spalten"]),
        ("den ", ["Debitorenbeleg", "Auftrag"], ["Steuerdokument", "Auftrags"]),
        ("Auf einigen ", ["Seiten"], ["Seite"]),
        ("die Textzeile, die spezielle ", ["Symbole"], ["Symbolen"]),
        ("der Formung von ", ["Blutgerinnseln"], ["Kunde"]),
        ("zu gemeinsamen ", ["Schmerzmitteln"], ["Werte"]),
        ("von großen nicht - randomisierten ", ["Studien"], ["Studie"]),
        ("Es gibt einen globalen ", ["Namen", "Prozess", "Servicenamen"], ["Name", "Datum"]),
        ("die ", ["E-Mail-Vorlage", "Konto-ID"], ["E-Mail-Konto", "Debitoren-Datum"]),
        ("Wenn der ", ["Wert"], ["Differenz"]),
        ("Die Inhalte der ", ["Konten", "Differenz"], ["Wert", "Menü"]),
        ("Im Feld Menge ist der ", ["Wert"], ["Konto"]),
        ("Dann ist im Feld der ", ["Wert"], ["Konto"]),
        ("die automatisch der ", ["Buchung"], ["Konten", "Belege"]),
        ("bezüglich der ", ["Konten"], ["Konto"]),
        ("während der ", ["Konten", "Transfusionen"], ["Konto"]),
        ("Die Einführung der ", ["Tumorgewebe"], ["Tumorgeweben"]),
        ("einige der ", ["Konten"], ["Konto"]),
        ("die Liste und der ", ["Konten", "Wert"], ["Konto"]),
        ("", ["Differenz", "Werten"], []),
    ],
)
def test_a_noun_goes_with_the_words_before_it(before, nouns, others):
    assert [noun for noun in nouns if not is_possible(before, noun)] == []
    assert [noun for noun in others if is_possible(before, noun)] == []


@pytest.mark.parametrize(
    ("before", "noun", "behind", "is_right"),
    [
        ("In diesem Fall können Sie ein ", "Steuerbeleg", " erstellen.", False),
        ("In diesem Fall können Sie einen ", "Steuerbeleg", " erstellen.", True),
        ("Sie können ein ", "Steuerbeleg", " bereitstellen.", False),
        ("Wenn Sie ein externer ", "Anbieter", " sind, gehen Sie.", True),
        ("Wenn Sie ein neues ", "Konto", " haben, gehen Sie.", True),
    ],
)
def test_a_noun_behind_the_subject_is_an_object(before, noun, behind, is_right):
    assert is_possible(before, noun, behind) == is_right


@pytest.mark.parametrize(
    ("form", "noun"),
    [
        ("Registerkarte Allgemein", "Registerkarte"),
        ("Offene Rechnung", "Rechnung"),
        ("Art der Rechnung", "Art"),
        ("Transaktionen ausgleichen", None),
    ],
)
def test_the_noun_of_a_term(form, noun):
    found = noun_of(form)
    assert (found and form[slice(*found)]) == noun


# ---- A term takes the case of the words that it replaces; a word with a case of its own keeps i


@pytest.mark.parametrize(
    ("term", "draft", "displaced", "output"),
    [
        ("Customer", "A client pays.", "client", "A customer pays."),
        ("Customer", "Clients pay.", "Clients", "Customer pay."),
        ("Sales Order", "Bids end. Offers stay.", "Offers", "Bids end. Sales order stay."),
        ("Sales order", "Open the offer.", "offer", "Open the sales order."),
        ("customer", "Open the Client page.", "Client", "Open the Customer page."),
        ("sales order", "Open the Offer page.", "Offer", "Open the Sales Order page."),
        ("Sales order", "Open the Offer page.", "Offer", "Open the Sales order page."),
        ("sales order", "Open Bid Offers now.", "Bid Offers", "Open Sales Order now."),
        ("Sales Order", "Open Bid offers now.", "Bid offers", "Open Sales order now."),
        ("notice of sale", "See Bids And Offers.", "Bids And Offers", "See Notice of Sale."),
        ("API", "The interface is new.", "interface", "The API is new."),
        ("API permissions", "A right is new.", "right", "A API permissions is new."),
        ("FastTab", "A tab is new.", "tab", "A FastTab is new."),
        ("iPad", "Tablets are new.", "Tablets", "iPad are new."),
        ("X-Ray", "A scan is new.", "scan", "A X-ray is new."),
        ("E-Mail", "A letter is new.", "letter", "A e-mail is new."),
        ("B2B Customer", "A client pays.", "client", "A B2B customer pays."),
        ("Customer", "• Clients pay.", "Clients", "• Customer pay."),
        ("Customer", '"Clients" pay.', "Clients", '"Customer" pay.'),
        ("Customer", "THE CLIENT PAYS", "CLIENT", "THE CUSTOMER PAYS"),
        ("customer", "The USA pays.", "USA", "The Customer pays."),
    ],
)
def test_a_placed_term_takes_the_case_of_what_it_displaces(term, draft, displaced, output):
    start = draft.index(displaced)
    span = start, start + len(displaced)
    cased = fitted(term, draft, span)
    assert draft[: span[0]] + cased + draft[span[1] :] == output


def test_an_inserted_term_has_the_case_of_running_text():
    assert fitted("Sales Order", "A client pays.", (8, 8)) == "sales order"


def test_where_nouns_have_capitals_the_model_decides_what_is_a_noun():
    assert fitted("Kunde", "Der Käufer zahlt.", (4, 10), "de") == "Kunde"
    assert fitted("Offen", "Er ist auf.", (7, 10), "de") == "Offen"
    assert fitted("offen", "Auf ist er.", (0, 3), "de") == "Offen"
    assert fitted("Kunde", "Der zahlt.", (3, 3), "de") == "Kunde"


def test_a_capital_inside_capitals_only_and_digits_are_a_case_of_its_own():
    assert all(map(has_own_case, "API FastTab iPad B2B ISO9001 eBay".split()))
    assert not any(map(has_own_case, "Customer customer 365 A Übersicht".split()))
    assert keeps_case("API") and keeps_case("vitamin C") is False and not keeps_case("API user")


# ---- The nearest spelling that a dictionary can write, and where it is reported


@pytest.mark.parametrize(
    ("text", "letters", "expected"),
    [
        ("naïve", "naive", "naive"),
        ("Straße", "Stra\u0073e", "Strasse"),
        ("don’t", "don't", "don't"),
        ("ﬁnal", "final", "final"),
        ("VEIN", "vein", "vein"),
        ("vein", "Vein", "Vein"),
        ("É", "e", "e"),  # two changes together
        ("☃", "vein", None),
    ],
)
def test_the_most_similar_writable_spelling(text, letters, expected):
    assert nearest_spelling(text, lambda each: set(each) <= set(letters), []) == expected


def test_a_word_that_the_dictionary_lacks_gives_way_to_a_similar_one():
    dictionary = Dictionary()
    for word in ("vein", "veins", "green", "▁lode", "art@@"):
        dictionary.add_symbol(word)
    segmenter = Segmenter(dictionary)
    assert (
        segmenter.writable("green veins")
        and not segmenter.writable("green veinss")
        and not segmenter.writable("<s> vein")
    )
    with pytest.raises(UsageError) as error:
        segmenter.phrases("green veinss", "line 3 of g")
    assert "in line 3 of g, the phrase 'green veinss' contains the piece 'veinss'" in str(
        error.value
    )
    assert "; the nearest spelling that works is 'green veins';" in str(error.value)
    with pytest.raises(UsageError) as error:
        segmenter.phrases("xyz", "line 3 of g")
    assert "nearest" not in str(error.value)


def test_a_typed_phrase_gets_the_same_help():
    dictionary = Dictionary()
    for word in ("vein", "veins", "green"):
        dictionary.add_symbol(word)
    source = ConstraintSource(None, None, None, Segmenter(dictionary), dictionary)
    where = "line 5 of the input"
    with pytest.raises(UsageError) as error:
        source.of_text(parse_tabs("green veinss", where), where)
    said = (
        "in line 5 of the input, the phrase 'green veinss' contains the piece 'veinss', which the "
        "target dictionary lacks"
    )
    assert str(error.value).startswith(
        said
    ) and "; the nearest spelling that works is 'green veins';" in str(error.value)

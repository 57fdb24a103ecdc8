"""Terms in inflected forms, through the Python API on the demo model, whose target side is named
German here: its words are English, and its pieces write German terms."""

import json
import shutil

import pytest
from demo_model import FLAGS, MODEL
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.search.constraints.drafts import Rewrite
from fairseq_ext.search.constraints.term_writer import TermWriter
from fairseq_ext.search.constraints.word_alignment import Mention, WordAlignment
from fairseq_ext.search.constraints.word_class import (
    has_verb,
    is_function_word,
    is_imperative,
    is_noun,
    is_other_class,
    is_phrasal,
    is_verb_mention,
    verb_forms,
)
from fairseq_ext.search.phrases.function_words import function_words
from fairseq_ext.search.phrases.sentence import Cased, SourceTerm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    out = tmp_path_factory.mktemp("named")
    for source, target in (("de", "en"), ("en", "de")):
        shutil.copy(MODEL / f"dict.{source}.txt", out / f"dict.{target}.txt")
    (out / "terms.tsv").write_text("Ordner\tKunde\n", encoding="utf-8")
    return out


@drawn(1)
@pytest.mark.parametrize(
    ("forms", "number"), [("auto", 2), ("off", 1)], ids=["with forms", "without"]
)
def test_a_term_is_there_in_one_of_its_forms(folder, forms, number):
    report = folder / f"{forms}.jsonl"
    flags = FLAGS | {"data": str(folder), "source_lang": "en", "target_lang": "de", "beam": 2}
    flags |= {"glossary": str(folder / "terms.tsv"), "glossary_forms": forms}
    translator = Translator(**flags, glossary_report=str(report))
    text = translator.translate(["Der Ordner ist neu."])[0][0].text
    (term,) = json.loads(report.read_text(encoding="utf-8"))["terms"]
    assert term["forms"] == number and term["placed_by"] == "aligned"
    assert term["form"] in ("Kunde", "Kunden")[:number] and term["form"] in text
    if number == 1:  # and a program that has dropped it may write the file with a further one
        del translator
        Translator(**flags, glossary_report=str(report)).translate(["Das Haus ist neu."])
        assert json.loads(report.read_text(encoding="utf-8"))["terms"] == []


ADJECTIVE = ("klinisch", *("klinisch" + ending for ending in ("e", "en", "er", "es", "em")))


@pytest.mark.parametrize(
    ("text", "is_wrong"),
    [
        ("in einer kleinen, klinische Studie", True),
        ("in einer kleinen, klinischen Studie", False),
        ("unfreiwillige klinisch Behandlung", True),
        ("mit dem klinische Versuch", True),
        ("der klinische Versuch", False),
        ("für klinische Studien", False),
        ("von klinischen Studie", True),
        ("eine klinische Bereich", False),  # no ending goes with it
        ("Es ist klinisch belegt", False),
    ],
)
def test_an_adjective_of_the_draft_has_an_ending_that_goes_with_the_words_before(text, is_wrong):
    writer = TermWriter(lambda: None, 2, "de")
    place = writer.wrong_place(SourceTerm("klinisch", targets=ADJECTIVE), text)
    assert (place is not None) == is_wrong


@pytest.mark.parametrize(("mention", "forms"), [("box", ["Kunde"]), ("boxes", ["Kunden"])])
def test_a_noun_has_the_number_of_its_english_source(mention, forms):
    writer = TermWriter(lambda: None, 2, "de")
    writer.source = "en"
    term = SourceTerm("Kunde", targets=("Kunde", "Kunden"), mention=mention)
    assert set(forms) <= set(writer.of_number(term))
    setup = SourceTerm("setup", targets=("Einstellungen", "Einstellung"), mention="setup")
    assert writer.number(setup) == "plural"
    cells = SourceTerm("muscle cells", targets=("Muskelzellen", "Muskelzelle"), mention="cells")
    assert writer.of_number(cells) == ("Muskelzellen",)
    assert writer.of_number(SourceTerm("neu", targets=("neu", "neue"), mention=mention)) == (
        "neu",
        "neue",
    )


@pytest.mark.parametrize(
    ("text", "noun", "wrong"),
    [
        ("Das Steuerrückerstattungsbeleg ist", "Beleg", "Steuerrückerstattungsbeleg"),
        ("für alle Ihre E-Mail-Kommunikation", "E-Mail", None),
        ("einen E-Mail-Kommunikation", "E-Mail", "E-Mail-Kommunikation"),
        ("einen Differenz", "Differenz", "Differenz"),
        ("der Differenz, für das Konto", "Konto", None),
    ],
)
def test_a_noun_of_the_draft_goes_with_its_article(text, noun, wrong):
    writer = TermWriter(lambda: None, 2, "de")
    term = SourceTerm(noun, targets=(noun,), cased=Cased("fitted", in_compounds=True))
    place = writer.wrong_place(term, text)
    assert (place and text[slice(*place)]) == wrong


@pytest.mark.parametrize(
    ("word", "part", "forms", "written"),
    [
        ("Serviceartikels", "Service", ("Dienstleistung",), ["Dienstleistungsartikels"]),
        ("Arrivalprofile", "Arrival", ("Eingang",), ["Eingangprofile", "Eingangsprofile"]),
        ("Antifreezeigerweise", "Antifreeze", ("Frostschutz",), []),  # the rest is no noun
        ("Koolant-Mischung", "Koolant", ("Kühlmittel",), ["Kühlmittel-Mischung"]),
        ("Projektnummern", "nummern", ("Zahl", "Zahlen"), ["Projektzahl", "Projektzahlen"]),
    ],
)
def test_a_term_takes_the_place_of_a_part_of_a_longer_word(word, part, forms, written):
    writer = TermWriter(lambda: None, 2, "de")
    term = SourceTerm(forms[0], targets=forms, cased=Cased("fitted", in_compounds=True))
    text, start = f"die {word}", 4 + word.index(part)
    ways = writer.joined(term, text, (4, len(text)), (start, start + len(part)))
    assert sorted(way.text for way in ways) == sorted(written)


def test_an_adjective_agrees_with_a_noun_that_is_a_term_too():
    writer = TermWriter(lambda: None, 2, "de")
    text = "wenn sie zufällige Proben sind"
    adjective = SourceTerm("randomized", targets=("randomisiert", "randomisierte"))
    noun = SourceTerm("trials", targets=("Studie", "Studien"))
    chosen = {noun: Rewrite((19, 25), "Studien", "Studien")}
    possible = [
        form
        for ending in ("e", "em", "en", "er", "es")
        for form in ["randomisiert" + ending]
        if writer.agrees(text, chosen | {adjective: Rewrite((9, 18), form, form)}, adjective)
    ]
    assert possible == ["randomisierte"]


# ---- word classes


def is_function_term(term: SourceTerm) -> bool:
    return is_function_word(term, function_words("de"))


@pytest.mark.parametrize(
    ("holds", "terms", "others"),
    [
        # only a noun ends so; "Delete" and "Used" may be verbs
        (is_noun, ["Anwendung Application", "Seiten Pages"], ["Löschen Delete", "Anwendung Used"]),
        # not "Questions your experts" for "Fragen Sie Ihre Experten"
        (
            is_imperative,
            ["Fragen Questions | Sie", "Fragen Questions . Sie"],
            ["Fragen Questions haben Sie", "Fragen Questions | und", "Filtern Filter | Sie"],
        ),
        (is_phrasal, ["Set Satz | up"], ["Set Satz a of", "Set Satz | |"]),
        (
            is_verb_mention,
            ["Displays Anzeige | the", "store Filiale to the"],
            ["store Filiale the the", "Store Filiale | A", "store Filiale to |"],
        ),
        (is_function_term, ["Über About", "über_das About", "ab From"], ["über_Nacht About"]),
    ],
)
def test_the_word_class_of_a_mention(holds, terms, others):
    """Mention, target, and the words around it (| for none)."""
    for given in terms + others:
        mention, target, *around = given.replace("|", "").split(" ")
        mention, around = mention.replace("_", " "), tuple(around) or ("", "")
        term = SourceTerm(target, targets=(target,), source=mention, mention=mention, around=around)
        assert holds(term) == (given in terms), given


@pytest.mark.parametrize(
    ("target", "text", "word", "is_it"),
    [
        ("EINGABETASTE", "Geben Sie den Betrag ein.", "Geben", True),
        ("Scheck", "(Prüfen Sie es)", "Prüfen", True),
        ("sichern", "Speichern Sie die Datei.", "Speichern", False),
        ("Scheck", "die Prüfung Siemens", "Prüfung", False),
        ("Scheck", "die Prüfung.", "Prüfung", False),
        ("Following", "die folgenden Werte", "folgenden", True),
        ("Following", "die following Werte", "following", False),
        ("geschäftlich", "der aktuellen Geschäftsentität", "Geschäftsentität", True),
        ("geschäftlich", "Geschäftsentität", "Geschäftsentität", False),
        ("geschäftlich", "der geschäftigen Welt", "geschäftigen", False),
        ("anlegen", "zum Erstellen der Datei", "Erstellen", False),
        ("anlegen", "zu erstellen", "erstellen", True),  # anzulegen
        ("Anzeige", "zeigt alle Werte an", "zeigt", True),
    ],
)
def test_no_term_takes_the_place_of_a_german_word_of_another_class(target, text, word, is_it):
    span = text.index(word), text.index(word) + len(word)
    assert is_other_class(SourceTerm(target, targets=(target,)), text, span) is is_it


def test_a_wrong_word_of_the_draft_gives_way_to_a_term_of_another_class():
    """The model does not write "platzieren" for "placebo" by itself, and no noun follows it."""
    placebo, business = (SourceTerm(word, targets=(word,)) for word in ("Placebo", "geschäftlich"))
    assert not is_other_class(placebo, "im Vergleich zu platzieren.", (16, 26), is_own=False)
    assert is_other_class(placebo, "die folgenden Werte", (4, 13), is_own=False)
    assert not is_other_class(business, "der Partner", (4, 11), is_own=False)
    words = WordAlignment("der Geschäftspartner", [], [Mention((0,), ()), Mention((1,), ())])
    words.span_of_mention = [(4, 20), (0, 3)]
    for rendering, own in (("geschäft", True), ("partner", False), ("ges", False)):
        for mention in words.mentions:
            mention.renderings = {(rendering,): 0.9}
            mention.__dict__.pop("shares", None)
        assert [words.is_own(i) for i in (0, 1, None)] == [own, False, False]


@pytest.mark.parametrize(
    ("verb", "text", "word", "forms"),
    [
        ("speichern", "Sichern Sie die Datei.", "Sichern", ("speichern",)),
        ("annehmen", "Akzeptieren Sie die Frist.", "Akzeptieren", ()),  # Nehmen Sie ... an
        ("speichern", "um sie zu sichern", "sichern", ("speichern",)),
        ("anlegen", "um sie zu erstellen", "erstellen", ()),  # anzulegen
        ("anlegen", "zum Erstellen der Datei", "Erstellen", ("Anlegen",)),
        ("anwenden", "Das gilt für alle.", "gilt", ()),  # wendet ... an
        ("setzen", "Legen Sie die Frist auf morgen fest.", "Legen", ()),  # "fest" would stay
        ("setzen", "Legen Sie die Datei in den Ordner.", "Legen", ("setzen",)),
    ],
)
def test_a_german_verb_has_a_form_that_its_place_allows(verb, text, word, forms):
    term, at = SourceTerm(verb, targets=(verb,), required=True), text.index(word)
    span = at, at + len(word)
    assert verb_forms(term, text, span) == forms
    # one that the line requires as well is written all the same
    ways = TermWriter(lambda: None, 2, "de").inflected(term, text, span, [span])
    assert {way.form.lower() for way in ways} == {verb}


@pytest.mark.parametrize(
    ("text", "is_it"),
    [
        ("Wählen Sie den Ordner aus, und gehen Sie.", True),
        ("Wählen Sie den Ordner, der aus Papier ist.", False),
        ("ausgewählten Ordner", True),
        ("Auswählen eines Ordners", False),  # the term itself
        ("Nehmen Sie den Ordner aus.", False),
    ],
)
def test_a_verb_that_the_draft_has_in_another_form_is_there(text, is_it):
    term, word = SourceTerm("auswählen", targets=("auswählen",)), text.split()[0]
    assert has_verb(term, text, (0, len(word))) is is_it

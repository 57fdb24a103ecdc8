"""Terms in inflected forms, through the Python API on the demo model, whose target side is named
German here: its words are English, and its pieces write German terms."""

import json
import shutil

import pytest
from demo_model import FLAGS, MODEL
from sizes import drawn

from fairseq_ext import Translator
from fairseq_ext.search.constraints.drafts import Rewrite, is_part_of
from fairseq_ext.search.constraints.term_writer import TermWriter
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


def test_a_word_that_another_term_may_take_is_no_mistake_of_the_draft():
    part = SourceTerm("configuration", targets=("Konfiguration", "Konfigurationen"))
    longer = SourceTerm("partial configurations", targets=("Teilkonfigurationen",))
    assert is_part_of(part, longer) and not is_part_of(longer, part)


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
